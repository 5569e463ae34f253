"""Files and answers that somebody changed: each parser reads its samples, and refuses the changed ones in words."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from tests.campaign.campaign_counts import CampaignCounts
from tests.campaign.fuzz_trials import FuzzTrials, change_bytes, list_file_targets, list_meter_targets, try_input

from joulelab.core.errors import ConfigError
from joulelab.plan.when.when_plan import WhenPlan

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("pysnmp", reason="pip install 'joulelab[dev]'")
BATCH = 12


def test_no_parser_crashes(tmp_path: Path) -> None:
    targets = [*list_meter_targets(), *list_file_targets(tmp_path)]
    assert len({target.name for target in targets}) == len(targets) > 25
    draw, problems = random.Random(26), []
    for target in targets:
        inputs = [change_bytes(draw, draw.choice(target.samples)) for _ in range(BATCH)]
        found = [(text, data[:60]) for data in (*target.samples, *inputs) if (text := try_input(target, data))]
        problems += [f"{target.name}: {text} for {data!r}" for text, data in found]
    assert problems == []


def test_a_crash_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = CampaignCounts()
    with FuzzTrials(tmp_path) as trials:
        monkeypatch.setattr(trials, "_targets", [FailingTarget()])
        trials.run_trial(random.Random(1), counts)
    assert counts.crashes == 1
    assert counts.is_promise_broken


class FailingTarget:
    name, samples = "failing", (b"x",)

    def call(self, data: bytes) -> None:
        raise IndexError("list index out of range")


def test_a_saved_plan_that_is_none_is_refused() -> None:
    for content in ([], 3, None, "x", {}, {"joulelab_plan": 99}):
        with pytest.raises(ConfigError):
            WhenPlan.from_json(content)
