"""Constraints on text: random patterns under every sampler and search, the public suite of schemas, and time per step.

python experiments/search/forms.py random --patterns 1000
python experiments/search/forms.py suite FOLDER    # of JSON-Schema-Test-Suite, as the sdist of jsonschema has it
python experiments/search/forms.py speed [--device cuda]
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from unmask import Denoiser, Recipe, decode, decode_batch
from unmask.core.state import Vocab
from unmask.decoding.background import Background
from unmask.decoding.form import form
from unmask.errors import InputError, UnmaskError
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
    """Each pattern under every sampler × every search, on a network or a table in turn; or under `--cases` of them."""
    from tests.laws.cases import canvases, models, names

    torch.set_num_threads(1)
    made, dice, count = models(), random.Random(args.seed), Counter[str]()
    cases = [*names("float64"), *names("table")]
    with tempfile.TemporaryDirectory() as folder:
        background = Path(folder) / "counts.json"
        Background({0: 700, 1: 90, 3: 8}, 2000).save(background)
        order = itertools.cycle(cases)
        for number in range(args.patterns):
            for case in [next(order) for _ in range(args.cases or len(cases) // 2)]:
                model = made[case.model]
                letters = "012" if case.model == "table" else "abcxyz019 .,\n"
                row = dice.choice(canvases(model))
                several = len(list(holes(row, row, model.vocab.mask)))
                asked = [pattern(dice, letters) for _ in range(several if dice.random() < 0.3 else 1)]
                recipe = case.recipe(background, **({"constrained_entropy": True} if dice.random() < 0.3 else {}))
                try:
                    result = decode(
                        model,
                        canvas=row,
                        recipe=recipe.replace(seed=number),
                        matches=asked if len(asked) > 1 else asked[0],
                    )
                except InputError:
                    count["refused"] += 1
                    continue
                wrong = [fault for one in result.particles for fault in faults(model, one.tokens, row, asked)]
                count["decoded"] += 1
                count["texts"] += len(result.particles)
                count["wrong"] += len(wrong)
                if wrong:
                    print(f"{case} seed {number} canvas {row}: {wrong[0]}", flush=True)
            if number % 50 == 49:
                print(f"{number + 1} patterns: {dict(count)}", flush=True)
    print(json.dumps(dict(count)))
    return 1 if count["wrong"] else 0


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
    made = empty(Shape(size + 2, width, layers, 4, 4 * width), "cpu", torch.float32)
    generator = torch.Generator().manual_seed(3)
    for one in made.parameters():
        one.copy_(torch.ones_like(one) if one.dim() == 1 else torch.randn(one.shape, generator=generator) * scale)
    return Transformer(made.to(device, dtype), Vocab(size + 1, (size,), size), tokenizer, absent=(size + 1,))


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
    """Seconds a step with and without a constraint, in one run, one after the other."""
    model = network(args.vocabulary, args.width, args.layers, Vocabulary(args.vocabulary), 0.02, args.device)
    began = time.perf_counter()
    made = form(schema=fields(args.fields))
    compiled = time.perf_counter() - began
    began = time.perf_counter()
    automaton = made.automata(model)[0]
    about = {"fields": args.fields, "states": len(automaton.accepts), "classes": len(automaton.moves)}
    about |= {"compile_s": round(compiled, 3), "tokens_s": round(time.perf_counter() - began, 3)}
    for temperature in (0.0, 1.0):
        recipe = Recipe(
            sampler="confidence", search="best-of-n", particles=8, steps=256, length=256, temperature=temperature
        )
        times: dict[str, list[float]] = {"without": [], "with": []}
        for _ in range(args.rounds):
            for name, limit in (("without", None), ("with", made)):
                times[name] += timed(model, recipe, limit, args.steps)
        middle = {name: sorted(some)[len(some) // 2] for name, some in times.items()}
        about |= {f"{name}_t{temperature:g}_s": round(value, 4) for name, value in middle.items()}
        about[f"ratio_t{temperature:g}"] = round(middle["with"] / middle["without"], 3)
    print(json.dumps(about))
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
    one.add_argument("--cases", type=int, help="cases to each pattern; else every one")
    one.add_argument("--seed", type=int, default=0)
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
    one.set_defaults(run=run_speed)
    args = parser.parse_args()
    return int(args.run(args))


if __name__ == "__main__":
    raise SystemExit(main())
