"""Counts, scores and blocks against worked examples."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask import SAMPLERS
from unmask.core.beliefs import Beliefs, Drawn
from unmask.core.sampler import Ranking, masked_share, rank
from unmask.core.state import State, Vocab, begin
from unmask.decoding.background import Background
from unmask.samplers import P2, DraftRefine, Reveal, StepInput, blocks, counts, scores

M = 99
VOCAB = Vocab(mask=M)
LLADA_TOKENS = 1_677_991_882  # tokens behind LLaDA's public background table


def fresh(length: int, steps: int | None = None, rows: int = 1) -> State:
    tokens = torch.full((rows, length), M)
    on = torch.ones_like(tokens, dtype=torch.bool)
    return begin(tokens, on, on, torch.arange(rows), VOCAB, 1, steps)


def turn(
    state: State,
    step: int = 0,
    *,
    entropy: Tensor | None = None,
    standing: Tensor | None = None,
    raw: Tensor | None = None,
    token: Tensor | None = None,
    late: tuple[int, ...] = (),
) -> StepInput:
    """A turn with made-up beliefs: `raw` holds log-probabilities of the proposals."""
    zero = torch.zeros(state.tokens.shape, dtype=torch.float64)
    entropy, standing, raw = (zero if x is None else x.double() for x in (entropy, standing, raw))
    token = torch.ones_like(state.tokens) if token is None else token
    beliefs = Beliefs(entropy, zero, raw, zero, token, standing)
    return StepInput(state, step, beliefs, lambda where: Drawn(token, raw, raw, entropy, raw, zero), late)


def ranking_of(numbers: list[float]) -> tuple[Ranking, Tensor]:
    row = torch.tensor([numbers], dtype=torch.float64)
    return rank(row, torch.ones_like(row, dtype=torch.bool)), row


def taken(count: counts.Count, numbers: list[float]) -> set[int]:
    """The columns that a count takes from these scores."""
    ranking, row = ranking_of(numbers)
    state = fresh(len(numbers))
    many = count(turn(state), ranking, scores.Scored(row, row), torch.ones(1, dtype=torch.int64))
    return set(ranking.first(many)[0].nonzero()[:, 0].tolist())


# --- ranking ---------------------------------------------------------------------------------------------------------


def test_rank_is_stable_and_leaves_others_out() -> None:
    order = torch.tensor([[1.0, 3.0, 3.0, -math.inf, 2.0, 9.0]])
    candidates = torch.tensor([[True, True, True, True, True, False]])
    ranking = rank(order, candidates)
    assert ranking.columns[0].tolist() == [1, 2, 4, 0, 3, 5]
    assert ranking.candidates.tolist() == [5]
    assert ranking.first(torch.tensor([3]))[0].tolist() == [False, True, True, False, True, False]
    assert ranking.first(torch.tensor([99])).sum() == 5
    assert not ranking.first(torch.tensor([0])).any()
    assert ranking.sorted(order)[0].tolist()[:3] == [3.0, 3.0, 2.0]


def test_rank_puts_late_candidates_after_all_others() -> None:
    order, on = torch.tensor([[5.0, 1.0, 4.0, 2.0]]), torch.ones(1, 4, dtype=torch.bool)
    late = torch.tensor([[True, False, True, False]])
    assert rank(order, on, late).columns[0].tolist() == [3, 1, 0, 2]


# --- counts ----------------------------------------------------------------------------------------------------------


def quotas(masked: int, steps: int) -> list[int]:
    found = []
    for left in range(steps, 0, -1):
        ranking, row = ranking_of([0.0] * max(masked, 1))
        ranking = dataclasses.replace(ranking, candidates=torch.tensor([masked]))
        found.append(int(counts.quota(turn(fresh(1)), ranking, scores.Scored(row, row), torch.tensor([left]))))
        masked -= found[-1]
    assert masked == 0
    return found


@pytest.mark.parametrize(
    ("masked", "steps", "expected"),
    [
        (10, 4, [3, 3, 2, 2]),
        (3, 5, [1, 1, 1, 0, 0]),
        (8, 8, [1] * 8),
        (7, 1, [7]),
    ],
)
def test_quota(masked: int, steps: int, expected: list[int]) -> None:
    assert quotas(masked, steps) == expected


def test_quota_is_an_even_share_with_the_remainder_early() -> None:
    for masked in range(1, 12):
        for steps in range(1, 14):
            share, extra = divmod(masked, steps)
            assert quotas(masked, steps) == [share + 1] * extra + [share] * (steps - extra)


def dream_counts(length: int, steps: int, eps: float = 1e-3) -> list[int]:
    state, left, found = fresh(1, steps), length, []
    for step in range(steps):
        ranking, row = ranking_of([0.0])
        ranking = dataclasses.replace(ranking, candidates=torch.tensor([left]))
        count = counts.DreamSchedule(eps)(
            turn(state, step), ranking, scores.Scored(row, row), torch.tensor([steps - step])
        )
        found.append(int(count))
        left -= found[-1]
    assert left == 0
    return found


def test_dream_counts() -> None:
    assert dream_counts(128, 128) == [0, *[1] * 126, 2]
    assert dream_counts(128, 64) == [1, *[2] * 62, 3]
    hundred = dream_counts(128, 100)
    assert hundred[0] == 1 and hundred[-1] == 3


@pytest.mark.parametrize("length", [128, 256, 1024])
def test_p2_masks_left_after_each_step(length: int) -> None:
    """L = N: N-1, N-2, …, 0, with the public codes' float32 product and floor."""
    state, sampler, left = fresh(length), P2(), []
    for step in range(length):
        state = state.replace(tokens=sampler.act(turn(state, step)).tokens)
        left.append(int(state.masked.sum()))
    assert left == list(range(length - 1, -1, -1))
    assert bool(sampler.done(state, length).all())


