"""What lm-eval hands over -> options, recipes, stop strings, seeds; no harness is needed for it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from unmask.decoding.recipe import Recipe
from unmask.decoding.settings import SETTINGS
from unmask.errors import InputError, SettingError
from unmask.evaluate.lm_eval.arguments import SETTING_NAMES, TextRequest, ask, options
from unmask.evaluate.lm_eval.origins import Origin, RequestRows, origins


def given(**model_args):
    return options({"pretrained": "text", **model_args})


# --- model_args ------------------------------------------------------------------------------------------------------


def test_every_setting_is_known_by_its_name_and_the_communitys():
    found = given(gen_length=64, cfg=1, remasking="random", num_particles=4, search="best-of-n", temperature=1)
    assert ask(found, {}, None).recipe == Recipe(
        length=64, guidance=1.0, sampler="uniform", particles=4, search="best-of-n", temperature=1.0
    )
    assert given(sampler="semi-ar", block_size=8).settings == {"sampler": "semi-ar", "block_length": 8}
    assert given(sampler="dream", alg="entropy", alg_temp=0.1).settings["rule"] == "entropy"
    assert set(SETTING_NAMES.values()) <= set(SETTINGS)


def test_lists_have_semicolons():
    assert given(ban="eos;5").settings["ban"] == ("eos", "5")
    assert given(ban="[3;5]").settings["ban"] == ("3", "5")
    assert ask(given(ban="[3;5]"), {}, None).recipe.ban == (3, 5)
    assert ask(given(ban=[3, 5]), {}, None).recipe.ban == (3, 5)  # --model_args as JSON


def test_a_shipped_recipe_or_a_file_is_the_base(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('sampler = "entropy"\nmax_new_tokens = 16\ntemperature = 0.5\n')
    found = ask(given(recipe=str(file), temperature=1), {}, None).recipe
    assert found == Recipe(sampler="entropy", length=16, temperature=1.0)
    assert ask(given(recipe="open-dcoder-p2-smc"), {}, None).recipe.search == "smc"


def test_what_lm_eval_makes_of_words_is_put_right():
    found = given(revision=1234567, dtype="auto", batch_size="8", trust_remote_code=True, max_length=None)
    assert (found.revision, found.dtype, found.batch_size, found.max_length) == ("1234567", None, 8, None)
    assert options({"model_path": "x"}).pretrained == "x"


@pytest.mark.parametrize(
    ("model_args", "says"),
    [
        ({"serach": "smc"}, "unknown model_arg 'serach': did you mean 'search'?"),
        ({"pretrianed": "text"}, "did you mean 'pretrained'?"),
        ({"gen_length": 8, "length": 8}, "length is given twice"),
        ({"batch_size": "auto"}, "batch_size is auto"),
        ({"batch_size": 0}, "batch_size is 0: it must be at least 1"),
        ({"mc_num": 1.5}, "mc_num is 1.5: give a whole number"),
        ({"is_check_greedy": "maybe"}, "is_check_greedy is 'maybe': give true or false"),
        ({"particles": 4}, "particles has no effect on sampler confidence with search vanilla"),
        ({"sampler": "konfidence"}, "did you mean 'confidence'?"),
        ({"recipe": "open-dcoder-p2-smk"}, "did you mean 'open-dcoder-p2-smc'?"),
        ({"recipe": "missing.toml"}, "cannot read the recipe 'missing.toml'"),
        ({"length": "many"}, "length is 'many': give a whole number"),
    ],
)
def test_bad_model_args_say_the_way_out(model_args, says):
    with pytest.raises(SettingError, match=says.replace("?", r"\?")):
        given(**model_args)


def test_workers_need_ray_and_no_device():
    given = options({"pretrained": "text", "ray": "auto", "workers": 4, "gpus": 0.5})
    assert (given.ray, given.workers, given.gpus, given.cpus) == ("auto", "4", 0.5, 1)
    with pytest.raises(SettingError, match="gpus has no effect without ray: add ray=local"):
        options({"pretrained": "text", "gpus": 0})
    with pytest.raises(SettingError, match="device has no effect with ray: gpus says where workers run"):
        options({"pretrained": "text", "ray": "local", "device": "cuda"})


def test_a_model_must_be_named():
    with pytest.raises(SettingError, match="pretrained is missing"):
        options({})


def test_the_long_example_of_the_page_is_a_recipe():
    page = (Path(__file__).parent.parent / "docs" / "guide" / "lm-eval.md").read_text()
    words = re.search(r"--model_args (pretrained=GSAI-ML\S+)", page)
    assert words is not None
    pairs = dict(part.split("=") for part in words[1].split(","))
    typed = {name: float(v) if "." in v else int(v) if v.isdecimal() else v for name, v in pairs.items()}
    assert ask(options(typed), {}, 4096).recipe.search == "auto"


# --- generation_kwargs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "temperature"),
    [
        ({}, 0),
        ({"do_sample": False, "temperature": 0.7}, 0),
        ({"do_sample": True}, 1),
        ({"do_sample": True, "temperature": 0.7}, 0.7),
        ({"temperature": 0.7}, 0.7),
        ({"do_sample": True, "temperature": 0.0}, 0),
    ],
)
def test_the_task_draws_where_model_args_are_silent(task, temperature):
    found = ask(given(), task, None)
    assert found.recipe.temperature == temperature
    assert not found.notes


def test_filters_follow_the_temperature():
    task = {"do_sample": True, "temperature": 0.7, "top_p": 0.95, "top_k": 0}
    assert ask(given(), task, None).recipe == Recipe(length=256, temperature=0.7, top_p=0.95)
    assert ask(given(), {**task, "do_sample": False}, None).recipe == Recipe(length=256)


def test_model_args_hold_and_say_so():
    found = ask(given(temperature=1), {"do_sample": False, "temperature": 0.0}, None)
    assert found.recipe.temperature == 1
    assert found.notes == ("the task asks for temperature=0; model_args hold: temperature=1",)
    assert not ask(given(temperature=0), {"do_sample": False}, None).notes


@pytest.mark.parametrize(
    ("task", "length"),
    [({}, 256), ({"max_gen_toks": 32}, 32), ({"max_new_tokens": 16}, 16), ({"max_tokens": 9, "max_gen_toks": 3}, 3)],
)
def test_the_length_is_the_tasks(task, length):
    assert ask(given(), task, None).recipe.length == length
    assert ask(given(max_new_tokens=8), task, None).recipe.length == 8


def test_the_length_leaves_half_of_the_context_to_the_prompt():
    found = ask(given(), {"max_gen_toks": 2048}, 512)
    assert found.recipe.length == 256
    assert "256 are generated, half of the context of 512" in found.notes[0]
    assert ask(given(length=500), {}, 512).recipe.length == 500
    with pytest.raises(SettingError, match="length is 513: text has room for 512"):
        ask(given(length=513), {}, 512)


def test_settings_may_come_from_gen_kwargs():
    assert ask(given(steps=4), {"steps": 9, "sampler": "entropy"}, None).recipe == Recipe(
        sampler="entropy", steps=4, length=256
    )


def test_what_means_nothing_here_is_said_or_refused():
    assert not ask(given(), {"num_beams": 1, "repetition_penalty": 1.0}, None).notes
    assert "num_beams=10" in ask(given(), {"num_beams": 10}, None).notes[0]
    with pytest.raises(SettingError, match="did you mean 'temperature'"):
        ask(given(), {"temprature": 1}, None)
    with pytest.raises(SettingError, match="the task asks for 'many' tokens"):
        ask(given(), {"max_gen_toks": "many"}, None)


@pytest.mark.parametrize(
    ("until", "text", "left"),
    [
        (["\n", "Question:"], "7 Question: x\n", "7 "),
        ("b", "aabb", "aa"),
        ([], "all", "all"),
        ([""], "all", "all"),
        (None, "all", "all"),
        (["ü→"], "grün ü→ blau", "grün "),
        (["x"], "xyz", ""),
    ],
)
def test_texts_end_before_the_first_stop_string(until, text, left):
    assert ask(given(), {"until": until}, None).cut(text) == left


def test_equal_asks_are_one_group():
    one, two = (ask(given(), {"until": ["\n"], "num_beams": beams}, None) for beams in (1, 2))
    assert one == two and len({one, two}) == 1 and isinstance(one, TextRequest)


# --- rows and seeds --------------------------------------------------------------------------------------------------


def request(task, doc, idx=0):
    return SimpleNamespace(task_name=task, doc_id=doc, idx=idx)


def test_a_seed_belongs_to_its_request():
    asked = [request("a", 0), request("a", 1), request("b", 0), request("a", 0), request("a", 0, 1)]
    keys = [origin.key(0) for origin in origins(asked)]
    assert len(set(keys)) == 5  # the fourth is the first one's second turn
    assert [origin.key(0) for origin in origins(asked[1:])][:2] == keys[1:3]  # whatever else is asked
    assert keys[0] + 5 == origins(asked)[0].key(5)
    alike = [origin.key(0, alike=True) for origin in origins(asked)]
    assert alike[0] == alike[3] == alike[4] and len(set(alike)) == 3


def test_requests_made_by_hand_have_their_place():
    assert origins([request(None, None), request(None, None)])[1] == Origin(None, 1, 0, 0)


def test_rows_are_written_at_once_and_summed(tmp_path):
    rows = RequestRows(tmp_path / "rows.jsonl")
    rows.keep(Origin("a", 0, 0, 0), "generate_until", {"text": "ü", "path_entropy": 1.0, "evaluations": 3})
    rows.keep(Origin("a", 1, 0, 0), "generate_until", {"text": "", "path_entropy": float("nan"), "evaluations": 4})
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [line["path_entropy"] for line in lines] == [1.0, None]
    assert lines[0]["text"] == "ü" and lines[1]["doc_id"] == 1
    assert rows.summary() == {"generate_until": {"requests": 2, "evaluations": 7, "path_entropy": 1.0}}
    RequestRows(tmp_path / "rows.jsonl").keep(
        Origin("b", 0, 0, 0), "loglikelihood", {"path_entropy": float("nan"), "evaluations": 0, "value": -math.inf}
    )
    *_, third = lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert len(lines) == 3 and json.loads(third)["value"] is None  # a second run loses nothing
    with pytest.raises(InputError, match=r"cannot write .*rows"):
        RequestRows(tmp_path / "no" / "rows.jsonl")
