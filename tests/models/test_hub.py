"""Loading from the hub, with a local server in its place: what is fetched, at which revision, and what works offline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.helpers import golden
from tests.helpers.hub import Hub, serving
from tests.helpers.tokenizers import golden_with_tokenizer

import sinkscope as ss

FIRST, SECOND = "a" * 40, "b" * 40
NEVER = (
    "modeling_llada.py", "pytorch_model.bin", "onnx/model.onnx", "README.md", "model.gguf", "other.safetensors",
)  # fmt: skip


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as found:
        yield found


def load(address: str, home: Path, name: str, revision: str = "", offline: bool = False) -> dict[str, object]:
    """ss.load with nothing but this hub and this cache: what came of it, or the error."""
    settings = {
        "ENDPOINT": address,
        "HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_HUB_OFFLINE": offline,
    }
    with pytest.MonkeyPatch.context() as patch:
        for key, value in settings.items():
            patch.setattr(constants, key, value)
        try:
            model = ss.load(name, device="cpu", revision=revision or None)
        except ss.SinkscopeError as error:
            return {"error": str(error)}
    return {
        "revision": model.revision,
        "source": model.source,
        "logit": float(model.logits([[1, 2, 3]])[0, 0, 0]),
        "tokens": None if model.tokenizer is None else len(model.tokenizer),
        "digest": model.digest,
    }


def repository(folder: Path, family: str = "llada") -> Path:
    """A golden checkpoint with a tokenizer and many files that must not be fetched."""
    golden_with_tokenizer(family, folder)
    (folder / "onnx").mkdir()
    for name in NEVER:
        (folder / name).write_bytes(b"never to be fetched")
    return folder


@pytest.mark.slow
def test_only_what_is_needed_is_fetched_and_the_revision_is_recorded(hub: Hub, tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository")
    hub.add("someone/tiny", folder, FIRST, "main")
    found = load(hub.address, tmp_path / "home", "someone/tiny")
    assert found["revision"] == FIRST
    assert found["source"] == "someone/tiny"
    assert found["tokens"] == 507
    asked = hub.files_asked_for()
    needed = {path.name for path in golden.checkpoint("llada").iterdir()} | {"tokenizer.json", "tokenizer_config.json"}
    assert asked == needed
    assert not asked & set(NEVER)
    cached = {path.name for path in (tmp_path / "home").rglob("*") if path.is_symlink() or path.is_file()}
    assert not cached & {Path(name).name for name in NEVER}
    resolved = {path.split("/resolve/")[1].split("/")[0] for _, path in hub.requests if "/resolve/" in path}
    assert resolved == {FIRST}, "every file at the one commit, or a push in between could mix two revisions"
    local = ss.load(folder, device="cpu")
    assert found["logit"] == float(local.logits([[1, 2, 3]])[0, 0, 0])
    assert found["digest"] == local.digest


@pytest.mark.slow
@pytest.mark.parametrize("how", ["HF_HUB_OFFLINE", "no server"])
def test_a_second_load_works_offline(hub: Hub, how: str, tmp_path: Path) -> None:
    hub.add("someone/tiny", repository(tmp_path / "repository"), FIRST, "main")
    first = load(hub.address, tmp_path / "home", "someone/tiny")
    before = len(hub.requests)
    if how == "HF_HUB_OFFLINE":
        second = load(hub.address, tmp_path / "home", "someone/tiny", offline=True)
    else:
        second = load("http://127.0.0.1:9", tmp_path / "home", "someone/tiny")
    assert second == first
    assert len(hub.requests) == before
    pinned = load(hub.address, tmp_path / "home", "someone/tiny", FIRST, offline=True)
    assert pinned == first


@pytest.mark.slow
def test_a_second_load_online_fetches_no_weights_again(hub: Hub, tmp_path: Path) -> None:
    hub.add("someone/tiny", repository(tmp_path / "repository"), FIRST, "main")
    load(hub.address, tmp_path / "home", "someone/tiny")
    hub.requests.clear()
    load(hub.address, tmp_path / "home", "someone/tiny")
    assert not [path for method, path in hub.requests if method == "GET" and "/resolve/" in path]


@pytest.mark.slow
def test_revisions(hub: Hub, tmp_path: Path) -> None:
    """Branches and commits name different weights; the newest is taken when none is named."""
    old = repository(tmp_path / "old")
    new = repository(tmp_path / "new", "dream")
    hub.add("someone/tiny", old, FIRST, "v1")
    hub.add("someone/tiny", new, SECOND, "main")
    home = tmp_path / "home"
    assert load(hub.address, home, "someone/tiny")["revision"] == SECOND
    assert load(hub.address, home, "someone/tiny", "v1")["revision"] == FIRST
    assert load(hub.address, home, "someone/tiny", FIRST)["revision"] == FIRST
    offline = load(hub.address, home, "someone/tiny", offline=True)
    assert offline["revision"] == SECOND, "offline too: what main was when it was last seen"
    assert load(hub.address, home, "someone/tiny", "v1", offline=True)["revision"] == FIRST


@pytest.mark.slow
def test_single_weight_files_and_causal_models(hub: Hub, tmp_path: Path) -> None:
    hub.add("someone/dream", repository(tmp_path / "dream", "dream"), FIRST, "main")
    hub.add("someone/llama", repository(tmp_path / "llama", "llama"), SECOND, "main")
    for name, commit in (("dream", FIRST), ("llama", SECOND)):
        hub.requests.clear()
        assert load(hub.address, tmp_path / "home", f"someone/{name}")["revision"] == commit
        assert not hub.files_asked_for() & set(NEVER)


@pytest.mark.slow
def test_without_a_tokenizer(hub: Hub, tmp_path: Path) -> None:
    shutil.copytree(golden.checkpoint("dream"), tmp_path / "repository")
    hub.add("someone/tiny", tmp_path / "repository", FIRST, "main")
    assert load(hub.address, tmp_path / "home", "someone/tiny")["tokens"] is None
    assert hub.files_asked_for() == {"config.json", "generation_config.json", "model.safetensors"}


@pytest.mark.slow
def test_errors_say_what_to_do(hub: Hub, tmp_path: Path) -> None:
    hub.add("someone/tiny", repository(tmp_path / "repository"), FIRST, "main")
    home = tmp_path / "home"

    def error(name: str, revision: str = "", address: str = hub.address, offline: bool = False) -> str:
        message = str(load(address, home, name, revision, offline)["error"])
        assert "\n" not in message
        return message

    assert "someone/other" in error("someone/other")
    assert "spelling" in error("someone/other")
    assert "v9" in error("someone/tiny", "v9")
    assert "branch, tag or commit" in error("someone/tiny", "v9")
    message = error("someone/tiny", offline=True)
    assert "hub cannot be reached" in message
    assert "network" in error("someone/tiny", address="http://127.0.0.1:9")
    assert "owner/name" in error("not a name!")
    assert "owner/name" in error("a/b/c")
    assert not hub.files_asked_for()


def test_repositories_without_safetensors_or_config(hub: Hub, tmp_path: Path) -> None:
    pickle = tmp_path / "pickle"
    pickle.mkdir()
    shutil.copy(golden.checkpoint("dream") / "config.json", pickle)
    (pickle / "pytorch_model.bin").write_bytes(b"pickle")
    hub.add("someone/pickle", pickle, FIRST, "main")
    message = str(load(hub.address, tmp_path / "home", "someone/pickle")["error"])
    assert "pytorch_model.bin" in message
    assert "safetensors" in message or "save_pretrained" in message
    assert "someone/pickle" in message
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "README.md").write_text("nothing here")
    hub.add("someone/empty", empty, FIRST, "main")
    assert "config.json" in str(load(hub.address, tmp_path / "home", "someone/empty")["error"])
    assert "pytorch_model.bin" not in hub.files_asked_for()


FETCH = """
import sys
from sinkscope.models.load import find
found = find(sys.argv[1])
print(found.revision, found.digest == find(sys.argv[2]).digest)
"""
LOAD = """
import sys, torch
import sinkscope as ss
model = ss.load(sys.argv[1], device="cpu")
print(model.revision, torch.equal(model.logits([[1, 2, 3]]), ss.load(sys.argv[2], device="cpu").logits([[1, 2, 3]])))
"""


@pytest.mark.slow
def test_as_a_user_would_set_it_up(hub: Hub, tmp_path: Path) -> None:
    """A process of its own with HF_ENDPOINT and HF_HOME: fetched online, and then loaded offline."""
    folder = repository(tmp_path / "repository")
    hub.add("someone/tiny", folder, FIRST, "main")
    for offline, program in (("0", FETCH), ("1", LOAD)):
        environment = {
            **os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": offline,
        }  # fmt: skip
        environment.pop("HF_HUB_CACHE", None)
        done = subprocess.run(
            [sys.executable, "-c", program, "someone/tiny", str(folder)], capture_output=True, text=True, env=environment,
            timeout=200, check=False,
        )  # fmt: skip
        assert done.stdout.split() == [FIRST, "True"], done.stderr
    assert not hub.files_asked_for() & set(NEVER)
