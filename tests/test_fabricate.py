"""Fabricated checkpoints: the published layout, the same files from the same seed, nothing overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from unmask import UnmaskError, decode, load
from unmask.cli import main
from unmask.decoding.recipe import Recipe
from unmask.models import FAMILIES, memory
from unmask.models.families.blueprint import Config
from unmask.models.files.checkpoint import INDEX, tensor_shapes
from unmask.models.made.fabricate import _shards, fabricate

PUBLISHED = {  # family: tensors, parameters and files of the checkpoints on the hub; files of new ones were not seen
    "llada": (291, 8_015_581_184, 6),
    "illada": (290, 7_615_025_152, 4),
    "dream": (339, 7_615_616_512, 4),
    "open-dcoder": (290, 494_032_768, 1),
    "mdlm": (130, 169_627_218, 1),
    "sdar": (399, 8_190_735_360, None),  # those of Qwen3-8B
    "sdar-moe": (18_867, 30_532_122_624, None),  # those of Qwen3-30B-A3B
    "llada-moe": (3_219, 7_356_880_896, None),
    "llada2": (14_813, 16_255_643_392, None),
    "fast-dllm-v2": (339, 7_615_616_512, None),  # those of Qwen2.5-7B
    "stable-diffcoder": (291, 8_250_462_208, None),
    "a2d": (310, 596_049_920, None),  # those of Qwen3-0.6B
}


@pytest.mark.parametrize("family", PUBLISHED)
def test_full_sizes_are_the_published_ones(family):
    kind = FAMILIES[family]
    shapes = tensor_shapes(kind.read(Config(kind.published.full)))
    item = 4 if kind.published.full["torch_dtype"] == "float32" else 2
    sizes = sum(torch.Size(shape).numel() for shape in shapes.values())
    tensors, parameters, files = PUBLISHED[family]
    assert (len(shapes), sizes) == (tensors, parameters)
    assert files in (None, len(_shards(shapes, item, kind.published.shard)))


@pytest.mark.parametrize(
    ("family", "recorded"),
    [
        ("llada", "llada"),
        ("dream", "dream"),
        ("open-dcoder", "open_dcoder"),
        ("sdar", "sdar"),
    ],
)
def test_tensor_names_are_those_of_the_recorded_checkpoint(family, recorded, tmp_path):
    fabricate(family, tmp_path / "made")
    published = Path(__file__).parent / "parity/models" / recorded / "model.safetensors"
    with safe_open(published, "pt") as theirs, safe_open(tmp_path / "made/model.safetensors", "pt") as ours:
        assert set(ours.keys()) == set(theirs.keys())


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_seeds_give_equal_files(family, tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        fabricate(family, tmp_path / name, seed=seed)
    a, b, c = ({f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in "abc")
    assert a == b
    assert a.keys() == c.keys() and a["config.json"] == c["config.json"]
    assert a["model.safetensors"] != c["model.safetensors"]


def test_shards_have_the_same_tensors(tmp_path, monkeypatch):
    import dataclasses

    fabricate("dream", tmp_path / "one", seed=5)
    small = dataclasses.replace(FAMILIES["dream"].published, shard=60_000)
    monkeypatch.setitem(FAMILIES, "dream", dataclasses.replace(FAMILIES["dream"], published=small))
    seen: list[tuple[int, int]] = []
    fabricate("dream", tmp_path / "many", seed=5, progress=lambda done, total: seen.append((done, total)))
    index = json.loads((tmp_path / "many" / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    together = {name: tensor for file in files for name, tensor in load_file(tmp_path / "many" / file).items()}
    alone = load_file(tmp_path / "one/model.safetensors")
    assert together.keys() == alone.keys() and all(torch.equal(alone[name], together[name]) for name in alone)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in alone.values())
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and seen[-1][0] == seen[-1][1]
    models = [load(tmp_path / name) for name in ("one", "many")]
    recipe = Recipe(sampler="uniform", temperature=1.0, length=12)
    assert decode(models[0], "hello", recipe=recipe).tokens == decode(models[1], "hello", recipe=recipe).tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_its_tokenizer_knows_every_byte_and_special_token(family, tmp_path):
    fabricate(family, tmp_path / family)
    words = load(tmp_path / family).tokenizer
    text = "Wörter, 字 and\n\ttabs: 12345 \U0001f600"
    assert words.decode(words.encode(text)) == text
    for special, number in FAMILIES[family].published.specials["tiny"].items():
        assert words.encode(f"a{special}b")[1] == number
        assert words.decode([number]) == ""


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        with pytest.raises(UnmaskError, match="exists already"):
            fabricate("mdlm", tmp_path / name)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    assert fabricate("mdlm", tmp_path / "empty")


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(UnmaskError, match="No space left"):
        fabricate("mdlm", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_flags_of_loading_need_a_model(capsys):
    for flag in (
        ["--device", "cuda"],
        ["--dtype", "x"],
        ["--trust-remote-code"],
        ["--mask-id", "3"],
        ["--blocks", "4"],
    ):
        assert main(["models", *flag]) == 2
        assert "has no effect on a list" in capsys.readouterr().err


def test_a_model_with_experts_and_blocks_is_described(tmp_path, capsys):
    fabricate("llada2", tmp_path / "tiny")
    for flags, attention in (([], "in blocks of 32"), (["--blocks", "8"], "in blocks of 8")):
        assert main(["models", str(tmp_path / "tiny"), "--json", *flags]) == 0
        facts = json.loads(capsys.readouterr().out)["facts"]
        assert facts["attention"] == attention and facts["family"] == "llada2"
    whole = sum(tensor.numel() for tensor in load_file(tmp_path / "tiny/model.safetensors").values())
    unused = 5 * 3 * 64 * 32  # of 8 experts, in the one layer that has them
    assert (facts["parameters"], facts["active parameters"]) == (whole, whole - unused)
    fabricate("sdar", tmp_path / "dense")
    assert main(["models", str(tmp_path / "dense"), "--json"]) == 0
    assert "active parameters" not in json.loads(capsys.readouterr().out)["facts"]
    assert main(["models", str(tmp_path / "dense"), "--blocks", "0"]) == 2
    assert "blocks is 0: it must be a whole number from 1 on" in capsys.readouterr().err


def test_all_experts_need_memory(monkeypatch):
    shape = FAMILIES["llada2"].read(Config(FAMILIES["llada2"].published.full)).shape
    assert (memory.parameters(shape), memory.active(shape)) == (16_255_643_392, 1_432_973_056)
    monkeypatch.setattr(memory, "free", lambda device: 2 * 16_255_643_391)
    with pytest.raises(UnmaskError, match=r"needs 30\.3 GiB on cpu"):
        memory.check_room("it", shape, torch.device("cpu"), torch.bfloat16)
    monkeypatch.setattr(memory, "free", lambda device: 2 * 16_255_643_392)
    memory.check_room("it", shape, torch.device("cpu"), torch.bfloat16)


def test_unknown_names(tmp_path, capsys):
    assert main(["fabricate", "lada", str(tmp_path / "x")]) == 2
    assert "did you mean 'llada'?" in capsys.readouterr().err
    assert main(["fabricate", "llada", str(tmp_path / "x"), "--size", "huge"]) == 2
    assert "choose from tiny, full" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


# --- the commands around it ------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    fabricate("llada", tmp_path / "tiny")
    return tmp_path / "tiny"


def test_check_says_which_law_was_broken(tiny, capsys, monkeypatch):
    assert main(["check", "tiny"]) == 0
    assert capsys.readouterr().out.count("✓") == 8
    assert main(["check", "tiny", "--json", "--dtype", "float64"]) == 0
    assert all(verdict["held"] for verdict in json.loads(capsys.readouterr().out))
    monkeypatch.setattr("unmask.models.laws.CLOSE", {torch.float32: -1.0})
    assert main(["check", "tiny"]) == 1
    assert "✗" in capsys.readouterr().out


def test_chat(tiny, capsys):
    given = ["generate", "hi", "--model", "tiny", "--length", "4", "--json"]
    assert main([*given, "--chat"]) == 0
    chat = json.loads(capsys.readouterr().out)
    text = "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
    text += "<|start_header_id|>assistant<|end_header_id|>\n\n"
    words = load(tiny).tokenizer
    assert chat["tokens"][:-4] == words.encode(text) and chat["prompt"] == "hi"
    assert main([*given, "--chat", "--system", "be brief"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tokens"]) > len(chat["tokens"])
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out)["tokens"][:-4] == words.encode("hi")
    for bad, said in (
        (["--system", "x"], "add --chat"),
        (["--chat", "--model", "table"], "table has no chat template"),
        (["--chat", "--tokenizer", "nowhere/at/all"], "there is no directory"),
    ):
        assert main([*given, *bad]) == 2
        assert said in capsys.readouterr().err
    assert main(["generate", "--canvas", "a[MASK]", "--chat", "--model", "tiny"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_a_dialogue_from_python(tiny):
    model = load(tiny)
    recipe = Recipe(length=4)
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ho"},
        {"role": "user", "content": "?"},
    ]
    tokens = decode(model, turns, recipe=recipe).tokens
    assert tokens[:-4] == model.tokenizer.encode(model.tokenizer.chat(turns))
    for bad in ([{"role": "user"}], [{"role": "user", "content": 3}], [{"role": "user", "content": "x", "more": "y"}]):
        with pytest.raises(UnmaskError, match="is not a message"):
            decode(model, bad, recipe=recipe)
    with pytest.raises(UnmaskError, match="neither text nor token ids"):
        decode(model, [turns[0], 3], recipe=recipe)


def test_rows_at_a_time_change_nothing(tiny, capsys):
    given = ["generate", "hi", "--model", "tiny", "--length", "6", "--sampler", "uniform", "--temperature", "1"]
    given += ["--search", "smc", "--particles", "5", "--every", "2", "--json"]
    texts = []
    for more in ([], ["--max-rows", "2"]):
        assert main([*given, *more]) == 0
        texts.append(json.loads(capsys.readouterr().out)["tokens"])
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--dtype", "float31"], "choose from float64, float32, float16, bfloat16"),
        (["--mask-id", "320"], "token ids go from 0 to 319"),
        (["--revision", "main"], "revision has no effect on the directory"),
        (["--shift"], "shift has no effect"),
        (["--device", "nowhere"], "cannot load tiny on nowhere"),
        (["--max-rows", "0"], "at least 1"),
        (["--model", "tiny/config.json"], "is a file"),
        (["--model", "./nothing"], "there is no directory"),
        (["--model", "tinny"], "unknown model"),
        (["--tokenizer", "gpt2"], "a hub id like openai-community/gpt2"),
        (["--tokenizer", "tiny/config.json"], "the directory that it is in"),
        (["--model", "table", "--mask-id", "3"], "mask_id has no effect on the model table"),
    ],
)
def test_bad_loading_is_one_line(tiny, capsys, given, said):
    assert main(["generate", "hi", "--model", "tiny", "--length", "4", *given]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


# --- what a newcomer ran into ----------------------------------------------------------------------------------------


def test_prompts_of_other_kinds(tiny):
    model, recipe = load(tiny), Recipe(length=4)
    usual = decode(model, [71, 72], recipe=recipe).tokens
    for same in (iter([71, 72]), (71, 72), torch.tensor([71, 72]), range(71, 73)):
        assert decode(model, same, recipe=recipe).tokens == usual
    for bad in (b"hi", [True, False], 3.5, [1.5], {"role": "user", "content": "hi"}):
        with pytest.raises(UnmaskError, match="neither text nor token ids"):
            decode(model, bad, recipe=recipe)


def test_a_shipped_recipe_names_its_model(tiny, capsys):
    assert main(["generate", "hi", "--recipe", "llada-sudoku-confidence"]) == 2
    assert "add --model GSAI-ML/LLaDA-8B-Instruct --chat" in capsys.readouterr().err
    given = [
        "generate",
        "hi",
        "--recipe",
        "llada-sudoku-confidence",
        "--model",
        "tiny",
        "--length",
        "4",
        "--steps",
        "4",
    ]
    assert main(given) == 0
    assert "with --chat" in capsys.readouterr().err
    assert main([*given, "--chat", "--json"]) == 0
    out = capsys.readouterr()
    assert not out.err and json.loads(out.out)["chat"] is True


def test_a_mask_that_is_an_eos_is_refused(tiny):
    with pytest.raises(UnmaskError, match="which is an EOS too"):
        load(tiny, mask_id=301)


def test_an_error_in_a_batch_says_where(tiny, capsys):
    Path("prompts.txt").write_text("fine\n<|mdm_mask|>\n")
    assert main(["generate", "--prompts", "prompts.txt", "--model", "tiny", "--length", "4"]) == 2
    assert "prompt 2: the prompt holds the mask id 318" in capsys.readouterr().err


def test_a_copy_of_a_tied_head_must_be_one(tmp_path):
    fabricate("open-dcoder", tmp_path / "tied")
    path = tmp_path / "tied/model.safetensors"
    tensors = load_file(path)
    embedding = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embedding.clone()}, path)
    load(tmp_path / "tied")
    save_file({**tensors, "lm_head.weight": embedding + 1}, path)
    with pytest.raises(UnmaskError, match="to which the config ties it"):
        load(tmp_path / "tied")


def test_no_tokenizer_means_no_chat(tiny, capsys):
    (tiny / "tokenizer.json").unlink()
    assert main(["generate", "hi", "--chat", "--model", "tiny", "--length", "4"]) == 2
    assert "has no tokenizer, so no chat template" in capsys.readouterr().err
    assert main(["generate", "hi", "--model", "tiny", "--length", "4"]) == 2
    assert "--tokenizer DIR" in capsys.readouterr().err


def test_warnings_are_one_line(capsys):
    import warnings

    with warnings.catch_warnings():
        assert main(["samplers", "--json"]) == 0
        warnings.warn("careful\nnow", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "unmask: warning: careful now\n"


def test_memory_that_is_not_there_is_one_line(capsys, monkeypatch):
    def greedy(*_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("unmask.evaluate.bulk.decode_batch", greedy)
    assert main(["generate", "se"]) == 2
    assert "out of memory: lower max-rows" in capsys.readouterr().err


def test_the_device_meta_is_refused(capsys):
    assert main(["models", "random", "--device", "meta"]) == 2
    assert "give cpu" in capsys.readouterr().err
