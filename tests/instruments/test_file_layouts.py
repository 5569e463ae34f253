from __future__ import annotations

import gzip
import math
import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.instruments.file_bench import (
    POWER,
    at,
    fetch_all,
    fetch_one,
    list_problems,
    list_seconds,
    list_values,
    make_log,
    open_text,
)
from tests.rows import every_row

from joulelab.core.errors import ConfigError, Denied, ReadFailed, Unavailable
from joulelab.instruments.file import open_archive
from joulelab.instruments.file.values import UNITS

if TYPE_CHECKING:
    from pathlib import Path


# Known layouts


def test_nvidia_smi(tmp_path: Path) -> None:
    head = (
        "timestamp, name, index, power.draw [W], power.draw.instant [W], utilization.gpu [%], clocks.current.sm [MHz]"
    )
    rows = [
        f"2024/05/01 12:00:0{k}.000, NVIDIA A100-SXM4-40GB, {g}, {60 + g}.31 W, [N/A], {g}0 %, 1410 MHz"
        for k in range(3)
        for g in range(2)
    ]
    text = "\n".join([head, *rows]) + "\n"
    path = tmp_path / "smi.csv"
    path.write_text(text, encoding="utf-16")  # as PowerShell redirects it
    zone = {"zone": "UTC"}
    first, second = fetch_all(open_archive({"path": str(path), "preset": "nvidia-smi", "time": zone}))
    assert (first.stream.scope, second.stream.scope) == ("gpu:0", "gpu:1")
    names = [c.name for c in first.stream.channels]
    assert names == ["power_w", "power_instant_w", "load", "sm_clock_hz"]
    assert second.rows[1][2][0] == 61.31
    assert math.isnan(second.rows[1][2][1])
    assert second.rows[1][2][2:] == pytest.approx((0.1, 1.41e9))
    assert list_seconds(first) == [0.0, 1.0, 2.0]


def test_wandb(tmp_path: Path) -> None:
    head = ",_runtime,_timestamp,_wandb,system.cpu,system.gpu.0.powerWatts,system.gpu.0.gpu"
    head += ",system.gpu.process.0.powerWatts,system.gpu.1.powerWatts"
    rows = "".join(
        f"{k},{15 * k},{at(15 * k)},True,3.0,{300 + k},97,{300 + k},{'' if k else 'NaN'}\n" for k in range(4)
    )
    path = tmp_path / "events.csv"
    path.write_text(head + "\n" + rows)
    first, second = fetch_all(open_archive({"path": str(path), "preset": "wandb"}))
    assert (first.stream.scope, first.stream.period_s) == ("gpu:0", 15.0)
    assert [c.name for c in first.stream.channels] == ["power_w", "load"]
    assert list_values(first) == [300, 301, 302, 303]
    assert first.rows[0][2][1] == pytest.approx(0.97)
    assert all(math.isnan(v) for v in list_values(second))


# What is refused


