"""`unmask bench speed`: the command as it is typed, its figures against each other, and the parts that it times."""

from __future__ import annotations

import json
import re
import time
from xml.etree import ElementTree

import pytest
import torch

from unmask import Recipe, load
from unmask.cli import main
from unmask.decoding.decode import prepare
from unmask.decoding.prompt import from_prompt
from unmask.evaluate.speed import baselines, clock, measure
from unmask.models import memory
from unmask.models.families.blueprint import Config
from unmask.models.families.mdlm import MDLM
from unmask.models.made import random_sizes
from unmask.models.made.random_sizes import SIZES, Size, make

SVG = "{http://www.w3.org/2000/svg}"
QUICK = ["--repeat", "1", "--no-compile", "--json"]
RECIPE = Recipe(sampler="uniform", temperature=1.0, search="smc", particles=3, steps=4, length=12)
KEYS = """
    model device particles length prompt steps floor_ms backbone_ms head_ms public_eager_ms public_compiled_ms step_ms
    ratio_to_floor times_faster transient_mib public_transient_mib tokens_per_second calls evaluations start_seconds
    versions date repeats recipe dtype backbone network compile head_rows notes
""".split()


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setitem(clock.BLOCK, "cpu", 0.01)


@pytest.fixture
def run(capsys):
    """Run the command, which must work; its standard output."""

    def runs(*argv: str) -> str:
        status = main(["bench", "speed", *argv])
        out, err = capsys.readouterr()
        assert (status, err) == (0, "")
        return out

    return runs


@pytest.fixture
def fails(capsys):
    """Run the command, which must fail; its one line of standard error."""

    def fail(*argv: str) -> str:
        assert main(["bench", *argv]) == 2
        out, err = capsys.readouterr()
        assert out == "" and re.fullmatch(r"unmask: error: [^\n]+\n", err)
        return err

    return fail


def consistent(found):
    """The figures of one measurement fit together."""
    assert not [key for key in KEYS if key not in found]
    assert found["floor_ms"] == pytest.approx(found["backbone_ms"] + found["head_ms"])
    assert found["ratio_to_floor"] == pytest.approx(found["step_ms"] / found["floor_ms"])
    public = found["public_compiled_ms"] or found["public_eager_ms"]
    assert found["times_faster"] == pytest.approx(public / found["step_ms"])
    assert found["backbone_ms"] == min(found["backbones_ms"].values()) == found["backbones_ms"][found["backbone"]]
    assert found["floor_ms"] > 0 and found["public_eager_ms"] > 0
    assert found["evaluations"] == found["calls"] * found["particles"]
    assert found["tokens_per_second"] == pytest.approx(found["length"] / found["decode_seconds"])
    timed = found["step_ms"] * (found["steps"] - 2) / 1000
    assert timed < found["decode_seconds"] and found["start_seconds"] > 0
    assert found["recipe"]["length"] == found["length"]


# --- the command -----------------------------------------------------------------------------------------------------


def test_a_size_with_sweeps_and_a_plot(run, tmp_path):
    sweeps = ["--sweep", "particles=4,1,2", "--sweep", "length=8,16", "--sweep", "steps=4,8"]
    plot = tmp_path / "cost.svg"
    flags = ["--size", "tiny", "--prompt", "8", "--length", "16", "--particles", "4", "--steps", "4"]
    found = json.loads(run(*flags, *sweeps, "--plot", str(plot), "--against", "best-of-n", *QUICK))
    consistent(found)
    assert (found["model"], found["particles"], found["prompt"], found["steps"]) == ("tiny", 4, 8, 4)
    assert (found["calls"], found["evaluations"], found["dtype"], found["network"]) == (4, 16, "float32", "eager")
    assert (found["compile"], found["public_compiled_ms"], found["transient_mib"]) == (False, None, None)
    assert found["head_rows"] == 4 * (8 + 4) / 2  # the first steps, of 16 and 12, are not timed
    assert found["ratio_to_against"] == pytest.approx(found["step_ms"] / found["against_ms"])
    assert found["recipe"]["sampler"] == "uniform" and found["recipe"]["search"] == "smc"
    assert {name: [row[name] for row in rows] for name, rows in found["sweep"].items()} == {
        "particles": [1, 2, 4],
        "length": [8, 16],
        "steps": [4, 8],
    }
    for row in [row for rows in found["sweep"].values() for row in rows]:
        consistent(row)
    assert set(found["growth"]) == set(found["sweep"])
    root = ElementTree.parse(plot).getroot()
    texts = [text.text.strip() for text in root.iter(f"{SVG}text")]
    assert {"milliseconds a step, by particles", "milliseconds a step, by positions", "seconds a decode, by steps"} <= {
        *texts
    }
    assert {"unmask", "floor", "public, eager", "linear", "quadratic"} <= {*texts}
    for line in root.iter(f"{SVG}polyline"):
        points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        assert all(0 <= x <= float(root.get("width")) and 0 <= y <= float(root.get("height")) for x, y in points)


