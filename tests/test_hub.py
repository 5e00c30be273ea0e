"""Models of the hub, from a small hub of our own: what is downloaded, what is kept, and what each failure says."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import torch
from huggingface_hub import constants
from torch import Tensor

from unmask.errors import ModelError
from unmask.models import load
from unmask.models.files.checkpoint import inside
from unmask.models.files.hub import download
from unmask.models.tokenizers import byte_level
from unmask.tasks import TASKS

MODELS = Path(__file__).parent / "parity" / "models"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REVISIONS = ("main", "v1", COMMIT)
PATIENCE = 15  # seconds; the library's own retries would take longer
Files = Mapping[str, bytes]


# --- a hub -----------------------------------------------------------------------------------------------------------


class Hub(ThreadingHTTPServer):
    """Serves repositories as huggingface.co does, as far as a download asks; `asked` is what was asked for."""

    daemon_threads = True

    def __init__(self, repositories: Mapping[str, Files], gated: tuple[str, ...] = (), ill: tuple[str, ...] = ()):
        super().__init__(("127.0.0.1", 0), Page)
        self.repositories, self.gated, self.ill = repositories, gated, ill
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Page(BaseHTTPRequestHandler):
    """One answer, in HTTP/1.0: no connection outlives it, so that a hub that stops is gone."""

    server: Hub

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        self.server.asked.append(f"{self.command} {'/'.join(parts)}")
        api = parts[0] == "api"
        parts = parts[1:] if parts[0] == "datasets" else parts
        name, rest = ("/".join(parts[2:4]), parts[4:]) if api else ("/".join(parts[:2]), parts[2:])
        kind, revision, *path = rest or ["revision", "main"]
        files = self.server.repositories.get(name)
        if files is None:
            self.refuse(404, "RepoNotFound", "Repository not found")
        elif name in self.server.ill:
            self.refuse(500, "", "Internal Error")
        elif revision not in REVISIONS:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif api:
            self.answer(json.dumps(about(name, files) if kind == "revision" else tree(files)).encode())
        elif name in self.server.gated:
            self.refuse(401, "GatedRepo", f"Access to model {name} is restricted.")
        elif "/".join(path) not in files:
            self.refuse(404, "EntryNotFound", "Entry not found")
        else:
            self.answer(files["/".join(path)])

    do_HEAD = do_GET

    def refuse(self, status: int, code: str, message: str) -> None:
        self.answer(json.dumps({"error": message}).encode(), status, {"X-Error-Code": code, "X-Error-Message": message})

    def answer(self, content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        own = {"Content-Length": str(len(content)), "X-Repo-Commit": COMMIT, "ETag": f'"{digest(content)}"'}
        for name, value in {**own, **(headers or {})}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *given: object) -> None: ...


def digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def about(name: str, files: Files) -> dict[str, Any]:
    return {"id": name, "sha": COMMIT, "private": False, "siblings": [{"rfilename": file} for file in files]}


def tree(files: Files) -> list[dict[str, Any]]:
    return [{"type": "file", "path": path, "size": len(one), "oid": digest(one)} for path, one in files.items()]


def of(family: str) -> dict[str, bytes]:
    """A recorded tiny checkpoint, with what else may lie in a repository."""
    own = {name: (MODELS / family / name).read_bytes() for name in ("config.json", "model.safetensors")}
    code = b"raise SystemExit('this ran')"
    return {**own, f"modeling_{family}.py": code, "evil.py": code, "pytorch_model.bin": b"\x80\x04.", "README.md": b"#"}


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes calls and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def nobody() -> str:
    """Where no server is."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


