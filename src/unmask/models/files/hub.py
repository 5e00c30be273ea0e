"""A hub id like GSAI-ML/LLaDA-8B-Instruct -> the directory of its files, downloaded once."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

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
    away = _away(name, revision)
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=files, local_files_only=away is not None))
    except GatedRepoError:
        raise ModelError(f"{name} asks for an agreement", "accept it on its page, then run `hf auth login`") from None
    except RevisionNotFoundError:
        raise ModelError(f"{name} has no revision {revision!r}", "give a branch, tag or commit of it") from None
    except RepositoryNotFoundError:
        hint = "check the name, or run `hf auth login` to see what is yours"
        raise ModelError(f"there is no model {name!r} on the hub, or it is private", hint) from None
    except Exception as error:  # a network or a disk that fails halfway: the library raises many kinds
        reason = away or error
        said = (str(reason).splitlines() or [""])[0][:160] or type(reason).__name__
        part = "tokenizer" if files == TOKENIZER else "model"
        raise ModelError(
            f"cannot download {name} ({said}), and there is no such directory",
            f"where there is a network, run `hf download {name} --local-dir DIR`, and give DIR as the {part} here",
        ) from None


def _away(name: str, revision: str | None) -> Exception | None:
    """Why the hub cannot be reached; None where it answers. The library itself would wait without an end."""
    try:
        HfApi().model_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except HfHubHTTPError:  # an answer too; the download meets it again
        return None
    except Exception as error:  # no network, a proxy, offline mode, no answer in time
        return error
    return None
