"""A walk of recorded steps is the walk of the engine. Here a step is run again instead of being replayed by a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from again import Again, Late
from unmask import SAMPLERS, SEARCHES, Recipe, load
from unmask.core.denoiser import Denoiser, traits
from unmask.core.gpu import recorded
from unmask.core.sampler import StepInput, masked_share
from unmask.core.state import State, Step, Vocab, put, take
from unmask.core.step import Carry, Moment, Setup, first_carry
from unmask.core.walk import waiting, walk
from unmask.decoding.background import count
from unmask.decoding.decode import prepare
from unmask.decoding.ends import texts_over
from unmask.decoding.prompt import Text, from_canvas, from_prompt, start
from unmask.errors import ModelError, ProgressError
from unmask.models.made.fabricate import fabricate
from unmask.models.transformer import can_compile, compiled, random_transformer
from unmask.models.wrap import Counted


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "Recorded", Again)
    monkeypatch.setattr(recorded, "Signals", Late)


def walks(
    model: Denoiser, recipe: Recipe, prompts: Sequence[Text], stops: Sequence[str] = ()
) -> tuple[list[Any], list[Any]]:
    """What every step of both walks gives."""
    denoiser = model
    rows = [
        from_prompt(denoiser, prompt, recipe.length) if isinstance(prompt, str) else from_canvas(denoiser, prompt)
        for prompt in prompts
    ]
    denoiser, state, *parts = prepare(model, rows, range(len(rows)), recipe)
    setup = Setup(denoiser, *parts, shares_rows=not traits(denoiser).keeps_rows)
    over = texts_over(denoiser, state, setup.sampler, setup.search, stops)
    assert (over is None) == (not stops)
    return list(map(numbers, waiting(setup, state, over))), list(map(numbers, recorded.walk(setup, state, over)))


def numbers(moment: Moment) -> Any:
    """Copied at once: a recorded moment is good until the next one."""
    state, tally, resampled = moment.state, moment.tally, moment.resampled
    whole = [state.tokens, state.origin, moment.before, moment.active, tally.steps, tally.calls, tally.evaluations]
    whole += [] if resampled is None else [resampled.ancestors]
    real = [moment.entropy, state.path_entropy, state.log_weight]
    real += [] if resampled is None else [resampled.log_evidence, resampled.ess]
    return moment.step, [x.tolist() for x in whole], [x.clone() for x in real]


def assert_same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other) > 1
    for (step, whole, real), (step_too, whole_too, real_too) in zip(one, other, strict=True):
        assert (step, whole) == (step_too, whole_too)
        for x, y in zip(real, real_too, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_and_search(sampler: str, search: str, tmp_path) -> None:
    extra = {}
    if sampler == "pc":
        count(["the cat sat on the mat"], load("random").tokenizer.encode).save(tmp_path / "table.json")
        extra = {"background": str(tmp_path / "table.json")}
    recipe = Recipe(sampler, search, length=9, temperature=0.8, **extra)
    assert_same(*walks(load("random", dtype=torch.float64), recipe, ["a cat", "what is this, a dog"]))


OPTIONS = [
    {"steps": 4},
    {"steps": 20},
    {"guidance": 1.5},
    {"late": ("eos",), "fill_tail": True, "skip_tail": True},
    {"end_penalty": 2.0},
    {"end_penalty": 2.0, "temperature": 0.0},
    {"sampler": "entropy", "end_penalty": 2.0, "temperature": 1.0, "search": "smc", "every": 2},
    {"block_length": 4, "scope": "block"},
    {"select_temperature": 0.5},
    {"search": "smc", "every": 2, "target": 0.5, "scheme": "systematic"},
    {"search": "smc", "every": 1, "below": 0.9, "strength": 50.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option(options: dict[str, Any]) -> None:
    recipe = Recipe(**{"sampler": "confidence", "search": "best-of-n", "length": 9, "temperature": 0.8, **options})
    assert_same(*walks(load("random", dtype=torch.float64), recipe, ["a cat", "dog"]))


def rows_of(step: object, loop: recorded.Loop) -> int:
    return len(loop.carry.active)


@pytest.mark.parametrize("sampler", ["confidence", "eb", "fast-dllm", "draft-refine", "p2"])
@pytest.mark.parametrize("search", ["vanilla", "smc"])
def test_prompts_that_end_sooner_are_left_out(sampler: str, search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = load("random", dtype=torch.float64), []
    monkeypatch.setattr(
        recorded, "Recorded", lambda step, loop: sizes.append(len(loop.carry.active)) or Again(step, loop)
    )
    extra = {} if search == "vanilla" else {"particles": 3, "every": 2, "strength": 20.0}
    recipe = Recipe(sampler, search, temperature=1.0, **extra)
    one, other = walks(model, recipe, [[1, *[model.vocab.mask] * holes, 2] for holes in (12, 2, 3, 2, 7)])
    assert_same(one, other)
    assert min(sizes) <= 2 * len(one[0][1][0]) // 5 < max(sizes)


def test_what_was_recorded_serves_the_next_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = load("random", dtype=torch.float64), []
    monkeypatch.setattr(
        recorded, "Recorded", lambda step, loop: made.append(len(loop.carry.active)) or Again(step, loop)
    )
    recipe = Recipe("uniform", "smc", length=12, temperature=1.0, particles=3, every=4)
    first, second = ["a cat", "dog"], ["a cow", "pig"]
    assert_same(*walks(model, recipe, first))
    assert made == [6, 6]  # with and without resampling
    assert_same(*walks(model, recipe, second))
    assert_same(*walks(model, recipe.replace(every=3), first))  # another search
    assert made == [6] * 4
    assert_same(*walks(model, recipe, first))
    assert_same(*walks(model, recipe, [*first, "bird"]))
    assert made == [6] * 4 + [9] * 2
    assert_same(*walks(load("random", dtype=torch.float64), recipe, first))
    assert made == [6] * 4 + [9] * 2 + [6] * 2


def test_walks_of_one_kind_side_by_side() -> None:
    """What one of them has recorded is not the other's before it is over."""
    model = load("random", dtype=torch.float64)
    recipe = Recipe("confidence", "smc", length=12, temperature=1.0, particles=3, every=4)
    sampler, search = recipe.build_sampler(), recipe.build_search()
    setup = Setup(model, sampler, search, recipe.build_rules(model.vocab, model.head.width))
    states = [start(model, [from_prompt(model, text, 12)], [seed], sampler, 3) for seed, text in enumerate("ab")]
    alone = [list(map(numbers, recorded.walk(setup, state))) for state in states]
    given_up = recorded.walk(setup, states[1])
    for _ in range(5):
        next(given_up)
    del given_up
    both = zip(*(map(numbers, recorded.walk(setup, state)) for state in states), strict=True)
    for found, expected in zip(map(list, zip(*both, strict=True)), alone, strict=True):
        assert_same(found, expected)


