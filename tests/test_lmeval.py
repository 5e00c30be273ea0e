"""lm-evaluation-harness, unmodified, really runs tasks through unmask; `make test-lmeval` has what it needs."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_CACHE", tempfile.mkdtemp(prefix="unmask-lmeval-"))
pytest.importorskip("lm_eval", reason="lm-eval is not installed: make test-lmeval")

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model, model_registry
from lm_eval.tasks import TaskManager

from unmask import Recipe, decode, load
from unmask.cli import main
from unmask.errors import InputError, SettingError
from unmask.evaluate.lm_eval.model import Unmask
from unmask.models.made.fabricate import fabricate

COMMAND = Path(sys.executable).parent / "unmask"
WORDS = [
    {"begin": "sen", "end": "ate", "choices": ["ate", "est", "ner"], "gold": 0},
    {"begin": "tar", "end": "tan", "choices": ["ten", "tan", "ses"], "gold": 1},
    {"begin": "str", "end": "eet", "choices": ["ess", "ant", "eet"], "gold": 2},
    {"begin": "eas", "end": "ter", "choices": ["ter", "set", "nat"], "gold": 1},  # gold is not the likeliest
]
HEAD = """\
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{begin}}}}"
"""
WORDS_TASK = """\
task: words
output_type: generate_until
doc_to_target: "{{end}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 3}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
ENDS_TASK = """\
task: ends
output_type: multiple_choice
target_delimiter: ""
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
ROLL_TASK = """\
task: roll
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{begin}}{{end}}"
metric_list: [{metric: bits_per_byte}]
"""


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """Three task files and their data; no connection can be made."""

    def refuse(*_: object) -> None:
        raise AssertionError("the network is not needed")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    data = tmp_path / "words.jsonl"
    data.write_text("".join(json.dumps(word) + "\n" for word in WORDS))
    for name, text in {"words": WORDS_TASK, "ends": ENDS_TASK, "roll": ROLL_TASK}.items():
        head = HEAD.format(data=data)
        head = head.replace('doc_to_text: "{{begin}}"\n', "") if name == "roll" else head
        (tmp_path / f"{name}.yaml").write_text(head + text)
    return tmp_path


def evaluate(folder, names, model_args, **more):
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return simple_evaluate(
        model="unmask", model_args=model_args, tasks=names, task_manager=manager, bootstrap_iters=0, **more
    )


def texts(model, contexts, **kwargs):
    asked = [Instance("generate_until", {}, (c, dict(kwargs)), 0, ("t", n, 1)) for n, c in enumerate(contexts)]
    return model.generate_until(asked, disable_tqdm=True)


def bounds(model, pairs):
    asked = [Instance("loglikelihood", {}, pair, 0, ("t", n, 1)) for n, pair in enumerate(pairs)]
    return model.loglikelihood(asked, disable_tqdm=True)


@pytest.fixture
def said(caplog):
    """What is logged; the harness's own logger hands nothing on once its command line has run."""
    logger = logging.getLogger("lm_eval.unmask")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


# --- whole tasks -----------------------------------------------------------------------------------------------------


def test_tasks_run_and_the_numbers_are_right(tasks):
    rows = tasks / "rows.jsonl"
    results = evaluate(tasks, ["words", "ends", "roll"], f"pretrained=table,rows={rows}", batch_size=2)
    table = load("table")
    decoded = [decode(table, word["begin"], recipe=Recipe(length=3)).text for word in WORDS]
    right = sum(text == word["end"] for text, word in zip(decoded, WORDS, strict=True))
    assert results["results"]["words"]["exact_match,none"] == right / 4
    exact = {w: table.log_probability(table.tokenizer.encode(w)) for d in WORDS for w in _whole(d)}
    best = [max(d["choices"], key=lambda end, d=d: exact[d["begin"] + end]) for d in WORDS]
    likeliest = sum(d["choices"][d["gold"]] == b for d, b in zip(WORDS, best, strict=True))
    assert results["results"]["ends"]["acc,none"] == likeliest / 4 == 0.75
    bits = -sum(exact[d["begin"] + d["end"]] for d in WORDS) / 24 / 0.6931471805599453
    assert results["results"]["roll"]["bits_per_byte,none"] == pytest.approx(bits)
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [line["kind"] for line in lines].count("loglikelihood") == 12 and len(lines) == 20
    told = results["config"]["unmask"]
    for kind, each in {"generate_until": 3, "loglikelihood": 7 + 3, "loglikelihood_rolling": 63}.items():
        mine = [line for line in lines if line["kind"] == kind]
        assert told[kind]["evaluations"] == sum(line["evaluations"] for line in mine) == each * len(mine)
        assert told[kind]["path_entropy"] == pytest.approx(sum(line["path_entropy"] for line in mine) / len(mine))


