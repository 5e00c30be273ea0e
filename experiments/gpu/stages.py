"""What is run on a GPU: phases, their jobs, and the commands of these, all of them resumable where they take long."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CARRIED = Path("runs/carried")
Words = list[str]
Step = Callable[[int], Words]  # the seconds that are left -> a command
PUZZLES = ("sudoku24", "countdown4", "sudoku28", "countdown5")  # ours; cd3 to cd5 are public files
REWARDING = [f"{task}-{order}" for task in ("sudoku28", "sudoku24", "countdown4", "countdown5")
             for order in ("uniform", "confidence", "entropy")] + ["sudoku24-eb", "countdown4-eb"]  # fmt: skip
KINDS = ("float", "int8", "int4")
SOURCE = "import json, sys\nfor line in sys.stdin:\n    row = json.loads(line)\n"
SOURCE += "    print(json.dumps({'text': row['prompt'] + row['text']}))"


@dataclass(frozen=True)
class Setup:
    """Where and how much."""

    run: Path
    device: str
    tiny: bool
    python: str
    env: Mapping[str, str]
    data: Path | None  # public Countdown files

    @classmethod
    def of_environment(cls) -> Setup:
        run = Path(os.environ.get("RUN", "runs/gpu")).resolve()
        env = dict(os.environ) | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
        env["PYTHONPATH"] = os.pathsep.join([str(Path("src").resolve()), *filter(None, [os.environ.get("PYTHONPATH")])])
        env |= {"TRITON_CACHE_DIR": str(run / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(run / "inductor")}
        python = os.environ.get("PYTHON", sys.executable)
        env["PYTHON"] = python
        if (CARRIED / "commit").exists():  # asked for only where git knows nothing
            env.setdefault("UNMASK_COMMIT", (CARRIED / "commit").read_text(encoding="utf-8").strip())
        known = (CARRIED / "countdown", Path("shared/data/countdown"), Path(os.environ.get("COUNTDOWN", "nowhere")))
        data = next((path.resolve() for path in known if (path / "cd4_test.jsonl").exists()), None)
        return cls(run, os.environ.get("DEVICE", "cuda"), bool(os.environ.get("TINY")), python, env, data)

    def log(self, name: str) -> Path:
        self.run.joinpath("logs").mkdir(parents=True, exist_ok=True)
        return self.run / "logs" / f"{name}.txt"

    @property
    def rows(self) -> Path:
        return self.run / "rows"

    @property
    def half(self) -> Words:
        return [] if self.tiny else ["--dtype", "bfloat16"]

    def commit(self) -> str | None:
        known = ""
        if Path(".git").exists() and shutil.which("git"):
            known = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout
        return (known or self.env.get("UNMASK_COMMIT", ""))[:10] or None

    def few(self, many: int, few: int = 2) -> str:
        return str(few if self.tiny else many)

    def unmask(self, *words: object) -> Words:
        return [self.python, "-m", "unmask", *map(str, words)]

    def script(self, name: str, *words: object) -> Words:
        return [self.python, f"experiments/{name}", *map(str, words)]

    def shell(self, text: str, *words: object) -> Words:
        return ["bash", "-c", f"set -eo pipefail; mkdir -p '{self.rows}'; {text}", "bash", *map(str, words)]


@dataclass(frozen=True)
class Job:
    """Commands one after another; a filler runs as long as the others of its phase do."""

    name: str
    steps: tuple[Step, ...]
    fine: tuple[int, ...] = (0,)  # exit status of a step that is done
    nice: int = 0
    filler: bool = False
    files: int = 0  # first steps that make files which do not come back: they are looked at every time
    apart: bool = False  # a step that fails or lasts too long does not keep the next ones from being taken
    each: int = 0  # seconds of a step at most
    env: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class Phase:
    """Jobs side by side."""

    name: str
    about: str
    seconds: int  # at most, before the other phases have had theirs
    least: int  # seconds with which it is begun
    jobs: Callable[[Setup], list[Job]]
    before: Callable[[Setup], None] | None = None
    first: bool = False  # nothing else is begun if a job of it fails


def always(words: Words) -> Step:
    return lambda left: words


def until(flag: str, less: int, words: Words) -> Step:
    """A command that is told the seconds that are left, but for some."""
    return lambda left: [*words, flag, str(max(1, left - less))]


# --- files that later phases need: made on the CPU beside the tests ---------------------------------------------------


def fabricated(s: Setup, family: str) -> Words:
    """A checkpoint, unless it is there; what a killed run left of one is removed."""
    there, size = s.run / family, "tiny" if s.tiny else "full"
    made = " ".join(f"'{word}'" for word in s.unmask("fabricate", family, there, "--size", size))
    return s.shell(f"[ -e '{there}/config.json' ] || {{ rm -rf '{there}'; OMP_NUM_THREADS=8 {made}; }}")


def puzzles_made(s: Setup, name: str, *words: object) -> Words:
    """A file of puzzles, unless it is there."""
    made = " ".join(f"'{word}'" for word in s.unmask("puzzles", *words))
    return s.shell(
        f"[ -s '{s.rows}/{name}' ] || {{ {made} -o '{s.rows}/{name}'.$$; mv '{s.rows}/{name}'.$$ '{s.rows}/{name}'; }}"
    )


QUESTIONS = """
import sys
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, "experiments/search")
from methods import CELLS
from study import questions

