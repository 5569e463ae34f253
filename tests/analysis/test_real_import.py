"""Real logs as files to import: nodes of 8 H100 with the defects of their logs, and nvidia-smi beside a meter.

Power logs of MLPerf Training v4.0 (Apache-2.0) and of JimZeyuYang/GPU_Power_Benchmark (MIT), kept outside of the
project.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from joulelab.analysis.analyse import analyse_run
from joulelab.core.clock import NS
from joulelab.run.run_import import ArchiveRequest, ImportedRun, ImportRequest, import_archives
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from joulelab.analysis.result import Result

DATA = Path(__file__).parents[3] / "shared" / "data"
NODES, GPUS = DATA / "h100-node-power", DATA / "nvidia-smi-vs-meter"
needs_nodes = pytest.mark.skipif(not NODES.is_dir(), reason=f"no {NODES}: real logs are not part of the project")
needs_gpus = pytest.mark.skipif(not GPUS.is_dir(), reason=f"no {GPUS}: real logs are not part of the project")
ONE_NODE = ("1node_llama2_70b_lora_0", "1node_llama2_70b_lora_1", "1node_resnet_0", "1node_resnet_1", "1node_resnet_2")
START = "2024-05-01T12:00:00Z"
START_NS = 1_714_564_800 * NS
SIDE = {"unit": "W", "update_s": 2.0, "window_s": 0.0, "gain": 0.01, "reference": "taken for the test"}
GAIN = 0.065  # what is assumed for Ampere


def node_log(run: str) -> ArchiveRequest:
    settings = {
        "path": str(NODES / f"{run}.csv"),
        "time": {"column": "t_s", "format": "seconds", "start": START},
        "host": {"column": "node"},
        "columns": [{"column": "ac_w", "scope": "node.ac", **SIDE}, {"column": "dc_w", "scope": "node.dc", **SIDE}],
    }
    return ArchiveRequest("file", "bmc", settings)


def imported(runs: Path, *asked: ArchiveRequest, **wanted: Any) -> tuple[ImportedRun, Result]:
    made = import_archives(runs, asked, ImportRequest(source="csv", command=["joulelab", "import", "csv"], **wanted))
    with open_run(made.run) as run:
        return made, analyse_run(run)


def rows(run: str) -> dict[tuple[str, str], np.ndarray]:
    """Return seconds and watts by node and side, read by hand, in order of time."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with (NODES / f"{run}.csv").open() as file:
        for row in csv.DictReader(file):
            for side in ("ac_w", "dc_w"):
                if row[side]:
                    found.setdefault((row["node"], side), []).append((float(row["t_s"]), float(row[side])))
    return {key: np.array(sorted(some)) for key, some in found.items()}


def trapezoid(series: np.ndarray, since: float) -> float:
    t, watts = series.T
    ends = np.concatenate(([since], t[t > since]))
    there = np.interp(ends, t, watts)
    return float(np.sum((there[1:] + there[:-1]) / 2 * np.diff(ends)))


@pytest.mark.system  # pure, and slow
@needs_nodes
@pytest.mark.parametrize("run", ONE_NODE)
def test_both_sides_of_a_node(tmp_path: Path, run: str) -> None:
    """The timed part of a run: AC and DC, each near the plain integral of its log, which its interval holds."""
    logs = rows(run)
    first = max(0.0, min(float(s[0, 0]) for s in logs.values()))
    made, result = imported(tmp_path, node_log(run), start_ns=START_NS + round(first * NS))
    assert {s.scope for s in result.scopes} == {"node.ac", "node.dc"}
    for (node, side), series in logs.items():
        scope = next(s for s in result.scopes if s.scope == f"node.{side[:2]}" and s.host == node)
        plain = trapezoid(series, first)
        seen = scope.energy.without("unseen")
        print(
            f"{run} {node} {side}: {scope.energy.value / 1e6:.3f} MJ (plain {plain / 1e6:.3f}), "
            f"U {2 * seen.u / seen.value:.2%}, coverage {scope.reading.coverage:.1%}, {scope.reading.readings} readings"
        )
        assert scope.energy.value == pytest.approx(plain, rel=0.01)
        assert abs(scope.energy.value - plain) <= 2 * seen.u
        assert 2 * seen.u < 0.04 * seen.value
        assert 0.8 < scope.reading.coverage <= 1.0
    longest = max(float(np.diff(s[:, 0]).max()) for s in logs.values())
    if longest > 10:
        assert {g.reason for g in result.gaps} == {"no rows in the file"}
    assert made.run.is_dir()


