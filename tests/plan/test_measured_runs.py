"""What a run says of its nodes: power over time, energy between any two times, nothing counted twice."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.plan.measured_runs import measured, node_run, only_accounted
from tests.report.synthetic import make_run
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.core.text import SERVED_TWIN
from joulelab.plan.measured_runs import identify_work, require_whole_nodes
from joulelab.report import format as fmt

if TYPE_CHECKING:
    from pathlib import Path


def saw(second: float) -> float:
    return 4000.0 + 100.0 * (second % 10.0)


def test_energies_add_up_to_that_of_the_whole(tmp_path: Path) -> None:
    one = measured(node_run(tmp_path, saw, seconds=60.0))
    draw = np.random.default_rng(1)
    whole = one.result.energy
    assert whole is not None
    for _ in range(5):
        edges = np.sort(np.concatenate([[0.0, 60.0], draw.uniform(0.0, 60.0, 7)]))
        parts = one.energies(edges)
        assert sum(q.value for q in parts) == pytest.approx(whole.value, rel=1e-9)
        assert all(q.value > 0 for q in parts)
    halves = one.energies([0.0, 30.0, 60.0])
    assert (halves[0] + halves[1]).u == pytest.approx(whole.u, rel=0.01)  # the edge between them cancels


def test_times_outside_of_the_workload_count_as_its_ends(tmp_path: Path) -> None:
    one = measured(node_run(tmp_path, 5000.0, idle_w=5000.0))
    before, inside, after = one.energies([-30.0, 0.0, 20.0, 90.0])
    assert (before.value, after.value) == (0.0, 0.0)
    assert inside.value == pytest.approx(5000.0 * 20.0)


def test_no_plan_is_made_with_impossible_power(tmp_path: Path) -> None:
    run = node_run(tmp_path, lambda s: -50.0 if 7.0 < s <= 8.0 else 5000.0)
    with pytest.raises(ConfigError, match=r"cannot be planned with.*falls to -50 W, so its energy is wrong"):
        measured(run)


def test_a_node_is_the_outermost_thing_measured_on_it(tmp_path: Path) -> None:
    one = measured(node_run(tmp_path, 6000.0, gpu_w=500.0, seconds=40.0))
    (draw,) = one.draws
    assert (draw.side, draw.scopes, draw.gpus) == ("ac", ("node.ac",), 2)
    assert np.nanmedian(draw.mean_w) == pytest.approx(6000.0)  # not what is in it once more
    assert np.nanmedian(draw.parts["gpu"]) == pytest.approx(1000.0)
    assert draw.gain == pytest.approx(2 * 0.01 / np.sqrt(3), rel=1e-6)
    assert draw.idle_w is not None
    assert draw.idle_w.value == pytest.approx(2000.0)
    assert draw.start_utc_s == one.start_utc_s
    assert draw.twin == ""


def test_the_highest_reading_is_kept_beside_the_means(tmp_path: Path) -> None:
    one = measured(node_run(tmp_path, lambda s: 9000.0 if 7.0 < s <= 8.0 else 5000.0, idle_w=5000.0))
    (draw,) = one.draws
    assert draw.highest_w == pytest.approx(9000.0)
    assert draw.average_w == pytest.approx(5000.0 + 4000.0 / 20.0, rel=0.01)
    assert len(draw.mean_w) * draw.step_s == pytest.approx(draw.duration_s)


def test_readings_finer_than_a_tenth_of_a_second_are_taken_together(tmp_path: Path) -> None:
    (draw,) = measured(node_run(tmp_path, 5000.0, idle_w=5000.0, step_s=0.02, seconds=4.0)).draws
    assert draw.raw_s == pytest.approx(0.02)
    assert draw.step_s == pytest.approx(0.1)
    assert len(draw.mean_w) == 40


def test_readings_are_kept_as_they_were_read(tmp_path: Path) -> None:
    (draw,) = measured(node_run(tmp_path / "a", saw, seconds=40.0)).draws
    assert np.diff(draw.read_s) == pytest.approx(1.0)
    assert draw.read_s.size == 40
    assert set(np.round(np.diff(draw.read_w))) == {100.0, -900.0}  # a grid would have smoothed the fall
    (fine,) = measured(node_run(tmp_path / "b", 5000.0, idle_w=5000.0, step_s=0.02, seconds=4.0)).draws
    assert np.diff(fine.read_s) == pytest.approx(0.1)
    assert fine.read_w[1:] == pytest.approx(5000.0)


def test_a_host_of_several_meters_holds_each_until_its_next_reading(tmp_path: Path) -> None:
    (parts,) = measured(make_run(tmp_path, gpus=2, gpu_w=300.0, cpus=1, cpu_w=90.0, idle_w=300.0)).draws
    known = parts.read_w[np.isfinite(parts.read_w)]
    assert known.size > 0.9 * parts.read_w.size
    assert np.median(known) == pytest.approx(690.0, rel=0.02)


def test_a_node_behind_its_supplies_and_a_node_in_parts_are_told_apart(tmp_path: Path) -> None:
    (behind,) = measured(node_run(tmp_path / "dc", 5000.0, scope="node.dc")).draws
    (parts,) = measured(make_run(tmp_path / "parts", gpus=2, gpu_w=300.0, cpus=1, cpu_w=90.0, idle_w=300.0)).draws
    assert behind.side == "dc"
    assert parts.side == "parts"
    assert set(parts.scopes) == {"gpu:0", "gpu:1", "cpu:0"}
    assert parts.average_w == pytest.approx(690.0, rel=0.02)
    assert set(parts.parts) == {"gpu", "cpu"}


def test_each_host_has_a_draw_of_its_own(tmp_path: Path) -> None:
    one = measured(node_run(tmp_path, 5000.0, idle_w=5000.0, hosts=("node1", "node2")))
    assert [draw.host for draw in one.draws] == ["node1", "node2"]
    assert {draw.run for draw in one.draws} == {one.result.run}
    (both,) = one.energies([0.0, 20.0])
    assert both.value == pytest.approx(2 * 5000.0 * 20.0)


def test_the_nameplate_of_the_node_is_known_where_it_was_told(tmp_path: Path) -> None:
    (draw,) = measured(node_run(tmp_path / "a", options={"node": {"rated_w": 10200.0}})).draws
    assert (draw.rated_w, draw.rated_by) == (10200.0, "rated_w of joulelab.toml")
    (draw,) = measured(node_run(tmp_path / "b", gpu_w=500.0)).draws
    assert draw.rated_w is None  # that of two GPUs is not the node's


def test_an_accuracy_that_nobody_states_is_none(tmp_path: Path) -> None:
    (draw,) = measured(node_run(tmp_path, gain=None)).draws
    assert draw.gain is None


@pytest.mark.parametrize(
    ("made", "why"), [({}, "no power was measured"), ({"estimate": True}, "its power is only estimated")]
)
def test_a_run_without_power_is_refused(tmp_path: Path, made: dict[str, bool], why: str) -> None:
    run = make_run(tmp_path, gpus=0, cpus=0, **made)
    with pytest.raises(ConfigError, match=why):
        measured(run)


def test_what_was_only_accounted_for_is_spread_evenly(tmp_path: Path) -> None:
    one = only_accounted(tmp_path)
    assert not one.resolved
    assert one.draws == ()
    assert [q.value for q in one.energies([0.0, 3.0, 12.0])] == pytest.approx([1500.0, 4500.0], rel=1e-6)
    assert one.energies([0.0, 3.0])[0].known


def test_runs_of_the_same_work_are_told_by_cell_or_workload_and_not_by_how_they_were_imported(tmp_path: Path) -> None:
    result = measured(node_run(tmp_path, saw, seconds=5.0)).result
    ran = replace(result, labels={}, facts={}, command=["train", "--lr", "1"])
    assert identify_work(ran) == "train --lr 1"
    assert identify_work(replace(ran, facts={"workload": "llama", "batch": 8})) == "llama, batch 8"
    assert identify_work(replace(ran, labels={"cell": "abc", "workload": "x"})) == "abc"
    logs = [replace(ran, outcome="imported", command=["import", name]) for name in "ab"]
    assert [identify_work(log) for log in logs] == ["", ""]
    assert identify_work(replace(logs[0], labels={"workload": "llama"})) == "llama"


def test_a_node_that_a_twin_served_is_simulated(tmp_path: Path) -> None:
    run = node_run(tmp_path)
    meta = json.loads((run / "run.json").read_text())
    assert measured(run).result.twin == ""
    (run / "run.json").write_text(json.dumps(meta | {"environment": {"JOULELAB_TWIN": "/tmp/twin/truth"}}))
    one = measured(run)
    assert one.result.twin == one.draws[0].twin == SERVED_TWIN
    assert fmt.name_twins([SERVED_TWIN]) == f"simulated: {SERVED_TWIN}"
    assert fmt.name_twins([SERVED_TWIN, "bnl"]) == f"simulated: {SERVED_TWIN}; twin bnl, virtual time"


@every_row(
    ("scope", "side"),
    [
        ("node.ac", "ac"), ("outlet:pdu1.3", "ac"), ("psu:0", "ac"), ("node.dc", "dc"), ("psu.dc:0", "dc"),
        ("gpu:0", "parts"), ("accel:0", "parts"), ("module", "parts"), ("psys", "parts"), ("fans", "parts"),
        ("core:0", "parts"), ("mine", "parts"),
    ],
)  # fmt: skip
def test_only_scopes_of_a_whole_node_count_as_the_node(tmp_path: Path, scope: str, side: str) -> None:
    (draw,) = measured(node_run(tmp_path, scope=scope)).draws
    assert draw.side == side


def test_runs_that_do_not_give_the_power_of_whole_nodes_are_refused(tmp_path: Path) -> None:
    wall, behind, part, rack = (
        measured(node_run(tmp_path / scope, scope=scope)) for scope in ("node.ac", "node.dc", "gpu:0", "rack")
    )
    twin = measured(node_run(tmp_path / "twin", twin={"name": "bnl-h100"}))
    require_whole_nodes([wall, wall], "the power")
    for runs, code in (
        ([wall, behind], "config.mixed-sides"),
        ([wall, part], "config.no-whole-node"),
        ([rack], "config.no-whole-node"),
        ([wall, twin], "config.simulated"),
        ([only_accounted(tmp_path / "job")], "config.total-only"),
    ):
        with pytest.raises(ConfigError) as caught:
            require_whole_nodes(runs, "the power")
        assert caught.value.code == code
        assert caught.value.next


def test_a_damaged_run_and_one_that_is_still_running_are_refused(tmp_path: Path) -> None:
    run = node_run(tmp_path / "a")
    journal = next(run.glob("*/pdu.power.0.journal"))
    journal.write_bytes(journal.read_bytes()[:-700])
    for wrong, code in ((run, "config.damaged"), (make_run(tmp_path / "b", state="live"), "config.live-run")):
        with pytest.raises(ConfigError) as caught:
            measured(wrong)
        assert caught.value.code == code
        assert caught.value.next
