"""The law of a walk under a constraint, and the weights that make it the model's law given the constraint.

One position a step, in a random order, at temperature 1: with A(z, i) the tokens at position i that leave the canvas z
completable and Z(z, i) their probability under the model, the token has the law p(x | z) / Z(z, i) on A(z, i). A path
has the product; the law of its text is the sum over orders. The product of the Z along a path is its weight: weighted
by it, texts have the law p(x) / p(match) of the model given the constraint, and the mean weight is p(match).
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict

import oracle as ideal
import pytest
import torch
from oracle import Law, Oracle, Tokens

from unmask import decode_batch
from unmask.core.resampling import Search
from unmask.core.walk import walk
from unmask.decoding.decode import prepare
from unmask.decoding.form import Form, form
from unmask.decoding.prompt import from_canvas
from unmask.decoding.recipe import Recipe

ORACLE = Oracle(ideal.random_joint(3, 4, seed=4, sharpness=1.5))  # 81 sequences over 0, 1, 2
PATTERN = "0*1(2|0)+|21*"
MATCHING = {z for z in itertools.product(range(3), repeat=4) if re.fullmatch(PATTERN, "".join(map(str, z)))}


def made(pattern: str = PATTERN) -> Form:
    found = form(matches=pattern)
    assert found is not None
    return found


def allowed(z: Tokens, place: int) -> list[int]:
    """By trying all completions."""
    fits = [one for one in MATCHING if all(b in (a, 3) for a, b in zip(one, z, strict=True))]
    return sorted({one[place] for one in fits})


def enumerated() -> tuple[Law, Law]:
    """The law of the texts, and the same with each path times its weight."""
    law: Law = defaultdict(float)
    weighted: Law = defaultdict(float)

    def follow(z: Tokens, chance: float, weight: float) -> None:
        places = ORACLE.masked(z)
        if not places:
            law[z] += chance
            weighted[z] += chance * weight
            return
        for place in places:
            p, some = ORACLE.conditionals(z)[place], allowed(z, place)
            mass = sum(p[token] for token in some)
            for token in some:
                after = tuple(token if i == place else old for i, old in enumerate(z))
                follow(after, chance * p[token] / mass / len(places), weight * mass)

    follow(ORACLE.blank, 1.0, 1.0)
    return law, weighted


LAW, WEIGHTED = enumerated()
TRUE = {z: p for z, p in ORACLE.exact().items() if z in MATCHING}
MASS = sum(TRUE.values())


def test_weights_make_it_the_model_given_the_constraint() -> None:
    assert sum(LAW.values()) == pytest.approx(1)
    for z in MATCHING:
        assert WEIGHTED[z] == pytest.approx(TRUE[z], rel=1e-9)
    assert sum(WEIGHTED.values()) == pytest.approx(MASS, rel=1e-9)


def test_without_weights_it_is_not() -> None:
    apart = sum(abs(LAW[z] - TRUE[z] / MASS) for z in MATCHING) / 2
    assert apart > 0.02  # total variation; docs/guide/structured.md says that it is another law


def states(sampler: str, rows: int, **more: object) -> list[tuple[Tokens, float]]:
    """Texts of a real walk, each with its log-weight."""
    recipe = Recipe(sampler=sampler, temperature=1.0, length=4, **more)  # type: ignore[arg-type]
    table = ORACLE.table
    canvases = [from_canvas(table, [3] * 4)] * rows
    denoiser, state, chosen, search, rules = prepare(table, canvases, list(range(rows)), recipe, made())
    for moment in walk(denoiser, state, chosen, search, rules):
        state = moment.state
    return [(tuple(z), w) for z, w in zip(state.tokens.tolist(), state.token_weight.sum(1).tolist(), strict=True)]


def test_a_walk_has_this_law() -> None:
    rows = 8_000
    found = states("uniform", rows, steps=4)
    counts: dict[Tokens, int] = defaultdict(int)
    for z, _ in found:
        counts[z] += 1
    assert set(counts) <= MATCHING
    for z in MATCHING:
        assert abs(counts[z] - rows * LAW[z]) < ideal.SIGMAS * math.sqrt(rows * LAW[z] * (1 - LAW[z])) + 1
    weights = torch.tensor([w for _, w in found], dtype=torch.float64).exp()
    for z in MATCHING:  # weighted counts estimate the model's own probability of each text
        own = weights * torch.tensor([one == z for one, _ in found])
        assert abs(float(own.mean()) - TRUE[z]) < ideal.SIGMAS * float(own.std()) / math.sqrt(rows) + 1e-12
    assert abs(float(weights.mean()) - MASS) < ideal.SIGMAS * float(weights.std()) / math.sqrt(rows)


def test_weights_of_real_paths_are_the_enumerated_ones() -> None:
    """Along each path, from its trace."""
    events: list[dict[str, object]] = []
    results = decode_batch(
        ORACLE.table,
        canvases=[[3] * 4] * 20,
        form=made(),
        recipe=Recipe("uniform", temperature=1.0),
        on_event=events.append,
    )
    paths = dict.fromkeys(range(20), (ORACLE.blank, 0.0))
    for event in events:
        for row, column, token, _ in event.get("changes", []) if event["event"] == "step" else []:  # type: ignore[union-attr, attr-defined]
            z, weight = paths[row]
            p = ORACLE.conditionals(z)[column]
            weight += math.log(sum(p[one] for one in allowed(z, column)))
            paths[row] = (tuple(token if i == column else old for i, old in enumerate(z)), weight)
    recipe = Recipe("uniform", temperature=1.0)
    rows = [from_canvas(ORACLE.table, [3] * 4)] * 20
    denoiser, state, sampler, search, rules = prepare(ORACLE.table, rows, list(range(20)), recipe, made())
    for moment in walk(denoiser, state, sampler, search, rules):
        state = moment.state
    for row, (z, weight) in paths.items():
        assert tuple(results[row].tokens) == z == tuple(state.tokens[row].tolist())
        assert float(state.token_weight[row].sum()) == pytest.approx(weight, abs=1e-9)


@pytest.mark.parametrize("scheme", ["multinomial", "systematic"])
def test_resampling_by_it_estimates_the_probability_of_a_match(scheme: str) -> None:
    """exp(log_evidence) times the mean of the weights since the last resampling is unbiased for p(match)."""
    rows = 1_500
    recipe = Recipe("uniform", "smc", temperature=1.0, particles=3, every=1, strength=1.0)
    recipe = recipe.replace(potential="constraint", scheme=scheme)
    canvases = [from_canvas(ORACLE.table, [3] * 4)] * rows
    denoiser, state, sampler, search, rules = prepare(ORACLE.table, canvases, list(range(rows)), recipe, made())
    assert isinstance(search, Search)
    evidence = torch.zeros(rows, dtype=torch.float64)
    for moment in walk(denoiser, state, sampler, search, rules):
        state = moment.state
        if moment.resampled is not None:
            evidence = evidence + moment.resampled.log_evidence
    rest = (state.log_weight + state.token_weight.sum(1) - state.score).view(-1, 3).exp().mean(1)
    estimate = evidence.exp() * rest
    assert abs(float(estimate.mean()) - MASS) < ideal.SIGMAS * float(estimate.std()) / math.sqrt(rows)
