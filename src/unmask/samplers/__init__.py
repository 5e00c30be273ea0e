"""SAMPLERS: name -> function from settings to a Sampler. Its signature lists the settings; its docstring is help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from unmask.core.sampler import Ranking, Sampler, StepInput, Written
from unmask.errors import SettingError, unknown
from unmask.samplers import counts, scores
from unmask.samplers.blockwise import Blockwise
from unmask.samplers.reveal import Float32Reveal, Reveal
from unmask.samplers.revise import P2, DraftRefine

__all__ = ["P2", "SAMPLERS", "DraftRefine", "Ranking", "Reveal", "Sampler", "StepInput", "Turn", "Written"]
Turn = StepInput  # its name in 0.1


def uniform(steps: int | None = None, block_length: int | None = None) -> Sampler:
    """Random order, an even share of the positions in each step."""
    return Reveal(scores.by_dice, counts.quota, steps, block_length)


NOISES = ("exact", "float32")
PRODUCTS = ("log", "float32")


def ancestral(steps: int | None = None, eps: float = 1e-5, noise: str = "exact") -> Sampler:
    """MDLM's kernel: every masked position is freed by itself with probability (t - s)/t.

    noise float32 draws as MDLM's public code does, with a defect: its Gumbel noise is too short for rare tokens.
    """
    if noise not in NOISES:
        raise unknown("noise of ancestral", noise, NOISES, setting="noise")
    kind = Reveal if noise == "exact" else Float32Reveal
    return kind(scores.by_dice, counts.Binomial(eps), steps, eps=eps)


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
    product: str = "log",
) -> Sampler:
    """PC-Sampler: confidence against a background table of token counts, earlier positions first.

    product float32 ranks by the published product, which is 0 for far positions: from 416 on at decay 0.25.
    """
    if product not in PRODUCTS:
        raise unknown("product of pc", product, PRODUCTS, setting="product")
    if background is None:
        own = "the bundled models have one by their own name (background=text, sudoku or countdown)"
        way_out = f"{own}; `unmask frequencies TEXT --model MODEL -o FILE` makes one for others"
        raise SettingError("pc needs a background table", way_out, setting="background")
    score = scores.Positional(None, decay, cap, underflows=product == "float32")
    return Reveal(score, counts.quota, steps, block_length, select_temperature)


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


SDAR_RULES = ("dynamic", "static", "sequential")


def sdar(
    rule: str = "dynamic", threshold: float | None = None, rounds: int | None = None, block_length: int | None = None
) -> Sampler:
    """SDAR's decoder: blocks in rounds, each of which writes an even share.

    rule is dynamic: all positions above a confidence threshold (0.85) where these are more; static: the most probable
    ones; or sequential: from the left. A text is over where a block with an EOS is finished.
    """
    if rule not in SDAR_RULES:
        raise unknown("rule of sdar", rule, SDAR_RULES, setting="rule")
    if threshold is not None and rule != "dynamic":
        raise SettingError(f"threshold has no effect on rule {rule}", "use rule dynamic", setting="threshold")
    dynamic = (0.85 if threshold is None else threshold) if rule == "dynamic" else None
    return Blockwise(block_length, dynamic, rounds, sequential=rule == "sequential")


def llada2(
    threshold: float = 0.95,
    rounds: int | None = None,
    reveal: int = 1,
    edit_threshold: float | None = None,
    edit_rounds: int | None = None,
    early_stop: bool = False,
    block_length: int | None = None,
) -> Sampler:
    """LLaDA2's decoder: blocks in rounds, each writes all positions above a confidence, or its share.

    With edit_threshold (0.9 as published) that of LLaDA2.1: it also replaces tokens of its block where another one is
    above it, up to edit_rounds (16) after the last mask; a round then writes `reveal` positions at least.
    """
    if edit_threshold is None and edit_rounds is not None:
        way_out = "give edit_threshold, too (0.9)"
        raise SettingError("edit_rounds has no effect without edit_threshold", way_out, setting="edit_rounds")
    if edit_threshold is not None and rounds is not None:
        raise SettingError("rounds has no effect with edit_threshold", "give reveal instead", setting="rounds")
    if edit_threshold is None:
        if rounds is not None and reveal != 1:
            raise SettingError("rounds and reveal exclude each other", "leave one out", setting="reveal")
        return Blockwise(block_length, threshold, rounds, None if rounds is not None else reveal, early=early_stop)
    after = 16 if edit_rounds is None else edit_rounds
    return Blockwise(
        block_length, threshold, None, reveal, edit=edit_threshold, after=after, ends="never", early=early_stop
    )


def fast_dllm_v2(threshold: float = 0.9, sub_block: int = 8, block_length: int | None = None) -> Sampler:
    """Fast-dLLM v2's decoder: sub-blocks of a block from left to right, all positions above a confidence at once.

    The first position of a block is decided alone. A text is over where no mask is left before its EOS.
    """
    return Blockwise(block_length, threshold, quota=1, part=sub_block, leads=True, ends="clear")


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
    "sdar": sdar,
    "llada2": llada2,
    "fast-dllm-v2": fast_dllm_v2,
}