of = {(cell.task, cell.level): cell for cell in CELLS.values() if cell.task != "text"}
Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
with get_context("fork").Pool(len(of)) as pool:
    pool.starmap(questions, [(Path(sys.argv[1]), cell, "held", int(sys.argv[2])) for cell in of.values()])
"""


def sets(s: Setup) -> list[Step]:
    """Questions of the small jobs, the same here and on a CPU."""
    n = int(s.few(1000))
    made = [
        ("countdown.jsonl", "countdown", "--count", n, "--seed", 7),
        ("problems.jsonl", "problems", "--form", "plain", "--count", n, "--seed", 7),
        ("sudoku.txt", "sudoku", "--clues", 28, "--answers", "--count", n, "--seed", 77),
        ("ends-problems.jsonl", "problems", "--form", "plain", "--count", s.few(500), "--seed", 2),
    ]
    return [always(puzzles_made(s, *one)) for one in made]


def study_questions(s: Setup) -> Step:
    return always([s.python, "-c", QUESTIONS, str(s.rows / "study"), s.few(1000)])


def path_puzzles(s: Setup, task: str) -> Step:
    return always(s.script("search/paths.py", "puzzles", "--puzzles", s.run / "puzzles", "--cells", f"{task}-eb"))


def made(s: Setup) -> list[Job]:
    """All files, by processes that use no GPU."""
    some = [Job(f"make-{family}", (always(fabricated(s, family)),)) for family in ("llada", "mdlm")]
    some += [Job("make-sets", tuple(sets(s))), Job("make-study", (study_questions(s),))]
    return some + [Job(f"make-{task}", (path_puzzles(s, task),)) for task in PUZZLES[: 1 if s.tiny else None]]


def random_forms(s: Setup, filler: bool) -> Job:
    """1,000 patterns x 210 cases, on the CPU, after everything else."""
    much = ("--patterns", s.few(1000), "--cases", s.few(210, 20), "--seed", 2, "--jobs", s.few(16))
    rows = ("--rows", s.rows / "forms-random.jsonl")
    step = until("--seconds", 10, s.script("search/forms.py", "random", *much, *rows))
    return Job("random", (step,), (0, 1), nice=19, filler=filler)


FIRST = """
import os, sys, torch
from unmask.cli import main
device = sys.argv[1]
print("python", sys.version.split()[0], "torch", torch.__version__, "cores", len(os.sched_getaffinity(0)), flush=True)
if device != "cpu":
    print(torch.cuda.get_device_name(device), "bytes free, of", *torch.cuda.mem_get_info(device), flush=True)
