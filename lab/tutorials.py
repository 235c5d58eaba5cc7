"""Runs the tutorials and stores what they print: `python -m lab.tutorials [NAME …]`.

Each notebook of docs/tutorials runs from top to bottom in a kernel and an empty folder of its own, as in
tests/docs/test_notebooks.py. Kernel details and times are left out, so that a second run changes only what a reader sees.
SmolLM2's part of *Causal against diffusion* needs `sinkscope fetch smollm2`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import nbclient
import nbformat

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"


def run(path: Path) -> None:
    """Execute one notebook and write it back."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}})
        client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        # Progress and warnings of other packages are no part of what a reader should see.
        cell["outputs"] = [one for one in cell.get("outputs", ()) if one.get("name") != "stderr"]
        if cell.cell_type != "code":
            del cell["outputs"]
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(notebook, path)
    print(path.name)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="notebooks without .ipynb; all by default")
    names = parser.parse_args().names
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    source = str(FOLDER.parents[1] / "src")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            run(path)


if __name__ == "__main__":
    main()
