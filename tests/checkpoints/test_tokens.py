"""The mask, tokenizers and chat templates of a checkpoint."""

from __future__ import annotations

import base64
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Fast

from unmask import decode, load
from unmask.errors import InputError
from unmask.models import chat_process, growth, memory, tokenizers
from unmask.models.tokenizers import FileTokenizer, Numbers, read_tokenizer

from .small import (
    CODER,
    DREAM,
    plain,
    refused,
    write,
)

# --- the mask --------------------------------------------------------------------------------------------------------


def test_no_mask_anywhere(tmp_path):
    directory = write(tmp_path / "coder", CODER)
    refused(directory, "neither config.json nor the tokenizer names a mask token", "mask_id")
    plain().save(str(directory / "tokenizer.json"))
    refused(directory, "neither config.json nor the tokenizer names a mask token", "mask_id")
    assert load(directory, mask_id=9).vocab.mask == 9


@pytest.mark.parametrize("mask_id", [16, -1, True, "5", 5.0, [5], 10**30])
def test_mask_id_out_of_range(small, mask_id):
    refused(small, "mask_id is", "token ids go from 0 to 15", mask_id=mask_id)


def test_mask_from_the_tokenizer(tmp_path):
    directory = write(tmp_path / "coder", CODER)
    fast = plain()
    fast.add_special_tokens(["[MASK]", "<M>"])  # 8 and 9
    fast.save(str(directory / "tokenizer.json"))
    assert load(directory).vocab.mask == 9  # the family's own name for it
    (directory / "tokenizer_config.json").write_text(json.dumps({"mask_token": {"content": "[MASK]"}}))
    assert load(directory).vocab.mask == 8  # what the tokenizer says
    assert load(directory, mask_id=7).vocab.mask == 7  # what the user says
    (directory / "tokenizer_config.json").write_text(json.dumps({"mask_token": "\ud800"}))  # half a character
    assert load(directory).vocab.mask == 9


# --- tokenizers ------------------------------------------------------------------------------------------------------


def test_no_tokenizer(small):
    model = load(small)
    assert isinstance(model.tokenizer, Numbers)
    assert model.tokenizer.encode(" 3 14\n1") == [3, 14, 1] and model.tokenizer.decode([3, 14]) == "3 14"
    with pytest.raises(InputError, match=r"no tokenizer, and 'three' is not made of token ids: write ids like"):
        model.tokenizer.encode("three")
    assert len(decode(model, canvas="1 2 [MASK*2]").tokens) == 4
    with pytest.raises(InputError, match="token id 16 is outside the vocabulary"):
        decode(model, canvas="16 [MASK]")


BAD_TOKENIZERS = {
    "empty": b"",
    "no JSON": b"{",
    "bytes": b"\x80\x02}q\x00.",
    "list": b"[]",
    "other JSON": b'{"a": 1}',
    "nested": b"[" * 100_000,
    "unknown model": b'{"model": {"type": "Magic"}}',
    "merge without token": json.dumps(
        json.loads(plain().to_str()) | {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "z"]]}}
    ).encode(),
    "a panic": json.dumps(
        json.loads(plain().to_str()) | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}
    ).encode(),
}


@pytest.mark.parametrize("name", BAD_TOKENIZERS)
def test_bad_tokenizer(small, name):
    (small / "tokenizer.json").write_bytes(BAD_TOKENIZERS[name])
    refused(small, "tokenizer.json is not a tokenizer")


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff", b'{"chat_template": NaN}'])
def test_bad_tokenizer_config(small, text):
    (small / "tokenizer_config.json").write_bytes(text)
    refused(small, "tokenizer_config.json")


REPLACE = normalizers.Replace
TWICE, ANYWHERE = REPLACE("a", "aa"), REPLACE(Regex("b?"), "aa")
MAPPED = base64.b64encode(bytes(4) + b"a" * 300 + b"\0").decode()  # a table of sentencepiece without a trie
EXPLODING = {
    "replacements": normalizers.Sequence([TWICE] * 60),
    "in turns": normalizers.Sequence([normalizers.Sequence([REPLACE("a", "bb"), REPLACE("b", "aa")])] * 20),
    "anywhere": normalizers.Sequence([ANYWHERE] * 60),
    "a long one": REPLACE("a", "b" * 10_000),
    "prepended": normalizers.Prepend("a" * 10_000),
    "bytes": normalizers.Sequence([normalizers.ByteLevel()] * 30),
}


