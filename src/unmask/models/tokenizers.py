"""Tokenizers: of single characters, of ids, and of files (tokenizer.json, or vocab.json with merges.txt)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.errors import InputError, ModelError, guarded
from unmask.models.chat_process import RENDERER
from unmask.models.files.checkpoint import inside, read_bytes, read_json
from unmask.models.growth import check_growth

# How Qwen2 splits text before merging, digits one by one; Dream has it in code, not in a file.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LONG = 1 << 14  # characters of a text during which other threads go on: `encode` would hold Python's lock


@dataclass(frozen=True)
class Characters:
    """Every character of the alphabet is a token; its place is its id."""

    alphabet: str

    def encode(self, text: str) -> list[int]:
        ids = [self.alphabet.find(character) for character in text]
        if -1 in ids:
            strange = text[ids.index(-1)]
            raise InputError(f"{strange!r} is not a character of this model", f"it knows {self.alphabet!r}")
        return ids

    def decode(self, ids: list[int]) -> str:
        return "".join(self.alphabet[i] if 0 <= i < len(self.alphabet) else "_" for i in ids)


@dataclass(frozen=True)
class Numbers:
    """For a checkpoint without a tokenizer: text is ids with spaces between them."""

    def encode(self, text: str) -> list[int]:
        try:
            return [int(part) for part in text.split()]
        except ValueError:
            raise InputError(
                f"this model has no tokenizer, and {text[:40]!r} is not made of token ids",
                "write ids like '12 7 99', or load it with a tokenizer: --tokenizer DIR",
            ) from None

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


@dataclass(frozen=True, eq=False)
class FileTokenizer:
    """A tokenizer from files. No special token is added to a text; a chat template writes its own."""

    fast: Any  # tokenizers.Tokenizer
    template: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)  # bos_token and the like -> their texts

    def encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError:
            way = "it is not valid Unicode: write it in UTF-8"
            raise InputError(f"the tokenizer cannot read {text[:40]!r}", way) from None
        with guarded(f"the tokenizer cannot read {text[:40]!r}", InputError):
            return [int(token) for token in self._encoded(text)]

    def decode(self, ids: list[int]) -> str:
        known = [i for i in ids if 0 <= i < self.size]
        with guarded(f"the tokenizer cannot write {known[:8]}", InputError):
            return self._decoded(known)

    def foreign(self, text: str) -> bool:
        """Whether most letters of a text are spelled in tokens for single bytes, as it has none for them."""
        letters = [letter for letter in text if letter.isalpha()]
        unknown = {one for one in set(letters) if not one.isascii() and "\ufffd" in self._parts(one)}
        return 2 * sum(letter in unknown for letter in letters) > len(letters)

    def _parts(self, text: str) -> str:
        """The tokens of a text, each decoded by itself."""
        return "".join(self.decode([token]) for token in self.encode(text))

    @cached_property
    def size(self) -> int:
        """One more than the highest id."""
        return max(self.fast.get_vocab().values(), default=-1) + 1

    def id(self, text: str) -> int | None:
        """The id of one token."""
        try:
            found = self.fast.token_to_id(text)
        except UnicodeEncodeError:  # half a surrogate pair, which JSON can hold and no token is
            return None
        return None if found is None else int(found)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The dialogue as the checkpoint's template writes it, up to where the answer begins."""
        if self.template is None:
            raise InputError("this model has no chat template", "leave chat out and write the whole prompt")
        return self._rendered(self.template, messages)

    def _encoded(self, text: str) -> Iterable[int]:
        if len(text) > LONG:
            found = self.fast.encode_batch([text], add_special_tokens=False)[0]
        else:
            found = self.fast.encode(text, add_special_tokens=False)
        ids: list[int] = found.ids
        return ids

    def _decoded(self, ids: list[int]) -> str:
        return str(self.fast.decode(ids, skip_special_tokens=True))

    def _rendered(self, template: str, messages: Sequence[Mapping[str, str]]) -> str:
        return RENDERER.render(template, messages, self.names)


# --- from files ------------------------------------------------------------------------------------------------------


