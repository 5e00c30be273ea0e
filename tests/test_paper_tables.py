"""Tables of the paper end to end on fabricated checkpoints: all places, models, seeds and judges in one command."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from unmask.cli import main
from unmask.decoding.named_recipes import RECIPES
from unmask.errors import InputError
from unmask.evaluate import rows
from unmask.evaluate.inputs import Inputs, gathered, in_folder
from unmask.evaluate.paper import EXPERIMENTS, TABLES
from unmask.evaluate.paper.table import Share, average, titled
from unmask.models import family_name
from unmask.models.made.fabricate import fabricate
from unmask.tasks import TASKS, files

QUESTIONS = {  # as the files of the benchmarks have them; ours
    "countdown/cd3_test.jsonl": ['{"input": "3,4,5,17", "output": "3*4=12,12+5=17"}'] * 2,
    "sudoku4/test.csv": ["Puzzle,Solution", "0234341221434321,1234341221434321", "1234341221034321,1234341221434321"],
    "math/gsm8k_test.jsonl": ['{"question": "1+1?", "answer": "#### 2"}'],
    "math/gsm8k_train.jsonl": [f'{{"question": "{n}+0?", "answer": "#### {n}"}}' for n in range(5)],
    "code/HumanEval.jsonl": [
        json.dumps(
            {
                "task_id": "T/0",
                "prompt": "def f():\n",
                "entry_point": "f",
                "canonical_solution": "    return 1\n",
                "test": "def check(f):\n    assert f() == 1\n",
            }
        )
    ],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Tiny checkpoints of the paper's three families, a background table, and a folder of data."""
    folder = tmp_path_factory.mktemp("paper")
    for family in ("llada", "open-dcoder", "mdlm"):
        fabricate(family, folder / family)
    (folder / "counts.json").write_text('{"num_token": 10, "p_baseline_dict": {"65": 6, "66": 4}}')
    for name, lines in QUESTIONS.items():
        path = folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    return folder


def fewer(monkeypatch, table: str, *cells: str) -> None:
    """Only these cells of a table: all of them take minutes."""
    whole = TABLES[table]
    some = tuple(cell for cell in whole.cells if cell.name in cells)
    assert len(some) == len(cells)
    monkeypatch.setitem(TABLES, table, replace(whole, cells=some))


def test_table_2_has_averages_seeds_and_both_verdicts(made, monkeypatch, capsys, tmp_path) -> None:
    fewer(monkeypatch, "table2", "Uniform / alone", "PC-Sampler / E-SMC", "PC-Sampler / vote on sudoku")
    monkeypatch.chdir(tmp_path)
    given = [
        "paper",
        "table2",
        "--on",
        "countdown",
        "--on",
        "sudoku",
        "--seeds",
        "2",
        "--limit",
        "1",
        "--scale",
        "0.05",
    ]
    given += ["--model", str(made / "llada"), "--data-dir", str(made / "data")]
    given += ["--background", str(made / "counts.json"), "--no-pictures"]
    assert main(given) == 0
    out = capsys.readouterr().out
    assert "# Table 2" in out and "beside the paper's LLaDA-8B" in out and "Mean ± SD over 2 runs" in out
    lines = [line.split(" | ") for line in out.splitlines() if line.startswith("| ")]
    assert lines[0][2:5] == ["countdown: paper", "countdown: as published", "countdown: solved"]
    assert lines[0][-3:] == ["average: paper", "average: as published", "average: solved |"]
    assert lines[1][2] == "14.4" and lines[1][5] == "2.2" and lines[1][8] == "8.3"  # the paper's, and their mean
    assert lines[3][2] == "" and lines[3][5] == "26.8" and lines[3][8] == ""  # a cell of one place has no average
    assert "- sudoku: test.csv, prompt ours, n = 1; rows of " in out and "A trial: length" in out
    kept = {path: path.read_bytes() for path in Path("runs/paper/rows").iterdir()}
    assert len(kept) == 2 * (2 + 3)  # two seeds: two cells at one place, three at the other
    assert main([*given, "--json"]) == 0  # resumed: nothing is decoded again
    found = json.loads(capsys.readouterr().out)
    assert {path: path.read_bytes() for path in Path("runs/paper/rows").iterdir()} == kept
    cell = found["models"][str(made / "llada")][0]
    assert len(cell["average"]["strict"]["each"]) == 2 and cell["places"]["sudoku"]["paper"] == 2.2
    seeds = {json.loads(data.splitlines()[1])["seed"] for data in kept.values()}
    assert seeds == {0, 1_000_000}
    Path("wrong.json").write_text(json.dumps({"num_token": 1, "p_baseline_dict": {"99999": 1}}))
    wrong = ["wrong.json" if word.endswith("counts.json") else word for word in given]
    assert main([*wrong, "--out", "never"]) == 2 and "counts token 99999" in capsys.readouterr().err
    assert not list(Path("never").rglob("*.jsonl"))  # it is found before the first cell is decoded


