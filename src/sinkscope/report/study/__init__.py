"""report.html of a study: one file that people want to open, made from the folder of a finished study alone.

`page` puts the sections in order, which stand by what they are about: `summary`, `claims_table`, `masking`, `traced`, `tables`,
`holdings`, `exemplars`, `provenance`. `claims` and `rules` decide on the paper's claims, `svg` draws.
`python -m sinkscope.report.study FOLDER` writes the report again.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_report(folder: str | os.PathLike[str]) -> Path:
    """Writes FOLDER/report.html from the finished study in the folder."""
    from sinkscope.files import write_atomically
    from sinkscope.report.study.page import report_page
    from sinkscope.report.study.source import read

    root = Path(folder)
    write_atomically(root / "report.html", report_page(read(root)))
    return root / "report.html"


def make_report(folder: str | os.PathLike[str], *, workers: int | None = None) -> Path:
    """Draws the figures of a finished study into FOLDER/figures and writes FOLDER/report.html.

    workers: processes that draw; default by the number of pictures and cores.
    """
    from sinkscope.report.study.drawing import save_study

    root = Path(folder)
    save_study(root, root / "figures", workers=workers)
    return write_report(root)
