"""What holds for every test: no network, few threads, GPU tests that say when they skip."""

from __future__ import annotations

import gc
import os

import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the tests in tests/gpu, on a machine with little more than the package itself
    settings = None

# Read when huggingface_hub is imported. Tests that want a hub start a process of their own.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

gc.set_threshold(20_000, 20, 50)

if settings is not None:
    settings.register_profile(
        "default",
        deadline=None,
        max_examples=40,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    settings.register_profile("thorough", settings.get_profile("default"), max_examples=500, derandomize=False)
    settings.load_profile("default")


def pytest_collection_finish() -> None:
    """The libraries and the tests stay to the end: the garbage collector need not look through their objects again and again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips GPU tests where there is no GPU, and says so."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU, and this machine has none"))