def test_eb_takes_what_the_bound_allows() -> None:
    """Sorted order [1, 2, 5, 3, 4, 0]; summed entropy less its maximum: 0, 0, .004, .011, .031, .331."""
    entropies = [0.50, 0.0, 0.004, 0.02, 0.30, 0.007]
    state = fresh(6)
    at = turn(state, entropy=torch.tensor([entropies]))
    for bound, expected in [(0.0, {1, 2}), (0.01, {1, 2, 5}), (0.1, {1, 2, 5, 3, 4}), (0.5, set(range(6)))]:
        sampler = Reveal(scores.by_entropy, counts.EntropyBound(bound), scheduled=False)
        after = sampler.act(at).tokens
        assert set((after != M).nonzero()[:, 1].tolist()) == expected
    scored = scores.by_entropy(at, state.masked, state.rank)
    assert rank(scored.order, state.masked).columns[0].tolist() == [1, 2, 5, 3, 4, 0]


def test_eb_takes_at_least_one() -> None:
    sampler = Reveal(scores.by_entropy, counts.EntropyBound(0.0), scheduled=False)
    after = sampler.act(turn(fresh(3), entropy=torch.tensor([[2.0, 1.0, 1.5]]))).tokens
    assert after.tolist() == [[M, 1, M]]


def test_eb_uses_a_true_running_maximum() -> None:
    """In another order than that of the entropies the maximum may stand anywhere in the prefix."""
    order, entropy = torch.tensor([[4.0, 3.0, 2.0, 1.0]]), torch.tensor([[0.5, 0.1, 0.1, 0.1]])
    ranking = rank(order, torch.ones(1, 4, dtype=torch.bool))
    # sums .5 .6 .7 .8, less the maximum .5: 0 .1 .2 .3
    for bound, expected in [(0.0, 1), (0.15, 2), (0.25, 3), (0.35, 4)]:
        count = counts.EntropyBound(bound)(
            turn(fresh(4), entropy=entropy), ranking, scores.Scored(order, order), torch.ones(1, dtype=torch.int64)
        )
        assert int(count) == expected


def test_fast_dllm_threshold() -> None:
    assert taken(counts.Threshold(0.9), [0.97, 0.5, 0.91, 0.9, 0.899]) == {0, 2, 3}
    assert taken(counts.Threshold(0.9), [0.3, 0.2]) == {0}
    assert taken(counts.Threshold(0.0), [0.3, 0.2]) == {0, 1}


