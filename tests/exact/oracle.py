"""A small table -> the exact law of any sampler and of any Feynman–Kac model on it, by enumeration; and the statistics.

Plain Python over every state, so that it shares no line with `unmask`. A state is a tuple of tokens, V is the mask.
A step proposes a token at every masked position, independently from the exact conditionals, and decides a subset of
them; a sampler is the law of that subset: `Pick`.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from unmask.core.state import State, begin
from unmask.core.step import Rules
from unmask.core.walk import walk
from unmask.models.made.table import Table
from unmask.samplers import Sampler
from unmask.search import Search

Tokens = tuple[int, ...]
Law = dict[Tokens, float]
Proposal = Mapping[int, int]  # masked position -> proposed token
Subset = frozenset[int]
Kernel = Callable[[Tokens, int], Law]  # state, step -> law of the next state


def joint_entropy(joint: Tensor) -> Tensor:
    """H_oracle: Shannon entropy in nats of a table of probabilities of any shape."""
    return torch.as_tensor(torch.special.entr(joint.double()).sum())


def marginal_entropies(joint: Tensor) -> Tensor:  # [V, …, V] with L axes -> [L], nats
    """The entropy of each position's marginal; their sum bounds `joint_entropy` (Proposition 1)."""
    axes = range(joint.dim())
    marginals = [joint.double().sum([a for a in axes if a != axis]) if joint.dim() > 1 else joint for axis in axes]
    return torch.stack([torch.special.entr(m.double()).sum() for m in marginals])


ALARM = 1e-6  # the false-alarm rate of every χ² test here
SIGMAS = 4.9  # and of every z-test: P(|N(0, 1)| > 4.9) = erfc(4.9/√2) = 9.6e-7


def random_joint(size: int, length: int, seed: int, sharpness: float = 1.0) -> Tensor:  # [V, …, V] float64
    """A positive table whose positions depend on each other: softmax of normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn((size,) * length, generator=generator, dtype=torch.float64)
    return logits.flatten().softmax(0).view(logits.shape)


def product_joint(size: int, length: int, seed: int) -> Tensor:  # [V, …, V] float64
    """A table of independent positions."""
    generator = torch.Generator().manual_seed(seed)
    joint = torch.ones((), dtype=torch.float64)
    for _ in range(length):
        joint = joint[..., None] * torch.randn(size, generator=generator, dtype=torch.float64).softmax(0)
    return joint


# --- states and beliefs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Oracle:
    """Exact conditionals by summing the table."""

    joint: Tensor
    _seen: dict[Tokens, dict[int, list[float]]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.joint.shape[0]

    @property
    def length(self) -> int:
        return self.joint.dim()

    @property
    def blank(self) -> Tokens:
        return (self.size,) * self.length

    @property
    def table(self) -> Table:
        return Table(self.joint)

    def masked(self, z: Tokens) -> list[int]:
        return [place for place, token in enumerate(z) if token == self.size]

    def slice(self, z: Tokens) -> np.ndarray:
        """The joint law of the masked positions given the others, one axis each."""
        part = self.joint.numpy()[tuple(slice(None) if token == self.size else token for token in z)]
        return part / part.sum()

    def conditionals(self, z: Tokens) -> dict[int, list[float]]:
        """For each masked position the law of its token given all decided ones."""
        if z not in self._seen:
            part, places = self.slice(z), self.masked(z)
            self._seen[z] = {
                place: part.sum(axis=tuple(a for a in range(part.ndim) if a != axis)).tolist()
                for axis, place in enumerate(places)
            }
        return self._seen[z]

    def entropies(self, z: Tokens) -> dict[int, float]:
        """Nats."""
        return {place: entropy(p) for place, p in self.conditionals(z).items()}

    def state_entropy(self, z: Tokens) -> float:
        """h: the mean entropy of the masked positions, nats."""
        values = self.entropies(z).values()
        return sum(values) / len(values)

    def states(self) -> Iterator[Tokens]:
        """Every state, the finished ones included."""
        return itertools.product(range(self.size + 1), repeat=self.length)

    def exact(self) -> Law:
        """The table itself as a law."""
        flat = self.joint.numpy()
        return {z: float(flat[z] / flat.sum()) for z in itertools.product(range(self.size), repeat=self.length)}


def entropy(p: Sequence[float]) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


# --- how a token is drawn --------------------------------------------------------------------------------------------


def shaped(
    p: Sequence[float], temperature: float = 1.0, top_p: float = 1.0, top_k: int | None = None, ban: Sequence[int] = ()
) -> list[float]:
    """Bans, temperature, top-p (what comes after the mass top_p is out), top-k. Temperature 0 takes the best."""
    q = [0.0 if token in ban else x for token, x in enumerate(p)]
    if temperature > 0:
        q = [x ** (1 / temperature) for x in q]
    q = [x / sum(q) for x in q]
    ranked = sorted(range(len(q)), key=lambda token: -q[token])
    kept = [token for n, token in enumerate(ranked) if sum(q[other] for other in ranked[:n]) <= top_p]
    kept = kept[: len(kept) if top_k is None else top_k][: None if temperature > 0 else 1]
    return [x / sum(q[token] for token in kept) if token in kept else 0.0 for token, x in enumerate(q)]


# --- which positions are decided -------------------------------------------------------------------------------------

Pick = Callable[[Oracle, Tokens, Proposal, int], dict[Subset, float]]


def quota(masked: int, left: int) -> int:
    """An even share, the remainder early."""
    return -(-masked // left)


def best(score: Mapping[int, float], count: int) -> Subset:
    """The highest scores, the lowest position on ties."""
    return frozenset(sorted(score, key=lambda place: (-score[place], place))[:count])


def plackett_luce(score: Mapping[int, float], temperature: float, count: int) -> dict[Subset, float]:
    """`count` positions one after the other, each by softmax(score / temperature) of those that are left."""
    weight = {place: math.exp(value / temperature) for place, value in score.items()}
    law: dict[Subset, float] = defaultdict(float)
    for order in itertools.permutations(weight, count):
        chance, rest = 1.0, sum(weight.values())
        for place in order:
            chance, rest = chance * weight[place] / rest, rest - weight[place]
        law[frozenset(order)] += chance
    return law


def fixed_count(steps: int) -> Pick:
    """`uniform`: every subset of the quota's size is equally likely."""

    def pick(oracle: Oracle, z: Tokens, proposal: Proposal, step: int) -> dict[Subset, float]:
        subsets = list(itertools.combinations(proposal, quota(len(proposal), steps - step)))
        return {frozenset(subset): 1 / len(subsets) for subset in subsets}

    return pick


