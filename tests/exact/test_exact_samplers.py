"""The law of every sampler whose randomness can be enumerated, against that enumeration, step by step.

For each case the states after every step (decided tokens and masks) are counted over n = 24,000 rows (8,000 seeds × 3
particles; 60,000 for `ancestral` at 3 steps), and Pearson's χ² test against the enumerated law must have a p-value
above 1e-6: a right sampler fails with probability 1e-6 a step, but seeds are fixed, so it passes always or never.
Power: the same test, over the same samples, must reject a neighbouring law.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import oracle as ideal
import pytest
import torch
from oracle import ALARM, Oracle, Pick, Tokens, chi_square, kernel, measures, ranked

from unmask import Recipe
from unmask.core.beliefs import DrawRule
from unmask.core.step import Rules
from unmask.decoding.decode import decode_batch
from unmask.samplers import SAMPLERS

THREE = Oracle(ideal.random_joint(3, 3, seed=1, sharpness=1.2))  # 27 sequences
FOUR = Oracle(ideal.random_joint(2, 4, seed=2, sharpness=1.2))  # 16 sequences, for blocks of 2 and pools of 4
PLAIN = {"temperature": 1.0}


@dataclass(frozen=True)
class Case:
    sampler: str
    settings: Mapping[str, object]
    law: Pick
    wrong: Pick  # a neighbour that must be rejected
    steps: int | None
    oracle: Oracle = field(default=THREE)
    how: Mapping[str, object] = field(default_factory=lambda: PLAIN)
    late: tuple[int, ...] = ()
    start: Tokens | None = None
    wrong_how: Mapping[str, object] | None = None
    prompts: int = 8_000


def ancestral(steps: int, wrong: Pick, **more: object) -> Case:
    return Case("ancestral", {"steps": steps}, ideal.mdlm(steps), wrong, steps, **more)  # type: ignore[arg-type]


def uniform(steps: int, other: int, **more: object) -> Case:
    pick, wrong = ideal.fixed_count(steps), ideal.fixed_count(other)
    return Case("uniform", {"steps": steps}, pick, wrong, steps, **more)  # type: ignore[arg-type]


SHARP = {"temperature": 0.7, "top_p": 0.6}
CASES = {
    # MDLM's kernel; a fixed count with as many steps is another law, and so is the product of marginals.
    "ancestral-3": ancestral(3, ideal.fixed_count(3), prompts=20_000),
    "ancestral-7": ancestral(7, ideal.fixed_count(7)),
    "ancestral-1": ancestral(1, ideal.mdlm(1), wrong_how={"temperature": 0.9}),
    "ancestral-eps": Case("ancestral", {"steps": 3, "eps": 0.2}, ideal.mdlm(3, 0.2), ideal.mdlm(3), 3),
    "ancestral-top-k": ancestral(3, ideal.mdlm(3), how={"top_k": 2}, wrong_how=PLAIN),
    "ancestral-late": Case("ancestral", {"steps": 3}, ideal.mdlm(3, late=(0,)), ideal.mdlm(3), 3, late=(0,)),
    "ancestral-infill": ancestral(3, ideal.fixed_count(3), start=(3, 1, 3)),
    # A fixed count.
    "uniform-1": uniform(1, 1, wrong_how={"temperature": 0.9}),
    "uniform-2": uniform(2, 3),
    "uniform-3": uniform(3, 2),
    "uniform-5": uniform(5, 2),
    "uniform-blocks": Case(
        "uniform",
        {"steps": 4, "block_length": 2},
        ideal.ranked_blocks(4, 2),
        ideal.fixed_count(4),
        4,
        FOUR,
    ),
    "uniform-infill": uniform(2, 1, start=(3, 3, 2)),
    # How a token is drawn.
    "uniform-cool": uniform(2, 2, how={"temperature": 0.7}, wrong_how=PLAIN),
    "uniform-top-k": uniform(2, 2, how={"top_k": 2}, wrong_how=PLAIN),
    "uniform-top-p": uniform(2, 2, how={"top_p": 0.6}, wrong_how=PLAIN),
    "uniform-cool-top-p": uniform(2, 2, how=SHARP, wrong_how={"top_p": 0.6}),
    "uniform-ban": uniform(2, 2, how={"ban": (1,)}, wrong_how=PLAIN),
    # Orders.
    "confidence-3": Case("confidence", {"steps": 3}, ranked(ideal.by_probability, 3), ideal.fixed_count(3), 3),
    "confidence-2": Case("confidence", {"steps": 2}, ranked(ideal.by_probability, 2), ideal.fixed_count(2), 2),
    "confidence-late": Case(
        "confidence",
        {"steps": 3},
        ideal.late_last(ideal.by_probability, 3, (0,)),
        ranked(ideal.by_probability, 3),
        3,
        late=(0,),
    ),
    "entropy-2": Case("entropy", {"steps": 2}, ranked(ideal.by_entropy, 2), ranked(ideal.by_margin, 2), 2),
    "margin-2": Case("margin", {"steps": 2}, ranked(ideal.by_margin, 2), ranked(ideal.by_probability, 2), 2),
    "semi-ar": Case(
        "semi-ar",
        {"steps": 4, "block_length": 2},
        ranked(ideal.by_probability, 4, block_length=2),
        ranked(ideal.by_probability, 4),
        4,
        FOUR,
    ),
    "p2": Case("p2", {"steps": 3}, ranked(ideal.by_probability, 3), ideal.fixed_count(3), 3),
    # The selection temperature: k of the best 2k by softmax(score / T) without replacement; at temperature 0 it is
    # the only randomness, and the states along the way tell the order.
    "select-1-of-2": Case(
        "confidence",
        {"steps": 3, "select_temperature": 0.1},
        ranked(ideal.by_probability, 3, 0.1),
        ranked(ideal.by_probability, 3, 0.12),
        3,
        how={"temperature": 0.0},
    ),
    "select-2-of-4": Case(
        "confidence",
        {"steps": 2, "select_temperature": 0.1},
        ranked(ideal.by_probability, 2, 0.1),
        ranked(ideal.by_probability, 2, 0.12),
        2,
        FOUR,
        how={"temperature": 0.0},
    ),
    "select-warm": Case(
        "confidence",
        {"steps": 3, "select_temperature": 0.3},
        ranked(ideal.by_probability, 3, 0.3),
        ranked(ideal.by_probability, 3),
        3,
    ),
    "select-entropy": Case(
        "entropy",
        {"steps": 4, "select_temperature": 0.1},
        ranked(ideal.by_entropy, 4, 0.1),
        ranked(ideal.by_entropy, 4),
        4,
        FOUR,
        how={"temperature": 0.0},
    ),
    # Dream: drawn from all candidates, by the tempered and filtered probability, its own counts.
    "dream": Case(
        "dream",
        {"steps": 3, "rule": "maskgit_plus", "select_temperature": 0.5},
        ideal.dream(ideal.by_shaped_probability(temperature=0.8, top_k=2), 3, 0.5),
        ideal.dream(ideal.by_probability, 3, 0.5),
        3,
        how={"temperature": 0.8, "top_k": 2},
    ),
    # No schedule.
    "eb": Case("eb", {"bound": 0.95}, ideal.entropy_bound(0.95), ideal.entropy_bound(0.5), None, FOUR),
    "eb-0": Case("eb", {"bound": 0.0}, ideal.entropy_bound(0.0), ideal.entropy_bound(0.95), None, FOUR),
    "fast-dllm": Case("fast-dllm", {"threshold": 0.5}, ideal.threshold(0.5), ideal.threshold(0.9), None),
}


def enumerated(case: Case, pick: Pick, how: Mapping[str, object]) -> list[dict[Tokens, float]]:
    oracle = case.oracle
    return measures(oracle, case.start or oracle.blank, kernel(oracle, pick, **how), case.steps)


@pytest.mark.parametrize("name", CASES)
def test_every_step_has_the_enumerated_law(name: str) -> None:
    case = CASES[name]
    laws = enumerated(case, case.law, case.how)
    sampler = SAMPLERS[case.sampler](**case.settings)
    rules = Rules(DrawRule(**{**PLAIN, **case.how}), late=case.late)  # type: ignore[arg-type]
    start = case.start or case.oracle.blank
    states = ideal.sample(case.oracle, sampler, rules, start, case.prompts, 3, seed=1_000_000)
    assert len(states) == len(laws)
    for step, (state, law) in enumerate(zip(states, laws, strict=True)):
        assert sum(law.values()) == pytest.approx(1, abs=1e-12)
        assert chi_square(state, law, case.oracle.size) > ALARM, f"step {step}"

    others = enumerated(case, case.wrong, case.wrong_how or case.how)
    chances = [chi_square(state, law, case.oracle.size) for state, law in zip(states, others, strict=False)]
    assert min(chances) < ALARM, f"no power: {chances}"


@pytest.mark.parametrize(
    ("sampler", "settings"), [("uniform", {}), ("entropy", {}), ("margin", {}), ("eb", {"bound": 0.0})]
)
@pytest.mark.parametrize("oracle", [THREE, FOUR], ids=["three", "four"])
def test_one_token_at_a_time_samples_the_joint(sampler: str, settings: dict[str, float], oracle: Oracle) -> None:
    """By the chain rule, for every order that does not depend on the proposals; n = 24,000, 1e-6."""
    rules = Rules(DrawRule(1.0))
    states = ideal.sample(oracle, SAMPLERS[sampler](**settings), rules, oracle.blank, 8_000, 3, seed=7)
    assert chi_square(states[-1], oracle.exact(), oracle.size) > ALARM


def test_an_order_that_looks_at_the_proposals_does_not() -> None:
    """Confidence at temperature 1 prefers probable proposals: the test above would see it."""
    states = ideal.sample(THREE, SAMPLERS["confidence"](), Rules(DrawRule(1.0)), THREE.blank, 8_000, 3, seed=7)
    assert chi_square(states[-1], THREE.exact(), THREE.size) < ALARM


def test_ancestral_through_decode() -> None:
    """The public function: 20,000 results of `decode_batch`, final sequences, 1e-6; a fixed count is rejected."""
    recipe = Recipe(sampler="ancestral", steps=3, temperature=1.0, length=3)
    results = decode_batch(THREE.table, [""] * 20_000, recipe=recipe, seeds=range(5_000_000, 5_020_000))
    samples = torch.tensor([result.tokens for result in results])
    law, wrong = (
        measures(THREE, THREE.blank, kernel(THREE, pick), 3)[-1] for pick in (ideal.mdlm(3), ideal.fixed_count(3))
    )
    assert chi_square(samples, law, THREE.size) > ALARM
    assert chi_square(samples, wrong, THREE.size) < ALARM


def test_the_tail_of_chi_square() -> None:
    """Tables: P(χ² > x) = 0.05 at 3.841 (1), 5.991 (2), 11.070 (5), 18.307 (10), and 1e-6 at 2 ln 10⁶ (2)."""
    for x, freedom in [(3.841459, 1), (5.991465, 2), (11.070498, 5), (18.307038, 10)]:
        assert ideal.chi_square_tail(x, freedom) == pytest.approx(0.05, rel=1e-5)
    assert ideal.chi_square_tail(2 * math.log(1e6), 2) == pytest.approx(1e-6)
    assert ideal.chi_square_tail(1e5, 80) == 0.0