def test_fast_dllm_factor() -> None:
    """Factor 1: thresholds -1, .6667, .75, .8; the scan stops at the first failure, except at the last candidate."""
    sure = [0.9] * 2  # two more candidates behind, so that the last-candidate rule does not speak
    low = [0.01, 0.01]
    assert taken(counts.Factor(1.0), [0.5, *low, *low]) == {0}
    assert taken(counts.Factor(1.0), [0.7, 0.6667, *low, *low]) == {0, 1}
    assert taken(counts.Factor(1.0), [0.7, 0.6666, *low, *low]) == {0}
    assert taken(counts.Factor(1.0), [0.8, 0.8, 0.75, *low, *low]) == {0, 1, 2}
    assert taken(counts.Factor(1.0), [0.8, 0.8, 0.7499, *low, *low]) == {0, 1}
    assert taken(counts.Factor(1.0), [0.8, 0.8, 0.8, 0.8, *low, *low]) == {0, 1, 2, 3}
    assert taken(counts.Factor(1.0), [0.79, 0.79, 0.79, 0.79, *low, *low]) == {0, 1, 2}
    assert taken(counts.Factor(1.0), [0.4, 0.3]) == {0, 1}  # a failure at the last candidate is forgiven
    assert taken(counts.Factor(1.0), [0.4, 0.3, 0.2]) == {0}
    assert taken(counts.Factor(1.0), sure) == {0, 1}
    assert taken(counts.Factor(1.0), [0.4]) == {0}


def decided_by_step(sampler: Any, length: int, steps: int | None = None, **beliefs: Tensor) -> list[int]:
    """How many positions each step decides, until done."""
    state, found = fresh(length, steps), []
    for step in range(1000):
        if bool(sampler.done(state, step).all()):
            assert not state.masked.any()
            return found
        before = int(state.masked.sum())
        state = state.replace(tokens=sampler.act(turn(state, step, **beliefs)).tokens)
        found.append(before - int(state.masked.sum()))
    raise AssertionError("never done")


def test_fast_dllm_quota_leaves_empty_steps_out() -> None:
    """Two blocks of 4 with 3 steps each: 2, 1, 1; with 8 steps each one position a step and no empty step."""
    assert decided_by_step(SAMPLERS["fast-dllm"](steps=6, block_length=4), 8, 6) == [2, 1, 1, 2, 1, 1]
    assert decided_by_step(SAMPLERS["fast-dllm"](steps=16, block_length=4), 8, 16) == [1] * 8
    assert decided_by_step(SAMPLERS["fast-dllm"](steps=4, block_length=4), 10, 4) == [4, 4, 2]


def test_semi_ar_shares_the_steps_among_blocks() -> None:
    assert decided_by_step(SAMPLERS["semi-ar"](steps=4, block_length=4), 8, 4) == [2, 2, 2, 2]
    assert decided_by_step(SAMPLERS["semi-ar"](steps=5, block_length=4), 8, 5) == [2, 1, 1, 2, 2]
    assert decided_by_step(SAMPLERS["semi-ar"](block_length=3), 8) == [1] * 8


def test_examine_carries_what_fails() -> None:
    """Dream's confidence threshold: planned shares of 2 are examined, one passes in each, the rest goes on after."""
    low = torch.full((1, 6), math.log(0.5))
    sampler = SAMPLERS["dream"](rule="confidence_threshold", threshold=0.9, steps=3)
    assert decided_by_step(sampler, 6, 3, raw=low) == [1, 1, 1, 1, 1, 1]
    assert decided_by_step(sampler, 6, 3, raw=torch.zeros(1, 6)) == [2, 2, 2]


def test_binomial_frees_each_position_by_itself() -> None:
    """Frequency of the first step is (1 - eps)/N per position, and the last step frees all that is left."""
    state, at = fresh(50, 5, rows=400), None
    at = turn(state)
    scored = scores.by_dice(at, state.masked, state.rank)
    ranking = rank(scored.order, state.masked)
    freed = counts.Binomial(1e-5)(at, ranking, scored, torch.full((400,), 5)).double()
    n, p = 400 * 50, (1 - 1e-5) / 5
    assert abs(float(freed.sum()) - n * p) < 5 * math.sqrt(n * p * (1 - p))
    assert float(freed.var()) == pytest.approx(50 * p * (1 - p), rel=0.3)
    assert counts.Binomial(1e-5)(at, ranking, scored, torch.ones(400, dtype=torch.int64)).tolist() == [50] * 400


# --- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "seen", "total", "offset", "expected"),
    [
        (0.9, 45, 1000, 0, 2.790983),
        (0.9, 1, 10**6, 3, 4.723666),
        (0.6, None, LLADA_TOKENS, 7, 1.737739),
        (0.4, None, LLADA_TOKENS, 7, 1.407972),
    ],
)
def test_pc_score(p: float, seen: int | None, total: int, offset: int, expected: float) -> None:
    score = scores.Positional(Background({1: seen} if seen else {2: 1}, total), decay=0.25, cap=10.0)
    state = fresh(1)
    scored = score(turn(state, raw=torch.tensor([[math.log(p)]])), state.masked, torch.tensor([[offset]]))
    assert float(scored.raw) == pytest.approx(expected, abs=2e-6)
    assert float(scored.order) == pytest.approx(math.log(expected), abs=1e-6)


