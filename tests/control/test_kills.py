"""Kill clients and keepers at random times. Kills at chosen places: test_client.py and test_client_ends.py."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from tests.cli.capped import CapBench
from tests.control.daemon import ROOT
from tests.control.flood import KINDS, flood_daemon
from tests.control.kills import campaign, kill_keepers_in_row

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


@pytest.mark.timeout(1800)
def test_keepers_killed_in_a_row_leave_no_cap_and_no_silence(tmp_path):
    draw, found = random.Random(SEED), Counter()
    with CapBench(tmp_path) as bench:
        for _ in range(30):
            trial = kill_keepers_in_row(bench, draw)
            assert trial.outcome != "never", trial
            assert not trial.is_silent, trial
            found[trial.outcome, trial.code] += 1
    print(found)


@ROOT
@pytest.mark.parametrize("kind", KINDS)
def test_a_listed_user_is_answered_under_a_flood(tmp_path, kind):
    found = flood_daemon(kind, tmp_path, 5.0)
    print(kind, found.longest_s, max(found.idle_waits_s), len(found.waits_s), found.connections)
    assert not found.failures
    assert not found.is_late  # below 1 s on a machine that does nothing else
    assert len(found.waits_s) > 5
