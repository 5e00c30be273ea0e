"""Training on one's own prose: text files -> a tokenizer, packed tokens, windows of them; and bits per byte.

A text file holds documents with a blank line between them; it may be compressed with xz or gzip. In the packed tokens
every document ends with the token <|endoftext|>.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from unmask.errors import InputError
from unmask.models.network import Network
from unmask.tasks.files import documents
from unmask.train.process import SCHEDULES, chances, hidden, measuring_times
from unmask.train.task import Array, DataOptions, TrainTask
from unmask.train.words import END, MASK, made_words, read_words

LENGTH = 512
CONFIG: dict[str, Any] = {
    "model_type": "unmask",
    "vocabulary": 8192,
    "width": 384,
    "layers": 8,
    "heads": 6,
    "inner": 1024,
    "tied": True,
    "logit_scale": 384**-0.5,
    "qk_norm": True,
    "limit": LENGTH,
    "mask_token_id": MASK,
    "eos_token_id": END,
    "pad_token_id": END,
    "torch_dtype": "float32",
}
PLAN = {"weighting": "nelbo", "batch": 128, "decay": 0.1}
SHORT, PARTS = 0.15, 8  # the share of batches with shorter windows, and how many of them make a long one
TOKENS, CORPUS = "tokens.npy", "corpus.json"
DRAWS, TOGETHER = 4, 32  # times at which a window is masked to measure it; windows through the network at a time
TOKENIZER_BYTES = 2 * 10**8  # of the corpus make the tokenizer, evenly spread over its files
Packed = NDArray[np.uint16]


def task(options: DataOptions) -> TrainTask:
    """The corpus is packed once, into the directory of the model, when it is known that training can begin there."""
    options.only("prose", "corpus", "heldout", "tokenizer")
    if not options.corpus or options.heldout is None:
        raise InputError("prose needs text to train and to validate on", "give --corpus FILE ... --heldout FILE")
    for path in (*options.corpus, options.heldout):
        next(documents(path))  # before the long work: is there anything to read?
    words = _tokenizer(options)
    held = windows(pack([options.heldout], words), LENGTH)
    held = held[:: max(1, len(held) // options.held)][: options.held]  # from all over the text
    source = Windows(str(options.directory / TOKENS), held, widths(words))
    _check_corpus(options, words)

    def prepare() -> dict[str, object]:
        if not Path(source.path).exists():
            _pack_into(options, words)
        return {"tokens": len(_opened(source.path)), "files": [Path(each).name for each in options.corpus]}

    config = {**CONFIG, "vocabulary": words.get_vocab_size()}  # so that every token it can say is one
    return TrainTask(source, config, MASK, prepare=prepare)


def _note(options: DataOptions, words: Tokenizer) -> str:
    """The origin of packed tokens."""
    files = [[Path(each).name, Path(each).stat().st_size] for each in options.corpus]
    return json.dumps({"files": files, "tokenizer": hashlib.sha256(words.to_str().encode()).hexdigest()}) + "\n"


def _check_corpus(options: DataOptions, words: Tokenizer) -> None:
    """Refuse a directory with tokens of another corpus."""
    path, note = options.directory / TOKENS, options.directory / CORPUS
    if path.exists() and note.exists() and note.read_text(encoding="utf-8") != _note(options, words):
        what = f"{str(options.directory)!r} has tokens of another corpus or tokenizer"
        raise InputError(what, "give another directory")


def _pack_into(options: DataOptions, words: Tokenizer) -> None:
    """Write the tokens of the corpus into the model's directory, with their tokenizer and their origin."""
    directory = options.directory
    tokens = pack(options.corpus, words)
    if len(tokens) < LENGTH:
        raise InputError(f"the corpus has {len(tokens)} tokens", f"a window has {LENGTH}: give more text")
    (directory / "tokenizer.json").write_text(words.to_str(), encoding="utf-8")
    (directory / CORPUS).write_text(_note(options, words), encoding="utf-8")
    np.save(directory / f"new.{TOKENS}", tokens)
    (directory / f"new.{TOKENS}").rename(directory / TOKENS)


def _tokenizer(options: DataOptions) -> Tokenizer:
    """The one that is given, the one of the weights, the one of the directory, or one made of the corpus."""
    beside = options.directory if options.weights is None else options.weights.parent
    given = Path(options.tokenizer or beside / "tokenizer.json")
    if options.tokenizer is None and not given.exists():
        if options.weights is not None:
            raise InputError(f"there is no {str(given)!r}", "give the --tokenizer that the weights were trained with")
        return make_tokenizer(options.corpus, CONFIG["vocabulary"])
    return read_words(given, CONFIG["vocabulary"])


# --- the tokenizer ---------------------------------------------------------------------------------------------------


def make_tokenizer(paths: Sequence[str], size: int) -> Tokenizer:
    """A byte-level BPE of `size` tokens, trained on the corpus."""
    return made_words(_some(paths), size)


