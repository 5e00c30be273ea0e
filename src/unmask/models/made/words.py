"""The model `table`: six-letter words over six letters, each letter now and then mistyped. An exact distribution."""

from __future__ import annotations

import torch

from unmask.models.made.table import Table

ALPHABET = "aenrst"
WORDS = (
    "arenas arrest assent assert astern asters attest easter eaters errant errata natter nearer neater nester ranter "
    "rarest raster rattan ratter rennet reseat resent retest sanest sateen seater senate sennet serene setter sneers "
    "stares stater street tanner tartan taster tatter teaser tenant tenner tenser terser tester treats tsetse"
).split()
SLIP = (
    0.02  # chance that a letter is mistyped: small, so that words stand out, and not 0, so that nothing is impossible
)


def words(device: str | torch.device = "cpu", dtype: torch.dtype = torch.float64) -> Table:
    """Six-letter words over aenrst, each letter now and then mistyped; every probability is exact."""
    size = len(ALPHABET)
    joint = torch.zeros((size,) * 6, dtype=torch.float64)
    for word in WORDS:
        chance = torch.ones((), dtype=torch.float64)
        for letter in word:
            typed = torch.full((size,), SLIP / size, dtype=torch.float64)
            typed[ALPHABET.index(letter)] += 1 - SLIP
            chance = chance[..., None] * typed
        joint += chance / len(WORDS)
    return Table(joint.to(device, dtype), ALPHABET, name="table")