def test_pc_orders_in_log_space() -> None:
    """The published product is 0 after 416 positions; the order goes on."""
    state = fresh(2000)
    score = scores.Positional(Background({2: 1}, 1000), decay=0.25, cap=10.0)
    scored = score(turn(state), state.masked, state.rank)
    assert rank(scored.order, state.masked).columns[0].tolist() == list(range(2000))


def test_pc_background() -> None:
    """Frequencies of the public LLaDA table: -ln f of the newline 3.0902, of an unseen id 20.2558."""
    table = Background({198: round(0.0454936 * LLADA_TOKENS)}, LLADA_TOKENS)
    surprise = -torch.log(table.frequency(torch.tensor([198, 0, 10**6])).double() + 1e-9)
    assert surprise.tolist() == pytest.approx([3.0902, 20.2558, 20.2558], abs=1e-4)


def test_margin_and_confidence_scores() -> None:
    state = fresh(2)
    zero, two = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.int64)
    raw = Beliefs(zero, zero, torch.tensor([[0.6, 0.5]]).log(), torch.tensor([[0.3, 0.1]]).log(), two, zero)
    drawn = Drawn(two, torch.tensor([[0.2, 0.5]]).log(), zero, zero, zero, zero)
    at = StepInput(state, 0, raw, lambda where: drawn)
    assert scores.by_margin(at, state.masked, state.rank).raw[0].tolist() == pytest.approx([0.3, 0.4])
    assert scores.by_confidence(at, state.masked, state.rank).raw[0].tolist() == pytest.approx([0.2, 0.5])


# --- selection temperature -------------------------------------------------------------------------------------------


def test_selection_temperature_is_a_draw_among_twice_as_many() -> None:
    """k = 1: the best two positions, with the probabilities of softmax(score / T); χ² at 1e-6."""
    n, temperature = 20_000, 0.1
    state = fresh(4, rows=n)
    confidence = torch.tensor([0.5, 0.9, 0.1, 0.85]).expand(n, -1)
    sampler = Reveal(scores.by_confidence, counts.quota, select_temperature=temperature)
    chosen = (sampler.act(turn(state, raw=confidence.log())).tokens != M).double()
    assert bool((chosen.sum(1) == 1).all())
    seen = chosen.sum(0)
    assert seen[0] == seen[2] == 0
    expected = n * torch.tensor([0.9, 0.85]).double().div(temperature).softmax(0)
    statistic = ((seen[[1, 3]] - expected) ** 2 / expected).sum()
    assert float(torch.special.gammaincc(torch.tensor(0.5).double(), statistic / 2)) > 1e-6


def test_selection_without_replacement() -> None:
    """k = 2 of 4: each ordered pair as torch.multinomial draws it, first by p, then by p of the rest."""
    n = 20_000
    state = fresh(4, steps=2, rows=n)
    confidence = torch.tensor([0.5, 0.3, 0.2, 0.4])
    sampler = Reveal(scores.by_confidence, counts.quota, select_temperature=0.2)
    chosen = sampler.act(turn(state, raw=confidence.expand(n, -1).log())).tokens != M
    assert bool((chosen.sum(1) == 2).all())
    p = confidence.double().div(0.2).softmax(0).tolist()
    pairs = [(a, b) for a in range(4) for b in range(a)]
    expected = torch.tensor([n * (p[a] * p[b] / (1 - p[a]) + p[b] * p[a] / (1 - p[b])) for a, b in pairs])
    seen = torch.tensor([float((chosen[:, a] & chosen[:, b]).sum()) for a, b in pairs])
    statistic = ((seen - expected) ** 2 / expected).sum()
    assert float(torch.special.gammaincc(torch.tensor(2.5).double(), statistic.double() / 2)) > 1e-6


# --- samplers that revise --------------------------------------------------------------------------------------------


def test_p2_masks_the_least_certain_again() -> None:
    """Four positions, four steps; at step 1 two are kept, whichever they are."""
    state = fresh(4).replace(tokens=torch.tensor([[7, M, M, M]]))
    doubt = torch.tensor([[-3.0, -0.1, -2.0, -1.0]])
    assert P2().act(turn(state, 1, raw=doubt)).tokens.tolist() == [[M, 1, M, 1]]
    assert P2(eta=0.0).act(turn(state, 1, raw=doubt)).tokens.tolist() == [[7, 1, M, M]]
    assert P2(eta=2.0).act(turn(state, 1, raw=-torch.tensor([[0.6, 1.0, 2.0, 0.5]]))).tokens.tolist() == [[M, 1, M, 1]]