def mdlm(steps: int, eps: float = 1e-5, late: Sequence[int] = ()) -> Pick:
    """`ancestral`: each by itself with probability (t - s)/t, t_i = 1 - i (1 - eps)/N; all in the last step.

    A proposed `late` token waits for the last step.
    """

    def pick(oracle: Oracle, z: Tokens, proposal: Proposal, step: int) -> dict[Subset, float]:
        t, s = (1 - i * (1 - eps) / steps for i in (step, step + 1))
        free = 1.0 if step == steps - 1 else (t - s) / t
        law: dict[Subset, float] = {}
        for size in range(len(proposal) + 1):
            for subset in itertools.combinations(proposal, size):
                chance = 1.0
                for place, token in proposal.items():
                    mine = 0.0 if token in late and step < steps - 1 else free
                    chance *= mine if place in subset else 1 - mine
                law[frozenset(subset)] = chance
        return law

    return pick


Score = Callable[[Oracle, Tokens, Proposal], dict[int, float]]


def by_probability(oracle: Oracle, z: Tokens, proposal: Proposal) -> dict[int, float]:
    return {place: oracle.conditionals(z)[place][token] for place, token in proposal.items()}


def by_entropy(oracle: Oracle, z: Tokens, proposal: Proposal) -> dict[int, float]:
    return {place: -value for place, value in oracle.entropies(z).items()}


def by_margin(oracle: Oracle, z: Tokens, proposal: Proposal) -> dict[int, float]:
    ranked = {place: sorted(p) for place, p in oracle.conditionals(z).items()}
    return {place: p[-1] - p[-2] for place, p in ranked.items()}


