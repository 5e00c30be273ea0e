"""Table: an exact joint distribution as a denoiser, with exact conditionals. For tests and documents."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from unmask.core.denoiser import Head, Tokenizer
from unmask.core.state import State, Vocab
from unmask.errors import InputError
from unmask.models.devices import moved
from unmask.models.tokenizers import Characters

CHUNK = 1 << 22  # sequences weighed at a time
ALPHABET = "aenrst"
WORDS = (
    "arenas arrest assent assert astern asters attest easter eaters errant errata natter nearer neater nester ranter "
    "rarest raster rattan ratter rennet reseat resent retest sanest sateen seater senate sennet serene setter sneers "
    "stares stater street tanner tartan taster tatter teaser tenant tenner tenser terser tester treats tsetse"
).split()
SLIP = 0.02  # chance that a letter is mistyped: small, so that words stand out, but not 0


@dataclass(frozen=True, eq=False)
class Table:
    """`joint` [V, …, V] holds the probability of every sequence of L tokens; a shorter canvas is its beginning."""

    joint: Tensor = field(repr=False)
    alphabet: str = ""
    name: str = "table"
    cost: int = 1
    timed: bool = False
    eos: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        size = self.joint.shape[0] if self.joint.dim() else 0
        if not size or any(n != size for n in self.joint.shape) or not bool((self.joint > 0).all()):
            shape = tuple(self.joint.shape)
            raise InputError(f"a table of shape {shape} is not a distribution", "every probability must be positive")

    def to(
        self, device: str | torch.device | torch.dtype | None = None, dtype: torch.dtype | str | None = None
    ) -> Table:
        """The table on another device, or in another dtype; this one stays as it is."""
        return replace(self, joint=self.joint.to(*moved(self.name, device, dtype)))

    @property
    def vocab(self) -> Vocab:
        return Vocab(mask=self.joint.shape[0], eos=self.eos)

    @property
    def head(self) -> Head:
        return Head(self.joint.shape[0])

    @property
    def limit(self) -> int:
        return self.joint.dim()

    @property
    def device(self) -> torch.device:
        return self.joint.device

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Characters(self.alphabet or "0123456789abcdefghijklmnopqrstuvwxyz"[: self.joint.shape[0]])

    @cached_property
    def probability(self) -> Tensor:  # [A]
        """The probability of every sequence, normalised."""
        flat = self.joint.reshape(-1)
        return flat / flat.sum()

    @cached_property
    def sequences(self) -> Tensor:  # [A, L] int64
        """All sequences, in the order of `probability`."""
        letters = torch.arange(self.joint.shape[0], device=self.device)
        return torch.cartesian_prod(*[letters] * self.limit).view(-1, self.limit)

    @cached_property
    def _marks(self) -> Tensor:  # [A, L * V]
        one_hot = torch.nn.functional.one_hot(self.sequences, self.joint.shape[0])
        return one_hot.flatten(1).to(self.joint.dtype)

    def log_probability(self, tokens: list[int]) -> float:
        """The exact log-probability (nats) of a sequence or of its beginning."""
        return float((self.joint[tuple(tokens)].sum() / self.joint.sum()).log())

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, None]:
        """Log conditionals of every position given all decided ones, as hidden states of an identity head."""
        tokens, columns = state.tokens[rows], state.columns[rows]
        source = (~state.attend[rows]).sum(1, keepdim=True) + torch.arange(self.limit, device=self.device)
        inside = source < tokens.shape[1]
        given = tokens.gather(1, source.clamp(max=tokens.shape[1] - 1)).where(inside, state.vocab.mask)  # [R, limit]
        code = (given * (state.vocab.mask + 1) ** torch.arange(self.limit, device=self.device)).sum(1)
        _, same = torch.unique(code, return_inverse=True)  # equal canvases are computed once
        given = given.new_zeros(int(same.max()) + 1, self.limit).index_copy(0, same, given)
        size = max(1, CHUNK // len(self.sequences))
        chances = torch.cat([self._conditionals(given[i : i + size]) for i in range(0, len(given), size)])
        return chances.log()[same[:, None], columns.clamp(min=0)], None

    def joint_entropy(self, given: Tensor) -> Tensor:  # [R, n] int64, of the first n positions -> [R] nats
        """The entropy of all masked positions together, given the others: the oracle's uncertainty of a state."""
        short = self if given.shape[1] == self.limit else Table(self.joint.flatten(given.shape[1]).sum(-1))
        fits = (given[:, None, :] == short.sequences) | (given[:, None, :] == self.vocab.mask)  # [R, A, n]
        weights = fits.all(2) * short.probability
        entropy: Tensor = torch.special.entr(weights / weights.sum(1, keepdim=True)).sum(1)
        return entropy

    def _conditionals(self, given: Tensor) -> Tensor:  # [R, limit] -> [R, limit, V]
        letters = torch.arange(self.joint.shape[0], device=self.device)
        fits = (given[:, :, None] == letters) | (given[:, :, None] == self.vocab.mask)  # [R, limit, V]
        agrees = fits[:, 0].to(self.joint.dtype)
        for place in range(1, self.limit):
            agrees = (agrees[:, :, None] * fits[:, place, None]).flatten(1)
        weights = agrees * self.probability  # [R, A]
        chances = (weights @ self._marks).view(len(given), self.limit, -1)
        return chances / weights.sum(1)[:, None, None]


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