def test_the_embedded_sudoku(run):
    found = json.loads(run("--model", "sudoku", "--particles", "2", "--steps", "3", *QUICK))
    consistent(found)
    assert (found["model"], found["length"], found["prompt"], found["particles"]) == ("sudoku", 81, 0, 2)
    assert found["weights_mib"] == pytest.approx(24, abs=1) and found["device"].endswith("threads")


def test_the_table(run):
    out = run(
        "--size", "tiny", "--steps", "3", "--particles", "2", "--repeat", "1", "--no-compile", "--sweep", "steps=3,4"
    )
    for part in ("unmask, smc", "floor", "network, eager", "head at ", "public style, network eager", "× as fast"):
        assert part in out
    assert "tiny (float32) · 2 particles · 8 + 32 positions · 3 steps · 3 calls · 6 evaluations" in out
    assert f"torch {torch.__version__}" in out and "cost grows with steps to the power " in out


def test_other_searches_and_recipes(run, tmp_path):
    (tmp_path / "r.toml").write_text('sampler = "confidence"\nsteps = 3\nlength = 6\n')
    found = json.loads(run("--size", "tiny", "--recipe", str(tmp_path / "r.toml"), *QUICK))
    assert (found["particles"], found["recipe"]["search"]) == (1, "vanilla") and "temperature" not in found["recipe"]
    found = json.loads(run("--size", "tiny", "--search", "vanilla", "--length", "6", "--steps", "3", *QUICK))
    assert (found["particles"], found["recipe"]["temperature"]) == (1, 1.0)


def test_a_model_without_a_network(run):
    found = json.loads(run("--model", "table", "--length", "4", "--particles", "2", "--repeat", "1", "--json"))
    assert (found["head_ms"], found["dtype"], found["public_compiled_ms"]) == (0, None, None)
    assert found["notes"] == ["not compiled: table is not a network of unmask"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["tempo"], "unknown benchmark 'tempo': choose from speed"),
        (["speed", "--steps", "0"], "steps is 0: it must be at least 1"),
        (["speed", "--size", "tiny", "--steps", "2"], "steps is 2: take at least 3"),
        (["speed", "--size", "tiny", "--length", "1"], "the decode is too short: take at least 3 steps"),
        (["speed", "--size", "tinny"], "unknown size 'tinny': did you mean 'tiny'?"),
        (["speed", "--size", "tiny", "--model", "sudoku"], "--size and --model exclude each other"),
        (["speed", "--size", "tiny", "--prompt", "9000"], "shorten the prompt or the length"),
        (["speed", "--size", "tiny", "--prompt", "-1"], "prompt is -1: it must be at least 0"),
        (["speed", "--size", "tiny", "--repeat", "0"], "repeat is 0: it must be at least 1"),
        (["speed", "--size", "tiny", "--dtype", "float31"], "unknown dtype 'float31'"),
        (["speed", "--size", "tiny", "--mask-id", "3"], "--mask-id has no effect on --size: leave it out"),
        (["speed", "--size", "tiny", "--device", "cuda:99"], "cannot load tiny on cuda:99"),
        (["speed", "--size", "tiny", "--against", "smd"], "unknown search 'smd': did you mean 'smc'?"),
        (["speed", "--size", "tiny", "--sweep", "layers=1,2"], "unknown sweep 'layers'"),
        (["speed", "--sweep", "particles"], "'particles' has no values: give at least two; write it like --sweep part"),
        (
            ["speed", "--sweep", "particles=1"],
            "has only the value 1: give at least two; write it like --sweep particles",
        ),
        (["speed", "--sweep", "particles=4, 4"], "has only the value 4: give at least two"),
        (
            ["speed", "--sweep", "particles=0"],
            "has the value '0': give whole numbers from 1; write it like --sweep part",
        ),
        (
            ["speed", "--sweep", "length=8,x"],
            "has the value 'x': give whole numbers from 1; write it like --sweep length",
        ),
        (["speed", "--size", "tiny", "--search", "vanilla", "--sweep", "particles=1,2"], "particles has no effect"),
        (["speed", "--size", "tiny", "--sweep", "steps=2,3"], "steps is 2: take at least 3"),
        (["speed", "--size", "tiny", "--sweep", "length=8,9999"], "shorten the prompt or the length"),
        (["speed", "--size", "tiny", "--plot", "a.svg"], "--plot has nothing to draw: add --sweep"),
        (["speed", "--size", "tiny", "--sweep", "steps=3,4", "--plot", "a.png"], "give a name that ends in .svg"),
        (["speed", "--size", "tiny", "--sweep", "steps=3,4", "--plot", "no/a.svg"], "cannot write 'no/a.svg'"),
        (["speed", "--model", "sudoko"], "unknown model 'sudoko'"),
    ],
)
def test_bad_input(fails, tmp_path, monkeypatch, argv, said):
    monkeypatch.chdir(tmp_path)
    assert said in fails(*argv, "--no-compile")
    assert not list(tmp_path.iterdir())


