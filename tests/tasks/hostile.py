"""Programs that try to get a verdict they have not earned, or more of the machine than they may have (programs/hostile.toml).

No rung of the sandbox may let one of them through; `test_sandbox.py` runs them on each.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def programs(name: str) -> dict[str, Any]:
    """Programs as they stand in a file of `programs/`."""
    path = Path(__file__).parent / "programs" / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


_ALL = programs("hostile")
FORGERIES, PRETENCES, GRASPS, ESCAPES = (_ALL[name] for name in ("FORGERIES", "PRETENCES", "GRASPS", "ESCAPES"))
CUBES, GRASPED = _ALL["CUBES"], _ALL["GRASPED"]
ABUSES: dict[str, list[str]] = {
    **_ALL["ABUSES"],
    "10 MB of source": ["#" * 10_000_000, "bytes, 1048576 are allowed"],
    "source that takes long to compile": ["x = " + "(" * 100_000 + ")" * 100_000, "too many nested parentheses"],
    "lone surrogate": ["x = '\ud800'", "surrogates not allowed|can't decode byte|UTF-8"],  # no file can hold it
}
