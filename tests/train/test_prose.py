"""Models of prose: documents, their tokens, windows, the NELBO and bits per byte, and the commands."""

from __future__ import annotations

import gzip
import json
import lzma
import math
import shlex
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from unmask import Recipe, decode, load
from unmask.cli import main
from unmask.core.state import Vocab
from unmask.errors import InputError
from unmask.evaluate import rows as files
from unmask.models.laws import check
from unmask.models.tokenizers import Characters, FileTokenizer
from unmask.models.transformer import Transformer
from unmask.tasks.files import documents
from unmask.train import process
from unmask.train import prose as training
from unmask.train.initial import fresh
from unmask.train.log import LOG, PLOT
from unmask.train.prose import (
    CONFIG,
    DRAWS,
    END,
    MASK,
    TOKENS,
    Windows,
    bits_per_byte,
    log_loss,
    make_tokenizer,
    nelbo,
    pack,
    widths,
    windows,
)

TINY = '{"width": 16, "layers": 1, "heads": 2, "inner": 16}'
STRANGE = [
    "plain words",
    "naïve 😀 👩‍🚀 日本",
    "literal <|mask|> and <|endoftext|> in text",
    "tab\tand  blanks ",
    "\x00\x7f",
]


def prose(seed: int, count: int = 60) -> str:
    """Documents of made-up words."""
    dice = Random(seed)
    words = ["".join(dice.choices("etaoinshr", k=dice.randint(1, 6))) for _ in range(300)]
    return "\n\n".join(" ".join(dice.choices(words, k=40)) for _ in range(count)) + "\n"


def small(**other):
    return fresh({**CONFIG, "width": 8, "layers": 1, "heads": 2, "inner": 8, **other}, "cpu", 0)


# --- documents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".txt", ".txt.xz", ".txt.gz"])
def test_documents_have_blank_lines_between_them(suffix, tmp_path):
    content = "\n \none\nand more\n\n\n\t\ntwo\r\n\r\nthree 😀\n\nfour".encode()
    path = tmp_path / f"a{suffix}"
    path.write_bytes({".txt": bytes, ".txt.xz": lzma.compress, ".txt.gz": gzip.compress}[suffix](content))
    assert list(documents(str(path))) == ["one\nand more", "two", "three 😀", "four"]


def damaged() -> dict[str, tuple[bytes | None, str]]:
    """Files that hold no text: their names -> what is in them, and what is said."""
    packed = gzip.compress(prose(0).encode())
    return {
        "nowhere.txt": (None, "No such file"),
        "empty.txt": (b"", "there is no text in"),
        "blank.txt": (b"\n \n\t\n", "there is no text in"),
        "bytes.txt": (b"good\n\n\xff\xfe\n", "can't decode byte 0xff"),
        "short.xz": (lzma.compress(prose(0).encode())[:-40], "ended before"),
        "plain.xz": (b"this is no xz", "format"),
        "empty.xz": (b"", "ended before"),
        "short.gz": (packed[:-40], "ended before"),
        "plain.gz": (b"this is no gz", "Not a gzipped file"),
        "wrong.gz": (packed[:200] + b"\xff" * 20 + packed[220:], "cannot read the text"),
    }


