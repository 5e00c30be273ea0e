"""Unconditional text: generated token ids -> how varied they are.

It has no question and no right answer, so it is no Task: its quality is the perplexity under an autoregressive judge,
read together with this number, because repetition is cheap to predict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

LENGTH = 1024  # tokens of a sample, as MDLM was trained and as the paper samples


def diversity(tokens: Sequence[int]) -> float:
    """The entropy of one sample's token counts, in nats, as remdm and bd3lms compute it."""
    counts = Counter(tokens).values()
    return -sum(count / len(tokens) * math.log(count / len(tokens)) for count in counts) + 0.0
