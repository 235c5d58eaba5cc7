"""What is added to studies from outside, as a `StudyPlugin`.

A folder of ours that plugs in (`base.registry.FOLDERS`) registers it in its module `study.plugin`; another distribution announces
it by an entry point of the group `sinkscope.tables`.

Its tables are made of those of the study, shown in the terminal and in a section of the report. It may bring studies of its
own, and say which models a folder holds (`--runs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sinkscope.base.errors import InputError
from sinkscope.base.registry import Registry

if TYPE_CHECKING:
    import pandas as pd

    from sinkscope.models.model import Model
    from sinkscope.report.figures.look import PaperFigure
    from sinkscope.study.cells import Cell
    from sinkscope.tasks.answer import BatchSize, Items
    from sinkscope.tasks.records import Generation

    Frames = Mapping[str, pd.DataFrame]


VERDICT = "verdict"
"""The form of a column with verdicts as JSON."""


@dataclass(frozen=True)
class Column:
    """A column as people read it.

    form: of a number, "" for text, or VERDICT. interval: in the terminal, with NAME_low and NAME_high.
    """

    heading: str
    name: str
    form: str = ""
    interval: bool = False

    @property
    def words(self) -> bool:
        """It holds texts or verdicts, not numbers."""
        return self.form in ("", VERDICT)


@dataclass(frozen=True)
class ShownTable:
    """A table as people read it.

    Attributes:
        name: of the table. caption: with the names of columns that a group shares in braces.
        by: columns that make groups of rows, each a table of its own; empty: all rows together.
        rows: which rows are shown; None: all.
        figure: name of the figure that is shown before it in the report.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    by: Sequence[str] = ()
    rows: Callable[[pd.DataFrame], pd.DataFrame] | None = None
    figure: str = ""


@dataclass(frozen=True)
class StudyPlugin:
    """Tables beside those of every study.

    Attributes:
        name: its tables are called so, or begin with it and an underscore. title, about: of its section in the report.
        build: (models, name → folder or source; the study's tables; a file of the study's folder in which it may keep what it
            read elsewhere) → its tables; none where the study is not one that it knows.
        figures: the study's and its own tables → figures, which are saved under their names.
        terminal, report: what is shown.
        studies: a folder with its study files. models_in: a folder → name → folder of the models that it holds.
        compared: for a kind of extra (`sinkscope.base.extras`) of the same name: a cell of [[replay]] under such an extra, the
            model, which answers, how many at a time → their records, beside runs without it (table `agreement`).
    """

    name: str
    title: str
    about: str
    build: Callable[[Mapping[str, Path], Frames, Path], Mapping[str, pd.DataFrame]]
    figures: Callable[[Frames], Sequence[PaperFigure]]
    terminal: Sequence[ShownTable] = ()
    report: Sequence[ShownTable] = ()
    studies: Path | None = None
    models_in: Callable[[Path], Mapping[str, str]] | None = None
    compared: Callable[[Cell, Model, Items, BatchSize], Iterator[list[Generation]]] | None = None

    def owns(self, table: str) -> bool:
        """Whether a table is one of its own."""
        return table == self.name or table.startswith(f"{self.name}_")


def _checked(thing: object) -> str:
    if not isinstance(thing, StudyPlugin) or not thing.name.isidentifier():
        raise InputError(f"an entry point of sinkscope.tables should be a StudyPlugin, got {thing!r}")
    return thing.name


PLUGINS: Registry[StudyPlugin] = Registry("study plug-in", "sinkscope.tables", _checked, module="study.plugin")


def models_in(folder: Path) -> Mapping[str, str]:
    """Name → folder of the models in a folder that a plug-in knows, such as that of a training sweep."""
    readers = [plugin.models_in for plugin in PLUGINS.values() if plugin.models_in is not None]
    if not readers:
        raise InputError(
            f"{folder} should be the folder of a training sweep, which sinkscope-train reads, and that is not installed here: "
            "pip install sinkscope-train"
        )
    return readers[0](folder)
