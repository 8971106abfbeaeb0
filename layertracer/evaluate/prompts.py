"""Prompt protocols: the benchmarks' own wording and lm-eval's, which differ and score differently.

Sources: ``code/evaluator_series`` of hkust-nlp/ceval, ``src/mp_utils.py`` of haonan-li/CMMLU, and
``ceval-valid`` 2.0 and ``cmmlu`` 1.0 of lm-eval 0.4.13.
"""

from __future__ import annotations

from dataclasses import dataclass

from layertracer.evaluate.files import Prompt
from layertracer.evaluate.questions import Layout

_OPTIONS = "\nA. {{A}}\nB. {{B}}\nC. {{C}}\nD. {{D}}\n"


@dataclass(frozen=True)
class PromptStyle:
    """Wording of one protocol for one benchmark.

    Attributes:
        description: what stands before the examples; ``{title}`` is the subject.
        question: Jinja template of a question up to its answer.
        delimiter: between a question and its answer, also where the answer is scored.
    """

    description: str
    question: str
    delimiter: str


STYLES: dict[tuple[Prompt, Layout], PromptStyle] = {
    ("official", "ceval"): PromptStyle(
        "以下是中国关于{title}考试的单项选择题，请选出其中的正确答案。\n\n",
        "{{question.strip()}}" + _OPTIONS + "答案：",
        "",
    ),
    ("official", "cmmlu"): PromptStyle(
        "以下是关于{title}的单项选择题，请直接给出正确答案的选项。\n\n",
        "题目：{{question.strip()}}" + _OPTIONS + "答案是：",
        "",
    ),
    ("lm-eval", "ceval"): PromptStyle(
        "以下是中国关于{title}的单项选择题，请选出其中的正确答案。\n\n",
        "{{question.strip()}}" + _OPTIONS + "答案：",
        " ",
    ),
    ("lm-eval", "cmmlu"): PromptStyle(
        "以下是关于{title}的单项选择题，请直接给出正确答案的选项。\n\n",
        "{{question.strip()}}" + _OPTIONS + "答案：",
        " ",
    ),
}
