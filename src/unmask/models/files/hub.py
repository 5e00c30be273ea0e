"""A hub id like GSAI-ML/LLaDA-8B-Instruct -> the directory of its files, downloaded once."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from unmask.errors import InputError, ModelError, first_line

ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TOKENIZER = (
    "tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json merges.txt "
    "chat_template.jinja"
).split()
SETTINGS = ["config.json", "recipe.json", "generation_config.json"]  # all that the default recipe depends on
MODEL = [*SETTINGS, "quantize_config.json", "model*.safetensors", "model.safetensors.index.json", *TOKENIZER]

PUBLISHED = """
GSAI-ML/LLaDA-8B-Instruct GSAI-ML/LLaDA-8B-Base GSAI-ML/LLaDA-1.5 GSAI-ML/iLLaDA-8B-Instruct GSAI-ML/iLLaDA-8B-Base
Dream-org/Dream-v0-Instruct-7B Dream-org/Dream-v0-Base-7B Dream-org/Dream-Coder-v0-Instruct-7B
apple/DiffuCoder-7B-Instruct apple/DiffuCoder-7B-Base fredzzp/open-dcoder-0.5B kuleshov-group/mdlm-owt
inclusionAI/LLaDA-MoE-7B-A1B-Instruct inclusionAI/LLaDA-MoE-7B-A1B-Base inclusionAI/LLaDA2.0-mini
inclusionAI/LLaDA2.1-mini JetLM/SDAR-1.7B-Chat JetLM/SDAR-4B-Chat JetLM/SDAR-8B-Chat JetLM/SDAR-30B-A3B-Chat
Gen-Verse/TraDo-8B-Instruct lulululuyi/TDAR-8B-Thinking Efficient-Large-Model/Fast_dLLM_v2_7B
Efficient-Large-Model/Fast_dLLM_v2_1.5B ByteDance-Seed/Stable-DiffCoder-8B-Instruct
ByteDance-Seed/Stable-DiffCoder-8B-Base dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1
dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1
""".split()  # the models of docs/guide/models.md


def published(name: str) -> str | None:
    """The hub id of a published model whose name is given without its owner, or only begun, or almost right."""
    ids = {full.partition("/")[2].lower(): full for full in PUBLISHED}
    begun = [known for known in ids if len(name) > 4 and known.startswith(name.lower())]
    near = begun or get_close_matches(name.lower(), ids, n=1, cutoff=0.85)
    return ids[near[0]] if near else None


def is_hub_id(name: str) -> bool:
    """Whether a name can be a repository of the hub."""
    return bool(ID.fullmatch(name)) and ".." not in name and "--" not in name


def local(name: str, revision: str | None) -> Path | None:
    """The directory of this name; None where there is none. A revision is refused: a directory has one."""
    path = Path(name).expanduser()
    if not path.is_dir():
        return None
    if revision is not None:
        raise InputError(f"revision has no effect on the directory {name!r}", "leave it out")
    return path


def download(name: str, revision: str | None = None, files: list[str] = MODEL, kind: str = "model") -> Path:
    """The directory with these files of a repository: from the cache, or downloaded with a progress bar.

    `kind` is model or dataset.
    """
    from huggingface_hub import snapshot_download  # only where something is downloaded
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    away = _away(name, revision, kind)
    try:
        return Path(
            snapshot_download(
                name, repo_type=kind, revision=revision, allow_patterns=files, local_files_only=away is not None
            )
        )
    except GatedRepoError:
        raise ModelError(f"{name} asks for an agreement", "accept it on its page, then run `hf auth login`") from None
    except RevisionNotFoundError:
        raise ModelError(f"{name} has no revision {revision!r}", "give a branch, tag or commit of it") from None
    except RepositoryNotFoundError:
        hint = "check the name, or run `hf auth login` to see your private ones"
        raise ModelError(f"there is no {kind} {name!r} on the hub, or it is private", hint) from None
    except Exception as error:  # a network or a disk that fails halfway: the library raises many kinds
        problem = f"cannot download {name} ({first_line(away or error)})"
        part = "tokenizer" if files == TOKENIZER else kind
        way_out = f"where there is a network, run `hf download {name} --local-dir DIR`, and give DIR as the {part} here"
        problem += ", and there is no such directory" if kind == "model" else ""
        raise ModelError(problem, way_out) from None


def _away(name: str, revision: str | None, kind: str) -> Exception | None:
    """Why the hub cannot be reached; None where it answers. The library itself would wait without an end."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except HfHubHTTPError:  # an answer too; the download meets it again
        return None
    except Exception as error:  # no network, a proxy, offline mode, no answer in time
        return error
    return None
