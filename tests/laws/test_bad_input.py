"""Bad input: one clear line with a way out, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask import Denoiser, Recipe, Table, UnmaskError, decode, decode_batch, load
from unmask.core.state import State
from unmask.core.walk import walk
from unmask.decoding import trace
from unmask.decoding.prompt import from_prompt, start
from unmask.models import Head
from unmask.models.wrap import Counted
from unmask.samplers import Reveal, scores
from unmask.search import Search


def complaint(act: Callable[[], Any], *words: str) -> UnmaskError:
    """What `act` complains of: one line, with a hint, naming these words."""
    with pytest.raises(UnmaskError) as caught:
        act()
    text = str(caught.value)
    assert "\n" not in text and len(text) < 300
    assert caught.value.hint and caught.value.message
    assert text == f"{caught.value.message}: {caught.value.hint}"
    for word in words:
        assert word in text, text
    return caught.value


@pytest.fixture
def model(models: dict[str, Denoiser]) -> Denoiser:
    return models["float64"]


# --- prompts and canvases --------------------------------------------------------------------------------------------


def test_prompt_with_the_mask_id(model: Denoiser) -> None:
    mask = model.vocab.mask
    complaint(
        lambda: decode(model, [3, 4, mask, 5], recipe=Recipe(length=4)), f"mask id {mask}", "position 2", "canvas"
    )


def test_length(model: Denoiser) -> None:
    complaint(lambda: decode(model, "ab"), "length is None", "at least 1")
    complaint(lambda: Recipe(length=0), "length is 0", "at least 1")
    complaint(lambda: Recipe(length=-3), "length is -3")
    complaint(lambda: from_prompt(model, "ab", 0), "length is 0")


def test_length_of_a_canvas(model: Denoiser) -> None:
    complaint(lambda: decode(model, canvas="ab[MASK]", recipe=Recipe(length=4)), "length", "canvas")


def test_canvas_without_holes(model: Denoiser) -> None:
    complaint(lambda: decode(model, canvas="abc"), "no hole", "[MASK]")
    complaint(lambda: decode(model, canvas=[1, 2, 3]), "no hole")
    complaint(lambda: decode(model, canvas="ab[MASK*0]"), "no hole")
    complaint(lambda: decode(model, canvas=[]), "no hole")


def test_canvas_longer_than_the_model_allows(model: Denoiser) -> None:
    complaint(lambda: decode(model, "ab", recipe=Recipe(length=63)), "65", "64", "shorten")
    assert len(decode(model, "ab", recipe=Recipe(length=62, sampler="eb", bound=1e9)).tokens) == 64
    complaint(lambda: decode_batch(model, canvases=["a[MASK]", "[MASK*65]"]), "65", "64")


@pytest.mark.parametrize("token", [-1, 42, 10**6])
def test_token_id_outside_the_vocabulary(model: Denoiser, token: int) -> None:
    complaint(lambda: decode(model, [1, token], recipe=Recipe(length=3)), str(token), "0 to 41")
    complaint(lambda: decode(model, canvas=[1, token, model.vocab.mask]), str(token), "0 to 41")


def test_text_that_the_model_cannot_spell(model: Denoiser) -> None:
    complaint(lambda: decode(model, "abÖ\n", recipe=Recipe(length=3)), "Ö")


def test_nothing_to_decode(model: Denoiser) -> None:
    complaint(lambda: decode_batch(model, [], recipe=Recipe(length=3)), "nothing to decode")
    complaint(lambda: decode_batch(model, canvases=[]), "nothing to decode")
    complaint(lambda: decode_batch(model, recipe=Recipe(length=3)), "prompts or canvases")
    complaint(lambda: decode_batch(model, ["a"], canvases=["[MASK]"]), "prompts or canvases")


@pytest.mark.parametrize("seeds", [[], [1], [1, 2, 3]])
def test_seeds_of_the_wrong_number(model: Denoiser, seeds: list[int]) -> None:
    act = lambda: decode_batch(model, ["a", "b"], recipe=Recipe(length=3), seeds=seeds)  # noqa: E731
    complaint(act, f"{len(seeds)} seed", "2 prompts")


def test_seeds_that_are_no_integers(model: Denoiser) -> None:
    recipe = Recipe(sampler="uniform", length=3, temperature=1.0)
    complaint(lambda: decode_batch(model, ["a", "b"], recipe=recipe, seeds=[0, 0.5]), "seed")  # type: ignore[list-item]


def test_any_integer_is_a_seed(model: Denoiser) -> None:
    recipe = Recipe(sampler="uniform", length=6, temperature=1.0, seed=2**63 - 1)
    last, next_one = decode_batch(model, ["a", "a"], recipe=recipe)
    assert last.tokens != next_one.tokens
    folded = decode_batch(model, ["a", "a"], recipe=recipe, seeds=[-(2**63), 2**64 + 5])
    assert folded[0].tokens == next_one.tokens
    assert folded[1].tokens == decode(model, "a", recipe=recipe.replace(seed=5)).tokens


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("search", "how"),
    [
        ("best-of-n", {"particles": 10**9}),
        ("greedy", {"candidates": 10**9}),
        ("beam", {"beams": 10**5, "candidates": 10**5}),
    ],
)
def test_more_particles_than_fit(model: Denoiser, search: str, how: dict[str, int]) -> None:
    complaint(lambda: decode(model, "ab", recipe=Recipe(search=search, length=8, **how)), "GiB", "lower particles")


def test_more_particles_than_anyone_has() -> None:
    complaint(lambda: Recipe(search="best-of-n", particles=10**10), "particles is 1", "at most")


@pytest.mark.parametrize("sampler", ["uniform", "confidence", "semi-ar", "fast-dllm"])
def test_fewer_steps_than_blocks(model: Denoiser, sampler: str) -> None:
    recipe = Recipe(sampler=sampler, length=12, steps=3, block_length=3)
    complaint(lambda: decode(model, "ab", recipe=recipe), "3 steps", "4 blocks", "block_length")
    short_enough = decode(model, "ab", recipe=recipe.replace(length=9))
    assert model.vocab.mask not in short_enough.tokens


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["temperature", "select_temperature", "guidance"])
def test_temperatures(name: str, value: float) -> None:
    complaint(lambda: Recipe(**{name: value}), f"{name} is {value:g}", "must be")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"top_k": 0}, ["top_k is 0", "at least 1"]),
        ({"top_p": 0.0}, ["top_p is 0", "above 0"]),
        ({"top_p": 1.5}, ["top_p is 1.5", "at most 1"]),
        ({"steps": 0}, ["steps is 0"]),
        ({"steps": 2.5}, ["steps is 2.5", "whole number"]),
        ({"temperature": "hot"}, ["temperature is 'hot'", "a number"]),
        ({"temperature": True}, ["temperature is True", "a number"]),
        ({"sampler": "eb", "bound": -1.0}, ["bound is -1"]),
        ({"sampler": "dream", "eps": 0.0}, ["eps is 0", "above 0"]),
        ({"search": "smc", "strength": float("nan")}, ["strength is nan"]),
        ({"search": "smc", "strength": float("inf")}, ["strength is inf"]),
        ({"search": "smc", "target": 0.0}, ["target is 0", "above 0"]),
        ({"search": "smc", "every": 0}, ["every is 0"]),
        ({"search": "beam", "beams": 0}, ["beams is 0"]),
        ({"sampler": "fast-dllm", "threshold": 1.5}, ["threshold is 1.5", "at most 1"]),
        ({"seed": 2**63}, ["seed"]),
    ],
    ids=str,
)
def test_settings_out_of_range(how: dict[str, Any], words: list[str]) -> None:
    complaint(lambda: Recipe(**how), *words)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"sampler": "confidense"}, ["confidense", "did you mean 'confidence'?"]),
        ({"sampler": "fastdllm"}, ["did you mean 'fast-dllm'?"]),
        ({"sampler": "zzz"}, ["choose from", "uniform", "dream"]),
        ({"search": "best-of"}, ["did you mean 'best-of-n'?"]),
        ({"search": "smc", "scheme": "systematc"}, ["did you mean 'systematic'?"]),
        ({"search": "smc", "potential": "gibs"}, ["did you mean 'gibbs'?"]),
        ({"sampler": "p2", "rule": "fresh"}, ["did you mean 'fresh-draw'?"]),
        ({"sampler": "dream", "rule": "maskgit"}, ["did you mean 'maskgit_plus'?"]),
        ({"scope": "blok"}, ["did you mean 'block'?"]),
        ({"tempratur": 1.0}, ["tempratur", "did you mean 'temperature'?"]),
        ({"num_particle": 1}, ["did you mean 'num_particles'?"]),
    ],
    ids=str,
)
def test_unknown_names_have_a_nearest_match(how: dict[str, Any], words: list[str]) -> None:
    complaint(lambda: Recipe.from_dict(how), *words)


def test_unknown_model() -> None:
    complaint(lambda: load("tabel"), "did you mean 'table'?")
    complaint(lambda: load(None), "None is not a model's name", "a directory or a hub id")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"sampler": "eb", "steps": 4}, ["steps has no effect", "eb", "uniform"]),
        ({"sampler": "p2", "block_length": 4}, ["block_length has no effect"]),
        ({"sampler": "uniform", "select_temperature": 0.1}, ["select_temperature has no effect"]),
        ({"particles": 4}, ["particles has no effect", "vanilla"]),
        ({"search": "best-of-n", "strength": 1.0}, ["strength has no effect"]),
        ({"search": "greedy", "beams": 2}, ["beams has no effect"]),
        ({"search": "smc", "strength": 1.0, "target": 0.5}, ["strength and target"]),
        ({"sampler": "fast-dllm", "threshold": 0.9, "factor": 1.0}, ["one of threshold, factor and steps"]),
        ({"sampler": "dream", "threshold": 0.9}, ["threshold has no effect"]),
        ({"sampler": "dream", "rule": "confidence_threshold", "eps": 0.01}, ["eps has no effect"]),
        ({"scope": "block"}, ["scope block", "block_length"]),
        ({"sampler": "p2", "fill_tail": True}, ["fill_tail has no effect", "p2"]),
        ({"sampler": "draft-refine", "fill_tail": True}, ["fill_tail has no effect"]),
        ({"sampler": "pc"}, ["pc needs a background table", "unmask frequencies"]),
    ],
    ids=str,
)
def test_settings_without_effect(how: dict[str, Any], words: list[str]) -> None:
    complaint(lambda: Recipe(**how), *words)


@pytest.mark.parametrize(
    "text", [None, "", "no json", "[1]", '{"num_token": 3}', '{"num_token": 0, "p_baseline_dict": {}}']
)
def test_background_tables(text: str | None, tmp_path: Path, model: Denoiser) -> None:
    """A recipe reads no file; decoding refuses the table before the network runs."""
    path = tmp_path / "table.json"
    if text is not None:
        path.write_text(text)
    recipe = Recipe(sampler="pc", background=str(path), length=4)
    asked = Counted(model)
    complaint(lambda: decode(asked, "", recipe=recipe), "table.json", "unmask frequencies")
    assert asked.count.calls == 0


def test_tokens_to_ban_or_delay(model: Denoiser) -> None:
    everything = tuple(range(42))
    complaint(lambda: decode(model, "a", recipe=Recipe(length=3, ban=everything)), "every token is banned")
    complaint(lambda: decode(model, "a", recipe=Recipe(length=3, ban=(42,))), "ban holds 42", "0 to 41")
    complaint(lambda: decode(model, "a", recipe=Recipe(length=3, late=(-1,))), "late holds -1")
    complaint(lambda: decode(model, "a", recipe=Recipe(length=3, late=("bos",))), "late holds 'bos'", "eos")
    table = Table(torch.ones(2, 2))
    complaint(lambda: decode(table, [0], recipe=Recipe(length=1, ban=("eos",))), "no EOS")
    complaint(lambda: decode(table, [0], recipe=Recipe(length=1, skip_tail=True)), "no EOS")


def test_a_ban_that_leaves_nothing_possible() -> None:
    """The model allows one token only, and that is banned: an error, never the banned token."""
    only = Spelled(torch.tensor([0.0, -torch.inf, -torch.inf]))
    assert decode(only, [], recipe=Recipe(length=2)).tokens == [0, 0]
    for temperature in (0.0, 1.0):
        recipe = Recipe(length=2, ban=(0,), temperature=temperature)
        complaint(lambda recipe=recipe: decode(only, [], recipe=recipe), "ban")


def test_a_table_that_is_no_distribution() -> None:
    for joint in (torch.zeros(2, 2), torch.ones(2, 3), torch.tensor(1.0), torch.full((2, 2), torch.nan)):
        complaint(lambda joint=joint: Table(joint), "not a distribution")


# --- models that fail ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spelled:
    """A model that believes the same of every position."""

    logits: torch.Tensor  # [V]
    name: str = "spelled"
    limit: int | None = None
    cost: int = 1
    timed: bool = False

    @property
    def vocab(self) -> Any:
        return Table(torch.ones(len(self.logits))).vocab

    @property
    def head(self) -> Head:
        return Head(len(self.logits))

    @property
    def tokenizer(self) -> Any:
        return Table(torch.ones(len(self.logits))).tokenizer

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def look(self, state: State, rows: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.logits.expand(len(rows), state.tokens.shape[1], -1), None


class Poisoned:
    """A model that answers with `value` for one row after so many calls."""

    def __init__(self, inner: Denoiser, calls: int, row: int, value: float) -> None:
        self.inner, self.left, self.row, self.value = inner, calls, row, value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def look(self, state: State, rows: torch.Tensor) -> tuple[torch.Tensor, Any]:
        hidden, cache = self.inner.look(state, rows)
        self.left -= 1
        return (hidden.masked_fill((rows == self.row)[:, None, None], self.value) if self.left < 0 else hidden), cache


@pytest.mark.parametrize("sampler", ["uniform", "eb", "p2", "draft-refine", "dream"])
@pytest.mark.parametrize(
    ("which", "value", "what"),
    [
        ("float64", float("nan"), "NaN or +inf"),
        ("float32", float("nan"), "NaN or +inf"),
        ("table", float("nan"), "NaN or +inf"),
        ("table", float("inf"), "NaN or +inf"),
        ("table", -float("inf"), "all -inf"),
    ],
)
def test_logits_that_are_no_distribution(
    sampler: str, which: str, value: float, what: str, models: dict[str, Denoiser], tmp_path: Path
) -> None:
    """Step and row are named; what was decoded before is in the trace."""
    recipe = Recipe(sampler=sampler, search="best-of-n", particles=3, temperature=1.0, length=4)
    model, path = models[which], tmp_path / "walk.jsonl"
    step, calls = 2, 1 if sampler == "dream" else 2  # dream decides nothing in its first step: no second call
    poisoned = Poisoned(model, calls, 4, value)
    error = complaint(
        lambda: decode_batch(poisoned, [[1], [2, 0]], recipe=recipe, trace=path),
        f"step {step}", "row 4", "prompt 1", "particle 1", model.name, what,
    )  # fmt: skip
    assert type(error).__name__ == "ModelError"
    events = trace.load(path)
    assert [event["event"] for event in events] == ["start", *["step"] * step]
    healthy: list[trace.Event] = []
    decode_batch(model, [[1], [2, 0]], recipe=recipe, on_event=healthy.append)
    assert events[1:] == healthy[1 : step + 1]
    assert list(trace.replay(events)) == list(trace.replay(healthy))[: step + 1]


def _none(turn: Any, ranking: Any, scored: Any, left: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(left)


@pytest.mark.parametrize("first", [0, 2])
def test_a_sampler_without_schedule_that_makes_no_progress(model: Denoiser, first: int) -> None:
    """An error, not an output with holes."""

    def tires(turn: Any, ranking: Any, scored: Any, left: torch.Tensor) -> torch.Tensor:
        return torch.full_like(left, turn.step < first)

    sampler = Reveal(scores.by_entropy, tires, scheduled=False)
    state = start(model, [from_prompt(model, "ab", 4)], [0], sampler, 1)
    moments = []
    error = complaint(lambda: moments.extend(walk(model, state, sampler, Search())), f"step {first}", "row 0")
    assert type(error).__name__ == "ProgressError"
    seen = walk(model, state, sampler, Search())
    assert [next(seen).step for _ in range(first)] == list(range(first))  # what came before was handed out


def test_a_schedule_that_ends_too_early(model: Denoiser) -> None:
    sampler = Reveal(scores.by_entropy, _none, 3)
    state = start(model, [from_prompt(model, "ab", 4)], [0], sampler, 1)
    complaint(lambda: list(walk(model, state, sampler, Search())), "row 0", "still masked")


# --- traces ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["missing/walk.jsonl", ".", "a\0b"])
def test_trace_that_cannot_be_written(model: Denoiser, name: str, tmp_path: Path) -> None:
    path = f"{tmp_path}/{name}"
    complaint(lambda: decode(model, "a", recipe=Recipe(length=3), trace=path), "cannot write the trace")


@pytest.mark.parametrize("text", [None, "", "no json", "{}", '{"event": "step"}', '{"event": "start", "version": 99}'])
def test_trace_that_cannot_be_read(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "walk.jsonl"
    if text is not None:
        path.write_text(text)
    complaint(lambda: trace.load(path), "walk.jsonl")


def test_bad_input_leaves_an_older_trace_alone(model: Denoiser, tmp_path: Path) -> None:
    path = tmp_path / "walk.jsonl"
    decode(model, "a", recipe=Recipe(length=3), trace=path)
    before = path.read_text()
    for act in (
        lambda: decode(model, [model.vocab.mask], recipe=Recipe(length=3), trace=path),
        lambda: decode(model, "a", recipe=Recipe(length=100), trace=path),
        lambda: decode(model, "a", recipe=Recipe(length=3, ban=(99,)), trace=path),
        lambda: decode(model, "a", recipe=Recipe(length=8, search="best-of-n", particles=10**9), trace=path),
    ):
        complaint(act)
        assert path.read_text() == before


def test_a_watcher_that_fails_keeps_the_trace(model: Denoiser, tmp_path: Path) -> None:
    path = tmp_path / "walk.jsonl"

    def watch(event: trace.Event) -> None:
        if event.get("step") == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode(model, "a", recipe=Recipe(length=5), trace=path, on_event=watch)
    assert [event["event"] for event in trace.load(path)] == ["start", "step", "step", "step"]
