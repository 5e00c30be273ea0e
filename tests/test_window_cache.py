"""The approximate cache: which columns it computes, where it is exact, and that it leaves rows alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask import Recipe, decode, decode_batch
from unmask.core.state import State
from unmask.core.walk import walk
from unmask.decoding.prompt import from_prompt, start
from unmask.errors import SettingError
from unmask.models.cache import WindowCache
from unmask.models.transformer import Transformer, random_transformer

PROMPTS = [[3], [4, 5, 6, 7, 8, 9, 10], [11, 12, 13]]
SEMI = Recipe(sampler="semi-ar", block_length=4, length=12, temperature=1.0)
WINDOWS = [(0, None), (0, 0), (3, None), (2, 2), (0, 5), (50, 50)]


@pytest.fixture(params=["plain", "shifted"])
def model(request: pytest.FixtureRequest) -> Transformer:
    return _model(request.param == "shifted")


def _model(shift: bool, layers: int = 2) -> Transformer:
    made = random_transformer(dtype=torch.float64, seed=2, layers=layers)
    return replace(made, shift=shift)


@dataclass(frozen=True, eq=False)
class Watched(WindowCache):
    """Keeps what it was asked, what it answered and which columns it computed."""

    looks: list[tuple[State, Tensor, Tensor]] = field(default_factory=list)  # before, rows, hidden states
    computed: list[list[list[int]]] = field(default_factory=list)  # of each call, the columns of each row

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, Any]:
        hidden, kept = super().look(state, rows)
        self.looks.append((state, rows, hidden))
        return hidden, kept

    def compute(self, state: State, rows: Tensor, at: Tensor, *more: Any) -> Any:
        self.computed.append([columns.tolist() for columns in at])
        return super().compute(state, rows, at, *more)


def walked(watched: Watched, prompts: list[list[int]], recipe: Recipe = SEMI) -> Watched:
    sampler, search = recipe.build_sampler(), recipe.build_search()
    rows = [from_prompt(watched, prompt, recipe.length) for prompt in prompts]
    for _ in walk(watched, start(watched, rows, list(range(len(rows))), sampler, 1), sampler, search):
        pass
    return watched


def gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.std())


# --- where it is exact -----------------------------------------------------------------------------------------------


def test_a_window_over_everything_is_exact(model: Transformer) -> None:
    watched = walked(Watched(model, 4, before=100), PROMPTS)
    for state, rows, hidden in watched.looks:
        exact, _ = model.look(state, rows)
        real = state.attend[rows]
        assert gap(hidden[real], exact[real]) < 1e-9
    one, other = (decode_batch(model, PROMPTS, recipe=r) for r in (SEMI.replace(cache=True, cache_before=100), SEMI))
    assert [kept.tokens for kept in one] == [plain.tokens for plain in other]


@pytest.mark.parametrize(("before", "after"), WINDOWS)
def test_a_full_pass_in_every_step_is_exact(model: Transformer, before: int, after: int | None) -> None:
    kept = SEMI.replace(cache=True, cache_before=before, cache_every=1)
    kept = kept if after is None else kept.replace(cache_after=after)
    one, other = (decode_batch(model, PROMPTS, recipe=recipe) for recipe in (kept, SEMI))
    for cached, plain in zip(one, other, strict=True):
        assert cached.tokens == plain.tokens
        assert cached.path_entropy == pytest.approx(plain.path_entropy, abs=1e-9)


@pytest.mark.parametrize(("before", "after"), WINDOWS)
@pytest.mark.parametrize("shift", [False, True])
def test_with_one_layer_the_window_is_exact_and_the_rest_stays(before: int, after: int | None, shift: bool) -> None:
    """Keys and values of one layer depend on their own token alone, so nothing that the window sees is stale."""
    watched = walked(Watched(model := _model(shift, layers=1), 4, before, after), [PROMPTS[1]])
    old, stale = None, 0.0
    for (state, rows, hidden), (columns,) in zip(watched.looks, watched.computed, strict=True):
        exact = model.look(state, rows)[0][0]
        if len(columns) == state.tokens.shape[1]:
            old = hidden[0]
        assert old is not None
        fresh = torch.zeros(len(exact), dtype=torch.bool)
        fresh[columns[int(shift and columns[0] > 0) :]] = True  # of a shifted model an output belongs to the next one
        assert gap(hidden[0][fresh], exact[fresh]) < 1e-9
        if not bool(fresh.all()):
            assert torch.equal(hidden[0][~fresh], old[~fresh])
            stale = max(stale, gap(hidden[0][~fresh], exact[~fresh]))
    assert (stale > 1e-3) == ((before, after) != (50, 50))


def test_all_of_the_current_block_is_computed(model: Transformer) -> None:
    watched = walked(Watched(_model(model.shift, layers=1), 4, 0, 0), PROMPTS)
    for state, rows, hidden in watched.looks:
        exact, _ = watched.inner.look(state, rows)
        block = state.rank // 4 == (state.rank.where(state.masked, 99).amin(1) // 4)[:, None]
        masked = (state.masked & block)[rows]
        assert gap(hidden[masked], exact[masked]) < 1e-9


# --- which columns it computes ---------------------------------------------------------------------------------------


def widths(watched: Watched) -> list[tuple[int, int]]:
    """First and last column of each call of one row."""
    return [(columns[0], columns[-1]) for (columns,) in watched.computed]


def test_windows_end_at_the_edges_of_the_canvas() -> None:
    found = widths(walked(Watched(_model(False), 4, 2, 2), [[3]]))  # a canvas of 13 columns, open from 1 on
    whole = (0, 12)
    assert found == [whole, *[(0, 6)] * 3, whole, *[(3, 10)] * 3, whole, *[(7, 12)] * 3]
    shifted = widths(walked(Watched(_model(True), 4, 2, 2), [[3]]))
    assert shifted == [whole, *[(0, 6)] * 3, whole, *[(2, 10)] * 3, whole, *[(6, 12)] * 3]


def test_a_window_never_begins_in_the_padding() -> None:
    watched = walked(Watched(_model(False), 4, 4, 0), PROMPTS)  # 7 columns of prompt: 6, 0 and 4 pads
    first = {
        (row[0], row[-1]) for call in watched.computed for row in call if row[-1] == 10
    }  # the first block's windows
    assert first == {(3, 10), (4, 10), (6, 10)}


def test_a_block_with_given_columns_between_its_holes() -> None:
    watched = Watched(model := _model(False), 2, 1, 1)
    mask = model.vocab.mask
    canvas = [3, 4, mask, 5, 6, mask, 7, mask, 8, 9, mask, 10]
    recipe = Recipe(sampler="semi-ar", block_length=2)
    decode(watched, canvas=canvas, recipe=recipe)
    assert widths(watched) == [(0, 11), (1, 6), (0, 11), (6, 11)]


def test_full_passes_at_blocks_and_every_few_looks() -> None:
    watched = walked(Watched(_model(False), 6, 0, 0, every=4), [[3]], SEMI.replace(block_length=6))
    full = [len(columns) == 13 for (columns,) in watched.computed]
    assert full == [True, False, False, False, True, False] * 2


# --- rows are left alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"guidance": 0.5}, {"search": "smc", "particles": 3, "every": 2}])
@pytest.mark.parametrize("window", [{}, {"cache_before": 0, "cache_after": 0}, {"cache_before": 2, "cache_after": 3}])
@pytest.mark.parametrize("every", [{}, {"cache_every": 3}])
def test_unequal_prompts_alone_are_those_of_a_batch(
    model: Transformer, changes: dict[str, Any], window: dict[str, Any], every: dict[str, Any]
) -> None:
    recipe = SEMI.replace(cache=True, **window, **every, **changes)
    together = decode_batch(model, PROMPTS, recipe=recipe)
    for place, prompt in enumerate(PROMPTS):
        alone = decode(model, prompt, recipe=recipe.replace(seed=place))
        assert [one.tokens for one in alone.particles] == [one.tokens for one in together[place].particles]
        assert alone.path_entropy == pytest.approx(together[place].path_entropy, abs=1e-9)


def test_rows_that_enter_blocks_at_different_steps_are_those_alone(model: Transformer) -> None:
    recipe = Recipe(sampler="fast-dllm", threshold=0.6, block_length=4, length=12, cache=True, cache_after=2)
    together = decode_batch(model, PROMPTS, recipe=recipe)
    assert len({one.steps for one in together}) > 1
    for place, prompt in enumerate(PROMPTS):
        assert decode(model, prompt, recipe=recipe.replace(seed=place)).tokens == together[place].tokens


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cache_before", "cache_after", "cache_every"])
def test_a_window_without_a_cache_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match="has no effect without a cache"):
        Recipe(sampler="semi-ar", **{name: 4})


def test_a_cache_without_blocks_is_refused() -> None:
    with pytest.raises(SettingError, match="needs blocks"):
        Recipe(sampler="confidence", cache=True)
