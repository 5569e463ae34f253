"""Change recorded walks at random: each value that is still read is the number at the object that its table names.

The tables are read here as plain TOML, apart from the code under test.
"""

from __future__ import annotations

import math
import random
import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest
from tests.instruments.snmp_judge import WALKS, list_walks, load_walk
from tests.instruments.snmp_replay import Replay, plan_session, read_plan

import joulelab.instruments.snmp as package
from joulelab.core.errors import JoulelabError
from joulelab.instruments.snmp.client import MISSING, Name
from joulelab.instruments.snmp.device import find_table, list_rows, read_identity

PDUS = Path(package.__file__).parent / "pdus"
OBJECT_ID = "1.3.6.1.2.1.1.2.0"
VITAL = ("power_w", "energy_j")
LEVELS = {"power": ("unit", "outlet"), "phases": ("phase",), "banks": ("bank",), "input": ("input",)}
LEVELS |= {"battery": ("battery",)}
WORTH = {"V": 1, "A": 1, "W": 1, "VA": 1, "Wh": 3600, "kWh": 3.6e6, "Hz": 1, "kW": 1e3, "mA": 1e-3, "mV": 1e-3}
ODD = (
    MISSING,
    -1,
    0,
    1,
    -2,
    -50,
    -200,
    2**31 - 1,
    2**32 - 1,
    2**31,
    -(2**31),
    2**63,
    b"",
    b"12",
    b"n/a",
    None,
    Name("1.3"),
)


@dataclass(frozen=True)
class Named:
    """Hold one channel as its table names it."""

    level: str
    channel: str
    oid: str
    data: dict
    of: dict


@lru_cache(maxsize=100)
def list_named(vendor, object_id):
    """Return every channel of a table."""
    data = tomllib.loads((PDUS / f"{vendor}.toml").read_text().replace("{id}", object_id))
    levels = [(name, one) for name, value in data.items() for one in (value if isinstance(value, list) else [value])]
    return data, [
        Named(name, channel, entry.get("oid", level.get("values")), entry, level)
        for name, level in levels
        if name in ("unit", "outlet", "phase", "bank", "input", "battery")
        for channel, entry in level.items()
        if isinstance(entry, dict) and channel != "rows"
    ]


def find_index(named, oid):
    """Return the row of an object in a column, None where it is not of the column."""
    suffix = f".{named.data['suffix']}" if "suffix" in named.data else ""
    if not oid.startswith(f"{named.oid}.") or not oid.endswith(suffix):
        return None
    return oid[len(named.oid) + 1 :].removesuffix(suffix)


def find_scale(table, named, oid, read):
    """Return what a count is worth by the table, or by what the device tells now."""
    if "scale" in named.data:
        return named.data["scale"]
    tail = oid[len(named.oid) + 1 :]
    if "read_digits" in named.of:
        step = 10.0 ** -read(f"{named.of['read_digits']}.{tail}")
    else:
        factor = read(f"{named.of['read_factor']}.{tail}")
        step = factor if factor > 0 else -1 / factor
    if named.channel in ("power_factor", "load", "charge"):
        return step
    units = read(f"{named.of['read_units']}.{tail}")
    if units is MISSING:
        return step * WORTH[named.data["unit"]]
    return step * WORTH[units.decode().strip() if isinstance(units, bytes) else table["units"][str(units)]]


def check_streams(streams, told, now, object_id):
    """Check every number: it is that of the object which the table names for this scope, times its scale.

    `told` reads the device at opening, when it says what its numbers are worth; `now` when they are read.
    """
    count = 0
    for scope, row in streams.items():
        table, every = list_named(row["table"], object_id)
        indices = set()
        for channel, oid in row["oids"].items():
            named = [one for one in every if one.level in LEVELS[row["kind"]] and one.channel == channel]
            found = [(one, index) for one in named if (index := find_index(one, oid)) is not None]
            assert found, f"{scope}: {oid} is not named for {channel}"
            one, index = found[0]
            if "label" in one.data:
                label = told(f"{one.of['labels']}.{index}").decode().strip()
                assert re.sub(r"\d\d?(?=\.)", "{n}", label) in one.data["label"].split("|"), (scope, channel, label)
            else:
                indices.add(index)
            if isinstance(row[channel], str) or math.isnan(row[channel]):
                continue
            value = now(oid)
            assert type(value) is int, (scope, channel, value)
            scale = find_scale(table, one, oid, told)
            assert math.isclose(row[channel], value * scale, rel_tol=1e-12), (scope, channel, oid)
            assert row[channel] >= -100 or one.data.get("least") == -math.inf, (scope, channel)
            count += 1
        assert len(indices) <= 1, f"{scope} mixes rows {indices}"
        if ":" in scope and indices:
            index = next(iter(indices))
            piece = scope.split(".", 1)[-1]
            assert piece in (index.replace(".", "-"), index.split(".")[-1], index.split(".")[0]), (scope, index)
    return count


