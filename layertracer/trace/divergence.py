"""Jensen-Shannon divergence between next-token distributions, in nats, for rows of logits."""

from __future__ import annotations

import torch
from torch import Tensor

LN2 = 0.6931471805599453
# A term whose probabilities differ by more than exp(30) contributes the larger one times ln 2 to
# 13 digits; a larger bound would only cost float32 its digits in the difference below.
_LARGEST_LOG_RATIO = 30.0


def js_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of each row, ``[rows]``, in ``[0, ln 2]``.

    With ``x = (log q - log p) / 2`` each term of the sum is
    ``((q - p) x - (p + q) / 2 * log cosh^2 x) / 2``: exactly symmetric, never negative up to
    rounding, and accurate for nearly equal distributions, where ``KL(p||m) + KL(q||m)`` loses
    all its digits. A probability of zero (``log_p = -inf``) is allowed.

    Args:
        log_p, log_q: normalised log-probabilities, ``[rows, vocabulary]``, float32 or float64.
    """
    p, q = log_p.exp(), log_q.exp()
    x = (log_q - log_p).nan_to_num_(nan=0.0).clamp_(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    x *= 0.5
    log_cosh_squared = torch.sinh(x).square_().log1p_()
    terms = (q - p).mul_(x).sub_(p.add_(q).mul_(log_cosh_squared).mul_(0.5))
    return terms.sum(-1).mul_(0.5).clamp_(0.0, LN2)
