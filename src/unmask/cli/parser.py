"""The words of a command line -> parsed flags. COMMANDS: name -> module, help and examples, as text.

A command's module is imported when that command is given; it holds `run_NAME(args)` and `add_NAME(parser)`.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter, _ActionsContainer
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module, metadata
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, NamedTuple, NoReturn

from unmask._version import __version__
from unmask.errors import InputError, UnmaskError, unknown


class Command(NamedTuple):
    """One command as `unmask --help` shows it."""

    module: str  # of unmask.cli
    help: str
    examples: str  # the tests run them


COMMANDS: dict[str, Command] = {
    "generate": Command(
        "generate",
        "Generate text after a prompt, or fill the masks of a canvas.",
        """\
  unmask generate 'Once upon a time'
  unmask generate 'One day, a little girl named Lily' --length 48 --temperature 0.5 --seed 3 --json
  unmask generate --canvas 'Once upon a time, there was a[MASK*3] who liked to[MASK*4].'
  unmask generate --model table --sampler uniform --steps 3 --temperature 1 --search auto --particles 8
  unmask generate --model table --sampler uniform --steps 3 --temperature 1 --search auto --trace path.jsonl
  unmask generate 'once upon' --model random --sampler eb --bound 0.5 --length 32
  unmask generate --prompts lines.txt --model random --length 16 -o answers.jsonl""",
    ),
    "solve": Command(
        "solve",
        "Solve a Sudoku, a countdown or a word problem with the bundled model, and check the answer.",
        """\
  unmask solve 53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79
  unmask solve 15,44,79,50
  unmask solve puzzle.txt --sampler uniform --temperature 1 --steps 16 --search auto --particles 8""",
    ),
    "demo": Command(
        "demo",
        "Watch a Sudoku being solved, then compare vanilla decoding, best-of-n, SMC and auto on several.",
        "  unmask demo\n  unmask demo --puzzles 12",
    ),
    "serve": Command(
        "serve",
        "Serve models over HTTP to OpenAI's clients; answers carry their path entropy.",
        """\
  unmask serve --port 0 --seconds 0.5
  unmask serve --model text --sampler uniform --steps 32 --port 0 --seconds 0.5""",
    ),
    "report": Command(
        "report",
        "Write a page that replays a trace: canvases, entropy curves, genealogy, particles. It needs no network.",
        """\
  unmask generate --model table --sampler uniform --steps 3 --temperature 1 --search auto --trace path.jsonl
  unmask report path.jsonl -o path.html""",
    ),
    "samplers": Command(
        "lists",
        "List the samplers with their settings, or describe one.",
        "  unmask samplers\n  unmask samplers fast-dllm\n  unmask samplers --json",
    ),
    "searches": Command(
        "lists",
        "List the searches with their settings, or describe one.",
        "  unmask searches\n  unmask searches auto\n  unmask searches --json",
    ),
    "models": Command(
        "models",
        "List the models, or load one and describe it.",
        "  unmask models\n  unmask models table\n  unmask models ./tiny-llada --json",
    ),
    "recipes": Command(
        "lists",
        "List the paper's configurations, which are bundled as recipes, or describe one.",
        "  unmask recipes llada-gsm8k\n  unmask recipes llada-gsm8k-pc-smc\n  unmask recipes open-dcoder-p2-smc --json",
    ),
    "help": Command(
        "parser",
        "Print a page of the guide or the reference, which are installed with the package; without a name, list them.",
        "  unmask help\n  unmask help decoding\n  unmask help own-task",
    ),
    "eval": Command(
        "evaluate",
        "Run a task: the share of questions that a model solves, and how well path entropy predicts which.",
        """\
  unmask eval sudoku --data puzzle.txt
  unmask eval sudoku --data puzzle.txt --sampler uniform --temperature 1 --steps 16 --search auto --json
  unmask eval sudoku --data puzzle.txt --rows one.jsonl""",
    ),
    "compare": Command(
        "compare",
        "Compare runs over the same questions: differences with intervals, and what they cost.",
        """\
  unmask eval sudoku --data puzzle.txt --rows one.jsonl
  unmask eval sudoku --data puzzle.txt --sampler uniform --temperature 1 --rows other.jsonl
  unmask compare one.jsonl other.jsonl""",
    ),
    "join": Command(
        "compare",
        "Make one file of the rows of all shards of a run, equal to that of the whole run.",
        """\
  unmask generate --prompts lines.txt --model random --length 8 --batch 1 --shard 1/2 -o out.1.jsonl
  unmask generate --prompts lines.txt --model random --length 8 --batch 1 --shard 2/2 -o out.2.jsonl
  unmask join out.1.jsonl out.2.jsonl -o out.jsonl""",
    ),
    "judge": Command(
        "judge",
        "Judge texts by a causal model: perplexity, diversity, and their correlation with path entropy.",
        """\
  unmask judge samples.jsonl --judge ./tiny-gpt2 --rows judged.jsonl
  unmask judge samples.jsonl --judge ./tiny-gpt2 --convention both --by steps --json
  unmask judge words.txt --lines --judge ./tiny-gpt2
  unmask judge --export ./carried --bits 8 --judge ./tiny-gpt2""",
    ),
    "paper": Command(
        "paper",
        "Run a table or figure of the paper on the bundled models, or on the paper's; a run can be resumed.",
        """\
  unmask paper
  unmask paper vote --on countdown --limit 1 --no-pictures""",
    ),
    "score": Command(
        "theory",
        "Measure the path entropy of given texts: how certain the model is as they are revealed. Ranks answers.",
        """\
  unmask score senate tester eeeeee --model table
  unmask score ate ste --prompt sen --model table --draws 16
  unmask score words.txt --model table --sampler confidence --draws 1 --json
  unmask score words.txt --model table --sampler uniform --block-length 1 --draws 1 --rows scores.jsonl""",
    ),
    "theory": Command(
        "theory",
        "Measure and draw the quantities of the theory: loss and state entropy over time, context, drift, bounds.",
        """\
  unmask theory lines.txt --model table --steps 6 --data-entropy 6.7 -o table-theory
  unmask theory lines.txt --model random --steps 4 --draws 4 --json -o random-theory""",
    ),
    "calibrate": Command(
        "theory",
        "Find the strength of E-SMC at which decoded paths are as uncertain as those of given texts, or when to stop.",
        """\
  unmask calibrate stop prompts.txt --model table --length 4 --temperature 1 --epsilon 0.3 -o table-stop
  unmask calibrate lines.txt --model table --steps 2 --particles 8 --every 1 --points 4 -o table-strength
  unmask calibrate lines.txt --model table --steps 3 --particles 2 --every 1 --of chosen --budget 500 -o chosen""",
    ),
    "bench": Command(
        "speed",
        "Measure what a step costs, beside a lower bound and the step of public decoding loops.",
        """\
  unmask bench speed --size tiny --steps 8 --repeat 1 --no-compile
  unmask bench speed --size tiny --steps 8 --repeat 1 --no-compile --sweep particles=1,4 --plot cost.svg --json""",
    ),
    "lm-eval": Command(
        "lm_eval",
        "Run lm-evaluation-harness with the model `unmask` registered; all arguments go to it unchanged.",
        """\
  unmask lm-eval --model unmask --model_args pretrained=text,sampler=uniform,temperature=1 --tasks words.yaml
  unmask lm-eval --model unmask --model_args pretrained=text,mc_num=32,rows=rows.jsonl,batch_size=32 --tasks words.yaml
  unmask lm-eval run --help""",
    ),
    "train": Command(
        "train",
        "Train the model of a task, or resume its training.",
        """\
  unmask train sudoku runs/small --steps 20 --batch 16 --held 4 --shape '{"width": 32, "layers": 1, "inner": 32}'
  unmask generate --model runs/small --canvas '12345678[MASK]' --json""",
    ),
    "merge": Command(
        "train",
        "Write the mean of models of one network as a new model, in 16 or 8 bits a weight.",
        """\
  unmask merge sudoku --out one
  unmask merge one sudoku --out mean --bits 8 --group 128""",
    ),
    "convert": Command(
        "models",
        "Convert a Lightning checkpoint of MDLM into a directory that unmask loads. No code of the file runs.",
        "  unmask convert best.ckpt ./my-mdlm\n  unmask generate '15 16 17' --model ./my-mdlm --length 8",
    ),
    "check": Command(
        "models",
        "Check that a model keeps the laws that decoding relies on: rows, padding, head, time, cache.",
        "  unmask check random\n  unmask check ./tiny-llada --dtype float64",
    ),
    "fabricate": Command(
        "models",
        "Write a random checkpoint in a family's published layout, for tests, benchmarks and bug reports.",
        "  unmask fabricate llada ./tiny-llada\n  unmask generate hello --chat --model ./tiny-llada --length 16",
    ),
    "puzzles": Command(
        "puzzles",
        "Make held-out puzzles that training never draws: Sudokus with one solution, countdowns, or word problems.",
        """\
  unmask puzzles sudoku --count 20 --clues 28 -o puzzles.txt
  unmask puzzles countdown --count 20 --numbers 4 -o problems.jsonl
  unmask puzzles problems --count 20 --form plain --people 4 -o questions.jsonl
  unmask puzzles sudoku --count 1000 --solved -o grids.txt""",
    ),
    "prompts": Command(
        "prompts",
        "Write the prompts of a copy of PC-Sampler's repository, the paper's, as files for `unmask eval --prompt`.",
        "  unmask prompts ./PC-Sampler\n  unmask prompts ./PC-Sampler/src/template.py -o pc-prompts",
    ),
    "frequencies": Command(
        "generate",
        "Count the tokens of texts: the background table that the sampler pc needs.",
        """\
  unmask frequencies words.txt --model table -o table.json
  unmask frequencies words.jsonl --fields text,title --model random -o random.json
  unmask generate --model table --sampler pc --background table.json""",
    ),
}

# The headings of `unmask --help` and the first command under each; the others follow in the order of COMMANDS.
HEADINGS = {
    "generate": "decode",
    "samplers": "see what there is",
    "eval": "measure",
    "train": "models and data",
}
ABOUT = """\
Decode masked diffusion language models along low-uncertainty paths.

