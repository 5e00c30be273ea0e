"""A server whose batches are refilled between waves, against one that fills each batch once: seconds, rows, waits.

    python experiments/serve_refill.py --clients 16 --requests 64 --rounds 3
    python experiments/serve_refill.py --every 1 --requests 64 --rounds 3

Two servers, each a process of its own, get the same requests in turn, in the order A B, B A, A B …: Sudokus with
24 clues in EB order, with a search that stops (`auto`, 8 particles, at most 32 paths, `until`). Each client sends its
next request when it has the answer to the last one; with --every requests come at fixed times. While one server has its
turn, the other rests. Printed as JSON for each round and server: seconds, and processor seconds of the server (`cpu`);
rows that the network computed, and its calls; mean, p50 and p95 of the answer times; and choices that joined a running
batch. `rows_mean`, `rows_p50` and `rows_p95` are the answer times in rows that the network computed meanwhile. Then
means over rounds, and whether all answers are the same in both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

from serve_load import ask, metric, timed

SEED = 7100  # of puzzles that no training has


def bodies(requests: int, until: float) -> list[dict[str, Any]]:
    """Requests of one recipe."""
    from unmask.tasks.puzzles import held_out

    settings = {"model": "sudoku", "sampler": "eb", "temperature": 1, "search": "auto", "particles": 8, "most": 32}
    puzzles = held_out.sudokus(requests, 24, SEED)
    texts = ["".join(cell if cell in "123456789" else "[MASK]" for cell in puzzle or "") for puzzle in puzzles]
    return [{**settings, "until": until, "canvas": text, "seed": at} for at, text in enumerate(texts)]


async def client(port: int, waiting: list[dict[str, Any]], log: list[dict[str, Any]], wait: float = 0.0) -> None:
    """One client, after so many seconds: the next request that nobody has sent, and its answer, until none is left."""
    lines: list[Any] = []
    await asyncio.sleep(wait)
    while waiting:
        body = waiting.pop(0)
        began = time.perf_counter()
        status, text = await ask(port, "POST", "/v1/completions", json.dumps(body).encode(), lines)
        assert status == 200, text
        found = json.loads(text)
        took = {"seed": body["seed"], "began": began, "seconds": time.perf_counter() - began}
        choice = found["choices"][0]
        log.append({**took, "text": choice["text"], "paths": len(choice["unmask"]["particles"])})


async def turn(port: int, clients: int, asked: list[dict[str, Any]], every: float = 0.0) -> dict[str, Any]:
    """All requests once, by so many clients or one `every` so many seconds; the figures."""
    before = {name: await total(port, name) for name in ("rows", "joined", "cpu")}
    began, log, waiting = time.perf_counter(), list[dict[str, Any]](), list(asked)
    if every:
        await asyncio.gather(*(client(port, [body], log, every * place) for place, body in enumerate(waiting)))
    else:
        await asyncio.gather(*(client(port, waiting, log) for _ in range(clients)))
    end = time.perf_counter()
    return {
        "began": began,
        "seconds": end - began,
        **{name: await total(port, name) - value for name, value in before.items()},
        **spread([one["seconds"] for one in log]),
        "paths": statistics.mean(one["paths"] for one in log),
        "log": sorted(log, key=lambda one: one["seed"]),
    }


def spread(values: list[float], name: str = "") -> dict[str, float]:
    """Mean and quantiles."""
    ordered = sorted(values)
    found = {
        "mean": statistics.mean(values),
        "p50": ordered[len(ordered) // 2],
        "p95": ordered[int(0.95 * len(ordered))],
    }
    return {name + key: value for key, value in found.items()}


def of_network(one: dict[str, Any], calls: list[tuple[float, float, int]]) -> dict[str, float]:
    """The calls of a round, and the rows that were computed while each of its requests waited."""

    def within(began: float, seconds: float) -> list[tuple[float, float, int]]:
        return [call for call in calls if began < call[0] <= began + seconds]

    mine = within(one["began"], one["seconds"])
    waits = [float(sum(call[2] for call in within(row["began"], row["seconds"]))) for row in one["log"]]
    return {"calls": len(mine), "network": sum(call[1] for call in mine), **spread(waits, "rows_")}


async def total(port: int, name: str) -> float:
    full = {"rows": 'unmask_rows_total\\{model="sudoku"\\}', "cpu": "process_cpu_seconds_total"}
    try:
        return await metric(port, full.get(name, f"unmask_{name}_total"))
    except TypeError:  # a metric with labels is absent before the first of them
        return 0.0


def serve(refills: bool, file: str) -> None:
    """Serve until Ctrl-C; then write the calls of the network."""
    from unmask.server.batcher import Batcher
    from unmask.server.batcher.batch import Batch
    from unmask.server.limits import Limits
    from unmask.server.request import ServeConfig
    from unmask.server.run import serve as run

    if not refills:

        def never(self: Batcher, batch: Batch) -> list[Any]:
            batch.drop_closed()
            return []

        Batcher._joining = never  # type: ignore[method-assign]
    calls: list[tuple[float, float, int]] = []
    config = ServeConfig({"sudoku": timed("sudoku", calls)}, {"temperature": 1.0}, Limits())
    try:
        with suppress(KeyboardInterrupt):
            run(config, port=0, on_ready=lambda url, _: print(url, flush=True))
    finally:
        with open(file, "w", encoding="utf-8") as out:
            json.dump(calls, out)


async def rounds(ports: dict[str, int], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Both servers in turn; a short round of each first, which is not counted."""
    asked, found = bodies(args.requests, args.until), []
    for port in ports.values():
        await turn(port, args.clients, asked[: args.clients])
    for number in range(args.rounds):
        for name in list(ports)[:: 1 if number % 2 == 0 else -1]:
            found.append({"server": name, "round": number, **await turn(ports[name], args.clients, asked, args.every)})
            shown = {key: value for key, value in found[-1].items() if key != "log"}
            print(json.dumps(shown), file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--every", type=float, default=0.0, help="seconds between two requests, whoever is answered")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--until", type=float, default=0.01)
    parser.add_argument("--out", help="write OUT.json, too")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve[0] == "refilled", args.serve[1])
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    busy, names = os.getloadavg()[0], ("refilled", "filled once")
    with tempfile.TemporaryDirectory() as folder:
        files = {name: f"{folder}/{place}.json" for place, name in enumerate(names)}
        started = [
            subprocess.Popen([sys.executable, __file__, "--serve", *one], stdout=subprocess.PIPE, text=True)
            for one in files.items()
        ]
        try:
            ports = {}
            for name, server in zip(names, started, strict=True):
                assert server.stdout is not None
                ports[name] = int(server.stdout.readline().rpartition(":")[2])
            found = asyncio.run(rounds(ports, args))
        finally:
            for server in started:
                server.send_signal(signal.SIGINT)
                server.wait(30)
        for one in found:
            with open(files[one["server"]], encoding="utf-8") as calls:
                one |= of_network(one, json.load(calls))
    same = len({tuple(row["text"] for row in one.pop("log")) for one in found}) == 1
    figures = [name for name in found[0] if name not in ("server", "round", "began")]
    means = {name: {key: statistics.mean(one[key] for one in found if one["server"] == name) for key in figures}
             for name in names}  # fmt: skip
    about = {"asked": vars(args), "load_before": busy, "cpus": os.cpu_count(), "date": time.strftime("%Y-%m-%d")}
    text = json.dumps({"means": means, "same": same, "rounds": found, **about}, indent=1)
    print(text)
    if args.out:
        with open(f"{args.out}.json", "w", encoding="utf-8") as out:
            out.write(text + "\n")


if __name__ == "__main__":
    main()
