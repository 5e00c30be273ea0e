"""Characters: the tokenizer of models that speak single characters."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.errors import InputError


@dataclass(frozen=True)
class Characters:
    """Every character of the alphabet is a token; its place is its id."""

    alphabet: str

    def encode(self, text: str) -> list[int]:
        ids = [self.alphabet.find(character) for character in text]
        if -1 in ids:
            strange = text[ids.index(-1)]
            raise InputError(f"{strange!r} is no character of this model", f"it knows {self.alphabet!r}")
        return ids

    def decode(self, ids: list[int]) -> str:
        return "".join(self.alphabet[i] if 0 <= i < len(self.alphabet) else "_" for i in ids)
