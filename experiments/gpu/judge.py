"""What came back of a GPU -> every figure that the pages need, judged on a CPU, with page and line where it belongs.

    python experiments/gpu/judge.py OUT RUN [--source llama2.data] [--paper] [--only PART...]

OUT is the folder that came back, RUN one for what it unpacks to and for RUN/judged, where all that is printed is kept
as well. Judging stories needs the source of the stories (--source). --paper computes and judges the pages of the paper
whose cells are all there, which takes an hour. Nothing of the repository is changed: at the end is listed which files
of rows the new ones replace, and what that does to the size of the repository: the paper-*.jsonl.xz (680 KB, the text
ones of the former model), search-paths (212 KB, which would be some 1.2 MB with the first pass of the study whole:
leave cells or digits out), ends, speed-blocks-h200; cards, table7, seconds and interval are new.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import run as runner
from outcomes import told

from unmask.evaluate import rows
from unmask.evaluate.stats import bootstrap, paired

Line = dict[str, Any]
ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results/rows"
LIMIT = 48 << 20


def at(page: str, marker: str) -> str:
    """The page, and the line that has the marker."""
    for number, text in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        if marker in text:
            return f"{page}:{number}"
    return f"{page} (no line has {marker!r} any more)"


class Judged:
    """What is printed, and kept in RUN/judged."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.run = args, args.run.resolve()
        self.into = self.run / "judged"
        self.into.mkdir(parents=True, exist_ok=True)
        self.file = (self.into / "figures.txt").open("w", encoding="utf-8")

    def say(self, text: str = "") -> None:
        print(text, flush=True)
        self.file.write(f"{text}\n")
        self.file.flush()

    def head(self, title: str, *places: str) -> None:
        self.say(f"\n=== {title}")
        for place in places:
            self.say(f"    -> {place}")

    def ran(self, *words: object, keep: str | None = None) -> str:
        """What a command prints; with `keep`, into a file of that name only."""
        env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, cwd=ROOT, env=env)
        if done.returncode:
            self.say(f"!! {' '.join(map(str, words))}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        if keep is not None:
            (self.into / keep).write_text(done.stdout, encoding="utf-8")
            self.say(f"    {self.into / keep}: {len(done.stdout.splitlines())} lines")
        return done.stdout.strip()

    def there(self, name: str) -> Path | None:
        path = self.run / name
        return path if path.exists() and ((path.is_file() and path.stat().st_size) or path.is_dir()) else None

    def log(self, name: str) -> list[str]:
        path = self.run / "logs" / f"{name}.txt"
        return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


def lines_of(path: Path) -> list[Line]:
    return [line for line in rows.parsed(path.read_bytes()) if line is not None]


# --- the parts -------------------------------------------------------------------------------------------------------


def tests(j: Judged) -> None:
    j.head("GPU tests", "the report of this run; a failure becomes an issue")
    j.say(told(j.run / "tests") if (j.run / "tests").is_dir() else "no outcomes came back")


def cards(j: Judged) -> None:
    page = "docs/guide/small-cards.md"
    j.head("Small cards", at(page, "What it costs"), at(page, "measured yet"), at(page, "## Accuracy"))
    accuracy = ("--accuracy", j.run / "rows/accuracy") if j.there("rows/accuracy") else ()
    j.say(j.ran("experiments/small_cards.py", "table", j.run / "rows/cards.jsonl", *accuracy))
    j.say(
        "aims: loading ≤ weights + 2 GiB; in all ≤ 11 (int8) and 7 GiB (int4); int8 within 1 point; cached steps faster"
    )


def speed(j: Judged) -> None:
    page = "docs/research/results.md"
    j.head(
        "A step with a constraint",
        at(page, "where the aim is 1.2"),
        at("docs/development/decisions/constraints.md", "it has not run"),
    )
    found = [line for line in j.log("speed") if line.startswith("{")]
    j.say("\n".join(line for line in j.log("speed") if "could not be recorded" in line))
    j.say(found[-1] if found else "none came back")
    for temperature in (1, 0) if found else ():
        one = json.loads(found[-1])
        ms, bare = (1000 * one[f"{how}_t{temperature}_s"] for how in ("with", "without"))
        j.say(f"temperature {temperature}: {ms:.1f} ms with, {bare:.1f} without, {ms / bare:.2f} times (aim: 1.2)")


def blocks(j: Judged) -> None:
    page = "docs/research/results.md"
    j.head(
        "A step with a cache",
        at(page, "**The same beside public code, in one run.**"),
        at(page, "| times faster than that |"),
    )
    for name in ("llada", "prompt", "sdar", "llada-exact"):
        j.say("\n".join(j.log(f"blocks-{name}-table")) or f"{name}: none came back")


def shards(j: Judged) -> None:
    """Rows of two processes on one device against those of one."""
    j.head("Two processes on one GPU", "docs/guide/scale.md")
    files = [j.there(f"rows/shards/{name}.jsonl") for name in ("whole", "joined")]
    if not all(files):
        j.say("none came back")
        return
    one, two = ({row["number"]: rows.timeless(row) for row in rows.read(str(file)).kept} for file in files)
    j.say(f"{sum(one[number] == two.get(number) for number in one)} of {len(one)} rows are equal field by field")


def study(j: Judged) -> None:
    page = "docs/research/search.md"
    j.head(
        "Paths, stops, searches",
        at(page, "## A second look, and a stop"),
        at(page, "**Stop.**"),
        at(page, "*Not reached or not shown*"),
    )
    folder = j.there("rows/paths")
    if folder is None or not list(folder.glob("*.jsonl")):
        j.say("none came back")
        return
    j.say("\n".join(line for line in j.log("study")[-3:]))
    known = KEPT / "search-paths.jsonl.xz"
    j.ran("experiments/search/stops.py", folder, keep="study-stops.txt")
    j.ran("experiments/search/rules.py", known, folder, keep="study-rules.txt")
    j.ran("experiments/search/rules.py", folder, "--unseen", known, "--only", "budget", keep="study-unseen.txt")
    j.ran("experiments/search/stops.py", folder, "--pack", j.into / known.name)


def seconds(j: Judged) -> None:
    j.head("What a stop saves in seconds", at("docs/research/search.md", "**Stop.**"))
    path = j.there("rows/seconds.jsonl")
    found: dict[tuple[str, str], dict[str, list[Line]]] = {}
    for line in lines_of(path) if path else []:
        found.setdefault((line["cell"], line["how"]), {}).setdefault(line["search"], []).append(line)
    j.say("| prompts | how | n | E-BoN, s | stopped, s | ratio | solved | stopped |\n|" + "---|" * 8)
    for (cell, how), by in found.items():
        if len(by) == 2:
            one, two = by["E-BoN"], by["auto, stopped"]
            s = [float(np.median([line["seconds"] for line in some])) for some in (one, two)]
            cells = [cell, how, str(one[0]["n"]), f"{s[0]:.2f}", f"{s[1]:.2f}", f"{s[1] / s[0]:.2f}"]
            cells += [f"{100 * some[0]['right']:.1f}" for some in (one, two)]
            j.say(f"| {' | '.join(cells)} |")


def table7(j: Judged) -> None:
    j.head("Table 7 at MDLM's size", at("docs/research/paper.md", "| 5.14 | Table 7"))
    path = j.there("rows/table7.jsonl")
    for line in lines_of(path) if path else []:
        j.say(f"| {line['cell']} | {line['how']} | {line['seconds']:.3f} | {line['calls']} | {line['evaluations']} |")
    j.say("\n".join(line for line in j.log("table7") if line.startswith("left")))


def runtime(j: Judged) -> None:
    page = "docs/research/paper/runtime-text.md"
    j.head(
        "Table 7 on the bundled text", at(page, "| S=256, K=2, Δ=64 | vanilla |"), at(page, "Side by side, E-SMC takes")
    )
    j.say("\n".join(line for line in j.log("runtime") if line.startswith("|")) or "none came back")


def rewarding(j: Judged) -> None:
    """Paired differences from E-BoN with the same puzzles, of the kept rows."""
    j.head("Self-rewarding SMC on `held`", at("docs/research/search.md", "way has no rows on the puzzles `held` yet"))
    base, planned = ebon(), []
    j.say("| puzzles, order | n | solved | E-BoN | difference |\n|" + "---|" * 5)
    for cell, other in base.items():
        path = j.there(f"rows/study/held-{cell}-8-self-rewarding.jsonl")
        kept = [line for line in lines_of(path) if "number" in line and line["number"] in other] if path else []
        if not kept:
            continue
        mine = [bool(line["right"][line["chosen"]]) for line in kept]
        first = [other[line["number"]] for line in kept]
        change = paired(first, mine)
        told = f"{100 * change.difference:+.1f} ({100 * change.low:+.1f} to {100 * change.high:+.1f})"
        j.say(f"| {cell} | {len(kept)} | {100 * np.mean(mine):.1f} | {100 * np.mean(first):.1f} | {told} |")
        if not cell.endswith("-eb"):
            planned.append((mine, np.array(mine, float) - np.array(first, float)))
    if len(planned) == 12 and len({len(mine) for mine, _ in planned}) == 1:
        table = np.array([less for _, less in planned])
        found = bootstrap(lambda places: {"all": 100 * float(table[:, places].mean())}, list(range(table.shape[1])))
        solved = 100 * np.mean([np.mean(mine) for mine, _ in planned])
        j.say(f"mean over the first twelve: {solved:.1f}, against E-BoN {found['all']}")


def ebon() -> dict[str, dict[int, bool]]:
    """Whether E-BoN with eight paths solved each puzzle of `held`."""
    import lzma

    found, now = dict[str, dict[int, bool]](), dict[int, bool]()
    for text in lzma.decompress((KEPT / "search-held.jsonl.xz").read_bytes()).decode().splitlines():
        line = json.loads(text)
        if isinstance(line, dict):
            mine = line["method"] == "best-of-n" and line["k"] == 8 and line["task"] != "text"
            now = found.setdefault(line["cell"], {}) if mine else {}
            place = line["columns"][-1].split().index("entropy") if mine else 0
        elif now is not None and len(line) == 3 and isinstance(line[2], str):
            now[line[0]] = line[2][place] == "1"
    return found


def forms(j: Judged) -> None:
    page = "docs/research/results.md"
    j.head("Forms", at(page, "**Accuracy** with the form of right answers"), at(page, "**Every text has its form.**"))
    for name in ("countdown-fast", "countdown-eb", "problems-block", "problems-eb"):
        files = [j.there(f"rows/form-{name}{more}.jsonl") for more in ("", "--constrained")]
        if all(files):
            j.say(f"{name}: without, then with the form\n{j.ran('-m', 'unmask', 'compare', *files)}")
    found = [line for line in j.log("random") if line.startswith("{")]
    path = j.there("rows/forms-random.jsonl")
    j.say(f"random patterns: {found[-1] if found else f'{len(lines_of(path)) if path else 0} lines so far'}")


def theory(j: Judged) -> None:
    j.head(
        "Interval and noise",
        at("docs/research/theory.md", "## The remark on the interval"),
        at("docs/research/paper/kernel-text.md", "**Over whole paths.**"),
    )
    for name in ("interval-sudoku", "theory"):
        j.say(
            "\n".join(line for line in j.log(name) if line.startswith("λ=") or "never drawn" in line)
            or f"{name}: none came back"
        )


def ends(j: Judged) -> None:
    j.head(
        "Ends of text",
        at("docs/guide/ends.md", "| `confidence` |"),
        at("docs/guide/ends.md", "256 reserved word problems"),
    )
    for path in sorted((j.run / "rows").glob("ends-rows-*.jsonl")):
        j.say(f"{path.name}{j.ran('experiments/ends.py', 'table', path)}")


def stories(j: Judged) -> None:
    j.head(
        "Stories by their source",
        at("docs/research/search.md", "*Text* (the former text model"),
        at("docs/research/search.md", "No model with an EOS"),
    )
    path = j.there("rows/stories-paths.jsonl")
    if path is None or j.args.source is None:
        j.say("none came back" if path is None else "--source is needed to judge them")
        return
    judged = j.into / "stories-judged.jsonl"
    j.ran("experiments/search/stories.py", "judge", path, judged, "--judge", j.args.source)
    j.say(j.ran("experiments/search/stories.py", "report", path, judged))


def paper(j: Judged) -> None:
    """Pages whose cells are all there; the others by name, with how many are."""
    import paper_cells

    from unmask.evaluate.paper import EXPERIMENTS

    j.head(
        "The paper's pages",
        *(f"docs/research/paper/{name}-{place}.md" for _, name, place in whole(j, paper_cells, EXPERIMENTS)[0]),
    )
    ready, lacking = whole(j, paper_cells, EXPERIMENTS)
    for line in lacking:
        j.say(line)
    for _, name, place in ready if j.args.paper else []:
        judge = ("--judge", "stories15M") if place == "text" else ()
        if j.args.source is not None:
            os.environ["UNMASK_STORIES"] = str(j.args.source)
        words = ("-m", "unmask", "paper", name, "--on", place, "--out", j.run / "paper", "--dtype", "bfloat16", *judge)
        j.ran(*words, keep=f"paper-{name}-{place}.txt")
    if j.args.paper and ready:
        (j.into / "rows").mkdir(exist_ok=True)
        j.ran("experiments/pack_rows.py", j.run / "paper/rows", j.into / "rows")


def whole(j: Judged, cells: Any, experiments: Any) -> tuple[list[tuple[int, str, str]], list[str]]:
    """Pages of which every cell has all its rows, and what the others lack."""
    ready, lacking = [], []
    for name, place in (one for group in cells.GROUPS for one in group):
        experiment, counts = experiments[name], []
        for cell in experiment.at(experiment.places[place]):
            counts.append(counted(j, experiment.recipe(cell, experiment.places[place]).to_dict(), place))
        done = sum(count >= (experiment.places[place].n or 1) for count in counts)
        if done == len(counts):
            ready.append((len(counts), name, place))
        else:
            lacking.append(f"{name}-{place}: {done} of {len(counts)} cells are whole")
    return ready, lacking


def counted(j: Judged, recipe: Line, place: str) -> int:
    """The most rows that a run of this recipe has."""
    if not hasattr(j, "cells"):
        j.cells: dict[str, int] = {}
        for path in (j.run / "paper/rows").glob("*.rows.jsonl") if j.there("paper/rows") else []:
            some = lines_of(path)
            if some and "recipe" in some[0]:
                key = json.dumps([some[0]["task"], some[0]["recipe"]], sort_keys=True)
                j.cells[key] = max(j.cells.get(key, 0), len(some) - 1)
    return j.cells.get(json.dumps([place, recipe], sort_keys=True), 0)


# --- what may be replaced --------------------------------------------------------------------------------------------


def room(j: Judged) -> None:
    """New rows, packed, beside the files that they replace."""
    import lzma

    j.head("Rows to keep", at("docs/research/paper.md", "## Which rows are of which model"))
    new = j.into / "rows"
    new.mkdir(exist_ok=True)
    made: dict[str, tuple[str, ...]] = {
        "ends.jsonl.xz": (
            "rows/ends-rows-problems.jsonl",
            "rows/ends-rows-stories.jsonl",
            "rows/ends-rows-8-paths.jsonl",
        ),
        "cards-h200.jsonl": ("rows/cards.jsonl",),
        "table7-h200.jsonl": ("rows/table7.jsonl",),
        "interval.jsonl.xz": ("rows/interval-sudoku.jsonl", "rows/interval-text.jsonl"),
        "seconds-h200.jsonl": ("rows/seconds.jsonl",),
    }
    for name, parts in made.items():
        content = b"".join(path.read_bytes() for part in parts if (path := j.there(part)))
        if content:
            (new / name).write_bytes(
                lzma.compress(content, preset=9 | lzma.PRESET_EXTREME) if name.endswith("xz") else content
            )
    if (path := j.there("rows/blocks/llada.json")) is not None:
        points = json.loads(path.read_text(encoding="utf-8"))["sweep"]["particles"]
        (new / "speed-blocks-h200.jsonl").write_text(
            "".join(f"{json.dumps(one)}\n" for one in points), encoding="utf-8"
        )
    with suppress(FileNotFoundError):
        shutil.move(j.into / "search-paths.jsonl.xz", new / "search-paths.jsonl.xz")
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    total = sum((ROOT / name).stat().st_size for name in listed.split("\0") if name and (ROOT / name).exists())
    more = 0
    for file in sorted(new.iterdir()):
        old = (KEPT / file.name).stat().st_size if (KEPT / file.name).exists() else 0
        more += file.stat().st_size - old
        j.say(f"{file.name}: {file.stat().st_size:,} bytes, {f'instead of {old:,}' if old else 'new'}")
    j.say(f"tracked files: {total:,} bytes, with these {total + more:,}; the limit is {LIMIT:,}")
    j.say(
        "rows of self-rewarding SMC: `study.py pack RUN/rows/study --side held --methods self-rewarding --into FOLDER`"
    )


PARTS: dict[str, Callable[[Judged], None]] = {
    one.__name__: one
    for one in (
        tests,
        cards,
        speed,
        blocks,
        shards,
        study,
        seconds,
        table7,
        runtime,
        rewarding,
        forms,
        theory,
        ends,
        stories,
    )
} | {"paper": paper, "room": room}


def wanted(args: argparse.Namespace) -> Iterator[Callable[[Judged], None]]:
    yield from (part for name, part in PARTS.items() if not args.only or name in args.only)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="what came back")
    parser.add_argument("run", type=Path, help="a folder for what it unpacks to")
    parser.add_argument("--source", type=Path, help="the source of the stories")
    parser.add_argument("--paper", action="store_true", help="compute and judge the pages of the paper: an hour")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[], metavar="PART")
    args = parser.parse_args()
    if not runner.unpack(args.out, args.run) and not (args.run / "state.json").exists():
        parser.error(f"nothing came back: {args.out} has no back.part-00")
    j = Judged(args)
    failed = []
    for part in wanted(args):
        try:
            part(j)
        except Exception as error:  # one part is not to cost the others
            failed.append(part.__name__)
            j.say(f"!! {part.__name__}: {error!r}")
    j.say(f"\n{f'parts that failed: {failed}' if failed else 'all parts were judged'}; all of it is in {j.into}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
