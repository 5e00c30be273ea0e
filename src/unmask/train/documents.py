"""Training the language model: stories of a source and word problems, one document a row, filled up with ends.

Stories are sampled from the source (`train.stories`) all through training, by a process of its own; word problems are
made where a batch is made. Both have reserved parts that are never trained on. The network learns two attentions
together: over everything, and block-causal (`train.process.sees_copies`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from unmask.core.state import Vocab
from unmask.decoding.decode import decode_batch
from unmask.decoding.recipe import Recipe
from unmask.errors import InputError
from unmask.evaluate.judge.stories import WAY, Source, read_source
from unmask.models import WEIGHTS
from unmask.models.network import Network
from unmask.models.tokenizers import read_tokenizer
from unmask.models.transformer import Transformer
from unmask.tasks import files
from unmask.tasks.puzzles.word_problems import Form, WordProblem, word_problem
from unmask.train.process import SCHEDULES, blocks_of, chances, hidden, measuring_times, noised_hidden
from unmask.train.shards import HELD, Shards, check_tokenizer, is_made, made, making, shard
from unmask.train.stories import Sampler, texts
from unmask.train.task import Array, DataOptions, TrainTask, hashes
from unmask.train.words import END, MASK, made_words, read_words

LENGTH = 256  # columns of a row
BLOCK = 16  # open positions to a block of block-causal attention
CONFIG: dict[str, Any] = {
    "model_type": "unmask",
    "vocabulary": 4096,
    "width": 384,
    "layers": 10,
    "heads": 6,
    "inner": 896,
    "position": "both",  # a canvas of nothing but masks has no other sign of where its columns are
    "places": LENGTH,
    "tied": True,
    "logit_scale": 384**-0.5,
    "qk_norm": True,
    "limit": LENGTH,
    "blocks": BLOCK,
    "mask_token_id": MASK,
    "eos_token_id": END,
    "pad_token_id": END,
    "torch_dtype": "float32",
}
PLAN: dict[str, Any] = {"weighting": "nelbo", "batch": 512, "decay": 0.1, "mixture": 0.5}
PROBLEMS, ASKED = 0.35, 0.95  # the share of rows that are problems, and of these the share whose question is given
PROMPTED, INFILLED = 0.3, 0.1  # shares of the stories whose first words, or first and last words, are given
LONGEST_PROMPT = 40  # tokens of a story that are given
FRESH, WINDOW = 1200, 12  # steps until a new shard of stories joins; how many shards are in use
STREAM, HELD_STREAM = 8, 9  # of random numbers
TOKENIZER_STORIES, TOKENIZER_PROBLEMS = 20_000, 20_000  # that the tokenizer is made of
FEW, MANY = 192, 16_384  # stories of a shard, on a CPU and elsewhere: a CPU makes a few in a second, for trials
BUNDLED = WEIGHTS / "text" / "tokenizer.json"  # the tokenizer on a CPU, which would take hours to make stories for one
DRAWS, TOGETHER = 4, 64  # times at which a row is masked to measure it; rows through the network at a time
SOLVED = 128  # word problems that a validation decodes


def task(options: DataOptions) -> TrainTask:
    options.only("text", "stories", "tokenizer")
    if options.stories is None:
        raise InputError("text needs the source of its stories", f"give --stories FILE; get it by {WAY}")
    if is_made(options.stories):
        return _made(options, options.stories)
    source = read_source(options.stories)
    about, started = {"files": hashes(_files(options.stories))}, ExitStack()

    def prepare() -> Mapping[str, Any]:
        """Make the tokenizer, unless there is one, and start the process that makes stories."""
        kept = options.directory / "tokenizer.json"
        if not kept.exists():
            given = _tokenizer(options) or (BUNDLED if options.device == "cpu" else None)
            words = read_words(given, CONFIG["vocabulary"]) if given else make_tokenizer(_some(source, options.device))
            kept.write_text(words.to_str(), encoding="utf-8")
        shards = Shards(
            str(options.directory),
            str(options.stories),
            kept.read_text(encoding="utf-8"),
            seed=options.seed,
            rows=FEW if options.device == "cpu" else MANY,
            device=options.device,
            graph=False,  # beside a training it is as fast, and it starts at once
        )
        started.enter_context(making(shards))
        return {"held": options.held}

    data = Documents(str(options.directory), options.held)
    return TrainTask(data, CONFIG, MASK, about, prepare=prepare, close=started.close, block_size=BLOCK)


def _made(options: DataOptions, folder: str) -> TrainTask:
    """The task with shards that another training has made: nothing is sampled."""
    note, count = made(folder)

    def prepare() -> Mapping[str, Any]:
        kept = options.directory / "tokenizer.json"
        if not kept.exists():
            words = read_words(_tokenizer(options) or Path(folder) / "tokenizer.json", CONFIG["vocabulary"])
            kept.write_text(words.to_str(), encoding="utf-8")
        check_tokenizer(folder, kept.read_text(encoding="utf-8"))
        return {"held": options.held}

    data = Documents(str(options.directory), options.held, folder, count)
    return TrainTask(data, CONFIG, MASK, {"shards": {**note, "count": count}}, prepare=prepare, block_size=BLOCK)


def _tokenizer(options: DataOptions) -> str | Path | None:
    """The tokenizer that was given, or that of the weights."""
    beside = None if options.weights is None else options.weights.parent / "tokenizer.json"
    return options.tokenizer or beside


def _files(path: str) -> list[str]:
    return [path] if Path(path).is_file() else sorted(str(one) for one in Path(path).iterdir() if one.is_file())


def _some(source: Source, device: str) -> list[str]:
    """Stories for a tokenizer."""
    kind = torch.float32 if device == "cpu" else torch.bfloat16
    return texts(Sampler(source.to(device, kind)), TOKENIZER_STORIES, STREAM)


def make_tokenizer(stories: list[str], size: int = CONFIG["vocabulary"]) -> Tokenizer:
    """A byte-level BPE whose digits are single tokens, made of stories and word problems."""
    dice = Random(STREAM)
    problems = (word_problem(dice) for _ in range(TOKENIZER_PROBLEMS))
    return made_words(_texts(stories, problems), size, single_digits=True)


def _texts(stories: list[str], problems: Iterator[WordProblem]) -> Iterator[str]:
    yield from stories
    for problem in problems:
        yield problem.question + problem.solution


# --- rows ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def _words(path: str) -> Tokenizer:
    words = Tokenizer.from_file(path)
    words.encode_special_tokens = True  # text that spells a special token is text
    return words


def problem_rows(problems: list[WordProblem], words: Tokenizer) -> tuple[Array, Array]:  # [N, L] int32, [N] int64
    """Question, solution and ends; and how many tokens the question has. Problems that do not fit are left out."""
    questions = words.encode_batch_fast([one.question for one in problems], add_special_tokens=False)
    solutions = words.encode_batch_fast([one.solution for one in problems], add_special_tokens=False)
    rows = [(one.ids, other.ids) for one, other in zip(questions, solutions, strict=True)]
    rows = [(one, other) for one, other in rows if len(one) + len(other) < LENGTH]
    tokens = np.full((len(rows), LENGTH), END, dtype=np.int32)
    for row, (one, other) in enumerate(rows):
        tokens[row, : len(one) + len(other)] = one + other
    return tokens, np.array([len(one) for one, _ in rows])


def text_rows(path: str, words: Tokenizer, length: int = LENGTH) -> NDArray[np.int64]:  # [N, length]
    """The documents of a file, one a row, filled up with ends; what does not fit is cut off."""
    words.encode_special_tokens = True  # text that spells a special token is text
    found = words.encode_batch_fast(list(files.documents(path)), add_special_tokens=False)
    tokens = np.full((len(found), length), END, dtype=np.int64)
    for row, one in zip(tokens, found, strict=True):
        row[: len(one.ids)] = one.ids[:length]
    return tokens


@dataclass(frozen=True)
class Documents:
    """Stories and word problems; those that are reserved, to validate on."""

    directory: str  # with tokenizer.json and the shards of stories
    held: int = 256
    made: str | None = None  # another directory with the shards; no more are made there
    count: int = 0  # how many shards those are

    @property
    def words(self) -> Tokenizer:
        return _words(f"{self.directory}/tokenizer.json")

    def batch(self, number: int, size: int) -> tuple[Array, Array]:
        """Rows in random order, and which of their positions may be masked."""
        dice = np.random.default_rng([number, STREAM])
        count = round(size * PROBLEMS)
        tokens = np.empty((size, LENGTH), dtype=np.int32)
        given = np.zeros((size, LENGTH), dtype=bool)
        column, order = np.arange(LENGTH), dice.permutation(size)
        mine, rest = order[:count], order[count:]
        tokens[mine], asked = self._problems(count, Random(int(dice.integers(2**62))))
        given[mine] = column < (asked * (dice.random(count) < ASKED))[:, None]
        tokens[rest] = self._stories(number, size - count, dice)
        given[rest] = _given(tokens[rest], dice)
        return tokens, ~given

    def _problems(self, count: int, dice: Random) -> tuple[Array, Array]:
        tokens, asked = problem_rows([word_problem(dice) for _ in range(count)], self.words)
        while len(tokens) < count:
            more = problem_rows([word_problem(dice) for _ in range(count - len(tokens))], self.words)
            tokens, asked = np.concatenate([tokens, more[0]]), np.concatenate([asked, more[1]])
        return tokens, asked

    def _stories(self, number: int, count: int, dice: np.random.Generator) -> Array:
        latest = (number % 2**32) // FRESH
        first, last = (0, self.count) if self.made else (max(0, latest - WINDOW + 1), latest + 1)
        rows = shard(self.made or self.directory, int(dice.integers(first, last)))
        return rows[dice.integers(0, len(rows), count)].astype(np.int32)

    def validate(self, network: Network) -> dict[str, float]:
        """NELBO in nats a token, of reserved stories and of the answers of reserved problems; and the share solved."""
        stories = shard(self.made or self.directory, 0, HELD)[: self.held].astype(np.int64)
        problems = held_problems(self.held)
        tokens, asked = problem_rows(problems, self.words)
        answers = np.arange(LENGTH) >= asked[:, None]
        found = {}
        for name, block in (("full", None), ("block", BLOCK)):
            found[f"story_{name}"] = nelbo(network, stories, np.ones_like(stories, dtype=bool), block)
            found[f"answer_{name}"] = nelbo(network, tokens.astype(np.int64), answers, block)
        return found | solved(network, self.directory, problems[:SOLVED])


def _given(rows: Array, dice: np.random.Generator) -> NDArray[np.bool_]:  # [N, L]
    """What is given of stories: nothing, the first words, or all but some words in the middle."""
    column, many = np.arange(LENGTH), len(rows)
    kind, size = dice.random(many), (rows != END).sum(1)
    first = np.minimum(dice.integers(1, LONGEST_PROMPT + 1, many), size // 2)
    end = first + 1 + (dice.random(many) * (size - first)).astype(np.int64)
    prompt = (column < first[:, None]) & (kind < PROMPTED + INFILLED)[:, None]
    given: NDArray[np.bool_] = prompt | ((column >= end[:, None]) & (kind < INFILLED)[:, None])
    return given


def held_problems(count: int, seed: int = 0, form: Form = "plain") -> list[WordProblem]:
    """Reserved word problems."""
    dice = Random(f"{HELD_STREAM}-{seed}")
    return [word_problem(dice, held=True, form=form) for _ in range(count)]


# --- figures ---------------------------------------------------------------------------------------------------------


def nelbo(network: Network, tokens: NDArray[np.int64], open: NDArray[np.bool_], block: int | None) -> float:
    """An estimate of the NELBO in nats per open token, under full attention or in blocks."""
    return float(nats(network, tokens, open, block).sum()) / max(1, int(open.sum()))


@torch.no_grad()
def nats(
    network: Network, tokens: NDArray[np.int64], open: NDArray[np.bool_], block: int | None
) -> NDArray[np.float64]:  # [N]
    """An estimate of each row's NELBO; its times and masks depend on its number and the number of rows."""
    device, schedule = network.embed.weight.device, SCHEDULES["linear"]
    many = 1 if block is None else -(-LENGTH // block)  # blocks, each with a time of its own
    each = measuring_times(len(tokens) * many, DRAWS, torch.Generator().manual_seed(0)).view(DRAWS, len(tokens), many)
    found = []
    for rows in torch.split(torch.arange(len(tokens)), TOGETHER):
        clean, free = torch.from_numpy(tokens)[rows].to(device), torch.from_numpy(open)[rows].to(device)
        blocks = None if block is None else blocks_of(free, block)
        place = torch.zeros_like(clean) if blocks is None else (blocks - 1).clamp(min=0)
        total = torch.zeros(len(rows), dtype=torch.float64)
        for draw in range(DRAWS):
            when = each[draw, rows].to(device).gather(1, place)
            hide = free & hidden(when, schedule, chances(0, rows, draw, clean.shape[1]).to(device))
            losses = _losses(network, clean, hide, blocks)
            total += (losses * schedule.weight(when) * hide).sum(1).double().cpu() / DRAWS
        found.append(total.numpy())
    return np.concatenate(found)


def _losses(network: Network, clean: Tensor, hide: Tensor, blocks: Tensor | None) -> Tensor:  # [B, L]
    columns = torch.arange(clean.shape[1], device=clean.device)[None]
    noised = clean.masked_fill(hide, MASK)
    if blocks is None:
        hidden, _ = network(noised, columns)
    else:
        hidden = noised_hidden(network, noised, clean, columns, network.waves(columns), blocks, flex=False)
    logits = network.logits(hidden)
    logits[..., MASK] = -torch.inf
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), clean.flatten(), reduction="none").view(clean.shape)


def solved(network: Network, directory: str, problems: list[WordProblem]) -> dict[str, float]:
    """The share of problems whose last number is right: confidence in blocks of 32, and block-causal attention."""
    words = read_tokenizer(Path(directory))
    assert words is not None
    model = Transformer(network, Vocab(MASK, (END,), END), words, "text", limit=LENGTH, absent=(MASK,), blocks=BLOCK)
    semi = Recipe("semi-ar", length=112, block_length=32, fill_tail=True)
    found = {}
    for name, recipe in (("full", semi), ("block", semi.replace(block_length=BLOCK, attention="block"))):
        results = decode_batch(model, [one.question for one in problems], recipe=recipe)
        right = [result.text.endswith(f" {one.answer}.") for result, one in zip(results, problems, strict=True)]
        found[f"solved_{name}"] = sum(right) / len(right)
    return found
