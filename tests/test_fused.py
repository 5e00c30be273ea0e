"""The Triton kernels against the float64 reference: on a GPU, or on a CPU with TRITON_INTERPRET=1."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from again import Again, Late
from unmask import Recipe, decode_batch, load
from unmask.core import beliefs, dice
from unmask.core.beliefs import DrawRule, Penalty
from unmask.core.dice import Purpose
from unmask.core.gpu import head as fused
from unmask.core.gpu import recorded as replay
from unmask.core.gpu.head import Config
from unmask.core.step import Setup
from unmask.core.walk import waiting
from unmask.decoding.decode import prepare
from unmask.decoding.prompt import from_prompt
from unmask.models import Head

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = "cpu" if INTERPRETED else "cuda"
NUMBERS = [one.name for one in dataclasses.fields(beliefs.Beliefs) if one.default is dataclasses.MISSING]
CLOSE = 1e-4 * math.log(2)  # entropies within 1e-4 bits
pytestmark = [
    pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs CUDA or TRITON_INTERPRET=1"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy's, about log(0) and inf - inf
]
on_cuda = pytest.mark.skipif(INTERPRETED, reason="the interpreter has no streams")
WIDE = Config(16, 1024, 16, 4, 1, 1, piece=64, precision="ieee") if INTERPRETED else None
TYPES = [torch.float32, torch.bfloat16, torch.float16]


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def exact(head: Head) -> Head:
    """The same head in float64, on the CPU."""
    weight, bias = (None if t is None else t.cpu().double() for t in (head.weight, head.bias))
    return Head(head.width, weight, bias, head.absent)


def raws(
    hidden: Tensor, head: Head, where: Tensor, tokens: Tensor, config: Config | None = None
) -> tuple[beliefs.Beliefs, ...]:
    """What the kernels find, and what the reference does."""
    found, _ = fused.weigh(hidden, head, where.to(DEVICE), tokens.to(DEVICE), config)
    return beliefs.Beliefs(*(t.cpu() for t in found)), beliefs.weigh_reference(
        hidden.cpu().double(), exact(head), where, tokens
    )


def draws(hidden: Tensor, head: Head, where: Tensor, noise: Tensor, how: DrawRule, config: Config | None = None):
    found = fused.draw(hidden, head, where.to(DEVICE), noise.to(DEVICE), how.temperature, how.ban, config)
    return beliefs.Drawn(*(t.cpu() for t in found)), beliefs.draw_reference(
        hidden.cpu().double(), exact(head), where, noise, how
    )


def same(found: Tensor, expected: Tensor, tolerance: float = CLOSE) -> None:
    assert torch.allclose(found.double(), expected.double(), rtol=1e-6, atol=tolerance, equal_nan=True)


def same_raw(found: beliefs.Beliefs, expected: beliefs.Beliefs) -> None:
    for name in ("entropy", "normaliser", "top", "second", "standing"):
        assert getattr(found, name).dtype == torch.float32
        same(getattr(found, name), getattr(expected, name))
    clear = expected.top - expected.second > 1e-5
    assert torch.equal(found.best[clear], expected.best[clear]) and found.best.dtype == torch.int64


def same_drawn(found: beliefs.Drawn, expected: beliefs.Drawn, sure: Tensor) -> None:
    """`sure` [B, L]: where rounding cannot decide."""
    for name in ("entropy", "top", "second"):
        same(getattr(found, name), getattr(expected, name))
    for name in ("model_logp", "log"):
        same(getattr(found, name)[sure], getattr(expected, name)[sure])
    assert torch.equal(found.token[sure], expected.token[sure])


def problem(width: int, depth: int, dtype: torch.dtype, bias: bool = False, absent: tuple[int, ...] = ()):
    hidden, weight = random(2, 13, depth, seed=1), random(width, depth, seed=2, scale=3 / depth**0.5)
    head = Head(
        width,
        weight.to(DEVICE, dtype),
        random(width, seed=3).to(DEVICE, dtype) if bias else None,
        absent,
    )
    where = torch.rand(2, 13, generator=torch.Generator().manual_seed(4)) < 0.7
    tokens = torch.randint(0, width + 3, (2, 13), generator=torch.Generator().manual_seed(5))
    noise = torch.rand(2, 13, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    return hidden.to(DEVICE, dtype), head, where, tokens, noise


def far_from_an_edge(hidden: Tensor, head: Head, where: Tensor, noise: Tensor, how: DrawRule) -> Tensor:
    """Where the uniform number is not within 1e-5 of a boundary of the CDF, or the top two not of each other."""
    logits = exact(head).logits(hidden.cpu().double().flatten(0, 1))
    chances = beliefs.filtered(logits, how).softmax(1)
    top = chances.topk(2).values.log()
    gap = (chances.cumsum(1) - noise.flatten()[:, None]).abs().amin(1) if how.temperature else top[:, 0] - top[:, 1]
    return where & (gap > 1e-5).view(where.shape)


CASES = [(7, 24), (65, 72), (257, 320), (1000, 24)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("width", "depth"), CASES)
@pytest.mark.parametrize("more", [{}, {"bias": True, "absent": (3, 6)}], ids=["plain", "bias, absent"])
def test_weigh(width: int, depth: int, dtype: torch.dtype, more: dict) -> None:
    hidden, head, where, tokens, _ = problem(width, depth, dtype, **more)
    same_raw(*raws(hidden, head, where, tokens))


HOWS = [DrawRule(0.0, ban=(2,)), DrawRule(1.0), DrawRule(1.0, ban=(0, 4)), DrawRule(0.1), DrawRule(3.0, ban=(5,))]
MANY = tuple(range(0, 60, 3))


@pytest.mark.parametrize(("width", "depth", "dtype"), [(7, 24, TYPES[0]), (65, 72, TYPES[2]), (257, 320, TYPES[1])])
@pytest.mark.parametrize("how", HOWS, ids=str)
def test_draw(width: int, depth: int, dtype: torch.dtype, how: DrawRule) -> None:
    hidden, head, where, _, noise = problem(width, depth, dtype, bias=width == 65, absent=(3, 6) if width > 7 else ())
    sure = far_from_an_edge(hidden, head, where, noise, how)
    assert sure.sum() > 0.9 * where.sum()
    same_drawn(*draws(hidden, head, where, noise, how), sure)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_many_bans(temperature: float) -> None:
    hidden, head, where, _, noise = problem(65, 24, torch.float32, bias=True, absent=(4,))
    how = DrawRule(temperature, ban=MANY)
    sure = far_from_an_edge(hidden, head, where, noise, how)
    same_drawn(*draws(hidden, head, where, noise, how), sure)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_lowered_logits(temperature: float, dtype: torch.dtype, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beliefs and draws under a penalty are those of the reference; without one, nothing of it is left."""
    hidden, head, where, tokens, noise = problem(65, 72, dtype, bias=bias, absent=(6,))
    how = DrawRule(temperature, ban=(2,), penalty=Penalty((3, 64), 2.5))
    there, place = where.to(DEVICE), tokens.to(DEVICE)
    monkeypatch.setattr(fused, "usable", lambda hidden, head, *filters: True)  # by the interpreter, too
    plain = beliefs.weigh(hidden, head, there, place)
    found = beliefs.weigh(hidden, head, there, place, penalty=how.penalty)
    lower = how.penalty.on(exact(head), hidden.cpu().double())
    expected = beliefs.weigh_reference(hidden.cpu().double(), lower, where, tokens)
    same_raw(beliefs.Beliefs(*(getattr(found, name).cpu() for name in NUMBERS)), expected)
    drawn = beliefs.draw(hidden, head, there, noise.to(DEVICE), how, found)
    reference = beliefs.draw_reference(hidden.cpu().double(), lower, where, noise, how)
    sure = far_from_an_edge(hidden, lower, where, noise, how)
    same_drawn(beliefs.Drawn(*(getattr(drawn, one.name).cpu() for one in dataclasses.fields(drawn))), reference, sure)
    again = beliefs.weigh(hidden, head, there, place)
    assert all(torch.equal(getattr(plain, name), getattr(again, name)) for name in NUMBERS)


