"""model_args of lm-eval -> ModelArgs; generation_kwargs of its tasks -> TextRequest: a Recipe, stop strings, and notes.

Drawing and length are taken from model_args; the task decides what they leave open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unmask.decoding.likelihood import DRAWS
from unmask.decoding.named_recipes import settings_of
from unmask.decoding.recipe import Recipe
from unmask.decoding.settings import ALIASES, COUNT, known, parameters, row_of
from unmask.errors import SettingError, unknown
from unmask.tasks.task import before_any

LENGTH = 256  # tokens where neither model_args nor the task give a length: as in lm-eval's own models
LONGEST = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # in lm-eval's order
NAMES = {"model_path": "pretrained", "model": "pretrained"}
SETTING_NAMES = {**ALIASES, "cfg": "guidance", "block_size": "block_length"}  # names in LLaDA's and dllm's adapters
# generation_kwargs of other decoders: the values that change nothing
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
    """The model_args; `settings` are those of the recipe, under our names."""

    pretrained: str
    device: str | None = None  # None: a GPU if there is one, as in lm-eval's own models
    dtype: str | None = None
    weights: str | None = None  # float, int8 or int4
    adapter: str | None = None
    mask_id: int | None = None
    tokenizer: str | None = None
    revision: str | None = None
    blocks: int | None = None
    trust_remote_code: bool = False
    shift: bool = False
    batch_size: int = 1  # prompts that are decoded together; rows, where likelihoods are asked
    max_rows: int | None = None
    max_length: int | None = None  # a shorter context than the model's own
    mc_num: int = DRAWS
    is_check_greedy: bool = True
    rows: str | None = None  # a file
    ray: str | None = None  # workers of Ray do the batches: local, auto or HOST:PORT
    workers: str | None = None  # their number, or a range like 4-32
    gpus: float = 1.0  # of each worker; 0: they run on CPUs
    cpus: int = 1  # of each worker, and its threads
    settings: dict[str, Any] = field(default_factory=dict)


WORKERS = ("workers", "gpus", "cpus")  # that need ray
OPTIONS = {name: row_of(one, "model_args", "") for name, one in parameters(ModelArgs).items() if name != "settings"}
OPTIONS |= {
    name: replace(OPTIONS[name], range=COUNT) for name in ("batch_size", "max_rows", "max_length", "mc_num", "cpus")
}


def options(model_args: Mapping[str, Any]) -> ModelArgs:
    """The options; an unknown name is an error, None means not given."""
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
            base = {SETTING_NAMES.get(key, key): one for key, one in settings_of(value).items()}
        else:
            names = [*OPTIONS, "recipe", *known(), *SETTING_NAMES, *NAMES]
            raise unknown("model_arg", given, names, "see `unmask help lm-eval-details`")
    if "pretrained" not in own:
        raise SettingError("pretrained is missing", "name a model: --model_args pretrained=text")
    lone = [name for name in WORKERS if name in own and "ray" not in own]
    if lone:
        raise SettingError(f"{lone[0]} has no effect without ray", "add ray=local, ray=auto or ray=HOST:PORT")
    if "ray" in own and "device" in own:
        raise SettingError("device has no effect with ray", "gpus says where workers run")
    settings = {**base, **settings}
    Recipe.from_dict({"length": 1, **settings})  # refuses bad settings before a model is loaded
    return ModelArgs(**own, settings=settings)


def _option(name: str, value: Any) -> Any:
    """The value with its exact type."""
    kind = OPTIONS[name].kind
    if name == "dtype" and value == "auto":
        return None
    if name == "batch_size" and str(value).startswith("auto"):
        raise SettingError(
            f"batch_size is {value}", "give a number: prompts at a time, rows where likelihoods are asked"
        )
    if kind is int and isinstance(value, str) and value.isdecimal():
        value = int(value)
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # lm-eval has made a number of a revision
    return OPTIONS[name].check(value)


def _setting(name: str, value: Any) -> Any:
    """A list is written with semicolons, since commas stand between model_args: ban=eos;5."""
    if known()[name].kind is tuple and isinstance(value, str):
        return tuple(part.strip() for part in value.strip("[]").split(";") if part.strip())
    return value


# --- what a task asks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextRequest:
    """One way of generating texts."""

    recipe: Recipe
    until: tuple[str, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)  # for the user, one line each

    def cut(self, text: str) -> str:
        """The text before the first stop string."""
        return before_any(text, self.until)


def ask(given: ModelArgs, generation_kwargs: Mapping[str, Any], limit: int | None) -> TextRequest:
    """The recipe of model_args, completed by the task."""
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
    """How tokens are drawn, by lm-eval's reading of do_sample and temperature; and the rest."""
    rest = dict(task)
    sample, temperature = rest.pop("do_sample", None), rest.pop("temperature", None)
    names = [name for name in ("top_k", "top_p") if name in rest]
    filters: dict[str, float] = {name: rest.pop(name) for name in names}
    if sample is False or (sample is None and not temperature) or temperature == 0:
        return {"temperature": 0.0}, rest
    filters = {name: value for name, value in filters.items() if (value > 0 if name == "top_k" else value < 1)}
    return {"temperature": float(1.0 if temperature is None else temperature), **filters}, rest


def _length(given: ModelArgs, wanted: Any, limit: int | None) -> tuple[int, list[str]]:
    """Positions to generate: from model_args, else from the task, at most half of the model's context."""
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
        return half, [f"{note}: length= in model_args changes it"]
    return length, []
