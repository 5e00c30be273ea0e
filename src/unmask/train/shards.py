"""A Source, a tokenizer and a seed -> shards of stories in a directory, made in the background while a training runs.

A shard is `stories-00000.npy`: rows of tokens [rows, length] uint16, one story each, filled up with the end token. What
it holds depends on the seed, its number and the tokenizer only. Reserved stories are never in it: they are in
`held-00000.npy` beside it. A shard appears under its name when it is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from unmask.errors import InputError, ModelError, first_line, guarded
from unmask.evaluate.judge.stories import read_source
from unmask.models import on_device
from unmask.train.stories import Ids, Sampler, held, text_of

STORIES, HELD = "stories", "held"
NOTE, BEAT, FAILED, ASKED = "shards.json", "maker.alive", "maker.failed", "asked-"
PULSE, SILENCE = 5.0, 60.0  # seconds between signs of life of the maker, and without one until it counts as dead
LOOK = 0.2  # seconds between two looks for a shard
AHEAD = 2  # shards that are made before one of their number has been asked for
WAITING = 2  # shards that may wait for their tokens
Tokens = NDArray[np.uint16]


@dataclass(frozen=True)
class Shards:
    """What the shards of a directory are made of."""

    directory: str
    source: str  # a file like llama2.data, or a directory
    tokenizer: str  # the text of a tokenizer.json
    seed: int = 0
    rows: int = 16384  # of a shard
    length: int = 256  # tokens of a row, at least one of them the end
    end: int = 0
    first: int = 0  # the number of the first shard that is wanted
    count: int | None = None  # shards; None makes them until it is stopped
    device: str = "cuda"
    batch: int | None = None  # stories that are sampled together
    graph: bool | None = None  # as of a Sampler

    @property
    def note(self) -> dict[str, Any]:
        """What the content of a shard depends on."""
        digest = hashlib.sha256(self.tokenizer.encode()).hexdigest()
        return {"tokenizer": digest, "seed": self.seed, "rows": self.rows, "length": self.length, "end": self.end}


# --- reading ---------------------------------------------------------------------------------------------------------


def shard(directory: str | Path, number: int, kind: str = STORIES, timeout: float = 600.0) -> Tokens:  # a memory map
    """The tokens of a shard; one that is not there yet is waited for while its maker lives."""
    folder = Path(directory)
    path, began, asked = folder / _name(kind, number), time.monotonic(), folder / f"{ASKED}{number:05}"
    if _alive(folder) and not asked.exists():
        asked.touch()
    while not path.exists():
        failed = folder / FAILED
        if failed.exists():
            raise ModelError(f"no more stories in {str(folder)!r}", failed.read_text(encoding="utf-8"))
        if not _alive(folder) and not path.exists():
            raise ModelError(f"{str(path)!r} is not there, and nothing makes it", "start the training again")
        if time.monotonic() - began > timeout:
            raise ModelError(f"{str(path)!r} is not there after {timeout:.0f} s", "wait longer, or see its maker")
        time.sleep(LOOK)
    return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]


def _name(kind: str, number: int) -> str:
    return f"{kind}-{number:05}.npy"


def _asked(folder: Path) -> int:
    """The highest number of a shard that was asked for."""
    return max((int(path.name.removeprefix(ASKED)) for path in folder.glob(f"{ASKED}*")), default=0)


def _alive(folder: Path) -> bool:
    """Whether a maker gave a sign of life lately."""
    try:
        return time.time() - (folder / BEAT).stat().st_mtime < SILENCE
    except OSError:
        return False


def is_made(directory: str | Path) -> bool:
    """Whether a directory has shards, as that of a training."""
    return (Path(directory) / NOTE).is_file()


def made(directory: str | Path) -> tuple[dict[str, Any], int]:
    """What the shards of a directory are made of, and how many there are, from the first one on."""
    folder, count = Path(directory), 0
    with guarded(f"{str(folder / NOTE)!r} cannot be read", InputError):
        note: dict[str, Any] = dict(json.loads((folder / NOTE).read_text(encoding="utf-8")))
    while (folder / _name(STORIES, count)).is_file():
        count += 1
    if not count:
        raise InputError(f"{str(folder)!r} has no stories-00000.npy", "wait until its first shard is made")
    return note, count


def check_tokenizer(directory: str | Path, tokenizer: str) -> None:
    """Refuse shards of other tokens than those of this tokenizer.json."""
    if made(directory)[0].get("tokenizer") != hashlib.sha256(tokenizer.encode()).hexdigest():
        raise InputError(
            f"{str(directory)!r} has shards of another tokenizer", "give its tokenizer.json as --tokenizer"
        )


# --- making ----------------------------------------------------------------------------------------------------------


@contextmanager
def making(shards: Shards) -> Iterator[None]:
    """Make shards in another process as long as this lasts; those that are there already are kept."""
    folder = Path(shards.directory)
    read_source(shards.source)  # what is wrong with it is said here, and not in the background
    on_device("the source of stories", shards.device)
    _words(shards)
    _check_note(folder, shards)
    (folder / FAILED).unlink(missing_ok=True)
    (folder / BEAT).touch()
    process = get_context("spawn").Process(target=make, args=(shards, os.getpid()))
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()
        (folder / BEAT).unlink(missing_ok=True)


def _check_note(folder: Path, shards: Shards) -> None:
    """Refuse a directory with shards of something else."""
    folder.mkdir(parents=True, exist_ok=True)
    path, note = folder / NOTE, json.dumps(shards.note) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") != note:
        raise InputError(f"{str(folder)!r} has shards of another seed or tokenizer", "give another directory")
    path.write_text(note, encoding="utf-8")


def make(shards: Shards, parent: int | None = None) -> None:
    """Make shards in this process, which ends when its parent has; what goes wrong is written beside them."""
    folder = Path(shards.directory)
    if parent is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this
        torch.set_num_threads(1)
        if hasattr(os, "nice"):
            os.nice(5)
    stop = threading.Event()
    threading.Thread(target=_beat, args=(folder, stop), daemon=True).start()
    try:
        source = read_source(shards.source)
        device = on_device("the source of stories", shards.device)
        source = source.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
        _make(shards, Sampler(source, shards.batch, shards.graph), parent)
    except BaseException as error:
        (folder / FAILED).write_text(first_line(error), encoding="utf-8")
        raise
    finally:
        stop.set()


def _beat(folder: Path, stop: threading.Event) -> None:
    while not stop.wait(PULSE):
        (folder / BEAT).touch()


def _make(shards: Shards, sampler: Sampler, parent: int | None) -> None:
    """Sample shard after shard, while a thread writes the one before."""
    words = _words(shards)
    folder, lock, need = Path(shards.directory), threading.Lock(), 1
    waiting: list[Future[int]] = []
    last = None if shards.count is None else shards.first + shards.count
    number = shards.first
    with ThreadPoolExecutor(1) as pool:
        while (last is None or number < last) and (parent is None or os.getppid() == parent):
            if last is None and number > _asked(folder) + AHEAD:  # leave the device to the training
                for each in waiting:
                    if each.done():
                        each.result()  # what went wrong there ends the maker
                time.sleep(LOOK)
                continue
            if not (folder / _name(STORIES, number)).exists():
                batches = StoryBatches(sampler, shards.seed, number, lock)
                batches.fetch(need)
                waiting.append(pool.submit(_write, shards, batches, words))
                need = waiting.pop(0).result() if len(waiting) > WAITING else need
            number += 1
        for each in waiting:
            each.result()


def _words(shards: Shards) -> Tokenizer:
    with guarded("the tokenizer of the stories cannot be read", InputError):
        words = Tokenizer.from_str(shards.tokenizer)
    most = max(words.get_vocab().values(), default=0)
    if most > np.iinfo(np.uint16).max:
        raise InputError(f"the tokenizer has an id of {most}", "shards hold ids below 65536")
    words.encode_special_tokens = True  # text that spells a special token is text
    return words


class StoryBatches:
    """The batches of a shard, in order; some are fetched ahead."""

    def __init__(self, sampler: Sampler, seed: int, number: int, lock: threading.Lock) -> None:
        self.sampler, self.seed, self.number, self.lock = sampler, seed, number, lock
        self.ready: list[list[Ids]] = []

    def fetch(self, count: int) -> None:
        while len(self.ready) < count:
            with self.lock:  # the buffers of the sampler hold one batch
                self.ready.append(self.sampler.ended([self.seed, self.number, len(self.ready)]))

    def __iter__(self) -> Iterator[list[Ids]]:
        count = 0
        while True:
            count += 1
            self.fetch(count)
            yield self.ready[count - 1]


def _write(shards: Shards, batches: StoryBatches, words: Tokenizer) -> int:
    """Write a shard and its reserved stories; returns how many batches it needed."""
    kept: list[Tokens] = []
    reserved: list[Tokens] = []
    needed = 0
    for batch in batches:
        texts = [(held(text), text) for text in (text_of(batches.sampler.source, ids) for ids in batch)]
        for apart, rows in ((False, kept), (True, reserved)):
            some = [text for is_held, text in texts if is_held == apart]
            rows.append(rows_of(some, words, shards.length, shards.end))
        needed += 1
        if sum(map(len, kept)) >= shards.rows:
            break
    folder = Path(shards.directory)
    _save(folder / _name(HELD, batches.number), np.concatenate(reserved))
    _save(folder / _name(STORIES, batches.number), np.concatenate(kept)[: shards.rows])
    return needed


def rows_of(texts: Sequence[str], words: Tokenizer, length: int, end: int) -> Tokens:  # [at most N, length]
    """A row for each text, filled up with the end token; empty texts and those that leave no end are dropped."""
    found = [one.ids for one in words.encode_batch_fast(list(texts), add_special_tokens=False)]
    fits = [ids for ids in found if 0 < len(ids) < length]
    rows = np.full((len(fits), length), end, dtype=np.uint16)
    for row, ids in zip(rows, fits, strict=True):
        row[: len(ids)] = ids
    return rows


def _save(path: Path, rows: Tokens) -> None:
    new = path.with_name(f"new.{path.name}")
    np.save(new, rows)
    new.replace(path)
