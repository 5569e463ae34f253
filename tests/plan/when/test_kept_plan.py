"""Plans that are kept, and how far their gain may be off."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.plan.when.problems import MONDAY_S, daily, job, slots

from joulelab.core.errors import ConfigError
from joulelab.plan.when.baselines import Terms, ways_of
from joulelab.plan.when.blocks import Restart
from joulelab.plan.when.errors import Scatter, scatter_of
from joulelab.plan.when.kept_plan import Plan, keep, new_id

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

TERMS = Terms(Restart(300.0, 1000.0), waits=False, pue=1.1)


def plan(name: str = "pauses-off", terms: Terms = TERMS) -> Plan:
    at = slots(daily(3, issued_utc_s=MONDAY_S), 60.0)
    one = job(gpus=8, gpu_w=700.0, rated_w=10_200.0)
    return Plan(new_id(MONDAY_S), "2026-11-16T00:00:00+00:00", one, at, terms, ways_of(one, at, terms), name)


def test_a_plan_is_kept_whole(tmp_path: Path) -> None:
    made = replace(plan("start", replace(TERMS, pue_u=0.02)), scatter=Scatter((0.1, 0.2)))
    path = keep(made, tmp_path / "plans")
    data = json.loads(path.read_text())
    assert data == made.to_json()
    assert (data["joulelab_plan"], data["pue_expanded"], data["time_zone"]) == (2, 0.04, "UTC")
    assert made.way.cost.terms["pue:given"] == pytest.approx(made.way.cost.value * 0.02 / 1.1)
    assert [p.name for p in path.parent.iterdir()] == [f"{made.id}.json"]
    with pytest.raises(ConfigError, match="cannot be kept"):
        keep(made, path)


def test_gains_under_the_errors_of_earlier_forecasts() -> None:
    made = plan("start", Terms())
    week_s = 7 * 86_400.0
    told = [daily(3, issued_utc_s=MONDAY_S), daily(3, deep=0.0)]
    earlier = [type(one)(one.label, one.start_s - week_s, one.values, one.end_s - week_s) for one in told]
    first = type(earlier[0])(daily(3, issued_utc_s=MONDAY_S - week_s).label, *_parts(earlier[0]))
    # A forecast that promised the swing and got none: then nothing is gained here either.
    found = scatter_of(made.way, made.now, made.slots, [(first, earlier[1])], issued_s=MONDAY_S)
    assert found is not None
    assert found.gains == pytest.approx([0.0], abs=1e-9)
    true = scatter_of(made.way, made.now, made.slots, [(first, first), (first, earlier[1])], issued_s=MONDAY_S)
    assert true is not None
    assert true.gains[0] == pytest.approx(1 - made.way.cost.value / made.now.cost.value)
    assert true.to_json()["forecasts"] == 2
    short = type(first)(first.label, first.start_s[:5], first.values[:5], float(first.start_s[5]))
    assert scatter_of(made.way, made.now, made.slots, [(short, short)], issued_s=MONDAY_S) is None


def _parts(steps: object) -> tuple[np.ndarray, np.ndarray, float]:  # type: ignore[type-arg]
    return steps.start_s, steps.values, steps.end_s  # type: ignore[attr-defined]