def _some(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        left = TOKENIZER_BYTES // len(paths)
        for text in documents(path):
            yield text
            left -= len(text)
            if left < 0:
                break


def pack(paths: Sequence[str], words: Tokenizer) -> Packed:
    """All documents as one row of tokens."""
    words.encode_special_tokens = True  # text that spells a special token is text
    parts: list[Packed] = []
    for path in paths:
        some: list[str] = []
        for text in documents(path):
            some.append(text)
            if len(some) == 1000:
                parts.append(_encoded(some, words))
                some = []
        if some:
            parts.append(_encoded(some, words))
    return np.concatenate(parts)


def _encoded(texts: list[str], words: Tokenizer) -> Packed:
    found = words.encode_batch_fast(texts, add_special_tokens=False)
    return np.concatenate([np.array([*encoding.ids, END], dtype=np.uint16) for encoding in found])


def widths(words: Tokenizer) -> NDArray[np.int64]:
    """The bytes of text of each token; special ones have none."""
    # A token has one character for each byte.
    sizes = [len(words.id_to_token(number) or "") for number in range(words.get_vocab_size())]
    return np.array([0 if number in (END, MASK) else size for number, size in enumerate(sizes)])


# --- tokens ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def _opened(path: str) -> Packed:
    return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Windows:
    """Windows of packed tokens, from anywhere; and the bits per byte of held-out ones.

    Some batches have windows of an eighth of the length, and eight times as many: prompts and canvases of users are
    short, and a network that has only seen long ones makes no sense of them.
    """

    path: str
    held_out: NDArray[np.int64]  # [N, length]
    widths: NDArray[np.int64]
    length: int = LENGTH

    def batch(self, number: int, size: int) -> tuple[Array, Array]:
        tokens = _opened(self.path)
        if len(tokens) < self.length:
            raise InputError(f"the corpus has {len(tokens)} tokens", f"a window has {self.length}: give more text")
        dice = np.random.default_rng([number, 6])
        parts = PARTS if dice.random() < SHORT and self.length % PARTS == 0 else 1  # more and shorter windows
        length = self.length // parts
        starts = dice.integers(0, len(tokens) - length + 1, size * parts)
        return tokens[starts[:, None] + np.arange(length)].astype(np.int32), np.ones(length, dtype=bool)

    def validate(self, network: Network) -> dict[str, float]:
        found = bits_per_byte(nelbo(network, self.held_out), self.widths[self.held_out].sum(1))
        named = zip(("bits_per_byte", "low", "high"), found, strict=True)
        return {name: value for name, value in named if value is not None}


def windows(tokens: Packed, length: int) -> NDArray[np.int64]:  # [N, length]
    """Neighbouring windows; a shorter rest is left out."""
    count = len(tokens) // length
    if count == 0:
        raise InputError(f"the held-out text has {len(tokens)} tokens", f"a window has {length}: give more text")
    return tokens[: count * length].reshape(count, length).astype(np.int64)


@torch.no_grad()
def nelbo(
    network: Network,
    rows: NDArray[np.int64],
    seed: int = 0,
    on_batch: Callable[[int, NDArray[np.float64]], None] = lambda begin, nats: None,
    known: Mapping[int, float] = MappingProxyType({}),
    numbers: Sequence[int] | None = None,
    count: int | None = None,
) -> NDArray[np.float64]:  # [N]
    """An estimate of each window's NELBO in nats; `on_batch` gets the index of a batch's first window and their NELBOs.

    Every window is masked at DRAWS times, one in each equal part of the unit interval, and all windows together spread
    their times evenly over each part. Times and masks of a window depend on its number, the number of windows and the
    seed. A batch of windows that are `known` is not computed again. `numbers` are those of the rows among `count`
    windows, where they are not all.
    """
    device, schedule = network.embed.weight.device, SCHEDULES["linear"]
    generator = torch.Generator().manual_seed(seed)
    places = torch.arange(len(rows)) if numbers is None else torch.tensor(numbers)
    each = measuring_times(count or len(rows), DRAWS, generator).mT[places]  # [N, DRAWS]
    found = []
    for begin in range(0, len(rows), TOGETHER):
        clean = torch.from_numpy(rows[begin : begin + TOGETHER]).to(device)
        nats = torch.zeros(len(clean), dtype=torch.float64)
        old = [known[number] for number in range(begin, begin + len(clean)) if number in known]
        for draw, when in enumerate(each[begin : begin + TOGETHER].mT if len(old) < len(clean) else ()):
            hide = hidden(when, schedule, chances(seed, places[begin : begin + TOGETHER], draw, clean.shape[1])).to(
                device
            )
            losses = log_loss(network, clean.masked_fill(hide, MASK), clean)
            nats += (losses * hide).sum(1).double().cpu() * schedule.weight(when) / DRAWS
        found.append(np.array(old) if len(old) == len(clean) else nats.numpy())
        on_batch(begin, found[-1])
    return np.concatenate(found)


def bits_per_byte(
    nats: NDArray[np.float64], sizes: NDArray[np.int64]
) -> tuple[float, float, float] | tuple[float, None, None]:
    """All nats over all bytes, in bits, with the 95 % interval that the spread over windows leaves; one leaves none."""
    share = nats.sum() / sizes.sum()
    middle = float(share) / math.log(2)
    if len(nats) == 1:
        return middle, None, None
    spread = np.std(nats - share * sizes, ddof=1) * len(nats) ** 0.5 / sizes.sum()
    half = 1.96 * float(spread) / math.log(2)
    return middle, middle - half, middle + half


def log_loss(network: Network, noised: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:  # [B, L]
    """-log p of the true tokens, with the mask excluded from the distribution."""
    hidden, _ = network(noised, torch.arange(clean.shape[1], device=clean.device)[None])
    logits = network.logits(hidden)
    logits[..., MASK] = -torch.inf
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), clean.flatten(), reduction="none").view(clean.shape)
