"""Marks for tests that need a program of the system: they skip, and say what to install."""

from __future__ import annotations

import shutil

import pytest

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed (apt install bubblewrap)"
)
