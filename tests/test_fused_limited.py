"""The kernels under a table of allowed tokens against the float64 reference: on a GPU, or with TRITON_INTERPRET=1."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from test_fused import DEVICE, NUMBERS, TYPES, exact, problem, pytestmark, same, same_drawn
from unmask.core import beliefs
from unmask.core.beliefs import Beliefs, Drawn, DrawRule
from unmask.core.constraint import Allowed
from unmask.core.gpu import head as fused

__all__ = ["pytestmark"]
HOWS = [DrawRule(0.0), DrawRule(1.0), DrawRule(0.3), DrawRule(2.0)]
SIZES = [(7, 24, TYPES[0]), (65, 72, TYPES[2]), (257, 320, TYPES[1])]


@pytest.fixture(autouse=True)
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "usable", lambda hidden, head, *filters: True)  # by the interpreter, too


def limited(width: int, where: Tensor, full: bool = True, share: float = 0.4) -> Allowed:
    """Five random sets of classes, each with a token that is not absent."""
    dice = torch.Generator().manual_seed(9)
    kind = torch.randint(0, min(width, 11), (width,), generator=dice, dtype=torch.int32)
    table = torch.rand(5, 11, generator=dice) < share
    table[torch.arange(5), kind[torch.tensor([0, 1, 2, 4, 5])].long()] = True
    return Allowed(torch.randint(0, 5, where.shape, generator=dice), table, kind, full)


def by_token(allowed: Allowed) -> Tensor:  # [B, L, V] bool
    return allowed.table[:, allowed.kind.long()][allowed.row]


def there(allowed: Allowed) -> Allowed:
    return Allowed(allowed.row.to(DEVICE), allowed.table.to(DEVICE), allowed.kind.to(DEVICE), allowed.full)


def on_host(found: Beliefs) -> Beliefs:
    return Beliefs(*(getattr(found, name).cpu() for name in NUMBERS))


def sure(logits: Tensor, allowed: Allowed, where: Tensor, noise: Tensor, how: DrawRule) -> Tensor:
    """Where the uniform number is not within 1e-5 of a boundary of the CDF, or the top two not of each other."""
    closed = logits.view(*where.shape, -1).masked_fill(~by_token(allowed), -torch.inf)
    chances = beliefs.filtered(closed.flatten(0, 1), how).softmax(1)
    top = chances.topk(2).values.log()
    gap = (chances.cumsum(1) - noise.flatten()[:, None]).abs().amin(1) if how.temperature else top[:, 0] - top[:, 1]
    return where & (gap > 1e-5).view(where.shape)


@pytest.mark.parametrize(("width", "depth", "dtype"), SIZES)
@pytest.mark.parametrize("how", HOWS, ids=str)
def test_draw(width: int, depth: int, dtype: torch.dtype, how: DrawRule) -> None:
    hidden, head, where, _, noise = problem(width, depth, dtype, bias=width == 65, absent=(3, 6) if width > 7 else ())
    allowed, wide = limited(width, where), hidden.cpu().double()
    drawn = beliefs.draw(hidden, head, where.to(DEVICE), noise.to(DEVICE), how, allowed=there(allowed))
    found = Drawn(*(getattr(drawn, one.name).cpu() for one in fields(drawn)))
    expected = beliefs.draw_reference(wide, exact(head), where, noise, how, allowed)
    clear = sure(exact(head).logits(wide.flatten(0, 1)), allowed, where, noise, how)
    assert clear.sum() > 0.9 * where.sum()
    same_drawn(found, expected, clear)
    assert by_token(allowed).gather(2, found.token[:, :, None])[where].all()


@pytest.mark.parametrize(("width", "depth", "dtype"), SIZES)
def test_weigh_the_whole_distribution(width: int, depth: int, dtype: torch.dtype) -> None:
    hidden, head, where, tokens, _ = problem(width, depth, dtype, absent=(3,))
    allowed = limited(width, where)
    found = beliefs.weigh(hidden, head, where.to(DEVICE), tokens.to(DEVICE), allowed=there(allowed))
    expected = beliefs.weigh_reference(hidden.cpu().double(), exact(head), where, tokens, allowed)
    for mine, theirs in ((found, expected), (found.limited, expected.limited)):
        assert mine is not None and theirs is not None
        for name in ("entropy", "normaliser", "top", "second", "standing"):
            same(getattr(mine, name).cpu(), getattr(theirs, name))
    assert found.limited is not None and expected.limited is not None
    assert torch.equal(found.limited.best.cpu()[where], expected.limited.best[where])


@pytest.mark.parametrize("share", [0.05, 0.9])
def test_weigh_the_most_probable(share: float) -> None:
    hidden, head, where, tokens, _ = problem(257, 72, TYPES[0])
    allowed = limited(257, where, full=False, share=share)
    found = beliefs.weigh(hidden, head, where.to(DEVICE), tokens.to(DEVICE), allowed=there(allowed))
    expected = beliefs.weigh_reference(hidden.cpu().double(), exact(head), where, tokens, allowed)
    assert found.fitting is not None and expected.fitting is not None
    assert torch.equal(found.fitting.best.cpu()[where], expected.fitting.best[where])
    same(found.fitting.top.cpu()[where], expected.fitting.top[where])


@pytest.mark.parametrize("full", [False, True])
def test_where_nothing_is_allowed_there_is_no_number(full: bool) -> None:
    hidden, head, where, tokens, noise = problem(65, 24, TYPES[0])
    allowed = limited(65, where, full)
    allowed.table[3] = False
    closed = where & (allowed.row == 3)
    found = beliefs.weigh(hidden, head, where.to(DEVICE), tokens.to(DEVICE), allowed=there(allowed))
    other = found.limited if full else found.fitting
    assert closed.any() and other is not None and torch.equal(other.top.cpu().isnan(), closed)
    drawn = beliefs.draw(hidden, head, where.to(DEVICE), noise.to(DEVICE), DrawRule(1.0), allowed=there(allowed))
    assert torch.equal(drawn.log.cpu().isnan(), closed)


def test_rounds_and_strides_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, head, where, _, noise = problem(257, 72, TYPES[0])
    allowed, there_, dice = limited(257, where), where.to(DEVICE), noise.to(DEVICE)
    whole = fused.draw(hidden, head, there_, dice, 1.0, allowed=there(allowed))
    monkeypatch.setattr(fused, "MASSES", 5000)
    mine = there(allowed)
    odd = Allowed(mine.row.repeat(1, 2)[:, ::2], mine.table, mine.kind, True)
    odd.row.copy_(mine.row)
    parts = fused.draw(hidden, head, there_, dice, 1.0, allowed=odd)
    assert all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True))
