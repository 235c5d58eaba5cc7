"""A card: README.md beside an organism's weights, written from the measured files there and from nothing else.

training.json, accuracy.json and emergence.json must be there; profile.json and results.json may be missing, and then the card
says that they are. Files of other weights are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.card_parts import (
    bullets,
    count,
    emergence_tables,
    first_tables,
    masking_notes,
    masking_tables,
    measured,
    profile_tables,
    table,
)
from lab.emergence_picture import picture
from sinkscope.errors import InputError
from sinkscope.files import write_atomically
from sinkscope.models.load import ORGANISMS as WEIGHTS
from sinkscope.models.load import find
from sinkscope.organisms.corpus import END
from sinkscope.organisms.documents import GIVEN
from sinkscope.organisms.recipe import LENGTH
from sinkscope.study.shipped import whole_rows

CAUTION = (
    "These models have a few million parameters and synthetic data. They validate the instrument; they neither confirm nor "
    "refute the paper's results on 8B models, whose scope and scoring are unpublished."
)
NO_PROOF = (
    "A loss under hiding proves nothing about sinks unless the count- and mass-matched controls and silencing agree: hiding "
    "takes information away and gives the freed attention to other keys, and any keys that are attended as much may be missed."
)
MIRRORS = {
    "llama": "Llama-3.1-8B", "llada": "LLaDA-8B", "dream": "Dream-7B", "mmada": "MMaDA-8B",
}  # fmt: skip
OBJECTIVES = {
    "next": "next-token prediction",
    "masked": "masked diffusion: t ~ U(0,1) per sequence, targets masked with probability t, loss weighted 1/t",
    "shifted": "masked diffusion with shifted logits: t ~ U(0,1) per sequence, loss weighted 1/t, position j − 1 predicts j",
}
NEEDED = ("training.json", "accuracy.json", "emergence.json")
OPTIONAL = ("profile.json", "results.json")
PLENTY = 500
"""Answers per task from which on a card does not complain."""


def read_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Name without ending → the file's data; those of other weights are refused."""
    digest = find(folder).digest
    found = {}
    for name in (*NEEDED, *OPTIONAL):
        path = folder / name
        if not path.is_file():
            if name in NEEDED:
                raise InputError(
                    f"{folder} has no {name}: a card is written from it; train and measure first"
                )
            continue
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path} is not JSON ({error}): make it again") from error
        known = data.get("digest", digest)
        if known != digest:
            raise InputError(
                f"{path} was measured on weights {known[:12]}, and those here are {digest[:12]}: measure again"
            )
        found[path.stem] = data
    return found


def card(name: str, folder: Path) -> str:
    """The text of README.md."""
    files = read_files(folder)
    training = files["training"]
    parts = [
        f"# organism/{name}",
        CAUTION,
        "Written by `python -m lab.cards write` from the measured files beside it. How the organisms are "
        "made: docs/organisms.md; what was tried: lab/organisms.md.",
        "## What it is",
        _about(training, find(folder).digest),
        "## How it was trained",
        _training(name, training),
        "## Held-out accuracy",
        _accuracy(files["accuracy"]),
        "## Its sinks",
        _profile(files.get("profile")),
        "## When sinks appear in training",
        _emergence(name, files["emergence"]),
        "## Masking table",
        _masking(files.get("results")),
        "## What is missing",
        bullets(_gaps(files)),
    ]
    return "\n\n".join(parts) + "\n"


def _about(training: dict[str, Any], digest: str) -> str:
    size, layout = training["recipe"]["size"], training["recipe"]["layout"]
    network = (
        f"{size['layers']} layers, width {size['width']}, {size['heads']} heads, SwiGLU of {size['mlp']}, RoPE with θ = "
        f"{size['theta']:g}"
    )
    rows = [
        ["mirrors", f"{MIRRORS[layout]} (checkpoint layout: {layout})"],
        ["parameters", count(training["parameters"])],
        ["network", network],
        ["weights digest", f"`{digest}`"],
    ]
    return table(["", ""], rows)


def _training(name: str, training: dict[str, Any]) -> str:
    recipe = training["recipe"]
    kinds = {"records": "records (invented registers, glossaries and sentences)"}
    if "docstrings" in training:
        where = f"{count(training['docstrings'])} paragraphs, the library of Python {training['python']}"
        kinds["docstrings"] = f"docstrings ({where})"
    mix = ", ".join(f"{share:.0%} {kinds.get(kind, kind)}" for kind, share in training["mix"].items())
    base = training["starts_from"]
    packed = recipe.get("packed", 1)
    rows_are = f", {packed} of them in a row" if packed > 1 else ""
    learned = f"learned of a task: {recipe['targets']}"
    if recipe["objective"] != "next" and set(GIVEN).intersection(training["mix"]):
        learned += f"; of a record or docstring: its last {END} tokens and its end, the rest is given"
    tokens = f"{count(training['tokens'])} ({recipe['batch']} documents of at most {LENGTH} per step{rows_are}, padding counted)"
    tokens += "" if base is None else "; those of its base come before"
    rows = [
        ["data", f"{count(training['documents'])} documents: {mix}; other text: {training['corpus'] or 'none'}"],
        ["objective", f"{OBJECTIVES[recipe['objective']]}; {learned}"],
        ["starts from", "random weights" if base is None else f"{base} (`{training['start_digest'][:12]}`)"],
        ["seed", str(recipe["seed"])],
        ["steps", f"{count(training['steps'])}, {count(recipe['warmup'])} of them warm-up, then a cosine to zero"],
        ["tokens", tokens],
        ["optimiser", f"AdamW, β {recipe['betas'][0]:g} and {recipe['betas'][1]:g}, weight decay {recipe['weight_decay']:g}, "
                      f"peak rate {recipe['learning_rate']:g}, gradients clipped at {recipe['clip']:g}"],
        ["hardware", f"{training['hardware']}, torch {training['torch']}"],
        ["time", f"{training['seconds']:.0f} s; what else ran on the GPU meanwhile: lab/organisms.md"],
        ["last loss", f"{training['loss']:.4f}"],
    ]  # fmt: skip
    if recipe["pictures"]:
        many = f", of {count(training['pictures'])}" if "pictures" in training else ""
        half = f"{recipe['pictures']:.0%} of each batch{many}, half to draw and half to describe"
        rows.insert(1, ["pictures", half])
    command = f"```\nsinkscope train {name} --out runs/{name} --device cuda\n```"
    return f"{table(['', ''], rows)}\n\nThe command:\n{command}"


