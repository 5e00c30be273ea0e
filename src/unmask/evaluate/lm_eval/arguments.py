"""model_args of lm-eval -> ModelArgs; generation_kwargs of its tasks -> TextRequest: a Recipe, stop strings, notes.

Drawing and length of model_args take precedence over those of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from unmask.decoding.likelihood import DRAWS
from unmask.decoding.named_recipes import RECIPES
from unmask.decoding.recipe import Recipe, read_settings
from unmask.decoding.settings import ALIASES, known
from unmask.errors import SettingError, unknown

LENGTH = 256  # tokens where neither model_args nor the task say it: what lm-eval's own models take
LONGEST = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # in lm-eval's order
NAMES = {"model_path": "pretrained", "model": "pretrained"}
SETTING_NAMES = {**ALIASES, "cfg": "guidance", "block_size": "block_length"}  # LLaDA's and dllm's adapters say so
# generation_kwargs of other decoders: the values that ask for nothing
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "min_p": (0,),
    "no_repeat_ngram_size": (0,),
    "min_new_tokens": (0,),
    "early_stopping": (False,),
    "use_cache": (True, False),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "think_end_token": (),
    "max_length": (),
    "stop": (),
}


@dataclass(frozen=True)
class ModelArgs:
    """model_args by name; `settings` are those of the recipe, under their own names."""

    pretrained: str
    device: str | None = None  # None: a GPU where there is one, as lm-eval's own models choose
    dtype: str | None = None
    mask_id: int | None = None
    tokenizer: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    shift: bool = False
    batch_size: int = 1  # prompts that are decoded together; rows, where likelihoods are asked
    max_rows: int | None = None
    max_length: int | None = None  # a shorter context than the model's own
    mc_num: int = DRAWS
    is_check_greedy: bool = True
    rows: str | None = None  # a file
    settings: dict[str, Any] = field(default_factory=dict)


OPTIONS = {one.name: str(one.type).split(" ")[0] for one in fields(ModelArgs) if one.name != "settings"}
POSITIVE = ("batch_size", "max_rows", "max_length", "mc_num")


def options(model_args: Mapping[str, Any]) -> ModelArgs:
    """model_args -> ModelArgs; an unknown name is an error, and None counts as not given."""
    own: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    base: dict[str, Any] = {}
    for given, value in model_args.items():
        if value is None:
            continue
        name = NAMES.get(given, SETTING_NAMES.get(given, given))
        if name in own or name in settings:
            raise SettingError(f"{name} is given twice", "leave one out")
        if name in OPTIONS:
            own[name] = _option(name, value)
        elif name in known():
            settings[name] = _setting(name, value)
        elif name == "recipe":
            base = _shipped(value)
        else:
            names = [*OPTIONS, "recipe", *known(), *SETTING_NAMES, *NAMES]
            raise unknown("model_arg", given, names, "see docs/guide/lm-eval.md")
    if "pretrained" not in own:
        raise SettingError("pretrained is missing", "name a model: --model_args pretrained=text")
    settings = {**base, **settings}
    Recipe.from_dict({"length": 1, **settings})  # errors come before a model is loaded
    return ModelArgs(**own, settings=settings)


def _option(name: str, value: Any) -> Any:
    """The value with its exact type."""
    kind = OPTIONS[name]
    if name == "dtype" and value == "auto":
        return None
    if name == "batch_size" and str(value).startswith("auto"):
        raise SettingError(
            f"batch_size is {value}", "give a number: prompts at a time, rows where likelihoods are asked"
        )
    if kind == "int" and isinstance(value, str) and value.isdecimal():
        value = int(value)
    if kind == "str" and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # lm-eval has made a number of a revision
    if type(value).__name__ != kind:
        raise SettingError(f"{name} is {value!r}", f"give {'an' if kind == 'int' else 'a'} {kind}")
    if name in POSITIVE and value < 1:
        raise SettingError(f"{name} is {value}", "it must be at least 1")
    return value


def _setting(name: str, value: Any) -> Any:
    """A list is written with semicolons, since commas stand between model_args: ban=eos;5."""
    if known()[name].kind is tuple and isinstance(value, str):
        return tuple(part.strip() for part in value.strip("[]").split(";") if part.strip())
    return value


def _shipped(name: Any) -> dict[str, Any]:
    """The settings of one of `unmask recipes`, or of a file, under their own names."""
    if name in RECIPES:
        found = RECIPES[name].settings
    elif isinstance(name, str) and (Path(name).suffix or Path(name).exists()):
        found = read_settings(name)
    else:
        raise unknown("recipe", name, RECIPES, "`unmask recipes` lists them")
    return {SETTING_NAMES.get(key, key): value for key, value in found.items()}


# --- what a task asks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextRequest:
    """How a text is requested."""

    recipe: Recipe
    until: tuple[str, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)  # what the user should know, each a line

    def cut(self, text: str) -> str:
        """The text before the first stop string."""
        return text[: min((text.find(stop) for stop in self.until if stop in text), default=len(text))]


def ask(given: ModelArgs, generation_kwargs: Mapping[str, Any], limit: int | None) -> TextRequest:
    """The recipe of model_args, completed by what a task says."""
    task = {name: value for name, value in generation_kwargs.items() if value is not None}
    until = task.pop("until", [])
    stops = (until,) if isinstance(until, str) else tuple(until)
    wanted = next((task[name] for name in LONGEST if name in task), LENGTH)
    task = {name: value for name, value in task.items() if name not in LONGEST}
    drawn, task = _drawing(task)
    notes, more = [], {}
    for name, value in task.items():
        setting = SETTING_NAMES.get(name, name)
        if setting in known():
            more[setting] = _setting(setting, value)
        elif name not in NEUTRAL:
            raise unknown("generation_kwargs", name, [*LONGEST, *known(), *SETTING_NAMES, "until", "do_sample"])
        elif value not in NEUTRAL[name]:
            notes.append(f"the task asks for {name}={value}, which has no meaning here and is left out")
    if "temperature" in given.settings:
        if drawn != {"temperature": float(given.settings["temperature"])}:
            asked = ", ".join(f"{name}={value:g}" for name, value in drawn.items())
            notes.append(f"the task asks for {asked}; model_args hold: temperature={given.settings['temperature']:g}")
    else:
        more |= drawn
    length, note = _length(given, wanted, limit)
    settings = {**more, "length": length, **given.settings}
    return TextRequest(Recipe.from_dict(settings), tuple(s for s in stops if s), tuple(notes + note))


def _drawing(task: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """How tokens are drawn, by what lm-eval means with do_sample and temperature; and all the rest."""
    rest = dict(task)
    sample, temperature = rest.pop("do_sample", None), rest.pop("temperature", None)
    names = [name for name in ("top_k", "top_p") if name in rest]
    filters: dict[str, float] = {name: rest.pop(name) for name in names}
    if sample is False or (sample is None and not temperature) or temperature == 0:
        return {"temperature": 0.0}, rest
    filters = {name: value for name, value in filters.items() if (value > 0 if name == "top_k" else value < 1)}
    return {"temperature": float(1.0 if temperature is None else temperature), **filters}, rest


def _length(given: ModelArgs, wanted: Any, limit: int | None) -> tuple[int, list[str]]:
    """Positions to generate: as model_args say, else as the task says, at most half of the model's context."""
    own = given.settings.get("length")
    if own is not None:
        if limit is not None and isinstance(own, int) and own > limit:
            raise SettingError(f"length is {own}", f"{given.pretrained} has room for {limit} positions")
        return own, []
    try:
        length = int(wanted)
    except (TypeError, ValueError):
        raise SettingError(f"the task asks for {wanted!r} tokens", "give max_gen_toks as a whole number") from None
    if limit is not None and length > max(1, limit // 2):
        half = max(1, limit // 2)
        note = f"the task asks for up to {length} tokens; {half} are generated, half of the context of {limit}"
        return half, [f"{note}: length= in model_args says otherwise"]
    return length, []
