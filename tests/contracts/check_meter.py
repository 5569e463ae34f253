"""Check one meter, in a process of its own: `python check_meter.py NAME`; prints its state in JSON, or fails.

What the machine offers comes by the environment, as for a run: JOULELAB_POWERCAP, the simulated node's library, stubs;
trees that a twin does not serve, by variables of the tests (`ROOTS`).
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from joulelab import instruments as meters
from joulelab.core.errors import ConfigError, JoulelabError, MeterError, ReadFailed
from joulelab.core.spec import Meter, Spec, Stream
from joulelab.instruments.hooks import FollowsWorkload, HasEvents, HasMissing
from joulelab.run.config.configuration import load_config
from joulelab.run.config.meter_choice import choose_meters

# SI units, and what is counted or compared (1). Channel names end in their unit.
UNITS = {"J": "_j", "W": "_w", "B": "_b", "Hz": "_hz", "s": "_s", "degC": "_c", "1": ""}
UNITS |= {"V": "_v", "A": "_a", "VA": "_va", "rpm": "_rpm"}
KINDS = ("counter", "power", "state")
ROOTS = {"rapl": "JOULELAB_POWERCAP", "hwmon": "TEST_HWMON", "cray": "TEST_CRAY"}


def main() -> None:
    name = sys.argv[1]
    module = meters.find_meter(name)
    check_module(module)
    check_wrong_key(module)
    config = configured(name)
    opened = [attempt(lambda: meters.open_meter(name, config)) for _ in range(2)]
    if isinstance(opened[0], JoulelabError):
        check_error(opened[0])
        answer: dict[str, Any] = {"error": type(opened[0]).__name__}
    else:
        first, second = opened
        check_streams(list(first.streams()))
        assert [s.name for s in first.streams()] == [s.name for s in second.streams()], "opened twice, it is the same"
        check_rows(first)
        first.close()
        first.close()
        check_rows(second)
        second.close()
        answer = {"streams": len(first.streams())}
    # httpx takes click and rich along where they are installed.
    allowed = {"click", "rich"} if "httpx" in sys.modules else set()
    heavy = sorted(({"numpy", "duckdb", "psutil", "rich", "msgspec", "click"} - allowed) & set(sys.modules))
    assert not heavy, f"a meter imports {heavy}"
    print(json.dumps(answer))


def configured(name: str) -> dict[str, Any]:
    """Return what a run would give the meter: the entry of the configuration that is of its kind, or its tree."""
    root = os.environ.get(ROOTS.get(name, ""))
    if root:
        return {"root": root}
    found = choose_meters(load_config(os.environ, "twin"), os.environ)
    assert not found.lost, found.lost
    return next(({**item["config"], "label": item["name"]} for item in found.also if item["meter"] == name), {})


def check_module(module: Any) -> None:
    for line in ("SUMMARY", "PRIVILEGE", "TRIED"):
        text = getattr(module, line)
        assert isinstance(text, str), line
        assert text, line
        assert "\n" not in text, f"{line} is one line"
    assert isinstance(module.CONFIG, Mapping)
    assert all(isinstance(k, str) and isinstance(v, str) and v for k, v in module.CONFIG.items())
    assert set(module.CONFIG) & {"period_s", "slow_period_s"}, "how often it is read can be set"


def attempt(action: Callable[[], Any]) -> Any:
    """Return what an action returns, or the typed error that it raises."""
    try:
        return action()
    except JoulelabError as error:
        return error


def check_error(error: JoulelabError) -> None:
    assert error.what, "an error says what"
    # Without an address there is nothing to say why.
    assert isinstance(error, ConfigError) or (isinstance(error, MeterError) and error.why), "an error says why"
    assert error.next, "an error says what to do next"


def check_wrong_key(module: Any) -> None:
    for key in ("perodi_s", "zzz"):
        error = attempt(functools.partial(module.open_meter, {key: 1}))
        assert isinstance(error, ConfigError), f"unknown key {key!r} was taken"
        assert key in error.what
        assert "valid: " in (error.next or "")


def check_streams(streams: list[Stream]) -> None:
    assert streams, "an open meter has streams"
    names = [s.name for s in streams]
    assert len(set(names)) == len(names), "streams have names of their own"
    by_table: dict[str, list[str]] = {}
    for stream in streams:
        assert stream.scope
        assert stream.scope != stream.parent
        assert stream.period_s > 0
        assert Stream.from_json(json.loads(json.dumps(stream.to_json()))) == stream, "it survives a journal's header"
        channels = [c.name for c in stream.channels]
        assert len(set(channels)) == len(channels)
        assert by_table.setdefault(stream.table, channels) == channels, "streams of a table have the same channels"
        for spec in stream.channels:
            check_spec(spec)


def check_spec(spec: Spec) -> None:
    assert spec.quantity
    assert spec.unit in UNITS, f"{spec.name} is in {spec.unit!r}"
    assert spec.name.endswith(UNITS[spec.unit]), f"{spec.name} does not end in its unit"
    assert spec.kind in KINDS
    assert 0 < spec.seen <= 1
    assert spec.modulus is None or spec.modulus > 0
    assert spec.limits is None or 0 <= spec.limits[0] < spec.limits[1]
    if spec.kind == "power":
        assert spec.unit == "W"
    if spec.kind == "power" or (spec.kind == "counter" and spec.unit == "J"):
        assert spec.update_s, f"{spec.name} says how often it changes"
        assert spec.accuracy.source in ("datasheet", "calibrated", "assumed", "unknown")
        assert spec.accuracy.reference, f"{spec.name} says where its accuracy is known from"
        assert spec.accuracy.shared, f"{spec.name} names the source of its gain error"
        assert (spec.accuracy.gain > 0) is (spec.accuracy.source != "unknown")


def read(meter: Meter, stream: Stream) -> Any:
    """Return a row, if need be the second time: closing puts an instrument back that another one reads too."""
    try:
        return meter.read(stream)
    except ReadFailed:
        return meter.read(stream)


def check_rows(meter: Meter) -> None:
    if isinstance(meter, FollowsWorkload):
        meter.set_workload(os.getpid())
    for last in (False, True):
        time.sleep(0.3 if last else 0.0)
        for stream in meter.streams():
            row = read(meter, stream)
            assert len(row) == len(stream.channels), stream.name
            assert all(isinstance(v, int | float) and not isinstance(v, bool) for v in row), stream.name
            assert not last or any(v == v for v in row), f"{stream.name} reads something"
    if isinstance(meter, HasEvents):
        for event in meter.events():
            assert isinstance(event["t"], int)
            assert isinstance(event["event"], str)
            json.dumps(event)
        assert meter.events() == [], "events are told once"
    if isinstance(meter, HasMissing):
        assert all(m.scope and m.what and m.why for m in meter.missing())


if __name__ == "__main__":
    main()
