"""How the nats per token of real texts change under masks: `python -m lab.text_differences` writes text-differences.json.

One population for each model and policy: the nats per token of every text under the policy, less those without one. The
organisms read prose that was held out from their training; SmolLM2, where it was fetched, reads the passages that ship.
`simulated_texts.py` draws from these populations, and the table that is printed has their mean, deviation, skewness and excess
kurtosis.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sinkscope.decoding import CausalReading, MaskedReading
from sinkscope.models.fetched import find_fetched
from sinkscope.models.load import load
from sinkscope.models.model import Model
from sinkscope.organisms.documents import held_out_prose
from sinkscope.policies.text import parse_policy
from sinkscope.tasks.evaluate import evaluate
from sinkscope.tasks.registry import get

PATH = Path(__file__).with_name("text-differences.json")
ORGANISMS = ("organism/causal", "organism/scratch", "organism/adapted", "organism/multimodal")
REAL = "smollm2"
POLICIES = ("top:1", "random(top:1)", "random(top:1),match=mass", "top:1,effect=silence", "top:5", "top:10")


def differences(
    model: Model, data: Path | None, texts: int, length: int, scored: int
) -> dict[str, list[float]]:
    """Policy → nats per token of each text, less those without a policy; "none": the nats without one.

    data: a file of passages; None: those that ship. scored: tokens of each text that count, for causal models.
    """
    reading = (
        CausalReading(length=length, scored=scored)
        if model.spec.causal
        else MaskedReading(length=length, share=0.5, masks=2)
    )
    task = get("text", family=model.family, data=data)
    found = {}
    for policy in ("none", *POLICIES):
        run = evaluate(model, task, reading, policy=parse_policy(policy), limit=texts)
        found[policy] = np.array([record.nll for record in sorted(run.records, key=lambda one: one.document)])
    base = found.pop("none")
    return {"none": base.round(4).tolist()} | {
        policy: (nats - base).round(4).tolist() for policy, nats in found.items()
    }


def moments(values: Sequence[float]) -> tuple[float, float, float, float]:
    """Mean, standard deviation, skewness, excess kurtosis."""
    each = np.asarray(values)
    apart = each - each.mean()
    deviation = float(np.sqrt((apart**2).mean()))
    return (
        float(each.mean()), deviation, float((apart**3).mean()) / deviation**3, float((apart**4).mean()) / deviation**4 - 3,
    )  # fmt: skip


def populations() -> dict[str, dict[str, list[float]]]:
    """What was measured: "model, kind of text" → policy → differences."""
    found: dict[str, dict[str, list[float]]] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def save(measured: dict[str, dict[str, list[float]]]) -> None:
    """Write what `populations` reads, one line for each policy."""
    models = (
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f" {json.dumps(policy)}: {values}" for policy, values in found.items())
        + "\n}"
        for name, found in measured.items()
    )
    PATH.write_text("{\n" + ",\n".join(models) + "\n}\n", encoding="utf-8")


def table(measured: dict[str, dict[str, list[float]]]) -> None:
    """Print the moments as a Markdown table."""
    print(
        "| model, text | policy | texts | mean, nats | deviation | skewness | excess kurtosis |\n|---|---|---|---|---|---|---|"
    )
    for name, policies in measured.items():
        for policy, values in policies.items():
            numbers = " | ".join(f"{x:.2f}" for x in moments(values))
            print(f"| {name} | {policy} | {len(values)} | {numbers} |")


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--length", type=int, default=64, help="tokens of each text")
    parser.add_argument("--scored", type=int, default=24, help="of them, for causal models")
    parser.add_argument(
        "--show", action="store_true", help="print the table of what was measured, and measure nothing"
    )
    options = parser.parse_args(words)
    if not options.show:
        measured = {}
        with tempfile.TemporaryDirectory() as folder:
            prose = Path(folder) / "prose.jsonl"
            lines = (json.dumps({"text": text}) for text in held_out_prose(options.texts))
            prose.write_text("\n".join(lines), encoding="utf-8")
            for name in ORGANISMS:
                found = differences(load(name), prose, options.texts, options.length, options.scored)
                measured[f"{name}, prose"] = found
        if find_fetched(REAL) is not None:
            found = differences(load(REAL), None, options.texts, options.length, options.scored)
            measured[f"{REAL}, English"] = found
        save(measured)
    table(populations())


if __name__ == "__main__":
    main()
