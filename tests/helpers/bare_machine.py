"""A machine without bubblewrap, without a browser and without root, made of the one that the tests run on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

HIDDEN = {"bwrap", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"}


def hidden_path(folder: Path) -> str:
    """A PATH of one folder, with a link to every command that is found now but those of HIDDEN."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        try:
            commands = list(Path(place).iterdir())
        except OSError:  # not there, or of another user
            continue
        for command in commands:
            if command.name not in HIDDEN and not (folder / command.name).is_symlink():
                (folder / command.name).symlink_to(command)
    return str(folder)


def ordinary_user() -> list[str]:
    """Words before a command that take root away from it; the files of this user stay its own."""
    if os.geteuid() != 0:
        return []
    words = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        return []  # still without bubblewrap and Chromium, but as root
    return words


def environment(folder: Path) -> dict[str, str]:
    """Variables for a command on the bare machine; `folder` gets a home and the hidden PATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SINKSCOPE_", "PYTEST_", "COV_"))}
    (folder / "home").mkdir()
    path = hidden_path(folder / "path")
    return {**kept, "PATH": path, "HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