sys.exit(main(["generate", "Once upon a time", "--device", device, "--n", "2", "--length", "32"]))
"""


def first(s: Setup) -> list[Job]:
    return [Job("first", (always([s.python, "-c", FIRST, s.device]),))]


# --- the phases ------------------------------------------------------------------------------------------------------

TESTS = ("speed", "fused_limited", "packed", "cuda_replay", "fused", "cuda", "attention", "fused_layer", "bulk")


def tests(s: Setup) -> list[Job]:
    many = int(s.few(12))  # compiling kernels is most of it
    files = [f"tests/test_{name}.py" for name in TESTS] + ["tests/train/test_stories.py"]
    plugins = ("-p", "no:cacheprovider", "-p", "only_cuda", "--outcomes", str(s.run / "tests"))
    words = [s.python, "-m", "pytest", "-q", "--tb=short", *plugins, "--each", "90"]
    paths = [s.env["PYTHONPATH"], *(str(path.resolve()) for path in (Path("experiments/gpu"), CARRIED / "python"))]
    env = {"PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins may lack parts there
    env |= {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # else each process starts one for every core
    again = '"$1" -c "import pytest" || exit 9\n'  # 1 would be tests that failed
    again += (
        'for _ in 1 2 3 4 5; do code=0; "$@" || code=$?; [ $code -gt 5 ] || exit $code; done; exit $code'  # a crash
    )
    steps = [(always(s.shell(again, *words, "--worker", f"{one}/{many}", *files)),) for one in range(many)]
    jobs = [Job(f"tests-{one}", step, (0, 1, 5), env=env) for one, step in enumerate(steps)]
    return [*jobs, *made(s)]


def forget_claims(s: Setup) -> None:
    """Tests that were claimed and not run are free again."""
    shutil.rmtree(s.run / "tests" / "claims", ignore_errors=True)


def cards(s: Setup) -> list[Job]:
    rows = s.rows / "cards.jsonl"
    how = ("--device", s.device, *(("--size", "tiny", "--prompt", 8, "--length", 64, "--rounds", 1) if s.tiny else ()))
    few = ("--length", 16, "--steps", 4) if s.tiny else ()

    def loaded(kind: str) -> Step:
        return always(
            s.script("small_cards.py", "load", s.run / "llada", rows, "--weights", kind, "--device", s.device, *few)
        )

    def other(what: str) -> Step:
        return until("--seconds", 15, s.script("small_cards.py", what, rows, *how))

    loads = [loaded(kind) for kind in ("int4", "int8", "float")]
    steps = (always(fabricated(s, "llada")), *loads, other("time"), other("logits"))
    return [Job("cards", steps, files=1, apart=True, each=110)]


def speed(s: Setup) -> list[Job]:
    size = ("--width", 4096, "--layers", 32, "--rounds", 4, "--steps", 6)
    if s.tiny:
        size = ("--width", 64, "--layers", 1, "--vocabulary", 2000, "--fields", 5, "--rounds", 1, "--steps", 1)
    step = until("--seconds", 15, s.script("search/forms.py", "speed", "--device", s.device, *size))
    return [Job("speed", (step,))]


def compared(s: Setup, name: str, less: int = 8) -> Step:
    """One run of speed_blocks.sh; it is for the next time if it lasts too long."""
    where, table = s.rows / "blocks", s.run / "logs" / f"blocks-{name}-table.txt"
    text = f"bash experiments/speed_blocks.sh '{where}' '{table}'; [ -s '{where}/{name}.json' ] || "
    text += f"{{ ! grep -q 'after its time' '{table}' || exit 75; exit 1; }}"
    return lambda left: s.shell(f"export PARTICLES=1,8 REPEAT=1 ONLY={name} LIMIT={max(1, left - less)}; {text}")


def blocks(s: Setup) -> list[Job]:
    return [Job("blocks", (compared(s, "llada"),))]


def sizes(s: Setup) -> list[Job]:
    """What is kept of a prompt of 2,048, SDAR's size in blocks of 4, and the exact step uncompiled."""
    steps = tuple(compared(s, name) for name in ("prompt", "sdar", "llada-exact"))
    return [Job("sizes", steps, apart=True, each=100)]


def study(s: Setup) -> list[Job]:
    data = ("--data", s.data) if s.data is not None else ("--only", *PUZZLES, "problems")
    tiny = ("--at-most", 2, "--together", 2, "--passes", 1, "--only", "sudoku24") if s.tiny else ("--texts",)
    how = ("--device", s.device, "--puzzles", s.run / "puzzles", *data, *tiny, "--processes", s.few(8))
    step = until("--limit", 12, s.script("search/many.py", s.rows / "paths", *how))
    return [Job("study", (step,)), *accuracy(s), shards(s), random_forms(s, True)]


def evaluated(s: Setup, task: str, file: str, rows: Path, *flags: object) -> Step:
    words = s.unmask("eval", task, "--data", s.rows / file, "--device", s.device, *flags, "--rows", rows)
    return always(s.shell(f"mkdir -p '{rows.parent}'; exec \"$@\"", *words))


def accuracy(s: Setup) -> list[Job]:
    """Bundled models with layers in 8 and 4 bits, otherwise as they come: default recipe and type."""
    jobs = []
    for task, file in (("sudoku", "sudoku.txt"), ("countdown", "countdown.jsonl"), ("problems", "problems.jsonl")):
        steps = []
        for kind in KINDS:
            rows = s.rows / "accuracy" / f"{task}-{kind}.jsonl"
            steps.append(evaluated(s, task, file, rows, "--weights", kind, "--batch", 256))
        jobs.append(Job(f"accuracy-{task}", (*sets(s), *steps), apart=True))
    return jobs


