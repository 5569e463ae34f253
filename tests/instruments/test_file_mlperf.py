"""MLPerf's logs as they are: the analyzer's spl.txt, and lines of :::MLLOG with readings, times and results."""

from __future__ import annotations

import gzip
import math
from typing import TYPE_CHECKING, Any

import pytest
from tests.instruments.file_bench import T0, fetch_all, fetch_one, list_problems, list_seconds, list_values
from tests.instruments.mlperf_bench import write_load, write_mllog, write_session, write_spl
from tests.rows import every_row

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.instruments.file import open_archive
from joulelab.instruments.file.mlperf import LoadArchive, read_power_log, read_window

if TYPE_CHECKING:
    from pathlib import Path

DETAIL = "mlperf_log_detail.txt"


def open_load(path: Path) -> LoadArchive:
    found = open_archive({"path": str(path)})
    assert isinstance(found, LoadArchive)
    return found


def test_the_sum_channel_of_an_analyzers_log_is_the_power_at_the_wall(tmp_path: Path) -> None:
    path = write_spl(tmp_path / "spl.txt", ["800.5", "801.5", "over", "-1.000000", "802"])
    archive = open_archive({"path": str(path)})
    found = fetch_one(archive)
    assert (found.stream.scope, list_seconds(found)) == ("node.ac", [0.0, 1.0, 2.0, 3.0, 4.0])
    assert [w for w in list_values(found) if w == w] == [800.5, 801.5, 802.0]
    (spec,) = found.stream.channels
    assert (spec.accuracy.source, spec.accuracy.gain) == ("assumed", 0.01)
    assert "'over'" in list_problems(archive)
    assert fetch_one(open_archive({"path": str(path), "feeds": "node.dc"})).stream.scope == "node.dc"
    packed = tmp_path / "spl.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list_values(fetch_one(open_archive({"path": str(packed)})))[:2] == [800.5, 801.5]


@every_row(
    ("columns", "product", "rounding"),
    [
        ("Volts,200.000000,Amps,4.500000,PF,0.900000", 810.0, 0.0005 / 200 + 0.0005 / 4.5 + 0.0005 / 0.9),
        # Of several channels the amperes of the whole log are a mean: only those of each channel count.
        (
            "Volts,200,Amps,2,PF,0.9,Ch1,Watts,1,Volts,200,Amps,2.01,PF,1.00,Ch2,Watts,1,Volts,100,Amps,3.99,PF,1.00",
            801.0,
            0.01062,
        ),
        ("Volts,200.0,Amps,2,PF,0.9,Ch1,Watts,1,Ch2,Watts,1", None, None),
        ("Volts,200.0,Amps,2,PF,-1.000000", math.nan, math.nan),
        ("Volts,200.0,Amps,2", None, None),
    ],
)  # fmt: skip
def test_the_product_of_a_line_is_that_of_its_channels(
    tmp_path: Path, columns: str, product: float | None, rounding: float
) -> None:
    path = tmp_path / "spl.txt"
    path.write_text(f"Time,05-01-2024 12:00:00.000,Watts,800,{columns}\n")
    *_, products = read_power_log(path)
    expected = [] if product is None else [pytest.approx((product, rounding), rel=0.01, nan_ok=True)]
    assert products == expected


def test_the_rates_of_a_summary_are_those_of_the_detail_log(tmp_path: Path) -> None:
    write_load(tmp_path / DETAIL, "Server", result_completed_samples_per_sec=2.5, result_completed_tokens_per_second=99)
    text = "Completed samples per second    : 2.50\nCompleted tokens per second: 98.5\nTokens per second: 1\nx\n"
    (tmp_path / "mlperf_log_summary.txt").write_text(text)
    rates = read_window(tmp_path / "spl.txt")[1]["rates"]
    assert rates == [
        ("Completed samples per second", 2.5, 2.5, 0.005),
        ("Completed tokens per second", 99.0, 98.5, 0.05),
    ]


@pytest.mark.parametrize(("hour", "zone_s", "place"), [(12, 0, "."), (19, -25200, "power"), (19, 0, "../power")])
def test_the_true_times_of_a_session_give_the_zones_of_its_logs(
    tmp_path: Path, hour: int, zone_s: int, place: str
) -> None:
    """PTDaemon writes local time, by which readings would be of another hour, and the load generator UTC."""
    folder = tmp_path / "run_1"
    folder.mkdir()
    write_session(folder / place / "server.json", zone_s)
    spl, load = write_spl(folder / "spl.txt", ["800"] * 10, hour), open_load(write_load(folder / DETAIL))
    with spl.open("a") as file:
        file.write("Ch1\n")
    archive = open_archive({"path": str(spl)})
    assert list_seconds(fetch_one(archive)) == [float(k) for k in range(10)]
    assert load.interval == (T0 + 2 * NS, T0 + 6 * NS)
    assert "zone" not in list_problems(archive)
    assert any("-7 h" in remark for remark in archive.remarks) == (hour == 19)
    typed = open_archive({"path": str(spl), "clock_offset_s": 3600})
    assert list_seconds(fetch_one(typed))[0] == (hour - 11) * 3600.0
    local = open_load(write_load(folder / DETAIL, begin="05-01-2024 19:00:02.000", end="05-01-2024 19:00:06.000"))
    assert local.interval == (T0 + 2 * NS, T0 + 6 * NS)


