"""A server for long: its memory over thousands of mixed requests, and its end by TERM or KILL under load.

    python tests/endurance.py --requests 2000 --ends 20

pytest collects nothing here; `make attack` runs it. Prints the memory after every tenth of the requests, and for each
signal what became of the requests that were under way. With constraints the server keeps 8 MiB of their automata, not
256: this memory is full early, and whatever else grows is seen.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

PROMPTS = ["Once upon a time", "One day, a little", "Lily and Tom went to the", "There was a", ""]
PUZZLE = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
FAULTY: list[Any] = [
    {"prompt": 5},
    {"prompt": "a", "max_tokens": 10**9},
    {"prompt": "a", "matches": "(" * 50},
    {"prompt": "a", "sampler": "nobody"},
    {"canvas": "no masks"},
    [],
    "text",
]
Started = tuple[subprocess.Popen[str], int]


SMALL = """
import sys
from unmask.cli import main
from unmask.decoding import form
form.KEPT = 8 << 20
sys.exit(main(sys.argv[1:]))
"""


@contextmanager
def server(*flags: str, small: bool = False) -> Iterator[Started]:
    """A process that serves `text` and `sudoku`, and its port; `small`: it keeps little of constraints."""
    how = ["-c", SMALL] if small else ["-m", "unmask"]
    words = [sys.executable, *how, "serve", "--model", "text", "--model", "sudoku", "--port", "0", *flags]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if "http://" in line:
                    break
            yield process, int(line.rpartition("http://")[2].split("/")[0].rpartition(":")[2].split()[0])
        finally:
            process.kill()


def mixed(dice: Random, number: int) -> Any:
    """A request: a sixth of them faulty, a third with a constraint of its own."""
    kind = number % 6
    if kind == 0:
        return dice.choice(FAULTY)
    settings = {"seed": number, "temperature": 1, "sampler": dice.choice(["uniform", "confidence", "entropy"])}
    settings |= dice.choice([{}, {"search": "auto", "particles": 2}, {"search": "smc", "particles": 3}, {"n": 2}])
    settings |= {"stream": True} if dice.random() < 0.3 else {}
    if kind == 1:
        return {**settings, "model": "sudoku", "canvas": PUZZLE.replace(".", "[MASK]"), "steps": 4}
    form = {"matches": f" [a-z ]{{1,{dice.randint(5, 60)}}} {number}?"} if kind in (2, 3) else {}
    return {**settings, "model": "text", "prompt": dice.choice(PROMPTS), "max_tokens": dice.choice([4, 8, 16]), **form}


def ask(port: int, body: Any, seconds: float = 120) -> str:
    """The status, `cut` for an answer that broke off, `refused` without a connection."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        try:
            line.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        except ConnectionRefusedError:
            return "refused"
        answer = line.getresponse()
        text = answer.read()
        whole = answer.status != 200 or b"[DONE]" in text or text.endswith(b"}")
        return str(answer.status) if whole else "cut"
    except (OSError, http.client.HTTPException):
        return "cut"
    finally:
        line.close()


def resident(process: subprocess.Popen[str]) -> float:
    """MiB of memory that a process holds."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def memory(requests: int, clients: int = 4, constrained: bool = True) -> tuple[list[float], Counter[str]]:
    """MiB at the start and after every tenth of the requests, and how these were answered."""
    dice, found, answers = Random(0), list[float](), Counter[str]()
    with server(small=constrained) as (process, port), ThreadPoolExecutor(clients) as pool:
        ask(port, {"model": "text", "prompt": "One", "max_tokens": 4})
        found.append(resident(process))
        numbers = [n for n in range(requests * 2) if constrained or n % 6 not in (2, 3)][:requests]
        for tenth in range(10):
            some = numbers[tenth * requests // 10 : (tenth + 1) * requests // 10]
            answers.update(pool.map(ask, [port] * len(some), [mixed(dice, number) for number in some]))
            found.append(resident(process))
    return found, answers


def ended(how: signal.Signals, clients: int, after: float, grace: float) -> tuple[Counter[str], float]:
    """What clients were answered from one second before a signal on, and the seconds until the process was gone."""
    answers, over = Counter[str](), threading.Event()

    def client(number: int) -> None:
        dice = Random(number)
        while not over.is_set():
            said = ask(port, mixed(dice, dice.randrange(10**6)))
            answers[said] += 1
            if said == "refused":
                time.sleep(0.05)

    with server("--grace", str(grace)) as (process, port), ThreadPoolExecutor(clients) as pool:
        for number in range(clients):
            pool.submit(client, number)
        time.sleep(after)
        answers.clear()
        began = time.monotonic()
        process.send_signal(how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace + 30)
        took = time.monotonic() - began
        over.set()
    return answers, took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--ends", type=int, default=20, help="times that a loaded server is sent each signal")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--grace", type=float, default=3)
    args = parser.parse_args()
    wrong = 0
    for constrained in (False, True) if args.requests else ():
        found, answers = memory(args.requests, constrained=constrained)
        middle, last = max(found[4:7]), max(found[8:])
        flat = last <= 1.05 * middle
        odd = {status: count for status, count in answers.items() if status not in ("200", "400", "413", "422")}
        wrong += not flat or bool(odd)
        about = "with" if constrained else "without"
        sizes = " ".join(f"{size:.0f}" for size in found)
        print(f"memory: {args.requests:,} requests {about} constraints, MiB: {sizes}; {'flat' if flat else 'GROWS'}; "
              f"{dict(answers)}", flush=True)  # fmt: skip
    dice = Random(1)
    for how in (signal.SIGTERM, signal.SIGKILL):
        total, slowest, late = Counter[str](), 0.0, 0
        for _ in range(args.ends):
            answers, took = ended(how, args.clients, dice.uniform(1, 4), args.grace)
            total, slowest, late = total + answers, max(slowest, took), late + (took > args.grace + 10)
        wrong += late
        print(
            f"ends: {args.ends} × {how.name} under load, gone after at most {slowest:.1f} s; {dict(total)}", flush=True
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