def test_no_room_for_a_size(fails, monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 10 * memory.GIB)
    told = "the size llada needs 14.9 GiB on cpu, 10.0 are free: take weights int8 or int4, a smaller model"
    assert told in fails("speed", "--size", "llada")


# --- what is compared ------------------------------------------------------------------------------------------------


def small(monkeypatch):
    """The layout of MDLM, small."""
    monkeypatch.setitem(SIZES, "mdlm", Size(MDLM, MDLM.published.tiny | {"time_conditioning": True}, 0, 16))
    return make("mdlm", torch.device("cpu"))


def test_sizes_are_the_published_ones():
    shapes = {name: size.family.read(Config(size.config)).shape for name, size in SIZES.items()}
    mdlm, llada = shapes["mdlm"], shapes["llada"]
    assert (mdlm.layers, mdlm.width, mdlm.heads, mdlm.inner, mdlm.vocabulary) == (12, 768, 12, 3072, 50258)
    assert (llada.layers, llada.width, llada.heads, llada.inner, llada.vocabulary) == (32, 4096, 32, 12288, 126464)
    billions = {name: round(memory.parameters(shapes[name]) / 1e9, 1) for name in ("sdar", "fast-dllm-v2", "llada2")}
    assert billions == {"sdar": 8.2, "fast-dllm-v2": 7.6, "llada2": 16.3}


