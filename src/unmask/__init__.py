"""unmask decodes masked diffusion language models along low-uncertainty paths.

text ─decoding→ State ─models→ hidden ─core.beliefs→ Beliefs ─search→ State ─samplers→ tokens      (core.walk: the loop)

Each public name is loaded when it is first asked for: `import unmask` takes no time.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from unmask._version import __version__ as __version__


def _is_intel() -> bool:
    """Whether the processor says so itself, on Linux and Windows."""
    said = os.environ.get("PROCESSOR_IDENTIFIER", "")
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        said += file.read(200)
    return "GenuineIntel" in said


# On Intel processors MKL adds in another order where a product has few rows, so that a text's numbers would depend on
# its company. This costs nothing, and is read at the first product of the process: a value that is there stays. On
# other processors it brings the very difference that it takes away here.
if _is_intel():
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# Where others use the cores too, torch's threads burn most of their time waiting for each other in loops. GNU's OpenMP,
# which torch for Linux has, sleeps after fewer turns then; it reads this when torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "4000")

if TYPE_CHECKING:
    from unmask.core.beliefs import DrawRule
    from unmask.core.denoiser import Denoiser, Head
    from unmask.core.state import Vocab
    from unmask.core.step import Rules
    from unmask.core.walk import walk
    from unmask.decoding.decode import decode, decode_batch
    from unmask.decoding.recipe import Recipe
    from unmask.decoding.result import Particle, Result
    from unmask.errors import UnmaskError
    from unmask.evaluate.theory.reference import Scored, score
    from unmask.models import MODELS, load
    from unmask.models.made.table import Table
    from unmask.samplers import SAMPLERS, Reveal
    from unmask.search import SEARCHES
    from unmask.tasks.own import task

__all__ = [
    "MODELS",
    "SAMPLERS",
    "SEARCHES",
    "Denoiser",
    "DrawRule",
    "Head",
    "Particle",
    "Recipe",
    "Result",
    "Reveal",
    "Rules",
    "Scored",
    "Table",
    "UnmaskError",
    "Vocab",
    "decode",
    "decode_batch",
    "load",
    "score",
    "task",
    "walk",
]
_HOMES = {
    "core.beliefs": "DrawRule",
    "core.denoiser": "Denoiser Head",
    "core.state": "Vocab",
    "core.step": "Rules",
    "core.walk": "walk",
    "decoding.decode": "decode decode_batch",
    "decoding.recipe": "Recipe",
    "decoding.result": "Particle Result",
    "errors": "UnmaskError",
    "evaluate.theory.reference": "Scored score",
    "models": "MODELS load",
    "models.made.table": "Table",
    "samplers": "SAMPLERS Reveal",
    "search": "SEARCHES",
    "tasks.own": "task",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


# Where modules of 0.1 are now. Their old paths work with a DeprecationWarning, and go in 0.3.
_MOVED = {
    "background": "decoding.background",
    "bench": "evaluate.run evaluate.compare evaluate.rows",
    "calibrate": "evaluate.theory.calibrate",
    "compare": "evaluate.compare",
    "countdown": "tasks.puzzles.countdown",
    "dice": "core.dice",
    "engine": "core.walk core.step",
    "entropy": "core.entropy",
    "judge": "evaluate.judge",
    "likelihood": "decoding.likelihood",
    "lmeval": "evaluate.lm_eval.model",
    "models.denoiser": "core.denoiser",
    "models.text": "models.tokenizers",
    "page": "report.page",
    "paths": "evaluate.theory.reference",
    "prompt": "decoding.prompt",
    "read": "core.beliefs",
    "recipe": "decoding.recipe",
    "result": "decoding.result",
    "sandbox": "tasks.sandbox",
    "shipped": "decoding.named_recipes",
    "state": "core.state",
    "sudoku": "tasks.puzzles.sudoku",
    "theory": "evaluate.theory.quantities",
    "trace": "decoding.trace",
}
_RENAMED = {"Draw": "DrawRule", "Raw": "Beliefs", "Way": "Setup"}  # names of 0.1 in these modules -> those of now


class _Moved:
    """Finds the modules of _MOVED: an empty one whose names are looked up in the new places."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        moved = name.removeprefix("unmask.") in _MOVED
        return ModuleSpec(name, _Moved()) if moved else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        old = spec.name.removeprefix("unmask.")
        _warn(old, 2)
        return _stand_in(old)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def _stand_in(old: str) -> ModuleType:
    module = ModuleType(f"unmask.{old}")

    def found(name: str) -> Any:
        for place in map(import_module, () if name.startswith("__") else _places(old)):
            if hasattr(place, _RENAMED.get(name, name)):
                return getattr(place, _RENAMED.get(name, name))
        raise AttributeError(f"there is no {name!r} in {' or '.join(_places(old))}")

    module.__getattr__ = found  # type: ignore[method-assign]
    return module


def _places(old: str) -> list[str]:
    return [f"unmask.{place}" for place in _MOVED[old].split()]


def _warn(old: str, level: int) -> None:
    note = f"unmask.{old} is now {' and '.join(_places(old))}; the old path goes in 0.3"
    warnings.warn(note, DeprecationWarning, stacklevel=level + 1)


sys.meta_path.append(_Moved)


def __getattr__(name: str) -> Any:
    if name in _MOVED:
        _warn(name, 2)
        return _stand_in(name)
    if name not in _HOME:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"unmask.{_HOME[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