A sampler decides which masks are filled in a step, and a search compares paths by their entropy:
how uncertain the model was, in bits, at the masks that were left."""
FEW = 12  # flags that a usage lists; of more it says [flags]
START = """\
start with:
  unmask demo
  unmask generate 'Once upon a time'
  unmask generate 'Once upon a time' --length 64 --search auto --trace path.jsonl
  unmask report path.jsonl
`unmask COMMAND --help` lists the flags of a command, with examples. `unmask help` lists the pages of the guide."""


class _Parser(ArgumentParser):
    """A parser whose complaints are UnmaskErrors."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, f"see `{self.prog} --help`")


def parse(argv: list[str]) -> Namespace:
    """The flags of a command line; `run` is the function of its command."""
    name, words = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else ("", argv)
    if name and name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    if name == "lm-eval" and words and words[0] not in ("-h", "--help"):
        return Namespace(run=function("run", name), words=words)  # the harness parses them
    if name == "solve":
        words = [f" {word}" if re.match("-[0-9]+,", word) else word for word in words]  # a puzzle, not an option
    parser = build(name) if name else _top()
    args, extra = parser.parse_known_args(words)
    if extra:
        raise _unexpected(parser, args, extra)
    return args


def build(name: str) -> ArgumentParser:
    """The parser of one command, with its flags."""
    command = COMMANDS[name]
    parser = _Parser(
        f"unmask {name}",
        description=command.help,
        epilog=f"examples:\n{command.examples}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=function("run", name))
    function("add", name)(parser)
    if parser.usage is None and len(parser._option_string_actions) > FEW:
        needed = [one.option_strings[0] + f" {one.metavar}" for one in parser._get_optional_actions() if one.required]
        parser.usage = " ".join([parser.prog, *_words(parser), *needed, "[flags]"])
    return parser


def _words(parser: ArgumentParser) -> list[str]:
    """The arguments of a command that are not flags, as its usage shows them."""
    signs = {"?": "[{}]", "*": "[{}...]", "+": "{}..."}
    return [signs.get(str(one.nargs), "{}").format(one.metavar or one.dest) for one in parser._get_positional_actions()]


def function(kind: str, name: str) -> Callable[..., Any]:
    """`run_NAME` or `add_NAME` of a command's module, imported now."""
    module = import_module(f"unmask.cli.{COMMANDS[name].module}")
    found: Callable[..., Any] = getattr(module, f"{kind}_{name.replace('-', '_')}")
    return found


def _top() -> ArgumentParser:
    """The parser of `unmask` without a command: it lists the commands."""
    lines, width = [], get_terminal_size().columns - 2
    for name, command in COMMANDS.items():
        lines += [f"\n{HEADINGS[name]}:"] if name in HEADINGS else []
        lines.append(fill(command.help, width, initial_indent=f"  {name:12} ", subsequent_indent=" " * 15))
    parser = _Parser(
        "unmask",
        usage="unmask COMMAND [flags]",
        description="\n".join([ABOUT, *lines]),
        epilog=START,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"unmask {__version__}")
    parser.set_defaults(run=lambda args: parser.print_help())
    return parser


def run_help(args: Namespace) -> None:
    """Print a page, or the help of a command that has none; without a name list the pages."""
    found = pages()
    if args.name is None:
        width = get_terminal_size().columns - 2
        for folder in dict.fromkeys(path.parent.name for path in found.values()):
            names = ", ".join(name for name, path in found.items() if path.parent.name == folder)
            print(fill(f"{folder}: {names}", width, subsequent_indent="  ", break_on_hyphens=False))
        print(
            "`unmask help PAGE` prints one." if found else "There are no pages here: `unmask --help` has the commands."
        )
    elif args.name in found:
        print(found[args.name].read_text(encoding="utf-8"), end="")
        if args.name in COMMANDS:
            print(f"\n`unmask {args.name} --help` lists the flags of the command.")
    elif args.name in COMMANDS:
        build(args.name).print_help()
    else:
        raise unknown("page", args.name, {**found, **COMMANDS}, "`unmask help` lists them")


def pages() -> dict[str, Path]:
    """The pages of guide and reference by name: those installed with the package, or those of the source tree."""
    try:
        installed = [
            Path(str(one.locate())) for one in metadata.files("unmask") or () if "share/doc/unmask" in str(one)
        ]
    except metadata.PackageNotFoundError:
        installed = []
    docs = Path(__file__).parents[3] / "docs"
    found = [path for path in installed if path.exists()] or [*docs.glob("guide/*.md"), *docs.glob("reference/*.md")]
    return {path.stem: path for path in sorted(found) if path.suffix == ".md" and path.stem != "README"}


def add_help(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="PAGE", help="a page, or a command")


def _unexpected(parser: ArgumentParser, args: Namespace, extra: list[str]) -> UnmaskError:
    """An option that does not exist, with the nearest that does; or one word too many."""
    word = next((word for word in extra if word.startswith("-")), extra[0]).partition("=")[0]
    about = f"see `{parser.prog} --help`"
    if not word.startswith("-"):
        too_many = getattr(args, "too_many", None)
        error: UnmaskError = too_many(args, extra) if too_many else InputError(f"unexpected {word!r}", about)
        return error
    wanted = word.replace("_", "-")
    options = {option.lstrip("-"): option for option in parser._option_string_actions}
    near = _elsewhere(wanted, options)
    near = near or [option for option in options.values() if len(wanted) > 3 and option.startswith(wanted)]
    near = near or [options[name] for name in get_close_matches(wanted.lstrip("-"), options, n=1, cutoff=0.6)]
    return InputError(f"unknown option {word!r}", f"did you mean {near[0]!r}?" if near else about)


def _elsewhere(word: str, options: Mapping[str, str]) -> list[str]:
    """The option for what other programs call by this name."""
    if "unmask.decoding.settings" not in sys.modules:  # then the command has no settings
        return []
    from unmask.decoding.settings import ELSEWHERE

    found = ELSEWHERE.get(word.lstrip("-").replace("-", "_"))
    return [] if found is None or found[1].split()[0] not in options.values() else [found[1]]


def refuse(args: Namespace, names: Iterable[str], where: str, hint: str = "leave it out") -> None:
    """Refuse flags that were given and have no effect on what is done."""
    for name in names:
        if getattr(args, name) not in (None, False, "cpu"):  # what a flag holds that was not given
            raise InputError(f"--{name.replace('_', '-')} has no effect on {where}", hint)


def flag(
    parser: _ActionsContainer, spec: str, help: str, default: object = None, kind: Callable[[str], Any] = str
) -> None:
    """One flag: `--json` has no value, that of `--limit N` is an int, of `--rate X` a float, of others a `kind`."""
    *names, last = spec.split(", ")
    name, _, metavar = last.partition(" ")
    if metavar:
        kind = {"N": int, "X": float}.get(metavar, kind)
        parser.add_argument(*names, name, type=kind, default=default, metavar=metavar, help=help)
    else:
        parser.add_argument(*names, name, action="store_true", help=help)
