"""The runs and documents that decide on each claim on accuracies, from the power that its rule has in simulations."""

from __future__ import annotations

from pathlib import Path

import tomllib

from sinkscope.study.gpu_hours import Power


def needs() -> list[Power]:
    """What each claim needs, in the order of power.toml."""
    data = tomllib.loads((Path(__file__).parent / "power.toml").read_text(encoding="utf-8"))
    return [
        Power(claim, tuple(entry["policies"]), tuple(entry["families"]), entry["documents"], entry["effect"])
        for claim, entry in data.items()
    ]
