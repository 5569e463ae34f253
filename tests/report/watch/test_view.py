"""What `joulelab watch` knows of a run that goes on: the same figures as `show`."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from tests.report.synthetic import HOST, START, make_run
from tests.report.watch.looked import plain, power, watch, write

from joulelab.analysis.analyse import analyse_run
from joulelab.core.clock import NS
from joulelab.core.spec import Spec, Stream
from joulelab.report.watch.watch_screen import draw_screen, draw_spark, write_line, write_summary
from joulelab.report.watch.watched_files import EventFollower, MarkFollower, NewLines
from joulelab.report.watch.watched_run import HISTORY, PowerHistory, RunEnergies, RunWatch, choose_phases
from joulelab.store.journal import JournalWriter, make_journal_path, pack_row
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from pathlib import Path


# Figures ---------------------------------------------------------------------------------------------------------


def test_energy_is_that_of_show(live: Path) -> None:
    view = watch(live)
    with open_run(live) as run:
        result = analyse_run(run)
    assert view.energy is not None
    assert result.energy is not None
    share = view.energy_s / result.duration_s
    assert view.energy.value == pytest.approx(result.energy.value * share, rel=1e-3)
    assert view.energy.expanded == pytest.approx(result.energy.expanded, rel=0.1)
    assert {r.label for r in view.rows} == {"gpu (2)", "cpu:0", "measured"}


def test_power_is_that_of_the_meters(live: Path) -> None:
    view = watch(live)
    rows = {r.label: r for r in view.rows}
    for part, watts in (("gpu (2)", 600), ("cpu:0", 90), ("measured", 690)):
        assert rows[part].powers[-2] == pytest.approx(watts, rel=0.01)
    # In the last half second the load is over: 120 W and 30 W.
    assert rows["gpu (2)"].now_w == pytest.approx(360, rel=0.01)
    assert rows["cpu:0"].now_w == pytest.approx(60, rel=0.01)
    assert view.now_w == rows["measured"].now_w == pytest.approx(420, rel=0.01)
    assert rows["measured"].total
    assert rows["gpu (2)"].powers[-15] == pytest.approx(600, rel=0.01)


def test_the_node_holds_its_parts_and_leaves_a_rest(live: Path) -> None:
    write(live, "pdu", power("node.ac"), [(k / 10, (1000.0,)) for k in range(200)])
    view = watch(live)
    rows = {r.label: r for r in view.rows}
    assert view.now_w == pytest.approx(1000)
    assert rows["rest of node.ac"].now_w == pytest.approx(310, rel=0.01)
    assert math.isnan(rows["rest of node.ac"].peak_w)
    assert rows["rest of node.ac"].energy is not None
    assert rows["rest of node.ac"].energy.value == pytest.approx(310 * view.energy_s, rel=0.02)
    assert "measured" not in rows


def test_cords_are_summed_to_their_node(live: Path) -> None:
    for k in (1, 2):
        stream = power(f"outlet:{k}", sums="node.ac", parts=2, parent="node.ac")
        write(live, f"pdu{k}", stream, [(i / 10, (400.0,)) for i in range(200)])
        write(live, f"bmc{k}", stream, [(i / 10, (390.0,)) for i in range(200)])  # a second meter of the same cord
    spec = Spec("energy_j", "energy", "J", "counter", 1.0)
    rows = [(k / 10, (500.0 * (k // 10),)) for k in range(200)]
    write(live, "xcc", Stream("node.ac", "energy", "node.ac", 0.1, (spec,)), rows)  # shows power worse than they do
    view = watch(live)
    assert 780 <= {r.label: r for r in view.rows}["node.ac"].now_w <= 800
    assert 780 <= view.now_w <= 800


def test_a_sum_that_lacks_a_cord_is_none(live: Path) -> None:
    write(
        live,
        "pdu",
        power("outlet:1", sums="node.ac", parts=2, parent="node.ac"),
        [(k / 10, (4.0,)) for k in range(200)],
    )
    assert "node.ac" not in {r.label for r in watch(live).rows}


def test_a_meter_that_stops_is_a_gap_and_no_number(live: Path) -> None:
    write(live, "pdu", power("node.ac"), [(k / 10, (1000.0,)) for k in range(100)])
    view = watch(live)
    node = next(r for r in view.rows if r.label == "node.ac")
    assert math.isnan(node.now_w)
    assert math.isnan(view.now_w)
    assert not math.isnan(node.powers[-15])
    assert draw_spark(node.powers, 20).endswith("  ")
    assert write_summary(view).startswith("- W now")


def test_a_slow_meter_stands_until_its_next_reading(live: Path) -> None:
    write(live, "pdu", power("node.ac", 5.0), [(k * 5.0, (1000.0 + k,)) for k in range(4)])
    node = next(r for r in watch(live).rows if r.label == "node.ac")
    assert node.now_w == 1003.0


def test_counters_wrap_and_resets_are_no_power(tmp_path: Path) -> None:
    run = make_run(tmp_path, state="live", gpus=0, cpus=0)
    for name, modulus in (("cpu:0", 1000.0), ("cpu:1", None)):
        spec = Spec("energy_j", "energy", "J", "counter", 0.1, modulus=modulus)
        rows = [(k / 10, ((k * 10.0) % 1000.0,)) for k in range(205)]
        write(run, f"rapl{name[-1]}", Stream(name, "energy", name, 0.1, (spec,)), rows)
    history = PowerHistory(run / HOST, 1.0)
    history.read()
    assert history.scopes["cpu:0"].now_w == pytest.approx(100)
    assert math.isnan(history.scopes["cpu:1"].now_w)
    assert history.scopes["cpu:1"].powers[-5] == pytest.approx(100)


def test_only_new_rows_are_read_and_nothing_is_left_out(tmp_path: Path) -> None:
    """However irregular the looks are: the peaks of all intervals stay."""
    run = make_run(tmp_path, state="live", gpus=0, cpus=0)
    next((run / HOST).glob("host.*.journal")).unlink()
    path, stream = make_journal_path(run / HOST, "pdu", "power", 0), power("node.ac")
    fields: Any = {"meter": "pdu", "table": "power", "segment": 0, "host": HOST, "boot_id": "x"}
    history, written = PowerHistory(run / HOST, 1.0), 0
    with JournalWriter(path, fields, [stream]) as writer:
        for looks in (7, 9, 25, 13, 6, 200, 11, 10, 10):
            for _ in range(looks):
                t = START + written * NS // 10
                watts = 5000.0 if written == 43 else 100.0
                writer.append_rows(pack_row(writer.row, 0, t, t, (watts,)))
                written += 1
            history.read()
    node = history.scopes["node.ac"]
    assert node.peak_w > 400
    assert sum(w > 101 for w in node.powers) == 1
    assert len(node.powers) <= HISTORY
    held = sum(len(c.times) for s in history.follower.state.streams.values() for c in s.channels)
    assert held < 60


def test_a_look_costs_little_once_it_has_begun(live: Path) -> None:
    watched = RunWatch(live, 1.0)
    watched.read()
    before = dict(watched._hosts[HOST].power.follower.offsets)
    watched.read()
    assert watched._hosts[HOST].power.follower.offsets == before
    watched.close()


def test_an_estimate_says_so(tmp_path: Path) -> None:
    view = watch(make_run(tmp_path, state="live", gpus=0, cpus=0, estimate=True))
    assert view.estimate
    assert write_summary(view).startswith("~22.50 W now")
    assert ", estimate)" in write_summary(view)


def test_energies_keep_to_their_share(live: Path) -> None:
    clock = [0.0]
    energies = RunEnergies(share=0.02, clock=lambda: clock[0])
    host = (live / HOST, START, lambda: None)
    energies.read([host], [])
    assert energies.whole
    energies.spent_s = 1.0
    seen = energies.whole[HOST]
    energies.read([host], [])
    assert energies.whole[HOST] is seen
    clock[0] = 60.0
    energies.read([host], [])
    assert energies.whole[HOST] is not seen
    energies.close()


def test_energies_that_fail_are_said_and_end_nothing(live: Path, tmp_path: Path) -> None:
    energies = RunEnergies(share=1.0)
    for _ in range(3):
        energies.read([(tmp_path / "gone" / HOST, START, lambda: None)], [])
    assert "NotARun" in energies.problem
    energies.close()


# Phases ----------------------------------------------------------------------------------------------------------


def test_phases_have_time_and_the_energy_of_show(live: Path) -> None:
    watched = RunWatch(live, 1.0, share=10.0)
    for _ in range(12):
        view = watched.read()
    watched.close()
    with open_run(live) as run:
        result = analyse_run(run)
    shown = {p.title: p for p in view.phases}
    epoch = next(p for p in result.phases if p.title == "epoch 2")
    assert shown["epoch 2"].seconds == pytest.approx(epoch.duration_s)
    assert shown["epoch 2"].depth == 1
    assert shown["epoch 2"].energy is not None
    assert shown["epoch 2"].energy.value == pytest.approx(epoch.energy["measured"].value, rel=1e-3)
    assert shown["epoch 2"].energy.expanded == pytest.approx(epoch.energy["measured"].expanded, rel=0.05)


@pytest.mark.system  # pure, and slow
def test_of_many_phases_the_open_ones_and_the_last_are_shown(tmp_path: Path) -> None:
    folder = tmp_path / HOST
    (folder / "marks").mkdir(parents=True)
    lines = [{"t": 1, "mark": "begin", "id": "1-0", "name": "all", "n": None, "parent": None}]
    for k in range(1, 3001):
        lines.append({"t": 10 * k, "mark": "begin", "id": f"1-{k}", "name": "epoch", "n": k, "parent": "1-0"})
        lines.append({"t": 10 * k + 5, "mark": "end", "id": f"1-{k}"})
        lines.append({"t": 10 * k + 5, "mark": "work", "amounts": {"samples": 2}, "at": [10 * k, 10 * k + 3]})
    (folder / "marks" / "1.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"t": 1, "torn')
    marks = MarkFollower(folder)
    marks.read()
    marks.read()
    assert marks.work == {"samples": 6000}
    assert len(marks._lines) <= 800
    assert [p.title for p in choose_phases(marks.list_phases(40_000))][:2] == ["all", "epoch 2996"]
    steps = marks.list_steps()
    assert steps is not None
    assert steps.size == 6000


def test_the_phase_of_a_script_stays_known(tmp_path: Path) -> None:
    folder = tmp_path / HOST
    (folder / "marks").mkdir(parents=True)
    lines: list[dict[str, Any]] = [{"t": 1, "mark": "switch", "name": "load"}]
    (folder / "marks" / "script.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    many = [{"t": k, "mark": m, "id": f"{k // 2}", "name": "x"} for k in range(2, 2002) for m in ("begin", "end")]
    (folder / "marks" / "1.jsonl").write_text("".join(json.dumps(x) + "\n" for x in many))
    marks = MarkFollower(folder)
    marks.read()
    assert "load" in {p.name for p in marks.list_phases(5000) if p.open_end}


# Health ----------------------------------------------------------------------------------------------------------


def test_meters_tell_gaps_and_what_is_late(tmp_path: Path) -> None:
    t = START + NS
    events = [
        {"t": t, "event": "meter", "meter": "nvml", "status": "open"},
        {"t": t, "event": "meter", "meter": "rapl", "status": "open"},
        {"t": t, "event": "meter", "meter": "amdsmi", "status": "unavailable", "why": "no GPU"},
        {"t": t, "event": "late", "meter": "nvml", "count": 3, "missed": 1},
        {"t": t, "event": "gap", "meter": "rapl", "stream": "cpu:0", "reason": "read failed\x1b[2J"},
        {"t": t, "event": "gap", "meter": "nvml", "stream": "gpu:0", "reason": "x"},
        {"t": t, "event": "gap-end", "meter": "nvml", "stream": "gpu:0"},
    ]
    view = watch(make_run(tmp_path, state="live", events=events))
    found = {m.name: m for m in view.meters}
    assert set(found) == {"nvml", "rapl"}
    assert (found["nvml"].state, found["nvml"].late, found["nvml"].missed, found["nvml"].gaps) == ("ok", 3, 1, 1)
    assert found["rapl"].state == "failing"
    text = plain(draw_screen(view, 80, 24))
    assert "rapl is failing" in text
    assert "read failed\\x1b[2J" in text
    assert "nvml" in text
    assert "1 gaps, 1 missed, 3 late" in text
    assert "rapl failing" in write_line(view)


def test_silence_is_told(live: Path) -> None:
    write(live, "pdu", power("node.ac"), [(k / 10, (1000.0,)) for k in range(100)])
    with (live / HOST / "events.0.jsonl").open("a") as file:
        file.write(json.dumps({"t": START, "event": "meter", "meter": "pdu", "status": "open"}) + "\n")
    found = {m.name: m for m in watch(live).meters}
    assert found["pdu"].state == "silent"
    assert found["pdu"].age_s == pytest.approx(10, abs=1)


def test_without_meters_it_says_why(tmp_path: Path) -> None:
    missing = [{"meter": "nvml", "status": "unavailable", "what": "", "why": "no library"}]
    view = watch(make_run(tmp_path, state="live", gpus=0, cpus=0, missing=missing))
    text = plain(draw_screen(view, 80, 24))
    assert all(word in text for word in ("nvml", "no library"))
    assert "-> joulelab doctor" in text
    assert "no power meter can be read here: nvml is absent (no library)" in write_line(view)


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "events.0.jsonl").write_bytes(b'{"t": 1}\nnot json\n[1]\n{"t": "x"}\n\xff\xfe\n{"t": 2}\n{"t": 3')
    assert [x["t"] for x in NewLines().read(tmp_path / "events.0.jsonl")] == [1, 2]
    events = EventFollower(tmp_path)
    events.read()
    assert events.start_ns is None
