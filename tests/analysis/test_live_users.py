"""`watch`, `track`, the dashboard and the agent show the same power and energy of the same readings, to the digit."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.report.synthetic import HOST, START, make_run
from tests.report.watch.looked import write

from joulelab.agent.collect import Collector
from joulelab.agent.metrics import samples
from joulelab.analysis import live_energy
from joulelab.analysis.live_energy import LiveFigures, LiveHost
from joulelab.analysis.live_state import JournalFollower
from joulelab.core.clock import NS
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.dashboard.index import Index
from joulelab.recorder.plan import Plan
from joulelab.recorder.rows import make_row_tables
from joulelab.report.watch.watched_run import RunWatch

ACCURACY = Accuracy("assumed", 0.03)
POWER = Spec("power_w", "power", "W", "power", 0.1, 0.1, accuracy=ACCURACY)
ENERGY = Spec("energy_j", "energy", "J", "counter", 0.1, accuracy=ACCURACY)
Rows = list[tuple[float, tuple[float, ...]]]


def noise(number: int) -> Any:
    return np.random.default_rng(number).normal(0, 9, 200).round(3)


def make_readings() -> list[tuple[str, Stream, Rows]]:
    """Return 20 s of a node: a gap, a stuck counter, channels that are not read, a slow meter, a silent one."""
    watts = 300 + noise(1)
    joules = 5000 + np.concatenate(([0.0], np.cumsum(watts[:-1]) / 10))
    nan = math.nan
    gpus: list[tuple[str, Stream, Rows]] = [
        ("nvml", gpu(0), [(k / 10, (joules[k], watts[k])) for k in range(200) if not 60 <= k < 120]),
        ("stuck", gpu(1), [(k / 10, (7.0, 200 + noise(2)[k])) for k in range(200)]),
        ("partly", gpu(2), [(k / 10, (joules[k], nan if k % 2 else 250 + noise(3)[k])) for k in range(200)]),
    ]
    package_j = np.cumsum(90 + noise(4)) / 10
    package = Spec("energy_j", "energy", "J", "counter", 0.001, modulus=1000.0, accuracy=ACCURACY)
    rapl = Stream("cpu:0", "energy", "cpu:0", 0.1, (package,))
    slow = Spec("power_w", "power", "W", "power", 5.0, 5.0, accuracy=ACCURACY)
    bmc = Stream("node.dc", "power", "node.dc", 5.0, (slow,))
    silent = Stream("dram:0", "energy", "dram:0", 0.1, (ENERGY,), parent="cpu:0")
    return [
        *gpus,
        ("rapl", rapl, [(k / 10, (package_j[k] % 1000.0,)) for k in range(200)]),
        ("bmc", bmc, [(5.0 * k, (1100.0 + k,)) for k in range(4)]),
        ("memory", silent, [(k / 10, (2.0 * k,)) for k in range(100)]),
    ]


def gpu(number: int) -> Stream:
    return Stream(f"gpu:{number}.power", "power", f"gpu:{number}", 0.1, (ENERGY, POWER), parent="node.dc")


class AgentOnReadings:
    """The agent's collector, given rows by hand."""

    def __init__(self, readings: list[tuple[str, Stream, Rows]], now_ns: int) -> None:
        collector = Collector(Plan(Path(), HOST, 1, meters=[]), clock=lambda: now_ns)
        collector.kept = [SimpleNamespace(name=meter, is_expected=True) for meter, _, _ in readings]  # type: ignore[misc]
        for meter, stream, rows in readings:
            (table,) = make_row_tables(meter, [stream])
            for at, values in rows:
                t_ns = START + round(at * NS)
                table.rows.append(table.pack(0, t_ns, t_ns, *values))
            collector._new.append((meter, [table]))
        found = samples(collector.seen())
        self.power_w = {key[0]: watts for key, watts in found["joulelab_power_watts"].items()}
        self.energy_j = {key[0]: joules for key, joules in found["joulelab_energy_joules_total"].items()}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = make_run(tmp_path, state="live", gpus=0, cpus=0, seconds=20.0)
    for meter, stream, rows in make_readings():
        write(made, meter, stream, rows)
    return made


def track(run: Path) -> LiveFigures:
    host = LiveHost(run / HOST, START)
    figures = host.read()
    host.close()
    assert figures is not None
    return figures


def test_the_power_of_every_scope_is_the_same_number(run: Path) -> None:
    watch = RunWatch(run, 1.0)
    view = watch.read()
    watch.close()
    history = watch._hosts[HOST].power
    agent = AgentOnReadings(make_readings(), history.follower.state.reached_ns)
    shown = {name: scope.now_w for name, scope in history.scopes.items()}
    assert math.isnan(shown.pop("dram:0"))  # silent for 10 s: neither shows a number
    assert shown == agent.power_w
    assert shown.keys() == {"gpu:0", "gpu:1", "gpu:2", "cpu:0", "node.dc"}
    assert shown["node.dc"] == 1103.0
    tracked = track(run)
    assert tracked.power_w["gpu"] == shown["gpu:0"] + shown["gpu:1"] + shown["gpu:2"]
    assert tracked.power_w["cpu"] == shown["cpu:0"]
    assert tracked.power_w["measured"] == tracked.power_w["node.dc"] == view.now_w == 1103.0
    (entry,) = dashboard(run)
    assert entry.power_w == view.now_w


def test_scopes_without_readings_now_are_marked(run: Path) -> None:
    scopes = {scope.scope: scope.is_silent for scope in track(run).scopes}
    assert [scope for scope, is_silent in scopes.items() if is_silent] == ["dram:0"]
    assert scopes["node.dc"] is False  # one reading each 5 s


def test_a_sum_is_as_old_as_its_oldest_member() -> None:
    cords = [SimpleNamespace(members=(), readings=SimpleNamespace(t0_ns=[1, last])) for last in (5, 3)]
    both: Any = SimpleNamespace(members=cords)
    assert live_energy._find_last_ns(both) == 3


def test_the_energy_so_far_is_the_same_number(run: Path) -> None:
    watch = RunWatch(run, 1.0)
    view = watch.read()
    watch.close()
    tracked = track(run)
    assert view.energy is not None
    assert view.energy == tracked.energy["measured"]
    assert {row.label: row.energy for row in view.rows}["gpu (3)"] == tracked.energy["gpu"]
    (entry,) = dashboard(run)
    # Its sources are summed by kind of error, in another order.
    assert entry.energy.value == view.energy.value
    assert entry.energy.expanded == pytest.approx(view.energy.expanded, rel=1e-12)
    assert entry.duration_s == view.energy_s == tracked.seconds


def test_the_agent_counts_what_lies_between_readings_as_the_live_state_does(run: Path) -> None:
    """Its totals run for months: they are the meter's own counts, and no edge is worked out again."""
    follower = JournalFollower(run / HOST, 60.0)
    follower.read()
    agent = AgentOnReadings(make_readings(), follower.state.reached_ns)
    energy = {s.stream.scope: s.energy_j for s in follower.state.streams.values() if s.gives_energy}
    assert energy == agent.energy_j
    used = track(run).energy["gpu"]
    assert sum(energy[f"gpu:{k}"] for k in range(3)) == pytest.approx(used.value, abs=used.expanded)


def dashboard(run: Path) -> tuple[Any, ...]:
    index = Index(run.parent, None)
    index.look()
    index.work()
    found = index.snapshot().entries
    for key in list(index._watches):
        index._stop_watch(key)
    return found
