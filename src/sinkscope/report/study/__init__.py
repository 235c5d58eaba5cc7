"""report.html of a study: one file that people want to open, made from the folder of a finished study alone.

`page` puts the sections in order and renders their templates; what they show stands by what it is about: `overview`, `matrix`,
`masking`, `traced`, `tables`. `charts` draws.
"""

from __future__ import annotations

import os
from pathlib import Path


def make_report(folder: str | os.PathLike[str]) -> Path:
    """Writes FOLDER/report.html from the finished study in the folder."""
    from sinkscope.base.files import write_atomically
    from sinkscope.report.study.page import report_page
    from sinkscope.report.study.source import read

    root = Path(folder)
    write_atomically(root / "report.html", report_page(read(root)))
    return root / "report.html"
