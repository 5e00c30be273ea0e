"""Laws of every walk: it ends, keeps what was given, replays from its trace, and its entropies and counters add up."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from unmask import Denoiser, Result, decode_batch
from unmask.core import walk as engine
from unmask.core.state import State
from unmask.decoding import trace
from unmask.decoding.prompt import from_canvas, start
from unmask.models.wrap import Guided
from unmask.samplers import StepInput
from unmask.search import POTENTIALS, Search

from . import oracle
from .cases import CASES, SEEDS, Case, canvases, names
from .conftest import Walk

BITS = {"float64": 1e-9, "table": 1e-9, "float32": 1e-4}  # how far a recomputed entropy may be off


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_law(case: Case, walk_case: Callable[..., Walk]) -> None:
    walk = walk_case(case)
    for law in LAWS:
        law(walk)


def finishes_within_its_plan(walk: Walk) -> None:
    sampler = walk.recipe.build_sampler()
    for canvas, result in zip(walk.canvases, walk.results, strict=True):
        holes = canvas.count(walk.mask)
        planned = holes if sampler.steps is None else sampler.steps
        for particle in result.particles:
            assert walk.mask not in particle.tokens
            if sampler.scheduled and not getattr(sampler, "carries", False):
                assert particle.steps <= planned
            elif not sampler.revises:
                assert particle.steps <= max(holes, planned) + holes


def given_positions_are_never_touched(walk: Walk) -> None:
    open_columns = [{c for c, t in enumerate(row) if t == walk.mask} for row in walk.canvases]
    for event in walk.steps:
        assert all(column in open_columns[row // walk.k] for row, column, _, _ in event["changes"])
    for canvas, result in zip(walk.canvases, walk.results, strict=True):
        for particle in result.particles:
            assert len(particle.tokens) == len(canvas)
            kept = [(a, b) for a, b in zip(canvas, particle.tokens, strict=True) if a != walk.mask]
            assert all(a == b for a, b in kept)


def trace_replays_to_every_canvas(walk: Walk) -> None:
    assert len(walk.replayed) == len(walk.steps) + 1
    assert walk.replayed[0] == [row for row in walk.canvases for _ in range(walk.k)]
    assert walk.replayed[-1] == [particle.tokens for result in walk.results for particle in result.particles]
    for step, event in enumerate(walk.steps):
        assert event["step"] == step
        before = [walk.replayed[step][a] for a in event.get("ancestors", range(len(walk.replayed[0])))]
        for row, column, token, entropy in event["changes"]:
            assert token != before[row][column]  # a change is a change
            assert entropy is not None and entropy >= -1e-12


def only_samplers_that_revise_change_a_decided_position(walk: Walk) -> None:
    if walk.recipe.build_sampler().revises:
        return
    for step, event in enumerate(walk.steps):
        before = [walk.replayed[step][a] for a in event.get("ancestors", range(len(walk.replayed[0])))]
        assert all(before[row][column] == walk.mask for row, column, _, _ in event["changes"])


def state_entropy_is_what_the_canvas_says(walk: Walk) -> None:
    """h from the replayed canvases through the model again: whatever the temperature, top-k, top-p and bans."""
    expected = oracle.replayed_entropies(walk.model, walk.replayed, walk.k, walk.recipe.guidance)
    for step, event in enumerate(walk.steps):
        for row, (h, again) in enumerate(zip(event["h"], expected[step], strict=True)):
            assert (h is None) == (again is None), (step, row)
            assert h is None or h == pytest.approx(again, abs=BITS[walk.case.model]), (step, row)


def path_entropy_is_the_mean_along_the_lineage(walk: Walk) -> None:
    lineages, paths = trace.lineages(walk.events), oracle.paths(walk.events, walk.replayed, walk.mask)
    everyone = [particle for result in walk.results for particle in result.particles]
    for particle, lineage, path in zip(everyone, lineages, paths, strict=True):
        assert lineage == [h for h, _ in path]
        assert particle.state_entropy == lineage
        assert particle.path_entropy == pytest.approx(oracle.mean(path), abs=1e-9)


def the_chosen_particle(walk: Walk) -> None:
    """The lowest path entropy; for a vote, the lowest among the most frequent answers; or the likeliest, or the least
    surprised, with a second look where steps write many."""
    for result in walk.results:
        if walk.recipe.build_search().choose.name == "likelihood":
            assert result.particles[result.chosen].log_prob == max(one.log_prob for one in result.particles)
            continue
        if walk.recipe.build_search().chosen_by(walk.recipe.build_sampler()) == "surprise":
            assert result.particles[result.chosen].surprise == min(one.surprise for one in result.particles)
            continue
        if walk.recipe.build_search().choose.name == "auto":
            assert_least_product(result)
            continue
        texts = [particle.text for particle in result.particles]
        voters = range(len(texts))
        if walk.recipe.build_search().choose.name == "vote":
            voters = [i for i in voters if texts.count(texts[i]) == max(map(texts.count, texts))]
        assert_lowest_of(result, voters)


def assert_least_product(result: Result) -> None:
    """The least product of surprise and look, among the four distinct answers of least surprise."""
    ranked = sorted(result.particles, key=lambda one: one.surprise)
    distinct = list(dict.fromkeys(tuple(one.tokens) for one in ranked))[:4]
    assert {tuple(one.tokens) for one in result.particles if one.look is not None} == set(distinct)
    costs = [math.inf if one.look is None else one.surprise * max(one.look, 1e-6) for one in result.particles]
    assert costs[result.chosen] <= min(costs) * (1 + 1e-5)


def assert_lowest_of(result: Result, allowed: Sequence[int]) -> None:
    """The chosen one is the lowest of those allowed; the same path twice is a tie, which the lower slot wins."""
    entropies = [particle.path_entropy for particle in result.particles]
    mine = entropies[result.chosen]
    assert result.chosen in allowed
    assert mine <= min(entropies[i] for i in allowed) + 1e-5
    assert not [i for i in allowed if i < result.chosen and abs(entropies[i] - mine) < 1e-12]


def counters_say_what_ran(walk: Walk) -> None:
    """A row runs when its canvas changed since the network saw it and somebody asks; a prompt calls when a row runs."""
    k, prompts, steps = walk.k, len(walk.canvases), walk.steps
    cost = Guided(walk.model, 1.0).cost if walk.recipe.guidance else walk.model.cost
    revises = walk.recipe.build_sampler().revises
    calls, evaluations, turns = [0] * prompts, [0] * prompts, [0] * (prompts * k)
    changed = set(range(prompts * k))
    for step, event in enumerate(steps):
        took = [row for row in range(prompts * k) if event["steps"][row] == turns[row] + 1]
        ran = {row for row in took if row in changed and (revises or walk.masks(step, row))}
        for prompt in range(prompts):
            mine = sum(row // k == prompt for row in ran)
            calls[prompt] += mine > 0
            evaluations[prompt] += cost * mine
        turns = [n + (row in took) for row, n in enumerate(turns)]
        assert event["steps"] == turns
        assert event["calls"] == calls
        assert event["evaluations"] == evaluations
        changed = (changed - ran) | {row for row, *_ in event["changes"]}
    assert [particle.steps for result in walk.results for particle in result.particles] == turns
    looks = [halves_looked_at(walk, place) for place in range(prompts)]
    calls = [count + max(again, default=0) for count, again in zip(calls, looks, strict=True)]
    evaluations = [count + cost * sum(again) for count, again in zip(evaluations, looks, strict=True)]
    assert [result.calls for result in walk.results] == calls
    assert [result.evaluations for result in walk.results] == evaluations
    for result, again in zip(walk.results, looks, strict=True):
        assert result.calls <= result.steps + max(again, default=0)  # one call per step
        assert result.evaluations <= cost * (sum(particle.steps for particle in result.particles) + sum(again))
        assert result.rows <= result.evaluations
    end = walk.events[-1]
    assert end["event"] == "end" and end["steps"] == turns
    assert end["calls"] == calls and end["evaluations"] == evaluations


def halves_looked_at(walk: Walk, place: int) -> list[int]:
    """For each distinct answer that was looked at again, in how many of its halves there is content."""
    result, eos = walk.results[place], walk.model.vocab.eos
    answers = dict.fromkeys(tuple(one.tokens) for one in result.particles if one.look is not None)
    assert walk.recipe.build_search().looks(walk.recipe.build_sampler()) or not answers
    return [oracle.halves(walk.canvases[place], list(one), result.seed, walk.mask, eos) for one in answers]


def resampling_stays_among_the_unfinished_of_a_prompt(walk: Walk) -> None:
    k = walk.k
    for step, event in enumerate(walk.steps):
        ancestors = event.get("ancestors", [])
        for row, ancestor in enumerate(ancestors):
            assert ancestor // k == row // k
            if event["h"][row] is None:  # nothing masked: neither replaced nor copied
                assert ancestor == row
                assert ancestors.count(row) == 1
        for row in range(len(ancestors)):
            if not walk.masks(step, row):
                assert ancestors[row] == row


def weights_add_up(walk: Walk) -> None:
    """Effective sample size, strength and evidence of each resampling, from the h of its event."""
    search, k = walk.recipe.build_search(), walk.k
    if search.potential not in (POTENTIALS["gibbs"], POTENTIALS["plain"], None):
        return  # tests/test_potentials.py
    width, slack = math.log2(walk.model.head.width), 1e3 * BITS[walk.case.model]
    logs = torch.zeros(len(walk.replayed[0]), dtype=torch.float64)
    grown = [0.0] * len(walk.results)
    for event in (event for event in walk.steps if "ancestors" in event and search.beams is None):
        for prompt in range(len(walk.results)):
            rows = [row for row in range(prompt * k, prompt * k + k) if event["h"][row] is not None]
            if event["ess"][prompt] is None:  # not due, or nobody to choose from
                assert event["log_evidence"][prompt] == 0
                assert event["ancestors"][prompt * k : prompt * k + k] == list(range(prompt * k, prompt * k + k))
                continue
            h = torch.tensor([event["h"][row] for row in rows], dtype=torch.float64)
            reward = 1 - h / width if search.potential is POTENTIALS["gibbs"] else -h
            after = logs[rows] + event["strength"][prompt] * reward
            ess = float(1 / after.softmax(0).square().sum())
            assert event["ess"][prompt] == pytest.approx(ess, rel=slack)
            if search.target is None:
                assert event["strength"][prompt] == search.strength
            else:
                assert ess >= search.target * len(rows) * (1 - 1e-3)
            growth = float(after.logsumexp(0) - logs[rows].logsumexp(0))
            assert event["log_evidence"][prompt] == pytest.approx(growth, abs=slack * max(1.0, abs(growth)))
            grown[prompt] += event["log_evidence"][prompt]
            logs[rows] = 0.0 if search.below is None or ess < search.below * len(rows) else after
    for result, total in zip(walk.results, grown, strict=True):
        assert search.beams is not None or result.log_evidence == pytest.approx(total, rel=1e-9)


def origins_are_the_roots_of_the_ancestry(walk: Walk) -> None:
    trees = trace.ancestry(walk.events)
    everyone = [(p, particle) for p, result in enumerate(walk.results) for particle in result.particles]
    for tree, (prompt, particle) in zip(trees, everyone, strict=True):
        assert tree[0] == prompt * walk.k + particle.origin
    for prompt, result in enumerate(walk.results):
        assert result.lineages == len({tree[0] for tree in trees[prompt * walk.k : prompt * walk.k + walk.k]})


def alone_equals_in_a_batch_in_any_order(walk: Walk) -> None:
    """Each prompt's tokens, entropies, steps and cost do not depend on its company: other lengths, holes and seeds."""
    for places in ([1], [2, 0]):
        for place, result in zip(places, walk.again(places), strict=True):
            assert_equal_results(walk.results[place], result, BITS[walk.case.model])