def test_a_wide_vocabulary() -> None:
    hidden, head, where, tokens, noise = problem(50_258, 24, torch.bfloat16, absent=(50_257,))
    where = where & (torch.arange(13) < 3)
    same_raw(*raws(hidden, head, where, tokens, WIDE))
    how = DrawRule(1.0, ban=(7, 50_000))
    same_drawn(*draws(hidden, head, where, noise, how, WIDE), far_from_an_edge(hidden, head, where, noise, how))


@pytest.mark.parametrize(("waves", "group"), [(1, 4), (50, 1), (3, 4)])
def test_the_layout_does_not_matter(waves: int, group: int) -> None:
    hidden, head, where, tokens, noise = problem(257, 24, torch.float32)
    precision = "ieee" if INTERPRETED else "tf32x3"
    config = Config(16, 16, 16, 4, 2, 1, group=group, waves=waves, piece=16, precision=precision)
    same_raw(*raws(hidden, head, where, tokens, config))
    how = DrawRule(0.8, ban=(3,))
    sure = far_from_an_edge(hidden, head, where, noise, how)
    same_drawn(*draws(hidden, head, where, noise, how, config), sure)


@pytest.mark.parametrize("ban", [(), (2,), (0, 4, 64)], ids=str)
@pytest.mark.parametrize("width", [65, 1000])
def test_a_plain_draw_goes_on_from_what_was_kept(width: int, ban: tuple[int, ...]) -> None:
    """Also of rows that were taken over from others."""
    hidden, head, where, tokens, noise = problem(width, 24, torch.float32)
    head = replace(head, absent=(3,))
    where, tokens, noise = where.to(DEVICE), tokens.to(DEVICE), noise.to(DEVICE)
    _, pieces = fused.weigh(hidden, head, where, tokens, keep=ban)
    assert pieces is not None
    expected = fused.draw(hidden, head, where, noise, 1.0, ban)
    drawn = fused.draw_from(pieces, hidden, head, where, noise)
    assert torch.equal(drawn[0], expected[0])
    assert (pieces.numbers is None) == (not ban)
    more = () if pieces.numbers is None else pieces.numbers
    for a, b in zip((*drawn[1:], *more), expected[1:], strict=False):
        same(a, b)  # with bans the model's own numbers are summed up in another order
        assert ban or torch.equal(a, b)

    rows = torch.arange(len(where), device=DEVICE).flip(0)
    rows[0] = 0
    fewer = where[rows] & (noise > 0.4)
    token, *logs = fused.draw(hidden[rows], head, fewer, noise, 1.0, ban)[:3]
    found, *others = fused.draw_from(pieces[rows], hidden[rows], head, fewer, noise)
    assert torch.equal(found, token)
    for a, b in zip(others, logs, strict=True):  # sums of other splits: rounded otherwise
        same(a, b)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("ban", [(2,), (0, 6, 64)], ids=str)
