"""Recorded decoder and settings -> Recipe, as data."""

from typing import Any

from unmask import Recipe

# decoder, or decoder/alg where the algorithm matters: (fixed settings, recorded name -> name in a Recipe).
# A recorded setting that maps to None has no influence on that decoder.
STEPS = {"steps": "steps"}
DREAM = {**STEPS, "eps": "eps", "top_k": "top_k", "top_p": "top_p", "threshold": "threshold", "alg": "rule"}
MAPPING: dict[str, tuple[dict[str, Any], dict[str, str | None]]] = {
    "llada.low_confidence": (
        {"sampler": "semi-ar"},
        {**STEPS, "block_length": "block_length", "cfg_scale": "guidance"},
    ),
    "pc.entropy": ({"sampler": "entropy"}, STEPS),
    "pc.margin": ({"sampler": "margin"}, STEPS),
    "pc.pc_sampler": (
        {"sampler": "pc"},
        {**STEPS, "block_length": "block_length", "lambda": "decay", "alpha": "cap", "background": "background"},
    ),
    "pc.eb_sampler": ({"sampler": "eb"}, {"gamma": "bound"}),
    "pc.fast_dllm": (
        {"sampler": "fast-dllm"},
        {**STEPS, "block_length": "block_length", "threshold": "threshold", "factor": "factor"},
    ),
    "pc.remdm": (
        {"sampler": "draft-refine"},
        {"init_unmask_ratio": "draft", "unmask_k": "reveal", "loop_steps": "loops"},
    ),
    "open_dllm": ({"sampler": "dream"}, DREAM),
    "open_dllm/p2": (
        {"sampler": "p2", "rule": "fresh-draw"},
        {**STEPS, "top_k": "top_k", "top_p": "top_p", "eps": None, "alg": None},
    ),
    "dream": ({"sampler": "dream"}, DREAM),
    "dream/confidence_threshold": ({"sampler": "dream"}, {**DREAM, "eps": None}),
    "path_planning.p2": ({"sampler": "p2", "rule": "self-planning"}, {**STEPS, "eta": "eta"}),
}


def recipe(decoder: str, settings: dict[str, Any]) -> Recipe:
    """The Recipe for a recorded case."""
    fixed, names = MAPPING.get(f"{decoder}/{settings.get('alg')}") or MAPPING[decoder]
    given = {names[name]: value for name, value in settings.items() if value is not None}
    return Recipe(**fixed, **{name: value for name, value in given.items() if name is not None})
