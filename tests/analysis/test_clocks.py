"""Hosts whose clocks differ: the interval covers what a shift within the stated error does to an energy."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.analysis.folders import UTC, Folder, counter, power
from tests.analysis.virtual import BASE, NS, accuracy, ns

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.channels import load_channels
from joulelab.analysis.joining import join_meters
from joulelab.analysis.slow_meters import DoubtedCurve

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.store.run_reader import Run

EXACT = accuracy(0.0, shared="exact")
LATER = 5_000 * NS  # how much earlier the second host booted
START, END, LENGTH = 10.0, 40.0, 50.0
IDLE_W, LOAD_W = 50.0, 300.0


def watts(t):
    return np.where((t >= START) & (t < END), LOAD_W, IDLE_W)


def joules(t):
    return IDLE_W * t + (LOAD_W - IDLE_W) * np.clip(t - START, 0, END - START)


def two_hosts(tmp_path: Path, shift_s: float, error_s: float | None, *, boot: str = "other") -> Run:
    """Make a run of two hosts under the same load; the UTC clock of the second is wrong by a shift."""
    folder = Folder(
        tmp_path, started={"mono_ns": BASE, "utc_ns": UTC, "width_ns": 0, "kernel_error_ns": 0, "boot_id": "b"}
    )
    t = np.arange(0.05, LENGTH, 0.1)
    for host, off_s in (("node1", 0.0), ("node2", LATER / NS)):
        folder.add("rapl", counter("cpu:0", given=EXACT), t + off_s, joules(t), host=host)
        folder.add("bmc", power("node.dc", given=EXACT), t + off_s, watts(t - 0.1), host=host)
    utc = UTC + round(shift_s * NS)
    if error_s is not None:
        times = {"width_ns": 0, "kernel_error_ns": round(error_s * NS), "boot_id": boot}
        lines = [{"mono_ns": BASE + LATER + k * NS, "utc_ns": utc + k * NS, **times} for k in (0, 40)]
        text = "".join(json.dumps({"t": line["mono_ns"], "event": "clock", **line}) + "\n" for line in lines)
        (folder.path / "node2" / "events.0.jsonl").write_text(text)
    return folder.close(START, END, ended={"boot_id": "b"}).open()


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("error_s", [0.002, 0.3, 4.0])
def test_the_interval_covers_shifts_within_the_error(tmp_path: Path, error_s: float) -> None:
    rng = np.random.default_rng(3)
    covered = []
    for k, shift_s in enumerate([*rng.uniform(-error_s, error_s, 4), -error_s, error_s]):
        with two_hosts(tmp_path / str(k), float(shift_s), error_s) as run:
            result = analyse_run(run)
        for scope in result.scopes:
            true = LOAD_W * (END - START)
            assert scope.energy.expanded is not None
            covered.append(abs(scope.energy.value - true) <= scope.energy.expanded)
            clock = scope.energy.budget().get("clock", 0.0)
            if scope.host == "node1":
                assert clock == 0
            else:
                assert clock >= IDLE_W * error_s / 2
                assert clock <= 2 * LOAD_W * error_s
    assert len(covered) == 24
    assert all(covered)


def test_hosts_of_one_boot_have_no_clock_term(tmp_path: Path) -> None:
    with two_hosts(tmp_path, 0.0, 1.0, boot="b") as run:
        assert run.clock_error_ns("node2") == 0


def test_edges_between_phases_cancel_and_scopes_of_a_host_shift_together(tmp_path: Path) -> None:
    with two_hosts(tmp_path, 0.1, 0.2) as run:
        (scope,) = (s for s in load_channels(run) if (s.host, s.scope) == ("node2", "cpu:0"))
    whole = scope.best.energy(ns(START), ns(END))
    parts = scope.best.energy(ns(START), ns(20)) + scope.best.energy(ns(20), ns(END))
    clock = {s: u for s, u in whole.terms.items() if s.startswith("clock:node2:")}
    assert len(clock) == 2
    left = {s: u for s, u in parts.terms.items() if s.startswith("clock:")}
    assert left == pytest.approx({**clock, f"clock:node2:{ns(20)}": 0.0}, abs=1e-9)
    assert scope.best.energy(ns(20), ns(20)).value == pytest.approx(0.0, abs=1e-6)
    doubted = replace(scope.best, curve=DoubtedCurve(scope.best.curve))
    assert doubted.energy(ns(START), ns(END)).terms == pytest.approx(whole.terms)


def test_what_guides_shifts_with_what_is_guided(tmp_path: Path) -> None:
    """Let a slow meter be guided by fast ones of the same host: the shift counts once."""
    with two_hosts(tmp_path, 0.0, 0.2) as run:
        joined = join_meters(load_channels(run), ns(START), ns(END))
    (slow,) = (s.best for s in joined.scopes if (s.host, s.scope) == ("node2", "node.dc"))
    terms = slow.energy(ns(START), ns(END)).terms
    assert sum(s.startswith("clock:") for s in terms) == 2
    assert abs(terms[f"clock:node2:{ns(END)}"]) <= LOAD_W * 0.21


def test_no_interval_is_told_where_times_cannot_be_joined(tmp_path: Path) -> None:
    run = two_hosts(tmp_path, 0.0, None)
    for path in (run.path / "node2").glob("*.journal"):
        path.write_bytes(
            path.read_bytes().replace(b'"boot_id":"b"', b'"boot_id":"c"').replace(b'"boot_id": "b"', b'"boot_id": "c"')
        )
    with run:
        assert run.unjoined() == ["node2"]
        found = {(s.host, s.energy.known) for s in analyse_run(run).scopes}
    assert found == {("node1", True), ("node2", False)}
