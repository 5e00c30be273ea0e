"""unmask decodes masked diffusion language models along low-uncertainty paths.

text ──prompt──▶ State ──models──▶ hidden ──read──▶ Raw ──search──▶ State ──samplers──▶ tokens
                   ▲                                                                      │
                   └──────────────────────── engine (the one loop) ──────────────────────┘
                                                │ Moment, one per step
                                                ▼
                                   decode ──▶ Result · trace
"""

from unmask import interrupt as interrupt  # before torch, which takes seconds
from unmask.decode import Particle, Result, decode, decode_batch
from unmask.errors import UnmaskError
from unmask.models import MODELS, Denoiser, Table, load
from unmask.paths import Scored, score
from unmask.recipe import Recipe
from unmask.samplers import SAMPLERS
from unmask.search import SEARCHES

__version__ = "0.1.0"
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
