"""Thousands of damaged shards, texts of the theory, judged rows and training logs: read, or refused in one line."""

from __future__ import annotations

import copy
import gzip
import json
import lzma
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from checkpoints.test_fuzz import change_bytes, change_values, strange
from unmask import load
from unmask.cli import main
from unmask.errors import InputError, UnmaskError
from unmask.evaluate import rows
from unmask.evaluate.judge import figures
from unmask.evaluate.theory import texts
from unmask.models import memory
from unmask.tasks import files
from unmask.train.log import LOG, draw, read_log

CASES = int(os.environ.get("UNMASK_CASES", "80"))  # of each kind; `make attack` takes more
SLOW, LARGE = 2.0, 2**28  # seconds and bytes that no case may take; a tokenizer takes 300 bytes for one of a long text
Case = tuple[str, Callable[[], object]]  # what was done, and what is tried
SHARDS = ("1/2", "2/2", "1/1", "0/2", "1/1000000000", f"1/{'9' * 5000}", "x", "", "1/2 of batches of 2", 3, None)
ODD = ("[" * 100_000, '{"a":' * 100_000, "1" * 5000, '{"text": "a", "bits": 1e999}')
BITS = (0, 1.5, -1, True, None, "1", [], 10**400, 1e308, -0.0, 2**63)


def held(make: Callable[[Path], Callable[[Random], Case]], home: Path) -> None:
    """Every case is read or refused in one line, soon and without taking memory."""
    case = make(home)
    refused, cases = 0, CASES // 8 if make is judged else CASES  # intervals take long
    for number in range(cases):
        done, act = case(Random(f"{make.__name__} {number}"))
        what, said = f"{make.__name__}, case {number}: {done}", None
        peak, start = memory.host_peak(), time.process_time()
        try:
            act()
        except UnmaskError as error:
            said = str(error)
        except Exception as error:
            pytest.fail(f"{what}\n{type(error).__name__}: {str(error)[:500]}")
        assert time.process_time() - start < SLOW, what
        assert memory.host_peak() - peak < LARGE, what
        assert said is None or ("\n" not in said and 10 < len(said) < 2000), f"{what}\n{said}"
        refused += said is not None
    assert refused > cases // 10, "too few of the mutations do anything"


def lines_changed(random: Random, lines: list[str]) -> tuple[bytes, str]:
    """One to three lines of a file with other values, bytes, or in another order."""
    changed, done = list(lines), []
    for _ in range(random.randint(1, 3)):
        place = random.choice([0, *range(len(changed))])
        what = random.choice(["values", "values", "values", "bytes", "drop", "double", "swap", "torn"])
        if what == "values":
            line = rows.parsed(changed[place].encode())
            line = line[0] if line and line[0] else {"a": 1}
            done.append(f"line {place}: {change_values(random, line)}")
            changed[place] = json.dumps(line) + "\n"
        elif what == "bytes":
            data, more = change_bytes(random, changed[place].encode())
            changed[place] = data.decode(errors="replace")
            done.append(f"line {place}: {more}")
        elif what == "torn":
            changed[-1] = changed[-1][: random.randrange(len(changed[-1]) + 1)]
            done.append("torn")
        else:
            other = random.randrange(len(changed))
            if what == "drop" and len(changed) > 1:
                changed.pop(place)
            elif what == "double":
                changed.insert(other, changed[place])
            elif what == "swap":
                changed[place], changed[other] = changed[other], changed[place]
            done.append(f"{what} {place} {other}")
    return "".join(changed).encode(), "; ".join(done)


def shards(home: Path) -> Callable[[Random], Case]:
    """The files of `unmask join`."""
    grid = "5346789126721953481983425678597614234268537917139248569615372842874196353452861.."
    (home / "grids.txt").write_text("".join(f"{'.' * hole}{grid[hole:]}\n" for hole in range(5)))
    line = f"eval sudoku --data {home / 'grids.txt'} --sampler uniform --steps 2 --batch 2 --rows".split()
    names = [str(home / f"{place}.jsonl") for place in (1, 2)]
    for place, name in enumerate(names, 1):
        assert main([*line, name, "--shard", f"{place}/2"]) == 0
    good = [Path(name).read_text().splitlines(keepends=True) for name in names]

    def join() -> None:
        (home / "out.jsonl").unlink(missing_ok=True)
        count = texts_joined(names, str(home / "out.jsonl"))
        numbers = [row["number"] for row in rows.read(home / "out.jsonl").kept]
        assert len(numbers) == len(set(numbers)) == count == 5

    def case(random: Random) -> Case:
        for name, one in zip(names, good, strict=True):
            Path(name).write_text("".join(one))
        place = random.randrange(2)
        if random.random() < 0.3:
            header = json.loads(good[place][0])
            name = random.choice(["shard", "n", "whole", "number", "kind", "recipe", "machine", "batch"])
            header[name] = random.choice(SHARDS) if name == "shard" else strange(random)
            data = (json.dumps(header) + "\n" + "".join(good[place][1:])).encode()
            done = f"{name} = {str(header[name])[:90]!a}"
        else:
            data, done = lines_changed(random, good[place])
        Path(names[place]).write_bytes(data)
        return done, join

    return case


def texts_joined(names: list[str], output: str) -> int:
    from unmask.evaluate.join import join

    return join(names, output)


