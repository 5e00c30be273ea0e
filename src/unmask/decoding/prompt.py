"""Prompts and canvases, as text or ids -> the first State: left-padded, prompts × particles."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask.core import dice
from unmask.core.denoiser import Chats, Denoiser, traits
from unmask.core.sampler import Sampler
from unmask.core.state import State, begin, padded
from unmask.decoding.elsewhere import Elsewhere
from unmask.decoding.settings import DEFAULT_LENGTH
from unmask.errors import InputError, SettingError, many
from unmask.models import memory
from unmask.models.cache import Keeps
from unmask.models.tokenizers import Numbers
from unmask.models.wrap import layers

MARKER = "[MASK]"  # one hole; [MASK*8] is eight
HOLE = re.compile(r"(\[MASK(?:\*\d{1,18})?\])")
WAY_OUT = "lower particles, length or the number of prompts"
Text = str | Sequence[int] | Sequence[Mapping[str, str]]  # text, token ids, or a dialogue of roles and contents


@dataclass(frozen=True)
class Canvas:
    """One row to decode: ids with the mask id at every open position."""

    tokens: list[int]
    given: int  # leading tokens that are a prompt: the text of the result begins after them
    source: Any = field(default=None, compare=False, repr=False)  # the prompt or canvas as it was given


def from_prompt(denoiser: Denoiser, prompt: Text, length: int | None) -> Canvas:
    """A prompt, then `length` masks."""
    if length is None or length < 1:
        raise InputError(f"length is {length}", "say how many positions to generate, at least 1")
    ids = encode(denoiser, prompt)
    _check_fits(denoiser, len(ids) + length, "shorten the prompt or the length")
    if denoiser.vocab.mask in ids:
        raise InputError(
            f"the prompt holds the mask id {denoiser.vocab.mask} at position {ids.index(denoiser.vocab.mask)}",
            "give text with holes as canvas",
        )
    return Canvas([*ids, *[denoiser.vocab.mask] * length], len(ids))


def fitting_length(denoiser: Denoiser, prompts: Sequence[Text], most: int = DEFAULT_LENGTH) -> int:
    """Positions to generate where the user gives no length: at most as many as fit after the longest prompt."""
    longest = max((len(encode(denoiser, prompt)) for prompt in prompts), default=0)
    return most if denoiser.limit is None else max(1, min(most, denoiser.limit - longest))


def from_canvas(denoiser: Denoiser, canvas: Text) -> Canvas:
    """Text with markers, or ids with the mask id, at the open positions."""
    way_out = "make the canvas shorter"
    tokens: list[int] = []
    for part in HOLE.split(canvas) if isinstance(canvas, str) else [canvas]:
        if isinstance(part, str) and HOLE.fullmatch(part):
            width = int(part[6:-1] or 1)
            _check_fits(denoiser, len(tokens) + width, way_out)
            tokens += [denoiser.vocab.mask] * width
        else:
            tokens += encode(denoiser, part)
    _check_fits(denoiser, len(tokens), way_out)
    if denoiser.vocab.mask not in tokens:
        raise InputError("the canvas has no hole", f"write {MARKER} (or [MASK*8] for eight) where text is missing")
    return Canvas(tokens, 0)


def _one_row(text: Any) -> Any:
    """The ids in what transformers' tokenizers return for one text: `input_ids`, a tensor or an array of one row."""
    ids = text["input_ids"] if isinstance(text, Mapping) and "input_ids" in text else text
    rows = ids is not text and len(ids) == 1 and isinstance(ids[0], list)
    return ids[0] if rows or (getattr(ids, "ndim", 1) == 2 and len(ids) == 1) else ids


def encode(denoiser: Denoiser, text: Text) -> list[int]:
    """Token ids of a text, of a dialogue, or as they are given."""
    hint = "give a string, a list of integers, or a list of messages; decode_batch takes several prompts"
    try:
        text = _one_row(text)
        parts: list[Any] = [] if isinstance(text, str) else list(text)
        if parts and all(isinstance(part, Mapping) for part in parts):
            text = _dialogue(denoiser, parts)
        if isinstance(text, bytes) or any(isinstance(part, bool) for part in parts):
            raise TypeError
        ids = denoiser.tokenizer.encode(text) if isinstance(text, str) else [operator.index(part) for part in parts]
    except TypeError:
        raise InputError(f"{text!r} is neither text nor token ids", hint) from None
    known = max(denoiser.head.width, denoiser.vocab.mask + 1)
    for token in ids:
        if not 0 <= token < known:
            raise InputError(f"token id {token} is outside the vocabulary", f"ids go from 0 to {known - 1}")
    return ids


