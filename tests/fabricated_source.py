"""A source of stories with random weights, in the layout of llama2.c's files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from unmask.evaluate.judge.stories import Shape

SHAPE = Shape(16, 24, 2, 2, 2, 320, 32)
WORDS = [" ", ",", ".", *"abcdefghijklmnopqrstuvwxyz", "th", "the", " the", " a", "at", " cat", "ca", " c", "he", "  "]


def pieces() -> list[tuple[float, bytes]]:
    """Specials, bytes as text (so that some are there twice), words, and letters of another alphabet to fill up."""
    found = [(0.0, b"<unk>"), (0.0, b"\n<s>\n"), (0.0, b"\n</s>\n")]
    found += [(0.0, chr(byte).encode()) for byte in range(256)]
    found += [(-1.0 - number, word.encode()) for number, word in enumerate(WORDS)]
    filler = SHAPE.vocabulary - len(found)
    return found + [(-1000.0 - number, chr(0x4E00 + number).encode()) for number in range(filler)]


def tokenizer() -> bytes:
    return struct.pack("<i", 27) + b"".join(struct.pack("<fi", score, len(one)) + one for score, one in pieces())


def weights(seed: int = 0) -> np.ndarray:
    """Numbers for every weight, and tables of cosines that nobody reads."""
    dice = np.random.default_rng(seed)
    many = sum(int(np.prod(size)) for size in SHAPE.sizes().values())
    return dice.normal(0, 0.5, many).astype("<f4")


def header() -> bytes:
    return struct.pack("<7i", *(getattr(SHAPE, name) for name in SHAPE.__dataclass_fields__))


def write(path: Path, seed: int = 0) -> str:
    """One file, as llama2.data is."""
    path.write_bytes(header() + weights(seed).tobytes() + tokenizer())
    return str(path)


def write_directory(path: Path, dtype: str = "<f4", seed: int = 0) -> str:
    """model.bin and tokenizer.bin in a directory."""
    path.mkdir(exist_ok=True)
    (path / "model.bin").write_bytes(header() + weights(seed).astype(dtype).tobytes())
    (path / "tokenizer.bin").write_bytes(tokenizer())
    return str(path)
