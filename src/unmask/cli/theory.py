"""The command line's half for the theory: score texts, measure a model's curves, calibrate the strength of E-SMC."""

from __future__ import annotations

import json
import math
import shlex
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask._version import __version__
from unmask.cli import flags, models, show
from unmask.cli.parser import flag
from unmask.decoding import background
from unmask.decoding.prompt import Text, fitting_length
from unmask.decoding.recipe import Recipe
from unmask.decoding.result import Particle
from unmask.decoding.settings import SETTINGS, spelled
from unmask.errors import InputError, unknown
from unmask.evaluate import rows, stopping
from unmask.evaluate import run as bench
from unmask.evaluate.batch import size
from unmask.evaluate.header import origin
from unmask.evaluate.rows import to_json
from unmask.evaluate.stats import Mean, mean
from unmask.evaluate.theory import report
from unmask.evaluate.theory.calibrate import MOST, OF, Calibration, calibrate
from unmask.evaluate.theory.noised_states import oracle
from unmask.evaluate.theory.reference import DRAWS, Scored, score
from unmask.evaluate.theory.texts import pairs, read
from unmask.models import Denoiser, Table
from unmask.tasks import TASKS, Task, files

STEPS = 32  # of a path, unless given: enough for the shape, few enough for a CPU
TEXTS = 64  # of a file, unless given: intervals of a few percent
ORDER = tuple("sampler steps block_length bound threshold factor background decay cap eps seed".split())
FORWARD = {"sampler": "ancestral"}  # the forward process
GUIDED = {"sampler": "uniform", "temperature": 1.0, "search": "smc", "particles": 4}
Row = dict[str, Any]


# --- score -----------------------------------------------------------------------------------------------------------