@needs_nodes
def test_eight_nodes_whose_dc_side_was_hardly_logged(tmp_path: Path) -> None:
    made, result = imported(tmp_path, node_log("8node_resnet_0"), start_ns=START_NS)
    logs = rows("8node_resnet_0")
    nodes = sorted({node for node, side in logs if side == "ac_w"})
    assert len(nodes) == 8
    ac = {s.host: s for s in result.scopes if s.scope == "node.ac"}
    assert sorted(ac) == nodes
    for node in nodes:
        plain = trapezoid(logs[node, "ac_w"], 0.0)
        assert ac[node].energy.value == pytest.approx(plain, rel=0.02)
    whole = result.group("measured")
    assert whole is not None
    assert whole.energy.value == pytest.approx(sum(s.energy.value for s in ac.values()))
    dc = {s.host: s for s in result.scopes if s.scope == "node.dc"}
    logged = {node for node in nodes if len(logs.get((node, "dc_w"), ())) > 1}
    assert set(dc) <= logged
    checks = {c.code: c for c in result.checks if c.status == "failed"}
    if set(dc) != set(nodes):
        assert "node.dc" in checks["not-read"].scope
    with open_run(made.run) as run:
        gaps = [e for e in run.events() if e["event"] == "gap" and e["stream"] == "node.dc"]
    assert {e["host"] for e in gaps} == set(nodes)
    assert {e["reason"] for e in gaps} <= {"no value in the file", "no rows in the file"}
    assert any("go back" in p or "repeat" in p for p in made.problems)


def gpu_logs(log: str) -> tuple[ArchiveRequest, ArchiveRequest]:
    """Return nvidia-smi's log and the meter's as two files of one GPU."""
    time = {"column": "t_ms", "format": "milliseconds", "start": START}
    smi = {"scope": "gpu:0", "unit": "W", "gain": GAIN, "reference": "assumed for Ampere", "update_s": 0.1}
    columns = [
        {**smi, "column": "power_draw_w", "name": "power_average_w", "window_s": 1.0},
        {**smi, "column": "power_instant_w", "window_s": 0.08, "name": "power_instant_w"},
        {"column": "sm_mhz", "scope": "gpu:0", "unit": "MHz", "kind": "state", "name": "sm_clock_hz"},
    ]
    meter = {"column": "power_w", "scope": "gpu:0", "unit": "W", "window_s": 0.0, "gain": 0.005, "reference": "taken"}
    return (
        ArchiveRequest(
            "file", "nvidia-smi", {"path": str(GPUS / f"{log}_nvsmi.csv"), "time": time, "columns": columns}
        ),
        ArchiveRequest("file", "meter", {"path": str(GPUS / f"{log}_meter.csv"), "time": time, "columns": [meter]}),
    )


@pytest.mark.system  # pure, and slow
@needs_gpus
@pytest.mark.parametrize("log", ["5050_3090", "Transient_Response_3090_TR"])
def test_nvidia_smi_and_a_meter_are_two_meters_of_one_gpu(tmp_path: Path, log: str) -> None:
    t, watts = np.genfromtxt(GPUS / f"{log}_meter.csv", delimiter=",", skip_header=1).T
    since, until = START_NS + round(t[0] * 1e6), START_NS + round(t[-1] * 1e6)
    _, result = imported(tmp_path, *gpu_logs(log), start_ns=since, end_ns=until)
    (gpu,) = result.scopes
    readings = {(r.meter, r.channel): r for r in (gpu.reading, *gpu.others)}
    assert set(readings) == {
        ("nvidia-smi", "power_average_w"),
        ("nvidia-smi", "power_instant_w"),
        ("meter", "power_w"),
    }
    (lag,) = result.lags
    assert lag.why in ("", "no-lag"), lag
    assert abs(lag.lag_s) < 0.05, "beyond half its period and window, which were declared"
    stated = {c.other.channel: c.difference.value / c.best.energy.value for c in result.comparisons}
    assert all(-0.09 < share < -0.02 for share in stated.values()), stated
    drawn = float(np.sum((watts[1:] + watts[:-1]) / 2 * np.diff(t)) / 1000)
    assert readings["meter", "power_w"].energy.value == pytest.approx(drawn, rel=0.002)
    for channel in ("power_average_w", "power_instant_w"):
        share = readings["nvidia-smi", channel].energy.value / drawn - 1
        print(f"{log} {channel}: {share:+.2%} of what the meter saw")
        assert -0.09 < share < -0.02, "the study found -4.7 % on this board"