@pytest.mark.parametrize("name", EXPLODING)
def test_a_tokenizer_that_makes_too_much_of_a_text(small, name):
    fast = plain()
    fast.normalizer = EXPLODING[name]
    fast.save(str(small / "tokenizer.json"))
    refused(small, "normalizer of the tokenizer makes more than 256 characters of one", "memory")


def test_a_decoder_that_makes_too_much_of_a_token(small):
    fast = plain()
    fast.decoder = decoders.Sequence([decoders.Replace("a", "aa")] * 60)
    fast.save(str(small / "tokenizer.json"))
    refused(small, "decoder of the tokenizer makes more than 256 characters of one", "memory")


def test_the_table_of_a_tokenizer_counts_by_its_longest_text():
    step = {"type": "Precompiled", "precompiled_charsmap": MAPPED}
    assert growth.growth(step) > growth.MOST
    step["precompiled_charsmap"] = base64.b64encode(b"\4\0\0\0" + bytes(4) + b"abc\0de\0").decode()
    assert growth.growth(step) == 3 and growth.growth({"type": "Sequence", "normalizers": [step] * 5}) == 243


def test_ordinary_steps_of_tokenizers_are_allowed(small):
    quotes = [REPLACE(old, new) for old, new in (("``", '"'), ("''", '"'), ("…", "..."), ("½", "1/2"))] * 9
    forms = [normalizers.NFKC(), normalizers.BertNormalizer(), normalizers.Lowercase()]
    llama = [normalizers.Prepend("▁"), REPLACE(" ", "▁"), REPLACE(Regex(" {2,}"), " ")]
    fast = plain()
    fast.normalizer = normalizers.Sequence([*quotes, *forms, *llama])
    fast.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel()])
    fast.save(str(small / "tokenizer.json"))
    assert load(small).tokenizer.fast.normalizer.normalize_str("``a…") == '▁"a...'


def test_panic_while_encoding(small):
    table = json.loads(plain().to_str()) | {"pre_tokenizer": {"type": "FixedLength", "length": 0}}
    (small / "tokenizer.json").write_text(json.dumps(table))
    model = load(small)
    with pytest.raises(InputError, match="cannot read 'abc'"):
        model.tokenizer.encode("abc")


def test_half_a_character(small):
    plain().save(str(small / "tokenizer.json"))
    with pytest.raises(InputError, match="cannot read"):
        load(small).tokenizer.encode("a\ud800")


@pytest.mark.parametrize("number", [16, 4_000_000_000])
def test_tokenizer_of_a_larger_vocabulary(small, number):
    table = json.loads(plain().to_str()) | {"model": {"type": "BPE", "vocab": {"a": 0, "b": number}, "merges": []}}
    (small / "tokenizer.json").write_text(json.dumps(table))
    refused(small, f"ids up to {number}", "only up to 15", "tokenizer")