@every_row(
    ("config", "code"),
    [
        ({"patth": "x"}, "config"),
        ({"columns": [{"column": "wats", "scope": "node.ac", "unit": "W"}]}, "config.no-column"),
        ({"columns": [{"column": "watts", "scope": "node.ac", "unti": "W"}]}, "config"),
        ({"columns": [{"column": "watts", "scope": "node.ac"}]}, "config.unit"),
        ({"columns": [{"column": "watts", "scope": "node.ac", "unit": "horse"}]}, "config.unit"),
        ({"columns": [{"column": "watts", "scope": "node.ac", "unit": "A", "kind": "power"}]}, "config.kind"),
        ({"columns": [{"column": "watts", "scope": "gpu:{device}", "unit": "W"}]}, "config.device"),
        ({"columns": "watts"}, "config.tables"),
        ({"device": "t"}, "config.device"),
        ({"where": {"column": "outlett", "equals": "3"}}, "config.no-column"),
        ({"time": {"column": "t", "format": "unix_mss"}}, "config.time-format"),
        ({"time": {"column": "t", "zone": "Europe/Berln"}}, "config.zone"),
        ({"time": {"column": "t", "format": "seconds", "start": "noon"}}, "config.time"),
        ({"time": 5}, "config.time"),
        ({"decimal": "x"}, "config.decimal"),
        ({"header": -1}, "config.header"),
        ({"delimiter": ", "}, "config.delimiter"),
        ({"preset": "wandbb"}, "config.preset"),
        ({"preset": "wandb", "columns": None}, "config.preset"),
        ({"missing": -1}, "config.missing"),
        ({"gain": "much"}, "config.wrong-value"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, config: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError) as error:
        open_text(tmp_path, make_log(1, 2), **config)
    assert error.value.code.startswith(code)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        open_text(tmp_path, make_log("1,2", head="t,P [W],P [kW]"), columns=[{"column": "P", "scope": "node.ac"}])
    assert error.value.code == "config.same-columns"


@every_row(
    ("head", "unit", "value"),
    [
        ("P [kW]", None, 1000.0),
        ("P (kW)", None, 1000.0),
        ("power_kw", None, 1000.0),
        ("Power kW", None, 1000.0),
        ("node-W", None, 1.0),
        ("power_mW", None, 1e-3),
        ("power_mw", "mW", 1e-3),
        ("power_mw", "MW", 1e6),
        ("energy_wh", None, 3600.0),
        ("energy_KWH", None, 3.6e6),
        ("energy_j", None, 1.0),
        ("T_j", "C", 1.0),  # a temperature of a junction
    ],
)
def test_units_at_the_end_of_a_header_count(tmp_path: Path, head: str, unit: str | None, value: float) -> None:
    columns = [{"column": head, "scope": "node.ac"} | ({"unit": unit} if unit else {})]
    assert list_values(fetch_one(open_text(tmp_path, make_log(1, 1, head=f"t,{head}"), columns=columns))) == [
        value,
        value,
    ]


@every_row(
    ("head", "unit"),
    [
        ("P [A]", "W"),
        ("P [kW]", "W"),
        ("power_kw", "W"),
        ("power_w", "kW"),
        ("power_mw", "W"),
        ("e_kwh", "J"),
        ("e_wh", "W"),
    ],
)
def test_units_at_the_end_of_a_header_must_agree(tmp_path: Path, head: str, unit: str) -> None:
    columns = [{"column": head, "scope": "node.ac", "unit": unit}]
    with pytest.raises(ConfigError) as error:
        open_text(tmp_path, make_log(1, head=f"t,{head}"), columns=columns)
    assert error.value.code == "config.header-unit"
    found = fetch_one(open_text(tmp_path, make_log(1, 2, head=f"t,{head}"), columns=columns, header_units=False))
    assert list_values(found) == [1.0 * UNITS[unit].factor, 2.0 * UNITS[unit].factor]


def test_a_unit_that_may_be_two_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        open_text(tmp_path, make_log(1, head="t,power_mw"), columns=[{"column": "power_mw", "scope": "node.ac"}])
    assert error.value.code == "config.unit"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be opened"):
        open_archive({"path": str(tmp_path / "none.csv"), "time": "t", "columns": POWER})
    with pytest.raises(Unavailable, match="cannot be opened"):
        open_archive({"path": str(tmp_path), "time": "t", "columns": POWER})
    with pytest.raises(Unavailable, match="no header and no rows"):
        open_text(tmp_path, "")
    for head in (b"PK\x03\x04 xlsx", b'{"a": 1}', b"BZh9"):
        with pytest.raises(Unavailable) as error:
            open_text(tmp_path, head)
        assert error.value.code == "unavailable.packed-file"
    with pytest.raises(ReadFailed) as damaged:
        open_text(tmp_path, gzip.compress(make_log(*range(999)).encode())[:-40]).fetch(0, 1)
    assert damaged.value.code == "read-failed.damaged-file"
    with pytest.raises(ReadFailed, match="no row fits"):
        _ = open_text(tmp_path, "t,watts\n").interval
    with pytest.raises(ConfigError, match="no path"):
        open_archive({"time": "t"})
    secret = tmp_path / "log.csv"
    secret.chmod(0)
    try:
        secret.read_bytes()
    except PermissionError:
        with pytest.raises(Denied):
            open_archive({"path": str(secret), "time": "t", "columns": POWER})


@pytest.mark.timeout(30)  # it would be waited for, for ever
@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(Unavailable, match=r"it is a FIFO, not a regular file.*save what comes through a pipe first"):
        open_archive({"path": str(tmp_path / name), "time": "t", "columns": POWER})
    with pytest.raises(Unavailable, match="it is a device, not a regular file"):
        open_archive({"path": os.devnull, "time": "t", "columns": POWER})


@every_row(
    ("cells", "advice"),
    [
        (("1,234", "2,345"), 'decimal mark, type decimal=","; if it separates thousands, type thousands=","'),
        (("1,234.5", "950"), '; type thousands=","'),
        (("1,234,567", "2,345"), '; type thousands=","'),
        (("1,234", "99,5"), '; type decimal=","'),
        (("1.234,567", "99,5"), '; type decimal="," thousands="."'),
        (("1 300",), '; type thousands=" "'),
        (("1_300",), '; type thousands="_"'),
        (("-1'300'000.5 W",), '; type thousands="\'"'),
    ],
)
def test_the_advice_on_a_comma_offers_all_that_it_may_be(tmp_path: Path, cells: tuple[str, ...], advice: str) -> None:
    text = "t;watts\n" + "".join(f"{at(k)};{cell}\n" for k, cell in enumerate((*cells, cells[0])))
    with pytest.raises(ReadFailed) as refused:
        _ = open_text(tmp_path, text).interval
    assert str(refused.value).endswith(advice)


@pytest.mark.parametrize("cell", ['"1,300"', '"1,300.5 W"', '"12,5"', "1 300"])
def test_one_number_with_a_separator_among_plain_ones_refuses_the_file(tmp_path: Path, cell: str) -> None:
    with pytest.raises(ReadFailed, match=r"'watts' cannot be read.*1 cells are not numbers; first: line 102.*type"):
        _ = open_text(tmp_path, make_log(*[700] * 100, cell, *[700] * 100)).interval


def test_points_between_thousands_are_found_beside_a_decimal_comma(tmp_path: Path) -> None:
    text = f"t;watts\n{at(0)};700,5\n{at(1)};1.300\n"
    with pytest.raises(ReadFailed, match=r'thousands="\."'):
        _ = open_text(tmp_path, text, decimal=",").interval
    assert list_values(fetch_one(open_text(tmp_path, text, decimal=",", thousands="."))) == [700.5, 1300.0]


def test_much_text_among_numbers_refuses_the_file_and_a_little_is_a_gap(tmp_path: Path) -> None:
    cells = [700] * 100
    assert "5 cells are not numbers" in list_problems(open_text(tmp_path, make_log(*cells, *["over"] * 5)))
    with pytest.raises(ReadFailed, match=r"6 cells are not numbers.*missing=over"):
        _ = open_text(tmp_path, make_log(*cells, *["over"] * 6)).interval
    assert len(list_values(fetch_one(open_text(tmp_path, make_log(*cells, *["over"] * 6), missing=["over"])))) == 106


def test_much_that_does_not_fit_the_header_refuses_the_file(tmp_path: Path) -> None:
    with pytest.raises(ReadFailed, match=r"30 rows have another number of cells.*quote cells"):
        _ = open_text(tmp_path, make_log(*[700] * 70, *["1,300"] * 30)).interval


@pytest.mark.system
def test_neither_numpy_nor_duckdb_is_imported() -> None:
    import subprocess
    import sys

    code = "import sys, joulelab.instruments.file; print({'numpy', 'duckdb'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_columns_of_two_families_are_wrong_on_their_own(tmp_path: Path) -> None:
    """AC and DC of one file are of two instruments: their errors must not cancel in the supply's efficiency."""
    columns = [{"column": name, "scope": f"node.{name}", "unit": "W"} for name in ("ac", "dc")]
    found = fetch_all(open_text(tmp_path, make_log("100,90", "100,90", head="t,ac,dc"), columns=columns, gain=0.02))
    ac, dc = (f.stream.channels[0].accuracy for f in found)
    assert ac.shared.endswith(":node.ac")
    assert dc.shared.endswith(":node.dc")
    assert (ac.source, ac.gain) == ("assumed", 0.02)