def test_a_size_is_the_same_every_time():
    one, two = (make("tiny", torch.device("cpu")) for _ in range(2))
    for a, b in zip(one.network.parameters(), two.network.parameters(), strict=True):
        assert torch.equal(a, b) and bool(a.isfinite().all())
    assert next(make("tiny", torch.device("cpu"), torch.float64).network.parameters()).dtype == torch.float64
    assert random_sizes.SIZES["llada"].config["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize("name", ["sudoku", "tiny", "mdlm", "table"])
def test_the_floor_runs_the_network_on_every_row(name, monkeypatch):
    model = small(monkeypatch) if name == "mdlm" else make(name, torch.device("cpu")) if name == "tiny" else load(name)
    canvas = from_prompt(model, [0, 1], 4)
    denoiser, state, *_ = prepare(model, [canvas], [0], RECIPE)
    half = measure._halfway(model, state)
    assert half.masked.sum(1).tolist() == [2, 2, 2] and bool((half.tokens[:, :2] == torch.tensor([0, 1])).all())
    seen = baselines.backbones(model, half, denoiser.cost, compile=False)
    hidden = model.look(half.replace(time=torch.full_like(half.time, 0.5)), torch.arange(3))[0]
    assert list(seen.runs) == ["eager"] and torch.allclose(seen.runs["eager"](), hidden, atol=1e-5)
    twice = baselines.backbones(model, half, 2, compile=False).runs["eager"]()
    assert len(twice) == 6 and torch.allclose(twice[3:], hidden, atol=1e-5)


def test_the_compiled_network_is_timed_where_there_is_a_compiler(monkeypatch):
    asked = []

    def compiled(function, **how):
        asked.append(how)
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    model = make("tiny", torch.device("cpu"))
    found = measure.measure(model, RECIPE, repeat=1)
    consistent(found)
    assert asked == [{"dynamic": False}] * 2 and set(found["backbones_ms"]) == {"eager", "compiled"}
    assert found["public_compiled_ms"] is not None and found["notes"] == []
    monkeypatch.setattr("shutil.which", lambda name: None)
    found = measure.measure(model, RECIPE, repeat=1)
    assert found["public_compiled_ms"] is None and found["notes"] == ["not compiled: there is no C++ compiler"]


def test_the_public_step(monkeypatch):
    model = make("tiny", torch.device("cpu"))
    _, state, *_ = prepare(model, [from_prompt(model, [5, 6], 8)], [0], RECIPE)
    half = measure._halfway(model, state)
    run = baselines.backbones(model, half, 1, compile=False).runs["eager"]
    logits = run() @ model.head.weight.T
    for temperature in (0.0, 1.0):
        tokens, entropy = baselines.public_step(run, model.head, half, temperature, reveal=2)()
        changed = tokens != half.tokens
        assert changed.sum(1).tolist() == [2, 2, 2] and bool((changed <= half.masked).all())
        exact = torch.distributions.Categorical(logits=logits.double()).entropy()
        assert entropy.dtype == torch.float64 and torch.allclose(entropy, exact, atol=1e-4)
        if temperature == 0:
            assert torch.equal(tokens[changed], logits.argmax(2)[changed])


def test_a_public_step_that_does_not_fit(run, monkeypatch):
    monkeypatch.setattr(baselines, "COPIES", 2**60)
    found = json.loads(run("--size", "tiny", "--steps", "3", "--particles", "2", *QUICK))
    assert found["public_eager_ms"] is found["times_faster"] is found["public_transient_mib"] is None
    assert found["notes"] == ["the public-style step does not fit into the memory"]
    assert "public" not in run("--size", "tiny", "--steps", "3", "--particles", "2", *QUICK[:-1]).split("note:")[0]


def test_heads_between_the_counts():
    assert baselines.mean_ms({10: 1.0, 20: 3.0}, [10, 15, 20]) == pytest.approx(2)
    assert baselines.mean_ms({}, [1, 2]) == 0
    model = make("tiny", torch.device("cpu"))
    hidden = torch.ones(2, 9, model.head.weight.shape[1])
    products = baselines.products(model.head, hidden, [17, 9, 1])
    assert list(products) == [1, 5, 9, 13, 17]
    assert [tuple(product().shape) for product in products.values()] == [(n, 320) for n in products]


def test_only_the_walk_counts():
    model = make("tiny", torch.device("cpu"))
    canvas, began = from_prompt(model, [], 12), time.perf_counter()
    walking, parts = measure.Walking(model, RECIPE, canvas), 1
    while walking.go(0):
        time.sleep(0.2)
        parts += 1
    done = walking.done()
    assert parts == 4 and done.whole < time.perf_counter() - began - 0.5  # 2 steps, 1, 1, and a look for more
    assert (done.steps, done.calls, done.evaluations) == (4, 4, 12)
    assert done.start + 2 * done.step == pytest.approx(done.whole)
    assert measure.first_walk(model, RECIPE, canvas)[1] == [36, 27, 18, 9]


def test_stages_are_told():
    told: list[str] = []
    measure.measure(make("tiny", torch.device("cpu")), RECIPE, compile=False, repeat=2, on_stage=told.append)
    assert len(told) == measure.stages(2) and told[-1] == "round 2 of 2"


def test_another_search_with_as_many_particles():
    recipe = RECIPE.replace(every=2, scheme="systematic")
    other = measure.other_search(recipe, "best-of-n")
    assert (
        other == Recipe(sampler="uniform", temperature=1.0, search="best-of-n", particles=3, steps=4, length=12)
        and measure.other_search(other, "smc") == RECIPE
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(capsys):
    assert (
        main(["bench", "speed", "--size", "tiny", "--device", "cuda", "--steps", "4", "--repeat", "1", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)  # a compiler may have something to say beside it
    consistent(found)
    assert {"eager", "compiled", "compiled, CUDA graph"} == set(found["backbones_ms"]) and found["notes"] == []
    assert found["dtype"] == "bfloat16" and found["public_compiled_ms"] is not None
    assert 0 < found["backbone_mib"] < found["public_mib"] and found["peak_mib"] > 0
    assert found["transient_mib"] == pytest.approx(found["peak_mib"] - found["backbone_mib"])