def test_processes_share_a_folder(made, monkeypatch, capsys, tmp_path) -> None:
    """One process for each GPU, each with some of the places: the table of all of them decodes nothing again."""
    fewer(monkeypatch, "table2", "Confidence / alone")
    monkeypatch.chdir(tmp_path)
    given = ["paper", "table2", "--limit", "1", "--scale", "0.05", "--model", str(made / "llada"), "--no-pictures"]
    given += ["--data-dir", str(made / "data")]
    for place in ("countdown", "sudoku"):
        assert main([*given, "--on", place]) == 0
    kept = {path: path.read_bytes() for path in Path("runs/paper/rows").iterdir()}
    assert len(kept) == 2
    assert main([*given, "--on", "countdown", "--on", "sudoku"]) == 0
    assert {path: path.read_bytes() for path in Path("runs/paper/rows").iterdir()} == kept
    assert "average: solved" in capsys.readouterr().out


def test_table_8_and_figure_5_run_on_their_families(made, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    fewer(monkeypatch, "table8", "P2 / alone", "Margin / E-SMC")
    small = ["--limit", "1", "--scale", "0.05", "--data-dir", str(made / "data"), "--no-pictures"]
    assert main(["paper", "table8", "--on", "humaneval", "--model", str(made / "open-dcoder"), *small]) == 0
    out = capsys.readouterr().out
    assert "| Margin | E-SMC | 7.6 | 0.0 (0.0–79.3) | 0.0 (0.0–79.3) | " in out and "average" not in out
    fewer(monkeypatch, "fig5", "0", "1")
    given = ["paper", "fig5", *small, "--background", str(made / "counts.json")]
    assert main([*given, "--model", str(made / "llada")]) == 0
    assert "# Figure 5" in capsys.readouterr().out
    assert main([*given, "--model", str(made / "open-dcoder")]) == 2
    assert "the family llada, not of open-dcoder" in capsys.readouterr().err
    assert main([*given, "--model", str(made / "open-dcoder"), "--any-recipe"]) == 0
    assert "llada: path entropy, bits" in capsys.readouterr().out


def test_table_1_has_both_judges_and_the_kernel_of_mdlm(made, monkeypatch, capsys, tmp_path, small_judge) -> None:
    monkeypatch.chdir(tmp_path)
    fewer(monkeypatch, "table1", "S=256, K=4, Δ=32 / vanilla", "S=256, K=4, Δ=32 / E-SMC")
    place = TABLES["table1"].places["mdlm"]
    assert place.judges == ("openai-community/gpt2-large", "meta-llama/Meta-Llama-3-8B")
    for name in ("quality", "guidance", "greedy", "runtime", "paths", "particles"):
        one = EXPERIMENTS[name]
        cells = one.at(one.places["mdlm"])
        assert {one.recipe(cell, one.places["mdlm"]).sampler for cell in cells} == {"ancestral"}
    other = small_judge.parent / "other"
    (small_judge.parent / "other").symlink_to(small_judge)
    given = ["paper", "table1", "--model", str(made / "mdlm"), "--scale", "0.0625", "--limit", "2", "--seeds", "2"]
    given += ["--judge", str(small_judge), "--judge", str(other), "--no-pictures"]
    assert main(given) == 0
    out = capsys.readouterr().out
    assert f"judged by {small_judge} and {other}" in out and f"ln PPL, {other}" in out
    assert f"--judge {small_judge} --judge {other}" in out and "## Over 2 runs of other seeds" in out
    judged = sorted(path.name for path in Path("runs/paper/rows").glob("*.judged-*"))
    assert len(judged) == 8  # two cells, two seeds, two judges: each judge has its own file
    assert main([*given[:-5], "--judge", "none", "--no-pictures"]) == 0
    assert "judged by" not in capsys.readouterr().out


@pytest.fixture
def small_judge(tmp_path) -> Path:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = {letter: place for place, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    words = Tokenizer(models.BPE(letters, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.add_special_tokens(["<|endoftext|>"])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|endoftext|>")
    shape = transformers.GPT2Config(vocab_size=len(fast), n_embd=16, n_layer=1, n_head=2, n_positions=64)
    for one in (fast, transformers.GPT2LMHeadModel(shape)):
        one.save_pretrained(tmp_path / "judges" / "one")
    return tmp_path / "judges" / "one"


# --- files -----------------------------------------------------------------------------------------------------------


def test_all_that_is_missing_is_asked_for_at_once(made, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    model = ["--model", str(made / "llada")]
    assert main(["eval", "gsm8k", *model, "--recipe", "llada-gsm8k-pc-smc", "--data-dir", "empty"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    for name in ("gsm8k_test.jsonl", "gsm8k_train.jsonl", "frequencies/llada.json"):
        assert name in err
    assert all(flag in err for flag in ("--data FILE", "--shots FILE", "--background FILE"))
    assert main(["paper", "table2", *model, "--data-dir", "empty"]) == 2
    err = capsys.readouterr().err
    assert all(name in err for name in ("cd3_test.jsonl", "4x4_test_sudoku.csv", "math500.jsonl", "gpqa_main.csv"))
    assert main(["paper", "table2", *model, "--data", "x"]) == 2
    assert "--data is the file of one task" in capsys.readouterr().err
    assert main(["eval", "gsm8k", *model, "--data-dir", "nowhere"]) == 2
    assert "there is no folder 'nowhere'" in capsys.readouterr().err
    assert main(["eval", "sudoku", "--data-dir", "empty"]) == 2
    assert "--data-dir has no effect on sudoku" in capsys.readouterr().err


def test_a_folder_of_data_has_all_files_of_a_row(made, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["eval", "gsm8k", "--model", str(made / "llada"), "--recipe", "llada-gsm8k-pc-smc", "--length", "4"]
    given += ["--steps", "4", "--every", "2", "--data-dir", str(made / "data"), "--json", "--rows", "rows.jsonl"]
    assert main([*given, "--background", str(made / "counts.json")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["data"].endswith("gsm8k_test.jsonl") and found["shots"] and found["background"]
    (tmp_path / "copy.json").write_bytes((made / "counts.json").read_bytes())
    assert main([*given, "--background", "copy.json"]) == 0  # the same table in another place is the same run
    (tmp_path / "copy.json").write_text('{"num_token": 10, "p_baseline_dict": {"65": 5, "66": 5}}')
    assert main([*given, "--background", "copy.json"]) == 2
    assert "the SHA-256 of the background table" in capsys.readouterr().err


def test_files_that_were_given_come_first(tmp_path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("gsm8k_test.jsonl", "a/gsm8k_train.jsonl", "llada.json"):
        (tmp_path / name).write_text("{}")
    (found,) = gathered([(TASKS["gsm8k"], "llada")], Inputs(data="mine"), tmp_path)
    assert found == Inputs("mine", str(tmp_path / "a/gsm8k_train.jsonl"), str(tmp_path / "llada.json"))
    assert in_folder(tmp_path, ("none",)) is None and in_folder(None, ("llada.json",)) is None
    (found,) = gathered([(TASKS["gsm8k"], None)], Inputs(), tmp_path)
    assert found.background is None


def test_parquet_files_of_the_hub_are_read(tmp_path, monkeypatch) -> None:
    path = tmp_path / "test.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install pyarrow"):
        TASKS["gsm8k"].examples(path)
    package, module = ModuleType("pyarrow"), ModuleType("pyarrow.parquet")
    read = SimpleNamespace(to_pylist=lambda: [{"question": "1+1?", "answer": "#### 2"}])
    module.read_table = lambda name: read  # type: ignore[attr-defined]
    monkeypatch.setattr(files, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "pyarrow", package)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", module)
    assert TASKS["gsm8k"].examples(path)[0].gold == "#### 2"


# --- recipes ---------------------------------------------------------------------------------------------------------


def test_a_recipe_of_another_task_or_family_is_refused(made, capsys) -> None:
    data = ["--data-dir", str(made / "data"), "--limit", "1"]
    assert main(["eval", "humaneval", "--recipe", "llada-sudoku-uniform", "--model", str(made / "llada"), *data]) == 2
    assert "is for sudoku4, not for humaneval: take one of this task, or add --any-recipe" in capsys.readouterr().err
    assert main(["eval", "sudoku4", "--recipe", "llada-gsm8k-uniform", "--model", str(made / "llada"), *data]) == 2
    assert "`unmask recipes llada-sudoku` lists those of sudoku4" in capsys.readouterr().err
    wrong = ["eval", "humaneval", "--recipe", "open-dcoder-p2", "--model", str(made / "llada"), "--length", "4", *data]
    assert main(wrong) == 2
    assert "the family open-dcoder, not of llada: give --model fredzzp/open-dcoder-0.5B" in capsys.readouterr().err
    assert main([*wrong, "--steps", "4", "--any-recipe"]) == 0
    capsys.readouterr()
    assert main(["eval", "humaneval", "--model", str(made / "llada"), "--any-recipe", *data]) == 2
    assert "--any-recipe has no effect" in capsys.readouterr().err
    assert family_name(made / "mdlm") == "mdlm" and family_name("text") == "native" and family_name("random") is None


def test_every_recipe_names_its_tasks_its_family_and_its_command(capsys) -> None:
    for one in RECIPES.values():
        assert all(task in TASKS for task in one.tasks) and bool(one.tasks) == (one.family != "mdlm")
        assert (one.evaluation() is None) == (not one.tasks) and one.family in ("llada", "open-dcoder", "mdlm")
        assert all(table in TABLES for table in one.tables), one.name
    assert main(["recipes", "llada-gsm8k-pc-smc"]) == 0
    out = capsys.readouterr().out
    assert "unmask eval gsm8k --recipe llada-gsm8k-pc-smc --model GSAI-ML/LLaDA-8B-Instruct" in out
    assert "unmask paper table2" in out
    assert main(["recipes", "mdlm-256-smc-k4-d32"]) == 0
    assert "Not in the paper: the kernel is MDLM's; strength is that of the other models." in capsys.readouterr().out
    assert main(["recipes", "open-dcoder-margin"]) == 0
    out = capsys.readouterr().out
    assert "select_temperature is alg_temp of Open-dLLM's evaluation" in out and "also humaneval+, mbpp, mbpp+" in out


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_the_average_of_shares() -> None:
    one, two = Share((0.5,), (0.4, 0.6)), Share((0.7,), (0.6, 0.8))
    both = average([one, two])
    assert both.mean == pytest.approx(0.6) and both.ends == pytest.approx((0.6 - 0.0707, 0.6 + 0.0707), abs=1e-3)
    assert str(both) == "60.0 (52.9–67.1)"
    several = average([Share((0.2, 0.4)), Share((0.4, 0.8))])
    assert several.each == pytest.approx((0.3, 0.6)) and str(several) == "45.0 ± 21.2"
    assert (titled("table2"), titled("fig4"), titled("vote")) == ("Table 2", "Figure 4", "vote")


def test_the_papers_averages_are_those_that_it_prints() -> None:
    """Table 8: the mean of the four columns is the printed one."""
    experiment = TABLES["table8"]
    means = {}
    for cell in experiment.cells:
        printed = [experiment.printed[name][cell.name] for name in ("humaneval", "humaneval+", "mbpp", "mbpp+")]
        means[cell.name] = sum(printed) / 4
    assert means["P2 / alone"] == pytest.approx(19.1, abs=0.06)
    assert means["Entropy / E-SMC"] == pytest.approx(10.3, abs=0.06)


def test_rows_say_by_which_commits_they_were_made(tmp_path) -> None:
    header = {"task": "t", "model": "m", "n": 3, "commit": "a" * 40, "date": "2026-11-01T00:00:00", "recipe": {}}
    path = str(tmp_path / "r.jsonl")
    with rows.opened(path, header) as kept:
        kept.add([{"number": 0}])
        assert kept.origins == [["a" * 40, "2026-11-01"]]
    later = header | {"commit": "b" * 40 + "+", "date": "2026-11-03T00:00:00"}
    with rows.opened(path, later) as kept:
        kept.add([{"number": 1}])
        assert kept.origins == [["a" * 40, "2026-11-01"], ["b" * 40 + "+", "2026-11-03"]]
    assert rows.read(path).origins == kept.origins
