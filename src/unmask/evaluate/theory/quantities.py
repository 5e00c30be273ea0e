"""Measured states and paths -> the quantities of the paper's theory, each with its interval, in bits unless noted.

Proposition 2 sets the loss of a masked token beside state entropy; its corollary sets the NELBO beside the integral of
state entropy. Proposition 3 bounds the divergence of path distributions from below by the entropy drift, and the chain
rule bounds it from above. Two theorems speak of the ends of time and of growing context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core.entropy import BIT, bits
from unmask.evaluate.stats import Mean, average, mean
from unmask.evaluate.theory.noised_states import States
from unmask.evaluate.theory.reference import ReferencePath

RISE = 1e-3  # bits: less is rounding


@dataclass(frozen=True)
class Bin:
    """One part of time: loss and state entropy of its states, one for each text."""

    time: float  # mean share of masks
    entropy: Mean
    loss: Mean
    gap: Mean  # loss - entropy, paired
    spread: float  # standard deviation of the gap of single states
    epsilon: float | None  # nats: the least ε at which the bound of Proposition 2 allows the mean gap; None below 0
    epsilon_whole: float | None = None  # nats: the same with the term h(δ) that the paper drops


@dataclass(frozen=True)
class Integrals:
    """Means over uniform k, that is integrals over time, a token of each text."""

    nelbo: Mean  # the NELBO over the number of tokens
    entropy: Mean  # the NELBO's weighted integral of state entropy over the number of tokens
    gap: Mean  # nelbo - entropy, paired
    correlation: float | None  # of the two over texts


@dataclass(frozen=True)
class Ends:
    """State entropy where all is masked and where one token is; the theorem gives H(p_data) and 0."""

    full: Mean  # t -> 1
    full_loss: Mean
    unigram: float | None  # plug-in entropy of the token counts; None where texts have prompts, which say more
    unigram_corrected: float | None  # with Miller and Madow's correction, (kinds - 1) / 2n nats
    single: Mean  # t -> 0
    single_loss: Mean


@dataclass(frozen=True)
class Context:
    """The entropy of one masked position of each text while context is revealed around it, from all masked on."""

    time: list[float]
    entropy: list[Mean]
    fall: Mean  # from the first to the last, paired
    rises: float  # share of the single changes that go up, by more than RISE


@dataclass(frozen=True)
class Law:
    """Whole texts beside the law of the data, where that is known; both differences are paired by text."""

    data: Mean  # bits: -log2 p, whose mean is the entropy of the data
    nelbo: Mean  # bits: the NELBO less it, the divergence of paths of one token a step
    entropy: Mean  # bits: the same integral of state entropy less it; 0 for a perfect model


@dataclass(frozen=True)
class Divergence:
    """What entropies say about D_KL(Pr || P̂r) of one prompt's paths. Divergences are nats."""

    reference: Mean  # bits: path entropy of reference paths
    generated: Mean  # bits: of decoded ones
    drift: Mean  # bits: generated - reference, paired by text
    largest: float  # bits: B, the largest path entropy there can be
    lower: Mean  # Proposition 3 as printed, (drift / B)² / 2
    lower_tight: Mean  # 2 (drift / B)²: path entropies lie in [0, B], not in [-B, B]
    kl: Mean | None  # the chain rule's sum: N-step loss less the entropy of the data; None where that is not known
    epsilon: Mean | None  # kl / N: the mean of the N steps' divergences, so the least ε that the bound N·ε allows
    epsilon_largest: float | None = None  # the largest step's, which the definition asks for; known for data of 0 bits
    best: Mean | None = None  # bits: path entropy of the best of a text's decoded paths, as E-BoN returns it
    best_drift: Mean | None = None  # bits: best - reference, paired by text


def bins(states: States, width: int) -> list[Bin]:
    """Proposition 2, part by part of time; `width` is the number of tokens K."""
    found = []
    for column in range(*states.parts.indices(states.masked.shape[1])):
        entropy, loss = bits(states.entropy[:, column]), bits(states.loss[:, column])
        gap = mean(loss - entropy)
        spread = float((loss - entropy).std()) if len(loss) > 1 else 0.0
        time = float(states.share[:, column].mean())
        least = [needed_epsilon(gap.value * BIT, width, whole) for whole in (False, True)]
        found.append(Bin(time, mean(entropy), mean(loss), gap, spread, *least))
    return found


def dropped(epsilon: float) -> float:
    """h(δ) with δ = √(ε/2), nats: the binary entropy that the proof of Proposition 2 leaves out.

    Audenaert's bound is |H(q) - H(p)| ≤ δ ln(K - 1) + h(δ) for a total variation δ ≤ 1 - 1/K.
    """
    delta = min(1.0, math.sqrt(epsilon / 2))
    return sum(-share * math.log(share) for share in (delta, 1 - delta) if share > 0)


def needed_epsilon(gap: float, width: int, whole: bool = False) -> float | None:
    """Solve ε + √(ε/2) ln K = gap (nats), with `whole` also + h(δ); None for a negative gap, which neither covers."""
    if gap < 0:
        return None
    if whole:
        low, high = 0.0, needed_epsilon(gap, width) or 0.0
        for _ in range(60):  # what it allows grows with ε, up to δ = 1/2 and further with ln K
            middle = (low + high) / 2
            allowed = middle + math.sqrt(middle / 2) * math.log(width) + dropped(middle)
            low, high = (middle, high) if allowed < gap else (low, middle)
        return high
    half = math.log(width) / math.sqrt(2) / 2
    return (math.sqrt(half * half + gap) - half) ** 2