def test_p2_with_eta_0_never_reopens_even_where_all_are_certain() -> None:
    """A decided position on the right, all scores 0: the tie must not cost it its place."""
    state = fresh(4).replace(tokens=torch.tensor([[M, M, M, 7]]))
    after = P2(eta=0.0).act(turn(state, 1, raw=torch.zeros(1, 4))).tokens
    assert int(after[0, 3]) == 7 and int((after == M).sum()) == 2


def test_draft_refine_phases() -> None:
    """Draft 6 of 8, then two loops of masking one and deciding one, then the rest."""
    confidence = torch.arange(8, 0, -1).neg().double()[None]
    state, sampler, masks = fresh(8), DraftRefine(0.75, 1, 2), []
    for step in range(100):
        if bool(sampler.done(state, step).all()):
            break
        state = state.replace(tokens=sampler.act(turn(state, step, raw=confidence, standing=confidence)).tokens)
        masks.append(int(state.masked.sum()))
    assert masks == [7, 6, 5, 4, 3, 2, 3, 2, 3, 2, 1, 0]


def test_draft_refine_masks_the_least_certain_standing_token() -> None:
    state = fresh(4).replace(tokens=torch.tensor([[5, 6, 7, M]]))
    standing = torch.tensor([[-1.0, -3.0, -2.0, -9.0]])
    after = DraftRefine(0.75, 1, 1).act(turn(state, 3, standing=standing)).tokens
    assert after.tolist() == [[5, M, 7, M]]


# --- blocks and time -------------------------------------------------------------------------------------------------


def test_blocks_by_schedule() -> None:
    """3 blocks, 8 steps: 3, 3, 2."""
    state = fresh(9, 8)
    found = [blocks.current_by_schedule(state, step, torch.tensor([3])) for step in range(8)]
    assert [int(block) for block, _ in found] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert [int(left) for _, left in found] == [3, 2, 1, 3, 2, 1, 2, 1]


def test_blocks_count_open_positions() -> None:
    """Holes anywhere: given positions in between fill no block."""
    tokens = torch.tensor([[M, 5, M, M, 5, 5, M, M]])
    on = torch.ones_like(tokens, dtype=torch.bool)
    state = begin(tokens, tokens == M, on, torch.tensor([0]), VOCAB, 1)
    sampler = Reveal(scores.by_entropy, counts.quota, block_length=2)
    assert blocks.block_count(state, 2).tolist() == [3]
    assert sampler.region(state, 0)[0].nonzero()[:, 0].tolist() == [0, 2]
    assert sampler.region(state, 2)[0].nonzero()[:, 0].tolist() == [0, 2, 3, 6]
    free = Reveal(scores.by_entropy, counts.Threshold(0.5), scheduled=False, block_length=2)
    later = state.replace(tokens=torch.tensor([[1, 5, 1, M, 5, 5, M, M]]))
    assert blocks.current_by_mask(later, 2).tolist() == [1]
    assert free.region(later, 0)[0].nonzero()[:, 0].tolist() == [0, 2, 3, 6]


def test_time() -> None:
    state = fresh(4).replace(tokens=torch.tensor([[M, 1, M, 1]]))
    assert masked_share(state).tolist() == [0.5]
    grid = Reveal(scores.by_dice, counts.Binomial(1e-3), eps=1e-3)
    assert float(grid.time(fresh(4), 0)) == 1 and float(grid.time(fresh(4), 4)) == pytest.approx(1e-3)


def test_every_sampler_says_what_it_is() -> None:
    for name, build in SAMPLERS.items():
        assert build.__doc__ and build.__doc__.splitlines()[0].endswith("."), name


def test_counting_ranks_as_sorting_does(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    order = torch.randint(0, 5, (40, 9), generator=generator).double()  # many ties
    candidates = torch.rand(40, 9, generator=generator) < 0.6
    count = torch.randint(0, 12, (40,), generator=generator)
    one = rank(order, candidates, exact=True)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    other = rank(order, candidates, exact=True)
    assert type(one) is not type(other)
    assert torch.equal(one.columns, other.columns) and torch.equal(one.candidates, other.candidates)
    assert torch.equal(one.first(count), other.first(count))
