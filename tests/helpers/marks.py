"""Marks for tests that need something of the machine: they skip, and say what to install."""

from __future__ import annotations

import shutil

import pytest

from sinkscope.tasks import sandbox

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed (apt install bubblewrap)"
)
needs_sandbox = pytest.mark.skipif(sandbox.available() is None, reason="no rung of the sandbox holds here")
