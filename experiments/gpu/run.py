"""What the pages still lack and a GPU gives: phases in order of value, each bounded in seconds, all of them resumable.

    python3 experiments/gpu/run.py carry [--data FOLDER] [--back FOLDER]  # before: what the copy needs, in runs/carried
    python3 experiments/gpu/run.py go OUT SECONDS [--only PHASE...]       # there: the same command until all is done
    python3 experiments/gpu/run.py list

`go` runs in the root of a checkout, or of a copy with runs/carried; it needs torch, installs nothing and asks no
network. It takes the phases of `stages.py` in turn, each for its seconds at most, then again what is left, and ends by
itself before SECONDS are over. In a phase all processes run side by side; a timed phase has one. Rows and logs are in
runs/gpu; all of them, and what is done, are packed into OUT every 45 seconds: back.part-00 and so on (at most 15 MB
each), summary.txt and tests.txt, which names every GPU test that failed. After a kill, or on a new machine that got OUT
through `carry --back`, the same command continues. `judge.py` makes figures of it.

One decode comes first: if it fails, the command ends at once. What fails later is told with the end of its log, is
tried once more when all else is done, and again in a later command if the commit is another one by then: `carry` once
more after each commit. A job whose steps do not need each other takes all of them, whichever fail.

Three commands of 500 seconds, 27 minutes with the start of a machine. Seconds, estimated; what does not fit is left for
the end, in this order:

    1   first 20, tests 150 to 190 (files are made beside), cards 190, speed 60; seconds 50 if there is time
    2   blocks 150, study 330
    3   seconds 50, table7 60, runtime 50, sizes 90, rest 230; then sizes, rest and `later` again

Sources: docs/research/results.md: a step of LLaDA's size takes 58.6 ms, with a constraint 167, with a cache 6.5 to 12,
without one 13 and 94; MDLM's 1.15 and 5.3; a checkpoint of LLaDA's size is written in 22 s and checked in 11. `many.py
--list`: 326 s at 30 TFLOP/s for the first pass of study. `paper_cells.py --list`: 108 PFLOP, half of it texts, which
come first. There is no earlier figure for the tests.

A trial on a CPU: DEVICE=cpu TINY=1.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import stages
from outcomes import told
from stages import CARRIED, Job, Phase, Setup

PART = 15_000_000  # bytes of a packed file
PARTS = 4  # 64 MiB in all
CARRY = 15 << 20  # bytes that travel beside the tracked files
EVERY = 45  # seconds between packings
MARK = "UNMASK_GPU_JOB"  # in the environment of all that this starts
LAST = 15  # seconds kept for the last one
SAID = 4000  # characters of the tests that failed
GIVE_UP = 2  # failures of a job that are not for want of time
CUT = (75, 124, -signal.SIGTERM, -signal.SIGKILL)  # it goes on next time
PACKED = (
    "state.json",
    "logs/*",
    "done/*",
    "rows/**/*",
    "puzzles/*.txt",
    "tests/*.json*",
    "tests/*.txt",
    "paper/rows/*.jsonl",
    "paper/*.txt",
)
TOOLS = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments")  # pure Python: what pytest is made of
COUNTDOWN = ("cd3_test.jsonl", "cd4_test.jsonl", "cd5_test.jsonl")


@dataclass
class Going:
    """One command."""

    setup: Setup
    out: Path
    ends: float
    only: Sequence[str] = ()
    state: dict[str, Any] = field(default_factory=dict)  # commit, and by phase and job: seconds, failures
    lines: list[str] = field(default_factory=list)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    packing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def left(self) -> int:
        return int(self.ends - time.monotonic())

    def tell(self, line: str) -> None:
        with self.lock:
            self.lines.append(line)
            print(line, flush=True)
            with suppress(OSError), self.setup.log("summary").open("a", encoding="utf-8") as file:  # of all commands
                file.write(f"{line}\n")


# --- jobs ------------------------------------------------------------------------------------------------------------


def mark(going: Going, job: Job, number: int) -> Path:
    return going.setup.run / "done" / f"{job.name}.{number}"


def finished(going: Going, job: Job) -> bool:
    given_up = going.state.setdefault("failures", {}).get(job.name, 0) >= GIVE_UP
    return given_up or all(mark(going, job, number).exists() for number in range(len(job.steps)))


def run_job(going: Going, job: Job, until: float) -> None:
    """Its steps, one after another, those that are done left out."""
    began, codes = time.monotonic(), []
    for number, step in enumerate(job.steps):
        if number >= job.files and mark(going, job, number).exists():
            continue
        now = time.monotonic()
        left = int(min(until, going.ends) - now)  # a command that is stopped begins nothing
        if left < 5:
            going.tell(f"{job.name}: step {number + 1} of {len(job.steps)} is for the next time")
            break
        left = min(left, job.each or left)
        code = run_step(going, job, step(left), now + left)
        if code in job.fine:
            mark(going, job, number).touch()
            continue
        codes.append(code)
        took = f"step {number + 1} of {len(job.steps)} ended with {code} after {time.monotonic() - now:.0f} s"
        going.tell(f"{job.name}: {took}: {tail(going, job, 1 if code in CUT else 12)}")
        if not job.apart:
            break
    else:
        if not codes:
            going.tell(f"{job.name}: {time.monotonic() - began:.0f} s")
    if any(code not in CUT for code in codes):
        failures = going.state.setdefault("failures", {})
        failures[job.name] = failures.get(job.name, 0) + 1


def run_step(going: Going, job: Job, words: list[str], until: float) -> int:
    """Its exit status; 124 if time was up."""
    with going.setup.log(job.name).open("ab") as log:
        log.write(f"$ {' '.join(words)}\n".encode())
        log.flush()
        env = going.setup.env | job.env | {MARK: f"{going.setup.run}:{job.name}"}
        about = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "env": env}
        try:
            child = subprocess.Popen(["nice", "-n", str(job.nice), *words], **about)
        except OSError as error:
            log.write(f"{error}\n".encode())
            return 127
        going.running[job.name] = child
        try:
            return child.wait(max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            end(f"{env[MARK]}\0")
            child.wait()
            return 124
        finally:
            going.running.pop(job.name, None)


def end(mark: str) -> None:
    """All processes of a job, or of all jobs of a folder: first politely. Groups do not do, `timeout` has its own."""
    for number, patience in ((signal.SIGTERM, 4.0), (signal.SIGKILL, 1.0)):
        late = time.monotonic() + patience
        for pid in marked(mark):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        while time.monotonic() < late and marked(mark):
            time.sleep(0.1)


def marked(mark: str) -> list[int]:
    """Processes that run with this beginning of a mark in their environment."""
    found, told = [], f"\0{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if told in b"\0" + path.read_bytes():
                found.append(int(path.parent.name))
    return found


def tail(going: Going, job: Job, many: int) -> str:
    """The last lines of its log, which tell why it failed."""
    lines = going.setup.log(job.name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "\n    ".join(line[:250] for line in lines[-many:])


# --- phases ----------------------------------------------------------------------------------------------------------


def go(going: Going) -> bool:
    """All phases, each within its seconds; then again, with what is left. Whether all is done."""
    phases = [one for one in stages.PHASES if not going.only or one.name in going.only]
    for bounded in (True, False):
        for phase in phases:
            room = phase.seconds - going.state.setdefault("seconds", {}).get(phase.name, 0)
            limit = min(int(room), going.left) if bounded else going.left
            if limit >= phase.least and wanted(going, phase):
                try:
                    run_phase(going, phase, limit)
                except Exception as error:  # one phase is not to cost the others
                    going.tell(f"--- {phase.name}: {error!r}")
            if phase.first and failed(going, phase):
                going.tell(f"{phase.name} failed, so nothing else was begun: mend it, or name the others with --only")
                return False
    left = {phase.name: [job.name for job in wanted(going, phase)] for phase in phases}
    for name, jobs in left.items():
        if jobs:
            going.tell(f"left of {name}: {' '.join(jobs)}")
    given_up = [name for name, many in going.state.get("failures", {}).items() if many >= GIVE_UP]
    if given_up:
        going.tell(f"given up after {GIVE_UP} failures: {' '.join(given_up)}")
    return not any(left.values()) and not given_up


def failed(going: Going, phase: Phase) -> bool:
    """Whether a job failed, for another reason than time, and was not done since."""
    failures = going.state.get("failures", {})
    return any(failures.get(job.name) and not mark(going, job, 0).exists() for job in phase.jobs(going.setup))


def wanted(going: Going, phase: Phase) -> list[Job]:
    return [job for job in phase.jobs(going.setup) if not job.filler and not finished(going, job)]


def run_phase(going: Going, phase: Phase, limit: int) -> None:
    began, until = time.monotonic(), time.monotonic() + limit
    if phase.before is not None:
        phase.before(going.setup)
    jobs = wanted(going, phase)
    fillers = [job for job in phase.jobs(going.setup) if job.filler and not finished(going, job)]
    going.tell(f"--- {phase.name}: {len(jobs)} jobs, {limit} s at most")
    threads = {job: threading.Thread(target=run_job, args=(going, job, until)) for job in [*jobs, *fillers]}
    for thread in threads.values():
        thread.start()
    for job in jobs:
        threads[job].join()
    for job in fillers:  # they run on as long as the others do
        if job.name in going.running:
            end(f"{going.setup.run}:{job.name}\0")
        threads[job].join()
    took = time.monotonic() - began
    seconds = going.state.setdefault("seconds", {})
    seconds[phase.name] = round(seconds.get(phase.name, 0) + took, 1)
    replaced(going.setup.run / "state.json", json.dumps(going.state).encode())
    going.tell(f"--- {phase.name}: {took:.0f} s")


# --- packing ---------------------------------------------------------------------------------------------------------


def pack(going: Going) -> int:
    """Everything so far into OUT; whole files, replaced at once. How many bytes it is."""
    with going.packing:
        run, whole = going.setup.run, io.BytesIO()
        paths = sorted({path for pattern in PACKED for path in run.glob(pattern) if path.is_file()})
        with tarfile.open(fileobj=whole, mode="w:xz", preset=1) as file:
            for path in paths:
                try:
                    content, changed = path.read_bytes(), path.stat().st_mtime  # it may grow, or be gone by now
                except OSError:
                    continue
                about = tarfile.TarInfo(str(path.relative_to(run)))
                about.size, about.mtime = len(content), int(changed)
                file.addfile(about, io.BytesIO(content))
        content = whole.getvalue()
        going.out.mkdir(parents=True, exist_ok=True)
        if len(content) > PART * PARTS:
            going.tell(f"{len(content)} bytes are too many to come back: only the first are kept")
        for number in range(min(PARTS, -(-len(content) // PART))):
            replaced(going.out / f"back.part-{number:02}", content[number * PART : (number + 1) * PART])
        replaced(going.out / "summary.txt", "".join(f"{line}\n" for line in going.lines).encode())
        if (run / "tests").is_dir():
            replaced(going.out / "tests.txt", f"{told(run / 'tests')}\n".encode())
    return len(content)


def replaced(path: Path, content: bytes) -> None:
    new = path.with_suffix(path.suffix + ".new")
    new.write_bytes(content)
    os.replace(new, path)


def unpack(folder: Path, run: Path) -> bool:
    """What came back, into a folder of its own or to continue there; whether there was anything."""
    parts = sorted(folder.glob("back.part-??")) if folder.is_dir() else []
    if not parts:
        return False
    run.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts)), mode="r:xz") as file:
        for one in file.getmembers():
            if not one.isfile() or one.name.startswith("/") or ".." in Path(one.name).parts:
                raise SystemExit(f"{one.name!r} is not a file of ours")
            (run / one.name).parent.mkdir(parents=True, exist_ok=True)
            (run / one.name).write_bytes(file.extractfile(one).read())  # type: ignore[union-attr]
    return True


# --- commands --------------------------------------------------------------------------------------------------------


def command_go(args: argparse.Namespace) -> int:
    began = time.monotonic()
    setup = Setup.of_environment()
    if not (setup.run / "state.json").exists() and unpack(CARRIED / "back", setup.run):
        print("continuing what was carried", flush=True)
    for name in ("logs", "rows", "done"):
        (setup.run / name).mkdir(parents=True, exist_ok=True)
    file = setup.run / "state.json"
    state = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if state.get("commit") != setup.commit():  # outcomes of tests are of one commit; rows name theirs
        shutil.rmtree(setup.run / "tests", ignore_errors=True)
        for path in [*(setup.run / "done").glob("tests-*"), *(setup.run / "done").glob("first.*")]:
            path.unlink()
        state = {**state, "commit": setup.commit(), "failures": {}}
    replaced(file, json.dumps(state).encode())
    going = Going(setup, args.out.resolve(), began + args.seconds - LAST, args.only, state)
    if marked(f"{setup.run}:"):
        going.tell("processes of a killed command still run: they are ended")
        end(f"{setup.run}:")
    going.tell(f"commit {setup.commit()}, device {setup.device}{', tiny' if setup.tiny else ''}")
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        going.ends = 0.0
        end(f"{setup.run}:")

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    packer = threading.Thread(target=lambda: pack_often(going, stopped), daemon=True)
    packer.start()
    try:
        done = go(going)
    finally:
        stopped.set()
        pack_last(going)
        going.tell(f"{time.monotonic() - began:.0f} s in all")
    return 0 if done else 75


def pack_last(going: Going) -> None:
    """Once more at the end; what of the tests failed is said, for the reader has the last lines of all that is said."""
    try:
        if (going.setup.run / "tests").is_dir():
            going.tell(told(going.setup.run / "tests")[:SAID])
        going.tell("packing")
        going.tell(f"{pack(going):,} bytes come back")
    except Exception as error:  # an earlier one is there
        going.tell(f"packing: {error!r}")


def pack_often(going: Going, stopped: threading.Event) -> None:
    while not stopped.wait(EVERY):
        try:
            pack(going)
        except Exception as error:  # the next one may do
            going.tell(f"packing: {error!r}")


def command_carry(args: argparse.Namespace) -> int:
    """runs/carried: pytest, the public Countdown files, the name of this commit, and what came back so far."""
    shutil.rmtree(CARRIED, ignore_errors=True)
    (CARRIED / "python").mkdir(parents=True)
    site = Path(sys.prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for name in TOOLS:
        shutil.copytree(site / name, CARRIED / "python" / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(site / "py.py", CARRIED / "python")  # of pytest, too
    for info in site.glob("pytest-*.dist-info"):
        shutil.copytree(info, CARRIED / "python" / info.name)
    alone = {"PYTHONPATH": str(CARRIED / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    if subprocess.run([sys.executable, "-S", "-m", "pytest", "--version"], env=alone).returncode:
        raise SystemExit("what is carried of pytest does not run without this installation")
    if args.data is not None:
        (CARRIED / "countdown").mkdir()
        for name in COUNTDOWN:
            shutil.copy(args.data / name, CARRIED / "countdown")
    if args.back is not None:
        shutil.copytree(args.back, CARRIED / "back")
    names = [subprocess.run(["git", "rev-parse", what], capture_output=True, text=True, check=True).stdout.strip()
             for what in ("HEAD", "HEAD:src/unmask")]  # fmt: skip
    (CARRIED / "commit").write_text(":".join(names), encoding="utf-8")
    size = sum(path.stat().st_size for path in CARRIED.rglob("*") if path.is_file())
    fits = size < CARRY
    more = "" if fits else ": too much beside the tracked files"
    print(f"{CARRIED}: {size / 2**20:.1f} MiB, commit {names[0][:10]}{more}")
    changed = subprocess.run(["git", "status", "--porcelain", "."], capture_output=True, text=True, check=True).stdout
    if changed:
        print(f"not committed, so that rows are of no commit: {' '.join(changed.split())[:200]}")
    return int(not fits)


def command_list(args: argparse.Namespace) -> int:
    for phase in stages.PHASES:
        jobs = phase.jobs(Setup.of_environment())
        print(f"{phase.name}: {phase.seconds} s at most, begun with {phase.least} or more; {phase.about}")
        print(f"    {' '.join(f'{job.name}({len(job.steps)})' for job in jobs)}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("go")
    one.add_argument("out", type=Path)
    one.add_argument("seconds", type=int)
    one.add_argument("--only", nargs="+", default=[], choices=[phase.name for phase in stages.PHASES], metavar="PHASE")
    two = commands.add_parser("carry")
    two.add_argument("--data", type=Path, help="the folder of the public cd3, cd4 and cd5 files")
    two.add_argument("--back", type=Path, help="the folder of what came back, to continue on a new machine")
    commands.add_parser("list")
    args = parser.parse_args()
    return {"go": command_go, "carry": command_carry, "list": command_list}[args.command](args)


if __name__ == "__main__":
    sys.exit(main())