def assert_equal_results(one: Result, other: Result, tolerance: float) -> None:
    """Equal up to the rounding of entropies."""
    assert one.seed == other.seed
    assert (one.chosen, one.calls, one.evaluations) == (other.chosen, other.calls, other.evaluations)
    assert one.log_evidence == pytest.approx(other.log_evidence, abs=100 * tolerance)
    for a, b in zip(one.particles, other.particles, strict=True):
        assert (a.tokens, a.text, a.steps, a.origin) == (b.tokens, b.text, b.steps, b.origin)
        assert a.path_entropy == pytest.approx(b.path_entropy, abs=tolerance)
        assert len(a.state_entropy) >= a.steps and len(b.state_entropy) >= b.steps
        for h, again in zip(a.state_entropy[: a.steps], b.state_entropy[: a.steps], strict=True):
            assert (h is None) == (again is None)
            assert h is None or h == pytest.approx(again, abs=tolerance)


LAWS = (
    finishes_within_its_plan,
    given_positions_are_never_touched,
    trace_replays_to_every_canvas,
    only_samplers_that_revise_change_a_decided_position,
    state_entropy_is_what_the_canvas_says,
    path_entropy_is_the_mean_along_the_lineage,
    the_chosen_particle,
    counters_say_what_ran,
    resampling_stays_among_the_unfinished_of_a_prompt,
    weights_add_up,
    origins_are_the_roots_of_the_ancestry,
    alone_equals_in_a_batch_in_any_order,
)


