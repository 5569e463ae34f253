"""Honesty of the comparison over drawn loads, gains and edges: alike seldom differs, what is 30 % off always does."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from tests.analysis.folders import Folder, power
from tests.analysis.test_job_accounting import account, only, result_of
from tests.analysis.virtual import accuracy, ns

T = np.arange(0, 60, 0.1)
TRIALS = 100
LOOK_S = 1.0


def drawn(seed):
    """Return a load (W at times in s): idle around the workload, and anything before and after the record."""
    r = random.Random(seed)
    idle = r.uniform(100, 600)
    top = idle * r.uniform(1.1, 6)
    outside = r.choice([idle, idle, r.uniform(idle, top)])
    cuts = np.sort([r.uniform(5, 55) for _ in range(4)])
    levels = np.array([r.uniform(idle, top) for _ in range(5)])

    def load(t):
        inside = np.where((t < 4) | (t > 56), idle, levels[np.searchsorted(cuts, t)])
        return np.where((t < 0) | (t > 60), outside, inside)

    return r, load


def verdict(path, seed, off):
    r, load = drawn(seed)
    folder = Folder(path)
    folder.add("bmc", power("node.dc"), T, load(np.maximum(T - 0.1, 0)) * (1 + r.uniform(-0.01, 0.01)))
    if r.random() < 0.5:
        folder.event(3.0, "idle", **{"from": ns(0.5), "to": ns(3.5)})
    since, until = r.uniform(-8, -0.2), r.uniform(60.2, 66)
    # The cluster counts from look to look, and cuts its stamps to seconds.
    t = np.linspace(since - r.uniform(0, LOOK_S), until - r.uniform(0, LOOK_S), 20_001)
    joules = float(load(t).mean()) * (t[-1] - t[0]) * (1 + r.uniform(-0.05, 0.05) + off)
    start, end = math.floor(since), math.floor(until)
    given = accuracy(0.05, shared="slurm:xcc", quantum=1 + joules / (end - start) * (LOOK_S + 1))
    return only(result_of(account(folder, joules, start, end, given=given, holds=["node1"]), 4.0, 56.0)).verdict


@pytest.mark.campaign
def test_what_is_alike_seldom_differs_and_what_is_a_third_off_always(tmp_path):
    said = {off: [verdict(tmp_path, seed, off) for seed in range(TRIALS)] for off in (0.0, 0.3)}
    assert said[0.0].count("differ") <= 0.1 * TRIALS
    assert said[0.3].count("differ") == TRIALS
