"""The campaign itself: a minute of it, and its sums."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.campaign.__main__ import PARTS, Campaign, add_files, main
from tests.campaign.campaign_counts import CampaignCounts
from tests.campaign.square_meter import DEVICES, HALF_S, HIGH_W, LOW_W, compute_true_energy_j

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.campaign
@pytest.mark.no_cover
@pytest.mark.timeout(1800)
def test_a_minute_of_the_campaign_breaks_no_promise() -> None:
    campaign = Campaign(list(PARTS), "test-all")
    campaign.run(1.0)
    print(campaign.counts.to_table())
    assert not campaign.counts.problems
    assert not campaign.counts.is_promise_broken
    tried = set(campaign.counts.trials)
    assert tried == set(PARTS)
    assert campaign.counts.fuzzed.total() >= 300


def test_counts_of_split_campaigns_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = CampaignCounts(60.0, ["1"], Counter(runs=2), Counter(run=2), [0.1, 0.3], Counter({"by themselves": 2}))
    second = CampaignCounts(30.0, ["2"], Counter(runs=1, fuzz=4), Counter(run=1), [0.5], damaged=3, noticed=3)
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    files[0].write_text(json.dumps(first.to_json()) + "\n")
    files[1].write_text(json.dumps(second.to_json()) + "\n")
    whole = add_files(files)
    assert (whole.seconds, whole.trials.total(), whole.kills.total(), whole.lost_s) == (90.0, 7, 3, [0.1, 0.3, 0.5])
    assert not whole.is_promise_broken
    assert main(["--add", *map(str, files)]) == 0
    assert "median 0.30 s, worst 0.50 s, of 3" in capsys.readouterr().out


def test_each_broken_promise_is_an_exit_code(tmp_path: Path) -> None:
    broken: list[dict[str, object]] = [
        {"caps": {"never": 1}},
        {"processes_left": 1},
        {"damaged": 2, "noticed": 1},
        {"crashes": 1},
        {"faults": 1, "faults_silent": 1},
        {"problems": ["x"]},
    ]
    for number, fields in enumerate(broken):
        file = tmp_path / f"{number}.jsonl"
        file.write_text(json.dumps(CampaignCounts().to_json() | fields) + "\n")
        assert main(["--add", str(file)]) == 1, fields


def test_the_true_energy_of_the_square_meter() -> None:
    wave_j = HALF_S * (LOW_W + HIGH_W)
    period_ns = round(2e9 * HALF_S)
    assert compute_true_energy_j(0, 3 * period_ns) == pytest.approx(3 * DEVICES * wave_j)
    assert compute_true_energy_j(0, period_ns // 2) == pytest.approx(DEVICES * HALF_S * LOW_W)
    assert compute_true_energy_j(period_ns // 2, period_ns) == pytest.approx(DEVICES * HALF_S * HIGH_W)
