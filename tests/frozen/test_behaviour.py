"""Nothing that was nailed down has moved. `python -m tests.frozen.behaviour write PART` after a change that means to."""

from __future__ import annotations

import pytest
from tests.frozen import behaviour


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", behaviour.PARTS)
def test_behaviour_is_as_it_was(part: str) -> None:
    assert behaviour.compared(part) == []