@dataclass(frozen=True)
class Rogue:
    """A sampler that writes the number of the step everywhere, also where it must not."""

    steps: int | None = None
    scheduled: bool = True
    revises: bool = False
    block_length: int | None = None

    def want(self, state: State, step: int) -> Tensor:
        return state.masked

    def region(self, state: State, step: int) -> Tensor:
        return state.writable

    def act(self, turn: StepInput) -> Tensor:
        return torch.full_like(turn.state.tokens, turn.step)

    def done(self, state: State, step: int) -> Tensor:
        return step >= state.budget

    def time(self, state: State, step: int) -> Tensor:
        return torch.ones_like(state.time)


def test_the_engine_protects_what_is_given_and_what_is_done(models: dict[str, Denoiser]) -> None:
    """Whatever a sampler answers: given positions stay, and a row that is done stays while others go on."""
    model = models["float64"]
    rows = canvases(model)
    state = start(model, [from_canvas(model, row) for row in rows], SEEDS, Rogue(), 2)
    *_, last = list(engine.walk(model, state, Rogue(), Search(2)))
    for row, tokens in enumerate(last.state.tokens.tolist()):
        canvas = rows[row // 2]
        final = canvas.count(model.vocab.mask) - 1
        expected = [final if token == model.vocab.mask else token for token in canvas]
        assert tokens == [model.vocab.pad] * (len(tokens) - len(canvas)) + expected


@pytest.mark.parametrize("case", [case for case in names("table") if case.search in ("vanilla", "smc")], ids=str)
def test_trace_file_round_trip(case: Case, walk_case: Callable[..., Walk], tmp_path: Path) -> None:
    walk = walk_case(case)
    path = tmp_path / "walk.jsonl"
    again = decode_batch(walk.model, canvases=walk.canvases, recipe=walk.recipe, seeds=SEEDS, trace=path)
    events = trace.load(path)
    assert _timeless(events) == _timeless(json.loads(json.dumps(walk.events)))
    assert list(trace.replay(events)) == walk.replayed
    assert [result.tokens for result in again] == [result.tokens for result in walk.results]


def _timeless(events: list[trace.Event]) -> list[trace.Event]:
    return [{name: value for name, value in event.items() if name != "seconds"} for event in events]