@pytest.mark.parametrize("name", damaged())
@pytest.mark.parametrize("role", ["corpus", "heldout", "eval"])
def test_damaged_files_are_one_line(name, role, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content, said = damaged()[name]
    if content is not None:
        Path(name).write_bytes(content)
    Path("good.txt").write_text(prose(1))
    if role == "eval":
        given = ["eval", "text", "--data", name]
    else:
        files = {"corpus": "good.txt", "heldout": "good.txt", role: name}
        given = ["train", "prose", "made", "--steps", "1", "--corpus", files["corpus"], "--heldout", files["heldout"]]
    assert main(given) == 2
    err = capsys.readouterr().err
    assert said in err and repr(name) in err and err.count("\n") == 1
    assert not Path("made").exists()


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """The tokenizer of a tiny corpus."""
    path = tmp_path_factory.mktemp("corpus") / "a.txt"
    path.write_text(prose(0))
    return make_tokenizer([str(path)], 8192)


def test_a_tiny_corpus_makes_a_small_tokenizer(words):
    assert 258 < words.get_vocab_size() < 2000
    assert (words.token_to_id("<|endoftext|>"), words.token_to_id("<|mask|>")) == (END, MASK)


def test_a_tokenizer_is_as_large_as_asked(tmp_path):
    (tmp_path / "a.txt").write_text(prose(0))
    assert make_tokenizer([str(tmp_path / "a.txt")], 300).get_vocab_size() == 300


@pytest.mark.parametrize("said", [*STRANGE, "".join(map(chr, range(1, 0x3000, 7))).replace("\n", "")])
def test_bytes_come_back(words, said, tmp_path):
    (tmp_path / "a.txt").write_bytes(said.encode())
    tokens = pack([str(tmp_path / "a.txt")], words)
    assert tokens[-1] == END and not {END, MASK} & set(tokens[:-1].tolist())
    read = next(documents(str(tmp_path / "a.txt")))
    assert FileTokenizer(words).decode(tokens.tolist()) == read
    assert widths(words)[tokens].sum() == len(read.encode())


def test_documents_are_packed_with_ends(words, tmp_path, monkeypatch):
    said = [f"document {n}" for n in range(7)]
    for name, some in (("a", said[:5]), ("b", said[5:])):
        (tmp_path / name).write_text("\n\n".join(some))
    tokens = pack([str(tmp_path / "a"), str(tmp_path / "b")], words)
    parts = "".join(words.id_to_token(token) for token in tokens.tolist()).split("<|endoftext|>")
    assert parts == [*(one.replace(" ", "Ġ") for one in said), ""]
    assert tokens.dtype == np.uint16


def test_many_documents_lose_none(words, tmp_path):
    (tmp_path / "a").write_text("\n\n".join(f"number {n}" for n in range(2500)))
    tokens = pack([str(tmp_path / "a")], words)
    found = FileTokenizer(words).decode(tokens[-40:].tolist())
    assert (tokens == END).sum() == 2500 and found.endswith("number 2499")


def test_windows_are_neighbours():
    tokens = np.arange(11, dtype=np.uint16)
    assert windows(tokens, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert windows(tokens[:4], 4).tolist() == [[0, 1, 2, 3]]
    with pytest.raises(InputError, match="the held-out text has 3 tokens"):
        windows(tokens[:3], 4)


def test_batches_are_windows_from_anywhere(tmp_path):
    path = str(tmp_path / TOKENS)
    np.save(path, np.arange(20, dtype=np.uint16))
    source = Windows(path, np.zeros((1, 16), dtype=np.int64), np.ones(20, dtype=np.int64), length=16)
    rows, open = source.batch(3, 200)
    assert rows.shape == (200, 16) and open.shape == (16,) and open.all()
    assert np.array_equal(rows, rows[:, :1] + np.arange(16))
    assert set(rows[:, 0].tolist()) == {0, 1, 2, 3, 4}  # the last begins where it just fits
    assert np.array_equal(rows, source.batch(3, 200)[0]) and not np.array_equal(rows, source.batch(4, 200)[0])
    np.save(tmp_path / "short.npy", np.arange(15, dtype=np.uint16))
    with pytest.raises(InputError, match="the corpus has 15 tokens"):
        Windows(str(tmp_path / "short.npy"), source.held_out, source.widths, length=16).batch(0, 1)


# --- what a model is worth -------------------------------------------------------------------------------------------


def test_the_loss_is_what_the_model_says():
    """As decoding sees it: scaled logits, and no mask among the answers."""
    network = small(logit_scale=0.3)
    dice = torch.Generator().manual_seed(0)
    clean = torch.randint(2, 8192, (2, 10), generator=dice)
    noised = clean.masked_fill(torch.rand(clean.shape, generator=dice) < 0.5, MASK)
    model = Transformer(network, Vocab(MASK), Characters("x"), absent=(MASK,))
    hidden, _ = network(noised, torch.arange(10)[None])
    expected = -model.head.logits(hidden.flatten(0, 1)).log_softmax(1).gather(1, clean.view(-1, 1)).view(2, 10)
    assert torch.allclose(log_loss(network, noised, clean), expected, atol=1e-4)


@pytest.mark.parametrize("vocabulary", [20, 8192])
def test_a_model_that_knows_nothing_loses_the_log_of_what_is_possible(vocabulary):
    network = small(vocabulary=vocabulary)
    network.embed.weight.zero_()
    clean = torch.tensor([[0, 2, 5, vocabulary - 1]])
    found = log_loss(network, torch.tensor([[0, MASK, 5, MASK]]), clean)
    assert torch.allclose(found, torch.tensor(math.log(vocabulary - 1)))


def test_the_nelbo_of_a_model_that_knows_nothing():
    """At time t a share t of the tokens is masked, and each of them counts 1 / t: the log for every token."""
    network = small(vocabulary=20)
    network.embed.weight.zero_()
    rows, told = np.random.default_rng(0).integers(2, 20, (2000, 64)), []
    found = nelbo(network, rows, on_batch=lambda begin, nats: told.append(begin + len(nats)))
    assert told[:2] == [32, 64] and told[-1] == 2000 and found.shape == (2000,)
    each = (np.arange(8000) + 0.5) / 8000
    error = np.sqrt(((1 - each) / each / 64).sum()) / 8000  # of the mean: a count of 64 t has variance 64 t (1 - t)
    assert error < 0.005
    assert found.mean() / 64 == pytest.approx(math.log(19), rel=4.9 * error)
    assert np.array_equal(found[:9], nelbo(network, rows)[:9])
    known = dict(enumerate([1.0] * 32 + found[32:40].tolist()))  # a batch that is known, and a part of one
    resumed = nelbo(network, rows[:2000], known=known)
    assert resumed[:32].tolist() == [1.0] * 32 and np.array_equal(resumed[32:], found[32:])
    assert not np.array_equal(found[:9], nelbo(network, rows, seed=1)[:9])


def test_the_masks_of_a_window_depend_on_its_number(monkeypatch):
    """Not on the windows before it: batches of another size, or some of them alone, have the same masks."""
    network, rows = small(vocabulary=20), np.random.default_rng(0).integers(2, 20, (70, 16))
    whole = nelbo(network, rows)
    changed = rows.copy()
    changed[:40] = 5
    assert np.array_equal(nelbo(network, changed)[40:], whole[40:])
    monkeypatch.setattr(training, "TOGETHER", 7)
    assert nelbo(network, rows) == pytest.approx(whole, rel=1e-6)
    known = {number: 1.0 for number in range(70) if number % 7}
    some = nelbo(network, rows, known=known)
    assert some[::7] == pytest.approx(whole[::7], rel=1e-6)
    some = nelbo(network, rows[[3, 64]], numbers=[3, 64], count=70)
    assert some == pytest.approx(whole[[3, 64]], rel=1e-6)
    one = process.chances(3, torch.tensor([4, 5]), 2, 16)
    assert torch.equal(one[1:], process.chances(3, torch.tensor([5]), 2, 16))
    assert not torch.equal(one, process.chances(3, torch.tensor([4, 5]), 1, 16))


def test_each_window_is_masked_in_every_part_of_time(monkeypatch):
    seen = []

    def watch(when, schedule, chance):
        seen.append(when)
        return chance < 0

    monkeypatch.setattr(training, "hidden", watch)
    assert nelbo(small(), np.full((40, 8), 5)).tolist() == [0.0] * 40
    each = torch.cat([torch.stack(seen[:DRAWS]), torch.stack(seen[DRAWS:])], 1)  # 32 windows, then 8
    assert torch.equal((each * DRAWS).long(), torch.arange(DRAWS)[:, None].expand(DRAWS, 40))
    assert torch.equal((each.flatten().sort().values * 160).long(), torch.arange(160))  # evenly, all together
    assert not torch.equal(each[0].argsort(), each[1].argsort())


def test_bits_per_byte():
    bits = math.log(2)
    assert bits_per_byte(bits * np.array([20.0, 40.0]), np.array([10, 20])) == pytest.approx((2.0, 2.0, 2.0))
    found = bits_per_byte(bits * np.array([10.0, 30.0]), np.array([10, 10]))
    assert found == pytest.approx((2.0, 2 - 1.96, 2 + 1.96))  # two windows of 1 and 3 bits a byte: an error of 1
    assert bits_per_byte(bits * np.array([30.0]), np.array([10])) == (pytest.approx(3.0), None, None)


def test_the_interval_holds_what_it_says():
    dice = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        sizes = dice.integers(500, 1500, 50)
        low, high = bits_per_byte(math.log(2) * sizes * dice.normal(2, 0.5, 50), sizes)[1:]
        held += low < 2 < high
    assert 0.9 < held / 400 < 0.98


def test_a_network_is_measured_on_held_out_windows(words):
    rows = np.random.default_rng(0).integers(2, 300, (3, 16))
    network, sizes = small(), widths(words)
    found = Windows("", rows, sizes).validate(network)
    middle, low, high = bits_per_byte(nelbo(network, rows), sizes[rows].sum(1))
    assert found == {"bits_per_byte": middle, "low": low, "high": high}
    assert set(Windows("", rows[:1], sizes).validate(network)) == {"bits_per_byte"}


# --- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two texts, and a model that was trained for two steps."""
    path = tmp_path_factory.mktemp("text")
    (path / "a.txt.xz").write_bytes(lzma.compress(prose(0).encode()))
    (path / "b.txt").write_text(prose(1))
    assert main(["train", "prose", str(path / "made"), "--steps", "2", *flags(path)]) == 0
    return path


def flags(path: Path) -> list[str]:
    given = ["--corpus", str(path / "a.txt.xz"), "--heldout", str(path / "b.txt")]
    return [*given, "--batch", "2", "--held", "2", "--log", "1", "--shape", TINY]


@pytest.fixture
def made(home, tmp_path, monkeypatch):
    """A copy of it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    return tmp_path


def events(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "made" / LOG).read_text().splitlines()]


def test_train_makes_a_model_that_writes_text(made, capsys):
    found = events(made)
    assert [event["event"] for event in found] == ["start", "step", "step", "validation"]
    assert found[0]["plan"]["weighting"] == "nelbo" and found[-1]["bits_per_byte"] > 1
    assert (made / "made" / PLOT).exists()
    model = load(made / "made")
    assert (model.limit, model.vocab.mask, model.vocab.eos) == (512, MASK, (END,))
    assert model.tokenizer.size < 1000 and model.network.shape.vocabulary == model.tokenizer.size
    assert [verdict for verdict in check(model) if verdict.held is False] == []
    result = decode(model, "the", recipe=Recipe(length=8, ban=(END,)))
    assert result.steps == 8 and MASK not in result.tokens
    assert main(["generate", "naïve 😀", "--model", "made", "--length", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == "naïve 😀"
    assert main(["generate", "--model", "made", "--canvas", "a [MASK*3] b"]) == 0


def test_train_goes_on_where_it_was(made, capsys):
    before = (made / "made" / TOKENS).stat().st_mtime_ns
    assert main(["train", "prose", "made", "--steps", "4", *flags(made)]) == 0
    found = events(made)
    assert [event["step"] for event in found if event["event"] == "start"] == [0, 2]
    assert [event["step"] for event in found if event["event"] == "step"] == [1, 2, 3, 4]
    assert (made / "made" / TOKENS).stat().st_mtime_ns == before  # packed once


def test_a_tokenizer_can_be_given(made, capsys):
    shutil.copy(made / "made/tokenizer.json", made / "mine.json")
    assert main(["train", "prose", "other", "--steps", "1", *flags(made), "--tokenizer", "mine.json"]) == 0
    assert (made / "other/tokenizer.json").read_text() == (made / "mine.json").read_text()


@pytest.mark.parametrize("weights", ["made/model.safetensors", "made", "./made/"])
@pytest.mark.parametrize("said", [["--tokenizer", "made/tokenizer.json"], []])
def test_trained_weights_can_begin_another(made, weights, said):
    """On another corpus too: they keep the tokens that they know."""
    given = [*flags(made), *said, "--weights", weights, "--rate", "0", "--corpus", "b.txt"]
    assert main(["train", "prose", "other", "--steps", "1", *given]) == 0
    one, two = load("made").network, load("other").network
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert Path("other/tokenizer.json").read_text() == Path("made/tokenizer.json").read_text()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("prose new --heldout b.txt", "prose needs text to train and to validate on"),
        ("prose new --corpus b.txt", "prose needs text to train and to validate on"),
        ("prose new --corpus b.txt --heldout b.txt --exclude b.txt", "--exclude has no effect on prose"),
        ("prose new --corpus b.txt --heldout few.txt", "the held-out text has 4 tokens"),
        ("prose new --corpus few.txt --heldout b.txt", "the corpus has "),
        ("prose new --corpus b.txt --heldout b.txt --tilt 1", "tilt has no effect on the NELBO"),
        ("prose new --corpus b.txt --heldout b.txt --tokenizer nowhere.json", "'nowhere.json' is not a tokenizer"),
        ("prose new --corpus b.txt --heldout b.txt --tokenizer b.txt", "'b.txt' is not a tokenizer"),
        ("prose new --corpus b.txt --heldout b.txt --tokenizer other.json", "is not a tokenizer of ours"),
        ("prose new --corpus b.txt --heldout b.txt --tokenizer gap.json", "is not a tokenizer of ours"),
        ("prose new --corpus b.txt --heldout b.txt --tokenizer large.json", "'large.json' has 8193 tokens"),
        ("prose new --corpus b.txt --heldout b.txt --weights sudoku", "is of another task: give another directory"),
        ("prose new --corpus b.txt --heldout b.txt --weights text", "is of another task: give another directory"),
        ("prose new --corpus b.txt --heldout b.txt --weights b.txt", "there is no 'tokenizer.json': give the --token"),
        (
            "prose new --corpus b.txt --heldout b.txt --weights b.txt --tokenizer made/tokenizer.json",
            "not a whole safetensors file",
        ),
        ("prose made --corpus b.txt --heldout b.txt", "has tokens of another corpus or tokenizer"),
        ("prose made --corpus a.txt.xz --heldout b.txt --tokenizer wider.json", "of another corpus or tokenizer"),
        ("prose made --corpus a.txt.xz --heldout b.txt --weights made/model.safetensors", "--weights has no effect"),
        ("prose new --corpus b.txt --heldout b.txt --shape '{\"tied\": false}'", "unknown size 'tied'"),
        ("countdown new --corpus b.txt", "--corpus has no effect on countdown"),
        ("sudoku new --heldout b.txt", "--heldout has no effect on sudoku"),
        ("sudoku new --tokenizer b.txt", "--tokenizer has no effect on sudoku"),
        ("sudoku new --exclude b.txt", "--exclude has no effect on sudoku"),
    ],
)
def test_bad_trainings_are_one_line(made, given, said, capsys):
    Path("few.txt").write_text("few")
    tokenizer = json.loads(Path("made/tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for name, size in (("wider", len(vocabulary) + 1), ("large", 8193)):
        vocabulary |= {f"x{number}x": number for number in range(len(vocabulary), size)}
        Path(f"{name}.json").write_text(json.dumps(tokenizer))
    vocabulary["x8192x"] = 9000
    Path("gap.json").write_text(json.dumps(tokenizer))
    tokenizer["added_tokens"][0]["content"] = tokenizer["added_tokens"][1]["content"] = "<|other|>"
    Path("other.json").write_text(json.dumps(tokenizer).replace("<|mask|>", "<|sign|>"))
    shape = [] if "--shape" in given or "--weights" in given else ["--shape", TINY]
    task, *rest = shlex.split(given)
    assert main(["train", task, *rest, "--steps", "3", "--batch", "2", *shape]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_eval(made, capsys):
    given = ["eval", "text", "--model", "made", "--data", "b.txt"]
    assert main([*given, "--limit", "2", "--json", "--rows", "rows.jsonl"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = files.read("rows.jsonl").kept
    assert (found["task"], found["n"], found["evaluations"]) == ("text", 2, 8)
    assert found["bytes"] == sum(row["bytes"] for row in rows) and [row["number"] for row in rows] == [0, 1]
    assert found["bits_per_byte"] == pytest.approx(sum(row["nats"] for row in rows) / found["bytes"] / math.log(2))
    assert found["low"] < found["bits_per_byte"] < found["high"]
    assert found["bits_per_byte"] == pytest.approx(events(made)[-1]["bits_per_byte"], rel=1e-2)  # as in training
    assert main([*given, "--limit", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["low"] is None
    assert main([*given, "--limit", "1"]) == 0
    assert "bits a byte · 1 window" in capsys.readouterr().out
    assert main([*given, "--limit", "3"]) == 0
    assert "–" in capsys.readouterr().out


STORY = (
    "Once upon a time, there was a little girl named Mia. She had a small red boat. Every day she went to the pond "
    "with her dad to play with it. One day, the wind was very strong, and it took the boat far away. Mia was sad and "
    "began to cry. A big duck saw her. The duck swam to the boat and pushed it back to the shore. "
    '"Thank you, duck!" said Mia. She gave the duck some bread. From that day on, they were good friends.'
)


def test_the_embedded_model_knows_stories(tmp_path, capsys):
    """The same words in any order cost far more than a story."""
    words = STORY.split()
    mixed = " ".join(Random(0).sample(words, len(words)))
    found = []
    for content in (STORY, mixed):
        (tmp_path / "a.txt").write_text(content)
        assert main(["eval", "text", "--data", str(tmp_path / "a.txt"), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["bits_per_byte"])
    assert found[0] < 1.5 and found[1] > 2 * found[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--data", "nowhere.txt"], "cannot read the text 'nowhere.txt'"),
        (["--data", "few.txt", "--limit", "0"], "limit is 0"),
        (["--data", "few.txt", "--model", "table"], "table was not made by `unmask train text` or `prose`"),
        (["--data", "few.txt", "--model", "sudoku"], "sudoku was not made by `unmask train text` or `prose`"),
        (["--data", "few.txt", "--temperature", "1"], "--temperature has no effect on text"),
        (["--data", "few.txt", "--recipe", "few.txt"], "--recipe has no effect on text"),
        (["--data", "few.txt", "--rows", "none/rows"], "cannot write 'none/rows'"),
    ],
)
def test_bad_measurements_are_one_line(given, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("few.txt").write_text("few words")
    assert main(["eval", "text", *given]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_some_batches_have_shorter_windows_with_as_many_tokens(tmp_path):
    np.save(tmp_path / "long.npy", np.arange(4000, dtype=np.uint16))
    source = Windows(str(tmp_path / "long.npy"), np.zeros((1, 64), dtype=np.int64), np.ones(4000, dtype=np.int64), 64)
    shapes = [source.batch(number, 4)[0].shape for number in range(200)]
    assert set(shapes) == {(4, 64), (32, 8)} and 10 < shapes.count((32, 8)) < 60
    rows, open = next(found for found in (source.batch(n, 4) for n in range(200)) if found[0].shape[1] == 8)
    assert (rows[:, 1:] - rows[:, :-1] == 1).all() and open.shape == (8,)