def integrals(states: States) -> Integrals:
    """The NELBO beside the same integral of state entropy."""
    loss, entropy = (bits(x[:, states.parts]).mean(1) for x in (states.loss, states.entropy))
    alike = len(loss) > 2 and bool(loss.std() > 0) and bool(entropy.std() > 0)
    both = float(torch.corrcoef(torch.stack([loss, entropy]))[0, 1]) if alike else None
    return Integrals(mean(loss), mean(entropy), mean(loss - entropy), both)


def ends(states: States, counts: Mapping[int, int] | None) -> Ends:
    """The boundaries of time, beside the entropy of token counts."""
    plain = None if counts is None else unigram(counts)
    correction = 0.0 if counts is None else (len(counts) - 1) / (2 * sum(counts.values())) / BIT
    full, single = states.masked.shape[1] - 1, 0
    return Ends(
        mean(bits(states.entropy[:, full])),
        mean(bits(states.loss[:, full])),
        plain,
        None if plain is None else plain + correction,
        mean(bits(states.entropy[:, single])),
        mean(bits(states.loss[:, single])),
    )


def law(states: States, known: float | Sequence[float]) -> Law:
    """The integrals of `integrals`, of whole texts, beside the law of the data; `known` are bits of all or of each."""
    data = torch.as_tensor(known, dtype=torch.float64).expand(len(states.open))
    loss, entropy = (bits(x[:, states.parts]).mean(1) * states.open for x in (states.loss, states.entropy))
    return Law(mean(data), mean(loss - data), mean(entropy - data))


def unigram(counts: Mapping[int, int]) -> float:
    """Entropy of a table of counts, bits."""
    shares = torch.tensor(list(counts.values()), dtype=torch.float64) / sum(counts.values())
    return float(bits(torch.special.entr(shares).sum()))


def context(states: States) -> Context:
    """Context sensitivity: the masks of a text are nested, so each column has the context of the next and more."""
    watched = bits(states.watched).flip(1)  # from all masked to one mask
    times = states.share.mean(0).flip(0).tolist()
    change = watched[:, 1:] - watched[:, :-1]
    moved = states.masked.flip(1).diff(dim=1) != 0  # neighbouring columns may hold the same state
    rises = float(((change > RISE) & moved).sum() / moved.sum().clamp(min=1))
    each = [mean(column) for column in watched.T]
    return Context(times, each, mean(watched[:, 0] - watched[:, -1]), rises)


# --- paths -----------------------------------------------------------------------------------------------------------


def divergence(
    reference: Sequence[Sequence[ReferencePath]],
    generated: Sequence[Sequence[float]],  # path entropies, bits: of each text's decoded paths
    width: int,
    steps: int | None = None,
    data_entropy: float | Sequence[float] | None = None,  # bits: of a text given its prompt, or of each text
) -> Divergence:
    """Drift, and the bounds that it and the loss give."""
    true = _each([[path.path_entropy for path in paths] for paths in reference])
    own = _each(generated)
    best = torch.tensor([min(some) for some in generated], dtype=torch.float64)
    drift, largest = mean(own - true), math.log2(width)
    kl = None
    if data_entropy is not None:
        known = torch.as_tensor(data_entropy, dtype=torch.float64)
        kl = mean(_each([[path.loss for path in paths] for paths in reference]) - known).times(BIT)
    return Divergence(
        mean(true),
        mean(own),
        drift,
        largest,
        lower_bound(drift, largest),
        lower_bound(drift, largest, 2.0),
        kl,
        None if kl is None or steps is None else kl.times(1 / steps),
        _largest(reference) if data_entropy == 0 else None,
        *((mean(best), mean(best - true)) if any(len(some) > 1 for some in generated) else ()),
    )


def _largest(reference: Sequence[Sequence[ReferencePath]]) -> float | None:
    """The largest mean loss of a step, nats: its divergence where the data leave nothing open."""
    paths = [path.step_loss for some in reference for path in some]
    if not paths or not all(paths):
        return None
    return (
        max(average([path[step] for path in paths if step < len(path)]) for step in range(max(map(len, paths)))) * BIT
    )


def lower_bound(drift: Mean, largest: float, factor: float = 0.5) -> Mean:
    """factor (drift / B)², nats; where the drift may be 0, so may the bound."""
    value = factor * (drift.value / largest) ** 2
    if drift.low is None or drift.high is None:
        return Mean(value, None, None, drift.n)
    ends = sorted(factor * (end / largest) ** 2 for end in (drift.low, drift.high))
    return Mean(value, 0.0 if drift.low <= 0 <= drift.high else ends[0], ends[1], drift.n)


def _each(values: Sequence[Sequence[float]]) -> Tensor:  # [N]
    """One number for each text: the mean over its paths, which are not independent of each other."""
    return torch.tensor([average(some) for some in values], dtype=torch.float64)


def along(paths: Sequence[Sequence[float | None]]) -> list[tuple[int, Mean]]:
    """Mean state entropy at each step that most paths have masks in: (step, bits)."""
    found = []
    for step in range(max(map(len, paths))):
        there = [path[step] for path in paths if step < len(path)]
        values = [value for value in there if value is not None and math.isfinite(value)]
        if 2 * len(values) > len(paths):
            found.append((step, mean(values)))
    return found
