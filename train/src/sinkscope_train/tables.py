"""What `sinkscope study` gets from training: the study `ladder`, a sweep's runs as its models, and tables of runs over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sinkscope.study.plugged import VERDICT, Column, ShownTable, StudyPlugin
from sinkscope_train.trained_runs import known_runs, trained_runs

if TYPE_CHECKING:
    import pandas as pd

    from sinkscope.report.figures.look import PaperFigure


def build(models: Mapping[str, Path], frames: Mapping[str, pd.DataFrame], kept: Path) -> dict[str, pd.DataFrame]:
    """The tables on training runs, for a study of several: models in folders of their own that have a training.json.

    What those files say is kept beside the records, so that the tables can be made again without the models.
    """
    runs = known_runs(models, kept)
    if len(runs) < 2:
        return {}
    from sinkscope_train import ladder

    return ladder.tables(runs, *(frames.get(name) for name in ("results", "sinks", "skills", "likelihood")))


def _figures(frames: Mapping[str, pd.DataFrame]) -> list[PaperFigure]:
    from sinkscope_train.figures import figures

    return figures(frames)


def _whole_tasks(table: pd.DataFrame) -> pd.DataFrame:
    """Without the battery's skills one by one, which the report and tables/ladder.csv have."""
    return table[~table["task"].str.startswith("battery:")]


RUN = (
    Column("objective", "objective"),
    Column("parameters", "parameters", ","),
    Column("intervention", "intervention"),
)
MASK = (Column("policy", "policy"), Column("seeds", "seeds"))
LOSS = (
    Column("unmasked", "unmasked", ".3f"), Column("lost", "damage", "+.3f", True),
    Column("− random keys", "beyond_count", "+.3f", True),
)  # fmt: skip
TOOK = (Column("removed", "hidden_share", ".1%"), Column("strongest sinks masked", "strongest_hit", ".0%"))
CONCLUDED = Column("concluded", "verdict", VERDICT)
LADDER = StudyPlugin(
    name="ladder",
    title="Training runs",
    about="The models are runs of a training sweep: the same documents and number of tokens, other objectives, sizes, seeds or "
    "changes of attention. A run is the unit of every interval here, because another training run would have another seed; with "
    "fewer than three seeds nothing is concluded.",
    build=build,
    figures=_figures,
    terminal=(
        ShownTable(
            "ladder", "{task}: {unit} lost, mean over seeds (95 % interval over seeds)", (*RUN, *MASK, *LOSS, *TOOK, CONCLUDED),
            by=("task", "unit"), rows=_whole_tasks,
        ),
    ),
    report=(
        ShownTable(
            "ladder",
            "Means over seeds, with 95 % intervals over seeds. Lost: accuracy without a mask minus with it; for texts that were "
            "read, nats per token with it minus without. − random keys: the loss beyond that of the same number of random keys, "
            "which is what the conclusion is about. Removed: the share of all attention; a mask that missed the sinks says "
            "nothing about them.",
            (*RUN, Column("task", "task"), *MASK, Column("measure", "unit"), *LOSS,
             Column("− random keys, as much attention", "beyond_mass", "+.3f"), *TOOK, CONCLUDED),
            figure="ladder",
        ),
        ShownTable(
            "ladder_interventions", "Each intervention minus none, at the same objective, size, tokens and seed.",
            (RUN[0], Column("layers × width", "size"), RUN[2], Column("measure", "measure"), MASK[1],
             Column("change", "difference", "+.3g"), CONCLUDED),
        ),
        ShownTable(
            "ladder_hits",
            "Plain runs: the change for ten times the parameters, alone, and with what the mask took held fixed.",
            (RUN[0], Column("task", "task"), MASK[0], Column("loss", "damage"), Column("alone", "alone", "+.3f"),
             Column("held fixed", "given"), Column("then", "slope", "+.3f"), CONCLUDED),
        ),
    ),
    studies=Path(__file__).parent / "studies",
    models_in=trained_runs,
)  # fmt: skip
"""The entry point of the group `sinkscope.tables`."""
