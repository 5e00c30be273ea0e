"""`make attack`: the hostile tests with more cases, kills again and again, and equal seeds in random company.

Takes minutes; pytest collects nothing here. Prints one line for each area, and exits with 1 if anything broke.
`python tests/attack.py --scale 0.1` is a tenth of it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch

from unmask import SAMPLERS, Recipe, decode, decode_batch, load

HERE = Path(__file__).parent
PROMPTS = ["once upon a time", "one day", "tom has 5 apples. mia has", "she", "", "lily was very happy because her mom"]
SEARCHED: list[tuple[str, dict[str, Any]]] = [
    ("vanilla", {}),
    *((name, {"particles": 3}) for name in ("best-of-n", "smc", "auto")),
    ("best-of-n", {"particles": 3, "choose": "look"}),
    ("auto", {"particles": 3, "until": 0.5, "most": 6}),  # in waves
    ("auto", {"particles": 2, "until": 0.01, "escalate": "uniform"}),
]
# area: (what pytest runs, how often, settings of the environment at full scale)
AREAS: dict[str, tuple[str, int, dict[str, int]]] = {
    "server: bodies that its document allows": ("server/test_openapi.py", 1, {"UNMASK_EXAMPLES": 1000}),
    "server: hostile requests, clients that leave": ("server/test_hostile.py server/test_faults.py", 5, {}),
    "server: batches and fairness": ("server/test_batches.py", 5, {}),
    "files: damaged checkpoints": ("checkpoints/test_fuzz.py", 1, {"UNMASK_CASES": 5000}),
    "files: pickles, tokenizers, templates": (
        "test_convert.py checkpoints/test_files.py checkpoints/test_tokens.py test_judge.py",
        2,
        {},
    ),
    "sandbox: escapes, bombs, clean-up": ("test_sandbox.py", 4, {}),
    "graders: wrong answers that want to pass": ("test_tasks.py", 2, {}),
    "durability: killed runs": ("test_bulk.py test_bench.py -k killed", 15, {}),
}


def ran(words: str, times: int, settings: dict[str, int]) -> tuple[int, int]:
    """How many tests passed and failed."""
    passed = failed = 0
    for _ in range(times):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words.split()]
        env = os.environ | {name: str(value) for name, value in settings.items()}
        done = subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True)
        last = (done.stdout.strip().splitlines() or [""])[-1]
        passed += sum(map(int, re.findall(r"(\d+) passed", last)))
        broke = sum(map(int, re.findall(r"(\d+) (?:failed|error)", last))) or int(done.returncode != 0)
        failed += broke
        if broke:
            print(done.stdout[-4000:], done.stderr[-2000:], file=sys.stderr)
    return passed, failed


def company(seconds: float) -> Iterator[bool]:
    """Whether a row alone has the tokens that it has in random company: threads, order, lengths and batch sizes."""
    models, dice, end = [load("text"), *[load("random")] * 4], Random(), time.monotonic() + seconds
    names = [name for name in SAMPLERS if name != "pc"]  # which needs a table
    while time.monotonic() < end:
        model = dice.choice(models)
        search, more = dice.choice(SEARCHED)
        recipe = Recipe(
            dice.choice(names), search, length=dice.choice([4, 8, 24]), temperature=dice.choice([0.0, 0.7, 1.0]), **more
        )
        rows = [(dice.choice(PROMPTS), dice.randrange(2**40)) for _ in range(dice.randint(2, 4))]
        torch.set_num_threads(dice.choice([1, 2]))
        texts, seeds = [text for text, _ in rows], [seed for _, seed in rows]
        size = dice.choice([None, 2, 3])
        together = decode_batch(model, texts, recipe=recipe, seeds=seeds, batch_size=size)
        torch.set_num_threads(dice.choice([1, 2]))
        for (text, seed), result in zip(rows, together, strict=True):
            same = decode(model, text, recipe=recipe.replace(seed=seed)).tokens == result.tokens
            if not same:
                print(f"other tokens alone: {text!r}, seed {seed}, {recipe}, among {rows}", file=sys.stderr)
            yield same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of all counts and times")
    parser.add_argument("--only", default="", help="areas whose name holds this text")
    args = parser.parse_args()
    wrong = 0
    for area, (words, times, settings) in AREAS.items():
        if args.only in area:
            began = time.monotonic()
            scaled = {name: max(40, round(value * args.scale)) for name, value in settings.items()}
            passed, failed = ran(words, max(1, round(times * args.scale)), scaled)
            print(f"{area:46} {passed:6,} held {failed:4,} broke {time.monotonic() - began:6.0f} s", flush=True)
            wrong += failed
    if args.only in "durability: kill -9 at random moments":
        kills = ["--kills", str(max(2, round(30 * args.scale)))]
        wrong += subprocess.run([sys.executable, str(HERE / "kills.py"), *kills], check=False).returncode
    area = "determinism: equal seeds in random company"
    if args.only in area:
        found = list(company(300 * args.scale))
        print(f"{area:46} {sum(found):6,} held {found.count(False):4,} broke", flush=True)
        wrong += found.count(False)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