def _dialogue(denoiser: Denoiser, messages: Sequence[Mapping[str, str]]) -> str:
    """The messages as the model's chat template writes them."""
    for message in messages:
        if set(message) != {"role", "content"} or not all(isinstance(part, str) for part in message.values()):
            raise InputError(f"{dict(message)!r} is not a message", "give {'role': 'user', 'content': '…'}")
    if isinstance(denoiser.tokenizer, Numbers):
        raise InputError(f"{denoiser.name} has no tokenizer, so no chat template", "load it with one: tokenizer=…")
    if not isinstance(denoiser.tokenizer, Chats):
        raise InputError(f"{denoiser.name} has no chat template", "give the prompt as text")
    return denoiser.tokenizer.chat(messages)


def start(
    denoiser: Denoiser, canvases: Sequence[Canvas], seeds: Sequence[int], sampler: Sampler, particles: int
) -> State:
    """The first State, after every check that needs no network."""
    check_rows(denoiser, canvases, sampler, particles)
    vocab = denoiser.vocab
    tokens, attend = padded([canvas.tokens for canvas in canvases], vocab.pad)
    parts = (tokens, (tokens == vocab.mask) & attend, attend, dice.keys(seeds))
    tokens, writable, attend, keys = (part.to(denoiser.device) for part in parts)
    blocks, memory = traits(denoiser).attention, getattr(sampler, "memory", 0)
    return begin(tokens, writable, attend, keys, vocab, particles, sampler.steps, blocks, memory)


def check_rows(denoiser: Denoiser, canvases: Sequence[Canvas], sampler: Sampler, particles: int) -> None:
    """Refuse rows that the model, the sampler or the memory cannot take."""
    if not canvases:
        raise InputError("there is nothing to decode", "give at least one prompt or canvas")
    longest = max(len(canvas.tokens) for canvas in canvases)
    _check_fits(denoiser, longest, "make the canvas shorter")
    _check_blocks(denoiser, canvases, sampler)
    check_memory(denoiser, len(canvases), particles, longest)


def _check_fits(denoiser: Denoiser, length: int, way_out: str) -> None:
    """Refuse a canvas that the model or the memory cannot take, before it is laid out."""
    if denoiser.limit is not None and length > denoiser.limit:
        raise InputError(
            f"a canvas of {length} positions is longer than {denoiser.name} allows ({denoiser.limit})", way_out
        )
    check_memory(denoiser, 1, 1, length)


def _check_blocks(denoiser: Denoiser, canvases: Sequence[Canvas], sampler: Sampler) -> None:
    """Every block needs a step of its own."""
    if sampler.steps is None or sampler.block_length is None:
        return

    def blocks(length: int) -> int:
        return max(_blocks(denoiser, canvas, length) for canvas in canvases)

    if sampler.steps < blocks(sampler.block_length):
        attention = traits(denoiser).attention
        longest = attention.size if attention is not None else max(len(canvas.tokens) for canvas in canvases)
        lengths = (length for length in range(1, longest + 1) if attention is None or longest % length == 0)
        longer = next((f" or block_length to {length}" for length in lengths if blocks(length) <= sampler.steps), "")
        raise SettingError(
            f"{many(sampler.steps, 'step is', 'steps are')} fewer than the {blocks(sampler.block_length)} blocks",
            f"raise steps to {blocks(sampler.block_length)}{longer}",
            setting="steps",
        )


def _blocks(denoiser: Denoiser, canvas: Canvas, length: int) -> int:
    """How many blocks of a canvas have open positions."""
    attention, mask = traits(denoiser).attention, denoiser.vocab.mask
    if attention is None or not attention.aligned:
        return -(-canvas.tokens.count(mask) // length)
    return len({column // length for column, token in enumerate(canvas.tokens) if token == mask})


def check_memory(denoiser: Denoiser, prompts: int, particles: int, length: int, way_out: str = WAY_OUT) -> None:
    """Refuse what cannot fit: canvases, their numbers, three copies of the hidden states, kept keys and values."""
    weight = denoiser.head.weight
    hidden = (weight.shape[1] * weight.element_size()) if weight is not None else denoiser.head.width * 8
    kept = sum(2 * layer.position_bytes for layer in layers(denoiser) if isinstance(layer, Keeps))  # old and new
    each = 0 if isinstance(denoiser, Elsewhere) else denoiser.cost * (3 * hidden + kept)
    need = prompts * particles * length * (each + 128)  # 128: tokens, flags, numbers
    free = memory.free(denoiser.device)
    if need > free:
        raise SettingError(
            f"{prompts} × {particles} particles of {length} positions need about {need / 2**30:,.1f} GiB, "
            f"{free / 2**30:,.1f} GiB are free",
            way_out,
        )