# --- a user ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def visit(monkeypatch) -> Callable[..., None]:
    """Go to a hub, with a cache of one's own; the library reads its settings once, so that they are set by hand."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)

    def at(url: str, home: Path, offline: bool = False, wait: float = 10.0) -> None:
        settings = {
            "ENDPOINT": url,
            "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_TOKEN_PATH": str(home / "token"),
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_ETAG_TIMEOUT": wait,
            "HF_HUB_OFFLINE": offline,
        }
        for name, value in settings.items():
            monkeypatch.setattr(constants, name, value)

    return at


def snapshot(home: Path, name: str) -> Path:
    return home / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / COMMIT


def weight(name: str | Path, revision: str | None = None) -> Tensor:
    """The head of a model, which is loaded in a short time."""
    start = monotonic()
    model = load(name, revision=revision)
    assert monotonic() - start < PATIENCE
    return model.head.weight


# --- what is downloaded ----------------------------------------------------------------------------------------------


def test_downloads_once_and_loads_without_a_network(visit, tmp_path, silent):
    expected = weight(MODELS / "llada")
    with serving(Hub({"tiny/llada": of("llada")})) as hub:
        visit(hub.url, tmp_path)
        for revision in (None, "v1", COMMIT):
            assert torch.equal(weight("tiny/llada", revision), expected)
    fetched = sorted(line.rpartition("/")[2] for line in hub.asked if line.startswith("GET tiny/llada/resolve"))
    assert fetched == ["config.json", "model.safetensors"]  # once each, and nothing else
    assert not any(line.endswith((".py", ".bin", ".md")) for line in hub.asked)
    place = snapshot(tmp_path, "tiny/llada")
    assert sorted(path.name for path in place.iterdir()) == fetched

    for url, offline in ((hub.url, False), (silent, False), (hub.url, True)):  # the hub is gone, slow, forbidden
        visit(url, tmp_path, offline, wait=0.5)
        assert torch.equal(weight("tiny/llada"), expected)
    assert torch.equal(weight("tiny/llada", "v1"), expected)


def test_links_into_the_blobs_of_the_cache_are_followed(visit, tmp_path):
    with serving(Hub({"tiny/llada": of("llada")})) as hub:
        visit(hub.url, tmp_path)
        place = download("tiny/llada")
    assert place == snapshot(tmp_path, "tiny/llada")
    file = place / "model.safetensors"
    assert file.is_symlink() and file.resolve().parent == place.parent.parent / "blobs"
    assert inside(place, file.name) == file
    assert weight(place).isfinite().all()


def test_links_into_the_blobs_that_models_share_are_followed(tmp_path):
    """huggingface_hub 2 may keep weights in a store of the whole cache; the model's own blob is then a link there."""
    shared = pytest.importorskip("huggingface_hub.utils._shared_blobs")
    place, own = snapshot(tmp_path, "tiny/llada"), of("llada")
    blobs = place.parent.parent / "blobs"
    place.mkdir(parents=True)
    blobs.mkdir()
    for name in ("config.json", "model.safetensors"):
        (blobs / digest(own[name])).write_bytes(own[name])
        (place / name).symlink_to(Path("../../blobs") / digest(own[name]))
    assert shared.publish_blob_to_shared_store(
        blob_path=str(blobs / digest(own["model.safetensors"])),
        xet_hash=hashlib.sha256(own["model.safetensors"]).hexdigest(),
        cache_dir=tmp_path / "hub",
        expected_size=len(own["model.safetensors"]),
    )
    assert (place / "model.safetensors").resolve().parent.parent == tmp_path / "hub" / "blobs"
    assert torch.equal(weight(place), weight(MODELS / "llada"))


def test_borrows_a_tokenizer(visit, tmp_path):
    """MDLM publishes none: it is GPT-2's, of which nothing else is downloaded."""
    letters = {str(digit): digit for digit in range(10)} | {"Ġ": 10}
    words = json.dumps(byte_level(letters, [], {"<|endoftext|>": 98})).encode()
    gpt2 = {"tokenizer.json": words, "config.json": b"{}", "model.safetensors": b"large", "evil.py": b"boom"}
    with serving(Hub({"tiny/mdlm": of("mdlm"), "openai-community/gpt2": gpt2})) as hub:
        visit(hub.url, tmp_path)
        first = load("tiny/mdlm")
    again = load("tiny/mdlm")  # the hub is gone
    for model in (first, again):
        assert model.tokenizer.encode("12 7") == [1, 2, 10, 7]
        assert model.vocab.eos == ()
    assert [path.name for path in snapshot(tmp_path, "openai-community/gpt2").iterdir()] == ["tokenizer.json"]

    with serving(Hub({"tiny/mdlm": of("mdlm")})) as hub:
        visit(hub.url, tmp_path / "new")
        refused("tiny/mdlm", None, "no model 'openai-community/gpt2'")


