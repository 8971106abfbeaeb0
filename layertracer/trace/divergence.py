"""Jensen-Shannon divergence between next-token distributions, in nats, for rows of logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LN2 = math.log(2)
# A term whose probabilities differ by more than exp(30) contributes the larger one times ln 2 to
# 13 digits; a larger bound would only cost float32 its digits in the difference below.
_LARGEST_LOG_RATIO = 30.0
_LARGEST_LOG_COSH = 2 * (_LARGEST_LOG_RATIO / 2 - LN2)
_TINY = 1e-38
# Rows at a time on a CPU, so that what is in work stays in its cache: half the time.
_CPU_ROWS = 4


def js_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of each row, ``[rows]`` float64, in ``[0, ln 2]``.

    With ``d = log q - log p`` each term of the sum is
    ``((q - p) d - (p + q) log cosh^2(d / 2)) / 4``, where ``cosh^2(d / 2) = 1 + (q - p)^2 / 4pq``:
    exactly symmetric, and accurate for nearly equal distributions, where ``KL(p||m) + KL(q||m)``
    loses all its digits. A probability of zero (``log_p = -inf``) is allowed.

    Args:
        log_p, log_q: normalised log-probabilities, ``[rows, vocabulary]``, float32 or float64.
    """
    return js_sum(log_p, log_q).clamp_(0.0, LN2)


def js_sum(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return what the columns given add to ``js_divergence``: the whole for a whole vocabulary.

    Parts of a vocabulary that is split over ranks are summed up and then clamped.
    """
    step = _CPU_ROWS if log_p.device.type == "cpu" else len(log_p)
    parts = zip(log_p.split(step), log_q.split(step), strict=True)
    return torch.cat([_js_of_rows(p, q) for p, q in parts])


def _js_of_rows(log_p: Tensor, log_q: Tensor) -> Tensor:
    log_ratio = (log_q - log_p).nan_to_num_(nan=0.0)
    log_ratio.clamp_(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    p, q = log_p.exp(), log_q.exp()
    difference = q - p
    four_p_q = (p * q).mul_(4).add_(_TINY)
    log_cosh = difference.square().div_(four_p_q).log1p_().clamp_(max=_LARGEST_LOG_COSH)
    terms = difference.mul_(log_ratio).sub_(p.add_(q).mul_(log_cosh))
    # float64 from here: ln 2 rounded to float32 is above ln 2.
    return terms.sum(-1).double().mul_(0.25)
