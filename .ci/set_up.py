"""Set up the virtual environment that `make` works in: `python3 .ci/set_up.py study|test`.

Needs Python 3.11 or newer and nothing else. It first says in one line what this machine lacks, what that leaves out and
how to get it; then it makes `.venv` and installs the versions of constraints.txt, with pip's own progress. `study` gets
the instrument alone, `test` its extra of that name and sinkscope-train too. PyTorch is the CPU build (a tenth of the CUDA
build's size), unless the environment has TORCH=gpu: then it is the build that the package index has for this platform.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
EDITABLE = {"study": (".",), "test": (".[test]", "./train")}
"""What is installed from this checkout."""
GIGABYTES = {"study": 2.5, "test": 5.0}  # what the folder needs, with room for pip's downloads
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def main(purpose: str) -> int:
    refused = cannot(purpose)
    if refused:
        print(f"error: {refused}", file=sys.stderr)
        return 2
    print(missing(purpose), flush=True)
    if (VENV / f".{purpose}").exists() and newer(VENV / f".{purpose}"):
        return 0
    begin = time.monotonic()
    if not (VENV / "bin" / "pip").exists():  # also after a set-up that was stopped half-way
        say(f"making .venv with Python {platform.python_version()}")
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    install_torch()
    say(f"installing sinkscope and what {'its tests need' if purpose == 'test' else 'it needs'}")
    pip(*(word for path in EDITABLE[purpose] for word in ("--editable", path)))
    for done in {"study", purpose}:
        (VENV / f".{done}").touch()
    say(f"ready after {time.monotonic() - begin:.0f} s; .venv takes {size(VENV) / 1e9:.1f} GB")
    return 0


def cannot(purpose: str) -> str | None:
    """The reason why nothing can be set up here, or None."""
    if tuple(sys.version_info) < (3, 11):
        return (
            f"sinkscope needs Python 3.11 or newer, and {sys.executable} is {platform.python_version()}; "
            "try make PYTHON=python3.12"
        )
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        version = ".".join(platform.python_version_tuple()[:2])
        return f"this Python cannot make virtual environments; on Debian and Ubuntu: apt install python{version}-venv"
    free = shutil.disk_usage(ROOT).free / 1e9
    if not PYTHON.exists() and free < GIGABYTES[purpose]:
        return f"{free:.1f} GB are free here, and the set-up needs about {GIGABYTES[purpose]:.1f} GB"
    return None


def missing(purpose: str) -> str:
    """One line: what this machine lacks, what that leaves out, how to get it."""
    lacks = []
    if not confines():
        if purpose == "test":
            left_out = "its tests are skipped"
        elif landlocks():
            left_out = "nothing is left out: programs are confined by the kernel's Landlock instead"
        else:
            left_out = "answers that are programs are left out: kept, and graded elsewhere"
        lacks.append(f"bubblewrap ({left_out}; apt install bubblewrap)")
    if purpose == "test":
        if not any(shutil.which(name) for name in BROWSERS):
            lacks.append("Chromium (tests in a browser are skipped; apt install chromium)")
        axe = ROOT / "node_modules" / "axe-core"
        if not os.environ.get("SINKSCOPE_AXE") and not axe.is_dir():
            lacks.append("axe-core (tests of accessibility are skipped; npm install --no-save axe-core)")
        if not os.environ.get("SINKSCOPE_SHARED"):
            lacks.append(
                "real tokenizers and benchmark data (tests with them are skipped; SINKSCOPE_SHARED names their folder)"
            )
    return f"missing on this machine: {', '.join(lacks)}" if lacks else "this machine has all that is used"


def confines() -> bool:
    """Whether bubblewrap is installed and can start a program."""
    command = shutil.which("bwrap")
    if command is None:
        return False
    probe = [command, "--unshare-user", "--unshare-net", "--ro-bind", "/", "/", "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def landlocks() -> bool:
    """Whether this kernel offers Landlock, the sandbox's second rung: landlock_create_ruleset tells its version."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        return False
    import ctypes

    return int(ctypes.CDLL(None).syscall(444, None, 0, 1)) >= 1


def newer(stamp: Path) -> bool:
    """Whether a set-up is newer than the files that it follows."""
    made = stamp.stat().st_mtime
    names = ("pyproject.toml", "train/pyproject.toml", "constraints.txt")
    return all(made >= (ROOT / name).stat().st_mtime for name in names)


def install_torch() -> None:
    """Install the CPU build of PyTorch on Linux, where the package index has the CUDA build under the plain version.

    A configured index or folder may hold the CPU build; else uv knows where PyTorch keeps it. Where neither works the
    package's own dependency brings the default build: larger, and just as good.
    """
    if (os.environ.get("TORCH") or "cpu") != "cpu" or platform.system() != "Linux":
        return
    have = subprocess.run(
        [PYTHON, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=False
    )
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    if pinned is None or have.stdout.startswith(pinned[1]):
        return
    say(f"installing PyTorch {pinned[1]}, CPU build")
    if pip(f"torch=={pinned[1]}+cpu", check=False):
        return
    say("the configured package index has no CPU build; uv asks PyTorch's own")
    pip("uv")
    uv = [str(VENV / "bin" / "uv"), "pip", "install", "--python", str(PYTHON), "--torch-backend", "cpu"]
    if subprocess.run([*uv, f"torch=={pinned[1]}"], check=False).returncode:
        say("no CPU build within reach: the default build follows, with several GB of CUDA libraries on x86-64")


def pip(*what: str, check: bool = True) -> bool:
    """Install with the versions of constraints.txt; gives whether it worked."""
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]
    done = subprocess.run([*command, "--constraint", "constraints.txt", *what], cwd=ROOT, check=check)
    return done.returncode == 0


def size(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def say(line: str) -> None:
    print(f"» {line}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] not in (["study"], ["test"]):
        sys.exit("usage: python3 .ci/set_up.py study|test")
    try:
        sys.exit(main(sys.argv[1]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: set-up stopped: {' '.join(map(str, error.cmd[:4]))} … failed; its message is above")