def test_beliefs_are_the_models_own_whatever_a_draw_bans(
    ban: tuple[int, ...], dtype: torch.dtype, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, head, where, tokens, noise = problem(65, 72, dtype, bias=bias, absent=(7,))
    there, place, how = where.to(DEVICE), tokens.to(DEVICE), DrawRule(1.0, ban=ban)
    monkeypatch.setattr(fused, "usable", lambda hidden, head, *filters: True)  # by the interpreter, too
    found = beliefs.weigh(hidden, head, there, place, keep=how)
    assert found.pieces is not None and found.pieces.ban == ban
    expected = beliefs.weigh_reference(hidden.cpu().double(), exact(head), where, tokens)
    same_raw(beliefs.Beliefs(*(getattr(found, name).cpu() for name in NUMBERS)), expected)
    drawn = beliefs.draw(hidden, head, there, noise.to(DEVICE), how, found)
    reference = beliefs.draw_reference(hidden.cpu().double(), exact(head), where, noise, how)
    sure = far_from_an_edge(hidden, head, where, noise, how)
    same_drawn(beliefs.Drawn(*(getattr(drawn, one.name).cpu() for one in dataclasses.fields(drawn))), reference, sure)


def test_a_banned_favourite() -> None:
    """A banned id that has nearly all of the mass, and one that ties with the best."""
    hidden, head, where, tokens, _ = problem(65, 24, torch.float32)
    bias = torch.zeros(65).index_fill(0, torch.tensor(9), 40.0)
    weight = head.weight.clone()
    weight[20] = weight[10]
    head = replace(head, weight=weight, bias=bias.to(DEVICE))
    for ban in ((9,), (20,), (10,), (9, 10, 20)):
        fields, _ = fused.weigh(hidden, head, where.to(DEVICE), tokens.to(DEVICE), keep=ban)
        entropy, normaliser, top, second, best, standing = (one.cpu() for one in fields)
        found = beliefs.Beliefs(entropy, normaliser, top, second, best, standing)
        same_raw(found, beliefs.weigh_reference(hidden.cpu().double(), exact(head), where, tokens))


def test_positions_that_nobody_asked_about_are_left_out() -> None:
    """Whatever their memory held before."""
    hidden, head, where, tokens, noise = problem(65, 24, torch.float32)
    where, tokens, noise = where.to(DEVICE), tokens.to(DEVICE), noise.to(DEVICE)
    asked = where & (torch.arange(13, device=DEVICE) < 7)
    _, pieces = fused.weigh(hidden, head, asked, tokens, keep=(2,))
    assert pieces is not None
    found = fused.draw_from(pieces, hidden, head, where, noise)
    for a, b in zip(found, fused.draw_from(pieces, hidden, head, asked, noise), strict=True):
        assert torch.equal(a, b)
    assert not found[0][~asked].any()


def test_without_room_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, head, where, tokens, _ = problem(65, 24, torch.float32)
    monkeypatch.setattr(fused, "MASSES", 4 * 65)
    assert fused.weigh(hidden, head, where.to(DEVICE), tokens.to(DEVICE), keep=())[1] is None


def test_rounds_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, head, where, _, noise = problem(65, 24, torch.float32)
    args = hidden, head, where.to(DEVICE), noise.to(DEVICE), 1.0
    whole = fused.draw(*args)
    monkeypatch.setattr(fused, "MASSES", 4 * 65)
    assert all(torch.equal(a, b) for a, b in zip(whole, fused.draw(*args), strict=True))


# --- logits that are set by hand: the weight is the identity ----------------------------------------------------------

FLAT = [0.0] * 6
BYHAND = torch.tensor(
    [
        FLAT,
        [3.0, 1.0, 3.0, -2.0, 0.5, 3.0],  # ties at the top
        [0.0, 0.0, 40.0, 0.0, 0.0, 0.0],  # certain but for rounding
        [0.0, 0.0, 500.0, 0.0, 0.0, -500.0],  # certain
        [8192.0, 8160.0, -8192.0, 0.0, 8128.0, 8192.0],  # large numbers
        [-8192.0, -8193.0, -8194.0, -8192.0, -9000.0, -8192.0],
        [0.3, -1.2, 2.1, 0.0, -0.4, 1.9],
    ]
)


def by_hand(copies: int, bias: Tensor | None = None) -> tuple[Tensor, Head, Tensor, Tensor]:
    """Each row of BYHAND, the vocabulary `copies` times over, so that ties lie in several tiles."""
    weight = torch.eye(6).repeat(copies, 1).to(DEVICE)
    head = Head(6 * copies, weight, None if bias is None else bias.to(DEVICE))
    where = torch.ones(1, len(BYHAND), dtype=torch.bool)
    return BYHAND[None].to(DEVICE), head, where, torch.zeros(1, len(BYHAND), dtype=torch.int64)


@pytest.mark.parametrize("copies", [1, 11, 60])
def test_ties_go_to_the_lowest_id(copies: int) -> None:
    hidden, head, where, tokens = by_hand(copies)
    found, expected = raws(hidden, head, where, tokens)
    same_raw(found, expected)
    assert torch.equal(found.best, expected.best)
    noise = torch.full(where.shape, 0.5, dtype=torch.float64)
    drawn, reference = draws(hidden, head, where, noise, DrawRule(0.0, ban=(0, 2)))
    assert torch.equal(drawn.token, reference.token)
    same_drawn(drawn, reference, where)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0, 1e-45, 1e-310, 1e300])