def _whole(doc):
    return [doc["begin"] + end for end in {*doc["choices"], doc["end"]}]


def test_a_search_runs_behind_it_and_its_rows_can_be_repeated(tasks):
    rows = tasks / "rows.jsonl"
    args = f"pretrained=table,sampler=uniform,temperature=1,search=smc,particles=5,every=1,seed=3,rows={rows}"
    results = evaluate(tasks, ["words"], args, batch_size=3)
    told = {int(s["doc_id"]): s["resps"][0][0] for s in results["samples"]["words"]}
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        recipe = Recipe.from_dict({**row["recipe"], "seed": row["seed"]})
        again = decode(load("table"), WORDS[row["doc_id"]]["begin"], recipe=recipe)
        assert again.text == row["text"] == told[row["doc_id"]]
        assert (again.path_entropy, again.evaluations) == (row["path_entropy"], row["evaluations"])
        assert row["evaluations"] == 3 * 5


def test_the_harness_keeps_what_it_has_asked(tasks):
    for round_number in (1, 2):
        rows = tasks / f"rows{round_number}.jsonl"
        args = f"pretrained=table,rows={rows}"
        evaluate(tasks, ["words", "ends"], args, use_cache=str(tasks / "cache"))
        assert len(rows.read_text().splitlines()) == (16 if round_number == 1 else 0)


def test_a_chat_template_is_applied(tasks):
    fabricate("llada", tasks / "tiny")
    model = Unmask(pretrained=str(tasks / "tiny"), device="cpu")
    turns = [{"role": "user", "content": "How many?"}]
    whole = model.model.tokenizer.chat(turns)
    assert model.apply_chat_template(turns) == whole
    begun = [*turns, {"role": "assistant", "content": "There are"}]
    assert model.apply_chat_template(begun, add_generation_prompt=False) == f"{whole}There are"
    assert model.chat_template(True) == model.model.tokenizer.template
    results = evaluate(tasks, ["words"], f"pretrained={tasks / 'tiny'},steps=2", apply_chat_template=True, batch_size=4)
    asked = results["samples"]["words"][0]["arguments"][0][0]
    assert asked == model.apply_chat_template([{"role": "user", "content": "sen"}])
    with pytest.raises(InputError, match="random has no chat template"):
        Unmask(pretrained="random", device="cpu").apply_chat_template(turns)


# --- texts -----------------------------------------------------------------------------------------------------------

DRAWN = {"pretrained": "random", "device": "cpu", "dtype": "float64", "temperature": 1, "sampler": "uniform"}


@pytest.mark.parametrize("search", [{}, {"search": "smc", "particles": 3, "every": 2}])
def test_texts_do_not_depend_on_the_batch(search):
    contexts = ["once upon", "a", "", "the longest of them all", "b"]
    alone = texts(Unmask(**DRAWN, **search), contexts, max_gen_toks=6)
    assert len(set(alone)) == 5
    for size in (2, 16):
        assert texts(Unmask(**DRAWN, **search, batch_size=size), contexts, max_gen_toks=6) == alone
    assert texts(Unmask(**DRAWN, **search, batch_size=2), contexts[:3], max_gen_toks=6) == alone[:3]
    assert texts(Unmask(**DRAWN, **search, seed=1), contexts, max_gen_toks=6) != alone


def test_repeats_are_drawn_anew():
    model = Unmask(**DRAWN, batch_size=4)
    request = Instance("generate_until", {}, ("once", {"max_gen_toks": 8}), 0, ("t", 0, 3))
    assert len(set(model.generate_until([request] * 3, disable_tqdm=True))) == 3


def test_texts_are_cut_at_stop_strings():
    model = Unmask(**DRAWN)
    (whole,) = texts(model, ["once upon"], max_gen_toks=20)
    stop = whole[9:11]
    assert texts(model, ["once upon"], max_gen_toks=20, until=[stop, whole[12:15]]) == [whole[: whole.index(stop)]]


