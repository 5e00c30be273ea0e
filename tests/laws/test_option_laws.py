"""Laws of the options: bans, late tokens, tails, blocks, guidance and the selection temperature."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from unmask import SAMPLERS, Denoiser, Result, decode_batch
from unmask.core.dice import Purpose, uniform
from unmask.core.state import Vocab
from unmask.decoding import trace
from unmask.samplers import Reveal

from . import oracle
from .cases import BLOCK_CASES, DRAWS, FULL_CASES, SAMPLER_CASES, SEEDS, SMC, Case, adaptive, canvases, samplers
from .conftest import Walk
from .test_walk_laws import alone_equals_in_a_batch_in_any_order

WalkCase = Callable[..., Walk]


def under_smc(case: Case, **more: object) -> Case:
    return Case(case.sampler, "smc", {**case.settings, **SMC, **more})


def check_entropies(walk: Walk, counted: oracle.Counted) -> None:
    expected = oracle.replayed_entropies(walk.model, walk.replayed, walk.k, counted=counted)
    for step, event in enumerate(walk.steps):
        for row, (h, again) in enumerate(zip(event["h"], expected[step], strict=True)):
            assert (h is None) == (again is None), (step, row)
            assert h is None or h == pytest.approx(again, abs=1e-9), (step, row)


@pytest.fixture(scope="module")
def wordy(models: dict[str, Denoiser]) -> Denoiser:
    """A model whose EOS is a whole class of tokens, so that a short text meets it."""
    model = models["float64"]
    return dataclasses.replace(model, vocab=Vocab(model.vocab.mask, (40, 18, 35, *range(1, 40, 3)), model.vocab.pad))


# --- what is drawn ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_banned_tokens_never_appear_and_do_not_move_h(sampler: str, temperature: float, walk_case: WalkCase) -> None:
    """At temperature 0 what would have been drawn is banned; h is then still what the canvas says."""
    case = Case(sampler, "best-of-n", {**samplers(sampler)[0], "particles": 3, "temperature": temperature})
    free = walk_case(case)
    usual = {token for event in free.steps for _, _, token, _ in event["changes"] if token != free.mask}
    banned = sorted(usual)[: 20 if temperature else None]
    walk = walk_case(case, ban=tuple(banned))
    assert not {token for event in walk.steps for _, _, token, _ in event["changes"]} & set(banned)
    assert walk.steps[0]["h"] == free.steps[0]["h"]
    check_entropies(walk, lambda step, row, canvas: [c for c, t in enumerate(canvas) if t == walk.mask])


class Enough(Exception):
    """Nobody wants the rest of a walk."""


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_first_state_entropy_does_not_know_how_tokens_are_drawn(
    sampler: str, models: dict[str, Denoiser], background: Path
) -> None:
    model, first = models["float64"], list[trace.Event]()

    def watch(event: trace.Event) -> None:
        if event["event"] == "step":
            first.append(event["h"])
            raise Enough

    for how in DRAWS:
        if "guidance" not in how:
            recipe = Case(sampler, "vanilla", {**samplers(sampler)[0], **how}).recipe(background)
            with pytest.raises(Enough):
                decode_batch(model, canvases=canvases(model), recipe=recipe, on_event=watch)
    assert len(first) == len(DRAWS) - 1 and all(h == first[0] for h in first)


REVEALS = [c for c in SAMPLER_CASES if c.sampler != "pc" and isinstance(SAMPLERS[c.sampler](), Reveal)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("case", REVEALS, ids=str)
def test_late_tokens_come_last(case: Case, temperature: float, walk_case: WalkCase) -> None:
    """No late token is decided in a step that leaves another candidate masked whose own proposal is not late."""
    late = tuple(range(12, 40))
    walk = walk_case(
        Case(case.sampler, "best-of-n", {**case.settings, "particles": 2}), late=late, temperature=temperature
    )
    sampler, mask, waited = walk.recipe.build_sampler(), walk.mask, 0
    for step, event in enumerate(walk.steps):
        everyone = proposals(walk, step, temperature)
        for row, before in enumerate(walk.replayed[step]):
            decided = {column: token for r, column, token, _ in event["changes"] if r == row}
            if not decided:
                continue
            open_now, proposed = oracle.region(sampler, walk.replayed[0][row], before, step, mask), everyone[row]
            left = [c for c in open_now if before[c] == mask and c not in decided]
            if any(token in late for token in decided.values()):
                assert all(proposed[column] in late for column in left), (step, row)
            waited += any(proposed[column] in late for column in left)
    assert waited > 0 or adaptive(sampler)


def proposals(walk: Walk, step: int, temperature: float) -> list[list[int]]:
    """The tokens that each row proposes for the canvas that it took over: the most probable ones at temperature 0,
    else by inverse CDF of its tempered beliefs with the dice of its own key and slot."""
    ancestors = walk.steps[step].get("ancestors", range(len(walk.replayed[0])))
    taken, found = [walk.replayed[step][a] for a in ancestors], list[list[int]]()
    for prompt, seed in enumerate(SEEDS):
        scores = oracle.logits(walk.model, taken[prompt * walk.k : (prompt + 1) * walk.k])
        chances = scores.div(temperature or 1.0).softmax(2)
        slots, columns = torch.arange(walk.k)[:, None], torch.arange(scores.shape[1])[None]
        noise = uniform(torch.tensor(seed), slots, step, columns.expand(walk.k, -1), Purpose.TOKEN)
        drawn = (chances.cumsum(2) < noise[..., None]).sum(2) if temperature else chances.argmax(2)
        found += drawn.tolist()
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("case", FULL_CASES, ids=str)
def test_tokens_are_drawn_after_resampling(case: Case, temperature: float, walk_case: WalkCase) -> None:
    walk = walk_case(under_smc(case, every=1, temperature=temperature))
    for step, event in enumerate(walk.steps):
        proposed = proposals(walk, step, temperature)
        for row, column, token, _ in event["changes"]:
            assert token in (proposed[row][column], walk.mask), (step, row)
            assert token != walk.mask or walk.recipe.build_sampler().revises


@pytest.mark.parametrize("case", [c for c in SAMPLER_CASES if "select_temperature" in c.settings], ids=str)
def test_selection_temperature_towards_0_is_plain_ranking(case: Case, decode_case: Callable[..., list[Result]]) -> None:
    cold = decode_case(case, select_temperature=1e-10)
    plain = decode_case(case, select_temperature=0.0)
    assert [result.tokens for result in cold] == [result.tokens for result in plain]
    if case.settings.get("temperature") == 0.0:
        warm = decode_case(case, select_temperature=50.0)
        assert [result.tokens for result in warm] != [result.tokens for result in plain]


# --- EOS tails -------------------------------------------------------------------------------------------------------

REVISING = ("p2", "draft-refine")
FORWARD = [c for c in SAMPLER_CASES if c.sampler not in REVISING and "edit_threshold" not in c.settings]


@pytest.mark.parametrize("case", FORWARD, ids=str)
def test_fill_tail_fills_after_a_decided_eos_at_once(case: Case, walk_case: WalkCase, wordy: Denoiser) -> None:
    walk = walk_case(under_smc(case), model=wordy, fill_tail=True)
    eos, mask, filled = wordy.vocab.eos, walk.mask, 0
    for step, event in enumerate(walk.steps):
        ancestors = event.get("ancestors", range(len(walk.replayed[0])))
        for row, canvas in enumerate(walk.replayed[step + 1]):
            first, before = walk.replayed[0][row], walk.replayed[step][ancestors[row]]
            tail = oracle.tail(first, canvas, mask, eos)
            assert all(canvas[column] != mask for column in tail)
            fresh = [c for c in tail if before[c] == mask and c not in oracle.tail(first, before, mask, eos)]
            filled += sum(canvas[c] == eos[0] for c in fresh)
            assert all(canvas[c] == before[c] for c in range(len(canvas)) if before[c] != mask)
    assert filled > 0 or walk.recipe.bound == 100.0  # everything in one step
    alone_equals_in_a_batch_in_any_order(walk)


TAILS = [
    *[(case, False) for case in SAMPLER_CASES],
    *[(case, True) for case in FORWARD if case.settings == samplers(case.sampler)[0]],
]


@pytest.mark.parametrize(("case", "fill"), TAILS, ids=str)
def test_skip_tail_leaves_the_tail_out_of_h(case: Case, fill: bool, walk_case: WalkCase, wordy: Denoiser) -> None:
    walk = walk_case(under_smc(case), model=wordy, skip_tail=True, fill_tail=fill)
    skipped = 0

    def counted(step: int, row: int, canvas: list[int]) -> list[int]:
        nonlocal skipped
        tail = oracle.tail(walk.replayed[0][row], canvas, walk.mask, wordy.vocab.eos)
        skipped += any(canvas[column] == walk.mask for column in tail)
        return [c for c, token in enumerate(canvas) if token == walk.mask and c not in tail]

    check_entropies(walk, counted)
    assert fill or skipped > 0 or walk.recipe.bound == 100.0  # everything in one step
    check_paths(walk)


# --- how path entropy is measured ------------------------------------------------------------------------------------


def check_paths(walk: Walk) -> None:
    everyone = [particle for result in walk.results for particle in result.particles]
    for particle, path in zip(everyone, oracle.paths(walk.events, walk.replayed, walk.mask), strict=True):
        assert particle.path_entropy == pytest.approx(oracle.mean(path), abs=1e-9)


@pytest.mark.parametrize("case", BLOCK_CASES, ids=str)
def test_block_scope(case: Case, walk_case: WalkCase) -> None:
    """h over the masks up to the end of the current block."""
    walk = walk_case(under_smc(case), scope="block")
    sampler = walk.recipe.build_sampler()

    def counted(step: int, row: int, canvas: list[int]) -> list[int]:
        inside = oracle.region(sampler, walk.replayed[0][row], canvas, step, walk.mask)
        return [column for column in inside if canvas[column] == walk.mask]

    check_entropies(walk, counted)
    check_paths(walk)
    alone_equals_in_a_batch_in_any_order(walk)


@pytest.mark.parametrize("case", BLOCK_CASES, ids=str)
def test_blocks_are_filled_from_left_to_right(case: Case, walk_case: WalkCase) -> None:
    walk = walk_case(under_smc(case), ban=("eos",))  # no text is over early
    sampler = walk.recipe.build_sampler()
    for step, event in enumerate(walk.steps):
        ancestors = event.get("ancestors", range(len(walk.replayed[0])))
        for row, column, _, _ in event["changes"]:
            before = walk.replayed[step][ancestors[row]]
            assert column in oracle.region(sampler, walk.replayed[0][row], before, step, walk.mask)


# --- counting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SAMPLER_CASES, ids=str)
def test_fixed_counts_cost_the_same_with_and_without_resampling(
    case: Case, decode_case: Callable[..., list[Result]], background: Path
) -> None:
    """E-SMC makes as many evaluations as E-BoN, K times those of one path; guidance doubles them."""
    sampler = case.recipe(background).build_sampler()
    if adaptive(sampler) or (sampler.revises and (sampler.steps or 0) > 5):
        pytest.skip("whether a step changes anything depends on what is drawn")
    one = decode_case(case, [1, 0])
    free = decode_case(Case(case.sampler, "best-of-n", {**case.settings, "particles": 4}), [1, 0])
    tied = decode_case(Case(case.sampler, "smc", {**case.settings, **SMC, "every": 1}), [1, 0])
    guided = decode_case(Case(case.sampler, "smc", {**case.settings, **SMC, "every": 1}), [1, 0], guidance=1.0)
    for a, b, c, d in zip(one, free, tied, guided, strict=True):
        assert b.evaluations == c.evaluations == 4 * a.evaluations
        assert d.evaluations == 2 * c.evaluations
        assert a.calls == b.calls == c.calls == d.calls
        assert a.steps == b.steps == c.steps == d.steps


@pytest.mark.parametrize("sampler", ["uniform", "confidence", "entropy", "margin", "p2"])
def test_one_position_a_step_costs_one_evaluation_a_step(
    sampler: str, decode_case: Callable[..., list[Result]]
) -> None:
    for result, holes in zip(decode_case(Case(sampler, "smc", SMC)), (5, 4, 6), strict=True):
        assert result.calls == result.steps == holes
        assert result.evaluations == 4 * holes
