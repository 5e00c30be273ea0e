"""COMMANDS: name -> function, help and examples; the words of a command line -> parsed flags."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import NoReturn, cast

from unmask._version import __version__
from unmask.cli import demo, evaluate, flags, generate, judge, models, paper, puzzles, report, serve, speed, theory
from unmask.cli.models import Namespace
from unmask.decoding.prompt import MARKER
from unmask.decoding.settings import ALIASES, spelled
from unmask.errors import InputError, UnmaskError, unknown

FOLLOW = f"""\
A canvas has a hole where {MARKER} stands; [MASK*8] is eight holes.
A recipe file holds settings as TOML or JSON, with names as in `unmask samplers`; flags go over it.
Brackets say which samplers or searches take a setting, with its default; elsewhere it is an error.
Names of other projects work too:
{chr(10).join(f"  {spelled(alias)} is {spelled(name)}" for alias, name in ALIASES.items())}"""

# command: (function, help, examples); the tests run the examples
COMMANDS: dict[str, tuple[Callable[[Namespace], int | None], str, str]] = {
    "generate": (
        generate.generate,
        "Generate text after a prompt, or fill the holes of a canvas.",
        """\
  unmask generate 'The city of Vienna' --sampler uniform --temperature 1
  unmask generate 'The city of Vienna' --sampler uniform --temperature 1 --length 24 --seed 3 --json
  unmask generate --canvas 'The[MASK*4] of Vienna was built in[MASK*2].'
  unmask generate --model table --sampler uniform --steps 3 --temperature 1 --search best-of-n --particles 8
  unmask generate --model table --sampler uniform --steps 3 --temperature 1 --search smc --every 1 --trace path.jsonl
  unmask generate 'once upon' --model random --sampler eb --bound 0.5 --length 32""",
    ),
    "solve": (
        puzzles.run_solve,
        "Solve a Sudoku or a countdown with the bundled model, and say whether the answer is right.",
        """\
  unmask solve 53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79
  unmask solve 15,44,79,50
  unmask solve puzzle.txt --sampler uniform --temperature 1 --steps 16 --search best-of-n --particles 8""",
    ),
    "eval": (
        evaluate.run_eval,
        "Put the questions of a task to a model: how many it solves, and whether path entropy knew which.",
        """\
  unmask eval sudoku --data puzzle.txt
  unmask eval sudoku --data puzzle.txt --sampler uniform --temperature 1 --steps 16 --search best-of-n --json
  unmask eval sudoku --data puzzle.txt --rows one.jsonl""",
    ),
    "compare": (
        evaluate.run_compare,
        "Compare runs over the same questions: differences with intervals, and what they cost.",
        """\
  unmask eval sudoku --data puzzle.txt --rows one.jsonl
  unmask eval sudoku --data puzzle.txt --sampler uniform --temperature 1 --rows other.jsonl
  unmask compare one.jsonl other.jsonl""",
    ),
    "judge": (
        judge.run_judge,
        "Judge texts by a causal model: perplexity, diversity, and whether path entropy knew it.",
        """\
  unmask judge samples.jsonl --judge ./tiny-gpt2 --rows judged.jsonl
  unmask judge samples.jsonl --judge ./tiny-gpt2 --convention both --by steps --json
  unmask judge words.txt --lines --judge ./tiny-gpt2
  unmask judge --export ./carried --bits 8 --judge ./tiny-gpt2""",
    ),
    "paper": (
        paper.run_paper,
        "Run a table or figure of the paper on the bundled models, or on the paper's; rows are kept and resumed.",
        """\
  unmask paper
  unmask paper vote --on countdown --limit 1 --no-pictures""",
    ),
    "puzzles": (
        puzzles.run_puzzles,
        "Make Sudokus with one solution, or countdown problems, that training leaves out.",
        """\
  unmask puzzles sudoku --count 20 --clues 28 -o puzzles.txt
  unmask puzzles countdown --count 20 --numbers 4 -o problems.jsonl
  unmask puzzles sudoku --count 1000 --solved -o grids.txt""",
    ),
    "report": (
        report.run_report,
        "Make one page of a trace that replays it: canvases, entropy curves, genealogy, particles. No network.",
        """\
  unmask generate --model table --sampler uniform --steps 3 --temperature 1 --search smc --every 1 --trace path.jsonl
  unmask report path.jsonl -o path.html""",
    ),
    "score": (
        theory.run_score,
        "Measure the path entropy of given texts: how sure the model is while they are revealed. Ranks answers, too.",
        """\
  unmask score senate tester eeeeee --model table
  unmask score ate ste --prompt sen --model table --draws 16
  unmask score words.txt --model table --sampler confidence --draws 1 --json
  unmask score words.txt --model table --sampler uniform --block-length 1 --draws 1 --rows scores.jsonl""",
    ),
    "theory": (
        theory.run_theory,
        "Measure what the theory speaks of: loss and state entropy over time, context, drift, bounds; with a figure.",
        """\
  unmask theory lines.txt --model table --steps 6 --data-entropy 6.7 -o table-theory
  unmask theory lines.txt --model random --steps 4 --draws 4 --json -o random-theory""",
    ),
    "calibrate": (
        theory.run_calibrate,
        "Find the strength of E-SMC at which decoded paths are as uncertain as those of given texts.",
        """\
  unmask calibrate lines.txt --model table --steps 2 --particles 8 --every 1 --points 4 -o table-strength
  unmask calibrate lines.txt --model table --steps 3 --particles 2 --every 1 --of chosen --budget 500 -o chosen""",
    ),
    "serve": (
        serve.run_serve,
        "Serve models over HTTP, as OpenAI's clients expect it; answers carry their path entropy.",
        """\
  unmask serve --port 0 --seconds 0.5
  unmask serve --model text --sampler uniform --steps 32 --port 0 --seconds 0.5""",
    ),
    "samplers": (
        generate.samplers,
        "List the samplers with their settings, or say all about one.",
        "  unmask samplers\n  unmask samplers fast-dllm\n  unmask samplers --json",
    ),
    "searches": (
        generate.searches,
        "List the searches with their settings, or say all about one.",
        "  unmask searches\n  unmask searches smc\n  unmask searches --json",
    ),
    "models": (
        generate.models,
        "List the models, or load one and say all about it.",
        "  unmask models\n  unmask models table\n  unmask models ./tiny-llada --json",
    ),
    "recipes": (
        generate.recipes,
        "List the paper's configurations as shipped recipes, or say all about one.",
        "  unmask recipes\n  unmask recipes llada-gsm8k-pc-smc\n  unmask recipes open-dcoder-p2-smc --json",
    ),
    "check": (
        models.run_check,
        "Check that a model keeps the laws that decoding relies on: rows, padding, head, time, cache.",
        "  unmask check random\n  unmask check ./tiny-llada --dtype float64",
    ),
    "fabricate": (
        models.run_fabricate,
        "Write a random checkpoint in a family's published layout, for tests, benchmarks and bug reports.",
        "  unmask fabricate llada ./tiny-llada\n  unmask generate hello --chat --model ./tiny-llada --length 16",
    ),
    "train": (
        models.run_train,
        "Train the bundled model of a task, or go on with it.",
        """\
  unmask train sudoku runs/small --steps 20 --batch 16 --held 4 --shape '{"width": 32, "layers": 1, "inner": 32}'
  unmask generate --model runs/small --canvas '12345678[MASK]' --json""",
    ),
    "merge": (
        models.run_merge,
        "Write the mean of models of one network as a new model, in 16 or 8 bits a weight.",
        """\
  unmask merge sudoku --out one
  unmask merge one sudoku --out mean --bits 8 --group 128""",
    ),
    "convert": (
        models.run_convert,
        "Turn a Lightning checkpoint of MDLM into a directory that unmask loads. No code of the file runs.",
        "  unmask convert best.ckpt ./my-mdlm\n  unmask generate '15 16 17' --model ./my-mdlm --length 8",
    ),
    "frequencies": (
        generate.frequencies,
        "Count the tokens of texts: the background table that the sampler pc needs.",
        """\
  unmask frequencies words.txt --model table -o table.json
  unmask frequencies words.jsonl --fields text,title --model random -o random.json
  unmask generate --model table --sampler pc --background table.json""",
    ),
    "bench": (
        speed.run_bench,
        "Measure what a step costs, beside the least that it could and the step of public decoding loops.",
        """\
  unmask bench speed --size tiny --steps 8 --repeat 1 --no-compile
  unmask bench speed --size tiny --steps 8 --repeat 1 --no-compile --sweep particles=1,4 --plot cost.svg --json""",
    ),
    "lm-eval": (
        generate.lm_eval,
        "Run lm-evaluation-harness, which then knows the model `unmask`; all words go to it as they are.",
        """\
  unmask lm-eval --model unmask --model_args pretrained=text,sampler=uniform,temperature=1 --tasks words.yaml
  unmask lm-eval --model unmask --model_args pretrained=text,mc_num=32,rows=rows.jsonl,batch_size=32 --tasks words.yaml
  unmask lm-eval run --help""",
    ),
    "demo": (
        generate.show_demo,
        "Watch a Sudoku being solved, then compare vanilla decoding, best-of-n and SMC on several.",
        "  unmask demo\n  unmask demo --puzzles 12",
    ),
}


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are UnmaskErrors."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, f"see `{self.prog} --help`")


def parse(argv: list[str]) -> Namespace:
    parser = _parser(argv[0] if argv else "")
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        raise unknown("command", argv[0], COMMANDS)
    if argv[:1] == ["lm-eval"] and argv[1:] and argv[1] not in ("-h", "--help"):
        return Namespace(run=generate.lm_eval, words=argv[1:])  # not ours to understand
    if argv[:1] == ["solve"]:
        argv = [f" {word}" if re.match("-[0-9]+,", word) else word for word in argv]  # a puzzle, no option
    args, extra = parser.parse_known_args(argv)
    if extra:
        raise _unexpected(args, extra)
    return args


def _unexpected(args: Namespace, extra: list[str]) -> UnmaskError:
    """An option that does not exist, with the nearest that does; or a word too many."""
    word = next((word for word in extra if word.startswith("-")), extra[0]).partition("=")[0]
    about = f"see `{args.parser.prog} --help`"
    if not word.startswith("-"):
        if hasattr(args, "too_many"):
            return cast(UnmaskError, args.too_many(args, extra))
        texts = args.run is generate.generate
        return InputError(f"unexpected {word!r}", "put quotes around a text of several words" if texts else about)
    wanted = word.replace("_", "-")
    options = {option.lstrip("-"): option for option in args.parser._option_string_actions}
    near = [option for option in options.values() if len(wanted) > 3 and option.startswith(wanted)]
    near = near or [options[name] for name in get_close_matches(wanted.lstrip("-"), options, n=1, cutoff=0.6)]
    hint = f"did you mean {near[0]!r}?" if near else about
    return InputError(f"unknown option {word!r}", hint)


def _parser(command: str) -> argparse.ArgumentParser:
    """All commands by name, and the flags of the one that is given: those of all take a seventh of a second."""
    layout = argparse.RawDescriptionHelpFormatter
    about = "Decode masked diffusion language models along low-uncertainty paths."
    first = "unmask generate 'The city of Vienna' --sampler uniform --temperature 1"
    start = f"start with:\n  unmask demo\n  {first}\n  unmask generate --help"
    parser = _Parser("unmask", description=about, epilog=start, formatter_class=layout, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"unmask {__version__}")
    parser.set_defaults(run=lambda args: parser.print_help(), parser=parser)
    some = parser.add_subparsers(title="commands", metavar="COMMAND")
    made: dict[str, argparse.ArgumentParser] = {}
    for name, (run, text, examples) in COMMANDS.items():
        epilog = f"examples:\n{examples}"
        made[name] = some.add_parser(
            name, help=text, description=text, epilog=epilog, formatter_class=layout, allow_abbrev=False
        )
        made[name].set_defaults(run=run, parser=made[name])
    made["lm-eval"].usage = "unmask lm-eval WORDS"
    made["lm-eval"].set_defaults(words=[])
    made["generate"].usage = "unmask generate [PROMPT] [flags]"
    made["generate"].epilog = f"{FOLLOW}\n\n{made['generate'].epilog}"
    made["eval"].epilog = f"{evaluate.LISTED}\n\n{made['eval'].epilog}"
    if command in FLAGS:
        FLAGS[command](made[command])
    return parser


def _add_listed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="only this one, in detail")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_models(parser: argparse.ArgumentParser) -> None:
    _add_listed(parser)
    models.add_model(parser)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--puzzles", type=int, default=demo.PUZZLES, metavar="N", help=f"how many [{demo.PUZZLES}]")
    parser.add_argument("--trace", default=demo.TRACE, metavar="FILE", help=f"where one path goes [{demo.TRACE}]")


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="text to go on from; - reads standard input")
    parser.add_argument(
        "--canvas", metavar="TEXT", help="text with holes instead of a prompt, like 'The[MASK*2] of Vienna'"
    )
    parser.add_argument(
        "--prompts", metavar="FILE", help="a prompt on each line, decoded together; - reads standard input"
    )
    parser.add_argument("--chat", action="store_true", help="the prompt is a question: write it as the model's chat")
    parser.add_argument("--system", metavar="TEXT", help="with --chat: what the system is told first")
    parser.add_argument("--recipe", metavar="NAME", help="settings from `unmask recipes`, or a .toml or .json file")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each prompt")
    parser.add_argument("--trace", metavar="FILE", help="write every step to this file (JSONL)")
    models.add_model(parser, generate.DEFAULT)
    parser.add_argument("--max-rows", type=int, metavar="N", help="rows through the network at a time: bounds memory")
    about = "compile the network first: takes a minute, pays in long runs on a GPU"
    parser.add_argument("--compile", action="store_true", help=about)
    flags.add(parser)


def _add_frequencies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="TEXTFILE", help="UTF-8; each line is a text of its own")
    parser.add_argument("--model", required=True, metavar="NAME", help="whose tokens are counted; no weights are read")
    parser.add_argument("--tokenizer", metavar="NAME", help="directory or hub id with the tokenizer, if not its own")
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a hub id")
    parser.add_argument("--fields", metavar="NAMES", help="lines are JSON objects: the text is in these fields")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where the table goes")


FLAGS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "generate": _add_generate,
    "solve": puzzles.add_solve,
    "eval": evaluate.add_eval,
    "compare": evaluate.add_compare,
    "judge": judge.add_judge,
    "score": theory.add_score,
    "theory": theory.add_theory,
    "calibrate": theory.add_calibrate,
    "paper": paper.add_paper,
    "puzzles": puzzles.add_puzzles,
    "report": report.add_report,
    "bench": speed.add_bench,
    "serve": serve.add_serve,
    "samplers": _add_listed,
    "searches": _add_listed,
    "models": _add_models,
    "recipes": _add_listed,
    "check": models.add_check,
    "fabricate": models.add_fabricate,
    "convert": models.add_convert,
    "train": models.add_train,
    "merge": models.add_merge,
    "frequencies": _add_frequencies,
    "demo": _add_demo,
}
