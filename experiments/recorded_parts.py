"""What each part of the recorded driver buys: the same decodes with all parts, and without one of them.

    python experiments/recorded_parts.py OUT.jsonl

The parts are recording itself (without it, the host waits in every step), dropping finished prompts, compiling the
small operations of a step (where the network is compiled), and keeping recordings for the next walk. The variants of a
case are timed in alternation after one run each. A row has the median of a decode, and its ratio to that of all parts.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

import unmask
from unmask.core.denoiser import traits
from unmask.core.gpu import recorded
from unmask.models.made.random_sizes import make
from unmask.models.transformer import compiled
from unmask.tasks.puzzles import countdown, held_out
from unmask.tasks.puzzles import sudoku as sudokus

DEVICE = torch.device("cuda")


@contextlib.contextmanager
def without(part: str) -> Iterator[None]:
    """The driver as it would be if this part were not there."""
    with contextlib.ExitStack() as stack:
        if part == "recording":
            stack.enter_context(mock.patch.object(recorded, "can_record", return_value=False))
        if part == "dropping":
            real = recorded._Part.__init__

            def never(self: Any, *given: Any) -> None:
                real(self, *given)
                self.prompts = 0

            stack.enter_context(mock.patch.object(recorded._Part, "__init__", never))
        if part == "compiling":
            stack.enter_context(mock.patch.object(recorded, "MANY", 0))
        if part == "keeping":
            stack.enter_context(mock.patch.object(recorded, "keep"))
        yield


def seconds(decode: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    decode()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def case(name: str, model: Any, canvases: list[Any], settings: dict[str, Any], parts: str, repeat: int = 5) -> None:
    recipe = unmask.Recipe(**settings)
    recordings = traits(model).recordings
    assert recordings is not None

    def decode() -> object:
        return unmask.decode_batch(model, canvases=canvases, recipe=recipe)

    variants = ["", *parts.split()]
    kept: dict[str, list[Any]] = {}
    times: dict[str, list[float]] = {one: [] for one in variants}
    for turn in range(repeat + 1):
        for part in variants:
            recordings[:] = kept.get(part, [])
            with without(part):
                spent = seconds(decode)
            kept[part] = list(recordings)
            if turn:
                times[part].append(spent)
    recordings.clear()
    whole = statistics.median(times[""])
    for part in variants:
        median = statistics.median(times[part])
        row = {"case": name, "without": part, "ms": round(1e3 * median, 2), "ratio": round(median / whole, 4)}
        row |= {"low": round(1e3 * min(times[part]), 2), "high": round(1e3 * max(times[part]), 2), "n": repeat}
        row |= {"rows": len(canvases) * recipe.build_search().particles, "recipe": recipe.to_dict()}
        print(json.dumps(row), file=FILE, flush=True)
        print(f"{name:44} without {part or '-':10} {row['ms']:10.2f} ms  {row['ratio']:.3f}", flush=True)


def holes(model: Any, *lengths: int) -> list[list[int]]:
    return [[model.vocab.mask] * length for length in lengths]


def main() -> None:
    small = {name: unmask.load(name, DEVICE) for name in ("sudoku", "countdown", "text")}
    boards = [board for board in held_out.sudokus(64, 26, 77) if board is not None]
    canvases = [sudokus.canvas(sudokus.parse(board)) for board in boards]
    lines = [line for numbers in (3, 4, 5) for line in held_out.countdowns(22, numbers, 77)]
    mixed = [countdown.canvas(countdown.parse(json.loads(line)["input"])) for line in lines]
    count = small["countdown"]
    text, sudoku = small["text"], small["sudoku"]
    eight = {"search": "auto", "particles": 8, "temperature": 1.0}
    uniform = {"sampler": "uniform", **eight}
    one, steps = "recording keeping", "compiling keeping"
    case("sudoku eb 64x8", sudoku, canvases, {"sampler": "eb", **eight}, "recording dropping keeping")
    fast_dllm = {"sampler": "fast-dllm", "threshold": 0.9, **eight}
    case("sudoku fast-dllm 64x8", sudoku, canvases, fast_dllm, "dropping keeping")
    case("sudoku confidence 1x8", sudoku, canvases[:1], {"sampler": "confidence", **eight}, one)
    case("countdown confidence 66x8", count, mixed, {"sampler": "confidence", **eight}, "recording dropping keeping")
    case("countdown eb 66x8", count, mixed, {"sampler": "eb", **eight}, "dropping keeping")
    lengths, four = holes(text, *range(32, 257, 16)), {**uniform, "particles": 4}
    case("text uniform one a step, 32..256, 15x4", text, lengths, four, "recording dropping", 2)
    case("text uniform 16 steps, 128, 1x8", text, holes(text, 128), {**uniform, "steps": 16}, one, 9)
    case("text uniform 64 steps, 256, 8x8", text, holes(text, *[256] * 8), {**uniform, "steps": 64}, one)
    case("text compiled uniform 64 steps, 256, 1x8", compiled(text), holes(text, 256), {**uniform, "steps": 64}, steps)
    smc = {"sampler": "uniform", "search": "smc", "temperature": 1.0, "steps": 64, "particles": 8}
    mdlm = make("mdlm", DEVICE)
    case("mdlm smc 64 steps, 1024, 1x8", mdlm, holes(mdlm, 1024), smc, one, 3)
    fast, path = compiled(mdlm), {"sampler": "uniform", "temperature": 1.0, "steps": 64}
    case("mdlm compiled smc 64 steps, 1024, 1x8", fast, holes(mdlm, 1024), smc, steps, 3)
    case("mdlm compiled smc 64 steps, 1024, 1x1", fast, holes(mdlm, 1024), path, steps, 3)


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as FILE:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        head = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": commit or None}
        print(json.dumps({**head, "date": time.strftime("%Y-%m-%d")}), file=FILE)
        main()