def test_broken_logits_are_told_one_step_late() -> None:
    """The network breaks after some calls; the error names the step in which it did."""
    model = random_transformer(dtype=torch.float64)
    recipe = Recipe("uniform", length=8, temperature=1.0)
    sampler, search = recipe.build_sampler(), recipe.build_search()
    state = start(model, [from_prompt(model, "ab", 8)], [0], sampler, 1)
    setup = Setup(model, sampler, search, recipe.build_rules(model.vocab, model.head.width))

    def steps() -> Iterator[int]:
        for moment in recorded.walk(setup, state):
            if moment.step == 3:
                model.network.norm.weight.data.fill_(torch.nan)
            yield moment.step

    seen = steps()
    with pytest.raises(ModelError, match=r"step 4, row 0 \(prompt 0, particle 0\).*NaN or \+inf"):
        assert list(seen) == list(range(8))


@dataclasses.dataclass(frozen=True)
class Leftmost:
    """A sampler of a user's own: one position a step, from the left; only tokens are answered."""

    steps: int | None = None
    scheduled: bool = False
    revises: bool = False
    filters: bool = False
    block_length: int | None = None

    def want(self, state: State, step: Step) -> torch.Tensor:
        return state.masked

    def region(self, state: State, step: Step) -> torch.Tensor:
        return state.writable

    def act(self, given: StepInput) -> torch.Tensor:
        first = given.state.masked & (given.state.masked.long().cumsum(1) == 1)
        return given.draw(first).token.where(first, given.state.tokens)

    def done(self, state: State, step: Step) -> torch.Tensor:
        return ~state.masked.any(1)

    def time(self, state: State, step: Step) -> torch.Tensor:
        return masked_share(state)

    def steady(self, state: State) -> torch.Tensor:
        return torch.ones_like(state.open, dtype=torch.bool)


