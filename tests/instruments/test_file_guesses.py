"""What is guessed of a file that nobody mapped, and what is asked for instead."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.instruments.file_bench import (
    T0,
    at,
    fetch_all,
    fetch_one,
    guess_text,
    list_events,
    list_problems,
    list_seconds,
    list_values,
)
from tests.rows import every_row

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError, ReadFailed

if TYPE_CHECKING:
    from pathlib import Path

ISO = ("2024-05-01T12:00:00Z", "2024-05-01T12:00:01Z")


def make_file(head: str, *rows: str) -> str:
    return "\n".join([head, *rows, ""])


@every_row(
    ("head", "scopes"),
    [
        ("power_w", ["node.ac"]),
        ("watts", ["node.ac"]),
        ("P (kW)", ["node.ac"]),
        ("ac_w,dc_w", ["node.ac", "node.dc"]),
        ("gpu0_w,gpu1_w", ["gpu:0", "gpu:1"]),
        ("GPU 0 Power [W],cpu_0_w,dram_w", ["gpu:0", "cpu:0", "dram"]),
        ("outlet1_w,outlet2_w", ["outlet:1", "outlet:2"]),
        ("node_power_w,energy_kwh", ["node.ac"]),
        ("rack_power_w,temp_c", ["rack"]),
        ("power_draw_w,sm_mhz", ["gpu:0"]),
        ("gpuPower (W),DRAM Energy (mWh)", ["gpu", "dram"]),
    ],
)
def test_scopes_and_units_are_in_the_names_of_columns(tmp_path: Path, head: str, scopes: list[str]) -> None:
    cells = ",".join("500" for _ in head.split(","))
    archive = guess_text(tmp_path, make_file(f"time,{head}", *(f"{t},{cells}" for t in ISO)))
    found = fetch_all(archive)
    assert [f.stream.scope for f in found] == scopes
    assert list_values(found[0]) == [500e3 if "kW" in head else 500.0] * 2
    (said,) = (text for text in archive.remarks if "read as" in text)
    assert "--time time=iso" in said
    assert f"={scopes[0]}:" in said


@every_row("head", ["Energy (kWh)", "kWh", "Active Energy Total [kWh]", "energy_kWh", "EnergyTotal_kWh"])
def test_the_prefix_of_a_unit_is_no_word(tmp_path: Path, head: str) -> None:
    (found,) = fetch_all(guess_text(tmp_path, make_file(f"time,{head}", f"{ISO[0]},345.5", f"{ISO[1]},346.5")))
    assert found.stream.scope == "node.ac"
    assert list_values(found) == [345.5 * 3.6e6, 346.5 * 3.6e6]


@every_row(
    ("column", "stamps", "words"),
    [
        ("timestamp", ISO, "--time timestamp=iso"),
        ("Time", ("2024/05/01 12:00:00", "2024/05/01 12:00:01"), "--time Time=iso"),
        ("ts", (at(0), at(1)), "--time ts=unix"),
        ("t", ("1714564800000", "1714564801000"), "--time t=unix_ms"),
        ("Datetime", ("01.05.2024 12:00:00", "01.05.2024 12:00:01"), "--time 'Datetime=%d.%m.%Y %H:%M:%S'"),
    ],
)
def test_an_obvious_time_is_found(tmp_path: Path, column: str, stamps: tuple[str, str], words: str) -> None:
    archive = guess_text(tmp_path, make_file(f"{column},power_w", *(f"{t},500" for t in stamps)))
    assert [row[0] for row in fetch_all(archive)[0].rows] == [T0, T0 + NS]
    assert words in archive.remarks[0]


def test_date_and_time_may_be_two_columns(tmp_path: Path) -> None:
    archive = guess_text(tmp_path, make_file("date,time,w", "2024-05-01,12:00:00,500", "2024-05-01,12:00:01,500"))
    assert list_seconds(fetch_all(archive)[0]) == [0.0, 1.0]


def test_times_from_a_start_that_nobody_told_count_from_one_that_is_shown(tmp_path: Path) -> None:
    archive = guess_text(tmp_path, make_file("node,t_s,ac_w", "n1,-1.5,500", "n1,0.5,500", "n2,0,400"))
    first, second = fetch_all(archive)
    assert (first.host, second.host) == ("n1", "n2")
    assert [(row[0] - first.rows[0][0]) / NS for row in first.rows] == [0.0, 2.0]
    assert "--time t_s=seconds --start 2000-01-01T00:00:00Z" in archive.remarks[0]


def test_rows_of_several_devices_are_told_apart_by_an_obvious_column(tmp_path: Path) -> None:
    rows = [f"{t},{gpu},{300 + gpu}" for t in ISO for gpu in (0, 1)]
    first, second = fetch_all(guess_text(tmp_path, make_file("time,gpu,power_w", *rows)))
    assert (first.stream.scope, second.stream.scope, list_values(second)) == ("gpu:0", "gpu:1", [301.0, 301.0])


@every_row(
    ("head", "row", "code", "word"),
    [
        ("time,fan_w", "2024-05-01T12:00:00Z,5", "config.no-columns", "--map fan_w=SCOPE, with"),
        ("time,phase1_w", "2024-05-01T12:00:00Z,5", "config.no-columns", "--map phase1_w=SCOPE, with"),
        ("time,power_max_w,power_min_w", "2024-05-01T12:00:00Z,5,5", "config.no-columns", "--map COLUMN=SCOPE:UNIT, "),
        (
            "time,ac_w,gpu0_power_draw_w,gpu0_power_w",
            "2024-05-01T12:00:00Z,5,5,5",
            "config.no-columns",
            "type --map gpu0_power_draw_w=gpu:0:W or --map gpu0_power_w=gpu:0:W, and --map ac_w=node.ac:W;",
        ),
        ("time,power", "2024-05-01T12:00:00Z,5", "config.no-columns", "--map power=node.ac:UNIT, "),
        ("time,value", "2024-05-01T12:00:00Z,5", "config.no-columns", "--map COLUMN=SCOPE:UNIT, "),
        (
            "time,power_w,total_w",
            "2024-05-01T12:00:00Z,5,5",
            "config.no-columns",
            "--map power_w=node.ac:W or --map total_w",
        ),
        ("when,power_w", "2024-05-01T12:00:00Z,5", "config.no-time", "--time COLUMN"),
        ("time,ts,power_w", "2024-05-01T12:00:00Z,1714564800,5", "config.no-time", "--time COLUMN"),
        ("t,power_w", "12.5,500", "config.no-time", "--time t=seconds"),
        ("time,power_w", "05/01/2024 12:00:00,500", "config.no-time", '--time "time=%m/%d/%Y %H:%M:%S"'),
        ("time,power_w", "May 1st,500", "config.no-time", '--time "time=%d.%m.%Y'),
        ("time_per_epoch,average_power", "20.6,96.6", "config.no-time", "--time COLUMN"),
        ("#Date       Time        gpu    pwr", "20240501 12:00:00 0 300", "config.dmon", "--query-gpu"),
        ("Report of rack 7", "power", "config.no-time", "header=3"),
    ],
)
def test_what_is_not_obvious_is_asked_for_in_words_of_the_command_line(
    tmp_path: Path, head: str, row: str, code: str, word: str
) -> None:
    with pytest.raises(ConfigError) as error:
        guess_text(tmp_path, make_file(head, row, row))
    assert error.value.code == code
    assert word in str(error.value.next)


def test_rows_that_may_be_of_several_devices_are_refused(tmp_path: Path) -> None:
    """Read as one they would have a part of the energy."""
    rows = [f"{at(k)},{d},500" for k in range(30) for d in "ab"]
    with pytest.raises(ConfigError, match="device=pdu") as error:
        guess_text(tmp_path, make_file("t,pdu,power_w", *rows))
    assert error.value.code == "config.devices"
    bursts = [f"{at(k + g / 500)},{300 + g}" for k in range(20) for g in range(8)]
    smi = [f"2024/05/01 12:00:{k:02d}.{2 * g:03d}, {300 + g} W" for k in range(20) for g in range(8)]
    for text in (
        make_file("t,what,power_w", *rows),
        make_file("t,power_w", *bursts),
        make_file("timestamp, power.draw [W]", *smi),
    ):
        with pytest.raises(ReadFailed, match="several devices") as refused:
            _ = guess_text(tmp_path, text).interval
        assert refused.value.code == "read-failed.mixed-rows"
    columns = [{"column": "power_w", "scope": "node.ac"}]
    assert len(fetch_all(guess_text(tmp_path, make_file("t,power_w", *bursts), columns=columns))[0].rows) == 160


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a header and no rows"):
        guess_text(tmp_path, "time,power_w\n")


def test_the_pattern_of_a_given_time_column_is_found(tmp_path: Path) -> None:
    text = make_file("Zeit;w", "01.05.2024 12:00:00;500,5", "01.05.2024 12:00:01;500,5")
    archive = guess_text(tmp_path, text, time="Zeit", decimal=",")
    assert list_seconds(fetch_all(archive)[0]) == [0.0, 1.0]
    assert "--time 'Zeit=%d.%m.%Y %H:%M:%S'" in archive.remarks[0]


def test_what_is_given_is_not_guessed(tmp_path: Path) -> None:
    text = make_file("t,power_w", "0,500", "1,500")
    archive = guess_text(tmp_path, text, time={"column": "t", "format": "seconds", "start": "2024-05-01T12:00:00Z"})
    assert "--time" not in archive.remarks[0]
    assert list_seconds(fetch_all(archive)[0]) == [0.0, 1.0]
    mapped = guess_text(
        tmp_path, make_file("time,p", *(f"{t},5" for t in ISO)), columns=[{"column": "p", "unit": "kW"}]
    )
    assert mapped.remarks[0] == "log.csv is read as if you had typed: --time time=iso"


def test_a_log_of_nvidia_smi_is_known_with_its_sensor(tmp_path: Path) -> None:
    head = "timestamp, index, name, power.draw [W], power.draw.instant [W]"
    for model, gain, windows in (
        ("NVIDIA H100 80GB HBM3", 0.06, (1.0, 0.025)),
        ("Tesla V100-SXM2-16GB", 0.05, (0.01, 0.01)),
        ("NVIDIA GeForce RTX 2080 Ti", 0.11, (0.1, 0.1)),
        ("NVIDIA B300", 0.11, (1.0, 0.025)),
    ):
        row = f", 0, {model}, 300.1 W, 301.2 W"
        found = fetch_all(guess_text(tmp_path, make_file(head, *(t[:-1] + row for t in ISO))))[0]
        average, instant = found.stream.channels
        assert (average.window_s, instant.window_s) == windows, model
        assert (average.accuracy.source, average.accuracy.gain) == ("assumed", gain), model
    stated = guess_text(tmp_path, make_file(head, ISO[0][:-1] + row), gain=0.02, reference="calibrated")
    assert fetch_all(stated)[0].stream.channels[0].accuracy.gain == 0.02


def test_single_zeros_between_powers_are_gaps_and_longer_ones_are_told(tmp_path: Path) -> None:
    cells = ["800"] * 50 + ["0"] + ["800"] * 20 + ["0"] * 9 + ["800"] * 5
    archive = guess_text(tmp_path, make_file("t,power_w", *(f"{at(k)},{c}" for k, c in enumerate(cells))))
    (found,) = fetch_all(archive)
    assert [k for k, v in enumerate(list_values(found)) if v != v] == [50]
    (gap,) = list_events([found], "gap")
    assert (gap["line"], gap["reason"]) == (52, "0 W between 800 and 800 W is no reading")
    assert "9 readings of 0 W (first: line 73) are taken as switched off" in list_problems(archive)
    idle = guess_text(tmp_path, make_file("t,gpu0_w", *(f"{at(k)},{c}" for k, c in enumerate((5, 0, 5)))))
    assert list_values(fetch_all(idle)[0]) == [5.0, 0.0, 5.0]


def test_energies_of_single_rows_are_no_counter(tmp_path: Path) -> None:
    rows = [f"{at(k)},{c}" for k, c in enumerate((50, 60, 50, 60) * 10)]
    with pytest.raises(ReadFailed, match=r"'energy_j' is not a counter \(it falls 19 times in 40 readings\)"):
        _ = guess_text(tmp_path, make_file("t,energy_j", *rows)).interval
    rows = [f"{at(k)},{c}" for k, c in enumerate([*range(100, 140), *range(40)])]
    assert len(fetch_all(guess_text(tmp_path, make_file("t,energy_j", *rows)))[0].rows) == 80, "one reset"
    still = guess_text(tmp_path, make_file("t,energy_kwh", *(f"{at(k)},5" for k in range(40))))
    assert not any(v == v for v in list_values(fetch_one(still)))
    assert "energy_kwh: a counter that stands still is left out" in list_problems(still)


def test_what_a_name_does_not_show_is_told(tmp_path: Path) -> None:
    plain = guess_text(tmp_path, make_file("time,power_w", *(f"{t},500" for t in ISO)))
    assert "power_w is taken for the whole node" in plain.remarks[1]
    assert "gain=0.01" in plain.remarks[2]
    more = guess_text(tmp_path, make_file("time,ac_w,fan_w,power", *(f"{t},500,5,500" for t in ISO)), gain=0.01)
    assert more.remarks[1].startswith("left out: fan_w, power;")
    known = guess_text(tmp_path, make_file("time,ac_w", *(f"{t},500" for t in ISO)), gain=0.01)
    assert len(known.remarks) == 1


def read_update(tmp_path: Path, step_s: float, cells: list[float], **column: Any) -> float | None:
    columns = [{"column": "p", "scope": "node.ac", "unit": "W", **column}]
    rows = [f"{at(step_s * k)},{c}" for k, c in enumerate(cells)]
    found = fetch_all(guess_text(tmp_path, make_file("t,p", *rows), columns=columns))[0]
    return found.stream.channels[0].update_s


def test_the_update_of_a_sensor_is_found_where_rows_repeat_its_values(tmp_path: Path) -> None:
    """Else it is a second, as of most meters, or a shorter step; what is stated counts."""
    rng = random.Random(3)
    sensor = [rng.randrange(400, 500) for _ in range(100)]
    repeated = [float(sensor[k // 5]) for k in range(500)]
    assert read_update(tmp_path, 0.1, repeated) == pytest.approx(0.5)
    assert read_update(tmp_path, 0.1, repeated, update_s=0.2) == 0.2
    assert read_update(tmp_path, 60.0, [float(w) for w in sensor]) == 1.0
    assert read_update(tmp_path, 0.2, [float(w) for w in sensor]) == pytest.approx(0.2)
    load, quiet = list[float](), 300.0  # a load that changes at any time, and a meter that shows it in steps of 100 W
    while len(load) < 2000:
        quiet = 700.0 - quiet
        load += [quiet] * max(1, round(rng.expovariate(1 / 30)))
    assert read_update(tmp_path, 0.5, load) == 0.5