def check_sources(before, after, replay, object_id, notes):
    """Check that no scope has another source than before without a message, and that no row is left out without one.

    The message may be of this opening or of the one before. A table or a row that the device lists no more at all
    needs none.
    """
    for scope, old in before.items():
        if old["kind"] != "power" or "it is read by" in notes:
            continue
        _, every = list_named(old["table"], object_id)
        oid = next(oid for channel, oid in old["oids"].items() if channel in VITAL)
        pieces = (one for one in every if one.level in ("unit", "outlet"))
        own, index = next((one, index) for one in pieces if (index := find_index(one, oid)))
        number = index.split(".")[0 if own.of.get("number") == "first" else -1]
        listed = [replay.get([f"{one.oid}.{index}"])[0] for one in every if one.of is own.of]
        if all(value is MISSING for value in listed):
            continue
        row = after.get(scope, {"oids": {}})
        both = [channel for channel in VITAL if channel in old["oids"] and channel in row["oids"]]
        moved = [channel for channel in both if old["oids"][channel] != row["oids"][channel]]
        assert not moved or f"{number}: " in notes, f"{scope}: {moved}, {notes}"
        if not any(old["oids"].items() & one["oids"].items() for one in after.values()):
            assert f"{number}: " in notes or number in notes.split("left out")[-1], f"{oid} is left out: {notes}"
        elif row["oids"]:
            gone = [channel for channel in VITAL if channel in old["oids"] and channel not in row["oids"]]
            assert not gone or notes, f"{scope} has lost its {gone} without a message"


def change_walk(rng, recording, pool):
    """Return a few changes of a walk: single values, a whole column or a whole row."""
    changes = {}
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        oid = rng.choice(pool)
        kind = rng.random()
        if kind < 0.2:
            changes[oid] = MISSING
        elif kind < 0.6:
            changes[oid] = rng.choice(ODD)
        elif kind < 0.7:
            changes[oid] = rng.randrange(-300, 2 ** rng.randrange(1, 40))
        elif kind < 0.8:
            changes[oid] = recording.objects[rng.choice(pool)]
        else:
            head, _, tail = oid.rpartition(".")
            value = rng.choice(ODD)
            alike = (one for one in pool if (one.startswith(f"{head}.") if kind < 0.9 else one.endswith(f".{tail}")))
            changes |= dict.fromkeys(alike, value)
    return changes


def list_pool(recording, object_id):
    """Return the objects of a walk that any table names."""
    pool = {OBJECT_ID} & set(recording.oids)
    for path in sorted(PDUS.glob("*.toml")):
        for part in path.read_text().replace("{id}", object_id or "1.3").split('"')[1::2]:
            if part.startswith("1.3.6.1."):
                first, end = recording.find_range(part)
                pool |= (
                    set(recording.oids[first:end]) if end - first < 1_000 else set(recording.oids[first : first + 200])
                )
    return sorted(pool)


@pytest.mark.parametrize("rounds", [20, pytest.param(10_000, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("name", list_walks() or ["none"])
def test_changed_devices_are_read_right_refused_or_a_gap(name, rounds):
    if name == "none":
        pytest.skip(f"no recorded walks: {WALKS} is not here")
    recording, rng = load_walk(name), random.Random(7)
    found = recording.objects.get(OBJECT_ID)
    object_id = found.oid if isinstance(found, Name) else ""
    pool, base = list_pool(recording, object_id), Replay(recording)
    modes = [mode for mode in ({}, {"outlets": list_outlets(base)}) if mode.get("outlets", True)]
    opened = [open_device(base, mode) for mode in modes]
    before = [read_plan(base, *plan) if plan else {} for plan in opened]
    numbers = refused = 0
    for _ in range(rounds):
        replay, way = Replay(recording, change_walk(rng, recording, pool)), rng.randrange(len(modes))
        if opened[way] and rng.random() < 0.3:  # it changes while it is read
            numbers += check_streams(read_plan(replay, *opened[way]), base._read, replay._read, object_id)
            continue
        plan = open_device(replay, modes[way])
        if plan is None:
            refused += 1
            continue
        after = read_plan(replay, *plan)
        changed = replay._read(OBJECT_ID)
        numbers += check_streams(after, replay._read, replay._read, changed.oid if isinstance(changed, Name) else "")
        told = [note for row in before[way].values() for note in row["notes"] if "it is read by" in note]
        notes = " ".join(note for row in after.values() for note in row["notes"])
        check_sources(before[way], after, replay, object_id, " ".join((*told, notes)))
    assert numbers or not any(opened)
    print(f"{name}: {rounds} changed devices, {refused} refused, {numbers} numbers checked")


def open_device(replay, mode):
    """Return the table and the plan of a device, None where it is refused."""
    try:
        return plan_session(replay, **mode)
    except JoulelabError:
        return None


def list_outlets(replay):
    """Return the first outlets of a device that are metered."""
    try:
        level = find_table(replay, read_identity(replay), None, "outlet").levels.get("outlet")
    except JoulelabError:
        return []
    every = [row.index for row in list_rows(replay, level)] if level else []
    return [index for index in every if open_device(replay, {"outlets": [index], "phases": False})][:3]
