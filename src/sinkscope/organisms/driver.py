"""Trains several organisms side by side on one GPU and leaves flat files: two per organism, ready to be unpacked.

    python -m sinkscope.organisms.driver OUT --recipes causal,scratch,adapted,multimodal

Recipes that start from another one of the list wait for it; all others run at the same time, each in a process of its own,
over one corpus. `unpack` puts what comes back into the folders of the package.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError, nearest
from sinkscope.organisms.layout import write_json
from sinkscope.organisms.recipe import RECIPES
from sinkscope.organisms.start import WEIGHTS

TEXTS = ("config.json", "generation_config.json", "tokenizer_config.json", "training.json", "emergence.json")


def phases(names: list[str]) -> list[list[str]]:
    """Recipes in the order in which they can run.

    >>> phases(["adapted", "causal", "scratch"])
    [['causal', 'scratch'], ['adapted']]
    """
    for name in names:
        if name not in RECIPES:
            raise InputError(f"unknown recipe {name!r}: {nearest(name, RECIPES)}")
    first = [name for name in names if RECIPES[name].starts_from not in names]
    later = [name for name in names if name not in first]
    return [sorted(first), sorted(later)] if later else [sorted(first)]


def drive(work: Path, out: Path, names: list[str], seconds: float, options: list[str], measured: int) -> bool:
    """Runs everything; True when all went well. Whatever was finished is in `out`, whatever happens to the rest."""
    work.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    corpus = work / "corpus"
    began = time.monotonic()
    if not (corpus / "corpus.json").exists():
        subprocess.run([sys.executable, "-m", "sinkscope.organisms.corpus", str(corpus)], check=True)  # noqa: S603
    fine = True
    for phase in phases(names):
        running = {}
        for name in phase:
            command = [sys.executable, "-m", "sinkscope.organisms.command", name, "--out", str(work / name)]
            command += ["--documents", str(corpus), *options]
            base = RECIPES[name].starts_from
            if base is not None and (work / base / "model.safetensors").exists():
                command += ["--init", str(work / base)]
            # Each process has a cache of its own: two that compile the same graph at once would wait for each other.
            environment = {
                **os.environ,
                "OMP_NUM_THREADS": "4",
                "TORCHINDUCTOR_CACHE_DIR": str(work / f"cache-{name}"),
            }
            running[name] = subprocess.Popen(command, env=environment)  # noqa: S603
        for name, process in running.items():
            try:
                process.wait(max(1.0, seconds - (time.monotonic() - began)))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.returncode == 0:
                pack(work / name, out, name)
            else:
                print(f"{name} ended with {process.returncode}", flush=True)
                fine = False
        for name in phase:
            if measured and (work / name / "training.json").exists():
                fine = _measure(work / name, out, name, measured) and fine
    return fine


def _measure(folder: Path, out: Path, name: str, count: int) -> bool:
    from sinkscope.organisms.measure import answers

    try:
        began = time.monotonic()
        write_json(folder / "answers.json", answers(folder, count))
        print(f"{name}: {count} answers per task in {time.monotonic() - began:.0f} s", flush=True)
        pack(folder, out, name)
    except (
        Exception
    ) as error:  # the weights are worth more than the measurement, which can be repeated anywhere
        print(f"{name} could not be measured: {error!r}", flush=True)
        return False
    return True


def pack(folder: Path, out: Path, name: str) -> None:
    """NAME.safetensors and NAME.json, which holds every other file."""
    bundle: dict[str, Any] = {
        file: json.loads((folder / file).read_text(encoding="utf-8"))
        for file in (*TEXTS, "answers.json")
        if (folder / file).exists()
    }
    bundle["log.jsonl"] = (folder / "log.jsonl").read_text(encoding="utf-8")
    write_json(out / f"{name}.json", bundle)
    shutil.copyfile(folder / "model.safetensors", out / f"{name}.safetensors")


def unpack(packed: Path, name: str, weights: Path = WEIGHTS) -> Path:
    """The folder of an organism, from the two files that `pack` wrote. Answers stay out: they are graded, not shipped."""
    from sinkscope.organisms.tokenizer import FILE

    bundle = json.loads((packed / f"{name}.json").read_text(encoding="utf-8"))
    folder = weights / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in TEXTS:
        if file in bundle:
            write_json(folder / file, bundle[file], compact=file == "emergence.json")
    (folder / "log.jsonl").write_text(bundle["log.jsonl"], encoding="utf-8")
    shutil.copyfile(packed / f"{name}.safetensors", folder / "model.safetensors")
    shutil.copyfile(FILE, folder / "tokenizer.json")
    return folder


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train organisms side by side on one GPU.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--work", type=Path, default=Path("organisms-work"))
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="stop what is still running after this long"
    )
    parser.add_argument("--measure", type=int, default=500, help="held-out questions per task; 0: none")
    options, passed_on = parser.parse_known_args()
    names = [name for name in options.recipes.split(",") if name]
    sys.exit(not drive(options.work, options.out, names, options.seconds, passed_on, options.measure))


if __name__ == "__main__":
    main()
