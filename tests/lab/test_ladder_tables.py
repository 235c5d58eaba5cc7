"""Tables of a ladder as they are kept: each row once, and own order beside one forward pass, seed by seed."""

from __future__ import annotations

import pandas as pd
import pytest
from lab.ladder_tables import between_decodings, once


def test_a_row_of_two_studies_is_kept_once_and_has_what_the_later_one_knows() -> None:
    told = pd.DataFrame({"model": ["a", "b", "a"], "seed": [0, 1, 0], "emerged": [3, 4, 3], "sinks": [None, None, 0.5]})
    assert once(told).to_dict("list")["sinks"][1:] == [0.5]
    assert list(once(told)["model"]) == ["b", "a"]


def test_own_order_minus_one_forward_pass_is_paired_by_seed() -> None:
    runs = pd.DataFrame(
        {"task": "text", "objective": "scratch", "intervention": None, "policy": "above:3", "seed": seed,
         "decoding_name": decoding, "damage": seed + shift, "beyond_mass": seed - shift}
        for seed in range(3)
        for decoding, shift in (("half", 0.0), ("order", 0.25))
    )  # fmt: skip
    lost, beyond = between_decodings(runs).to_dict("records")
    assert (lost["damage"], lost["difference"], beyond["difference"]) == (
        "damage",
        pytest.approx(0.25),
        pytest.approx(-0.25),
    )
    assert lost["difference_low"] == pytest.approx(lost["difference_high"])
    assert between_decodings(runs[runs["decoding_name"] == "half"]).empty
