"""A hub id like GSAI-ML/LLaDA-8B-Instruct -> the directory of its files, downloaded once."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from unmask.errors import ModelError

ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TOKENIZER = (
    "tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json merges.txt "
    "chat_template.jinja"
).split()
MODEL = ["config.json", "model*.safetensors", "model.safetensors.index.json", *TOKENIZER]


def is_hub_id(name: str) -> bool:
    """Whether a name can be a model of the hub."""
    return bool(ID.fullmatch(name)) and ".." not in name and "--" not in name


def download(name: str, revision: str | None = None, files: list[str] = MODEL) -> Path:
    """The directory with these files of a model: from the cache, or downloaded with a progress bar. Never code."""
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=files))
    except GatedRepoError:
        raise ModelError(f"{name} asks for an agreement", "accept it on its page, then run `hf auth login`") from None
    except RevisionNotFoundError:
        raise ModelError(f"{name} has no revision {revision!r}", "give a branch, tag or commit of it") from None
    except RepositoryNotFoundError:
        raise ModelError(f"there is no model {name!r} on the hub, or it is private", "check the name") from None
    except Exception as error:  # no network, a proxy, a full disk: the library raises many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise ModelError(
            f"cannot download {name} ({reason})",
            f"where there is a network, run `hf download {name} --local-dir DIR`, and give DIR as the model here",
        ) from None