def test_extreme_temperatures_and_logits(temperature: float) -> None:
    bias = torch.zeros(66)
    bias[torch.arange(66) % 5 == 1] = -torch.inf
    hidden, head, where, _ = by_hand(11, bias)
    for number in (2.0**-53, 0.37, 1 - 2.0**-53):
        how, noise = DrawRule(temperature, ban=(0, 2)), torch.full(where.shape, number, dtype=torch.float64)
        found, expected = draws(hidden, head, where, noise, how)
        sure = far_from_an_edge(hidden, head, where, noise, how) if temperature < 1e100 else where & False
        same_drawn(found, expected, sure)
        assert found.log.isfinite().all() and not torch.isin(found.token, torch.tensor(how.ban)).any()


@pytest.mark.parametrize("where_bad", ["all", "one"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_distribution_has_no_normaliser(value: float, where_bad: str) -> None:
    """As in the reference; the rows beside it are sound."""
    hidden, head, where, tokens = by_hand(11)
    hidden = hidden.clone()
    if where_bad == "one":
        hidden[0, 3, 2] = value
        bad = torch.arange(len(BYHAND)) == 3
    else:
        head = Head(66, head.weight, torch.full((66,), value).to(DEVICE))
        bad = torch.ones(len(BYHAND), dtype=torch.bool)
    found, expected = raws(hidden, head, where, tokens)
    assert not found.normaliser[0, bad].isfinite().any()
    if where_bad == "all":
        assert torch.equal(found.normaliser.isneginf(), expected.normaliser.isneginf())
    same_raw(*(beliefs.Beliefs(*(getattr(raw, name)[:, ~bad] for name in NUMBERS)) for raw in (found, expected)))
    assert ((found.best >= 0) & (found.best < 66)).all()
    noise = torch.full(where.shape, 0.5, dtype=torch.float64)
    for temperature in (0.0, 1.0, 0.5):
        drawn, _ = draws(hidden, head, where, noise, DrawRule(temperature))
        assert drawn.log[0, bad].isnan().all() and ((drawn.token >= 0) & (drawn.token < 66)).all()


def test_one_token_left_and_none() -> None:
    hidden, head, where, tokens = by_hand(11)
    one = Head(66, head.weight, absent=tuple(v for v in range(66) if v != 40))
    found, expected = raws(hidden, one, where, tokens)
    same_raw(found, expected)
    assert not found.entropy.any() and (found.best == 40).all() and found.second.isneginf().all()
    noise = torch.full(where.shape, 0.9, dtype=torch.float64)
    for temperature in (0.0, 1.0, 0.5):
        drawn, _ = draws(hidden, one, where, noise, DrawRule(temperature))
        assert (drawn.token == 40).all()
        drawn, expected_drawn = draws(hidden, one, where, noise, DrawRule(temperature, ban=(40,)))
        assert drawn.log.isnan().all() and expected_drawn.log.isnan().all()  # how the engine sees it


# --- what is asked ----------------------------------------------------------------------------------------------------


def test_nothing_is_done_where_nobody_asked() -> None:
    hidden, head, where, tokens, noise = problem(65, 24, torch.float32)
    hidden = hidden.masked_fill(~where.to(DEVICE)[..., None], torch.nan)
    found, _ = raws(hidden, head, where, tokens)
    drawn, _ = draws(hidden, head, where, noise, DrawRule(1.0))
    for name, value in {**{name: getattr(found, name) for name in NUMBERS}, **vars(drawn)}.items():
        assert not value[~where].any() and not value[where].isnan().any(), name


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_nothing_and_everything(share: float) -> None:
    hidden, head, where, tokens, noise = problem(65, 24, torch.float32)
    where = torch.full_like(where, bool(share))
    same_raw(*raws(hidden, head, where, tokens))
    for temperature in (0.0, 1.0):
        found, expected = draws(hidden, head, where, noise, DrawRule(temperature))
        same_drawn(found, expected, far_from_an_edge(hidden, head, where, noise, DrawRule(temperature)))
        assert found.token.any() == bool(share)


def test_one_row_and_none() -> None:
    hidden, head, where, tokens, noise = problem(65, 24, torch.float32)
    for rows, columns in ((1, 1), (0, 13), (2, 0)):
        part = slice(rows), slice(columns)
        args = hidden[part], head, torch.ones_like(where[part])
        same_raw(*raws(*args, tokens[part]))
        same_drawn(*draws(*args, noise[part], DrawRule(1.0)), torch.ones_like(where[part]))


def test_strides() -> None:
    hidden, head, where, tokens, noise = problem(65, 24, torch.float32)
    wide = torch.zeros(2, 13, 48, device=DEVICE)
    wide[..., ::2] = hidden
    assert head.weight is not None
    turned = Head(65, head.weight.t().contiguous().t())
    views = [hidden.transpose(0, 1).contiguous().transpose(0, 1), wide[..., ::2]]
    for view, own in ((view, own) for view in views for own in (head, turned)):
        same_raw(*raws(view, own, where, tokens))
    sure = far_from_an_edge(hidden, head, where, noise, DrawRule(1.0))
    same_drawn(*draws(wide[..., ::2], turned, where, noise, DrawRule(1.0)), sure)


def test_only_the_asked_positions_are_listed() -> None:
    where = torch.rand(3, 3000, generator=torch.Generator().manual_seed(0)) < 0.3
    slot = torch.full(where.shape, -1, dtype=torch.int32, device=DEVICE)
    index, count = fused._compact(where.to(DEVICE), slot)
    asked = where.flatten().nonzero()[:, 0]
    assert index[: int(count)].tolist() == asked.tolist() and len(index) == 9000
    assert slot.flatten()[asked.to(DEVICE)].tolist() == list(range(len(asked))) and (slot.cpu()[~where] == -1).all()


def test_frequencies() -> None:
    """χ² of drawn tokens against the model's chances; false alarm 1e-6."""
    n, how = 300 if INTERPRETED else 40_000, DrawRule(1.5, ban=(3,))
    head = Head(7, random(7, 16, seed=2).to(DEVICE), absent=(5,))
    hidden = random(1, 1, 16, seed=1).to(DEVICE)
    noise = torch.rand(1, n, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    where = torch.ones(1, n, dtype=torch.bool)
    seen = draws(hidden.expand(1, n, 16), head, where, noise, how)[0].token[0].bincount(minlength=7).double()
    chances = beliefs.filtered(exact(head).logits(hidden[0].cpu().double()), how).softmax(1)[0]
    possible = chances > 0
    assert not seen[~possible].any()
    statistic = ((seen - n * chances)[possible] ** 2 / (n * chances)[possible]).sum()
    freedom = torch.tensor((int(possible.sum()) - 1) / 2).double()
    assert float(torch.special.gammaincc(freedom, statistic / 2)) > 1e-6


# --- dice -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 1, 16, 2**31 - 1, 2**31, 2**32 + 5])
def test_dice_have_the_same_bits(step: int) -> None:
    from unmask.core.gpu.philox import uniform

    key = torch.randint(-(2**62), 2**62, (5, 1), generator=torch.Generator().manual_seed(0))
    slot, column = torch.arange(5)[:, None], torch.arange(-3, 298).expand(5, -1)
    shapes = [
        (key, slot, column),
        (key, slot, slot * 0),
        (key[0, 0], slot[0, 0], column[0]),
        (key, slot, column[:, :0]),
    ]
    for purpose in Purpose:
        for args in shapes:
            here = dice.uniform_reference(args[0], args[1], step, args[2], purpose)
            there = [t.to(DEVICE) for t in args]
            for now in (step, torch.tensor(step, device=DEVICE)):
                found = uniform(there[0], there[1], now, there[2], purpose)
                assert found.shape == here.shape and torch.equal(found.cpu(), here)


# --- in the package ---------------------------------------------------------------------------------------------------


def test_what_the_kernels_take() -> None:
    hidden, head, *_ = problem(7, 24, torch.float32)
    assert fused.usable(hidden, head) != INTERPRETED  # they are for CUDA; here they are called by hand
    assert not fused.usable(hidden.cpu(), exact(head)) and not fused.usable(hidden, Head(24))
    assert not fused.usable(hidden, head, top_k=3) and not fused.usable(hidden, head, top_p=0.5)
    assert not fused.usable(hidden.double(), head) and not fused.usable(hidden.bfloat16(), head)


@pytest.mark.parametrize("recipe", [Recipe("confidence", "smc"), Recipe("ancestral", temperature=0.7)], ids=str)
def test_decoding_with_kernels_gives_the_same_tokens(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    model, recipe = load("random", DEVICE, torch.float32), recipe.replace(length=6)
    monkeypatch.setattr(fused, "usable", lambda *_: False)
    expected = decode_batch(model, ["a cat"], recipe=recipe)
    calls = []
    monkeypatch.setattr(fused, "usable", lambda *args: calls.append(args) or True)
    found = decode_batch(model, ["a cat"], recipe=recipe)
    assert calls and [p.tokens for p in found[0].particles] == [p.tokens for p in expected[0].particles]
    assert found[0].path_entropy == pytest.approx(expected[0].path_entropy, abs=1e-4)


@on_cuda
def test_nothing_waits_and_a_graph_can_be_replayed() -> None:
    hidden, head, where, tokens, noise = problem(1000, 320, torch.bfloat16, bias=True, absent=(3,))
    where, tokens, noise = where.cuda(), tokens.cuda(), noise.cuda()
    step, key = torch.tensor(3).cuda(), torch.arange(2).cuda()[:, None]
    columns = torch.arange(13).cuda().expand(2, -1)

    def all_of_it() -> list[Tensor]:
        noise = dice.uniform(key, key, step, columns, Purpose.TOKEN)
        return [*fused.weigh(hidden, head, where, tokens)[0], *fused.draw(hidden, head, where, noise, 0.7, (5,))]

    all_of_it()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        all_of_it()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = all_of_it()
    hidden.copy_(hidden.flip(1))
    where.copy_(~where)
    step.fill_(4)
    graph.replay()
    replayed = [t.clone() for t in recorded]
    assert all(torch.equal(a, b) for a, b in zip(replayed, all_of_it(), strict=True))


@on_cuda
def test_memory_above_the_inputs() -> None:
    """At most 256 MiB at LLaDA's vocabulary with 8 × 1024 positions, kernels and reference."""
    head = Head(126_464, random(126_464, 64).to("cuda", torch.bfloat16))
    hidden = random(8, 1024, 64, seed=1).to("cuda", torch.bfloat16)
    where, tokens = torch.ones(8, 1024, dtype=torch.bool, device="cuda"), torch.zeros(8, 1024).long().cuda()
    noise = torch.rand(8, 1024, dtype=torch.float64, device="cuda")
    hows = DrawRule(0.0, ban=(3,)), DrawRule(0.7), DrawRule(0.7, top_k=50), DrawRule(0.7, top_k=50, top_p=0.9)
    runs = [lambda: beliefs.weigh(hidden, head, where, tokens)]
    runs += [lambda how=how: beliefs.draw(hidden, head, where, noise, how) for how in hows]
    for run in runs:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        assert torch.cuda.max_memory_allocated() - before <= 256 * 2**20


@pytest.mark.parametrize("penalty", [0.0, 2.0])
@pytest.mark.parametrize("sampler", ["uniform", "confidence", "p2", "draft-refine"])
def test_a_recorded_walk_draws_from_what_it_kept(sampler: str, penalty: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resampled particles and twins, too; steps are run again instead of being replayed by a GPU."""
    model, used = load("random", DEVICE), []
    recipe = Recipe(sampler, "smc", length=10, temperature=1.0, particles=3, every=2, strength=50.0)
    recipe = recipe.replace(end_penalty=penalty)
    parts = prepare(model, [from_prompt(model, text, 10) for text in ("ab", "cde")], [0, 1], recipe)
    denoiser, state, *rest = parts
    expected = [moment.state.tokens.tolist() for moment in waiting(Setup(denoiser, *rest), state)]
    real = fused.draw_from
    monkeypatch.setattr(fused, "draw_from", lambda *given: used.append(1) or real(*given))
    monkeypatch.setattr(fused, "usable", lambda hidden, head, *filters: True)
    monkeypatch.setattr(replay, "Recorded", Again)
    monkeypatch.setattr(replay, "Signals", Late)
    found = [moment.state.tokens.tolist() for moment in replay.walk(Setup(denoiser, *rest), state)]
    assert found == expected
    assert len(used) >= len(expected) - 1
