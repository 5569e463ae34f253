from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from tests.instruments.file_bench import (
    POWER,
    T0,
    at,
    fetch_all,
    fetch_one,
    list_events,
    list_problems,
    list_seconds,
    list_values,
    make_log,
    open_text,
)
from tests.rows import every_row

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError, ReadFailed, Unavailable
from joulelab.instruments.file import open_archive

if TYPE_CHECKING:
    from pathlib import Path


# Values and units


@every_row(
    ("unit", "cell", "si"),
    [
        ("W", "123.4", 123.4),
        ("kW", "1.25", 1250.0),
        ("mW", "5", 0.005),
        ("W", "123.4 W", 123.4),
        ("W", "0.5 kW", 500.0),
        ("kW", "12 W", 12.0),
        ("Wh", "2", 7200.0),
        ("kWh", "0.1", 360_000.0),
        ("mJ", "2500", 2.5),
        ("J", " +1e3 ", 1000.0),
        ("W", "-3.5", -3.5),
        ("W", ".5", 0.5),
        ("W", "5.", 5.0),
    ],
)
def test_a_cell_becomes_si(tmp_path: Path, unit: str, cell: str, si: float) -> None:
    found = fetch_one(
        open_text(tmp_path, make_log(cell, cell), columns=[{"column": "watts", "scope": "node.ac", "unit": unit}])
    )
    assert list_values(found) == pytest.approx([si, si], rel=1e-15)
    (spec,) = found.stream.channels
    assert (spec.kind, spec.unit) == (("power", "W") if unit.endswith("W") else ("counter", "J"))


@every_row("cell", ["", "-", "N/A", "[N/A]", "[Not Supported]", "nan", "null", "None", "  "])
def test_what_means_no_value_is_nan_and_no_text(tmp_path: Path, cell: str) -> None:
    archive = open_text(tmp_path, make_log(100, cell, 100, 100))
    found = fetch_one(archive)
    assert math.isnan(list_values(found)[1])
    assert list_values(found)[0] == list_values(found)[2] == 100.0
    assert list_problems(archive) == ""


@every_row("cell", ["abc", "1.2.3", "12 MiB", "0x10", "inf", "1e999", "١٢", "12 Wx", "--5", "[Unknown Error]"])
def test_text_is_a_gap_with_its_line_and_never_a_number(tmp_path: Path, cell: str) -> None:
    archive = open_text(tmp_path, make_log(100, 100, f'"{cell}"', 100))
    found = fetch_one(archive)
    assert math.isnan(list_values(found)[2])
    (gap,) = list_events([found], "gap")
    assert gap["line"] == 4
    assert cell in gap["reason"]
    assert (gap["from"] - T0, list_events([found], "gap-end")[0]["to"] - T0) == (1 * NS, 3 * NS)
    assert "line 4" in list_problems(archive)


def test_own_words_for_no_value(tmp_path: Path) -> None:
    assert math.isnan(list_values(fetch_one(open_text(tmp_path, make_log(-1, 5), missing="-1")))[0])
    found = fetch_one(open_text(tmp_path, make_log(-1, 5, "offline"), missing=["-1", "offline"]))
    assert [math.isnan(v) for v in list_values(found)] == [True, False, True]
    assert not list_events([found], "gap")


def test_decimal_comma_and_thousands(tmp_path: Path) -> None:
    text = "t;watts\n1714564800;1.234,5\n1714564801;99,25\n1714564802;12.34\n1714564803;1\n"
    archive = open_text(tmp_path, text, decimal=",", thousands=".")
    assert list_values(fetch_one(archive))[:2] == [1234.5, 99.25]
    assert math.isnan(list_values(fetch_one(archive))[2])  # neither a decimal mark nor thousands
    plain = open_text(tmp_path, "t;watts\n1714564800,5;99,25\n1714564801,5;1.5\n", decimal=",")
    assert list_seconds(fetch_one(plain)) == [0.5, 1.5]
    assert list_values(fetch_one(plain))[0] == 99.25
    assert math.isnan(list_values(fetch_one(plain))[1])


# Times