def test_tokenizer_from_another_directory(small, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    refused(small, "there is no tokenizer in", "tokenizer.json", tokenizer=other)
    (other / "tokenizer.json").write_text("{")
    refused(small, "tokenizer.json is not a tokenizer", tokenizer=other)
    plain().save(str(other / "tokenizer.json"))
    assert load(small, tokenizer=other).tokenizer.encode("cab") == [2, 0, 1]
    refused(small, "there is no directory", tokenizer=tmp_path / "none")
    refused(small, "is a file", tokenizer=other / "tokenizer.json")


def test_padding_and_truncation_are_off(small):
    fast = plain()
    fast.enable_padding(length=9, pad_id=3)
    fast.enable_truncation(2)
    fast.save(str(small / "tokenizer.json"))
    assert load(small).tokenizer.encode("abcd") == [0, 1, 2, 3]


def test_other_threads_go_on_while_a_long_text_is_encoded():
    tokenizer, text = load("text").tokenizer, "The city of Vienna " * 50_000
    beats, done = [], threading.Event()

    def beat() -> None:
        while not done.wait(0.001):
            beats.append(None)

    thread = threading.Thread(target=beat)
    thread.start()
    tokenizer.fast.encode("warm")
    before = len(beats)
    found = tokenizer._encoded(text)
    during = len(beats) - before
    done.set()
    thread.join()
    assert during > 10
    assert found == tokenizer.fast.encode(text, add_special_tokens=False).ids


def test_ids_that_the_tokenizer_does_not_know(small):
    plain().save(str(small / "tokenizer.json"))
    assert load(small).tokenizer.decode([0, 15, 2**40, -1, 1]) in ("ab", "a b")


# Dream publishes no tokenizer.json: byte-level BPE with Qwen2's way of cutting, and added tokens in two places.

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "Ċ Ċ", "Ġ Ġ", "' ll", "Ã ©"]
CUT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
SENTENCES = [
    "hello hello",
    "hell, he'll say HELLO; HE'LL!",
    "12 and 1212, 3.14",
    "  two  spaces \n\n and lines\r\n\t",
    "caf\u00e9 = cafe\u0301, na\u00efve",
    "日本語 ½ 🎉 ☂️",
    "<|im_start|>user\nhello<|im_end|><|mask|><|mask|>",
    "<|mask| >",
    "",
]


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Dream with vocab.json, merges.txt, added_tokens.json and added_tokens_decoder."""
    vocabulary = {text: number for number, text in enumerate([*ALPHABET, *(m.replace(" ", "") for m in MERGES)])}
    first = len(vocabulary)
    directory = write(tmp_path / "dream", DREAM | {"vocab_size": 300, "mask_token_id": None, "eos_token_id": None})
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n")
    (directory / "added_tokens.json").write_text(json.dumps({SPECIALS[0]: first, SPECIALS[1]: first + 1}))
    table = {str(first + n): {"content": text, "special": True} for n, text in enumerate(SPECIALS) if n}
    settings = {"added_tokens_decoder": table, "mask_token": "<|mask|>", "eos_token": "<|endoftext|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.fixture
def by_hand() -> Fast:
    vocabulary = {text: number for number, text in enumerate([*ALPHABET, *(m.replace(" ", "") for m in MERGES)])}
    fast = Fast(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in MERGES]))
    fast.normalizer = normalizers.NFC()
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CUT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return fast


@pytest.mark.parametrize("text", SENTENCES)
def test_tokenizer_from_parts(parts, by_hand, text):
    tokenizer = load(parts).tokenizer
    ids = by_hand.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == by_hand.decode(ids, skip_special_tokens=True)


def test_special_ids_from_parts(parts, by_hand):
    model = load(parts)
    mask, end, turn = (by_hand.token_to_id(text) for text in ("<|mask|>", "<|endoftext|>", "<|im_end|>"))
    assert (model.vocab.mask, model.vocab.eos) == (mask, (end, turn))
    assert model.tokenizer.encode("12") == by_hand.encode("1").ids + by_hand.encode("2").ids  # though "1 2" is a merge
    assert model.tokenizer.encode("e\u0301") == model.tokenizer.encode("\u00e9")


def test_tokenizer_json_comes_before_parts(parts):
    plain().save(str(parts / "tokenizer.json"))
    assert load(parts, mask_id=9).tokenizer.encode("cab") == [2, 0, 1]


@pytest.mark.parametrize(
    ("file", "text", "word"),
    [
        ("vocab.json", "{", "vocab.json is not JSON"),
        ("vocab.json", "[]", "vocab.json holds a list"),
        ("vocab.json", "{}", "vocab.json with merges.txt is not a tokenizer"),
        ("vocab.json", '{"a": "b"}', "vocab.json holds values that are not token ids"),
        ("vocab.json", '{"a": -1}', "vocab.json holds values that are not token ids"),
        ("vocab.json", '{"a": true}', "vocab.json holds values that are not token ids"),
        ("vocab.json", '{"a": ' + "[" * 900 + "]" * 900 + "}", "vocab.json"),
        ("vocab.json", '{"a": 99999999999999999999}', "vocab.json with merges.txt is not a tokenizer"),
        ("merges.txt", "x y\n", "vocab.json with merges.txt is not a tokenizer"),
        ("merges.txt", "one\n", "vocab.json with merges.txt is not a tokenizer"),
        ("added_tokens.json", '{"a": null}', "added_tokens.json holds values that are not token ids"),
        ("added_tokens.json", '{"a": 300}', "ids up to 300"),
        ("special_tokens_map.json", "[]", "special_tokens_map.json holds a list"),
    ],
)
def test_bad_parts(parts, file, text, word):
    (parts / file).write_text(text)
    refused(parts, word)


@pytest.mark.parametrize(
    "table", [None, [], {"x": {}}, {"²": {"content": "a"}}, {"9" * 5000: {"content": "b"}}, {"1": {"content": []}}]
)
def test_odd_tables_of_added_tokens_are_left_out(parts, table):
    settings = {"added_tokens_decoder": table, "mask_token": "[", "eos_token": [], "chat_template": {"a": 1}}
    (parts / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load(parts).vocab.mask == ALPHABET.index("[")


def test_vocabulary_without_merges_is_no_tokenizer(parts):
    (parts / "merges.txt").unlink()
    assert isinstance(load(parts, mask_id=1).tokenizer, Numbers)


# --- chat templates --------------------------------------------------------------------------------------------------

SHORT = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] }}\n{% endfor %}"
USER = [{"role": "user", "content": "hi"}]


def chat(directory: Path, template: Any = None, **settings: Any) -> str:
    """The dialogue as a checkpoint with this template writes it."""
    plain().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template} | settings))
    tokenizer = load(directory).tokenizer
    assert isinstance(tokenizer, FileTokenizer)
    return tokenizer.chat(USER)


def test_chat_template_of_the_config(small):
    assert chat(small, SHORT, bos_token="<s>") == "<s>[user] hi\n"
    assert chat(small, SHORT, bos_token={"content": "<s>", "lstrip": False}) == "<s>[user] hi\n"
    assert chat(small, SHORT, bos_token=None) == "[user] hi\n"
    assert chat(small, SHORT + "{% if add_generation_prompt %}>{% endif %}") == "[user] hi\n>"


def test_chat_template_among_several(small):
    named = [{"name": "tool_use", "template": "no"}, {"name": ["odd"]}, 3, {"name": "default", "template": SHORT}]
    assert chat(small, named, bos_token="<s>") == "<s>[user] hi\n"
    with pytest.raises(InputError, match="no chat template"):
        chat(small, named[:-1])


def test_chat_template_in_a_file(small):
    (small / "chat_template.jinja").write_text(SHORT)
    (small / "special_tokens_map.json").write_text('{"bos_token": {"content": "<b>"}}')
    assert chat(small, "another") == "<b>[user] hi\n"
    assert chat(small, "another", bos_token="<s>") == "<s>[user] hi\n"


def test_no_chat_template(small):
    with pytest.raises(InputError, match="no chat template: leave chat out"):
        chat(small)


def test_chat_template_that_refuses(small):
    for message in ("roles must alternate", "", "two\nlines"):
        with pytest.raises(InputError, match="the chat template refuses these messages: ") as caught:
            chat(small, "{{ raise_exception(" + json.dumps(message) + ") }}")
        assert str(caught.value).isprintable() and message.split("\n")[0] in str(caught.value)


HOSTILE = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "classes by filter": "{{ (''|attr('__class__')).mro() }}",
    "globals": "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    "globals of a function": "{{ raise_exception.__globals__['json'].codecs.open('MARK', 'w') }}",
    "self": "{{ self._TemplateReference__context.environment.loader.x }}",
    "format": "{{ '{0.__class__.__mro__}'.format('') }}{{ 1/0 }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "change": "{{ messages.append(messages) }}",
    "change in place": "{{ messages[0].update({'role': 'x'}) }}",
    "huge range": "{% for x in range(10**12) %}x{% endfor %}",
    "huge text": "{{ 'x' * 10**15 }}",
    "much output": "{% for a in range(99999) %}{% for b in range(99999) %}{{ a ~ 'x' * 999 }}{% endfor %}{% endfor %}",
    "endless calls": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "nested": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested loops": "{% for a in 'x' %}" * 50 + "{% endfor %}" * 50,
    "syntax": "{% for x in %}",
    "unknown tag": "{% exec 'x' %}",
    "division": "{{ 1 / 0 }}",
    "wrong kind": "{{ messages + 1 }}",
    "no such thing": "{{ nothing.here }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_chat_template(small, mark, name):
    peak = memory.host_peak()
    with pytest.raises(InputError, match="the chat template") as caught:
        chat(small, HOSTILE[name].replace("MARK", str(mark)))
    assert str(caught.value).isprintable() and caught.value.hint
    assert memory.host_peak() - peak < 256 * 2**20


# --- details that public tokenizers have -----------------------------------------------------------------------------


def test_templates_of_the_hub_find_what_they_expect(tmp_path):
    template = (
        "{% for m in messages[1:] %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m['content'] | trim }}{% endif %}{% if not loop.last %}{% continue %}{% endif %}{% endfor %}"
        "{% set ns = namespace(n=0) %}{% if tools is defined and tools %}tools{% endif %}"
        "{{ strftime_now('%Y') | length }}{{ messages | length | tojson }}{{ bos_token }}"
    )
    words = FileTokenizer(None, template, {"bos_token": "<s>"})
    turns = [{"role": r, "content": c} for r, c in (("system", "s"), ("user", " u "), ("assistant", "a"))]
    assert words.chat(turns) == "ua43<s>"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 2000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ [0] * 10 ** 9 }}",
        "{% set n = namespace(t='aaaaaaaa') %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}{{ n.t }}",
        "{{ 99999999999 * 99999999999 }}",
    ],
)
def test_templates_stay_small(template):
    with pytest.raises(InputError, match="too large"):
        FileTokenizer(None, template).chat(USER)


DOUBLED = "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(29) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
UNBOUNDED = {
    "~": DOUBLED,
    "%": "{{ ('%2000000000s' % 'x') | length }}",
    "% *": "{{ ('%*d' % (2000000000, 1)) | length }}",
    "a method": "{{ 'a'.ljust(2000000000) | length }}",
    "zfill": "{{ 'a'.zfill(2000000000) | length }}",
    "a filter": "{{ 'a' | center(2000000000) | length }}",
    "format": "{{ '{:2000000000}'.format('a') | length }}",
    "slice": "{{ [1] | slice(200000000) | list | length }}",
    "batch": "{{ [1] | batch(2000000000, 'x') | list | length }}",
    "a block": "{% set x %}"
    + "{% for i in range(99999) %}{% for j in range(999) %}xxxxxxxxxxxxxxxx{% endfor %}{% endfor %}"
    "{% endset %}",
    "a list of itself": "{% set n = namespace(x=['a']) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
    "{{ n.x | string | length }}",
    "loops": ENDLESS,
    "macros": "{% macro f(n) %}{% if n %}{% set a = f(n - 1) ~ f(n - 1) %}{% endif %}{% endmacro %}{{ f(60) }}",
}


@pytest.fixture
def renderer(monkeypatch):
    monkeypatch.setattr(chat_process, "SECONDS", 0.7)
    made = chat_process.Renderer()
    monkeypatch.setattr(tokenizers, "RENDERER", made)
    yield made
    made.close()


@pytest.mark.parametrize("name", UNBOUNDED)
def test_templates_have_limits_of_memory_and_time(renderer, name):
    began = time.monotonic()
    with pytest.raises(InputError, match=r"the chat template (takes more than 0.7 s or 1024 MiB|refuses)") as caught:
        FileTokenizer(None, UNBOUNDED[name]).chat(USER)
    assert time.monotonic() - began < 5 and caught.value.hint
    assert FileTokenizer(None, SHORT, {"bos_token": ""}).chat(USER) == "[user] hi\n"  # in another process


def test_many_templates_without_end_do_not_wait_for_each_other(renderer):
    began = time.monotonic()
    with ThreadPoolExecutor(12) as pool:
        jobs = [pool.submit(FileTokenizer(None, ENDLESS).chat, USER) for _ in range(12)]
        assert all(isinstance(job.exception(), InputError) for job in jobs)
    assert time.monotonic() - began < 5  # not 12 × 0.7
    assert FileTokenizer(None, SHORT, {"bos_token": ""}).chat(USER) == "[user] hi\n"


def test_a_fork_renders_in_a_process_of_its_own(renderer):
    words = FileTokenizer(None, "{{ messages[0].content }}")
    assert words.chat(USER) == "hi"
    mine = renderer.process
    renderer.owner += 1  # as in a fork
    assert words.chat([{"role": "user", "content": "ö\ud800\n"}]) == "ö\ud800\n"
    assert renderer.process is not mine and mine.poll() is None
    mine.communicate()
    assert mine.returncode == 0  # it ends with its input


def test_json_in_templates_is_that_of_the_hub():
    said = "{{ messages[0] | tojson(ensure_ascii=True) }}{{ [1] | tojson(indent=1000000000) }}"
    said += "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}"
    found = FileTokenizer(None, said).chat([{"role": "user", "content": "ö"}])
    assert found == '{"role": "user", "content": "\\u00f6"}[\n        1\n]{"a": 2, "b": 1}'
    assert FileTokenizer(None, "{% if tools is not none or documents is not none %}x{% endif %}").chat(USER) == ""


def test_ordinary_added_tokens_stay_in_the_text_and_dropout_is_off(tmp_path):
    letters = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    (tmp_path / "vocab.json").write_text(json.dumps({**letters, "ab": 256}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    added = {"257": {"content": "<tool_call>", "special": False}, "258": {"content": "<|end|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    words = read_tokenizer(tmp_path)
    assert words.encode("ab<tool_call><|end|>") == [256, 257, 258]
    assert words.decode([256, 257, 258]) == "ab<tool_call>"
    made = json.loads(words.fast.to_str())
    made["model"]["dropout"] = 0.9
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    again = read_tokenizer(tmp_path)
    assert {tuple(again.encode("abab")) for _ in range(20)} == {(256, 256)}
