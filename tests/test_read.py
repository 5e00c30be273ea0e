"""weigh and draw against a plain float64 softmax, position by position."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from unmask.core import beliefs
from unmask.core.beliefs import DrawRule, draw, filtered, most_probable, weigh
from unmask.models import Head

INF = torch.inf
EDGES = torch.tensor(
    [
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],  # flat
        [3.0, 1.0, 3.0, -2.0, 0.5, 3.0],  # ties at the top
        [-INF, 2.0, -INF, 1.0, -INF, -INF],  # most of it impossible
        [-INF, -INF, -INF, 7.0, -INF, -INF],  # certain
        [0.0, 0.0, 40.0, 0.0, 0.0, 0.0],  # certain but for rounding
        [1e4, 9990.0, -1e4, 0.0, 9999.0, 1e4],  # large numbers
        [-1e4, -1e4 - 1, -1e4 - 2, -1e4, -1e5, -1e4],
        [0.3, -1.2, 2.1, 0.0, -0.4, 1.9],
    ],
    dtype=torch.float64,
)


def softmax(logits: list[float]) -> list[float]:
    """As one would write it on paper."""
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [w / math.fsum(weights) for w in weights]


def entropy(chances: list[float]) -> float:
    return -math.fsum(p * math.log(p) for p in chances if p > 0)


def log(p: float) -> float:
    return math.log(p) if p > 0 else -math.inf


def everywhere(logits: Tensor) -> Tensor:
    return torch.ones(1, len(logits), dtype=torch.bool)


def raw_of(logits: Tensor, head: Head | None = None, tokens: Tensor | None = None) -> beliefs.Beliefs:
    head = head or Head(logits.shape[1])
    tokens = torch.zeros(1, len(logits), dtype=torch.int64) if tokens is None else tokens
    return weigh(logits[None], head, everywhere(logits), tokens)


def drawn_of(logits: Tensor, how: DrawRule, dice: Tensor | float = 0.5, head: Head | None = None) -> beliefs.Drawn:
    noise = torch.full((1, len(logits)), dice, dtype=torch.float64) if isinstance(dice, float) else dice
    return draw(logits[None], head or Head(logits.shape[1]), everywhere(logits), noise, how)


def close(found: Tensor, expected: float, tolerance: float) -> bool:
    return float(found) == pytest.approx(expected, abs=tolerance) or float(found) == expected


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_weigh_edges(dtype: torch.dtype, tolerance: float) -> None:
    tokens = torch.tensor([[0, 2, 1, 3, 2, 4, 5, 9]])
    raw = raw_of(EDGES.to(dtype), tokens=tokens)
    for row, logits in enumerate(EDGES.to(dtype).double().tolist()):
        chances = softmax(logits)
        ranked = sorted(chances, reverse=True)
        assert close(raw.entropy[0, row], entropy(chances), tolerance * 10)
        assert close(raw.top[0, row], log(ranked[0]), tolerance)
        assert close(raw.second[0, row].exp(), ranked[1], tolerance)
        assert int(raw.best[0, row]) == chances.index(max(chances))  # the lowest id on ties
        total = max(logits) + math.log(math.fsum(math.exp(x - max(logits)) for x in logits))
        assert close(raw.normaliser[0, row], total, tolerance * max(1.0, abs(total)))
        stands = int(tokens[0, row])
        assert close(raw.standing[0, row].exp(), chances[stands] if stands < 6 else 0.0, tolerance)
    assert raw.entropy.dtype == dtype
    assert float(raw.entropy[0, 0]) == pytest.approx(math.log(6)) and float(raw.entropy[0, 3]) == 0
    assert torch.isfinite(raw.entropy).all()


def test_weigh_random_rows_against_the_reference() -> None:
    logits = 4 * torch.randn(40, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    raw = raw_of(logits)
    for row, values in enumerate(logits.tolist()):
        chances = softmax(values)
        assert float(raw.entropy[0, row]) == pytest.approx(entropy(chances), abs=1e-12)
        assert float(raw.top[0, row]) == pytest.approx(math.log(max(chances)), abs=1e-12)


def test_the_head_is_applied_where_asked_and_nowhere_else() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    weight, bias = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((7, 3), (7,)))
    head = Head(7, weight, bias, absent=(2, 6))
    where = torch.tensor([[True, False, True, False, False], [False, False, False, True, True]])
    hidden = hidden.masked_fill(~where[..., None], torch.nan)  # would be seen
    raw = weigh(hidden, head, where, torch.zeros(2, 5, dtype=torch.int64))
    drawn = draw(hidden, head, where, torch.full((2, 5), 0.999999, dtype=torch.float64), DrawRule(1.0))
    for b, c in where.nonzero().tolist():
        logits = (weight @ hidden[b, c] + bias).tolist()
        chances = softmax([-math.inf if v in (2, 6) else x for v, x in enumerate(logits)])
        assert float(raw.entropy[b, c]) == pytest.approx(entropy(chances), abs=1e-12)
        assert int(drawn.token[b, c]) == 5  # the last one that is present
    assert not raw.entropy[~where].any() and not drawn.token[~where].any()


def test_absent_ids_are_no_part_of_the_distribution() -> None:
    raw = raw_of(EDGES[:1], Head(6, absent=(0, 5)))
    assert float(raw.entropy[0, 0]) == pytest.approx(math.log(4))
    assert int(raw.best[0, 0]) == 1
    tokens = [int(drawn_of(EDGES[:1], DrawRule(1.0), u, Head(6, absent=(0, 5))).token) for u in (1e-9, 0.5, 1 - 1e-9)]
    assert tokens == [1, 2, 4]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_distribution_has_no_normaliser(value: float) -> None:
    assert not raw_of(torch.full((1, 4), value)).normaliser.isfinite().any()
    one = torch.tensor([[0.0, 1.0, value, 2.0]])
    assert bool(raw_of(one).normaliser.isfinite().all()) == (value == -torch.inf)


@pytest.mark.parametrize("chunk", [1, 6, 13, 1000])
def test_chunks_do_not_matter(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = 3 * torch.randn(3, 17, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    dice = torch.rand(3, 17, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    where = torch.rand(3, 17, generator=torch.Generator().manual_seed(4)) < 0.6
    tokens = torch.randint(0, 6, (3, 17), generator=torch.Generator().manual_seed(5))
    how = DrawRule(0.7, top_k=4, top_p=0.9, ban=(1,))
    whole = weigh(logits, Head(6), where, tokens), draw(logits, Head(6), where, dice, how)
    monkeypatch.setattr(beliefs, "CHUNK", chunk)
    parts = weigh(logits, Head(6), where, tokens), draw(logits, Head(6), where, dice, how)
    for one, other in zip(whole, parts, strict=True):
        tensors = [name for name, value in vars(one).items() if value is not None]
        assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in tensors)


def test_nothing_asked() -> None:
    nowhere = torch.zeros(2, 3, dtype=torch.bool)
    raw = weigh(torch.randn(2, 3, 5), Head(5), nowhere, torch.zeros(2, 3, dtype=torch.int64))
    drawn = draw(torch.randn(2, 3, 5), Head(5), nowhere, torch.rand(2, 3), DrawRule(1.0))
    assert not raw.entropy.any() and not drawn.token.any() and raw.entropy.shape == drawn.token.shape == (2, 3)


# --- draw ------------------------------------------------------------------------------------------------------------


def reference(logits: list[float], how: DrawRule) -> list[float]:
    """Bans, temperature, top-p, top-k, one after the other, with sorted lists."""
    values = [-math.inf if v in how.ban else x / (how.temperature or 1.0) for v, x in enumerate(logits)]
    if how.top_p is not None:
        chances, before = softmax(values), 0.0
        for v in sorted(range(len(values)), key=lambda v: -values[v]):
            if before > how.top_p:
                values[v] = -math.inf
            before += chances[v]
    if how.top_k is not None:
        least = sorted(values, reverse=True)[min(how.top_k, len(values)) - 1]
        values = [x if x >= least else -math.inf for x in values]
    return softmax(values)


HOWS = [
    DrawRule(0.0),
    DrawRule(1.0),
    DrawRule(0.3),
    DrawRule(2.5),
    DrawRule(1.0, top_k=1),
    DrawRule(1.0, top_k=2),
    DrawRule(1.0, top_k=100),
    DrawRule(1.0, top_p=0.5),
    DrawRule(0.7, top_k=3, top_p=0.8),
    DrawRule(1.0, ban=(0, 4)),
    DrawRule(0.0, top_k=2, ban=(2,)),
    DrawRule(0.5, top_k=2, top_p=0.9, ban=(2, 3)),
]


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_draw_against_the_reference(how: DrawRule) -> None:
    random = 2 * torch.randn(30, 6, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    logits = torch.cat([EDGES[[0, 1, 7]], random])
    noise = torch.rand(1, len(logits), generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    drawn = drawn_of(logits, how, noise)
    for row, values in enumerate(logits.tolist()):
        chances = reference(values, how)
        cumulated = [math.fsum(chances[: v + 1]) for v in range(6)]
        expected = next(v for v in range(6) if cumulated[v] >= float(noise[0, row]))
        if how.temperature == 0:
            expected = chances.index(max(chances))
        token = int(drawn.token[0, row])
        assert token == expected
        assert float(drawn.log[0, row]) == pytest.approx(math.log(chances[token]), abs=1e-9)
        assert float(drawn.model_logp[0, row]) == pytest.approx(math.log(softmax(values)[token]), abs=1e-9)
        assert float(drawn.entropy[0, row]) == pytest.approx(entropy(chances), abs=1e-9)
        ranked = sorted(chances, reverse=True)
        assert float(drawn.top[0, row].exp()) == pytest.approx(ranked[0], abs=1e-9)
        assert float(drawn.second[0, row].exp()) == pytest.approx(ranked[1], abs=1e-9)


def test_top_k_keeps_ties() -> None:
    kept = filtered(EDGES[1:2], DrawRule(1.0, top_k=2))[0]
    assert kept.isfinite().tolist() == [True, False, True, False, False, True]


def test_top_p_keeps_the_token_that_crosses_the_edge() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64).log()
    for top_p, kept in [(0.4, 1), (0.5, 2), (0.6, 2), (0.75, 3), (0.8, 3), (0.999, 4), (1.0, 4)]:
        # exactly at the edge nothing is above it yet: the next token stays, as in the public code
        assert int(filtered(logits, DrawRule(1.0, top_p=top_p)).isfinite().sum()) == kept, top_p
    assert filtered(logits, DrawRule(1.0, top_p=1e-9)).isfinite().tolist() == [[True, False, False, False]]


def test_filters_come_in_the_published_order() -> None:
    """Bans first: what is banned counts neither for top-p nor for top-k. Temperature before top-p."""
    logits = torch.tensor([[0.6, 0.2, 0.1, 0.1]], dtype=torch.float64).log()
    assert filtered(logits, DrawRule(1.0, top_k=1, ban=(0,))).isfinite().tolist() == [[False, True, False, False]]
    cold = filtered(logits, DrawRule(0.25, top_p=0.7)).isfinite().tolist()
    assert cold == [[True, False, False, False]]
    assert filtered(logits, DrawRule(1.0, top_p=0.7)).isfinite().tolist() == [[True, True, False, False]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-45, 1e-310])
def test_a_tiny_temperature_takes_the_most_probable(temperature: float, dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.3, -1.2, 2.1, 0.0], [5.0, 4.0, -INF, 4.5]], dtype=dtype)
    assert drawn_of(logits, DrawRule(temperature), 0.999).token.tolist() == [[2, 0]]


def test_a_huge_temperature_is_uniform_over_what_is_possible() -> None:
    logits = torch.tensor([[9.0, -INF, -9.0, 0.0]], dtype=torch.float64)
    tokens = [int(drawn_of(logits, DrawRule(1e12), u).token) for u in (0.1, 0.3, 0.35, 0.6, 0.7, 0.99)]
    assert tokens == [0, 0, 2, 2, 3, 3]


def test_inverse_cdf_at_its_ends() -> None:
    """The first possible token for the smallest number, the last possible one for the largest."""
    logits = torch.tensor([[-INF, 0.0, 1.0, 0.5, -INF]], dtype=torch.float64)
    assert int(drawn_of(logits, DrawRule(1.0), 2.0**-53).token) == 1
    assert int(drawn_of(logits, DrawRule(1.0), 1 - 2.0**-53).token) == 3
    near = torch.tensor([[0.0, -100.0, -100.0]], dtype=torch.float64)
    assert int(drawn_of(near, DrawRule(1.0), 1 - 2.0**-53).token) == 0


@pytest.mark.parametrize("how", [DrawRule(1.0), DrawRule(0.6, top_k=4), DrawRule(1.5, top_p=0.8, ban=(3,))], ids=str)
def test_frequencies_of_inverse_cdf(how: DrawRule) -> None:
    """χ² against the reference distribution; false alarm 1e-6."""
    n, logits = 40_000, EDGES[7]
    noise = torch.rand(1, n, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    seen = drawn_of(logits.expand(n, -1), how, noise).token[0].bincount(minlength=6).double()
    chances = torch.tensor(reference(logits.tolist(), how), dtype=torch.float64)
    possible = chances > 0
    assert not seen[~possible].any()
    statistic = ((seen - n * chances)[possible] ** 2 / (n * chances)[possible]).sum()
    freedom = torch.tensor((int(possible.sum()) - 1) / 2).double()
    assert float(torch.special.gammaincc(freedom, statistic / 2)) > 1e-6


def test_most_probable_is_a_draw_at_temperature_0() -> None:
    raw, drawn = most_probable(raw_of(EDGES)), drawn_of(EDGES, DrawRule(0.0))
    for name, value in vars(drawn).items():
        assert torch.allclose(getattr(raw, name).double(), value.double(), atol=1e-12), name


def test_half_precision_hidden_states_are_read_in_float32() -> None:
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]], dtype=torch.bfloat16)
    head = Head(3, torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.bfloat16))
    raw = weigh(hidden, head, torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.int64))
    assert raw.entropy.dtype == torch.float32
    assert float(raw.entropy[0, 0]) == pytest.approx(entropy(softmax([1.0, 2.0, 3.0])), abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_logits_of_half_precision_are_not_rounded(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.core.denoiser.SLICE", 5)
    generator = torch.Generator().manual_seed(9)
    hidden, weight, bias = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((3, 8), (12, 8), (12,)))
    exact = hidden.double() @ weight.double().mT + bias.double()
    assert torch.allclose(Head(12, weight, bias).logits(hidden).double(), exact, atol=1e-5)