def test_settings_of_the_environment(tmp_path):
    """As a user has it: nothing is set by hand."""
    program = "import sys, unmask; print(unmask.load(sys.argv[1]).name)"
    own = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own |= {"HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    own |= {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    call = [sys.executable, "-c", program, "tiny/llada"]
    with serving(Hub({"tiny/llada": of("llada")})) as hub:
        there = own | {"HF_ENDPOINT": hub.url}
        users = [subprocess.Popen(call, env=there, **pipes)]
        users += [subprocess.Popen(call, env={**there, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "0")}, **pipes)]
        (name, _), (_, trouble) = (user.communicate(timeout=60) for user in users)
    assert name == "tiny/llada\n" and snapshot(tmp_path, "tiny/llada").is_dir()
    assert users[1].returncode and "ModelError: cannot download tiny/llada" in trouble.splitlines()[-1]


def test_the_file_of_a_task_is_downloaded_once(visit, tmp_path, silent):
    source, line = TASKS["math500"].source, b'{"problem": "1+1?", "answer": "2"}\n'
    with serving(Hub({source.repo: {source.file: line, "README.md": b"#"}})) as hub:
        visit(hub.url, tmp_path)
        assert [one.gold for one in TASKS["math500"].examples()] == ["2"]
    fetched = [one for one in hub.asked if one.startswith("GET datasets/")]
    assert fetched == [f"GET datasets/{source.repo}/resolve/{COMMIT}/{source.file}"]
    visit(silent, tmp_path, wait=0.5)
    assert [one.gold for one in TASKS["math500"].examples()] == ["2"]


# --- what goes wrong -------------------------------------------------------------------------------------------------


def refused(name: str, revision: str | None, *texts: str) -> None:
    """Loading fails soon, with one line that has these texts."""
    start = monotonic()
    with pytest.raises(ModelError) as caught:
        load(name, revision=revision)
    assert monotonic() - start < PATIENCE
    assert "\n" not in str(caught.value) and caught.value.hint
    for text in texts:
        assert text in str(caught.value)


def test_models_that_are_not_to_be_had(visit, tmp_path):
    own = of("llada")
    repositories = dict.fromkeys(["tiny/llada", "tiny/gated", "tiny/ill"], own)
    repositories["tiny/pickle"] = {name: own[name] for name in ("config.json", "pytorch_model.bin")}
    repositories["tiny/empty"] = {"README.md": b"#"}
    with serving(Hub(repositories, gated=("tiny/gated",), ill=("tiny/ill",))) as hub:
        visit(hub.url, tmp_path)
        refused("tiny/none", None, "no model 'tiny/none' on the hub, or it is private", "check the name")
        refused("tiny/llada", "v9", "tiny/llada has no revision 'v9'", "branch, tag or commit")
        refused("tiny/gated", None, "tiny/gated asks for an agreement", "`hf auth login`")
        refused("tiny/ill", None, "cannot download tiny/ill", "500", "`hf download tiny/ill --local-dir DIR`")
        refused("tiny/pickle", None, "has no model.safetensors")
        refused("tiny/empty", None, "config.json")


@pytest.mark.parametrize("revision", [None, "v1", COMMIT])
@pytest.mark.parametrize("reason", ["refused", "timed out", "offline"])
def test_a_hub_that_does_not_answer(visit, tmp_path, silent, reason, revision):
    visit(silent if reason == "timed out" else nobody(), tmp_path, offline=reason == "offline", wait=0.5)
    way_out = "run `hf download tiny/llada --local-dir DIR`, and give DIR as the model here"
    refused("tiny/llada", revision, "cannot download tiny/llada", reason, way_out)


def test_a_tokenizer_that_is_not_to_be_had(visit, tmp_path):
    visit(nobody(), tmp_path)
    with pytest.raises(ModelError, match=r"hf download tiny/words --local-dir DIR`, and give DIR as the tokenizer"):
        load(MODELS / "mdlm", tokenizer="tiny/words")


def test_a_cache_that_lacks_files(visit, tmp_path):
    """A download that was cut short, and then no network: it says so rather than load a part."""
    with serving(Hub({"tiny/llada": of("llada")})) as hub:
        visit(hub.url, tmp_path)
        (download("tiny/llada") / "model.safetensors").unlink()
    refused("tiny/llada", None, "cannot download tiny/llada", "refused", "`hf download tiny/llada --local-dir DIR`")