@every_row(
    ("form", "stamp"),
    [
        ("iso", "2024-05-01T12:00:00.250Z"),
        ("iso", "2024-05-01 14:00:00.25+02:00"),
        ("iso", "2024/05/01 12:00:00.250"),
        ("unix", "1714564800.25"),
        ("unix_ms", "1714564800250"),
        ("unix_us", "1714564800250000"),
        ("unix_ns", "1714564800250000000"),
        ("unix", "17145648002.5e-1"),
        ("%d.%m.%Y %H:%M:%S.%f", "01.05.2024 12:00:00.25"),
    ],
)
def test_formats_of_time(tmp_path: Path, form: str, stamp: str) -> None:
    archive = open_text(tmp_path, f"t,watts\n{stamp},1\n{stamp},2\n", time={"column": "t", "format": form})
    assert fetch_one(archive).rows[0][:2] == (T0 + NS // 4, T0 + NS // 4)
    if "%" not in form:
        guessed = open_text(tmp_path, f"t,watts\n{stamp},1\n{stamp},2\n", time="t")
        assert fetch_one(guessed).rows[0][0] == T0 + NS // 4


def test_seconds_count_from_a_start_and_the_clock_is_shifted(tmp_path: Path) -> None:
    time = {"column": "t", "format": "seconds", "start": "2024-05-01T12:00:00Z"}
    archive = open_text(tmp_path, "t,watts\n-1.5,1\n0,2\n2.125,3\n", time=time, clock_offset_s=-0.5)
    assert list_seconds(fetch_one(archive)) == [-2.0, -0.5, 1.625]
    assert archive.facts["clock_offset_s"] == -0.5
    unknown = open_text(tmp_path, "t,watts\n0,1\n1,1\n", time={"column": "t", "format": "seconds"})
    assert "--start 2000-01-01T00:00:00Z" in unknown.remarks[0]
    with pytest.raises(ConfigError) as error:
        open_text(tmp_path, "t,watts\n12,1\n", time="t")
    assert error.value.code == "config.no-time"


def test_date_and_time_in_two_columns(tmp_path: Path) -> None:
    archive = open_text(
        tmp_path, "Date,Time,watts\n2024-05-01,12:00:01,7\n", time={"column": ["Date", "Time"], "zone": "UTC"}
    )
    assert list_seconds(fetch_one(archive)) == [1.0]


@pytest.mark.parametrize("day", ["2024-10-27", "2024-03-31"])
def test_times_in_the_hour_in_which_clocks_change_are_no_times(tmp_path: Path, day: str) -> None:
    text = "t,watts\n" + "".join(f"{day} {h:02d}:{m:02d}:00,5\n" for h in range(24) for m in range(60))
    archive = open_text(tmp_path, text, time={"column": "t", "zone": "Europe/Berlin"})
    assert len(fetch_one(archive).rows) == 23 * 60
    assert "60 rows are left out: no time stamp (line 122" in list_problems(archive)
    with pytest.raises(ReadFailed) as error:
        _ = open_text(tmp_path, text[: 60 * 8 * 24], time={"column": "t", "zone": "Europe/Berlin"}).interval
    assert error.value.code == "read-failed.no-times"


def test_stamps_without_a_zone_are_utc_and_told(tmp_path: Path) -> None:
    text = "t,watts\n2024-05-01 12:00:00,5\n2024-05-01 12:00:01,5\n"
    archive = open_text(tmp_path, text, time="t")
    assert list_seconds(fetch_one(archive)) == [0.0, 1.0]
    assert "taken as UTC" in list_problems(archive)
    declared = open_text(tmp_path, text, time={"column": "t", "zone": "Europe/Berlin"})
    assert list_seconds(fetch_one(declared)) == [-7200.0, -7199.0]
    assert list_problems(declared) == ""


def test_rows_are_sorted_and_stamps_that_repeat_or_go_back_are_counted(tmp_path: Path) -> None:
    text = "t,watts\n" + "".join(f"{at(s)},{k}\n" for k, s in enumerate([0, 1, 1, 3, 2, 4]))
    archive = open_text(tmp_path, text)
    assert list_seconds(fetch_one(archive)) == [0, 1, 1, 2, 3, 4]
    assert list_values(fetch_one(archive)) == [0, 1, 2, 4, 3, 5]
    assert "1 stamps go back and 1 repeat (first: line 4)" in list_problems(archive)


def test_rows_without_a_stamp_are_left_out_and_told(tmp_path: Path) -> None:
    text = f"t,watts\n{at(0)},1\nsoon,2\n{at(3)},4\n99999999999999,5\n"
    archive = open_text(tmp_path, text)
    assert list_values(fetch_one(archive)) == [1.0, 4.0]
    assert "2 rows are left out: no time stamp (line 3: 'soon')" in list_problems(archive)
    with pytest.raises(ReadFailed, match="2 rows without a time stamp"):
        _ = open_text(tmp_path, "t,watts\nsoon,2\nlater,3\n").interval


# Shapes of files


def test_rows_of_another_length_are_left_out_and_told(tmp_path: Path) -> None:
    archive = open_text(tmp_path, f"t,watts\n{at(0)},1\n{at(1)},1,5\n{at(2)}\n{at(3)},4,\n{at(4)},5")
    assert list_values(fetch_one(archive)) == [1.0, 4.0, 5.0]
    said = list_problems(archive)
    assert "2 rows are left out: another number of cells (first: line 3)" in said
    assert "the last line has no end" in said


def test_a_lost_quote_costs_one_line(tmp_path: Path) -> None:
    archive = open_text(tmp_path, f't,watts\n{at(0)},1\n{at(1)},"2\n{at(2)},3\n{at(3)},"4"\n')
    assert [v for v in list_values(fetch_one(archive)) if not math.isnan(v)] == [1.0, 2.0, 3.0, 4.0]


def test_comments_header_line_delimiter_and_encodings(tmp_path: Path) -> None:
    text = f"Report of the day\nunit 7\n# note\nt\twatts\tÖrt\n{at(0)}\t5\tKöln\n# more\n\n{at(1)}\t6\t-\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert list_values(fetch_one(open_text(tmp_path, text.encode(encoding), header=4))) == [5.0, 6.0]
    bare = open_text(
        tmp_path, f"{at(0)},5\n{at(1)},6\n", header=0, time="1", columns=[{"column": "2", "scope": "rack", "unit": "W"}]
    )
    assert list_values(fetch_one(bare)) == [5.0, 6.0]


def test_one_device_of_many_and_all_of_them(tmp_path: Path) -> None:
    text = "t,outlet,watts\n" + "".join(f"{at(k)},{o},{100 * o + k}\n" for k in range(3) for o in (1, 3))
    one = fetch_one(open_text(tmp_path, text, where={"column": "outlet", "equals": "3"}))
    assert list_values(one) == [300.0, 301.0, 302.0]
    columns = [{"column": "watts", "scope": "outlet:{device}", "unit": "W", "sums": "node.ac", "parts": 2}]
    first, second = fetch_all(open_text(tmp_path, text, device="outlet", columns=columns))
    assert (first.stream.scope, second.stream.scope) == ("outlet:1", "outlet:3")
    assert (second.stream.sums, second.stream.parts, second.stream.table) == ("node.ac", 2, first.stream.table)
    assert list_values(first) == [100.0, 101.0, 102.0]


def test_hosts_by_column(tmp_path: Path) -> None:
    text = "t,node,watts\n" + "".join(f"{at(k)},n{n},{n}\n" for k in range(3) for n in (1, 2))
    found = fetch_all(open_text(tmp_path, text, host={"column": "node"}))
    assert [(f.host, set(list_values(f))) for f in found] == [("n1", {1.0}), ("n2", {2.0})]
    assert fetch_one(open_text(tmp_path, text, host="n1", where={"column": "node", "equals": "n1"})).host == "n1"


def test_columns_of_a_scope_are_one_stream_and_twins_are_two(tmp_path: Path) -> None:
    columns = [
        {"column": "a", "scope": "gpu:0", "unit": "W", "name": "power_average_w", "window_s": 1, "update_s": 0.1},
        {"column": "b", "scope": "gpu:0", "unit": "W", "name": "power_instant_w", "gain": 0.05, "reference": "tag"},
        {"column": "c", "scope": "gpu:0", "unit": "W", "name": "power_instant_w"},
        {"column": "temp", "scope": "gpu:0", "unit": "C", "kind": "state"},
    ]
    first, second = fetch_all(
        open_text(tmp_path, make_log("1,2,3,60", "4,5,6,61", head="t,a,b,c,temp"), columns=columns)
    )
    assert [c.name for c in first.stream.channels] == ["power_average_w", "power_instant_w", "temp_c"]
    assert [c.name for c in second.stream.channels] == ["power_instant_w"]
    average, instant, _ = first.stream.channels
    assert (average.window_s, average.update_s, average.accuracy.source) == (1.0, 0.1, "unknown")
    assert (instant.accuracy.source, instant.accuracy.gain, instant.accuracy.reference) == ("calibrated", 0.05, "tag")
    assert first.stream.table != second.stream.table
    assert first.stream.name != second.stream.name


def test_gaps_are_told_with_their_reason(tmp_path: Path) -> None:
    rows = [f"{at(k)},{'' if 20 <= k < 30 else 5}\n" for k in range(60) if not 40 <= k < 50]
    found = fetch_one(open_text(tmp_path, "t,watts\n" + "".join(rows)))
    assert found.stream.period_s == 1.0
    gaps = list_events([found], "gap")
    assert [((g["from"] - T0) / NS, g["reason"]) for g in gaps] == [
        (19, "no value in the file"),
        (39, "no rows in the file"),
    ]
    assert [(e["to"] - T0) / NS for e in list_events([found], "gap-end")] == [30, 50]


def test_a_column_that_has_nothing_is_one_gap(tmp_path: Path) -> None:
    columns = [*POWER, {"column": "dc", "scope": "node.dc", "unit": "W"}]
    _, dc = fetch_all(open_text(tmp_path, make_log("1,", "2,", "3,", head="t,watts,dc"), columns=columns))
    assert all(math.isnan(v) for v in list_values(dc))
    assert [g["reason"] for g in list_events([dc], "gap")] == ["no value in the file"]
    assert not list_events([dc], "gap-end")


def test_only_the_interval_and_its_neighbours(tmp_path: Path) -> None:
    archive = open_text(tmp_path, make_log(*range(10)))
    (found,) = archive.fetch(T0 + 3 * NS, T0 + 5 * NS)
    assert list_values(found) == [2, 3, 4, 5, 6]
    (found,) = archive.fetch(T0 + 100 * NS, T0 + 200 * NS)
    assert list_values(found) == [9]
    assert found.rows[-1] == (T0 + 9 * NS, T0 + 9 * NS, (9.0,))
    archive.close()
    archive.close()
    assert len(fetch_one(archive).rows) == 10


def test_text_in_a_state_is_counted_and_no_gap(tmp_path: Path) -> None:
    columns = [*POWER, {"column": "temp", "scope": "node.ac", "unit": "C", "kind": "state"}]
    archive = open_text(tmp_path, make_log("1,hot", "2,60", "3,hot", head="t,watts,temp"), columns=columns)
    assert not list_events(fetch_all(archive), "gap")
    assert "temp: 2 cells are not numbers (first: line 2, 'hot')" in list_problems(archive)


def test_gaps_that_are_too_many_are_counted(tmp_path: Path) -> None:
    found = fetch_one(open_text(tmp_path, make_log(*(5 if k % 10 < 5 else "" for k in range(12_001)))))
    assert len(list_events([found], "gap")) == 1000
    assert "200 more gaps are not listed" in "".join(str(e["what"]) for e in list_events([found], "problem"))


def test_parquet_gives_what_csv_gives(tmp_path: Path) -> None:
    import duckdb

    path = tmp_path / "x.parquet"
    with duckdb.connect(":memory:") as con:
        con.execute(
            f"COPY (SELECT timestamptz '2024-05-01 12:00:00+00' + to_seconds(k) AS t, {T0} + k AS ns, "
            f"CASE WHEN k = 2 THEN NULL ELSE k + 0.1 END::DOUBLE AS watts FROM range(5) r(k)) "
            f"TO '{path}' (FORMAT parquet)"
        )
    found = fetch_one(open_archive({"path": str(path), "time": "t", "columns": POWER, "decimal": ","}))
    assert list_seconds(found) == [0, 1, 2, 3, 4]
    assert list_values(found)[:2] == [0.1, 1.1]
    assert math.isnan(list_values(found)[2])
    by_number = fetch_one(
        open_archive({"path": str(path), "time": {"column": "ns", "format": "unix_ns"}, "columns": POWER})
    )
    assert [row[0] - T0 for row in by_number.rows] == [0, 1, 2, 3, 4]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Unavailable, match="no whole Parquet file"):
        open_archive({"path": str(path), "time": "t", "columns": POWER})