def test_a_meter_of_direct_current_is_behind_the_supplies_and_a_damaged_session_is_none(tmp_path: Path) -> None:
    path = write_spl(tmp_path / "spl.txt", ["30"] * 5)
    session = write_session(tmp_path / "server.json", dc_flag="-D")
    assert fetch_one(open_archive({"path": str(path)})).stream.scope == "node.dc"
    for text in ("[]", "{", '{"phases": {"testing": [[null]]}}'):
        session.write_text(text)
        assert fetch_one(open_archive({"path": str(path)})).stream.scope == "node.ac"


@pytest.mark.parametrize(
    ("scenario", "results", "work"),
    [
        (
            "Offline",
            {"result_tokens_per_second": 250.0, "result_samples_per_second": 2.0},
            {"tokens": 1e3, "samples": 8.0},
        ),
        ("Server", {"result_scheduled_samples_per_sec": 9, "result_completed_samples_per_sec": 5}, {"samples": 20.0}),
        ("SingleStream", {"result_query_count": 7, "effective_samples_per_query": 1}, {"samples": 7.0}),
        ("MultiStream", {"result_query_count": 7, "effective_samples_per_query": 8}, {"samples": 56.0, "queries": 7.0}),
    ],
)
def test_work_is_rate_times_duration_or_counted(
    tmp_path: Path, scenario: str, results: dict[str, float], work: dict[str, float]
) -> None:
    load = open_load(write_load(tmp_path / DETAIL, scenario, **results))
    assert load.steps == [("test", T0 + 2 * NS, T0 + 6 * NS, work)]
    assert load.labels == {"scenario": scenario}


def test_readings_of_a_training_are_separated_by_node_and_side(tmp_path: Path) -> None:
    entries: list[tuple[str, Any, dict[str, Any]]] = [
        ("power_measurement_start", None, {}),
        ("power_reading", 690, {"host": "n1"}),
        ("conversion_eff", 0.94, {"measurement_type": "DC"}),
        ("power_reading", 700, {"host": "n1"}),
        ("power_reading", 800, {"host": "n1", "sensor": "AC"}),
        ("power_reading", 710, {"host": "n2"}),
        ("power_measurement_stop", None, {}),
    ]
    archive = open_archive({"path": str(write_mllog(tmp_path / "node_0.txt", *entries))})
    found = {(f.host, f.stream.scope): [w for w in list_values(f) if w == w] for f in fetch_all(archive)}
    dc = {("n1", "node.dc"): [690.0, 700.0], ("n2", "node.dc"): [710.0]}
    assert found == dc | {("n1", "node.ac"): [800.0], ("n2", "node.ac"): []}
    assert "conversion_eff 0.94 is not applied" in archive.remarks[0]


def test_a_log_of_one_node_is_of_the_node_in_its_name(tmp_path: Path) -> None:
    """MLPerf's program writes node_0 as the host of every node, unless it is named."""
    entries = [("power_reading", w, {"host": "node_0", "measurement_type": "AC"}) for w in (700, 710)]
    for name in ("node_0", "node_1"):
        found = fetch_one(open_archive({"path": str(write_mllog(tmp_path / f"{name}.txt", *entries))}))
        assert (found.host, found.stream.scope, list_values(found)) == (name, "node.ac", [700.0, 710.0])


def test_readings_of_an_unknown_side_are_refused_unless_it_is_given(tmp_path: Path) -> None:
    path = write_mllog(tmp_path / "node_0.txt", *[("power_reading", w, {"host": "n1"}) for w in (700, 710)])
    with pytest.raises(ConfigError, match=r"feeds=node\.ac") as error:
        open_archive({"path": str(path)})
    assert error.value.code == "config.no-side"
    found = fetch_one(open_archive({"path": str(path), "feeds": "node.dc"}))
    assert (found.stream.scope, list_values(found)) == ("node.dc", [700.0, 710.0])


def test_a_training_has_its_times_and_phases(tmp_path: Path) -> None:
    keys = ("run_start", "epoch_start", "epoch_stop", "eval_start", "eval_stop", "run_stop")
    training = open_load(write_mllog(tmp_path / "result_0.txt", *[(key, None, {}) for key in keys]))
    assert training.interval == (T0, T0 + 5 * NS)
    assert [(s[0], s[1] - T0, s[2] - T0) for s in training.steps] == [("epoch", NS, 2 * NS), ("eval", 3 * NS, 4 * NS)]