def test_votes_are_counted_after_the_cut():
    model = Unmask(**DRAWN, search="vote", particles=4)
    (text,) = texts(model, ["once upon"], max_gen_toks=3, until=list("abcdefghijklmnopqrstuvwxyz .,0123456789"))
    assert text == ""  # all particles agree on it


def test_a_long_prompt_is_cut_from_the_left(said):
    model = Unmask(**DRAWN, max_length=16)
    prompt = "the quick brown fox jumps"
    assert texts(model, [prompt], max_gen_toks=6) == texts(Unmask(**DRAWN), [prompt[-10:]], max_gen_toks=6)
    assert "1 prompt is cut from the left, by up to 15 tokens: random takes 16 tokens in all" in said.text
    texts(model, ["a"], max_gen_toks=1000)
    assert "8 are generated, half of the context of 16" in said.text


def test_any_text_may_be_asked():
    model = Unmask(pretrained="text", device="cpu", length=4, steps=2, batch_size=4)
    asked = ["", "Zürich → 東京 🎈", "\n\n", " "]
    assert len(texts(model, asked)) == 4
    values = bounds(Unmask(pretrained="text", device="cpu", mc_num=4), [(t, " Straße 🎈") for t in asked])
    assert all(value < 0 for value, _ in values)


def test_guidance_is_left_out_where_nothing_is_given():
    args = {"pretrained": "table", "device": "cpu", "cfg": 1}
    assert len(texts(Unmask(**args), ["", "sen"], max_gen_toks=3)) == 2
    plain, guided = (bounds(Unmask(**{**args, "cfg": cfg}), [("", "senate"), ("sen", "ate")]) for cfg in (0, 1))
    assert plain[0][0] == pytest.approx(guided[0][0]) and plain[1][0] != pytest.approx(guided[1][0])


# --- likelihoods -----------------------------------------------------------------------------------------------------


def test_likelihoods_are_those_of_the_table():
    table = load("table")
    model = Unmask(pretrained="table", device="cpu", batch_size=7)

    def exact(text: str) -> float:
        return table.log_probability(table.tokenizer.encode(text)) if text else 0.0

    pairs = [("", "senate"), ("sen", "ate"), ("s", "treet"), ("stre", "et"), ("sen", "")]
    for (context, end), (value, greedy) in zip(pairs, bounds(model, pairs), strict=True):
        assert value == pytest.approx(exact(context + end) - exact(context), abs=1e-12)
        recipe = Recipe(length=max(1, len(end)))
        assert greedy == (not end or decode(table, context, recipe=recipe).text == end)
    quick = Unmask(pretrained="table", device="cpu", is_check_greedy=False)
    assert bounds(quick, [("stre", "et")])[0][1] is False


@pytest.mark.parametrize("size", [5, 64])
def test_likelihoods_do_not_depend_on_the_batch(size):
    args = {"pretrained": "random", "device": "cpu", "dtype": "float64", "mc_num": 12}
    pairs = [("once", " upon a time"), ("", "there was a fox"), ("the fox", " a"), ("x", "y")]
    alone = bounds(Unmask(**args), pairs)
    together = bounds(Unmask(**args, batch_size=size), pairs)
    assert [value for value, _ in together] == pytest.approx([value for value, _ in alone], abs=1e-9)
    assert [flag for _, flag in together] == [flag for _, flag in alone]


def test_a_long_context_is_cut_from_the_left(said):
    args = {"pretrained": "random", "device": "cpu", "dtype": "float64", "mc_num": 8}
    context = "the quick brown fox jumps"
    cut = bounds(Unmask(**args, max_length=10), [(context, "over")])
    assert cut[0][0] == pytest.approx(bounds(Unmask(**args), [(context[-6:], "over")])[0][0])
    assert "1 context is cut from the left, by up to 19 tokens: random takes 10 tokens in all" in said.text


