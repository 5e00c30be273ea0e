"""Experiments: what their files say holds together; rows are kept and resumed; tables have the paper's numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from small_paper import ALONE_AND_BEST
from unmask import decode_batch, load
from unmask.cli import main, show
from unmask.errors import InputError
from unmask.evaluate.judge import Judge
from unmask.evaluate.paper import EXPERIMENTS
from unmask.evaluate.paper.cells import PaperRun, run
from unmask.evaluate.paper.output import draw, markdown
from unmask.evaluate.paper.plan import read

SMALL = f"""{ALONE_AND_BEST}
[places.sudoku]
model = "sudoku"
task = "sudoku"
n = 3
made = {{ clues = 60, seed = 1 }}

[places.text]
model = "text"
n = 3
all = {{ length = 8, ban = "eos" }}

[printed."PPL"]
on = "sudoku"
"alone" = 12.5
"""


THEIRS = ("llada", "code")  # benchmarks that no bundled model can be asked


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_decoded(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert any(not place.theirs for place in experiment.places.values()) or name in THEIRS
    given, taken = set(experiment.common), {"recipe"}
    for place in experiment.places.values():
        given |= set(place.settings)
        for cell in experiment.at(place):
            given |= set(cell.settings)
            taken |= set(experiment.recipe(cell, place, "text").to_dict())
        assert place.theirs or place.task or place.model == "text"
        assert place.theirs or place.task is None or (place.made and place.n and place.n >= 500)
    assert given <= taken | {"search", "sampler"}, "settings that no cell takes"
    for numbers in experiment.printed.values():
        assert {label for label in numbers if label not in ("on", "of")} <= {cell.name for cell in experiment.cells}


def test_recipes_of_the_paper_by_name(capsys) -> None:
    experiment = EXPERIMENTS["llada"]
    place, cells = experiment.places["countdown"], {cell.name: cell for cell in experiment.cells}
    recipe = experiment.recipe(cells["PC-Sampler / E-SMC"], place, "text")
    assert (recipe.sampler, recipe.search, recipe.strength, recipe.every) == ("pc", "smc", 10.0, 32)
    with pytest.raises(InputError, match="needs a table of background frequencies"):
        experiment.recipe(cells["PC-Sampler / alone"], place)
    here = {cell.name for cell in experiment.at(place)}
    assert "PC-Sampler / vote on countdown" in here and "PC-Sampler / vote on sudoku" not in here
    assert main(["paper", "llada"]) == 2
    assert "choose with --on: gsm8k" in capsys.readouterr().err


def test_a_label_of_no_cell_is_refused() -> None:
    with pytest.raises(InputError, match="has 'other'"):
        read("small", SMALL + '"other" = 1.0\n')


def test_rows_are_kept_and_the_table_has_both_numbers(tmp_path, capsys) -> None:
    experiment = read("small", SMALL)
    job = PaperRun(experiment, experiment.places["sudoku"], tmp_path, on_cell=show.milestone)
    found = run(job)
    told = ["sudoku: decoded cell 1 of 2, alone", "sudoku: decoded cell 2 of 2, E-BoN"]
    assert capsys.readouterr().err.splitlines() == told  # where no bar is seen
    kept = {path: path.read_bytes() for path in (tmp_path / "rows").iterdir()}
    assert len(kept) == 2 and all(len(data.splitlines()) == 4 for data in kept.values())
    assert [one["evaluations"] for one in found] == [6, 12] and found[0]["against"] is None
    assert set(found[1]["against"]["strict"]) >= {"difference", "low", "high", "p"}
    assert run(job) == found and all(path.read_bytes() == data for path, data in kept.items())
    some = next(iter(kept))
    some.write_bytes(b"".join(kept[some].splitlines(keepends=True)[:2]) + b'{"task": "su')  # cut off in its second row
    again = run(job)
    drop = {"seconds", "tokens_per_second", "against"}
    for one, two in zip(found, again, strict=True):
        assert {k: v for k, v in one.items() if k not in drop} == {k: v for k, v in two.items() if k not in drop}
    page = markdown(experiment, job.place, found, "unmask paper small")
    header, _, alone, searched = [line for line in page.splitlines() if line.startswith("|")]
    assert "paper: PPL" in header and "| 12.5 |" in alone and "|  |" in searched
    assert "PPL" not in markdown(experiment, experiment.places["text"], [one | {"model": "text"} for one in found], "")


def test_texts_are_sampled_and_judged(tmp_path, small_judge: Judge, capsys) -> None:
    experiment = read("small", SMALL)
    job = PaperRun(experiment, experiment.places["text"], tmp_path, on_cell=show.milestone)
    assert all("ln_ppl" not in one for one in run(job))
    capsys.readouterr()
    found = run(replace(job, judges=(lambda: small_judge,)))
    told = [line.split(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert told == [f"text: {verb} cell {place} of 2" for verb in ("sampled", "judged") for place in (1, 2)]
    assert [one["n"] for one in found] == [3, 3]
    assert all(one["ln_ppl"]["mean"] > 0 and one["diversity"]["mean"] > 0 for one in found)
    rows = [json.loads(line) for line in (tmp_path / "rows" / found[1]["rows"]).read_text().splitlines()[1:]]
    model = load("text")
    assert all(len(row["tokens"]) == 8 and model.vocab.eos[0] not in row["tokens"] for row in rows)
    change = found[1]["against"]["ln_ppl"]
    assert change["difference"] == pytest.approx(found[1]["ln_ppl"]["mean"] - found[0]["ln_ppl"]["mean"])
    fewer = replace(experiment, cells=experiment.cells[1:])
    again = run(replace(job, experiment=fewer, place=replace(job.place, n=2), judges=(lambda: small_judge,)))
    assert [one["n"] for one in again] == [2]  # of rows that an experiment with more samples has made
    assert again[0]["evaluations"] == sum(row["evaluations"] for row in rows if row["number"] < 2)
    assert len((tmp_path / "rows" / found[1]["rows"]).read_text().splitlines()) == 4


def test_resumed_texts_are_sampled_in_the_same_batches(tmp_path, monkeypatch) -> None:
    """Rounding depends on the batch: it is cut at the same places whatever the file has already."""
    experiment = read("small", SMALL)
    experiment = replace(experiment, cells=experiment.cells[:1])
    job = PaperRun(experiment, replace(experiment.places["text"], n=11), tmp_path)
    cut: list[list[int]] = []

    def watched(*given, seeds, **more):
        cut.append(list(seeds))
        return decode_batch(*given, seeds=seeds, **more)

    monkeypatch.setattr("unmask.evaluate.paper.texts.decode_batch", watched)
    path = tmp_path / "rows" / run(job)[0]["rows"]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:4], *lines[6:8]]))  # rows 3, 4 and those from 7 on are lost
    run(job)
    assert cut == [list(range(8)), list(range(8, 11))] * 2
    numbers = [json.loads(line)["number"] for line in path.read_text().splitlines()[1:]]
    assert sorted(numbers) == list(range(11))
    assert json.loads(lines[0])["batch"] == 8


def test_texts_begin_with_a_prompt_and_end_before_an_end(tmp_path, small_judge: Judge) -> None:
    """Half of the tokens are ends: texts are cut there, empty ones are counted and not judged."""
    model = load("text")
    (letter,), (end, *_) = model.tokenizer.encode("a"), model.vocab.eos
    given = len(model.tokenizer.encode("Once"))
    ban = [token for token in range(model.head.width) if token not in (letter, end)]
    settings = f'prompt = "Once"\nall = {{ length = 3, ban = {ban}, skip_tail = true, temperature = 1e6 }}'
    experiment = read("small", SMALL.replace('all = { length = 8, ban = "eos" }', settings))
    job = PaperRun(experiment, replace(experiment.places["text"], n=16), tmp_path)
    nothing = read("small", SMALL.replace('all = { length = 8, ban = "eos" }', settings.partition("\n")[2]))
    assert {one["rows"] for one in run(job)}.isdisjoint(
        one["rows"] for one in run(replace(job, experiment=nothing, place=replace(nothing.places["text"], n=16)))
    )
    found = run(replace(job, judges=(lambda: small_judge,)))
    for one in found:
        rows = [json.loads(line) for line in (tmp_path / "rows" / one["rows"]).read_text().splitlines()[1:]]
        full = [row for row in rows if row["text"]]
        assert all(row["text"] == "Once" + "a" * (len(row["tokens"]) - given) for row in full)
        assert all(row["ended"] == (len(row["tokens"]) < given + 3) for row in rows)
        assert one["ended"] == sum(row["ended"] for row in rows) / 16
        assert one["empty"] == 16 - len(full) == 16 - len((tmp_path / "rows" / one["judged"]).read_text().splitlines())
    assert found[0]["empty"] and 0 < found[0]["ended"] < 1
    page = markdown(experiment, job.place, found, "unmask paper small")
    assert "| ended, % | empty |" in page and "text after “Once”" in page


def test_a_shorter_canvas_has_as_many_positions_a_step() -> None:
    experiment = EXPERIMENTS["guidance"]
    cell = next(cell for cell in experiment.cells if cell.name == "S=256, K=4, Δ=32 / E-SMC")
    mine, theirs = (experiment.recipe(cell, experiment.places[name]) for name in ("text", "mdlm"))
    assert (theirs.length, theirs.steps, theirs.every) == (1024, 256, 32)
    assert (mine.length, mine.steps, mine.every) == (252, 64, 8)  # after a prompt of 4 tokens


@pytest.fixture
def small_judge(tmp_path) -> Judge:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    from unmask.evaluate.judge import load_judge

    words = Tokenizer(
        models.BPE({letter: place for place, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}, [])
    )
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.add_special_tokens(["<|endoftext|>"])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|endoftext|>")
    shape = transformers.GPT2Config(vocab_size=len(fast), n_embd=16, n_layer=1, n_head=2, n_positions=64)
    for made in (fast, transformers.GPT2LMHeadModel(shape)):
        made.save_pretrained(tmp_path / "judge")
    return load_judge(str(tmp_path / "judge"))


REFUSED = {
    "runtime --ray --on text": "--ray has no effect on runtime, which is timed on one device: leave it out",
    "paths --ray --on text": "--ray has no effect on paths, which is one decode for each cell: leave it out",
    "vote --workers 3": "--workers has no effect without --ray: add --ray",
    "vote --ray --device cuda": "--device has no effect with --ray: --gpus says where workers run",
    "quality --ray --judge-device cuda": "--judge-device has no effect with --ray: --gpus says where workers run",
    "--ray": "--ray has no effect on a list: give the name of an experiment",
    "quality --on text --judge-device nowhere": "cannot load the judge on nowhere: give cpu",
}


def test_the_command(tmp_path, capsys) -> None:
    assert main(["paper"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in EXPERIMENTS)
    assert main(["paper", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(EXPERIMENTS)
    assert main(["paper", "particels"]) != 0
    assert "particles" in capsys.readouterr().err
    assert main(["paper", "paths", "--on", "mdl"]) != 0
    assert "mdlm" in capsys.readouterr().err
    assert main(["paper", "vote", "--limit", "0"]) != 0
    assert "at least 1" in capsys.readouterr().err
    for given, said in REFUSED.items():
        assert main(["paper", *given.split()]) == 2
        assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_pictures(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    experiment = read("small", SMALL)
    found = run(PaperRun(experiment, experiment.places["sudoku"], tmp_path))
    made = draw(experiment, experiment.places["sudoku"], found, tmp_path)
    assert [path.suffix for path in made] == [".svg", ".png"] and all(path.stat().st_size > 2000 for path in made)
    points = [("alone", [{"path_entropy": 1.0, "ln_ppl": 3.0}])]
    figure = dict.fromkeys(("mean", "low", "high"), 3.0)
    judged = [{**one, "ln_ppl": figure, "path_entropy": figure} for one in found]
    for one in judged:
        del one["strict"]
    assert len(draw(experiment, experiment.places["text"], judged, tmp_path, points)) == 4