def shards(s: Setup) -> Job:
    """Two processes with half of the questions each on one device, and the whole run beside them: the same rows."""
    there = s.rows / "shards"
    words = s.unmask("eval", "sudoku", "--data", s.rows / "sudoku.txt", "--device", s.device, "--recipe", "none")
    words += [
        "--search",
        "smc",
        "--temperature",
        "1",
        "--particles",
        s.few(4),
        "--batch",
        s.few(64, 1),
        "--limit",
        s.few(512),
    ]
    joined = " ".join(f"'{word}'" for word in s.unmask("join", there / "1.jsonl", there / "2.jsonl"))
    text = f'into=\'{there}\'; mkdir -p "$into"; "$@" --shard 1/2 --rows "$into/1.jsonl" & one=$!; '
    text += '"$@" --shard 2/2 --rows "$into/2.jsonl" & two=$!; "$@" --rows "$into/whole.jsonl"; wait $one; wait $two; '
    text += f'rm -f "$into/joined.jsonl"; {joined} -o "$into/joined.jsonl"'
    return Job("shards", (*sets(s), always(s.shell(text, *words))))


def seconds(s: Setup) -> list[Job]:
    data = ("--data", s.data) if s.data is not None else ()
    cells = ["sudoku24-eb", "sudoku24-selected", *(["cd4-eb"] if s.data is not None else []), "countdown4-selected"]
    few = ("-n", 2, "--batch", 2, "--repeat", 1, "--cells", "sudoku24-eb") if s.tiny else ("--cells", *cells)
    rows = ("--rows", "results/rows/search-paths.jsonl.xz", "--device", s.device, "--puzzles", s.run / "puzzles")
    step = until("--limit", 12, s.script("search/seconds.py", s.rows / "seconds.jsonl", *rows, *data, *few))
    return [Job("seconds", (step,))]


def table7(s: Setup) -> list[Job]:
    more = ("--scale", 0.03) if s.tiny else ()
    how = ("--device", s.device, *s.half, *more)
    step = until("--seconds", 12, s.script("table7.py", s.run / "mdlm", s.rows / "table7.jsonl", *how))
    return [Job("table7", (always(fabricated(s, "mdlm")), step), files=1)]


def runtime(s: Setup) -> list[Job]:
    more = ("--scale", 0.03) if s.tiny else ()
    how = ("--on", "text", "--device", s.device, "--out", s.rows / "runtime", "--no-pictures", *more)
    return [Job("runtime", (always(s.unmask("paper", "runtime", *how)),))]


def rest(s: Setup) -> list[Job]:
    few = ("--at-most", 2, "--scale", 0.05, "--only", "steps-text", "steps-sudoku") if s.tiny else s.half
    how = ("--device", s.device, "--processes", s.few(8), *few)
    step = until("--limit", 12, s.script("paper_cells.py", s.run / "paper", *how))
    some = [
        Job("paper", (step,)),
        *ends(s, "problems: ", "stories: "),
        stories(s),
        *rewarding(s),
        *graded(s),
        *theory(s),
    ]
    return [*some, random_forms(s, True)]


def ends(s: Setup, *parts: str) -> list[Job]:
    how = ("--device", s.device, *s.half, "--n", s.few(500), "--stories", s.few(500))
    how += ("--problems", s.rows / "ends-problems.jsonl", *(("--length", 8, "--story-length", 8) if s.tiny else ()))

    def one(part: str, file: Path) -> Job:
        step = until("--seconds", 20, s.script("ends.py", "run", file, *how, "--only", f"{part}{'conf' * s.tiny}"))
        return Job(f"ends-{part.split(':')[0].replace(' ', '-')}", (sets(s)[-1], step))

    return [one(part, s.rows / f"ends-rows-{part.split(':')[0].replace(' ', '-')}.jsonl") for part in parts]


def stories(s: Setup) -> Job:
    many = ("-n", s.few(512), "--steps", s.few(64), "--together", s.few(64))
    words = s.script("search/stories.py", "record", s.rows / "stories-paths.jsonl", *many, "--device", s.device)
    step = until("--limit", 25, words)
    return Job("stories", (step,))


