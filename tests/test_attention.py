"""The kernel of attention to kept columns against softmax in float64: on a GPU, or on a CPU with TRITON_INTERPRET=1."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
from torch import Tensor

from unmask.core.gpu import attention
from unmask.models.network import Past, _whole

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="needs CUDA or TRITON_INTERPRET=1"
)
CLOSE = {torch.float32: 2e-6, torch.float16: 3e-3} | ({} if INTERPRETED else {torch.bfloat16: 2e-2})


def random(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def reference(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, past: tuple[Past, ...]) -> Tensor:
    """All parts side by side, under one mask, in float64."""
    many, rows = q.shape[1] // k.shape[1], len(q)
    mask = _whole(q, None if seen is None else seen[:, None], past)
    entries = [torch.arange(rows, device=q.device) if one.entry is None else one.entry for one in past]
    sides = [
        torch.cat([*(one.layers[0][part][entry] for one, entry in zip(past, entries, strict=True)), new], 2)
        for part, new in enumerate((k, v))
    ]
    keys, values = (side.double().repeat_interleave(many, 1) for side in sides)
    score = (q.double() @ keys.mT * q.shape[3] ** -0.5).masked_fill(~mask, -torch.inf)
    return score.softmax(3) @ values


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize(
    ("rows", "heads", "kv", "width", "each"),
    [(3, 4, 4, 32, 64), (2, 8, 2, 4, 16), (1, 4, 4, 5, 24), (2, 2, 1, 1, 32), (4, 2, 2, 40, 8)],
)
def test_like_a_softmax(rows: int, heads: int, kv: int, width: int, each: int, dtype: torch.dtype) -> None:
    def made(*shape: int, seed: int) -> Tensor:
        return random(*shape, dtype=dtype, seed=seed)

    q = made(rows, width, heads, each, seed=1).transpose(1, 2)  # as the network lays it out
    k, v = (made(rows, width, kv, each, seed=seed).transpose(1, 2) for seed in (2, 3))
    given = tuple(made(2, kv, 150, each, seed=seed) for seed in (4, 5))
    own = tuple(made(rows, kv, 90, each, seed=seed) for seed in (6, 7))
    numbers = torch.arange(rows, device=DEVICE)
    first = Past((given,), count=150 - 37 * (numbers % 2), entry=numbers % 2)
    second = Past((own,), count=90 - 7 * numbers, low=numbers * 3, gap=(numbers + 20, numbers + 20 + width))
    seen = torch.ones(rows, width, width, dtype=torch.bool, device=DEVICE).tril(width // 2)
    for past in ((first, second), (first,), (second,)):
        for among in (seen, None):
            kept = [attention.Kept(*one.layers[0], one.spans(rows)) for one in past]
            found = attention.attend(q, k, v, among, kept)
            assert found.shape == q.shape
            assert (found.double() - reference(q, k, v, among, past)).abs().max() < CLOSE[dtype]


def test_a_row_that_sees_nothing_kept_and_an_empty_batch() -> None:
    q, k, v = (random(2, 2, 3, 16, dtype=torch.float32, seed=seed) for seed in (1, 2, 3))
    own = tuple(random(2, 2, 8, 16, dtype=torch.float32, seed=seed) for seed in (4, 5))
    past = Past((own,), count=torch.tensor([0, 8], device=DEVICE))
    found = attention.attend(q, k, v, None, [attention.Kept(*own, past.spans(2))])
    assert (found.double() - reference(q, k, v, None, (past,))).abs().max() < CLOSE[torch.float32]
    none = attention.attend(q[:0], k[:0], v[:0], None, [attention.Kept(*own, past.spans(2)[:0])])
    assert none.shape == (0, 2, 3, 16)


def test_rows_take_what_their_ancestors_keep() -> None:
    layers = tuple(tuple(random(5, 2, 7, 16, dtype=torch.float32, seed=seed + i) for i in (0, 1)) for seed in (1, 3))
    before = [(keys.clone(), values.clone()) for keys, values in layers]
    ancestors, ends = torch.tensor([0, 0, 1, 4, 4], device=DEVICE), torch.tensor([7, 5, 3, 7, 0], device=DEVICE)
    attention.move(layers, ancestors, ends)
    for (keys, values), olds in zip(layers, before, strict=True):
        for new, old in zip((keys, values), olds, strict=True):
            for row, (source, end) in enumerate(zip(ancestors.tolist(), ends.tolist(), strict=True)):
                assert torch.equal(new[row, :, :end], old[source, :, :end])
                assert torch.equal(new[row, :, end:], old[row, :, end:])
