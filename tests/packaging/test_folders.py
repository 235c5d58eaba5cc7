"""A folder that plugs in is known to itself and to few files beside: a new one touches no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from sinkscope.base.registry import FOLDERS

SOURCE = Path(__file__).parents[2] / "src" / "sinkscope"
WRITTEN = (".py", ".pyi", ".toml", ".jinja", ".js", ".css", ".html")
MOST = 5
"""The list of such folders, the public names, the arguments of `ss.generate` and `ss.evaluate`, an option of commands."""


def files_that_know(word: str) -> list[str]:
    """Files of the package, but for the folder of this name, that have the word in their name or text."""
    texts = {
        path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8").lower()
        for path in sorted(SOURCE.rglob("*"))
        if path.suffix in WRITTEN
    }
    return [name for name, text in texts.items() if not name.startswith(f"{word}/") and word in name.lower() + text]


@pytest.mark.parametrize("folder", FOLDERS)
def test_at_most_five_files_outside_of_a_folder_know_of_it(folder: str) -> None:
    word = folder.rpartition(".")[2]
    assert (SOURCE / word / "kind.py").is_file()
    knowing = files_that_know(word)
    assert len(knowing) <= MOST, f"{len(knowing)} files outside of {word}/ know the word, at most {MOST} may: {knowing}"