def rewarding(s: Setup) -> list[Job]:
    """Self-rewarding SMC as its authors run it, on the puzzles `held`."""
    how = ("--side", "held", "--device", s.device, *s.half, "-n", s.few(1000), "--methods", "self-rewarding")
    many, cells = int(s.few(3)), REWARDING[-2:] if s.tiny else REWARDING
    return [
        Job(f"rewarding-{at}", (study_questions(s),
            always(s.script("search/study.py", "run", s.rows / "study", *how, "--cells", *cells[at::many]))))
        for at in range(many)
    ]  # fmt: skip


def graded(s: Setup) -> list[Job]:
    """Accuracy in the form of right answers and without."""
    jobs = []
    eb = ("--sampler", "eb", "--temperature", 1, "--search", "best-of-n", "--particles", s.few(8))
    ways: dict[str, tuple[int, dict[str, Sequence[object]]]] = {
        "countdown": (2048, {"fast": ("--sampler", "fast-dllm", "--threshold", 0.5), "eb": eb}),
        "problems": (128, {"block": ("--sampler", "fast-dllm", "--attention", "block"), "eb": eb}),
    }
    for task, (batch, how) in ways.items():
        steps = []
        for name, flags in how.items():
            for form in ((), ("--constrained",)):
                rows = s.rows / f"form-{task}-{name}{''.join(form)}.jsonl"
                more = ("--recipe", "none", "--batch", batch, *flags, *form)
                steps.append(evaluated(s, task, f"{task}.jsonl", rows, *more))
        jobs.append(Job(f"forms-{task}", (*sets(s), *steps), apart=True))
    return jobs


def theory(s: Setup) -> list[Job]:
    """The remark on the interval, on puzzles and on stories of the model; the law of a token by steps."""
    strong = (0,) if s.tiny else (0, 5, 100)
    every = ("--particles", s.few(8), "--strength", *strong, "--device", s.device)
    boards = ("--model", "sudoku", "--limit", s.few(500), "--steps", 27, "--every", 2, 4, 8, 16)
    told = ("--model", "text", "--limit", s.few(128), "--steps", s.few(64, 8), "--every", 4, 16)
    texts, n = s.rows / "stories.jsonl", s.few(128)
    write = s.unmask("generate", "Once upon a time", "--n", n, "--seed", 900, "--device", s.device, "--json")
    write += ["--length", "9"] if s.tiny else []
    made = s.shell(
        f"[ -s '{texts}' ] || {{ \"$@\" | '{s.python}' -c \"$SOURCE\" >'{texts}.new'; mv '{texts}.new' '{texts}'; }}",
        *write,
    )
    noise = s.script(
        "float32_noise.py", texts, "--limit", 64, "--device", s.device, "--steps", 16, 32, 64, 128, 256, 512, 1024
    )

    def interval(file: Path, out: str, *how: object) -> Step:
        return until("--seconds", 25, s.script("interval.py", file, *how, *every, "-o", s.rows / out))

    steps = (always(made), always(noise), interval(texts, "interval-text.jsonl", *told))
    first = (*sets(s), interval(s.rows / "sudoku.txt", "interval-sudoku.jsonl", *boards))
    return [Job("interval-sudoku", first), Job("theory", steps, env={"SOURCE": SOURCE}, apart=True)]


def later(s: Setup) -> list[Job]:
    return [*ends(s, "8 paths: "), random_forms(s, False)]


PHASES = (
    Phase("first", "one decode, before all else", 120, 20, first, first=True),
    Phase("tests", "all GPU tests, and files for later", 190, 40, tests, forget_claims),
    Phase("cards", "packed layers of LLaDA's size; timed", 200, 40, cards),
    Phase("speed", "a step with and without a constraint; timed", 75, 40, speed),
    Phase("blocks", "a step with a cache; timed", 165, 130, blocks),
    Phase("study", "paths and searches; packed bundled models; shards", 340, 120, study),
    Phase("seconds", "what a stop saves; timed", 50, 25, seconds),
    Phase("table7", "Table 7 at MDLM's size; timed", 75, 30, table7),
    Phase("runtime", "Table 7 on the bundled text; timed", 70, 55, runtime),
    Phase("sizes", "a prompt kept once, SDAR's size, the exact step; timed", 90, 45, sizes),
    Phase("rest", "the paper's cells, ends, stories, self-rewarding SMC, forms, theory", 400, 60, rest),
    Phase("later", "eight paths and ends; random patterns", 500, 60, later),
)
