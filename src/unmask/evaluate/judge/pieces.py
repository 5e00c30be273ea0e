"""tokenizer.bin of llama2.c -> Pieces: text <-> ids by SentencePiece's BPE, with bytes for unknown characters.

The file holds an int32, then a float32 score, an int32 length and the bytes of each piece. Ids 0, 1 and 2 are <unk>,
<s> and </s>, and the next 256 are the bytes. The file writes a byte as text, so "," is there twice: as a byte, which
only unknown characters use, and as a piece. Only the piece is looked up.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from unmask.errors import ModelError

BEGIN = 1  # <s>, which stands before every document and so ends the one before it
BYTES = 3  # the id of byte 0
FIRST = BYTES + 256  # the first piece that is no byte
WORD = re.compile(r"\n| *[^ \n]+| +")  # no piece goes on after a newline, nor holds a space after another character
MOST_WORDS = 2**18  # that are remembered


@dataclass(frozen=True, eq=False)
class Pieces:
    """A vocabulary of pieces with scores."""

    written: tuple[bytes, ...]  # by id; specials write nothing
    scores: Mapping[str, tuple[float, int]]  # piece -> score and id, without specials and bytes
    known: dict[str, list[int]] = field(default_factory=dict, repr=False)  # words that were split before

    def encode(self, text: str) -> list[int]:
        """The ids of a text, which is read after a space as SentencePiece does it; without <s>."""
        return [token for word in WORD.findall(" " + text) for token in self._word(word)] if text else []

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without the space before it; bytes that are not UTF-8 are left out."""
        text = b"".join(map(self.written.__getitem__, ids)).decode("utf-8", "ignore")
        return text.removeprefix(" ")

    def _word(self, word: str) -> list[int]:
        found = self.known.get(word)
        if found is None:
            found = self._split(word)
            if len(self.known) < MOST_WORDS:
                self.known[word] = found
        return found

    def _split(self, word: str) -> list[int]:
        """Merge the neighbours whose piece has the best score, the first of equals, until none is a piece."""
        parts = list(word)
        while len(parts) > 1:
            pairs = [self.scores.get(parts[n] + parts[n + 1]) for n in range(len(parts) - 1)]
            score, place = max(((pair[0], -n) for n, pair in enumerate(pairs) if pair is not None), default=(None, 0))
            if score is None:
                break
            parts[-place : 2 - place] = [parts[-place] + parts[1 - place]]
        return [token for part in parts for token in self._ids(part)]

    def _ids(self, part: str) -> list[int]:
        found = self.scores.get(part)
        return [BYTES + byte for byte in part.encode()] if found is None else [found[1]]


def read_pieces(content: bytes, size: int) -> Pieces:
    """The pieces of a tokenizer.bin with `size` of them."""
    found: list[tuple[float, bytes]] = []
    place = 4
    try:
        for _ in range(size):
            score, length = struct.unpack_from("<fi", content, place)
            if length < 0 or place + 8 + length > len(content):
                raise struct.error
            found.append((score, content[place + 8 : place + 8 + length]))
            place += 8 + length
        scores = {piece.decode(): (score, number) for number, (score, piece) in enumerate(found) if number >= FIRST}
    except (struct.error, UnicodeDecodeError):
        raise ModelError(f"the tokenizer has fewer than {size} pieces", "get the file again") from None
    if place != len(content) or size < FIRST:
        raise ModelError(f"the tokenizer does not have {size} pieces", "get the file again")
    singles = [bytes([byte]) for byte in range(256)]
    return Pieces((b"", b"", b"", *singles, *(piece for _, piece in found[FIRST:])), scores)
