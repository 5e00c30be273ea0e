"""Scores of texts, noised states, the quantities of the theory, files of texts, and their commands."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from unmask import Recipe, load, score
from unmask.cli import main
from unmask.errors import InputError, SettingError
from unmask.evaluate.stats import Mean, mean, student
from unmask.evaluate.theory import quantities
from unmask.evaluate.theory.noised_states import join, measure
from unmask.evaluate.theory.reference import Known, generated, known, reference
from unmask.evaluate.theory.report import law, rows, study, summary
from unmask.evaluate.theory.texts import pairs, read
from unmask.models.wrap import Counted

WORDS = ["senate", "street", "tester", "eaters", "rattan"]
SOLVED = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
PUZZLE = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"


@pytest.fixture(scope="module")
def table():
    return load("table")


# --- scores ----------------------------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_numbers_and_a_batch_changes_nothing(table):
    recipe = Recipe("ancestral", steps=4, seed=5)
    together = score(table, WORDS, recipe=recipe, draws=3)
    assert together == score(table, WORDS, recipe=recipe, draws=3)
    for place, one in enumerate(together):
        alone = score(table, [WORDS[place]], recipe=recipe.replace(seed=5 + place), draws=3)[0]
        assert alone.path_entropy.value == pytest.approx(one.path_entropy.value, abs=1e-12)
        assert (alone.loss.value, alone.evaluations) == (pytest.approx(one.loss.value, abs=1e-12), one.evaluations)
    assert together[0].path_entropy != score(table, WORDS, recipe=recipe.replace(seed=6), draws=3)[0].path_entropy


def test_texts_of_several_lengths_in_a_network():
    """Left-padded rows of a real network; a text alone has the numbers of the batch up to rounding."""
    model, recipe = load("random"), Recipe("uniform", steps=3)
    texts = ["a", "some words", "abc"]
    together = score(model, texts, recipe=recipe, draws=2)
    for place, one in enumerate(together):
        alone = score(model, [texts[place]], recipe=recipe.replace(seed=place), draws=2)[0]
        assert alone.path_entropy.value == pytest.approx(one.path_entropy.value, abs=1e-4)
        assert one.tokens == len(texts[place])


def test_the_prompt_is_never_masked_and_ranks_answers(table):
    right, wrong = score(table, ["ate", "sss"], ["sen", "sen"], recipe=Recipe("uniform"), draws=4)
    assert right.tokens == wrong.tokens == 3
    assert right.path_entropy.value < wrong.path_entropy.value and right.loss.value < wrong.loss.value


def test_evaluations_are_the_rows_that_went_through(table):
    model = Counted(table)
    found = score(model, WORDS[:2], recipe=Recipe("uniform", block_length=1), draws=1)  # from left to right
    assert sum(one.evaluations for one in found) == 12 == model.count.rows
    assert all(one.path_entropy.low is None for one in found)


def test_left_to_right_loss_is_the_log_probability(table):
    """The chain rule: whatever the order, one token a step costs -log p of the text together."""
    for recipe in (Recipe("uniform", block_length=1), Recipe("uniform"), Recipe("confidence"), Recipe("entropy")):
        one = score(table, ["senate"], recipe=recipe, draws=1)[0]
        exact = -table.log_probability(table.tokenizer.encode("senate")) / math.log(2) / 6
        assert one.loss.value == pytest.approx(exact, abs=1e-9)


def test_confidence_reveals_the_likeliest_true_token_first(table):
    """State entropies along the path are those of states made by hand."""
    row = known(table, "senate")
    path = reference(table, [row], Recipe("confidence"))[0][0]
    canvas, tokens, expected = [table.vocab.mask] * 6, row.tokens, []
    for _ in range(6):
        state = Known(canvas, [token == table.vocab.mask for token in canvas])
        laws = _laws(table, canvas)
        masked = [place for place in range(6) if state.open[place]]
        expected.append(sum(float(torch.special.entr(laws[p]).sum()) for p in masked) / len(masked) / math.log(2))
        best = max(masked, key=lambda place: float(laws[place][tokens[place]]))
        canvas = [*canvas[:best], tokens[best], *canvas[best + 1 :]]
    assert path.state_entropy == pytest.approx(expected, abs=1e-9)
    assert path.path_entropy == pytest.approx(sum(expected) / 6, abs=1e-9)


def _laws(table, canvas):
    """The exact conditionals of every position."""
    fits = torch.ones(len(table.sequences), dtype=torch.bool)
    for place, token in enumerate(canvas):
        fits &= (table.sequences[:, place] == token) | (token == table.vocab.mask)
    weights = table.probability * fits
    laws = [torch.zeros(6, dtype=torch.float64).index_add(0, table.sequences[:, p], weights) for p in range(6)]
    return [law / weights.sum() for law in laws]


@pytest.mark.parametrize(
    "sampler", ["uniform", "ancestral", "confidence", "entropy", "margin", "eb", "semi-ar", "dream"]
)
def test_every_sampler_that_only_reveals_can_order_a_text(table, sampler):
    path = reference(table, [known(table, "senate")], Recipe(sampler), draws=2)[0]
    assert all(math.isfinite(one.path_entropy) and one.loss > 0 for one in path)


def test_a_generating_recipe_can_order_a_text(table):
    recipe = Recipe("uniform", steps=3, temperature=0.7, top_k=2, search="smc", particles=3, every=1, strength=4.0)
    assert reference(table, [known(table, "senate")], recipe) == reference(
        table, [known(table, "senate")], Recipe("uniform", steps=3)
    )


def test_a_mistyped_file_is_no_text():
    with pytest.raises(InputError, match=r"there is no file 'wrods\.txt'"):
        pairs("wrods.txt", "")
    assert pairs("It is in words.txt", "")[0].text == "It is in words.txt"


def test_what_cannot_be_scored(table):
    with pytest.raises(InputError, match="nothing to score"):
        score(table, [""])
    with pytest.raises(InputError, match="7 tokens are more than table allows"):
        score(table, ["senates"])
    with pytest.raises(InputError, match="mask id"):
        known(table, [0, table.vocab.mask])
    with pytest.raises(InputError, match="one each"):
        score(table, ["ate"], ["s", "t"])
    with pytest.raises(SettingError, match="masks text again"):
        score(table, ["ate"], recipe=Recipe("p2"))
    with pytest.raises(SettingError, match="draws is 0"):
        score(table, ["ate"], draws=0)
    for use in (
        lambda: reference(table, [Known([0], [False])], Recipe()),
        lambda: measure(table, [Known([0], [False])]),
    ):
        with pytest.raises(InputError, match="there is nothing to"):
            use()


# --- noised states ---------------------------------------------------------------------------------------------------


def test_masks_are_nested_and_their_number_is_even(table):
    texts = [known(table, word) for word in WORDS] * 40
    states = measure(table, texts, draws=3)
    assert (states.masked[:, 0] == 1).all() and (states.masked[:, -1] == 6).all()
    assert (states.masked.diff(dim=1) >= 0).all()
    assert set(states.masked[:, states.parts].flatten().tolist()) == {1, 2, 3, 4, 5, 6}
    assert [sorted(set(column)) for column in states.masked[:, states.parts].T.tolist()] == [[1, 2], [3, 4], [5, 6]]
    assert states.evaluations == len(texts) * 5


def test_a_batch_changes_no_state(table):
    texts = [known(table, word) for word in WORDS]
    together = measure(table, texts, draws=4, seed=3)
    alone = join([measure(table, [text], draws=4, seed=3 + place) for place, text in enumerate(texts)])
    assert torch.equal(together.masked, alone.masked) and together.evaluations == alone.evaluations
    for name in ("entropy", "loss", "watched"):
        assert torch.allclose(getattr(together, name), getattr(alone, name), rtol=0, atol=1e-12)


def test_only_open_positions_are_masked():
    model = load("sudoku")
    text = Known([int(digit) - 1 for digit in SOLVED], [digit == "." for digit in PUZZLE])
    states = measure(model, [text, text], draws=2)
    assert states.open.tolist() == [51, 51] and (states.masked[:, -1] == 51).all()
    assert (states.entropy[:, 0] < 0.01).all()  # one blank: nothing is open


# --- quantities ------------------------------------------------------------------------------------------------------


def test_mean_and_its_interval():
    found = mean([1.0, 2.0, 3.0])
    half = 4.303 / math.sqrt(3)
    assert (found.value, found.n) == (2.0, 3) and found.half == pytest.approx(half, rel=0.01)
    assert mean([1.0]) == Mean(1.0, None, None, 1) and mean([1.0]).half == math.inf
    assert found.times(-1).low == pytest.approx(-found.high)
    assert [student(n) for n in (5, 10, 30, 10**9)] == pytest.approx([2.571, 2.228, 2.042, 1.960], abs=1e-3)
    assert str(Mean(1, 0.5, 1.5, 2)) == "1.000 (0.500–1.500)" and str(Mean(0, -1, 1, 2)) == "0.000 (-1.000 to 1.000)"


def test_the_lower_bound_is_0_where_the_drift_may_be():
    assert quantities.lower_bound(Mean(0.1, -0.1, 0.3, 9), 2.0).low == 0
    found = quantities.lower_bound(Mean(-0.4, -0.6, -0.2, 9), 2.0)
    assert (found.value, found.low, found.high) == pytest.approx((0.02, 0.005, 0.045))
    assert quantities.lower_bound(Mean(-0.4, None, None, 1), 2.0, 2.0).value == pytest.approx(0.08)


def test_needed_epsilon_solves_the_bound():
    for gap in (0.0, 0.01, 1.0):
        found = quantities.needed_epsilon(gap, 50)
        assert found + math.sqrt(found / 2) * math.log(50) == pytest.approx(gap)
    assert quantities.needed_epsilon(-0.1, 50) is None


def test_unigram_entropy():
    assert quantities.unigram({3: 2, 5: 1, 9: 1}) == pytest.approx(1.5)


def test_a_study_is_its_rows(table):
    texts = [known(table, word) for word in WORDS]
    recipe, kept = Recipe("ancestral", steps=3), []
    found = study(table, texts, recipe, draws=4, paths=2, on_rows=kept.extend)
    assert kept == rows(found)  # in batches of four texts, and all at once
    assert [sum(row["kind"] == kind for row in kept) for kind in ("state", "reference", "generated")] == [30, 10, 5]
    made = summary(found, 6, {0: 3, 1: 2}, data_entropy=2.0)
    assert made == json.loads(json.dumps(made))
    again = reference(table, texts, recipe, 2)
    assert made["divergence"]["reference"]["value"] == pytest.approx(
        sum(path.path_entropy for some in again for path in some) / 10
    )
    own = generated(table, texts, recipe.replace(temperature=1.0))
    assert made["divergence"]["generated"]["value"] == pytest.approx(sum(one.path_entropy for one in own) / 5)
    assert found.evaluations == 30 + sum(row["evaluations"] for row in kept if row["kind"] != "state")
    with pytest.raises(SettingError, match="random order"):
        study(table, texts, Recipe("confidence"))


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_of_texts(table, tmp_path):
    (tmp_path / "lines.txt").write_text("senate\n\ntester\nate\n")
    texts, counts = read(table, str(tmp_path / "lines.txt"), None, 2)
    assert [table.tokenizer.decode(text.tokens) for text in texts] == ["senate", "tester"]
    assert counts.total() == 12
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "sen", "text": "ate"}\n{"text": "ate"}\n')
    texts, counts = read(table, str(tmp_path / "pairs.jsonl"), None, 9)
    assert [text.open for text in texts] == [[False] * 3 + [True] * 3, [True] * 3] and counts is None
    (tmp_path / "prose.txt").write_text("senate\ntester\n\nate\n")
    with pytest.raises(InputError, match="not a character of this model"):
        read(table, str(tmp_path / "prose.txt"), 3, 2)


def test_windows_of_prose(tmp_path):
    model = load("text")
    (tmp_path / "prose.txt").write_text("Lily had a red ball.\n\nShe liked to play with it all day.\n")
    texts, _ = read(model, str(tmp_path / "prose.txt"), 4, 3)
    whole = [*model.tokenizer.encode("Lily had a red ball."), model.vocab.eos[0]]
    assert [token for text in texts for token in text.tokens][: len(whole)] == whole
    assert all(len(text.tokens) == 4 for text in texts)
    with pytest.raises(InputError, match="at least 2"):
        read(model, str(tmp_path / "prose.txt"), 16, 3)
    with pytest.raises(InputError, match=f"length is {model.limit + 1}"):
        read(model, str(tmp_path / "prose.txt"), model.limit + 1, 3)


def test_documents_have_rows_of_their_own_and_their_bits(tmp_path):
    model = load("text")
    (tmp_path / "stories.jsonl").write_text('{"text": "Lily had a red ball.", "bits": 31.5}\n{"text": "It was big."}\n')
    (tmp_path / "stories.txt").write_text("Lily had a red ball.\n\nIt was big.\n")
    for name, bits in (("stories.jsonl", [31.5, None]), ("stories.txt", [None, None])):
        texts, counts = read(model, str(tmp_path / name), None, 9, documents=True)
        first = model.tokenizer.encode("Lily had a red ball.")
        assert texts[0].tokens == first + [model.vocab.eos[0]] * (model.limit - len(first))
        assert all(all(text.open) and len(text.tokens) == model.limit for text in texts) and counts is not None
        assert [text.bits for text in texts] == bits
    assert law(texts) is None and law([Known([0], [True], 2.0), Known([0], [True], 0.0)]) == [2.0, 0.0]
    with pytest.raises(InputError, match="not cut into windows"):
        read(model, str(tmp_path / "stories.txt"), 16, 9, documents=True)
    with pytest.raises(InputError, match="sudoku has no rows that end"):
        read(load("sudoku"), str(tmp_path / "stories.txt"), None, 9, documents=True)


def test_rows_have_the_bits_of_the_law(table):
    texts = [replace(known(table, word), bits=float(place)) for place, word in enumerate(WORDS)]
    kept = []
    found = study(table, texts, Recipe("ancestral", steps=2), draws=1, paths=1, on_rows=kept.extend)
    assert [row["bits"] for row in kept if row["kind"] == "data"] == found.bits == list(range(len(WORDS)))
    assert summary(found, 6, None, None)["law"]["data"]["value"] == pytest.approx((len(WORDS) - 1) / 2)


def test_boards_and_puzzles(tmp_path):
    model = load("sudoku")
    (tmp_path / "boards.txt").write_text(f"{SOLVED}\n{PUZZLE} {SOLVED}\nno board\n")
    texts, counts = read(model, str(tmp_path / "boards.txt"), None, 9)
    assert [sum(text.open) for text in texts] == [81, 51] and counts is None
    (tmp_path / "boards.txt").write_text(f"{PUZZLE}\n{PUZZLE}\n")
    with pytest.raises(InputError, match="without its solution"):
        read(model, str(tmp_path / "boards.txt"), None, 9)
    (tmp_path / "boards.txt").write_text(f"{SOLVED[::-1]}\n{'1' * 81}\n")
    with pytest.raises(InputError, match=r"line 2 .*twice in"):
        read(model, str(tmp_path / "boards.txt"), None, 9)


# --- commands --------------------------------------------------------------------------------------------------------


def run(capsys, *argv: str) -> str:
    status = main(list(argv))
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    return out


def test_score_prints_what_the_library_says(capsys, table, tmp_path):
    rows = tmp_path / "rows.jsonl"
    words = ["score", *WORDS, "--model", "table", "--draws", "9", "--steps", "4", "--rows", str(rows)]
    said = [json.loads(line) for line in run(capsys, *words, "--json").splitlines()]
    exact = score(table, WORDS, recipe=Recipe("ancestral", steps=4), draws=9)
    assert [one["path_entropy"]["value"] for one in said] == [one.path_entropy.value for one in exact]
    assert [json.loads(line) for line in rows.read_text().splitlines()] == said
    assert main(words) == 2
    assert "is not empty" in capsys.readouterr().err  # nothing that was measured is lost
    shown = run(capsys, *words[:-2])
    assert f"{sum(one.evaluations for one in exact)} evaluations" in shown
    marked = min(exact, key=lambda one: one.path_entropy.value).text
    assert any(line.split()[:2] == ["▶", marked] for line in shown.splitlines())


def test_theory_writes_rows_a_summary_and_a_figure(capsys, tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(WORDS))
    base = ["theory", str(tmp_path / "lines.txt"), "--model", "table", "--steps", "3", "-o", str(tmp_path / "out")]
    shown = run(capsys, *base, "--draws", "4", "--data-entropy", "6")
    made = json.loads((tmp_path / "out/theory.json").read_text())
    kept = [json.loads(line) for line in (tmp_path / "out/rows.jsonl").read_text().splitlines()]
    assert len(made["bins"]) == 4 and made["texts"] == 5 and made["divergence"]["kl"]["n"] == 5
    assert made["ends"]["full"]["value"] == pytest.approx(
        sum(row["entropy"] for row in kept if row["kind"] == "state" and row["masked"] == 6)
        / sum(row["kind"] == "state" and row["masked"] == 6 for row in kept)
    )
    assert (tmp_path / "out/theory.svg").read_text().count("<polyline") == 8
    assert "KL of the paths" in shown and f"{made['evaluations']} evaluations" in shown
    base[-1] = str(tmp_path / "other")
    assert json.loads(run(capsys, *base, "--draws", "4", "--json"))["divergence"]["kl"] is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("score SENATE --model table", "'S' is not a character of this model"),
        ("score ate --model table --sampler p2", "masks text again"),
        ("score ate --model table --draws 0", "draws is 0"),
        ("score ate --model table --guidance 1", "guidance has no effect where nothing is given"),
        ("score ate --model table --temperature 1", "unknown option '--temperature'"),
        ("score ate --model table --rows none/rows.jsonl", "cannot write 'none/rows.jsonl'"),
        ("score empty.txt --model table", "there is no text in 'empty.txt'"),
        ("score bad.jsonl --model table", "bad.jsonl:1 is not a JSON object with a text"),
        ("score odd.jsonl --model table", "odd.jsonl:1 has -1 bits"),
        ("theory even.jsonl --model table --data-entropy 1 -o out", "the texts have bits of their own"),
        ("calibrate stop two.txt --documents -o out", "--documents has no effect on calibrate stop"),
        ("theory none.txt --model table -o out", "there is no file 'none.txt'"),
        ("theory one.txt --model table -o out", "has 1 text: give at least 2"),
        ("theory two.txt --model table --limit 1 -o out", "limit is"),
        ("theory two.txt --model table --sampler confidence -o out", "the theory is about random order"),
        ("theory two.txt --model table -o one.txt/out", "cannot write to 'one.txt/out'"),
        ("theory pairs.jsonl --model table --background text -o out", "the background 'text' has 4096 tokens"),
        ("theory two.txt --model table --background text -o out", "the background 'text' has 4096 tokens, table has 6"),
    ],
)
def test_failures_are_one_line(capsys, tmp_path, monkeypatch, line, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "one.txt").write_text("senate\n")
    (tmp_path / "two.txt").write_text("senate\ntester\n")
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "s", "text": "t"}\n' * 2)
    (tmp_path / "odd.jsonl").write_text('{"text": "tea", "bits": -1}\n')
    (tmp_path / "even.jsonl").write_text('{"text": "tea", "bits": 1}\n' * 2)
    (tmp_path / "bad.jsonl").write_text('{"prompt": "s"}\n')
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and expected in err
