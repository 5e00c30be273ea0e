"""models.laws.check: every good model passes, and every way to be wrong is found by the law that it breaks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from unmask import load
from unmask.core.denoiser import Head
from unmask.models import FAMILIES, MODELS
from unmask.models.cache import WindowCache
from unmask.models.laws import LAWS, check
from unmask.models.made.fabricate import fabricate
from unmask.models.transformer import random_transformer
from unmask.models.wrap import Chunked, Counted, Guided, Wrapped


def broken(model) -> set[str]:
    return {verdict.law for verdict in check(model) if verdict.held is False}


@pytest.mark.parametrize("name", MODELS)
def test_embedded_models_keep_all_laws(name):
    assert not broken(load(name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_all_laws(family, dtype, tmp_path):
    fabricate(family, tmp_path / family, seed=2)
    verdicts = check(load(tmp_path / family, dtype=dtype))
    assert [v for v in verdicts if v.held is False] == []
    assert [v.law for v in verdicts] == list(LAWS)
    assert next(v for v in verdicts if v.law == "cache refresh").held  # it did apply


def test_wrappers_keep_all_laws():
    model = random_transformer(dtype=torch.float64)
    for wrapped in (
        Chunked(model, 2),
        Counted(model),
        Guided(model, 1.0),
        WindowCache(model, 2),
        Chunked(WindowCache(model, 2), 1),
    ):
        assert not broken(wrapped), wrapped


# --- ways to be wrong ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Wrong(Wrapped):
    """Does one thing wrong."""

    what: str

    @property
    def timed(self):
        return self.what == "says it is timed"

    @property
    def head(self):
        head = self.inner.head
        if self.what == "absent id has a logit":
            return _Leaky(head.width, head.weight, head.bias, head.absent)
        if self.what == "another id has none":
            return replace(
                head,
                weight=head.weight,
                bias=torch.zeros(head.width).double().index_fill(0, torch.tensor([7]), -torch.inf),
            )
        return replace(head, width=head.width + 1) if self.what == "width is wrong" else head

    def look(self, state, rows):
        if self.what == "sees pads":
            state = state.replace(attend=torch.ones_like(state.attend))
        if self.what == "counts columns from the left edge":
            tokens = state.tokens[rows]
            everywhere = torch.arange(tokens.shape[1]).expand_as(tokens)
            hidden, _ = self.inner.network(tokens, everywhere, state.attend[rows])
            place = everywhere[..., None] / tokens.shape[1]
            return hidden + place, None
        if self.what == "writes into the state":
            state.tokens[:, -1] = 3
        if self.what == "raises":
            raise RuntimeError("no such kernel")
        hidden, _ = self.inner.look(state, rows)
        if self.what == "mixes rows":
            return hidden + 0.1 * hidden.mean(0, keepdim=True) * (len(rows) > 1), None
        if self.what == "ignores the order":
            return self.inner.look(state, rows.sort().values)[0], None
        if self.what == "causal":
            length = state.tokens.shape[1]
            ends = [self.inner.look(_cut(state, c + 1), rows)[0][:, -1:] for c in range(length)]
            return torch.cat(ends, 1), None
        if self.what == "wrong shape":
            return hidden[:, :, :-1], None
        if self.what == "is NaN":
            return hidden * torch.nan, None
        if self.what == "uses time":
            return hidden * (1 + state.time[rows][:, None, None]), None
        if self.what == "random":
            return hidden + torch.rand(hidden.shape), None
        return hidden, None


@dataclass(frozen=True)
class _Leaky(Head):
    def logits(self, hidden):
        return torch.nn.functional.linear(hidden, self.weight, self.bias)


def _cut(state, length):
    cut = {name: getattr(state, name)[:, :length] for name in ("tokens", "writable", "attend")}
    return state.replace(**cut)


@dataclass(frozen=True, eq=False)
class Stale(Wrapped):
    """Keeps a cache that does not follow its rows."""

    def look(self, state, rows):
        kept = WindowCache(self.inner, 2)
        cache = None if state.cache is None else state.cache.value
        hidden, cache = kept.look(state.replace(cache=cache), rows)
        return hidden, _Stuck(cache)


@dataclass(frozen=True)
class _Stuck:
    value: object

    def __getitem__(self, rows):
        return self


WRONG = {
    "wrong shape": "head",
    "width is wrong": "head",
    "is NaN": "head",
    "absent id has a logit": "absent ids",
    "another id has none": "absent ids",
    "mixes rows": "row independence",
    "ignores the order": "row independence",
    "sees pads": "padding",
    "counts columns from the left edge": "padding",
    "causal": "both directions",
    "writes into the state": "state untouched",
    "random": "state untouched",
    "says it is timed": "time",
    "uses time": "time",
    "raises": "head",
}


@pytest.mark.parametrize("what", WRONG)
def test_each_way_to_be_wrong_is_found(what):
    model = Wrong(random_transformer(dtype=torch.float64), what)
    assert WRONG[what] in broken(model), check(model)


def test_attention_in_blocks_has_its_own_directions(tmp_path):
    for family in ("sdar", "fast-dllm-v2"):
        fabricate(family, tmp_path / family, seed=2)
        model = load(tmp_path / family)
        for blocks in (1, 2, 5, 256, 1000):  # 256 is its limit: one block
            assert not broken(load(tmp_path / family, blocks=blocks)), blocks
        sees_all = replace(model, block_causal=False)
        assert broken(sees_all) == {"both directions"}
        claims = replace(model, blocks=8)  # and sees blocks of one
        object.__setattr__(claims, "look", replace(model, blocks=1).look)
        assert "both directions" in broken(claims)


def test_nothing_wrong_is_nothing_found():
    assert not broken(Wrong(random_transformer(dtype=torch.float64), "nothing"))


def test_a_cache_that_does_not_follow_its_rows_is_found():
    assert broken(Stale(random_transformer(dtype=torch.float64))) == {"cache refresh"}


def test_a_failure_says_what_was_raised():
    verdict = check(Wrong(random_transformer(), "raises"))[0]
    assert verdict.detail == "RuntimeError: no such kernel"
