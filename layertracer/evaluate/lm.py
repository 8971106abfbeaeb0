"""lm-eval's Hugging Face model with a scorer of options that does each piece of work once.

Same requests, same tokens and same answers as ``lm_eval.models.huggingface.HFLM``; what differs is
how much goes through the model: the four options of a question are read from one forward pass, the
part that all questions of a task begin with (description and worked examples) is computed once, the
output head runs at the wanted positions only, and batches hold texts of similar length.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from layertracer.evaluate.encoding import encode, encode_pairs
from layertracer.evaluate.forward import Forward
from layertracer.evaluate.journal import Journal, request_key
from layertracer.evaluate.packing import Batch, Row, Tokens, pack, share_out
from layertracer.evaluate.ranks import Ranks

_TEXTS_AT_ONCE = 2048


@dataclass(frozen=True)
class _Scorable:
    """A request in tokens: run ``tokens``, then read ``continuation`` at its last positions."""

    key: str
    group: str
    tokens: Tokens
    continuation: Tokens


class OptionLM(HFLM):
    """Scores options and generates answers for lm-eval.

    Args:
        model: a causal language model on its device.
        tokenizer: its tokenizer.
        batch_tokens: tokens of a batch, padding and shared prefix included.
        ranks: processes that share the work; each is given every request.
        journal: keeps answers, so that a killed evaluation goes on where it stopped.
        advance: told how many requests are done.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_tokens: int = 8192,
        ranks: Ranks | None = None,
        journal: Journal | None = None,
        advance: Callable[[int], None] = lambda done: None,
    ) -> None:
        super().__init__(pretrained=model, tokenizer=tokenizer, backend="causal")
        self.batch_tokens = batch_tokens
        self.ranks = ranks or Ranks()
        self.journal = journal or Journal()
        self.advance = advance
        self.forward = Forward(model)
        self.tokens_unshared = 0
        self.truncated: set[tuple[str, int]] = set()

    def get_model_info(self) -> dict[str, Any]:
        """Return what lm-eval records of a model; HFLM would ask the hub for a commit."""
        return {
            "model_num_parameters": self.model.num_parameters(),
            "model_dtype": str(self.model.dtype),
        }

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return log-probability of each request's continuation, and whether it is the greedy one.

        Raises:
            UserError: the tokenizer merges the prompt's end with the option.
        """
        keys = [request_key("loglikelihood", request.args) for request in requests]
        scorables = self._scorables(dict(zip(keys, requests, strict=True)))
        by_row: dict[tuple[str, Tokens], list[_Scorable]] = defaultdict(list)
        for scorable in scorables:
            if self.journal.get(scorable.key) is None:
                by_row[scorable.group, scorable.tokens].append(scorable)
                self.tokens_unshared += len(scorable.tokens) if self.ranks.first else 0
        members = list(by_row.values())
        rows = [
            Row(number, same[0].group, same[0].tokens, max(len(one.continuation) for one in same))
            for number, same in enumerate(members)
        ]
        self.advance(len(keys) - sum(map(len, members)))
        done = {}
        for batch in self._my_share(rows, share=self.forward.shares_prefixes):
            log_probs = self.forward.log_probs(batch)
            for row, at_end in zip(batch.rows, log_probs, strict=True):
                done |= self._keep(
                    {one.key: _score(at_end, one.continuation) for one in members[row.index]}
                )
        return [tuple(answer) for answer in self._answers(keys, done)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the text that greedy decoding adds to each request's context."""
        keys = [request_key("generate_until", request.args) for request in requests]
        wanted = list(dict(zip(keys, requests, strict=True)).items())
        contexts = encode(self, [request.args[0] for _, request in wanted])
        rows = []
        for number, ((key, request), context) in enumerate(zip(wanted, contexts, strict=True)):
            self._note_length(request, len(context) + request.args[1]["max_gen_toks"])
            if self.journal.get(key) is None:
                rows.append(Row(number, "", context))
        self.advance(len(keys) - len(rows))
        done = {}
        for batch in self._my_share(rows, share=False):
            asked = [wanted[row.index] for row in batch.rows]
            texts = self._generate([request for _, request in asked])
            used = batch.cost + sum(map(len, encode(self, texts)))
            self.forward.tokens += used
            self.tokens_unshared += used
            done |= self._keep({key: text for (key, _), text in zip(asked, texts, strict=True)})
        return self._answers(keys, done)

    def _generate(self, chunk: list[Instance]) -> list[str]:
        self.batch_size_per_gpu = len(chunk)
        return super().generate_until(chunk, disable_tqdm=True)

    def _my_share(self, rows: Sequence[Row], *, share: bool) -> list[Batch]:
        batches = pack(rows, self.batch_tokens, share=share)
        return share_out(batches, self.ranks.world)[self.ranks.rank]

    def _keep(self, answers: dict[str, Any]) -> dict[str, Any]:
        for key, answer in answers.items():
            self.journal.put(key, answer)
        self.advance(len(answers) * self.ranks.world)
        return answers

    def _answers(self, keys: Sequence[str], done: dict[str, Any]) -> list[Any]:
        """Return the answers of all ranks, in the order of ``keys``."""
        known = {key: value for part in self.ranks.gather(done) for key, value in part.items()}
        return [known[key] if key in known else self.journal.get(key) for key in keys]

    def _scorables(self, requests: dict[str, Instance]) -> list[_Scorable]:
        """Encode requests, cutting what is too long on the left as HFLM does."""
        items, found = list(requests.items()), []
        for start in range(0, len(items), _TEXTS_AT_ONCE):
            part = items[start : start + _TEXTS_AT_ONCE]
            encoded = encode_pairs(self, [request.args for _, request in part])
            for (key, request), (context, continuation) in zip(part, encoded, strict=True):
                whole = (*context, *continuation)
                self._note_length(request, len(whole) - 1)
                kept = whole[-(self.max_length + 1) :][:-1]
                found.append(_Scorable(key, request.task_name, kept, continuation))
        return found

    def _note_length(self, request: Instance, length: int) -> None:
        if length > self.max_length:
            self.truncated.add((request.task_name, request.doc_id))


def _score(at_end: torch.Tensor, continuation: Tokens) -> tuple[float, bool]:
    """Sum a continuation's log-probabilities (``[heads, vocabulary]``, its positions last)."""
    at_end = at_end[-len(continuation) :]
    wanted = torch.tensor(continuation, device=at_end.device)
    total = at_end.gather(1, wanted[:, None]).sum().item()
    return total, bool((at_end.argmax(dim=-1) == wanted).all())
