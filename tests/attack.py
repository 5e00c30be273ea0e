"""`make attack`: the hostile tests with more cases, kills, a server for long, and equal seeds in random company.

Takes hours, and minutes with `--scale 0.1`; pytest collects nothing here. Prints one line for each area, and exits
with 1 if anything broke. `--lines` only runs the tests that the lines of
docs/development/security.md name, each three times, and writes into the lines how many of their cases held.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import torch

from unmask import SAMPLERS, Denoiser, Recipe, decode, decode_batch, load
from unmask.decoding.trace import replay

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "server"))

from serving import Running, post, running  # noqa: E402

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
    "server: replicas' front": ("server/test_front.py server/test_front_attacked.py", 3, {}),
    "files: damaged checkpoints": ("checkpoints/test_fuzz.py", 1, {"UNMASK_CASES": 5000}),
    "files: GPTQ, adapters, packed weights": ("checkpoints/test_fuzz_layers.py", 1, {"UNMASK_CASES": 5000}),
    "files: shards, texts, judged rows, logs": ("test_fuzz_files.py", 1, {"UNMASK_CASES": 3000}),
    "files: pickles, tokenizers, templates": (
        "test_convert.py checkpoints/test_files.py checkpoints/test_tokens.py test_judge.py",
        2,
        {},
    ),
    "sandbox: escapes, bombs, clean-up": ("test_sandbox.py", 4, {}),
    "graders: wrong answers that want to pass": ("test_tasks.py", 2, {}),
    "durability: killed runs": ("test_bulk.py test_bench.py -k killed", 15, {}),
    "durability: cut files, full disk, two writers": ("test_torn.py", 1, {"UNMASK_CUTS": 150}),
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


LINE = re.compile(r"^\| (?:\d+|new) \|")
HELD = "not here"  # of a line whose tests were skipped


def cases(names: set[str], times: int) -> dict[str, tuple[int, int]]:
    """For each test: its cases that held, and those that ran."""
    held, ran = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", " or ".join(sorted(names))]
        for _ in range(times):
            subprocess.run([*command, f"--junitxml={report}"], cwd=HERE, stdout=subprocess.DEVNULL, check=False)
            for case in xml.etree.ElementTree.parse(report).iter("testcase"):
                name, ends = case.get("name", "").partition("[")[0], {part.tag for part in case}
                ran[name] += "skipped" not in ends
                held[name] += not ends & {"skipped", "failure", "error"}
    return {name: (held[name], ran[name]) for name in names}


def lines(path: Path, times: int = 3) -> int:
    """Run the tests that the table names, write into its lines how many cases held; how many did not."""
    text = path.read_text(encoding="utf-8").splitlines()
    rows = {number: line.split(" | ") for number, line in enumerate(text) if LINE.match(line)}
    named = {number: set(re.findall(r"`(test_\w+)`", row[-1])) for number, row in rows.items()}
    found = cases(set().union(*named.values()), times)
    for number, row in rows.items():
        held, ran = (sum(found[name][place] for name in named[number]) for place in (0, 1))
        row[-2] = f"{held:,} of {ran:,}" if ran else HELD if named[number] else "·"
        text[number] = " | ".join(row)
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    missing = sorted(name for name, (_, ran) in found.items() if not ran)
    print(f"{len(rows)} lines, {len(found)} tests; none ran of: {', '.join(missing) or 'no test'}")
    return sum(ran - held for held, ran in found.values())


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


def reduced(seconds: float) -> Iterator[tuple[bool, bool]]:
    """In bfloat16: whether the same call gives the same tokens, which is promised, and company does, which is not."""
    models, dice, end = (
        [load(name, dtype="bfloat16") for name in ("text", "random")],
        Random(),
        time.monotonic() + seconds,
    )
    names = [name for name in SAMPLERS if name != "pc"]
    while time.monotonic() < end:
        model, (search, more) = dice.choice(models), dice.choice(SEARCHED)
        recipe = Recipe(
            dice.choice(names), search, length=dice.choice([8, 24]), temperature=dice.choice([0.0, 1.0]), **more
        )
        texts = [dice.choice(PROMPTS) for _ in range(dice.randint(2, 4))]
        seeds = [dice.randrange(2**40) for _ in texts]
        one, two = (decode_batch(model, texts, recipe=recipe, seeds=seeds) for _ in range(2))
        alone = decode(model, texts[0], recipe=recipe.replace(seed=seeds[0]))
        yield [a.tokens for a in one] == [a.tokens for a in two], alone.tokens == one[0].tokens


FORMS: list[dict[str, Any]] = [{}, {}, {"matches": " [a-z ]{3,60}"}, {"choices": [" a red ball", " two dogs", " tea"]}]


def asked(dice: Random, models: list[str]) -> dict[str, Any]:
    """The body of a request whose answer the library can give, too."""
    search, more = dice.choice(SEARCHED)
    settings = {"sampler": dice.choice([name for name in SAMPLERS if name != "pc"]), "search": search, **more}
    settings |= {"temperature": dice.choice([0.0, 0.7, 1.0]), "max_tokens": dice.choice([8, 24])}
    name = dice.choice(models)
    form = dice.choice(FORMS) if name.startswith("text") else {}
    return {"model": name, "prompt": dice.choice(PROMPTS), "seed": dice.randrange(2**40), **settings, **form}


def as_library(body: dict[str, Any], model: Denoiser, n: int) -> list[Any]:
    """What `decode` says to a request: its choices, one after the other."""
    given = {name: value for name, value in body.items() if name not in ("model", "prompt", "seed", "max_tokens")}
    seeds = range(body["seed"], body["seed"] + n)
    return [decode(model, body["prompt"], length=body["max_tokens"], seed=seed, **given) for seed in seeds]


def as_server(here: Running, body: dict[str, Any], how: str, n: int) -> list[Any]:
    """The answers to a request: texts, or for `paths` the tokens of all particles."""
    if how == "paths":
        status, sent = post(here, json.dumps(body).encode(), "/v1/paths")
        assert status == 200, sent
        events = [json.loads(line[6:]) for line in sent.decode().splitlines() if line.startswith("data: ")]
        *_, last = replay(events)
        return [last[events[-1]["chosen"][0]]]
    status, sent = post(here, json.dumps({**body, "n": n, "stream": how == "stream"}).encode())
    assert status == 200, sent
    if how == "whole":
        return [one["text"] for one in sent["choices"]]
    texts = [""] * n
    for line in sent.decode().splitlines():
        for one in json.loads(line[6:]).get("choices", []) if line.startswith("data: {") else []:
            texts[one["index"]] += one["text"]
    return texts


def served(seconds: float) -> Iterator[bool]:
    """Whether requests in random company, whole and streamed, get what `decode` gives; in bfloat16 one by one."""
    torch.set_num_threads(1)
    models = {"text": load("text"), "random": load("random"), "text-bf16": load("text", dtype="bfloat16")}
    dice, end = Random(), time.monotonic() + seconds
    with running(models, usual={}) as here, ThreadPoolExecutor(6) as clients:
        while time.monotonic() < end:
            several = dice.randint(1, 6)
            names = ["text", "random"] if several > 1 else ["text", "random", "text-bf16"]
            bodies = [asked(dice, names) for _ in range(several)]
            if dice.random() < 0.5:  # of one recipe, so that they share a batch
                bodies = [{**bodies[0], "prompt": one["prompt"], "seed": one["seed"]} for one in bodies]
            hows = [dice.choice(["whole", "stream", "paths"]) for _ in bodies]
            ns = [1 if how == "paths" or several == 1 else dice.randint(1, 2) for how in hows]
            found = list(clients.map(as_server, [here] * several, bodies, hows, ns))
            for body, how, n, got in zip(bodies, hows, ns, found, strict=True):
                wanted = as_library(body, models[body["model"]], n)
                same = got == [one.tokens if how == "paths" else one.text for one in wanted]
                if not same:
                    print(f"the server answers otherwise: {how}, {n}, {body}, among {bodies}", file=sys.stderr)
                yield same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of all counts and times")
    parser.add_argument("--only", default="", help="areas whose name holds this text")
    parser.add_argument("--lines", action="store_true", help="only the tests that the table of attacks names")
    args = parser.parse_args()
    if args.lines:
        return min(1, lines(HERE.parent / "docs" / "development" / "security.md"))
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
        for how in ([], ["--press"]):
            wrong += subprocess.run([sys.executable, str(HERE / "kills.py"), *kills, *how], check=False).returncode
    if args.only in "server: for long, TERM and KILL under load":
        much = ["--requests", str(round(2000 * args.scale)), "--ends", str(max(2, round(20 * args.scale)))]
        wrong += subprocess.run([sys.executable, str(HERE / "endurance.py"), *much], check=False).returncode
    for area, tries in (
        ("determinism: equal seeds in random company", company),
        ("determinism: server and library", served),
        ("determinism: bfloat16", reduced),
    ):
        if args.only in area:
            found = list(tries(300 * args.scale))  # type: ignore[operator]
            held = [one[0] if isinstance(one, tuple) else one for one in found]
            print(f"{area:46} {sum(held):6,} held {held.count(False):4,} broke", flush=True)
            if tries is reduced:
                apart = sum(not one[1] for one in found)
                print(f"{'  of these, other tokens in company':46} {apart:6,}: not promised", flush=True)
            wrong += held.count(False)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
