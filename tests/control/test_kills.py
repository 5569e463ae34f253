"""Kill clients and keepers at random times. Kills at chosen places: test_client.py and test_client_ends.py."""

from __future__ import annotations

import os

import pytest
from tests.control.kills import campaign

pytestmark = pytest.mark.campaign

SEED = int(os.environ.get("JOULELAB_KILL_SEED", "4"))


@pytest.mark.no_cover
@pytest.mark.timeout(1800)
def test_two_hundred_kills_leave_nothing_behind():
    result = campaign(200, SEED)
    print(result)
    assert not result.problems, result
    assert len(result.kills) > 8
    assert result.restored