def theory(home: Path) -> Callable[[Random], Case]:
    """Texts of `unmask theory`, with and without --documents, packed too."""
    model = load("text")
    pairs = [{"text": f"One day, Tom found {n} red balls.", "prompt": "", "bits": 9.5} for n in range(4)]
    plain = "Lily had a cat.\nIt was red.\n\nTom saw it.\n\nOne day they met.\n"
    packers: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}

    def case(random: Random) -> Case:
        ending = random.choice(["", "", ".gz", ".xz"])
        if random.random() < 0.6:
            some: Any = copy.deepcopy(pairs)
            one = random.choice(some)
            one[random.choice(["text", "prompt", "bits"])] = strange(random)
            if random.random() < 0.4:
                one["bits"] = random.choice(BITS)
            lines = [json.dumps(line) + "\n" for line in some]
            if random.random() < 0.3:
                lines[1] = random.choice(ODD) + "\n"
            data, done = "".join(lines).encode(), lines[1][:99]
            if random.random() < 0.3:
                data, done = lines_changed(random, lines)
            path = home / f"texts.jsonl{ending if ending != '.xz' else ''}"
        else:
            data, done = change_bytes(random, plain.encode())
            path = home / f"texts.txt{ending}"
        data = packers[path.suffix if path.suffix in packers else ""](data)
        if random.random() < 0.2:
            data, more = change_bytes(random, data)
            done += more
        path.write_bytes(data)
        documents, length = random.random() < 0.5, random.choice([None, None, 4])
        return f"{path.name}, {documents}, {length}: {done}", lambda: texts.read(
            model, str(path), None if documents else length, 9, documents
        )

    return case


def judged(home: Path) -> Callable[[Random], Case]:
    """Judged rows, from which figures are made."""
    row = {"place": "a:1", "sha256": "0", "judge": "j", "nats": 3.5, "judge_tokens": 7, "ln_ppl": 0.5, "even": 0.4}
    row |= {"odd": 0.6, "mdlm_nats": 3.0, "mdlm_tokens": 6, "diversity": 2.0, "distinct_1": 0.5, "path_entropy": 9.0}

    def case(random: Random) -> Case:
        some = [{**copy.deepcopy(row), "ln_ppl": n / 7} for n in range(4)]
        one = random.choice(some)
        name = random.choice(list(one))
        one[name] = random.choice([strange(random), 10**400, -(10**400), 1e308, "1"])
        if random.random() < 0.3:
            del one[random.choice(list(one))]

        def act() -> None:
            path = home / "judged.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in some))
            figures([line for line in rows.parsed(path.read_bytes()) if line is not None])
            if random.random() < 0.3:
                raise InputError("nothing is refused here", "all are read")

        return f"{name} = {str(one.get(name))[:60]!a}", act

    return case


def logs(home: Path) -> Callable[[Random], Case]:
    """The log of a training, as it is read and drawn."""
    events: list[dict[str, Any]] = [{"event": "start", "step": 0}]
    events += [{"event": "step", "step": n, "loss": 3.0 / (n + 1), "seconds": 1.0} for n in range(6)]
    events += [{"event": "validation", "step": 6, "nelbo": 1.5, "seconds": 1.0}]
    lines = [json.dumps(event) + "\n" for event in events]

    def case(random: Random) -> Case:
        data, done = lines_changed(random, lines)
        (home / LOG).write_bytes(data)

        def act() -> None:
            draw(read_log(home), home / "loss.svg")
            if random.random() < 0.3:
                raise InputError("nothing is refused here", "all are read")

        return done, act

    return case


@pytest.mark.parametrize("make", [shards, theory, judged, logs])
def test_every_file_is_read_or_refused(make, tmp_path):
    held(make, tmp_path)


def test_half_of_a_surrogate_pair_in_the_name_of_a_figure(tmp_path):
    event = {"event": "validation", "step": 1, "\ud800": 1.0}
    (tmp_path / LOG).write_text(json.dumps(event) + "\n")
    draw(read_log(tmp_path), tmp_path / "loss.svg")
    assert ">?<" in (tmp_path / "loss.svg").read_text(encoding="utf-8")


def test_a_set_of_shards_that_never_ends(tmp_path):
    """The first of a billion shards: which are missing was listed."""
    header = {"kind": "unmask rows", "n": 1, "whole": 10**9, "shard": "1/999999999 of batches of 1"}
    (tmp_path / "one").write_text(json.dumps(header) + '\n{"number": 0}\n')
    peak, start = memory.host_peak(), time.process_time()
    with pytest.raises(InputError, match=r"shards are missing: 2/999999999, 3/999999999"):
        texts_joined([str(tmp_path / "one")], str(tmp_path / "out"))
    assert time.process_time() - start < 1 and memory.host_peak() - peak < 2**25


ENDLESS = ["join /dev/zero -o out", "compare /dev/zero /dev/zero", "theory /dev/zero --documents"]


@pytest.mark.parametrize("words", ENDLESS)
def test_files_without_end(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "MOST", 2**24)
    monkeypatch.setattr(files, "LONGEST", 2**24)
    peak = memory.host_peak()
    assert main([*words.split(), *(["-o", "folder"] if "theory" in words else [])]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "/dev/zero" in said and memory.host_peak() - peak < 2**28


@pytest.mark.parametrize("ending", [".xz", ".gz"])
def test_a_packed_text_without_lines(ending, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST", 2**16)
    packer: Any = lzma if ending == ".xz" else gzip
    path = tmp_path / f"bomb.txt{ending}"
    for text in (b"a " * 2**24, b"a\n" * 2**17):  # a line without end, a document without end
        path.write_bytes(packer.compress(text))
        peak = memory.host_peak()
        with pytest.raises(InputError, match="more than 65,536 characters"):
            list(files.documents(str(path)))
        assert memory.host_peak() - peak < 2**24
