"""kill -9 at random moments of long commands, resumed by the same command: rows as of a run that nobody killed.

    python tests/kills.py --kills 30

pytest collects nothing here; `make attack` runs it. Prints a line for each command: kills, whether all of its rows are
there once, and whether they are those of the run without a kill; of a training, the logged losses. `--press` presses
Ctrl-C twice instead, which must end a command with 130 and without a traceback.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from test_judge import tiny
from unmask.evaluate.rows import timeless
from unmask.train.log import LOG, read_log

SMALL = '{"width": 32, "layers": 1, "inner": 32}'
COMMANDS = {
    "eval": "eval sudoku --data p.txt --rows OUT/rows.jsonl --temperature 1 --steps 8 --search auto --batch 1",
    "generate": "generate --prompts q.txt -o OUT/rows.jsonl --model random --length 100 --temperature 1 --batch 1",
    "paper": "paper quality --on text --limit 2 --scale 0.1 --judge none --no-pictures --out OUT",
    "judge": "judge t.jsonl --judge JUDGE --rows OUT/rows.jsonl",
    "train": f"train sudoku OUT --steps 40 --batch 2 --held 1 --log 4 --check 3 --shape '{SMALL}'",
}


def rows(folder: Path) -> dict[str, dict[int, Any]]:
    """The rows of all files of a run by their numbers; a number twice is an error. Of a training, the logged losses."""
    if (folder / LOG).exists():
        events = [event for event in read_log(folder) if "loss" in event]
        assert len({event["step"] for event in events}) == len(events), "a step is logged twice"
        return {LOG: {event["step"]: event["loss"] for event in events}}
    found: dict[str, dict[int, Any]] = {}
    for path in sorted(folder.rglob("*.jsonl")):
        kept = found.setdefault(str(path.relative_to(folder)), {})
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if "number" in line:
                assert line["number"] not in kept, f"{path.name}: {line['number']} twice"
                kept[line["number"]] = timeless(line)
    return found


def run(command: list[str], folder: Path, seconds: float | None, press: bool = False) -> bool:
    """Whether the command came to its end; otherwise it is killed after so many seconds, or interrupted twice."""
    with subprocess.Popen(
        [sys.executable, "-m", "unmask", *command], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            _, trouble = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            if not press:
                process.kill()
                return False
            for pause in (0.0, 0.05):
                time.sleep(pause)
                process.send_signal(signal.SIGINT)
            _, trouble = process.communicate()
            if process.returncode == 130:
                assert b"Traceback" not in trouble, trouble.decode()[-2000:]
                return False
    assert process.returncode == 0, trouble.decode()[-500:]
    return True


def killed(name: str, folder: Path, kills: int, dice: Random, press: bool) -> tuple[int, int, bool]:
    """Kills, whole runs that they fell into, and whether each of these has the rows of a run without a kill."""

    def line(out: str) -> list[str]:
        words = shlex.split(COMMANDS[name].replace("JUDGE", str(folder / "judge")))
        return [word.replace("OUT", out) for word in words]

    began = time.monotonic()
    (folder / f"{name}-whole").mkdir()
    run(line(f"{name}-whole"), folder, None)
    whole, took = rows(folder / f"{name}-whole"), time.monotonic() - began
    done, runs, equal = 0, 0, True
    while done < kills:
        out = folder / f"{name}-{runs}"
        out.mkdir()
        while not run(line(out.name), folder, dice.uniform(0.2, 1.0) * took, press):
            done += 1
        runs += 1
        equal = equal and rows(out) == whole
        shutil.rmtree(out)
    return done, runs, equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--press", action="store_true", help="Ctrl-C, twice, instead of kill -9")
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=f"of {', '.join(COMMANDS)} [all]")
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run(
            [sys.executable, "-m", "unmask", "puzzles", "sudoku", "--count", "16", "--clues", "40", "-o", "p.txt"],
            cwd=folder,
            check=True,
            capture_output=True,
        )
        (folder / "q.txt").write_text("".join(f"prompt {number}\n" for number in range(16)))
        texts = [json.dumps({"number": number, "text": "a b c " * 60}) for number in range(200)]
        (folder / "t.jsonl").write_text("\n".join(texts) + "\n")
        (folder / "judge").mkdir()
        tiny(folder / "judge")
        for name in args.commands or COMMANDS:
            kills, runs, equal = killed(name, folder, args.kills, Random(args.seed), args.press)
            verdict = "rows as without a kill" if equal else "OTHER ROWS"
            what = "Ctrl-C" if args.press else "kills"
            print(f"durability: {name:10} {kills:4} {what} in {runs:3} runs, {verdict}", flush=True)
            wrong += not equal
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