def by_shaped_probability(**how: float) -> Score:
    """Dream's: under the tempered, filtered distribution."""

    def score(oracle: Oracle, z: Tokens, proposal: Proposal) -> dict[int, float]:
        return {place: shaped(oracle.conditionals(z)[place], **how)[token] for place, token in proposal.items()}  # type: ignore[arg-type]

    return score


def ranked(score: Score, steps: int, select_temperature: float = 0.0, block_length: int | None = None) -> Pick:
    """The quota's best; with a selection temperature drawn from the best 2k. Blocks have equal shares of the steps."""

    def pick(oracle: Oracle, z: Tokens, proposal: Proposal, step: int) -> dict[Subset, float]:
        size = block_length or oracle.length
        each = steps // (oracle.length // size)
        end = (step // each + 1) * size
        mine = {place: value for place, value in score(oracle, z, proposal).items() if place < end}
        count = quota(len(mine), each - step % each)
        if not select_temperature:
            return {best(mine, count): 1.0}
        pool = best(mine, 2 * count)
        return plackett_luce({place: mine[place] for place in pool}, select_temperature, count)

    return pick


def ranked_blocks(steps: int, block_length: int) -> Pick:
    """`uniform` in blocks: equally likely subsets of the block's quota."""

    def pick(oracle: Oracle, z: Tokens, proposal: Proposal, step: int) -> dict[Subset, float]:
        each = steps // (oracle.length // block_length)
        end = (step // each + 1) * block_length
        mine = [place for place in proposal if place < end]
        subsets = list(itertools.combinations(mine, quota(len(mine), each - step % each)))
        return {frozenset(subset): 1 / len(subsets) for subset in subsets}

    return pick


def late_last(score: Score, steps: int, late: Sequence[int]) -> Pick:
    """The quota's best, every proposed `late` token after all others."""

    def pick(oracle: Oracle, z: Tokens, proposal: Proposal, step: int) -> dict[Subset, float]:
        values = score(oracle, z, proposal)
        behind = {place: value - 10 * (proposal[place] in late) for place, value in values.items()}
        return {best(behind, quota(len(behind), steps - step)): 1.0}

    return pick


def dream(score: Score, steps: int, alg_temp: float, eps: float = 1e-3) -> Pick:
    """int(masked (1 - s/t)) positions, all in the last step, drawn from all by softmax(score / alg_temp)."""

    def pick(oracle: Oracle, z: Tokens, proposal: Proposal, step: int) -> dict[Subset, float]:
        t, s = (1 - i * (1 - eps) / steps for i in (step, step + 1))
        count = len(proposal) if step == steps - 1 else int(len(proposal) * (1 - s / t))
        return plackett_luce(score(oracle, z, proposal), alg_temp, count)

    return pick


def threshold(least: float) -> Pick:
    """`fast-dllm`: the best, and all whose probability reaches the threshold."""

    def pick(oracle: Oracle, z: Tokens, proposal: Proposal, step: int) -> dict[Subset, float]:
        score = by_probability(oracle, z, proposal)
        return {best(score, max(1, sum(value >= least for value in score.values()))): 1.0}

    return pick


def entropy_bound(bound: float) -> Pick:
    """`eb`: lowest entropies first while the sum without the largest stays within the bound."""

    def pick(oracle: Oracle, z: Tokens, proposal: Proposal, step: int) -> dict[Subset, float]:
        values = sorted(oracle.entropies(z).values())
        count = max(n for n in range(1, len(values) + 1) if n == 1 or sum(values[: n - 1]) <= bound)
        return {best(by_entropy(oracle, z, proposal), count): 1.0}

    return pick


# --- laws ------------------------------------------------------------------------------------------------------------


def kernel(oracle: Oracle, pick: Pick, **how: object) -> Kernel:
    """One step of a sampler: propose at every masked position, decide a subset."""

    def step_law(z: Tokens, step: int) -> Law:
        chances = {place: shaped(p, **how) for place, p in oracle.conditionals(z).items()}  # type: ignore[arg-type]
        law: Law = defaultdict(float)
        for tokens in itertools.product(range(oracle.size), repeat=len(chances)):
            proposal = dict(zip(chances, tokens, strict=True))
            chance = math.prod(chances[place][token] for place, token in proposal.items())
            if chance == 0:
                continue
            for subset, share in pick(oracle, z, proposal, step).items():
                after = tuple(proposal[place] if place in subset else token for place, token in enumerate(z))
                law[after] += chance * share
        return law

    return step_law


def measures(
    oracle: Oracle,
    start: Tokens,
    move: Kernel,
    steps: int | None = None,
    potential: Callable[[Tokens], float] | None = None,
    every: int = 1,
) -> list[Law]:
    """Q(z_0 … z_N) ∏_n G(z_n), n = every, 2·every, … < N, as measures of z_1, …, z_N (each with the factors before it).

    Without a potential these are the laws of the states after each step. `steps` None: until nothing is masked.
    """
    now: Law = {start: 1.0}
    after_steps: list[Law] = []
    for step in itertools.count():
        if step == steps or (steps is None and not any(oracle.masked(z) for z in now)):
            break
        after: Law = defaultdict(float)
        for z, mass in now.items():
            if potential is not None and step > 0 and step % every == 0:
                mass *= potential(z)
            for following, chance in move(z, step).items() if oracle.masked(z) else [(z, 1.0)]:
                after[following] += mass * chance
        now = {z: mass for z, mass in after.items() if mass > 0}
        after_steps.append(now)
    return after_steps


# --- statistics ------------------------------------------------------------------------------------------------------


def chi_square_tail(x: float, freedom: int) -> float:
    """P(χ² > x), in closed form (Abramowitz and Stegun 26.4.4 and 26.4.5)."""
    if x <= 0:
        return 1.0
    y, half = x / 2, (freedom % 2) / 2
    powers = [j - half for j in range(1 if half else 0, (freedom + 1) // 2 if half else freedom // 2)]
    terms = [math.exp(-y + power * math.log(y) - math.lgamma(power + 1)) for power in powers]
    return (math.erfc(math.sqrt(y)) if half else 0.0) + sum(terms)


def chi_square(samples: Tensor, law: Law, size: int) -> float:  # samples [n, L]
    """The p-value of Pearson's test over all states (tokens and mask); cells that expect under 10 are one."""
    n, length = samples.shape
    letters = size + 1
    place = letters ** torch.arange(length - 1, -1, -1)
    counts = torch.bincount((samples * place).sum(1), minlength=letters**length).tolist()
    expected = [n * law.get(z, 0.0) for z in itertools.product(range(letters), repeat=length)]
    cells = list(zip(counts, expected, strict=True))
    if any(count for count, expect in cells if expect == 0):
        return 0.0  # something happened that cannot
    common = [cell for cell in cells if cell[1] >= 10]
    rare = [cell for cell in cells if 0 < cell[1] < 10]
    if rare:
        common.append((sum(count for count, _ in rare), sum(expect for _, expect in rare)))
    if len(common) == 1:
        return 1.0  # one outcome, and it came every time
    return chi_square_tail(sum((count - expect) ** 2 / expect for count, expect in common), len(common) - 1)


def z_score(samples: Tensor, mean: Tensor | float) -> Tensor:  # [n, …] -> […]
    """How many standard errors the sample mean is away; 0 where nothing varies and it is equal."""
    error = samples.std(0) / math.sqrt(len(samples))
    away = samples.mean(0) - mean
    return torch.where((error == 0) & (away.abs() < 1e-9), 0.0, away / error)


# --- running unmask --------------------------------------------------------------------------------------------------


def first_state(
    table: Table, canvas: Sequence[int], prompts: int, particles: int, steps: int | None, seed: int
) -> State:
    """The same canvas for many prompts, with seeds in a row."""
    tokens = torch.tensor([list(canvas)] * prompts)
    keys = torch.arange(prompts) + seed
    attend = torch.ones_like(tokens, dtype=torch.bool)
    return begin(tokens, tokens == table.vocab.mask, attend, keys, table.vocab, particles, steps)


@torch.no_grad()
def sample(
    oracle: Oracle, sampler: Sampler, rules: Rules, start: Tokens, prompts: int, particles: int, seed: int
) -> list[Tensor]:  # each [prompts * particles, L]
    """The states after each step; the particles of a prompt share its seed and are as independent as prompts are."""
    table = oracle.table
    state = first_state(table, start, prompts, particles, sampler.steps, seed)
    return [moment.state.tokens for moment in walk(table, state, sampler, Search(particles), rules)]
