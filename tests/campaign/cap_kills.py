"""Kill `joulelab cap`, clients with their keepers, and plans that run: the kill tests of each, one trial at a time."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING, Self

import pytest
from tests.cli import test_cap_kills
from tests.cli.capped import CapBench
from tests.control import kills
from tests.plan.when import test_plan_run_kills

from joulelab.twin.model import Node, find_gpu_model
from joulelab.twin.twin_server import TwinServer

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from tests.campaign.campaign_counts import CampaignCounts

OUTCOMES = {"by itself": "by themselves", "at the next start": "at the next start", "never": "never"}


class BenchTrials:
    """Own the simulated node on which `joulelab cap` and plans are killed."""

    def __init__(self, folder: Path) -> None:
        self._bench = CapBench(folder)

    def __enter__(self) -> Self:
        self._bench.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bench.__exit__()


class CapKills(BenchTrials):
    """Kill parts of `joulelab cap`."""

    def run_trial(self, draw: random.Random, counts: CampaignCounts) -> None:
        """Set caps, strike, and see whether the original ones return."""
        way = draw.choice(test_cap_kills.WAYS)
        trial = test_cap_kills.strike_caps(self._bench, draw, way)
        counts.kills[f"cap: {way}"] += 1
        counts.processes_left += len(trial.left)
        counts.problems += [f"{way}: process {one.pid} is left" for one in trial.left]
        if trial.was_in_force or trial.outcome == "never":
            counts.caps[OUTCOMES[trial.outcome]] += 1
        if trial.outcome == "never":
            counts.problems.append(f"{way}: a cap is left; {trial.hit} were hit")


class KeeperKills:
    """Kill clients and their keepers while caps change all the time."""

    def __init__(self, folder: Path) -> None:
        self._server = TwinServer(Node(gpus=(find_gpu_model("h100"),) * 2), directory=folder)

    def __enter__(self) -> Self:
        if shutil.which("cc") is None:
            pytest.skip("the NVML library of the twin is built with cc: apt install gcc")
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def run_trial(self, draw: random.Random, counts: CampaignCounts) -> None:
        """Run one round of tests/control/kills.py."""
        result = kills.Result()
        problems = kills._round(self._server, draw, result, kills._client)
        counts.kills.update({f"keeper: {name}": count for name, count in result.kills.items()})
        outcome = "never" if problems else "at the next start" if result.restored else "by themselves"
        counts.caps[outcome] += 1
        counts.problems += problems


class KeeperRows(BenchTrials):
    """Kill the keepers of one `joulelab cap` again and again."""

    def run_trial(self, draw: random.Random, counts: CampaignCounts) -> None:
        """Run one trial of tests/control/kills.py."""
        trial = kills.kill_keepers_in_row(self._bench, draw)
        counts.kills["keepers in a row"] += trial.deaths
        counts.caps[OUTCOMES[trial.outcome]] += 1
        if trial.outcome == "never" or trial.is_silent:
            counts.problems.append(f"{trial.deaths} keepers in a row: {trial.outcome}, {trial.code}, {trial.text!r}")


class PlanKills(BenchTrials):
    """Kill parts of a plan that sets caps and pauses its job."""

    def run_trial(self, draw: random.Random, counts: CampaignCounts) -> None:
        """Run one round of tests/plan/when/test_plan_run_kills.py."""
        way = draw.choice(list(test_plan_run_kills.WAYS))
        found: Counter[str] = Counter()
        problems = test_plan_run_kills.strike_plan(self._bench, draw, way, found)
        counts.kills[f"plan: {way}"] += 1
        has_cap = any("cap" in problem or "journal" in problem for problem in problems)
        if has_cap or found["under a cap"]:
            counts.caps["never" if has_cap else "by themselves"] += 1
        counts.processes_left += sum("a process of joulelab" in problem for problem in problems)
        counts.problems += [f"{way}: {problem}" for problem in problems]