def _accuracy(accuracy: dict[str, Any]) -> str:
    rows = [[task, *_share(one)] for task, one in accuracy["tasks"].items()]
    said = f"{measured(accuracy)}, official loop. 95 % Wilson intervals."
    return f"{said}\n\n{table(['task', 'n', 'right', 'accuracy'], rows)}"


def _share(one: dict[str, Any]) -> list[str]:
    low, high = one["interval"]
    return [str(one["n"]), str(one["right"]), f"{one['accuracy']:.3f} [{low:.3f}, {high:.3f}]"]


def _profile(profile: dict[str, Any] | None) -> str:
    if profile is None:
        return "Not measured: there is no profile.json."
    said = (
        f"{measured(profile)}: {profile['prompts']} held-out prompts of {profile['task']}, answered by the official loop "
        f"without a policy. Intervals: {profile['interval']}. The residual stream is the one that enters a layer."
    )
    parts = [said, *profile_tables(profile)]
    if "first_token" in profile:
        parts += first_tables(profile["first_token"])
    return "\n\n".join(parts)


def _emergence(name: str, emergence: dict[str, Any]) -> str:
    said = (
        "A fixed held-out probe of texts with fixed masks, at log-spaced steps; a sink receives more than the mean of the others "
        "by ε = 3 (uniform = 1). Value and hidden ratio: norm at the strongest sink over the median of the keys; the residual "
        "stream is the one that leaves a layer. Gu: share of heads in which the first token, or any, gets more than 0.3 of the "
        "attention of the queries that see it. One run, no intervals."
    )
    if "sink_heads" not in next(iter(emergence["points"][0]["levels"].values())):
        said += (
            " What counted as a sink of a causal model then was mostly recency: those columns are left out."
        )
    shown = f"![Sinks of organism/{name} by training step](emergence.svg)"
    return "\n\n".join([said, shown, *emergence_tables(emergence["points"])])


def _masking(results: dict[str, Any] | None) -> str:
    if results is None:
        return f"Not measured: there is no results.json. {NO_PROOF}"
    rows = whole_rows(results)
    said = (
        f"{measured(results)}, `{results['made_by']}`, {rows[0]['dtype']}; {results['documents']} held-out documents per task. "
        "Keys are ranked by received attention in the step before. Controls: as many random keys (count), or random keys with as "
        "much attention (mass), several draws, pooled. Accuracies have 95 % intervals; differences are paired by document. "
        "Effects are policy minus control: below zero, the strongest keys matter more than the control's. * marks p < .05 after "
        "Holm's correction over all tests of the study's table."
    )
    return "\n\n".join([NO_PROOF, said, *masking_tables(rows), bullets(masking_notes(rows))]).rstrip("\n")


def _gaps(files: dict[str, dict[str, Any]]) -> list[str]:
    found = [
        "One training run with one seed: nothing here says how much another seed would differ. lab/organisms.md has another "
        "seed of causal and of scratch."
    ]
    answered = {
        row["task"]: row["n"] for row in files.get("results", {}).get("rows", []) if row["policy"] == "none"
    }
    for task, one in files["accuracy"]["tasks"].items():
        many = max(one.get("n", 0), answered.get(task, 0))
        if many < PLENTY:
            found.append(f"{task}: {many or 'no'} answers by the official loop, fewer than {PLENTY}.")
    if "profile" not in files:
        found.append("The sink profile was not measured.")
    if "results" not in files:
        found.append("The masking table was not measured.")
        return found
    documents = files["results"]["documents"]
    if documents < PLENTY:
        found.append(f"The masking table has {documents} documents per task, fewer than {PLENTY}.")
    return found


def write_card(name: str, root: Path = WEIGHTS) -> list[Path]:
    """README.md and emergence.svg beside the weights."""
    folder = root / name
    text, drawing = card(name, folder), picture(f"organism/{name}", read_files(folder)["emergence"]["points"])
    written = []
    for file, content in (("README.md", text), ("emergence.svg", drawing)):
        write_atomically(folder / file, content)
        written.append(folder / file)
    return written
