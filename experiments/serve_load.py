"""A server under load: many clients at once, for a while; what they get, how fast, and what the network alone could do.

    python experiments/serve_load.py --model sudoku --clients 64 --seconds 60 > runs/serve_load.json

Starts a server as a process of its own. Each client sends its next request when it has the answer to the last one.
Printed as JSON: answers by status, requests without an answer, requests a second, p50 and p99 of their times, the
server's memory over time, and its evaluations a second beside the rows a second of the network alone, twice:

- `of_network`: against the same calls of the network, timed inside the server while it is under load: the share of
  the time in which it ran. Other work on the machine slows both down.
- `decode_of_network`: the same share for `decode_batch` without a server: what the head and the sampler take.
- `of_idle`: against calls of the network in this process, before and after, while the server rests: what it would do
  if clients and everything else cost nothing.

With `--large 5`, the same again beside a request of 64 particles and full length every 5 seconds: `alone` has the times
without it, `step_of_large` the seconds of one of its steps while nothing else is served, and `fair` whether p50 and p99
beside it are at most three times those alone and one such step. All that on a quiet machine, in one call of some three
minutes, with load.json and a table in load.md:

    python experiments/serve_load.py --clients 64 --seconds 60 --large 5 --out load
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

PUZZLES = [
    "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79",
    "..9748...7.........2.1.9.....7...24..64.1.59..98...3.....8.3.2.........6...2759..",
]
PROMPTS = ["Once upon a time", "One day, a little", "Lily and Tom went to the", "There was a", "The dog was very"]


def bodies(model: str, steps: int, length: int) -> list[dict[str, Any]]:
    """Requests of one recipe."""
    settings = {"model": model, "sampler": "uniform", "steps": steps, "temperature": 1}
    if model == "sudoku":
        return [{**settings, "canvas": puzzle.replace(".", "[MASK]")} for puzzle in PUZZLES]
    return [{**settings, "prompt": prompt, "max_tokens": length} for prompt in PROMPTS]


def large(asked: dict[str, Any], particles: int) -> dict[str, Any]:
    """A request of many particles, one position a step."""
    holes = asked["canvas"].count("[MASK]") if "canvas" in asked else 128
    size = {} if "canvas" in asked else {"max_tokens": holes}
    return {**asked, **size, "search": "smc", "particles": particles, "steps": holes}


async def ask(port: int, method: str, path: str, body: bytes, lines: list[Any]) -> tuple[int, bytes]:
    """Status and body of one answer, over a connection that is kept in `lines`."""
    if not lines:
        lines[:] = await asyncio.open_connection("127.0.0.1", port)
    reader, writer = lines
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    )
    writer.write(f"{head}\r\n\r\n".encode() + body)
    await writer.drain()
    answer = await reader.readuntil(b"\r\n\r\n")
    size = re.search(rb"content-length: (\d+)", answer)
    assert size, answer
    return int(answer.split(b" ", 2)[1]), await reader.readexactly(int(size[1]))


async def client(
    number: int,
    port: int,
    asked: list[dict[str, Any]],
    end: float,
    log: list[dict[str, Any]],
    most: float = float("inf"),
) -> None:
    """One client: a request, its answer, the next request; `most` of them."""
    lines: list[Any] = []
    place = 0
    while time.perf_counter() < end and place < most:
        body = {**asked[(number + place) % len(asked)], "seed": number * 100_000 + place}
        row: dict[str, Any] = {"began": time.perf_counter()}
        log.append(row)
        try:
            status, text = await ask(port, "POST", "/v1/completions", json.dumps(body).encode(), lines)
            row |= {"status": status, "seconds": time.perf_counter() - row["began"]}
            if status == 200:
                row["evaluations"] = json.loads(text)["unmask"]["evaluations"]
            else:
                await asyncio.sleep(0.2)
        except (OSError, asyncio.IncompleteReadError) as error:
            row["lost"] = repr(error)
            lines.clear()
        place += 1


async def every(port: int, body: dict[str, Any], wait: float, end: float, log: list[dict[str, Any]]) -> None:
    """A client that sends one large request after the other, at fixed times."""
    running = []
    while time.perf_counter() < end:
        running.append(asyncio.ensure_future(client(10**6 + len(running), port, [body], end, log, 1)))
        await asyncio.sleep(wait)
    await asyncio.gather(*running)


async def beside(
    port: int, clients: int, seconds: float, asked: list[dict[str, Any]], wait: float, particles: int
) -> dict[str, Any]:
    """The figures alone, and beside a large request every `wait` seconds."""
    body, idle, logged = large(asked[0], particles), list[dict[str, Any]](), list[dict[str, Any]]()
    await client(0, port, [body], float("inf"), idle, 1)
    step = idle[0]["seconds"] / body["steps"]
    alone = await load(port, clients, seconds, asked)
    others = asyncio.ensure_future(every(port, body, wait, time.perf_counter() + 1 + seconds, logged))
    found = await load(port, clients, seconds, asked)
    await others
    fair = {name: found[name] <= 3 * alone[name] + step for name in ("p50", "p99")}
    times = [row.get("seconds") for row in logged]
    statuses = [row.get("status", "lost") for row in logged]
    kept = {name: alone[name] for name in ("p50", "p99", "requests", "answers", "lost", "memory_mib")}
    return {
        **found,
        "alone": kept,
        "step_of_large": step,
        "large": {"seconds": times, "answers": statuses},
        "fair": fair,
    }


async def metric(port: int, name: str) -> float:
    _, text = await ask(port, "GET", "/metrics", b"", [])
    return float(re.search(rf"^{name} (\S+)$", text.decode(), re.M)[1])  # type: ignore[index]


async def load(port: int, clients: int, seconds: float, asked: list[dict[str, Any]]) -> dict[str, Any]:
    """All clients, for so long; the figures."""
    warm: list[dict[str, Any]] = []
    await asyncio.gather(*(client(n, port, asked, time.perf_counter() + 1, warm) for n in range(clients)))
    batches = [await metric(port, f"unmask_batch_choices_{which}") for which in ("count", "sum")]
    memory = [await metric(port, "process_resident_memory_bytes")]
    log: list[dict[str, Any]] = []
    began = time.perf_counter()
    running = [asyncio.ensure_future(client(n, port, asked, began + seconds, log)) for n in range(clients)]
    while not all(one.done() for one in running):
        await asyncio.sleep(min(5.0, seconds / 4))
        memory.append(await metric(port, "process_resident_memory_bytes"))
    took = max(row["began"] + row.get("seconds", 0) for row in log) - began
    after = [await metric(port, f"unmask_batch_choices_{which}") for which in ("count", "sum")]
    times = sorted(row["seconds"] for row in log if row.get("status") == 200)
    statuses = [row["status"] for row in log if "status" in row]
    return {
        "began": began,
        "seconds": took,
        "requests": len(log),
        "answers": {str(status): statuses.count(status) for status in sorted(set(statuses))},
        "lost": len(log) - len(statuses),
        "requests_per_second": len(times) / took,
        "p50": times[len(times) // 2],
        "p99": times[min(len(times) - 1, int(0.99 * len(times)))],
        "batch": (after[1] - batches[1]) / (after[0] - batches[0]),
        "rows_per_second": sum(row.get("evaluations", 0) for row in log) / took,
        "memory_mib": [round(size / 2**20, 1) for size in memory],
    }


def backbone(model_name: str, rows: int, body: dict[str, Any], seconds: float) -> float:
    """Rows a second through the network alone."""
    import torch

    from unmask import Recipe
    from unmask import load as load_model
    from unmask.decoding.prompt import from_canvas, from_prompt, start

    model = load_model(model_name)
    given, length = body.get("prompt", ""), body.get("max_tokens")
    canvas = from_canvas(model, body["canvas"]) if "canvas" in body else from_prompt(model, given, length)
    state = start(model, [canvas] * rows, range(rows), Recipe().build_sampler(), 1)
    everyone, times = torch.arange(rows), []
    with torch.no_grad():
        model.look(state, everyone)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 3:
            began = time.perf_counter()
            model.look(state, everyone)
            times.append(time.perf_counter() - began)
    return rows / statistics.median(times)


def timed(model_name: str, calls: list[tuple[float, float, int]]) -> Any:
    """The model; `calls` takes when each call of the network ended, how long it took, and its rows."""
    from dataclasses import dataclass

    from unmask import load as load_model
    from unmask.models.wrap import Wrapped

    @dataclass(frozen=True, eq=False)
    class Timed(Wrapped):
        def look(self, state: Any, rows: Any) -> Any:
            began = time.perf_counter()
            found = self.inner.look(state, rows)
            calls.append((time.perf_counter(), time.perf_counter() - began, len(rows)))
            return found

    return Timed(load_model(model_name))


def library(model_name: str, asked: list[dict[str, Any]], rows: int, seconds: float) -> float:
    """The share of the time that the network runs in `decode_batch`, without a server."""
    from unmask import Recipe, decode_batch

    calls: list[tuple[float, float, int]] = []
    model, one, took = timed(model_name, calls), asked[0], 0.0
    recipe = Recipe("uniform", steps=one["steps"], temperature=1.0, length=one.get("max_tokens"))
    kind = "canvas" if "canvas" in one else "prompt"
    texts = [asked[row % len(asked)][kind] for row in range(rows)]
    while took < seconds:
        began = time.perf_counter()
        decode_batch(model, **{"canvases" if kind == "canvas" else "prompts": texts}, recipe=recipe)
        took += time.perf_counter() - began
    return sum(call[1] for call in calls) / took


def timed_server(model_name: str, file: str) -> None:
    """Serve until Ctrl-C; then write the calls of the network."""
    from unmask.server.limits import Limits
    from unmask.server.request import ServeConfig
    from unmask.server.run import serve

    calls: list[tuple[float, float, int]] = []
    config = ServeConfig({model_name: timed(model_name, calls)}, {"temperature": 1.0}, Limits())
    try:
        serve(config, port=0, on_ready=lambda url, _: print(url, flush=True))
    except KeyboardInterrupt:
        with open(file, "w", encoding="utf-8") as out:
            json.dump(calls, out)


def summary(found: dict[str, Any]) -> str:
    """A table of the figures; with large requests, a column without and one beside them."""
    columns = {"alone": found.get("alone", found)} | ({"beside the large ones": found} if "alone" in found else {})
    rows = {
        "requests; lost": lambda one: f"{one['requests']:,}; {one['lost']}",
        "answers by status": lambda one: ", ".join(f"{status}: {many:,}" for status, many in one["answers"].items()),
        "p50, p99 (s)": lambda one: f"{one['p50']:.2f}, {one['p99']:.2f}",
        "memory, every 5 s (MiB)": lambda one: " ".join(f"{size:.0f}" for size in one["memory_mib"]),
    }
    lines = [f"| small requests | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    lines += [f"| {name} | {' | '.join(cell(one) for one in columns.values())} |" for name, cell in rows.items()]
    asked = found["asked"]
    lines += ["", f"{asked['clients']} clients, {asked['seconds']:g} s, model {asked['model']}, {found['date']}; "]
    lines[-1] += f"load average before: {found['load_before']:.2f}, {found['cpus']} cores."
    if "large" in found:
        bounds = [f"{name} {3 * found['alone'][name] + found['step_of_large']:.2f} s" for name in ("p50", "p99")]
        kept = ", ".join(f"{name} {'kept' if fair else 'EXCEEDED'}" for name, fair in found["fair"].items())
        statuses = ", ".join(map(str, found["large"]["answers"]))
        lines += [f"Bounds of three times alone and a step of the large one: {', '.join(bounds)}: {kept}."]
        lines += [f"One step of the large one alone: {found['step_of_large']:.2f} s. Their answers: {statuses}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sudoku", choices=("sudoku", "text"))
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--length", type=int, default=16, help="of answers, text only")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in the server and for the network alone")
    parser.add_argument("--large", type=float, help="seconds between two requests of many particles and full length")
    parser.add_argument("--particles", type=int, default=64, help="of large requests")
    parser.add_argument("--out", help="write OUT.json and OUT.md, too: the figures, and a table of them")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        timed_server(args.model, args.serve)
        return
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    asked = bodies(args.model, args.steps, args.length)
    longest = max(asked, key=lambda body: len(body.get("prompt", "")))
    busy, half = os.getloadavg()[0], args.clients // 2
    before = backbone(args.model, half, longest, 8)
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/calls.json"
        words = [sys.executable, __file__, "--model", args.model, "--serve", file]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline().rpartition(":")[2])
            if args.large:
                found = asyncio.run(beside(port, args.clients, args.seconds, asked, args.large, args.particles))
            else:
                found = asyncio.run(load(port, args.clients, args.seconds, asked))
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
        with open(file, encoding="utf-8") as calls:
            under = [call for call in json.load(calls) if found["began"] < call[0] < found["began"] + found["seconds"]]
    idle = [before, backbone(args.model, half, longest, 8)]
    network = sum(rows for _, _, rows in under) / sum(seconds for _, seconds, _ in under)
    found["decode_of_network"] = library(args.model, asked, round(found["batch"]), 8)
    found |= {"network_under_load": network, "network_idle": idle, "load_before": busy}
    found |= {"of_network": found["rows_per_second"] / network, "of_idle": found["rows_per_second"] / max(idle)}
    found |= {"asked": vars(args), "cpus": os.cpu_count(), "date": time.strftime("%Y-%m-%d")}
    print(json.dumps(found, indent=1))
    if args.out:
        for ending, text in (("json", json.dumps(found, indent=1) + "\n"), ("md", summary(found))):
            with open(f"{args.out}.{ending}", "w", encoding="utf-8") as out:
                out.write(text)


if __name__ == "__main__":
    main()