def test_rolling_goes_in_windows():
    args = {"pretrained": "random", "device": "cpu", "dtype": "float64", "mc_num": 3}
    request = Instance("loglikelihood_rolling", {}, ("abcdefghij",), 0, ("t", 0, 1))
    (value,) = Unmask(**args, max_length=4).loglikelihood_rolling([request], disable_tqdm=True)
    assert value < 0
    (whole,) = Unmask(**args).loglikelihood_rolling([request], disable_tqdm=True)
    assert value != pytest.approx(whole)
    empty = Instance("loglikelihood_rolling", {}, ("",), 0, ("t", 0, 1))
    assert Unmask(**args).loglikelihood_rolling([empty], disable_tqdm=True) == [0.0]


def test_blanks_belong_to_the_continuation_and_nothing_is_lost():
    model = Unmask(pretrained="text", device="cpu")
    words = model.model.tokenizer
    assert model._pair("Once upon ", "a time") == model._pair("Once upon", " a time")
    given, target = model._pair("Once up", "on")  # one token reaches over the border
    assert words.decode(given) == "Once up" and target


# --- workers ---------------------------------------------------------------------------------------------------------


def test_workers_of_ray_do_the_same(tmp_path):
    """All three kinds of requests by the harness; rows are equal field by field, in another order."""
    ray = pytest.importorskip("ray")
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(word) + "\n" for word in WORDS * 3))
    for name, text in {"words": WORDS_TASK, "ends": ENDS_TASK, "roll": ROLL_TASK}.items():
        head = HEAD.format(data=tmp_path / "words.jsonl")
        head = head.replace('doc_to_text: "{{begin}}"\n', "") if name == "roll" else head
        (tmp_path / f"{name}.yaml").write_text(head + text)
    found = []
    for name, more in {"one": "", "ray": ",ray=local,gpus=0,workers=2"}.items():
        args = f"pretrained=table,sampler=uniform,temperature=1,rows={tmp_path / name}{more}"
        results = evaluate(tmp_path, ["words", "ends", "roll"], args, batch_size=2, device="cpu")
        kept = sorted((tmp_path / name).read_text().splitlines())
        found.append((results["results"], kept))
        assert ("workers" in results["config"]["unmask"]) == (name == "ray")
    ray.shutdown()
    assert found[0] == found[1] and len(found[0][1]) == 12 * (1 + 3 + 1)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_bad_arguments_are_errors_with_a_way_out(monkeypatch):
    for args, says in {"pretrained=table,serach=smc": "did you mean 'search'", "": "pretrained is missing"}.items():
        with pytest.raises(SettingError, match=says):
            Unmask.create_from_arg_string(args, {"batch_size": 1, "device": None})
    assert Unmask.create_from_arg_string("pretrained=table,batch_size=9", {"batch_size": 1}).options.batch_size == 9
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="unmask runs in one process"):
        Unmask(pretrained="table")


# --- the command lines -----------------------------------------------------------------------------------------------


def test_the_name_is_known_and_no_other_is_lost():
    assert get_model("unmask") is Unmask
    assert {"hf", "dummy", "vllm"} <= set(model_registry)


def test_a_wrong_word_is_one_line(tasks, monkeypatch, capsys):
    monkeypatch.chdir(tasks)
    words = "lm-eval --model unmask --model_args pretrained=table --tasks wrods"
    assert main(words.split()) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("unmask: error: Tasks not found: wrods: ")


@pytest.mark.skipif(not COMMAND.exists(), reason="unmask is not installed")
def test_the_page_runs_as_printed(tmp_path):
    """Both commands: shell and Python blocks of docs/guide/lm-eval.md, in order."""
    page = (Path(__file__).parent.parent / "docs" / "guide" / "lm-eval.md").read_text()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for language, block in re.findall(r"^```(python|sh)\n(.*?)^```$", page, re.M | re.S):
        words = [sys.executable, "-c", block] if language == "python" else ["bash", "-ec", block]
        ran = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True)
        assert ran.returncode == 0, (block, ran.stderr[-2000:])
        if "endings.yaml" in block:
            printed = next(line for line in page.splitlines() if line.startswith("|endings|"))
            assert printed in ran.stdout
    wrong = "lm-eval --model unmask --model_args pretrained=table,serach=smc --tasks words.yaml"
    ran = subprocess.run([COMMAND, *wrong.split()], cwd=tmp_path, capture_output=True, text=True)
    last = ran.stderr.strip().splitlines()[-1]
    assert (ran.returncode, last) == (2, "unmask: error: unknown model_arg 'serach': did you mean 'search'?")
    assert "Traceback" not in ran.stderr
