from __future__ import annotations

import os

import pytest
from tests.control.kills import campaign

SEED = int(os.environ.get("JOULELAB_KILL_SEED", "4"))


@pytest.mark.no_cover
@pytest.mark.timeout(300)
def test_whatever_is_killed_the_caps_come_back():
    result = campaign(8, SEED)
    assert not result.problems, result


@pytest.mark.campaign
@pytest.mark.no_cover
@pytest.mark.timeout(1800)
def test_two_hundred_kills_leave_nothing_behind():
    result = campaign(200, SEED + 1)
    print(result)
    assert not result.problems, result
    assert len(result.kills) > 8
    assert result.restored
