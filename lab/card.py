"""A card: README.md beside an organism's weights, written from the measured files there and from nothing else (card.md.j2).

training.json, accuracy.json and emergence.json must be there; profile.json, and rows of lab/full/results.csv, the masking table
of `sinkscope study full`, may be missing, and then the card says that they are. Files of other weights are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader

from lab.emergence_picture import picture
from lab.profile import MIDDLE
from sinkscope.base.errors import InputError
from sinkscope.base.files import write_atomically
from sinkscope.models.load import find
from sinkscope.verdicts.wording import missing, number
from sinkscope_train.corpus import END
from sinkscope_train.documents import GIVEN
from sinkscope_train.recipe import LENGTH

NEEDED = ("training.json", "accuracy.json", "emergence.json")
OPTIONAL = ("profile.json",)
FULL = Path(__file__).parent / "full" / "results.csv"
EVERY = 4
"""Of the steps of the probe, every so many stand in a card's table; the picture has all."""
WITHIN = 0.25
"""A mass-matched control that takes so much more or less attention than its policy, relatively, is called no match."""
FACTS: dict[str, Any] = {
    "MIRRORS": {"llama": "Llama-3.1-8B", "llada": "LLaDA-8B", "dream": "Dream-7B", "mmada": "MMaDA-8B"},
    "OBJECTIVES": {
        "next": "next-token prediction",
        "masked": "masked diffusion: t ~ U(0,1) per sequence, targets masked with probability t, loss weighted 1/t",
        "shifted": "masked diffusion with shifted logits: t ~ U(0,1) per sequence, loss weighted 1/t, position j − 1 predicts j",
    },
    "LEVEL": ("sink_heads", "max_received", "value_ratio", "hidden_ratio", "gu_first", "gu_any", "first_received",
              "first_value_ratio", "first_hidden_ratio"),
    "END": END, "LENGTH": LENGTH, "WITHIN": WITHIN,
    "PLENTY": 500,  # answers per task from which on a card does not complain
    # A first-token sink in the sense of the literature: value norm at most, hidden norm at least, so many times the median.
    "MOST_VALUE": 0.5, "LEAST_HIDDEN": 3.0,
}  # fmt: skip


def read_files(folder: Path) -> dict[str, Any]:
    """Name without ending → the file's data; those of other weights are refused."""
    digest = find(folder).digest
    files: dict[str, Any] = {"digest": digest}
    for name in (*NEEDED, *OPTIONAL):
        path = folder / name
        if not path.is_file():
            if name in NEEDED:
                raise InputError(f"{folder} has no {name}: a card is written from it; train and measure first")
            continue
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path} is not JSON ({error}): make it again") from error
        measured_on = data.get("digest", digest)
        if measured_on != digest:
            raise InputError(
                f"{path} was measured on weights {measured_on[:12]}, and those here are {digest[:12]}: measure again"
            )
        files[path.stem] = data
    return files


def masking_rows(digest: str, path: Path) -> list[dict[str, Any]]:
    """The rows of the masking table that are of these weights; what is not known is left out."""
    table = pd.read_csv(path)
    rows = table[table["weights"] == digest].to_dict("records")
    return [{str(name): value for name, value in row.items() if not pd.isna(value)} for row in rows]


def card(name: str, folder: Path, full: Path = FULL) -> str:
    """The text of README.md."""
    files = read_files(folder)
    points, tasks = files["emergence"]["points"], files["accuracy"]["tasks"]
    levels = points[0]["levels"]
    masking = masking_tables(masking_rows(files["digest"], full))
    answers = {task["task"]: task["rows"][0]["n"] for task in masking}
    many = {task: max(one.get("n", 0), answers.get(task, 0)) for task, one in tasks.items()}
    first = [row for row in files.get("profile", {}).get("first_token", []) if row["layer"] == MIDDLE]
    return ENVIRONMENT.get_template("card.md.j2").render(
        **FACTS, **files, name=name, causal=len(levels) == 1,
        given=set(GIVEN).intersection(files["training"]["mix"]),
        shown_level="0.5" if "0.5" in levels else next(iter(levels)),
        recency="sink_heads" not in next(iter(levels.values())),
        points=[*points[:-1:EVERY], points[-1]],
        literature=all(
            row["value_ratio_high"] <= FACTS["MOST_VALUE"] and row["hidden_ratio_low"] >= FACTS["LEAST_HIDDEN"] for row in first
        ),
        masking=masking, documents=max((row["n"] for task in masking for row in task["rows"]), default=0),
        notes=any(task["missed"] or task["bare"] for task in masking),
        few={task: n for task, n in many.items() if n < FACTS["PLENTY"]},
    )  # fmt: skip


