"""unmask decodes masked diffusion language models along low-uncertainty paths.

text ─decoding→ State ─models→ hidden ─core.beliefs→ Raw ─search→ State ─samplers→ tokens      (core: the loop)

Each public name is loaded when it is first asked for: `import unmask` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unmask._version import __version__ as __version__

if TYPE_CHECKING:
    from unmask.core.denoiser import Denoiser
    from unmask.decoding.decode import decode, decode_batch
    from unmask.decoding.recipe import Recipe
    from unmask.decoding.result import Particle, Result
    from unmask.errors import UnmaskError
    from unmask.evaluate.theory.reference import Scored, score
    from unmask.models import MODELS, load
    from unmask.models.made.table import Table
    from unmask.samplers import SAMPLERS
    from unmask.search import SEARCHES

__all__ = [
    "MODELS",
    "SAMPLERS",
    "SEARCHES",
    "Denoiser",
    "Particle",
    "Recipe",
    "Result",
    "Scored",
    "Table",
    "UnmaskError",
    "decode",
    "decode_batch",
    "load",
    "score",
]
_HOMES = {
    "core.denoiser": "Denoiser",
    "decoding.decode": "decode decode_batch",
    "decoding.recipe": "Recipe",
    "decoding.result": "Particle Result",
    "errors": "UnmaskError",
    "evaluate.theory.reference": "Scored score",
    "models": "MODELS load",
    "models.made.table": "Table",
    "samplers": "SAMPLERS",
    "search": "SEARCHES",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"unmask.{_HOME[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
