"""Reading the chosen option out of generated text.

Rules, the first that applies decides: the last conclusion ("答案是B", "故选B", "B选项正确",
``\\boxed{B}``); a leading letter; the text of one option; the only letter that is not refuted.
More than one letter there is "several": never a guess.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from layertracer.evaluate.files import Parsed
from layertracer.evaluate.questions import LETTERS

_QUOTES = r"[\s\"'“”‘’「」『』《》<>(\[{【〔]*"
_LIST = r"([A-Da-d](?:[)\]】\s]*(?:[、,/&;+]|和|与|及|或|以及|或者|and|or)?[(\[【\s]*[A-Da-d])*)"
_END = r"(?![A-Za-z0-9])(?!\s+[a-z])"
_IS = r"(?:选项|应该|应当|应|就|可能|只能|的)*(?:是|为|选|:|is|=)*(?:选项|option|:|\s)*"
_CONCLUSION = re.compile(
    r"(?:(?<!不)(?:正确|最佳|合适)的?(?:答案|选项|选择|一项|说法|叙述)"
    r"|答案|answer|而是|(?<![不勿别])(?:选择|选(?!项|择)|选项(?=:)))"
    rf"\s*{_IS}{_QUOTES}{_LIST}{_END}",
    re.IGNORECASE,
)
_JUDGED_RIGHT = re.compile(
    rf"(?<![A-Za-z]){_LIST}[)\]】\"'”’\s]*(?:选项|项|答案)?\s*(?:说法|的说法|表述)?"
    r"(?:才|就|都|均|完全)*(?:是|为)?(?:正确|对的|最佳|is correct|is right)",
)
_REFUTED = re.compile(
    r"(?:不是|不选|排除|并非|而非|不应选|不能选)[^。;\n]{0,3}?"
    rf"{_QUOTES}{_LIST}{_END}"
    rf"|(?<![A-Za-z]){_LIST}[)\]】\"'”’\s]*(?:选项|项)?[^。;,\nA-D]{{0,8}}?"
    r"(?:错误|不正确|不对|有误|不符|是错)"
)
_BOXED = re.compile(r"\\boxed\s*\{\s*(?:\\(?:text|mathrm|textbf)\s*\{)?\s*([A-Da-d])\s*\}")
_LEADING = re.compile(rf"{_QUOTES}{_LIST}[)\]】」』\"'”’}}]*(?=$|[\s.。、:,;!?])")
_LONE = re.compile(r"(?<![A-Za-z0-9])([A-D])(?![A-Za-z0-9])(?!\s+[a-z])")
_JOINED = re.compile("and|or")
_THOUGHT = re.compile(r"<think>.*?(?:</think>|$)", re.DOTALL)
_DECORATION = re.compile(r"\*+|`+|\$+|^\s*#+\s*", re.MULTILINE)


@dataclass(frozen=True)
class Extraction:
    """The option found, or None, and how the text was read."""

    letter: str | None
    parsed: Parsed


def extract(answer: str, options: Sequence[str]) -> Extraction:
    """Return the option that a generated answer chooses.

    Args:
        answer: the generated text.
        options: the four options' texts, in the order of their letters.
    """
    text = _clean(answer)
    if not text:
        return Extraction(None, "empty")
    for rule in (_concluded, _leading):
        letters = rule(text)
        if letters:
            return _of_letters(letters)
    by_text = _options_named(text, [_clean(option) for option in options])
    if len(by_text) == 1:
        return Extraction(by_text.pop(), "text")
    alone = _not_refuted(text)
    if by_text and not alone:
        return Extraction(None, "several")
    return _of_letters(alone) if alone else Extraction(None, "nothing")


def _clean(text: str) -> str:
    """Fold full-width forms, drop thoughts and markup."""
    text = unicodedata.normalize("NFKC", _THOUGHT.sub("", text))
    return _DECORATION.sub("", text).strip()


def _of_letters(letters: set[str]) -> Extraction:
    if len(letters) == 1:
        return Extraction(next(iter(letters)), "letter")
    return Extraction(None, "several")


def _letters(text: str) -> set[str]:
    return set(re.findall("[A-D]", _JOINED.sub("", text).upper()))


def _concluded(text: str) -> set[str]:
    """Return the letters of the last conclusion; a boxed one comes first."""
    boxed = _BOXED.findall(text)
    if boxed:
        return {boxed[-1].upper()}
    found = [*_CONCLUSION.finditer(text), *_JUDGED_RIGHT.finditer(text)]
    if not found:
        return set()
    return _letters(max(found, key=lambda match: match.start(1)).group(1))


def _leading(text: str) -> set[str]:
    """Return the letters that the text begins with, unless it goes on to refute them."""
    if re.fullmatch(r"[a-d][.。)]?", text):
        return {text[0].upper()}
    match = _LEADING.match(text)
    if not match or re.search("[a-d]", _JOINED.sub("", match.group(1))):
        return set()
    if re.match(r"\s+[a-z]", text[match.end() :]) or _REFUTED.match(text):
        return set()
    return _letters(match.group(1))


def _options_named(text: str, options: Sequence[str]) -> set[str]:
    """Return the letters of the options whose text the answer holds, longest texts first."""
    named: dict[str, str] = {}
    rest = text
    for letter, option in sorted(zip(LETTERS, options, strict=True), key=lambda o: -len(o[1])):
        pattern = _bounded(option)
        if option and re.search(pattern, rest):
            named[letter] = option
            rest = re.sub(pattern, "\0", rest)
    return set(named)


def _bounded(option: str) -> str:
    """Match an option's text where it is not part of a longer number or word."""
    before = r"(?<![A-Za-z0-9.])" if option[:1].isascii() else ""
    after = r"(?![A-Za-z0-9]|\.\d)" if option[-1:].isascii() else ""
    return before + re.escape(option) + after


def _not_refuted(text: str) -> set[str]:
    rest = _REFUTED.sub("\0", text)
    return {letter.upper() for letter in _LONE.findall(rest)}