def read_tokenizer(directory: Path) -> FileTokenizer | None:
    """The tokenizer of a checkpoint; None where it has none."""
    settings = read_json(directory, "tokenizer_config.json") or {}
    name, text = "tokenizer.json", read_bytes(directory, "tokenizer.json")
    if text is None:
        merges = read_bytes(directory, "merges.txt")
        if merges is None or inside(directory, "vocab.json") is None:
            return None
        parts = _from_parts(directory, merges.decode(errors="replace"), settings)
        name, text = "vocab.json with merges.txt", json.dumps(parts).encode()
    return FileTokenizer(_fast(name, text), _template(directory, settings), _names(directory, settings))


def from_object(given: Any) -> FileTokenizer:
    """A copy of a fast tokenizer of transformers or tokenizers, with its chat template if it has one."""
    fast = getattr(given, "backend_tokenizer", given)
    if not callable(getattr(fast, "to_str", None)):
        what = f"the tokenizer is a {type(given).__name__}"
        raise InputError(what, "give a directory, a hub id, or a fast tokenizer of transformers or tokenizers")
    named = getattr(given, "special_tokens_map", {}).items()
    texts = {name: str(token) for name, token in named if name.endswith("_token")}
    template = _default(getattr(given, "chat_template", None))
    return FileTokenizer(_fast("the tokenizer", fast.to_str().encode()), template, texts)


def _fast(name: str, text: bytes) -> Any:
    """The tokenizer of a tokenizer.json; a text always gives the same ids, and all of them."""
    from tokenizers import Tokenizer as Fast  # loaded with the first tokenizer

    with guarded(f"{name} is not a tokenizer"):
        fast = Fast.from_buffer(text)
        fast.no_padding()
        fast.no_truncation()
        if getattr(fast.model, "dropout", None):  # for training: it would split the same text differently each time
            fast.model.dropout = None
        check_growth(fast)
    return fast


def _from_parts(directory: Path, merges: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer.json that is missing: byte-level BPE as in Qwen2, with the added tokens of either config."""
    added, ordinary = _ids(directory, "added_tokens.json"), set()
    table = settings.get("added_tokens_decoder")
    for number, about in (table if isinstance(table, dict) else {}).items():
        if isinstance(about, dict) and isinstance(about.get("content"), str) and re.fullmatch("[0-9]{1,9}", number):
            added[about["content"]] = int(number)
            if about.get("special") is False:  # like <tool_call>: part of the text
                ordinary.add(about["content"])
    lines = [line for line in merges.split("\n") if line and not line.startswith("#version")]
    return byte_level(_ids(directory, "vocab.json"), lines, added, ordinary)


def _ids(directory: Path, name: str) -> dict[str, int]:
    """Text -> id, from a file; nothing where there is none."""
    table = read_json(directory, name) or {}
    if not all(type(number) is int and number >= 0 for number in table.values()):
        raise ModelError(f"{name} holds values that are not token ids", "download it again")
    return table


def byte_level(
    vocabulary: Mapping[str, int], merges: Sequence[str], added: Mapping[str, int], ordinary: Collection[str] = ()
) -> dict[str, Any]:
    """A tokenizer.json of byte-level BPE that splits text like Qwen2; `added` tokens are special unless `ordinary`."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        **dict.fromkeys(("truncation", "padding", "post_processor")),
        "added_tokens": [
            {"id": number, "content": text, **flags, "special": text not in ordinary}
            for text, number in sorted(added.items(), key=lambda item: item[1])
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "decoder": level,
        "model": {"type": "BPE", "vocab": {**vocabulary, **added}, "merges": list(merges)},
    }


def _template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own, or a field."""
    text = read_bytes(directory, "chat_template.jinja")
    if text is not None:
        return text.decode(errors="replace")
    return _default(settings.get("chat_template"))


def _default(found: Any) -> str | None:
    """A chat template; of several, the one called default."""
    if isinstance(found, Mapping):  # as transformers holds several
        found = found.get("default")
    if isinstance(found, list):
        named = [one for one in found if isinstance(one, dict) and one.get("name") == "default"]
        found = named[-1].get("template") if named else None
    return found if isinstance(found, str) else None


def _names(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token`, `mask_token` and the like, as texts."""
    found: dict[str, str] = {}
    for table in (read_json(directory, "special_tokens_map.json") or {}, settings):
        for name, token in table.items():
            text = token.get("content") if isinstance(token, dict) else token
            if name.endswith("_token") and isinstance(text, str):
                found[name] = text
    return found
