"""SAMPLERS: name -> function from settings to a Sampler. Its signature lists the settings; its docstring is help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from unmask.core.sampler import Ranking, Sampler, StepInput, Written
from unmask.errors import SettingError, unknown
from unmask.samplers import counts, scores
from unmask.samplers.reveal import Reveal
from unmask.samplers.revise import P2, DraftRefine

__all__ = ["P2", "SAMPLERS", "DraftRefine", "Ranking", "Reveal", "Sampler", "StepInput", "Turn", "Written"]
Turn = StepInput  # its name in 0.1


def uniform(steps: int | None = None, block_length: int | None = None) -> Sampler:
    """Random order, an even share of the positions in each step."""
    return Reveal(scores.by_dice, counts.quota, steps, block_length)


def ancestral(steps: int | None = None, eps: float = 1e-5) -> Sampler:
    """MDLM's kernel: every masked position is freed by itself with probability (t - s)/t."""
    return Reveal(scores.by_dice, counts.Binomial(eps), steps, eps=eps)


def confidence(steps: int | None = None, block_length: int | None = None, select_temperature: float = 0.0) -> Sampler:
    """Most probable proposals first."""
    return Reveal(scores.by_confidence, counts.quota, steps, block_length, select_temperature)


def entropy(steps: int | None = None, block_length: int | None = None, select_temperature: float = 0.0) -> Sampler:
    """Lowest entropy first."""
    return Reveal(scores.by_entropy, counts.quota, steps, block_length, select_temperature)


def margin(steps: int | None = None, block_length: int | None = None, select_temperature: float = 0.0) -> Sampler:
    """Largest gap between the two most probable tokens first."""
    return Reveal(scores.by_margin, counts.quota, steps, block_length, select_temperature)


def eb(bound: float = 0.01, block_length: int | None = None, select_temperature: float = 0.0) -> Sampler:
    """EB-Sampler: lowest entropy first, as many as keep the summed entropy (nats) within a bound."""
    count = counts.EntropyBound(bound)
    return Reveal(scores.by_entropy, count, None, block_length, select_temperature, scheduled=False)


def semi_ar(steps: int | None = None, block_length: int = 32, select_temperature: float = 0.0) -> Sampler:
    """LLaDA's semi-autoregressive order: blocks from left to right, confidence inside a block."""
    return confidence(steps, block_length, select_temperature)


def fast_dllm(
    threshold: float | None = None,
    factor: float | None = None,
    steps: int | None = None,
    block_length: int = 32,
    select_temperature: float = 0.0,
) -> Sampler:
    """Fast-dLLM: in each block all positions above a confidence threshold (0.9), or by factor, or by quota (steps)."""
    if sum(x is not None for x in (threshold, factor, steps)) > 1:
        raise SettingError("fast-dllm takes one of threshold, factor and steps", "leave the other two out")
    count: counts.Count = counts.Threshold(0.9 if threshold is None else threshold)
    if factor is not None:
        count = counts.Factor(factor)
    if steps is not None:
        count = counts.BlockQuota(block_length)
    return Reveal(scores.by_confidence, count, steps, block_length, select_temperature, scheduled=False)


def pc(
    background: str | None = None,
    decay: float = 0.25,
    cap: float = 10.0,
    steps: int | None = None,
    block_length: int | None = None,
    select_temperature: float = 0.0,
) -> Sampler:
    """PC-Sampler: confidence against a background table of token counts, earlier positions first."""
    if background is None:
        own = "give background text for the model text, and so for sudoku and countdown"
        way_out = f"{own}; for others `unmask frequencies TEXT --model MODEL -o FILE` makes one"
        raise SettingError("pc needs a background table", way_out, setting="background")
    return Reveal(scores.Positional(None, decay, cap), counts.quota, steps, block_length, select_temperature)


def with_background(sampler: Sampler, table: scores.Background) -> Sampler:
    """PC with its table, which is read where the model is known; other samplers stay as they are."""
    if isinstance(sampler, Reveal) and isinstance(sampler.score, scores.Positional):
        return replace(sampler, score=replace(sampler.score, background=table))
    return sampler


P2_RULES = ("self-planning", "fresh-draw")


def p2(steps: int | None = None, eta: float = 1.0, rule: str = "self-planning") -> Sampler:
    """P2: proposes everything anew and masks the least certain again; rule self-planning, or fresh-draw (Open-dLLM)."""
    if rule not in P2_RULES:
        raise unknown("rule of p2", rule, P2_RULES, setting="rule")
    return P2(steps, eta, fresh=rule == "fresh-draw")


def draft_refine(draft: float = 0.875, reveal: int = 1, loops: int = 32) -> Sampler:
    """Drafts a share by confidence, then masks and decides anew the least certain positions, loop by loop."""
    return DraftRefine(draft, reveal, loops)


DREAM_RULES: dict[str, scores.Score] = {
    "maskgit_plus": scores.by_drawn_probability,
    "entropy": scores.by_drawn_entropy,
    "topk_margin": scores.by_drawn_margin,
    "confidence_threshold": scores.by_drawn_probability,
}


def dream(
    rule: str = "entropy",
    steps: int | None = None,
    eps: float | None = None,
    threshold: float | None = None,
    select_temperature: float = 0.0,
) -> Sampler:
    """The Dream family: its schedule, and scores after temperature and filters.

    rule is maskgit_plus, entropy or topk_margin, on a time grid down to eps (0.001); or confidence_threshold (0.9).
    """
    if rule not in DREAM_RULES:
        raise unknown("rule of dream", rule, DREAM_RULES, setting="rule")
    carries = rule == "confidence_threshold"
    if threshold is not None and not carries:
        raise SettingError(
            f"threshold has no effect on rule {rule}", "use rule confidence_threshold", setting="threshold"
        )
    if eps is not None and carries:
        raise SettingError(f"eps has no effect on rule {rule}", "leave it out", setting="eps")
    if carries:
        count: counts.Count = counts.Examine(0.9 if threshold is None else threshold)
    else:
        eps = 1e-3 if eps is None else eps
        count = counts.DreamSchedule(eps)
    return Reveal(
        DREAM_RULES[rule],
        count,
        steps,
        carries=carries,
        select_temperature=select_temperature,
        select_all=True,
        eps=eps,
    )


SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "uniform": uniform,
    "ancestral": ancestral,
    "confidence": confidence,
    "entropy": entropy,
    "margin": margin,
    "eb": eb,
    "semi-ar": semi_ar,
    "fast-dllm": fast_dllm,
    "pc": pc,
    "p2": p2,
    "draft-refine": draft_refine,
    "dream": dream,
}