class Adapter:
    """A model of a user's own, around another one; it has no place to keep recordings."""

    recordable = True

    def __init__(self, inner: Denoiser) -> None:
        for name in ("name", "vocab", "head", "tokenizer", "device", "limit", "cost", "timed", "look"):
            setattr(self, name, getattr(inner, name))


@pytest.mark.parametrize("search", ["vanilla", "smc"])
def test_a_sampler_and_a_model_of_ones_own_are_recorded(search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, played = Adapter(load("random", dtype=torch.float64)), []
    monkeypatch.setattr(Again, "play", lambda self, step, real=Again.play: played.append(step) or real(self, step))
    sampler, how = Leftmost(), SEARCHES[search]()
    rules = Recipe(temperature=1.0).build_rules(model.vocab, model.head.width)
    state = start(model, [from_prompt(model, text, 9) for text in ("a cat", "dog")], [0, 1], sampler, how.particles)
    setup = Setup(model, sampler, how, rules)
    assert not recorded.can_record(setup, state)  # only since it is on a CPU
    monkeypatch.setattr(recorded, "on_a_gpu", lambda setup, state: True)
    assert recorded.can_record(setup, state)
    assert not recorded.can_record(dataclasses.replace(setup, denoiser=Counted(model)), state)
    found = list(map(numbers, walk(model, state, sampler, how, rules)))
    assert played == list(range(1, 10))  # the end is known one step late
    assert_same(list(map(numbers, waiting(setup, state))), found)


@dataclasses.dataclass(frozen=True)
class Counting(State):
    """A State with one more field: how often a row was changed."""

    changes: torch.Tensor | None = None  # [B] int64


def test_a_new_field_of_the_state_is_not_forgotten() -> None:
    """Taken, put, resampled and carried through a recorded walk of which prompts drop out, by no list of names."""
    model = load("random", dtype=torch.float64)
    sampler, search = SAMPLERS["confidence"](), SEARCHES["smc"](particles=2, every=2, strength=50.0)
    rules = Recipe(temperature=1.0).build_rules(model.vocab, model.head.width)
    canvases = [[1, *[model.vocab.mask] * holes, 2] for holes in (9, 2, 2)]
    plain = start(model, [from_canvas(model, row) for row in canvases], range(3), sampler, 2)
    fields = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    state = Counting(**fields, changes=torch.arange(6) * 100)

    rows = torch.tensor([5, 0])
    assert take(state, rows).changes.tolist() == state.take(rows).changes.tolist() == [500, 0]
    assert state.resample(torch.tensor([0, 0, 2, 3, 5, 4])).changes.tolist() == [0, 0, 200, 300, 500, 400]
    part = state.take(rows).replace(changes=torch.tensor([-5, -1]))
    assert put(state, rows, part).changes.tolist() == [-1, 100, 200, 300, 400, -5]

    def counted(setup: Setup, carry: Carry, real=recorded.advance) -> tuple[Carry, Moment]:
        after, moment = real(setup, carry)
        marked = after.state.replace(changes=after.state.changes + carry.active)
        return dataclasses.replace(after, state=marked), dataclasses.replace(moment, state=marked)

    setup = Setup(model, sampler, search, rules)
    expected, carry = [], first_carry(setup, state)
    while bool(carry.active.any()):
        carry, moment = counted(setup, carry)
        expected.append(moment.state.changes.tolist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded, "advance", counted)
        assert [moment.state.changes.tolist() for moment in recorded.walk(setup, state)] == expected


def test_a_sampler_that_stands_still_is_told() -> None:
    class Lazy:
        def __getattr__(self, name: str) -> Any:
            return getattr(SAMPLERS["eb"](), name)

        def act(self, given):
            return given.state.tokens

    model = random_transformer()
    state = start(model, [from_prompt(model, "ab", 8)], [0], SAMPLERS["eb"](), 1)
    setup = Setup(model, Lazy(), SEARCHES["vanilla"]())
    with pytest.raises(ProgressError, match="step 0, row 0: the sampler decided nothing"):
        list(recorded.walk(setup, state))


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The compiler's front half: what it reads of a step, run without being translated."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: real(function, backend="eager", **how))
    recorded.compiled_step.cache_clear()
    yield
    recorded.compiled_step.cache_clear()


RECIPE = Recipe("uniform", "smc", length=12, temperature=1.0, particles=4, every=3)


@pytest.mark.skipif(not can_compile(torch.device("cpu")), reason="no C++ compiler")
@pytest.mark.parametrize("recipe", [RECIPE, RECIPE.replace(end_penalty=2.0)], ids=["plain", "end_penalty"])
def test_a_compiled_step_is_the_same_step_and_is_read_once(recipe: Recipe, traced: None) -> None:
    model = compiled(load("random", dtype=torch.float64))
    prompts = ["a cat", "what is this"]
    assert_same(*walks(model, recipe, prompts))
    torch._dynamo.utils.counters.clear()
    assert_same(*walks(model, recipe, prompts))
    assert not torch._dynamo.utils.counters["stats"]


@pytest.mark.skipif(not can_compile(torch.device("cpu")), reason="no C++ compiler")
def test_a_step_that_cannot_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Once(Again):
        def __init__(self, step: Callable[[Carry], tuple[Carry, Moment]], loop: recorded.Loop) -> None:
            super().__init__(step, loop)
            step(loop.carry)  # as a recording does

    def broken(setup: Setup, carry: Carry) -> tuple[Carry, Moment]:
        raise RuntimeError("no such instruction\nand much more")

    monkeypatch.setattr(recorded, "Recorded", Once)
    monkeypatch.setattr(recorded, "compiled_step", lambda: broken)
    model = load("random", dtype=torch.float64)
    with pytest.warns(UserWarning, match="could not be compiled and runs uncompiled: no such instruction$"):
        one, other = walks(dataclasses.replace(model, compiled=model.network), RECIPE, ["a cat"])
    assert_same(one, other)


# --- with a cache -----------------------------------------------------------------------------------------------------

BLOCKWISE = [
    {"sampler": "semi-ar"},
    {"sampler": "semi-ar", "search": "smc", "particles": 3, "temperature": 0.9},
    {"sampler": "semi-ar", "search": "smc", "particles": 3, "temperature": 0.9, "every": 3, "strength": 20.0},
    {"sampler": "semi-ar", "search": "beam", "beams": 2, "temperature": 0.9},
    {"sampler": "semi-ar", "search": "auto", "particles": 3, "temperature": 0.9, "guidance": 0.7},
    {"sampler": "semi-ar", "search": "smc", "particles": 5, "temperature": 0.9, "every": 2},
]


@pytest.mark.parametrize("family", ["sdar", "fast-dllm-v2", "llada2"])
@pytest.mark.parametrize("settings", BLOCKWISE, ids=str)
def test_attention_in_blocks(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    fabricate(family, tmp_path / family, seed=3)
    model = load(tmp_path / family, dtype=torch.float64)
    recipe = Recipe(**{"search": "vanilla", "length": 19, **settings})
    assert_same(*walks(model, recipe, ["a cat", "what is this, a dog", "b"]))


@pytest.mark.parametrize("settings", BLOCKWISE, ids=str)
def test_blocks_of_open_positions(settings: dict[str, Any]) -> None:
    """As in the bundled language model: the prompt is one block, and later ones see it."""
    model = dataclasses.replace(random_transformer(dtype=torch.float64), blocks=8)
    recipe = Recipe(**{"search": "vanilla", "length": 19, "attention": "block", **settings})
    assert_same(*walks(model, recipe, ["a cat", "what is this, a dog", "b"]))


@pytest.mark.parametrize("settings", BLOCKWISE, ids=str)
@pytest.mark.parametrize(
    "cache",
    [
        {"cache_before": 0, "cache_after": 0},
        {"cache_before": 2, "cache_after": 3, "cache_every": 3},
        {"cache_before": 0},
        {"cache_before": 4, "cache_block": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_windows(family: str, cache: dict[str, Any], settings: dict[str, Any], tmp_path: Path) -> None:
    fabricate(family, tmp_path / family, seed=3)
    model = load(tmp_path / family, dtype=torch.float64)
    cache = {"cache_block": 4, **cache}
    recipe = Recipe(**{"search": "vanilla", "length": 14, "block_length": 4, "scope": "block", **cache, **settings})
    assert_same(*walks(model, recipe, ["a cat", "what is this, a dog", "b"]))


def test_a_filled_row_takes_no_pass_of_another(tmp_path: Path) -> None:
    """An EOS fills the rest of one row while another one enters a block."""
    fabricate("llada", tmp_path / "llada", seed=3)
    model = load(tmp_path / "llada", dtype=torch.float64)
    model = dataclasses.replace(model, vocab=Vocab(model.vocab.mask, tuple(range(0, 300, 9))))  # ends are frequent
    cache = {"cache_block": 4, "cache_before": 0, "cache_after": 0, "scope": "block"}
    recipe = Recipe("fast-dllm", length=18, temperature=1.0, block_length=4, threshold=0.02, fill_tail=True, **cache)
    assert_same(*walks(model, recipe, ["a cat", "what is this, a dog", "b", "and who"]))


def test_holes_with_a_cache(tmp_path: Path) -> None:
    for family, more in (("sdar", {}), ("llada", {"cache_block": 3, "block_length": 3, "cache_after": 1})):
        fabricate(family, tmp_path / family, seed=3)
        model = load(tmp_path / family, dtype=torch.float64)
        recipe = Recipe("semi-ar", "smc", particles=3, temperature=0.9, **more)
        mask = [model.vocab.mask]
        two_holes = [*b"a cat", *mask * 5, *b" who is ", *mask * 9, *b" and more"]
        canvases = [two_holes, [*b"what", *mask * 12, *b" is this"]]
        assert_same(*walks(model, recipe, canvases))


# --- texts that are over ----------------------------------------------------------------------------------------------

ENDING = [
    {"sampler": "semi-ar"},
    {"sampler": "semi-ar", "steps": 9},
    {"sampler": "fast-dllm", "threshold": 0.05},
    {"sampler": "semi-ar", "search": "best-of-n", "particles": 3, "temperature": 0.0},
    {"sampler": "semi-ar", "search": "smc", "particles": 3, "every": 2, "temperature": 0.1},
]


@pytest.mark.parametrize("settings", ENDING, ids=str)
@pytest.mark.parametrize("family", ["plain", "sdar", "llada"])
def test_texts_that_are_over(family: str, settings: dict[str, Any], tmp_path: Path, monkeypatch) -> None:
    """A prompt ends after the same step, the others go on, and nothing is played once all of them have ended."""
    given = {"search": "vanilla", "length": 19, "temperature": 0.9, "block_length": 4, **settings}
    if family == "plain":
        model = load("random", dtype=torch.float64)
    else:
        fabricate(family, tmp_path / family, seed=3)
        model = load(tmp_path / family, dtype=torch.float64)
        given |= {} if family == "sdar" else {"cache_block": 4, "cache_before": 0, "cache_after": 0, "scope": "block"}
    recipe, prompts = Recipe(**given), ["a cat", "what is this, a dog", "b"]
    played: list[int] = []
    monkeypatch.setattr(Again, "play", lambda self, step, real=Again.play: played.append(step) or real(self, step))
    free, _ = walks(model, recipe, prompts)
    tokens, k = torch.tensor(free[-1][1][0]), len(free[-1][1][0]) // 3
    words = [model.tokenizer.decode(row[-19 + 2 : -19 + 4].tolist()) for row in tokens[::k]]
    for stops in (words, words[:1]):
        played.clear()
        one, other = walks(model, recipe, prompts, stops)
        assert_same(one, other)
        assert sum(one[-1][1][6]) < sum(free[-1][1][6])  # evaluations
        assert len(played) <= len(one) + 1


# --- equal canvases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", ["best-of-n", "smc", "auto"])
@pytest.mark.parametrize("guidance", [0.0, 1.5])
def test_equal_canvases_are_computed_once(search: str, guidance: float) -> None:
    """Also where particles part, and where resampling makes them equal again; what was computed is counted."""
    model = Counted(load("random", dtype=torch.float64))
    settings = {"temperature": 0.0, "select_temperature": 0.002, "guidance": guidance}
    recipe = Recipe("confidence", search, length=24, particles=8, **settings)
    rows = [from_prompt(model, prompt, 24) for prompt in ("a cat", "what is this, a dog")]
    denoiser, state, *parts = prepare(model, rows, range(2), recipe)
    setup = Setup(denoiser, *parts)
    asked = list(map(numbers, waiting(setup, state)))
    model.count.rows = 0
    found, tally = [], None
    for moment in recorded.walk(setup, state):
        found.append(numbers(moment))
        tally = moment.tally
    assert_same(asked, found)
    assert tally is not None
    computed, evaluations = int(tally.rows.sum()), int(tally.evaluations.sum())
    assert model.count.rows == computed < evaluations / 2
