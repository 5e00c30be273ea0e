"""A part of a tokenizer.json -> how many characters it can make of one, before it is ever used.

A few kB of replacements in sequence can make 2⁶⁰ letters of one, and a call of the tokenizer cannot be interrupted.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from unmask.errors import ModelError

MOST = 256  # characters of one
BYTES = 4  # of a character in UTF-8, and letters that a byte-level step writes for it
Growth = defaultdict[str, int]  # character -> what becomes of it; "" stands for all others
PARTS = ("normalizers", "pretokenizers", "decoders")  # of a Sequence


def check_growth(fast: Any) -> None:
    """Refuse a tokenizer whose steps can make far more text than they are given."""
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        part = getattr(fast, name)
        if part is not None and growth(json.loads(part.__getstate__())) > MOST:
            message = f"the {name.replace('_', '-')} of the tokenizer makes more than {MOST} characters of one"
            raise ModelError(message, "the checkpoint is damaged, or made to take all memory")


def growth(part: Mapping[str, Any]) -> int:
    """The most characters that a part can make of one; above MOST it may be any such number.

    From the last step to the first: what becomes of each character in the steps that follow. Steps that only write a
    character in another form are left out: they do not add up.
    """
    after: Growth = defaultdict(lambda: 1, {"": 1})
    for step in reversed(list(steps(part))):
        kind = step.get("type")
        if kind == "Replace":
            pattern, written = step["pattern"], sum(after[letter] for letter in step["content"])
            if pattern.get("String"):
                first = pattern["String"][0]
                after[first] = max(after[first], written)
            else:  # it may match anywhere, between two characters too
                after = raised(after, written, 1)
        elif kind == "Prepend":
            after = raised(after, sum(after[letter] for letter in step["prepend"]), 1)
        elif kind == "ByteLevel":
            after = raised(after, 0, BYTES)
        elif kind == "Precompiled":
            after = raised(after, 0, longest(step["precompiled_charsmap"]))
        if max(after.values()) > MOST:
            return MOST + 1
    return max(after.values())


def raised(after: Growth, more: int, times: int) -> Growth:
    """The same before a step that may write `more` beside any character, or `times` any others in its place."""
    least = times * max(after.values()) if times > 1 else 0
    default = max(least, after[""] + more)
    new: Growth = defaultdict(lambda: default)
    new.update({letter: max(least, number + more) for letter, number in after.items()})
    return new


def steps(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The steps of a part in their order; sequences may hold sequences."""
    waiting = [part]
    while waiting:
        one = waiting.pop()
        inner = [step for name in PARTS for step in one.get(name) or ()]
        waiting += reversed(inner)
        if not inner:
            yield one


def longest(charsmap: str) -> int:
    """Characters of the longest text in a table of sentencepiece: a trie with its size before it, then the texts."""
    try:
        table = base64.b64decode(charsmap)
    except binascii.Error:
        return MOST + 1
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max((len(text.decode(errors="replace")) for text in texts.split(b"\0")), default=1) or 1
