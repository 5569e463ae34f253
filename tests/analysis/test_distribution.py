from __future__ import annotations

import numpy as np
import pytest

from joulelab.analysis.readings import make_distribution


def test_shares_of_time_and_percentiles() -> None:
    mean = np.array([100.0] * 90 + [300.0] * 10)
    high = mean + 5
    high[3] = 700.0
    found = make_distribution(mean, high, 0.1)
    assert found is not None
    assert sum(found.shares) == pytest.approx(1.0)
    assert (found.shares[0], found.shares[-1]) == pytest.approx((0.9, 0.1))
    assert (found.edges[0], found.edges[-1]) == (100.0, 300.0)
    assert len(found.edges) == len(found.shares) + 1
    assert (found.median, found.p95) == (100.0, 300.0)
    assert found.maximum == 700.0  # no peak is lost in a mean


def test_what_was_not_read_counts_for_nothing() -> None:
    mean = np.array([np.nan, 200.0, np.nan, 200.0])
    found = make_distribution(mean, np.full(4, np.nan), 1.0)
    assert found is not None
    assert found.shares == (1.0,)
    assert found.edges[0] < 200.0 < found.edges[-1]
    assert found.maximum == 200.0
    assert make_distribution(np.full(3, np.nan), np.full(3, 5.0), 1.0) is None
