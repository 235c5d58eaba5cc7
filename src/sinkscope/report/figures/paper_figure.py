"""A finished figure: the picture, the data behind it, and a caption; saved as SVG, PDF, CSV and text."""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomllib

from sinkscope.report.figures.look import style
from sinkscope.text import csv_text, visible

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ENDINGS = ("svg", "pdf", "csv", "txt")
CAPTIONS = tomllib.loads((Path(__file__).parent / "captions.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper, drawn from traces.

    Attributes:
        name: figure_1 … figure_10, table_1, table_2.
        figure: the matplotlib figure.
        table: the data behind it, one row for each mark.
        caption: what is seen, how it was computed, what it does not show.
    """

    name: str
    title: str
    figure: Figure
    table: pd.DataFrame
    caption: str

    def save(self, folder: Path, suffix: str = "") -> list[Path]:
        """Writes NAME.svg, NAME.pdf, NAME.csv and NAME.txt (the caption); files of these names are replaced.."""
        stem = self.name + (f"_{suffix}" if suffix else "")
        svg, pdf, csv, text = made = [folder / f"{stem}.{ending}" for ending in ENDINGS]
        folder.mkdir(parents=True, exist_ok=True)
        for path in made:  # a link planted at one of these names would otherwise lead elsewhere
            path.unlink(missing_ok=True)
        with style():
            # No date, so that the same data give the same file.
            self.figure.savefig(svg, metadata={"Date": None, "Title": self.title})
            self.figure.set_layout_engine("none")  # it is laid out now, and need not be again
            self.figure.savefig(pdf, metadata={"CreationDate": None, "Title": self.title})
        csv.write_text(csv_text(self.table), encoding="utf-8")
        text.write_text(f"{self.title}. {self.caption}\n", encoding="utf-8")
        return made

    def __repr__(self) -> str:
        return f"<{self.name}: {self.title}; table of {len(self.table)} rows>"

    def image(self) -> str:
        """The picture as an HTML element, for notebooks."""
        picture = io.BytesIO()
        with style():
            self.figure.savefig(picture, format="png", dpi=150)
        data = base64.b64encode(picture.getvalue()).decode()
        alt = html.escape(visible(f"{self.title}. {self.caption}"))
        return f'<img alt="{alt}" src="data:image/png;base64,{data}" style="max-width:100%;background:#fff">'

    def _repr_html_(self) -> str:
        words = f"<b>{html.escape(visible(self.title))}.</b> {html.escape(visible(self.caption))}"
        return (
            f'<figure style="margin:0;max-width:60em">{self.image()}<figcaption>{words}</figcaption></figure>'
        )


def finished(name: str, figure: Figure, table: pd.DataFrame, **words: Any) -> PaperFigure:
    """A figure with its title and its caption from captions.toml, in which `words` fill the braces."""
    told = {part: text.format(**words) for part, text in CAPTIONS[name].items()}
    caption = f"{told['seen']} Computed: {told['computed']} Not shown: {told['not_shown']}"
    return PaperFigure(name, told["title"], figure, table, caption)
