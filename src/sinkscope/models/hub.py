"""Fetching a checkpoint from the hub: only the files that are needed, at one revision, which is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sinkscope.base.errors import CheckpointError
from sinkscope.base.files import one_line
from sinkscope.models.checkpoint import INDEX, SINGLE, TOKENIZER_FILES, Checkpoint, no_weights, read_table

SMALL = ("config.json", "generation_config.json", *TOKENIZER_FILES)
"""What is fetched besides the weights. No Python file is among them."""


def fetch(repository: str, revision: str | None) -> Checkpoint:
    """The checkpoint `owner/name` at `revision` (None: the newest), downloaded where the cache lacks it.

    Without a network the newest cached revision is used, if there is one.
    """
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = HfApi().model_info(repository, revision=revision)
    except HFValidationError as error:
        raise CheckpointError(
            f"{repository!r} is neither a folder here nor a hub id of the form owner/name ({one_line(error)})"
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(
            f"{repository} has no revision {revision!r} on the hub; give a branch, tag or commit"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{repository} is neither a folder here nor a model on the hub; check the spelling, or log in if it is gated"
        ) from error
    except Exception as error:  # offline: which class it is depends on the HTTP library underneath
        return _cached(repository, revision, error)
    sha = str(info.sha)
    available = {entry.rfilename for entry in info.siblings or []}

    def download(name: str) -> Path:
        try:
            return Path(hf_hub_download(repository, name, revision=sha))
        except Exception as error:
            raise CheckpointError(
                f"{repository}: {name} could not be fetched ({one_line(error)}); try again"
            ) from error

    if "config.json" not in available:
        raise CheckpointError(
            f"{repository} has no config.json on the hub; it is not a model in the Hugging Face layout"
        )
    folder = download("config.json").parent
    for name in wanted(repository, available):
        download(name)
    if INDEX in available:
        weights: dict[str, Any] = read_table(folder / INDEX).get("weight_map", {})
        for shard in sorted({str(shard) for shard in weights.values()} & available):
            download(shard)
    _remember(folder, revision or "main", sha)
    return Checkpoint(folder, repository, sha)


def wanted(repository: str, available: set[str]) -> list[str]:
    """The small files and the index or the single weight file, of those that the repository has; pickles are not fetched."""
    weights = [name for name in (INDEX, SINGLE) if name in available]
    if not weights:
        raise no_weights(repository, available)
    return [*(name for name in SMALL if name in available and name != "config.json"), weights[0]]


def _remember(folder: Path, revision: str, sha: str) -> None:
    """Notes in the hub's cache what a branch or tag meant, which fetching by commit does not: offline it is looked up there."""
    if revision != sha:
        reference = folder.parents[1] / "refs" / revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(sha, encoding="utf-8")


def _cached(repository: str, revision: str | None, error: Exception) -> Checkpoint:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except Exception:
        raise CheckpointError(
            f"{repository} is neither a folder here nor in the local cache, and the hub cannot be reached "
            f"({one_line(error)}); check the path, or the network"
        ) from error
    return Checkpoint(folder, repository, folder.name)
