"""At least 95 % of drawn servers have their true energy per token and request inside the intervals."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.campaign


def test_intervals_hold_over_a_hundred_drawn_servers():
    from benchmarks.serving import main

    assert main(["--scenarios", "100"]) == 0
