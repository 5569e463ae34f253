"""Figures of others: what follows from what, in CodeCarbon's files and in power submissions of MLPerf."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.rows import every_row

from joulelab.analysis.outside_figures import (
    MeasurementFacts,
    PowerControl,
    PowerLog,
    StatedRow,
    check_codecarbon,
    check_power_log,
    find_level,
    judge_levels,
    judge_mlperf,
    list_compared,
    read_codecarbon_rows,
)

if TYPE_CHECKING:
    from joulelab.analysis.result import Check

# One hour: a GPU of 300 W, CPUs of 100 W, memory of 20 W, 400 g/kWh.
GOOD = {
    "timestamp": "2026-01-01T12:00:00",
    "run_id": "a",
    "duration": "3600",
    "emissions": "0.168",
    "emissions_rate": str(0.168 / 3600),
    "cpu_power": "100",
    "gpu_power": "300",
    "ram_power": "20",
    "cpu_energy": "0.1",
    "gpu_energy": "0.3",
    "ram_energy": "0.02",
    "energy_consumed": "0.42",
    "country_name": "Germany",
    "os": "Linux",
    "cpu_model": "x",
    "gpu_model": "y",
    "pue": "1.0",
}
LATER = {"timestamp": "2026-01-01T14:00:00", "run_id": "b"}
# A row of the same run since the same begin, with twice the time and energy; and with less energy than before.
FLUSHED = {"timestamp": "2026-01-01T13:00:00", "duration": "7200", "cpu_energy": "0.2", "gpu_energy": "0.6"}
FLUSHED |= {"ram_energy": "0.04", "energy_consumed": "0.84", "emissions": "", "emissions_rate": ""}
FALLEN = {"cpu_energy": "0.1", "cpu_power": "50", "gpu_energy": "0.1", "gpu_power": "50", "ram_energy": "0.02"}
FALLEN |= {"ram_power": "10", "energy_consumed": "0.22"}
NO_PARTS = {f"{part}_{kind}": "" for part in ("cpu", "gpu", "ram") for kind in ("energy", "power")}
WITH_PUE = {"pue": "1.7", "cpu_energy": "0.17", "gpu_energy": "0.51", "ram_energy": "0.034"}
WITH_PUE |= {"energy_consumed": "0.714", "emissions": "", "emissions_rate": ""}


def read_rows(*rows: dict[str, str]) -> tuple[list[StatedRow], list[Check]]:
    cells = [GOOD | row for row in rows]
    found, checks = read_codecarbon_rows(list(GOOD), [(k + 2, list(row.values())) for k, row in enumerate(cells)])
    return found, [*checks, *check_codecarbon(found)]


def find_codes(*rows: dict[str, str]) -> list[str]:
    return [f"{check.scope}: {check.code.partition('.')[2]}" for check in read_rows(*rows)[1]]


@every_row(
    ("change", "codes"),
    [
        ({}, []),
        ({"pue": "", "emissions": "", "emissions_rate": ""}, []),
        (
            {
                "gpu_energy": "0.0",
                "gpu_power": "0",
                "energy_consumed": "0.12",
                "emissions": "0.048",
                "emissions_rate": "",
            },
            [],
        ),
        ({"pue": "1.2"}, ["line 2: pue"]),
        ({"energy_consumed": "0.5"}, ["line 2: sum"]),
        ({"energy_consumed": ""}, ["line 2: no-energy"]),
        ({"duration": "0"}, ["line 2: no-duration"]),
        ({"duration": "x"}, ["line 2: cell", "line 2: no-duration"]),
        ({"duration": "-1"}, ["line 2: cell", "line 2: no-duration"]),
        ({"timestamp": "noon"}, ["line 2: cell"]),
        ({"timestamp": "2026-01-01T12:00:00+01:00"}, []),
        ({"cpu_power": "50"}, ["line 2, cpu: power"]),
        ({"cpu_power": ""}, []),
        ({"cpu_power": "0"}, ["line 2, cpu: zero-power"]),
        # CodeCarbon 1 states no parts; an empty cell is no zero, but parts never exceed their sum.
        (NO_PARTS, []),
        ({"gpu_energy": "", "gpu_power": ""}, []),
        ({"gpu_energy": "", "gpu_power": "", "energy_consumed": "0.1", "emissions": ""}, ["line 2: sum"]),
        # Energies include the PUE, powers do not.
        (WITH_PUE, ["line 2: pue"]),
        ({"cpu_energy": "0", "energy_consumed": "0.32", "emissions": ""}, ["line 2, cpu: power"]),
        (
            {"cpu_energy": "100", "energy_consumed": "100.32", "emissions": "", "emissions_rate": ""},
            ["line 2, cpu: unit"],
        ),
        ({"cpu_energy": "3.6e5", "energy_consumed": "360000.32", "emissions": ""}, ["line 2, cpu: unit"]),
        (
            {"cpu_energy": "150", "cpu_power": "", "energy_consumed": "150.32", "emissions": ""},
            ["line 2, cpu: impossible"],
        ),
        ({"emissions": "0.084"}, ["line 2: rate"]),
        ({"emissions": "168", "emissions_rate": str(168 / 3600)}, ["line 2: intensity"]),
        ({"emissions": "0.000168", "emissions_rate": str(0.000168 / 3600)}, ["line 2: low-intensity"]),
        ({"emissions": "0.0042", "emissions_rate": str(0.0042 / 3600)}, []),  # 10 g/kWh
    ],
)
def test_a_row_is_checked_by_its_own_figures(change: dict[str, str], codes: list[str]) -> None:
    assert find_codes(change) == codes


@every_row(
    ("change", "statuses"),
    [
        ({"duration": "60", "emissions_rate": ""}, {"failed"}),  # in minutes: all parts are 60 times their power
        ({"duration": "60", "emissions_rate": "", "gpu_power": "", "cpu_power": ""}, {"failed"}),
        ({"gpu_power": "5"}, {"warning"}),  # the last power of an idle GPU; that of memory fits
        ({"duration": "1800", "emissions_rate": ""}, {"warning"}),  # of a task
        ({"duration": "36000", "emissions_rate": ""}, {"warning"}),
    ],
)
def test_a_power_that_is_far_off_in_all_parts_is_a_failure(change: dict[str, str], statuses: set[str]) -> None:
    (_, checks) = read_rows(change)
    assert {check.code for check in checks} == {"codecarbon.power"}
    assert {check.status for check in checks} == statuses


@every_row(
    ("change", "compared"),
    [
        ({}, {"sum", "power", "rate", "intensity"}),
        (NO_PARTS, {"rate", "intensity"}),
        (NO_PARTS | {"emissions": ""}, set()),
        ({"gpu_power": ""}, {"sum", "rate", "intensity"}),
        ({"gpu_energy": "", "gpu_power": ""}, {"power", "rate", "intensity"}),
        ({"gpu_energy": "", "gpu_power": "", "energy_consumed": "0.12"}, {"sum", "power", "rate", "intensity"}),
        ({"duration": ""}, {"sum", "intensity"}),
        ({"energy_consumed": ""}, {"power", "rate"}),
        ({"emissions_rate": ""}, {"sum", "power", "intensity"}),
    ],
)
def test_empty_cells_are_not_compared(change: dict[str, str], compared: set[str]) -> None:
    (row,) = read_rows(change)[0]
    assert {name for name, is_compared in list_compared(row).items() if is_compared} == compared


@every_row(
    ("rows", "codes"),
    [
        ([{}, LATER], []),
        ([{}, {}], ["line 3: duplicate"]),
        ([{}, {"timestamp": "2026-01-01T11:00:00", "run_id": "b"}], ["line 3: order"]),
        ([{}, {"timestamp": "2026-01-01T12:30:00", "run_id": "b"}], ["line 3: overlap"]),
        ([{}, {"timestamp": "2026-01-01T12:30:00", "run_id": "b", "cpu_model": "z"}], []),
        ([{}, LATER | {"emissions": "0.084", "emissions_rate": str(0.084 / 3600)}], ["Germany: intensities"]),
        (
            [{}, LATER | {"emissions": "0", "emissions_rate": "0"}],
            ["line 3: low-intensity", "Germany: intensities"],
        ),
        ([{} | NO_PARTS, FLUSHED | NO_PARTS | {"energy_consumed": "0.3"}], ["line 2: falls"]),
        ([{}, LATER | {"country_name": ""}], []),
        ([{}, LATER | {"run_id": "a"}], []),
        ([{"run_id": ""}, LATER | {"run_id": ""}], []),
        ([{}, LATER | {"run_id": "a", "duration": "x"}], ["line 3: cell", "line 3: no-duration"]),
        # The second row has twice the time and energy since the same begin; then less.
        ([{}, FLUSHED], ["line 2: stage"]),
        ([{}, FLUSHED | FALLEN], ["line 2: falls"]),
    ],
)  # fmt: skip
def test_rows_are_checked_beside_each_other(rows: list[dict[str, str]], codes: list[str]) -> None:
    assert find_codes(*rows) == codes


def test_equal_powers_of_many_rows_are_an_estimate() -> None:
    rows = [{"timestamp": f"2026-01-0{day}T12:00:00", "run_id": str(day)} for day in range(1, 5)]
    varied = [row | {"gpu_power": str(300 + k)} for k, row in enumerate(rows)]
    assert find_codes(*varied) == ["cpu: constant", "ram: constant"]


# A log of 100 s, with the timed part from 10 to 90 s.
TIMES = [float(t) for t in range(101)]
LOG = PowerLog(TIMES, [1000.0] * 101, [1000.0] * 101)
CONTROL = PowerControl(
    (1000.0, 1000.0, 1000.0, 101), 0.003, (0.0, 5.0, 95.0, 100.0), (0.1, 5.1, 95.1, 100.1),
    [("run_1/spl.txt", "a", "a")], "YokogawaWT330_multichannel,1000", True, True, "VALID",
)  # fmt: skip
WINDOW = (10.0, 90.0)


def find_failed(log: PowerLog = LOG, window: tuple[float, float] | None = WINDOW, **changes: Any) -> dict[str, str]:
    checks = check_power_log(log, window, replace(CONTROL, **changes))
    return {check.code.partition(".")[2]: check.status for check in checks if check.status != "ok"}


@every_row(
    ("changes", "found"),
    [
        ({}, {}),
        ({"window": None}, {"no-window": "failed"}),
        ({"window": (90.0, 10.0)}, {"no-window": "failed"}),
        ({"least_s": 80.0}, {}),
        ({"least_s": 600.0}, {"duration": "failed"}),
        ({"server_s": (30.0, 35.0, 125.0, 130.0), "client_s": ()}, {"session": "failed", "log-clock": "failed"}),
        ({"missing": {"server.json": False}}, {"no-controller": "warning"}),
        ({"missing": {"server.json": True}}, {"unreadable": "failed"}),
        ({"window": (10.0, 150.0)}, {"window": "failed", "session": "failed"}),
        ({"window": (2.0, 90.0)}, {"session": "failed"}),
        ({"window": (2.0, 90.0), "server_s": (), "client_s": ()}, {}),
        ({"log": PowerLog([0.0], [1.0])}, dict.fromkeys(("too-few", "window", "samples", "mean", "range"), "failed")),
        ({"log": PowerLog([], []), "watts": None}, {"too-few": "failed", "window": "failed"}),
        ({"log": PowerLog([2 * t for t in TIMES], LOG.watts)}, {"rate": "failed", "log-clock": "failed"}),
        ({"log": PowerLog([t + 20 * (t > 50) for t in TIMES], LOG.watts)}, {"gaps": "failed", "log-clock": "failed"}),
        ({"log": PowerLog([t + 20 * (t > 95) for t in TIMES], LOG.watts)}, {"log-clock": "failed"}),
        ({"log": PowerLog([*TIMES[:100], 50.0], LOG.watts), "window": (10.0, 40.0)}, {"order": "failed"}),
        ({"log": PowerLog(TIMES, [math.nan if t == 50 else 1000.0 for t in TIMES])}, {"gaps": "failed"}),
        ({"log": PowerLog(TIMES, [1000.0 + (t == 50) for t in TIMES])}, {"range": "failed"}),
        ({"log": PowerLog(TIMES, [1000.0 + 0.1 * (t % 2) for t in TIMES])}, {"mean": "failed", "range": "failed"}),
        ({"log": PowerLog(TIMES, LOG.watts, [990.0] * 101)}, {"channels": "warning"}),
        ({"log": PowerLog(TIMES, LOG.watts, [math.nan] * 101)}, {}),
        ({"log": PowerLog(TIMES, LOG.watts, (), [(1015.0, 1e-4)] * 101)}, {}),
        ({"log": PowerLog(TIMES, LOG.watts, (), [(1030.0, 1e-4)] * 101)}, {"product": "failed"}),
        ({"log": PowerLog(TIMES, LOG.watts, (), [(1030.0, 0.02)] * 101)}, {}),  # few digits
        ({"log": PowerLog(TIMES, LOG.watts, (), [(1e6, 1e-4)] * 101)}, {"product": "failed"}),  # in kW
        ({"log": PowerLog(TIMES, LOG.watts, (), [(1e6, 1e-4)] * 50 + [(1000.0, 1e-4)] * 51)}, {}),
        ({"log": PowerLog(TIMES, LOG.watts, (), [(math.nan, math.nan)] * 101)}, {}),
        ({"rates": [("Tokens per second", 25262.1, 25262.1, 0.05), ("x", 0.534, 0.53, 0.005)]}, {}),
        ({"rates": [("Tokens per second", 99999.0, 25262.1, 0.05)]}, {"summary": "failed"}),
        ({"watts": (1000.0, 1000.0, 1000.0, 99)}, {"samples": "failed"}),
        ({"watts": None, "uncertainty": None, "is_range_fixed": None, "analyzer": "", "validity": ""}, {}),
        ({"uncertainty": 0.02}, {"uncertainty": "failed"}),
        ({"uncertainty": -1.0}, {"uncertainty": "failed"}),
        ({"client_s": (0.1, 5.9, 95.1, 100.1)}, {"clocks": "failed"}),
        ({"analyzer": "HIOKI,1"}, {"analyzer": "failed"}),
        ({"is_range_fixed": False}, {"ranging": "failed"}),
        ({"has_ranging": False}, {"ranging": "failed"}),
        ({"validity": "INVALID"}, {"validity": "failed"}),
        ({"hashes": [("x", "a", "b"), ("y", "a", None)]}, {"changed": "failed", "absent": "note"}),
        ({"hashes": []}, {}),
    ],
)  # fmt: skip
def test_a_submission_is_checked_by_its_raw_data(changes: dict[str, Any], found: dict[str, str]) -> None:
    assert find_failed(**changes) == found


@every_row(
    ("watts", "found"),
    [
        ([1000.0 + t % 2 for t in range(400)], []),
        ([1000.0 + max(t - 118, 0) for t in range(400)], []),
        ([1000.0 + max(t - 119, 0) for t in range(400)], [(120, 1000.0)]),
        ([math.nan] * 400, []),
    ],
)
def test_equal_readings_for_minutes_are_a_warning(watts: list[float], found: list[tuple[int, float]]) -> None:
    checks = check_power_log(PowerLog([float(t) for t in range(400)], watts), None, PowerControl())
    stuck = [check for check in checks if check.code == "mlperf.stuck"]
    assert [tuple(check.numbers.values()) for check in stuck] == found
    assert all(check.status == "warning" for check in stuck)


WALL = MeasurementFacts(("node.ac",), False, False, 10.0, 1.0, 600.0, 60.0, 5000.0, 1, 1, True)
OF_WALL = {"sampling": 2, "time": 3, "machine": 3, "subsystems": 1, "point": 3}


@every_row(
    ("changes", "levels", "level", "rules"),
    [
        ({}, {}, 1, 4),
        ({"is_counter": True}, {"sampling": 3}, 1, 4),
        ({"is_counter": True, "rate_hz": 0.01}, {"sampling": 1}, 1, 3),
        ({"rate_hz": 0.1}, {"sampling": 0}, 0, 3),
        ({"coverage": 0.9}, {"time": 0}, 0, 3),
        ({"duration_s": 59.0}, {"time": 0}, 0, 4),
        ({"idle_s": 0.0}, {"time": 1}, 1, 4),
        ({"machine_nodes": None}, {"machine": None}, 1, 4),
        ({"machine_nodes": 100}, {"machine": 0}, 0, 4),
        ({"nodes": 16, "machine_nodes": 150, "mean_w": 9e3}, {"machine": 1}, 1, 4),
        ({"nodes": 14, "machine_nodes": 100, "mean_w": 2e4}, {"machine": 0}, 0, 4),
        ({"nodes": 4, "machine_nodes": 500, "mean_w": 4e4}, {"machine": 1}, 1, 4),
        ({"nodes": 4, "machine_nodes": 32, "mean_w": 2e4}, {"machine": 0}, 0, 4),
        ({"nodes": 15, "machine_nodes": 120, "mean_w": 2e4}, {"machine": 2}, 1, 4),
        ({"families": ("node.dc",)}, {"point": 1}, 1, 3),
        ({"families": ("gpu", "cpu"), "has_analyzer": False}, {"subsystems": 0, "point": 0}, 0, 2),
        ({"is_estimate": True}, {"sampling": 0, "subsystems": 0, "point": 0}, 0, 3),
        ({"families": ()}, {"sampling": 0, "subsystems": 0, "point": 0}, 0, 2),
    ],
)  # fmt: skip
def test_a_run_has_the_level_of_its_weakest_aspect(
    changes: dict[str, Any], levels: dict[str, int | None], level: int, rules: int
) -> None:
    facts = replace(WALL, **changes)
    found = judge_levels(facts)
    assert {row.aspect: row.level for row in found} == OF_WALL | levels
    assert find_level(found) == level
    assert sum(bool(row.level) for row in judge_mlperf(facts)) == rules
    assert all(row.needs for row in found if row.level in (0, None))


@every_row(
    ("changes", "conditions"),
    [
        ({}, []),
        ({"machine_nodes": None}, ["whole-machine"]),
        ({"nodes": 2, "machine_nodes": None}, ["whole-machine", "network"]),
        ({"nodes": 2, "machine_nodes": 2, "families": ("node.dc",)}, ["network", "losses"]),
        ({"families": ("gpu",)}, []),
    ],
)
def test_a_level_depends_on_what_a_run_does_not_record(changes: dict[str, Any], conditions: list[str]) -> None:
    assert [row.condition for row in judge_levels(replace(WALL, **changes)) if row.condition] == conditions


def test_without_aspects_there_is_no_level() -> None:
    assert find_level([]) == 0