def masking_tables(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each task: the rows of its policies, each with its controls (`count`, `mass`), and reservations.

    missed: mass-matched controls that are no match. bare: policies beside which silencing was not run.
    """
    tables = []
    for task in dict.fromkeys(row["task"] for row in rows):
        by_policy = {row["policy"]: row for row in rows if row["task"] == task}
        for row in by_policy.values():
            if row.get("control_of") in by_policy:
                by_policy[row["control_of"]]["mass" if "match=mass" in row["policy"] else "count"] = row
        plain = [row for row in by_policy.values() if not row.get("control_of")]
        options = json.loads(plain[0]["decoding"]).items()
        tables.append({
            "task": task, "rows": plain,
            "decoding": ", ".join(f"{name} {value}" for name, value in options if value is not None),
            "missed": [
                f"`{row['policy']}` ({percent(row['mass'])} against {percent(row)})"
                for row in plain
                if "mass" in row and abs(row["mass"]["hidden_share"] / row["hidden_share"] - 1) > WITHIN
            ],
            "bare": [
                f"`{row['policy']}`" for row in plain
                if row.get("effect") == "hide" and f"{row['policy']},effect=silence" not in by_policy
            ],
        })  # fmt: skip
    return tables


def percent(row: Mapping[str, Any] | None, name: str = "hidden_share") -> str:
    """A share of a row."""
    return number(None if row is None else row.get(name), ".1%") or "–"


def measured(data: Mapping[str, Any]) -> str:
    """When and where a file was made."""
    where = data.get("where") or "an unknown machine"
    dtype = f", {data['dtype']}" if "dtype" in data and data["dtype"] not in where else ""
    return f"Measured on {data.get('date') or 'an unknown date'}, {where}{dtype}"


def between(row: Mapping[str, Any], stem: str, form: str = ".2f", low: str = "", high: str = "") -> str:
    """A number with its interval, 0.19 [0.07, 0.43]."""
    bounds = row.get(low or f"{stem}_low"), row.get(high or f"{stem}_high")
    if missing(row.get(stem)):
        return "–"
    interval = "" if missing(bounds[0]) else f" [{number(bounds[0], form)}, {number(bounds[1], form)}]"
    return number(row[stem], form) + interval


def answered(row: Any) -> str:
    """The accuracy of a policy or control."""
    if not row:
        return "–"
    draws = f" ({row['draws']}×)" if row["draws"] > 1 else ""
    return between(row, "accuracy", ".3f", "low", "high") + draws


def starred(row: Mapping[str, Any], stem: str) -> str:
    """A difference, marked where it is significant."""
    p = row.get(f"{stem}_p_holm")
    return between(row, stem, "+.3f") + (" *" if p is not None and p < 0.05 else "")


def shares(row: Mapping[str, Any], name: str) -> str:
    """A share of a policy and its two controls."""
    each = [percent(one, name) for one in (row, row.get("count"), row.get("mass"))]
    return "–" if set(each) == {"–"} else " / ".join(each)


def enriched(level: Mapping[str, Any]) -> str:
    """The kind of token that is over-represented most among sinks."""
    ratios = {name: each["ratio"] for name, each in level.get("enrichment", {}).items() if each["share"]}
    best = max(ratios, key=lambda name: ratios[name] or 0.0) if ratios else None
    return "–" if best is None else f"{best}, {number(ratios[best], '.1f')}×"


ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # noqa: S701 (Markdown, from files of our own)
)
ENVIRONMENT.filters |= {
    function.__name__: function for function in (measured, between, answered, starred, shares, enriched)
}
ENVIRONMENT.filters |= {"count": "{:,}".format, "num": lambda value, form=".3f": number(value, form) or "–"}


def write_card(folder: Path) -> list[Path]:
    """README.md and emergence.svg beside the weights."""
    points = read_files(folder)["emergence"]["points"]
    text, drawing = card(folder.name, folder), picture(f"organism/{folder.name}", points)
    for file, content in (("README.md", text), ("emergence.svg", drawing)):
        write_atomically(folder / file, content)
    return [folder / "README.md", folder / "emergence.svg"]
