"""Laws of resampling: strength 0 is uniform, a large one keeps the best, twins part, the finished are left alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import torch

from unmask import SAMPLERS, SEARCHES, Denoiser, Table, decode_batch
from unmask.core.step import Moment
from unmask.core.walk import walk
from unmask.decoding.decode import prepare
from unmask.decoding.prompt import from_canvas
from unmask.errors import SettingError
from unmask.search import POTENTIALS, SCHEMES

from .cases import SAMPLER_CASES, SEEDS, SMC, Case, adaptive, canvases, names, samplers
from .conftest import Walk

FALSE_ALARM = 1e-6  # of each χ² test, over the choice of its seeds (which are fixed)
RESAMPLING = [case for case in names("float64", every=1) if SEARCHES[case.search]().resamples]
OF_ENTROPY = [name for name, one in POTENTIALS.items() if not one.since]  # whose best has the lowest h


def chi_square(observed: torch.Tensor) -> float:
    """The probability of counts at least this far from equal, if they are equal in truth."""
    expected = observed.sum() / observed.numel()
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((observed.numel() - 1) / 2).double(), statistic.double() / 2))


def all_ancestors(scheme: str, k: int, prompts: int) -> torch.Tensor:  # [resamplings * prompts, k]
    """Who came from whom at strength 0, over many prompts with their own seeds, as the trace has it."""
    joint = torch.rand((3,) * 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    model = Table(joint)
    settings = {"particles": k, "every": 1, "strength": 0.0, "scheme": scheme}
    recipe = Case("uniform", "smc", settings, "table").recipe(Path())
    events: list[dict] = []
    rows = [[model.vocab.mask] * 4] * prompts
    decode_batch(model, canvases=rows, recipe=recipe, seeds=range(prompts), on_event=events.append)
    found = [torch.tensor(event["ancestors"]).view(-1, k) for event in events if "ancestors" in event]
    assert len(found) == 3  # before steps 1, 2 and 3
    return torch.cat([rows - torch.arange(prompts)[:, None] * k for rows in found])


def test_strength_0_resamples_uniformly() -> None:
    ancestors = all_ancestors("multinomial", 4, 800)
    for slot in range(4):
        assert chi_square(ancestors[:, slot].bincount(minlength=4)) > FALSE_ALARM
    for a, b in combinations(range(4), 2):  # slots are independent of each other
        assert chi_square((ancestors[:, a] * 4 + ancestors[:, b]).bincount(minlength=16)) > FALSE_ALARM
    third = len(ancestors) // 3  # and steps of each other
    pairs = ancestors[:third] * 4 + ancestors[third : 2 * third]
    assert chi_square(pairs.flatten().bincount(minlength=16)) > FALSE_ALARM


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "multinomial"])
def test_strength_0_keeps_everyone_once_in_the_even_schemes(scheme: str) -> None:
    ancestors = all_ancestors(scheme, 5, 40)
    assert torch.equal(ancestors.sort(1).values, torch.arange(5).expand_as(ancestors))


@pytest.mark.parametrize(
    ("scheme", "potential"),
    [*[(name, "gibbs") for name in SCHEMES], *[("multinomial", name) for name in OF_ENTROPY if name != "gibbs"]],
)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_very_large_strength_keeps_the_argmin(
    sampler: str, scheme: str, potential: str, walk_case: Callable[..., Walk]
) -> None:
    how = {**SMC, "every": 1, "strength": 1e13, "scheme": scheme, "potential": potential}
    done = walk_case(Case(sampler, "smc", {**samplers(sampler)[0], **how}))
    assert_lowest(done, 1)


@pytest.mark.parametrize("strength", [1e100, 1e308])
@pytest.mark.parametrize("potential", OF_ENTROPY)
def test_a_strength_is_obeyed_or_refused(potential: str, strength: float, walk_case: Callable[..., Walk]) -> None:
    case = Case("uniform", "smc", {**SMC, "every": 1, "strength": strength, "potential": potential})
    try:
        done = walk_case(case)
    except SettingError:
        return
    assert_lowest(done, 1)


@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [(10, 3, [3, 6, 9]), (9, 3, [3, 6]), (12, None, [3, 6, 9]), (3, None, [1, 2]), (4, 9, [])],
)
def test_resampling_comes_after_every_so_many_steps_and_not_at_the_end(
    steps: int, every: int | None, expected: list[int], walk_case: Callable[..., Walk], models: dict[str, Denoiser]
) -> None:
    """At n = Δ, 2Δ, … < N; a quarter of the steps by default."""
    how = {"particles": 3, **({"every": every} if every else {})}
    rows = [[4, *[models["float64"].vocab.mask] * steps]]
    done = walk_case(Case("uniform", "smc", how), rows=rows)
    assert [event["step"] for event in done.steps if "ancestors" in event] == expected


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("search", "beams"), [("greedy", 1), ("beam", 2)])
def test_greedy_and_beam_keep_the_lowest(sampler: str, search: str, beams: int, walk_case: Callable[..., Walk]) -> None:
    how = {"candidates": 4} if search == "greedy" else {"candidates": 3, "beams": beams}
    for parents in assert_lowest(walk_case(Case(sampler, search, {**samplers(sampler)[0], **how})), beams):
        assert len(set(parents)) == min(beams, len(parents))


def assert_lowest(done: Walk, best: int) -> list[list[int]]:
    """All unfinished particles come from the `best` lowest state entropies of their prompt (twins tie); who did."""
    found = []
    for event in done.steps:
        for first in range(0, len(event["h"]) if "ancestors" in event else 0, done.k):
            rows = [row for row in range(first, first + done.k) if event["h"][row] is not None]
            if len(rows) < 2:
                continue
            parents = [event["ancestors"][row] for row in rows]
            lowest = sorted(event["h"][row] for row in rows)[: min(best, len(rows))]
            assert max(event["h"][parent] for parent in parents) <= lowest[-1] + 1e-9
            found.append(parents)
    assert found
    return found


# --- twins -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_twins_part_at_the_next_step(sampler: str, walk_case: Callable[..., Walk], models: dict[str, Denoiser]) -> None:
    """Rows that became equal in a resampling and have something left to decide differ after the same step."""
    mask = models["float64"].vocab.mask
    how = {"particles": 6, "every": 1, "strength": 1e13}
    rows = [[seed % 30, *[mask] * 7] for seed in range(4)]
    done = walk_case(Case(sampler, "smc", {**samplers(sampler)[0], **how}), rows=rows, seeds=list(range(4)))
    parted = []
    for step, event in enumerate(done.steps):
        before, after = done.replayed[step], done.replayed[step + 1]
        pairs = [
            (a, b)
            for first in range(0, len(after) if "ancestors" in event else 0, done.k)
            for a, b in combinations(range(first, first + done.k), 2)
            if event["ancestors"][a] == event["ancestors"][b]
        ]
        moved = {row for row, *_ in event["changes"]}
        parents = {a: before[event["ancestors"][a]] for a, _ in pairs}
        parted += [after[a] != after[b] for a, b in pairs if {a, b} & moved and parents[a].count(mask) > 1]
    assert len(parted) > 30
    share = sum(parted) / len(parted)
    assert share > (0.9 if sampler == "uniform" else 0.5), share


def moments(case: Case, models: dict[str, Denoiser], background: Path) -> list[Moment]:
    model, recipe = models[case.model], case.recipe(background)
    rows = [from_canvas(model, row) for row in canvases(model)]
    return list(walk(*prepare(model, rows, SEEDS, recipe)))


@pytest.mark.parametrize("case", RESAMPLING, ids=str)
def test_slots_and_keys_stay_in_place(case: Case, models: dict[str, Denoiser], background: Path) -> None:
    copied = False
    for moment in moments(case, models, background):
        state, k = moment.state, moment.state.particles
        assert state.slot.tolist() == list(range(k)) * len(SEEDS)
        assert state.key.tolist() == [seed for seed in SEEDS for _ in range(k)]
        if moment.resampled is not None:
            copied |= moment.resampled.ancestors.tolist() != list(range(len(state.slot)))
    assert copied


@pytest.mark.parametrize("case", SAMPLER_CASES, ids=str)
def test_time_stays_between_clean_and_all_masked(case: Case, models: dict[str, Denoiser], background: Path) -> None:
    assert all(0 <= float(time) <= 1 for m in moments(case, models, background) for time in m.state.time)


# --- dice ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "how"),
    [
        ("uniform", {}),
        ("ancestral", {}),
        ("confidence", {"select_temperature": 1e6}),
        ("dream", {"rule": "maskgit_plus", "select_temperature": 1e6, "steps": 2}),
    ],
)
def test_which_position_comes_first_says_nothing_about_its_token(sampler: str, how: dict[str, object]) -> None:
    """On a flat table, in the first step that decides any: even tokens at every position, and even positions."""
    model, prompts, events = Table(torch.ones((4,) * 4)), 2000, list[dict]()
    recipe = Case(sampler, "vanilla", how, "table").recipe(Path())
    decode_batch(model, canvases=[[4] * 4] * prompts, recipe=recipe, seeds=range(prompts), on_event=events.append)
    first = next(event["changes"] for event in events if event.get("changes"))
    columns = sorted({column for _, column, _, _ in first})  # the paper's selection only takes the best two
    assert len(first) >= 1000 and len(columns) >= 2
    pairs = torch.tensor([4 * columns.index(column) + token for _, column, token, _ in first])
    assert chi_square(pairs.bincount(minlength=4 * len(columns))) > FALSE_ALARM


# --- finished particles ----------------------------------------------------------------------------------------------

ADAPTIVE = [
    Case(name, search, {**how, **more})
    for name in SAMPLERS
    for how in samplers(name)
    if name != "pc" and "edit_threshold" not in how  # which goes on after the last mask
    if adaptive(SAMPLERS[name](**{k: v for k, v in how.items() if k != "temperature"}))
    for search, more in (("smc", {**SMC, "every": 1}), ("greedy", {"candidates": 4}))
]


@pytest.mark.parametrize("case", ADAPTIVE, ids=str)
def test_a_finished_particle_is_neither_replaced_nor_copied(case: Case, walk_case: Callable[..., Walk]) -> None:
    done = walk_case(case)
    for step, event in enumerate(done.steps):
        for row in range(len(done.replayed[0])):
            if done.masks(step, row) == 0:
                ancestors = event.get("ancestors", list(range(len(done.replayed[0]))))
                assert ancestors[row] == row and ancestors.count(row) == 1
                assert done.replayed[step + 1][row] == done.replayed[step][row] == done.replayed[-1][row]
                assert event["h"][row] is None


def test_particles_do_finish_at_different_steps(walk_case: Callable[..., Walk]) -> None:
    """Otherwise the law above would say nothing: some finish while two or more of their prompt are resampled."""
    mixed = 0
    for case in ADAPTIVE:
        done = walk_case(case)
        for step, event in enumerate(done.steps):
            for first in range(0, len(done.replayed[0]) if "ancestors" in event else 0, done.k):
                finished = sum(done.masks(step, row) == 0 for row in range(first, first + done.k))
                mixed += 1 <= finished <= done.k - 2
    assert mixed >= 10