def run_score(args: Namespace) -> None:
    """The path entropy of given texts."""
    recipe = _with_steps(flags.to_recipe(args, FORWARD))
    if args.draws < 1:
        raise InputError(f"draws is {args.draws}", "it must be at least 1")
    some = [pair for given in args.texts for pair in pairs(given, args.prompt)]
    model = models.load_model(args, args.model or "text")
    began, found = time.perf_counter(), []
    about = {"model": model.name, "recipe": recipe.to_dict(), "draws": args.draws, "version": __version__}
    size = max(1, 32 // args.draws)
    with rows.started(args.rows) as keep, show.progress() as bar:
        task = bar.add_task("scoring", total=len(some))
        for begin in range(0, len(some), size):
            part = some[begin : begin + size]
            texts, prompts = [one.text for one in part], [one.prompt for one in part]
            new = score(model, texts, prompts, recipe=recipe.replace(seed=recipe.seed + begin), draws=args.draws)
            keep({**to_json(one), **about} for one in new)
            found += new
            bar.update(task, completed=len(found))
    if args.json:
        for one in found:
            print(json.dumps({**to_json(one), **about}))
    else:
        _show_scores(found, recipe, args.draws, time.perf_counter() - began)


def _with_steps(recipe: Recipe) -> Recipe:
    """STEPS, where the sampler plans its steps and neither they nor blocks are given."""
    planned = recipe.build_sampler().scheduled and recipe.steps is None and recipe.block_length is None
    return recipe.replace(steps=STEPS) if planned else recipe


def _show_scores(found: list[Scored], recipe: Recipe, draws: int, seconds: float) -> None:
    right = ("tokens", "path entropy", "loss a token")
    made = show.grid("", "text", *right, right=right)
    lowest = min(found, key=lambda one: one.path_entropy.value)
    for one in found:
        mark = "▶" if one is lowest and len(found) > 1 else ""
        made.add_row(mark, show.one_line(one.text), str(one.tokens), str(one.path_entropy), str(one.loss))
    show.console().print(made)
    spent = sum(one.evaluations for one in found)
    order = recipe.name("sampler") + (f", {show.many(recipe.steps, 'step')}" if recipe.steps else "")
    many = f", 95 % over {draws} draws" if draws > 1 else ""
    print(f"bits{many} · {order} · {show.many(spent, 'evaluation')} · {seconds:.1f} s")


def add_score(parser: ArgumentParser) -> None:
    about = "a text, or a file with one on each line (.jsonl: objects with `text` and `prompt`); - reads standard input"
    parser.add_argument("texts", nargs="+", metavar="TEXT", help=about)
    flag(parser, "--prompt TEXT", "what stands before each text and is never masked", "")
    flag(parser, "--draws N", f"paths of each text, by chance where the order is random [{DRAWS}]", DRAWS)
    flag(parser, "--rows FILE", "write every text to this file as it is scored (JSONL)")
    flag(parser, "--json", "print one JSON object for each text")
    models.add_model(parser, "text")
    flags.add(
        parser, (*ORDER, "guidance", "select_temperature", "scope", "weight", "skip_tail"), {**FORWARD, "steps": STEPS}
    )


# --- theory ----------------------------------------------------------------------------------------------------------


def run_theory(args: Namespace) -> None:
    """The quantities of the theory on a file of texts."""
    recipe = flags.to_recipe(args, FORWARD)
    recipe = recipe if recipe.steps else recipe.replace(steps=STEPS)
    if args.best_of < 1:
        raise InputError(f"best-of is {args.best_of}", "it must be at least 1")
    folder = _folder(args.output)
    model = models.load_model(args, args.model or "text")
    texts, counts = read(model, args.data, args.window, args.limit, args.documents)
    if args.data_entropy is not None and report.law(texts) is not None:
        raise InputError("the texts have bits of their own", "leave --data-entropy out")
    if args.counts is not None:
        table = background.load(args.counts)
        table.check(model)
        if counts is None:
            raise InputError("--background has no effect on texts with prompts", "leave it out")
        counts = Counter(table.counts)
    began = time.perf_counter()
    with rows.started(str(folder / "rows.jsonl")) as keep, show.progress() as bar:
        task = bar.add_task(show.many(len(texts), "text"), total=len(texts))
        found = report.study(
            model,
            texts,
            recipe,
            args.draws,
            args.paths,
            args.best_of,
            lambda done, _: bar.update(task, completed=done),
            keep,
        )
    width = model.head.width - len(model.head.absent)
    about = _about(args, model, recipe) | {"draws": args.draws, "paths": args.paths, "data_entropy": args.data_entropy}
    made = about | report.summary(found, width, counts, args.data_entropy) | {"seconds": time.perf_counter() - began}
    if isinstance(model, Table):  # its joint distribution is known
        made["oracle"] = to_json(oracle(model, texts, args.draws, recipe.seed))
    (folder / "theory.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    report.draw(found, width, counts, folder / "theory.svg")
    print(json.dumps(made)) if args.json else _show_theory(made, folder)


def _show_theory(found: Row, folder: Path) -> None:
    ends, whole, paths = found["ends"], found["integrals"], found["divergence"]
    made = show.grid("quantity", "bits, 95 %", right=("bits, 95 %",))
    gap = max(found["bins"], key=lambda part: abs(part["gap"]["value"]))
    counts = ends["unigram_corrected"]
    rows: dict[str, Any] = {
        "all masked: state entropy": ends["full"],
        **({} if counts is None else {"  entropy of the token counts": f"{counts:.3f}"}),
        "one mask: state entropy": ends["single"],
        "  its loss": ends["single_loss"],
        "NELBO a token": whole["nelbo"],
        "  the same integral of state entropy": whole["entropy"],
        f"largest gap of loss and entropy, at t = {gap['time']:.2f}": gap["gap"],
        "fall of one position's entropy with context": found["context"]["fall"],
        "path entropy, reference": paths["reference"],
        "  decoded": paths["generated"],
        "  drift": paths["drift"],
        **({} if paths["best"] is None else {"  best of them": paths["best"], "  its drift": paths["best_drift"]}),
        f"loss a token in {show.many(found['recipe']['steps'], 'step')}, less the NELBO": found["several_at_once"],
    }
    if found["law"] is not None:
        rows["bits of a whole text by the law of the data"] = found["law"]["data"]
        rows["  its NELBO, less that"] = found["law"]["nelbo"]
        rows["  its integral of state entropy, less that"] = found["law"]["entropy"]
    if "oracle" in found:
        rows["entropy of all masked positions together"] = found["oracle"]["joint"]
        rows["  state entropy times their number"] = found["oracle"]["sum"]
    for name, value in rows.items():
        made.add_row(name, value if isinstance(value, str) else str(Mean(**value)))
    show.console().print(made)
    known = "" if paths["kl"] is None else f"; measured {Mean(**paths['kl'])}"
    least = f"at least {paths['lower']['value']:.2e} by the drift, {Mean(**found['kl_at_least'])} by the loss"
    print(f"KL of the paths, nats: {least}{known}")
    if paths["epsilon"] is not None:
        most = "" if paths["epsilon_largest"] is None else f", largest {paths['epsilon_largest']:.4f}"
        print(f"ε, nats a step: mean {Mean(**paths['epsilon'])}{most}")
    cost = f"{found['texts']} texts · {show.many(found['evaluations'], 'evaluation')} · {found['seconds']:.1f} s"
    print(f"{cost} · rows.jsonl, theory.json and theory.svg are in {str(folder)!r}")


def add_theory(parser: ArgumentParser) -> None:
    _add_data(parser)
    flag(parser, "--draws N", "noised states of each text, one in each part of time [16]", 16)
    flag(parser, "--paths N", "reference paths of each text [2]", 2)
    flag(parser, "--best-of N", "decoded paths of each text: more than one also give the drift of the best [1]", 1)
    known = "bits of a text given its prompt, where that is known (a puzzle with one solution: 0): gives the KL itself"
    parser.add_argument("--data-entropy", type=float, metavar="BITS", help=known)
    table = "token counts to compare the all-masked state with: sudoku, countdown, text or a file [those of DATA]"
    parser.add_argument("--background", dest="counts", metavar="FILE", help=table)
    flag(parser, "--json", "print theory.json instead of a table")
    models.add_model(parser, "text")
    flags.add(parser, ("sampler", "steps", "seed"), {**FORWARD, "steps": STEPS})


CALIBRATES = ("strength", "stop")
STRENGTH, STOPPING = (
    ("paths", "points", "budget", "of", "documents"),
    ("epsilon", "task", "batch"),
)  # flags of one of them
EPSILON = 0.05


# --- calibrate -------------------------------------------------------------------------------------------------------


def run_calibrate(args: Namespace) -> None:
    """Find the strength at which decoded paths are as uncertain as reference paths, or the threshold of a stop."""
    what = args.data.pop(0) if len(args.data) > 1 else "strength"
    if what not in CALIBRATES or len(args.data) > 1:
        raise unknown("quantity", what, CALIBRATES)
    args.data = args.data[0]
    for name in STOPPING if what == "strength" else STRENGTH:
        if getattr(args, name) not in (None, False):
            raise InputError(f"--{name} has no effect on calibrate {what}", "leave it out")
    most, args.most = args.most, None  # a strength or a number of paths, not yet a setting
    if what == "stop":
        _calibrate_stop(args, most)
        return
    if args.search not in (None, "smc"):
        raise InputError(f"the search {args.search} has no strength", "calibrate smc: leave --search out")
    recipe = _with_steps(flags.to_recipe(args, GUIDED))
    if recipe.build_search().particles < 2:
        raise InputError("particles is 1", "a strength acts on 2 or more")
    folder = _folder(args.output)
    model = models.load_model(args, args.model or "text")
    texts, _ = read(model, args.data, args.window, args.limit, args.documents)
    began = time.perf_counter()
    with rows.started(str(folder / "rows.jsonl")) as keep, show.progress() as bar:
        task = bar.add_task("reference", total=len(texts))

        def on_progress(what: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=what)

        found = calibrate(
            model,
            texts,
            recipe,
            draws=4 if args.paths is None else args.paths,
            most=MOST if most is None else most,
            points=8 if args.points is None else args.points,
            budget=args.budget,
            of=args.of or OF[0],
            on_progress=on_progress,
            on_row=lambda row: keep([row]),
        )
    made = _about(args, model, recipe) | _calibrated(found, args.window) | {"seconds": time.perf_counter() - began}
    (folder / "calibrate.json").write_text(json.dumps(to_json(made), indent=1) + "\n", encoding="utf-8")
    report.draw_calibration(found, folder / "calibrate.svg")
    if found.end is not None:
        raise _outside(found, folder)
    if args.json:
        print(json.dumps(to_json(made)))
    else:
        _show_calibration(found, made, folder, models.given(args, model.name))


def _calibrated(found: Calibration, length: int | None) -> Row:
    nearest = min(found.gaps(), key=lambda gap: abs(gap.value))
    flag = None
    if found.strength is not None:
        flag = _flags(found.recipe.replace(strength=float(f"{found.strength:.3g}"), length=length))
    return {
        "of": found.of,
        "strength": found.strength,
        "low": found.low,
        "high": found.high,
        "end": found.end,
        "noise": nearest.half,
        "reference": to_json(mean(found.reference)),
        "curve": [
            {"strength": strength, "path_entropy": to_json(here), "gap": to_json(gap)}
            for (strength, here), gap in zip(found.curve(), found.gaps(), strict=True)
        ],
        "flags": flag,
        "evaluations": found.evaluations,
    }


def _flags(recipe: Recipe) -> str:
    """The recipe as flags of `unmask generate`."""
    given = {name: value for name, value in recipe.to_dict().items() if name != "seed"}
    return " ".join(f"{spelled(name)} {shlex.quote(str(value))}" for name, value in given.items())


def _outside(found: Calibration, folder: Path) -> InputError:
    """Which end the reference lies beyond, by how much, and what could be done."""
    low = found.end == "low"
    strength, gap = found.points[0 if low else -1].strength, found.gaps()[0 if low else -1]
    sure = "" if gap.low is None or gap.high is None else f" ({gap.low:+.3f} to {gap.high:+.3f})"
    noise = gap.low is None or gap.high is None or gap.low <= 0 <= gap.high
    end = "no strength above 0" if low else f"no strength up to {strength:g}"
    way_out = "resample more often (--every), take more --particles, or raise --most"
    why = "resampling only lowers path entropy" if low else way_out
    message = f"{end} meets the reference: at {strength:g} the decoded paths have {gap.value:+.3f} bits{sure} more"
    within = f"that is within the noise, so {strength:g} will do; else " if noise else ""
    return InputError(message, f"{within}{why}; rows and curve are in {str(folder)!r}")


def _show_calibration(found: Calibration, made: Row, folder: Path, loaded: str) -> None:
    right = ("strength", "path entropy, bits", "less the reference")
    table = show.grid(*right, right=right)
    for (strength, here), gap in zip(found.curve(), found.gaps(), strict=True):
        table.add_row(f"{strength:.3g}", str(here), str(gap))
    show.console().print(table)
    print(f"reference {mean(found.reference)} bits, {found.of} of {len(found.reference)} texts")
    high = "beyond the largest tried" if found.high is None or math.isinf(found.high) else f"{found.high:.3g}"
    sure = "" if found.low is None else f" (95 %: {found.low:.3g} to {high})"
    print(f"strength {found.strength:.3g}{sure}, where a gap is known to ±{made['noise']:.3f} bits")
    print(f"use it: unmask generate {loaded} {made['flags']}")
    cost = f"{show.many(made['evaluations'], 'evaluation')} · {made['seconds']:.1f} s"
    print(f"{cost} · rows.jsonl, calibrate.json and calibrate.svg are in {str(folder)!r}")


def _calibrate_stop(args: Namespace, most: float | None) -> None:
    """Find the threshold at which few prompts would get another answer than with all paths."""
    recipe = flags.to_recipe(args, {"search": "auto", "particles": 8})
    if most is not None:
        if most != int(most):
            raise InputError(f"--most is {most:g}", "give a whole number of paths")
        recipe = recipe.replace(until=stopping.NEVER, most=int(most))
    name, folder = args.model or "text", _folder(args.output)
    task = None if args.task is None else TASKS.get(args.task)
    if args.task is not None and task is None:
        raise unknown("task", args.task, TASKS)
    if args.labels and task is None:
        raise InputError("--labels needs a task that grades answers", "add --task NAME")
    model = models.load_model(args, name)
    asked = _asked(args, task, model)
    if recipe.length is None and asked.canvases is None:
        length = fitting_length(model, asked.prompts or []) if task is None else task.length
        recipe = recipe.replace(length=length)
    began = time.perf_counter()
    with show.progress() as bar:
        line = bar.add_task("all paths", total=asked.count)
        found = stopping.calibrate(
            model,
            asked.prompts,
            recipe,
            epsilon=args.epsilon or EPSILON,
            canvases=asked.canvases,
            answer=asked.answer,
            right=asked.right if args.labels else None,
            batch=args.batch or size("prompt" if asked.canvases is None else "puzzle", model.device, 8),
            on_progress=lambda done, total: bar.update(line, completed=done, total=total),
        )
    about = {"model": model.name, "data": Path(args.data).name, "labels": bool(args.labels), "task": args.task}
    figures = {name: value for name, value in vars(found).items() if name != "recipe"} | {"bound": found.bound}
    made = about | figures | {"recipe": found.recipe.to_dict(), "version": __version__}
    made["seconds"] = time.perf_counter() - began
    (folder / "stop.json").write_text(json.dumps(to_json(made), indent=1) + "\n", encoding="utf-8")
    if not found.until:
        why = f"already the lowest threshold would cost more than {found.epsilon:g} of {found.n} prompts their answer"
        hint = "allow a larger --epsilon, give more prompts, or compare answers with --task"
        raise InputError(why, f"{hint}; figures are in {str(folder)!r}")
    (folder / "stop.toml").write_text(found.recipe.to_toml(), encoding="utf-8")
    print(json.dumps(to_json(made))) if args.json else _show_stop(found, made, folder, name)


def _show_stop(found: stopping.Threshold, made: Row, folder: Path, name: str) -> None:
    print(f"until {found.until:.4g}: at most {found.epsilon:g} of such prompts get another answer than with all paths")
    print(f"of these {found.n}: {found.lost}; bound {found.bound:.4f}")
    spent = (
        f"{found.evaluations:.1f} evaluations instead of {found.all_evaluations:.1f}, {found.paths:.2f} paths a prompt"
    )
    print(f"{spent} · {made['seconds']:.1f} s")
    print(f"use it: unmask generate --model {shlex.quote(name)} --recipe {shlex.quote(str(folder / 'stop.toml'))} …")


@dataclass(frozen=True)
class _Asked:
    """The prompts of a calibration, and how their answers are compared."""

    prompts: list[Text] | None
    canvases: list[Text] | None
    answer: stopping.Answer
    right: stopping.Right

    @property
    def count(self) -> int:
        return len(self.prompts if self.canvases is None else self.canvases)  # type: ignore[arg-type]


def _asked(args: Namespace, task: Task | None, model: Denoiser) -> _Asked:
    """A prompt on each line of a file, or the questions of a task."""
    if task is None:
        lines = [line for line in files.read(args.data).splitlines() if line.strip()]
        return _Asked(list(lines[: args.limit]), None, lambda number, one: one.text, lambda number, one: False)
    examples = task.examples(args.data)[: args.limit]
    grade = bench.grader(task)

    puzzle = task.puzzle

    def written(one: Particle) -> str:
        return one.text if puzzle is None else puzzle.answer(one.tokens)

    def right(number: int, one: Particle) -> bool:
        return bool(grade(written(one), examples[number])[1])

    def answer(number: int, one: Particle) -> str | None:
        return task.extract(task.read_strictly(written(one)), examples[number])

    if puzzle is not None:
        bench.suits(task, model)
        return _Asked(None, [one.ask for one in bench.canvases(task, examples)], answer, right)

    questions = bench.prompts(task, examples, [[] for _ in examples], False)
    return _Asked([one.ask for one in questions], None, answer, right)


def add_calibrate(parser: ArgumentParser) -> None:
    _add_data(parser, f"what is found, {' or '.join(CALIBRATES)} [strength], then ")
    flag(parser, "--paths N", "reference paths of each text [4]")
    about = f"the largest strength tried [{MOST:g}]; stop: paths of a prompt, at most [as many as particles]"
    flag(parser, "--most X", about)
    flag(parser, "--points N", "strengths tried, at most [8]")
    flag(parser, "--budget N", "evaluations, at most: no strength is begun beyond it")
    about = f"whose path entropy meets the reference: of the {' or the '.join(OF)} particle [{OF[0]}]"
    flag(parser, "--of NAME", about)
    flag(parser, "--epsilon X", f"stop: share of prompts that may get another answer [{EPSILON:g}]")
    about = "stop: DATA has questions of this task, whose answers are compared; otherwise a prompt on each line"
    flag(parser, "--task NAME", about)
    flag(parser, "--labels", "stop: only a right answer that becomes a wrong one counts, by the task's grader")
    flag(parser, "--batch N", "stop: prompts decoded together")
    flag(parser, "--recipe NAME", "settings from a .toml or .json file")
    flag(parser, "--json", "print calibrate.json instead of a table")
    models.add_model(parser, "text")
    flags.add(
        parser,
        [name for name in SETTINGS if name not in ("length", "strength", "target", "until", "most")],
        {**GUIDED, "steps": STEPS},
    )


# --- both ------------------------------------------------------------------------------------------------------------


def _add_data(parser: ArgumentParser, first: str = "") -> None:
    about = (
        "with --length: text, documents with blank lines between them, .xz and .gz too; otherwise a text on each line"
    )
    about = f"{first}{about}; for the model sudoku: puzzles with solutions, or boards"
    if first:
        parser.add_argument("data", metavar="[stop] DATA", nargs="+", help=about)
    else:
        parser.add_argument("data", metavar="DATA", help=about)
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="where rows and pictures go")
    parser.add_argument("--length", dest="window", type=int, metavar="N", help="cut DATA into windows of N tokens")
    about = "DATA has documents, as with --length, or JSON lines: each in a row of its own, filled up with ends of text"
    flag(parser, "--documents", about)
    flag(parser, "--limit N", f"the first N texts only [{TEXTS}]", TEXTS)


def _about(args: Namespace, model: Denoiser, recipe: Recipe) -> Row:
    """Where the figures come from."""
    about = {"model": model.name, "data": Path(args.data).name, "length": args.window, "limit": args.limit}
    return about | {"documents": args.documents, "recipe": recipe.to_dict(), **origin(model.device)}


def _folder(name: str) -> Path:
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {name!r}", str(error.strerror)) from None
    return folder
