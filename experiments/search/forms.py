"""Constraints on text: random patterns under every sampler and search, the public suite of schemas, and time per step.

python experiments/search/forms.py random --patterns 1000 --cases 210 --jobs 16 --rows ROWS.jsonl    # the whole product
python experiments/search/forms.py suite FOLDER    # of JSON-Schema-Test-Suite, as the sdist of jsonschema has it
python experiments/search/forms.py speed [--device cuda --width 4096 --layers 32]
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from unmask import Denoiser, Recipe, decode, decode_batch
from unmask.core.state import Vocab
from unmask.decoding.background import Background
from unmask.decoding.form import form
from unmask.errors import InputError, UnmaskError
from unmask.evaluate.header import origin
from unmask.models.network import Shape, empty
from unmask.models.tokenizers import Characters
from unmask.models.transformer import Transformer

sys.path.append(str(Path(__file__).parents[2]))

# --- random patterns -------------------------------------------------------------------------------------------------


def pattern(dice: random.Random, letters: str, depth: int = 3) -> str:
    """A random regular expression over some letters."""
    kind = dice.choice(
        ["letter", "letter", "set", "not", "any", "word", "both", "or", "star", "plus", "maybe", "count"]
    )
    one = re.escape(dice.choice(letters))
    if depth == 0 or kind == "letter":
        return one
    if kind in ("set", "not"):
        inside = "".join(map(re.escape, dice.sample(letters, min(len(letters), dice.randint(1, 3)))))
        return f"[{'^' if kind == 'not' else ''}{inside}]"
    if kind in ("any", "word"):
        return dice.choice([".", "(?s:.)"]) if kind == "any" else dice.choice([r"\w", r"\d", r"\s", r"\W", "[a-m]"])
    inner = pattern(dice, letters, depth - 1)
    if kind in ("both", "or"):
        other = pattern(dice, letters, depth - 1)
        return f"{inner}{other}" if kind == "both" else f"(?:{inner}|{other})"
    low = dice.randint(0, 3)
    count = f"{{{low},{low + dice.randint(0, 3)}}}"
    return (
        f"(?:{inner}){dice.choice(['', '?'])}"
        if kind == "maybe"
        else f"(?:{inner}){ {'star': '*', 'plus': '+', 'count': count}[kind] }"
    )


def holes(tokens: Sequence[int], canvas: Sequence[int], mask: int) -> Iterator[list[int]]:
    """The tokens in each hole of a canvas."""
    for is_open, group in itertools.groupby(range(len(canvas)), key=lambda column: canvas[column] == mask):
        if is_open:
            yield [tokens[column] for column in group]


def faults(model: Denoiser, tokens: Sequence[int], canvas: Sequence[int], patterns: Sequence[str]) -> list[str]:
    """What is wrong with a finished row: a hole that its pattern does not match, or text after an end."""
    found = []
    several = list(holes(tokens, canvas, model.vocab.mask))
    for inside, one in zip(several, patterns if len(patterns) > 1 else list(patterns) * len(several), strict=True):
        end = next((place for place, token in enumerate(inside) if token in model.vocab.eos), len(inside))
        text = model.tokenizer.decode(list(inside[:end]))
        if not re.fullmatch(one, text, re.ASCII) or any(token not in model.vocab.eos for token in inside[end:]):
            found.append(f"{one!r} has {inside} ({text!r})")
    return found


def run_random(args: argparse.Namespace) -> int:
    """Each turn under the next `--cases` of every sampler × every search, on a network and on a table."""
    began, count = time.monotonic(), Counter[str]()
    about = {"patterns": args.patterns, "cases": args.cases, "seed": args.seed}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        background = Path(folder) / "counts.json"
        Background({0: 700, 1: 90, 3: 8}, 2000).save(background)
        done, file = kept(args.rows, about, stack)
        for row in done.values():
            count.update(row["count"])
        turns = [Turn(args.seed, number, args.cases, background) for number in range(args.patterns)]
        todo = [turn for turn in turns if turn.number not in done]
        pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(args.jobs)) if args.jobs > 1 else None
        for row in map(taken, todo) if pool is None else pool.imap_unordered(taken, todo):
            done[row["number"]] = row
            count.update(row["count"])
            for fault in row["faults"]:
                print(fault, flush=True)
            if file is not None:
                file.write(json.dumps(row) + "\n")
                file.flush()
            if len(done) % 50 == 0:
                print(f"{len(done)} turns: {dict(count)}", flush=True)
            if args.seconds is not None and time.monotonic() - began > args.seconds:
                break
        if pool is not None:
            pool.terminate()
    print(json.dumps({**about, "turns": len(done), **count, "seconds": round(time.monotonic() - began, 1)}))
    return 75 if len(done) < args.patterns else int(count["wrong"] > 0)


def kept(path: Path | None, about: dict[str, Any], stack: ExitStack) -> tuple[dict[int, Any], Any]:
    """The turns that a file has, and the file open for more; a torn last line is dropped."""
    if path is None:
        return {}, None
    lines = path.read_bytes() if path.exists() else b""
    lines = lines[: lines.rfind(b"\n") + 1]
    head, *rows = map(json.loads, lines.splitlines()) if lines else [about]
    if {name: head.get(name) for name in about} != about:
        raise SystemExit(f"forms: {str(path)!r} is of other turns ({head}): give another file")
    file = stack.enter_context(path.open("wb"))
    file.write(lines or (json.dumps({**about, **origin(torch.device("cpu"))}) + "\n").encode())
    file.close()
    return {row["number"]: row for row in rows}, stack.enter_context(path.open("a", encoding="utf-8"))


@dataclass(frozen=True)
class Turn:
    """Some cases, each with random patterns of its own; dice and cases follow from seed and number alone."""

    seed: int
    number: int
    cases: int | None
    background: Path


@cache
def models() -> dict[str, Any]:
    """The small models of the laws, once in each process."""
    from tests.laws import cases

    torch.set_num_threads(1)
    return dict(cases.models())


def taken(turn: Turn) -> dict[str, Any]:
    """The counts of a turn, and what was wrong."""
    from tests.laws.cases import canvases, names

    dice, count, wrong = random.Random(f"{turn.seed} {turn.number}"), Counter[str](), list[str]()
    cases = [*names("float64"), *names("table")]
    many = turn.cases or len(cases) // 2
    for place in range(turn.number * many, (turn.number + 1) * many):
        case = cases[place % len(cases)]
        model = models()[case.model]
        letters = "012" if case.model == "table" else "abcxyz019 .,\n"
        row = dice.choice(canvases(model))
        several = len(list(holes(row, row, model.vocab.mask)))
        asked = [pattern(dice, letters) for _ in range(several if dice.random() < 0.3 else 1)]
        more = {"constrained_entropy": True} if dice.random() < 0.3 else {}
        recipe = case.recipe(turn.background, **more).replace(seed=turn.number)
        try:
            result = decode(model, canvas=row, recipe=recipe, matches=asked if len(asked) > 1 else asked[0])
        except InputError:
            count["refused"] += 1
            continue
        found = [fault for one in result.particles for fault in faults(model, one.tokens, row, asked)]
        count.update(decoded=1, texts=len(result.particles), wrong=len(found))
        wrong += [f"{case} seed {turn.number} canvas {row}: {fault}" for fault in found[:1]]
    return {"number": turn.number, "count": dict(count), "faults": wrong}


# --- schemas ---------------------------------------------------------------------------------------------------------


def run_suite(args: argparse.Namespace) -> int:
    """Decode documents of every schema of a draft that is carried; a validator judges them."""
    import jsonschema_rs

    folder = Path(args.folder) / "tests" / args.draft
    model, count = writer(), Counter[str]()
    for path in sorted(folder.glob("*.json")):
        for case in json.loads(path.read_text(encoding="utf-8")):
            count["schemas"] += 1
            try:
                made = form(schema=case["schema"])
                texts = documents(model, made, args.texts)
            except UnmaskError as error:
                count["refused"] += 1
                if args.verbose:
                    print(f"{path.name}: {case['description']}: {error}")
                continue
            try:
                validator = jsonschema_rs.validator_for(case["schema"])
            except ValueError:  # a metaschema that is not here
                count["unjudged"] += 1
                continue
            count["carried"] += 1
            for text in texts:
                count["documents"] += 1
                try:
                    valid = validator.is_valid(json.loads(text))
                except ValueError:
                    valid = False
                if not valid:
                    count["invalid"] += 1
                    print(f"{path.name}: {case['description']}: {text} is not valid under {json.dumps(case['schema'])}")
    print(json.dumps(dict(count)))
    return 1 if count["invalid"] else 0


def network(size: int, width: int, layers: int, tokenizer: Any, scale: float, device: str = "cpu") -> Denoiser:
    """A random network over `size` tokens, an end and a mask."""
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    heads = max(4, width // 128)  # wider heads than 256 have no fast attention
    made = empty(Shape(size + 2, width, layers, heads, 4 * width), device, dtype)
    generator = torch.Generator(device).manual_seed(3)
    for one in made.parameters():
        one.fill_(1.0) if one.dim() == 1 else one.normal_(0.0, scale, generator=generator)
    return Transformer(made, Vocab(size + 1, (size,), size), tokenizer, absent=(size + 1,))


def writer() -> Denoiser:
    """A network that knows nothing, over the characters of JSON: only the form speaks."""
    letters = "".join(map(chr, range(32, 127))) + "\néß☃😀"
    return network(len(letters), 32, 1, Characters(letters), 0.3)


def documents(model: Denoiser, made: Any, texts: int) -> list[str]:
    """Some documents, at lengths that leave more or less room."""
    recipe = Recipe(sampler="uniform", temperature=1.0, steps=8)
    fewest = made.automata(model)[0].fewest
    found = []
    for room in (fewest + 1, fewest + 8, fewest + 40):
        canvas = [[model.vocab.mask] * room] * texts
        found += [one.text for one in decode_batch(model, canvases=canvas, recipe=recipe, form=made)]
    return found


# --- time ------------------------------------------------------------------------------------------------------------


def fields(many: int) -> dict[str, Any]:
    """A schema of this many fields: texts, whole numbers, choices and lists in turn."""
    kinds: list[dict[str, Any]] = [
        {"type": "string"},
        {"type": "integer"},
        {"enum": ["low", "middle", "high"]},
        {"type": "boolean"},
        {"type": "array", "items": {"type": "number"}, "maxItems": 3},
    ]
    names = {f"{word}_{place}": kinds[place % len(kinds)] for place, word in zip(range(many), itertools.cycle(WORDS))}
    return {"type": "object", "properties": names, "required": list(names)[:10]}  # 256 positions have no room for all


WORDS = "name age size city price state color weight owner title level note score unit".split()


class Vocabulary:
    """A tokenizer of many tokens: every byte, and random words of letters, digits and signs up to `size`."""

    def __init__(self, size: int, seed: int = 0) -> None:
        dice = random.Random(seed)
        words = {bytes([byte]): None for byte in range(256)}
        text = (
            "".join(f'"{one}_{place}": ' for one in WORDS for place in range(50))
            + '"low", "middle", "high"], [true, false, null}'
        )
        while len(words) < size:
            if dice.random() < 0.1:
                begin = dice.randrange(len(text))
                words[text[begin : begin + dice.randint(2, 6)].encode()] = None
            else:
                letters = "abcdefghijklmnopqrstuvwxyz      ETAOIN0123456789.,:;\"'{}[]éü"
                words["".join(dice.choices(letters, k=dice.randint(2, 7))).encode()] = None
        self.words = list(words)

    def token_bytes(self, token: int) -> bytes:
        return self.words[token] if token < len(self.words) else b""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")


def run_speed(args: argparse.Namespace) -> int:
    """Seconds a step with and without a constraint, in one run, one after the other; all so far after each round."""
    started = time.monotonic()
    model = network(args.vocabulary, args.width, args.layers, Vocabulary(args.vocabulary), 0.02, args.device)
    began = time.perf_counter()
    made = form(schema=fields(args.fields))
    assert made is not None
    compiled = time.perf_counter() - began
    began = time.perf_counter()
    automaton = made.automata(model)[0]
    about: dict[str, Any] = {"fields": args.fields, "states": len(automaton.accepts), "classes": len(automaton.moves)}
    about |= {"compile_s": round(compiled, 3), "tokens_s": round(time.perf_counter() - began, 3)}
    about |= {"width": args.width, "layers": args.layers, "vocabulary": args.vocabulary, **origin(model.device)}
    times: dict[str, list[float]] = {}
    for number in range(args.rounds):
        for temperature in (1.0, 0.0):
            recipe = Recipe(
                sampler="confidence", search="best-of-n", particles=8, steps=256, length=256, temperature=temperature
            )
            for name, limit in (("without", None), ("with", made)):
                if args.seconds is not None and number and time.monotonic() - started > args.seconds:
                    return 0
                times.setdefault(f"{name}_t{temperature:g}", []).extend(timed(model, recipe, limit, args.steps))
        middle = {name: statistics.median(some) for name, some in times.items()}
        found = {f"{name}_s": round(value, 5) for name, value in middle.items()}
        found |= {f"ratio_t{at}": round(middle[f"with_t{at}"] / middle[f"without_t{at}"], 3) for at in (0, 1)}
        if model.device.type == "cuda":
            found["gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
        print(json.dumps({**about, "rounds": number + 1, "steps": len(times["with_t1"]), **found}), flush=True)
    return 0


class Enough(Exception):
    """Enough steps were timed."""


def timed(model: Denoiser, recipe: Recipe, limit: Any, steps: int) -> list[float]:
    """Seconds of a few steps; the first two are left out, for equal particles are computed once in the first."""
    marks: list[float] = []

    def on_event(event: dict[str, Any]) -> None:
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        marks.append(time.perf_counter())
        if len(marks) > steps + 3:
            raise Enough

    with suppress(Enough):
        decode(model, [7, 8, 9], recipe=recipe, form=limit, on_event=on_event)
    return [b - a for a, b in itertools.pairwise(marks)][3:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    one = parts.add_parser("random")
    one.add_argument("--patterns", type=int, default=1000)
    one.add_argument("--cases", type=int, help="of the 210, in each turn [half of them]")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--jobs", type=int, default=1, help="processes")
    one.add_argument("--rows", type=Path, metavar="FILE", help="a line for each turn; those that are there are kept")
    one.add_argument("--seconds", type=float, help="begin no further turn after so many")
    one.set_defaults(run=run_random)
    one = parts.add_parser("suite")
    one.add_argument("folder")
    one.add_argument("--draft", default="draft2020-12")
    one.add_argument("--texts", type=int, default=3)
    one.add_argument("--verbose", action="store_true")
    one.set_defaults(run=run_suite)
    one = parts.add_parser("speed")
    for name, value in (
        ("vocabulary", 126_000),
        ("width", 512),
        ("layers", 4),
        ("fields", 50),
        ("steps", 4),
        ("rounds", 2),
    ):
        one.add_argument(f"--{name}", type=int, default=value)
    one.add_argument("--device", default="cpu")
    one.add_argument("--seconds", type=float, help="begin no further round after so many")
    one.set_defaults(run=run_speed)
    args = parser.parse_args()
    return int(args.run(args))


if __name__ == "__main__":
    raise SystemExit(main())
