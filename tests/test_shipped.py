"""The shipped recipes: every number is the paper's, every one builds and runs, every command line is one."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from unmask import Recipe, UnmaskError, decode, load
from unmask.cli import flags, main
from unmask.cli.parser import parse
from unmask.decoding.background import Background
from unmask.decoding.named_recipes import RECIPES, NamedRecipe
from unmask.decoding.settings import SETTINGS

# --- the paper's tables, as printed ----------------------------------------------------------------------------------

# Table 3, a column for each task
LLADA: dict[str, dict[str, Any]] = {
    "gsm8k": {"length": 256, "steps": 256, "decay": 0.25, "cap": 10, "every": 64, "strength": 5},
    "math500": {"length": 1024, "steps": 1024, "decay": 0.25, "cap": 10, "every": 256, "strength": 5},
    "gpqa": {"length": 256, "steps": 256, "decay": 0.25, "cap": 10, "every": 64, "strength": 5},
    "countdown": {"length": 128, "steps": 128, "decay": 0.5, "cap": 10, "every": 32, "strength": 10},
    "sudoku": {"length": 128, "steps": 128, "decay": 0.0, "cap": 10, "every": 32, "strength": 5},
}
LLADA_ALL = {"temperature": 0, "guidance": 0}
LLADA_SEARCH = {"particles": 5, "select_temperature": 0.1}
BLOCKS = 8
CHAT = ("math500", "countdown", "sudoku")
# Table 2, its rows -> our sampler
LLADA_ROWS = {
    "uniform": "uniform",
    "confidence": "confidence",
    "entropy": "entropy",
    "margin": "margin",
    "p2": "draft-refine",
    "eb": "eb",
    "semi-ar": "semi-ar",
    "fast-dllm": "fast-dllm",
    "pc": "pc",
}
AS_LONG_AS_IT_TAKES = ("draft-refine", "eb", "fast-dllm")  # samplers without planned steps

# Table 4: all four tasks are alike
CODER = {"length": 128, "steps": 128, "temperature": 0.8}
CODER_SEARCH = {"particles": 5}
CODER_SMC = {"strength": 5, "every": 32}
# Table 8, its rows -> our sampler and rule
CODER_ROWS = {
    "p2": ("p2", "fresh-draw"),
    "uniform": ("ancestral", None),
    "confidence": ("dream", "maskgit_plus"),
    "entropy": ("dream", "entropy"),
    "margin": ("dream", "topk_margin"),
}

# S, K, Δ. Table 1 and the sentence below it about K = 12
GUIDED = [
    (128, 4, 32),
    (256, 4, 32),
    (128, 8, 32),
    (256, 2, 32),
    (256, 8, 32),
    (256, 4, 8),
    (256, 4, 16),
    (256, 4, 64),
    (256, 4, 128),
]
TWELVE = (256, 12, 32)
RUNTIME = [(256, 2, 64), (256, 4, 64), (256, 8, 64), (1024, 2, 256), (1024, 4, 256), (1024, 8, 256)]  # Table 7
STEPS = [16, 32, 64, 128, 256, 512, 1024]  # Table 5
GREEDY = [(2, 1), (4, 1), (8, 1), (16, 1), (8, 2), (8, 4), (8, 8)]  # Table 6: c, s


# --- what they are ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("background") / "counts.json"
    Background({1: 5, 2: 3, 7: 2}, 10).save(path)
    return str(path)


def build(one: NamedRecipe, table: str, **changes: Any) -> Recipe:
    return Recipe.load(one.name, **dict.fromkeys(one.needs, table), **changes)


def numbers(recipe: Recipe, names: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in names}


def test_the_names() -> None:
    searched = ("pc-best-of-n", "pc-smc")
    llada = {f"llada-{task}-{row}" for task in LLADA for row in (*LLADA_ROWS, *searched)}
    llada |= {"llada-countdown-pc-vote", "llada-sudoku-pc-vote"}
    coder = {f"open-dcoder-{row}{search}" for row in CODER_ROWS for search in ("", "-best-of-n", "-smc")}
    mdlm = {f"mdlm-{steps}-uniform" for steps in STEPS}
    mdlm |= {f"mdlm-{steps}-best-of-n-k{k}" for steps, k, _ in GUIDED + RUNTIME}
    mdlm |= {f"mdlm-{steps}-smc-k{k}-d{every}" for steps, k, every in [*GUIDED, TWELVE, *RUNTIME]}
    mdlm |= {f"mdlm-256-greedy-c{c}-s{s}" for c, s in GREEDY}
    assert set(RECIPES) == llada | coder | mdlm
    assert [one.name for one in RECIPES.values()] == list(RECIPES)


def test_no_combination_takes_the_name_of_another() -> None:
    from unmask.decoding.named_recipes import _combine, tomllib

    text = files("unmask").joinpath("decoding/recipes.toml").read_text(encoding="utf-8")
    made = [one.name for model, table in tomllib.loads(text).items() for one in _combine(model, table)]
    assert len(made) == len(set(made)) == len(RECIPES)


@pytest.mark.parametrize("one", RECIPES.values(), ids=list(RECIPES))
def test_every_one_builds(one: NamedRecipe, table: str) -> None:
    recipe = build(one, table)
    assert set(one.settings) <= set(SETTINGS)
    assert {**one.settings, **dict.fromkeys(one.needs, table)} == {
        name: value for name, value in recipe.to_dict().items() if name in one.settings or name in one.needs
    }
    assert recipe.to_dict().keys() - {"search"} <= {*one.settings, *one.needs}
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", one.name) and shlex.quote(one.name) == one.name
    assert one.about.isprintable() and re.search(r"Table \d|section \d", one.about)


def test_what_is_needed_is_asked_for() -> None:
    for one in RECIPES.values():
        assert one.needs == (("background",) if one.settings["sampler"] == "pc" else ())
    with pytest.raises(UnmaskError, match="background"):
        Recipe.load("llada-gsm8k-pc")


def test_changes_go_over_it() -> None:
    recipe = Recipe.load("open-dcoder-p2-smc", particles=3, seed=7)
    assert (recipe.particles, recipe.seed, recipe.every) == (3, 7, 32)


# --- the numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", LLADA)
@pytest.mark.parametrize("row", LLADA_ROWS)
def test_llada(task: str, row: str, table: str) -> None:
    one, printed = RECIPES[f"llada-{task}-{row}"], LLADA[task]
    recipe = build(one, table)
    assert (recipe.sampler, recipe.search) == (LLADA_ROWS[row], "vanilla")
    assert numbers(recipe, LLADA_ALL) == LLADA_ALL
    assert recipe.length == printed["length"]
    assert recipe.steps == (None if recipe.sampler in AS_LONG_AS_IT_TAKES else printed["steps"])
    assert recipe.block_length == (printed["length"] // BLOCKS if row in ("semi-ar", "fast-dllm") else None)
    assert recipe.select_temperature is None  # only for searches
    if row == "pc":
        assert (recipe.decay, recipe.cap) == (printed["decay"], printed["cap"])
    assert one.model == "GSAI-ML/LLaDA-8B-Instruct" and one.prompted
    assert one.chat == (task in CHAT)
    assert "Table 2" in one.about and "Table 3" in one.about


@pytest.mark.parametrize("task", LLADA)
@pytest.mark.parametrize("search", ["best-of-n", "smc"])
def test_llada_searches(task: str, search: str, table: str) -> None:
    one, printed = RECIPES[f"llada-{task}-pc-{search}"], LLADA[task]
    recipe = build(one, table)
    assert (recipe.sampler, recipe.search) == ("pc", search)
    assert numbers(recipe, LLADA_ALL | LLADA_SEARCH) == LLADA_ALL | LLADA_SEARCH
    wanted = printed if search == "smc" else {**printed, "every": None, "strength": None}
    assert numbers(recipe, wanted) == wanted
    assert one.chat == (task in CHAT)


@pytest.mark.parametrize("task", ["countdown", "sudoku"])
def test_llada_vote(task: str, table: str) -> None:
    recipe = build(RECIPES[f"llada-{task}-pc-vote"], table)
    smc = build(RECIPES[f"llada-{task}-pc-smc"], table)
    assert recipe == smc.replace(search="vote", every=None, strength=None)


def test_llada_where_the_paper_is_silent() -> None:
    """Defaults of the public codes: PC-Sampler's for P2 and EB, Fast-dLLM's own threshold."""
    for task in LLADA:
        p2 = Recipe.load(f"llada-{task}-p2")
        planning = task in ("countdown", "sudoku")
        assert tuple(p2.settings[name] for name in ("draft", "reveal", "loops")) == (
            (1.0, 1, 0) if planning else (0.875, 1, 32)
        )
        assert Recipe.load(f"llada-{task}-eb").bound == 0.01
        assert Recipe.load(f"llada-{task}-fast-dllm").threshold == 0.9


@pytest.mark.parametrize("row", CODER_ROWS)
@pytest.mark.parametrize("search", ["vanilla", "best-of-n", "smc"])
def test_open_dcoder(row: str, search: str) -> None:
    one = RECIPES[f"open-dcoder-{row}" + ("" if search == "vanilla" else f"-{search}")]
    recipe = Recipe.load(one.name)
    assert (recipe.sampler, recipe.rule, recipe.search) == (*CODER_ROWS[row], search)
    assert numbers(recipe, CODER) == CODER
    assert recipe.particles == (None if search == "vanilla" else CODER_SEARCH["particles"])
    assert numbers(recipe, CODER_SMC) == (CODER_SMC if search == "smc" else dict.fromkeys(CODER_SMC))
    # not printed: the public evaluation's defaults, and Dream's time grid
    assert recipe.top_k == 200 and recipe.top_p is None
    assert recipe.select_temperature == (0.5 if recipe.sampler == "dream" else None)
    assert recipe.eps == (0.001 if row == "uniform" else None)
    assert one.model == "fredzzp/open-dcoder-0.5B" and one.prompted and not one.chat
    assert "Table 8" in one.about and "Table 4" in one.about


def mdlm(name: str) -> Recipe:
    one = RECIPES[name]
    assert one.model == "kuleshov-group/mdlm-owt" and not one.prompted and not one.chat
    recipe = Recipe.load(one.name)
    assert (recipe.sampler, recipe.length, recipe.temperature) == ("ancestral", 1024, 1)
    assert recipe.eps is None and recipe.build_sampler().eps == 1e-5  # type: ignore[attr-defined]
    return recipe


@pytest.mark.parametrize("steps", STEPS)
def test_mdlm_vanilla(steps: int) -> None:
    recipe = mdlm(f"mdlm-{steps}-uniform")
    assert (recipe.steps, recipe.search) == (steps, "vanilla")


@pytest.mark.parametrize(("steps", "k", "every"), sorted({*GUIDED, TWELVE, *RUNTIME}))
def test_mdlm_searches(steps: int, k: int, every: int) -> None:
    smc = mdlm(f"mdlm-{steps}-smc-k{k}-d{every}")
    assert (smc.steps, smc.search, smc.particles, smc.every) == (steps, "smc", k, every)
    assert smc.strength == 5  # not printed
    if k != TWELVE[1]:
        best = mdlm(f"mdlm-{steps}-best-of-n-k{k}")
        assert best == smc.replace(search="best-of-n", every=None, strength=None)


@pytest.mark.parametrize(("candidates", "beams"), GREEDY)
def test_mdlm_greedy(candidates: int, beams: int) -> None:
    recipe = mdlm(f"mdlm-256-greedy-c{candidates}-s{beams}")
    search = recipe.build_search()
    assert (recipe.steps, search.beams, search.particles) == (256, beams, candidates * beams)
    assert search.every == 1


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("mdlm-256-smc-k4-d32", "Table 1"),
        ("mdlm-64-uniform", "Table 5"),
        ("mdlm-256-greedy-c8-s2", "Table 6"),
        ("mdlm-1024-best-of-n-k8", "Table 7"),
        ("mdlm-256-smc-k12-d32", "section 4.2"),
        ("llada-sudoku-pc-vote", "section 4.4"),
    ],
)
def test_where_it_is_printed(name: str, where: str) -> None:
    assert where in RECIPES[name].about


# --- for real --------------------------------------------------------------------------------------------------------

SHORT = 16
KINDS_OF = {
    (one.settings["sampler"], one.settings.get("rule"), one.settings.get("search")): one for one in RECIPES.values()
}


@pytest.fixture(scope="module")
def model() -> Any:
    return load("random")


@pytest.mark.parametrize("one", KINDS_OF.values(), ids=lambda one: one.name)
def test_one_of_each_kind_runs(one: NamedRecipe, table: str, model: Any) -> None:
    """At 16 positions, with steps, blocks and intervals to scale."""
    scale = SHORT / one.settings["length"]
    sizes = ("length", "steps", "block_length", "every")
    small = {name: max(1, round(one.settings[name] * scale)) for name in sizes if name in one.settings}
    result = decode(model, "to" if one.prompted else None, recipe=build(one, table, **small))
    particles = one.settings.get("particles", one.settings.get("candidates", 1) * one.settings.get("beams", 1))
    assert len(result.particles) == particles
    assert all(len(particle.tokens) == SHORT + (2 if one.prompted else 0) for particle in result.particles)
    assert model.vocab.mask not in result.tokens
    if one.settings.get("search") != "vote":
        assert result.path_entropy == min(particle.path_entropy for particle in result.particles)


@pytest.mark.parametrize("one", RECIPES.values(), ids=list(RECIPES))
def test_the_command_is_one(one: NamedRecipe, table: str) -> None:
    words = shlex.split(one.command())
    assert words[:2] == ["unmask", "generate"]
    args = parse(words[1:])
    assert (args.model, args.chat) == (one.model, one.chat)
    assert args.prompt == ("PROMPT" if one.prompted else None)
    assert args.background == ("FILE" if one.needs else None)
    args.background = table if one.needs else None
    assert flags.to_recipe(args) == build(one, table)


def test_a_command_runs_as_printed(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    one = RECIPES["llada-gsm8k-pc-smc"]
    words = shlex.split(one.command().replace("FILE", table).replace("PROMPT", "to"))[1:]
    words[words.index("--model") + 1], words[words.index("--device") + 1] = "random", "cpu"
    assert main([*words, "--length", "16", "--steps", "16", "--every", "4"]) == 0
    assert "5 particles" in capsys.readouterr().err


def test_the_file_travels_with_the_package() -> None:
    project = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'\[tool\.setuptools\.package-data\]\nunmask = \[.*"decoding/\*\.toml".*\]', project, re.DOTALL)
