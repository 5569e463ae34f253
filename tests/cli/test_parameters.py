"""How options are written: durations, pairs, amounts, caps, clocks; and what becomes of those of `joulelab run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import pytest
from tests.rows import every_row

from joulelab.cli.cap import read_cap, read_clock
from joulelab.cli.parameters import Amount, Duration, KeyValue
from joulelab.cli.run import _make_options
from joulelab.core.errors import ConfigError
from joulelab.run.config.configuration import Config
from joulelab.run.config.meter_choice import choose_meters

if TYPE_CHECKING:
    from pathlib import Path


@every_row(
    ("text", "seconds"),
    [("10", 10), ("10s", 10), ("500ms", 0.5), ("2m", 120), ("1.5h", 5400), (".5", 0.5), ("3 min", 180), ("7µs", 7e-6)],
)
def test_durations(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == pytest.approx(seconds)


@every_row("text", ["", "ten", "10x", "-1", "1e3", "1 2"])
def test_wrong_durations(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)


def test_pairs_and_amounts() -> None:
    assert KeyValue().convert("a=b=c", None, None) == ("a", "b=c")
    assert Amount().convert("samples=64", None, None) == ("samples", 64.0)
    for wrong in ("a", "=b"):
        with pytest.raises(click.BadParameter):
            KeyValue().convert(wrong, None, None)
    for wrong in ("samples", "samples=many", "=4", "samples=-1", "samples=nan", "samples=inf"):
        with pytest.raises(click.BadParameter):
            Amount().convert(wrong, None, None)


@pytest.mark.parametrize(("text", "meant"), [("170", (170, "W")), ("170.5W", (170.5, "W")), ("65%", (0.65, "share"))])
def test_caps_are_written_in_three_ways(text: str, meant: tuple[float, str]) -> None:
    assert read_cap(text, "cap") == meant
    assert read_cap("default", "cap") == (1.0, "share")
    for wrong in ("", "-5", "0", "170 V", "nan"):
        with pytest.raises(ConfigError) as raised:
            read_cap(wrong, "cap")
        assert raised.value.code == "config.cap"


def test_clocks_are_written_in_three_ways() -> None:
    assert read_clock("1200") == read_clock("1200MHz") == read_clock("1.2 GHz") == (1.2e9, "Hz")
    with pytest.raises(ConfigError) as raised:
        read_clock("fast")
    assert raised.value.code == "config.clock"


def test_meters_are_chosen_by_name() -> None:
    def chosen(wanted: tuple[str, ...], without: tuple[str, ...]) -> list[dict[str, Any]] | None:
        return choose_meters(Config(), {}, wanted, without).meters

    assert chosen((), ()) is None
    assert chosen(("nvml",), ()) == [{"meter": "nvml"}, {"meter": "host"}]
    assert chosen(("nvml",), ("host",)) == [{"meter": "nvml"}]
    assert chosen(("./mine.py",), ("host",)) == [{"meter": "./mine.py"}]
    without = chosen((), ("nvml",))
    assert without is not None
    assert {"meter": "rapl"} in without
    assert {"meter": "nvml"} not in without


def test_options_reach_the_supervisor(tmp_path: Path) -> None:
    options = _make_options(
        runs=tmp_path,
        name="n",
        labels=(("a", "b"),),
        period=0.02,
        idle=10.0,
        tail=2.0,
        meters=(),
        without=(),
        estimate=True,
        rated_cpu=65.0,
        capture=tmp_path / "log",
    )
    assert options.also == [{"meter": "estimate", "config": {"cpu_w": 65.0}}]
    assert (options.period_s, options.idle_s, options.tail_s) == (0.02, 10.0, 2.0)
    assert options.labels == {"a": "b"}
    assert options.capture == tmp_path / "log"
