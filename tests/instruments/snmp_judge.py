"""Judge the SNMP meter by walks of real devices beside it: `python -m tests.instruments.snmp_judge` prints the table.

Each walk is replayed in process and read as a whole and by all its outlets. What another monitoring system reads from
the same walk is compared by object: same value, another value with its reason, or not read by us.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.instruments.snmp_replay import Recording, Replay, parse_walk, read_session

from joulelab.core.errors import JoulelabError
from joulelab.instruments.snmp.device import find_table, list_rows, read_identity

WALKS = Path(__file__).parents[3] / "shared" / "data" / "devices" / "snmp"
# Our channels by the other system's classes, with the number of its units in one of ours.
CLASSES = {
    "power_w": ("power", 1.0),
    "apparent_va": ("power", 1.0),
    "energy_j": ("power_consumed", 1 / 3.6e6),
    "current_a": ("current", 1.0),
    "voltage_v": ("voltage", 1.0),
    "frequency_hz": ("frequency", 1.0),
    "power_factor": ("power_factor", 1.0),
    "load": ("load", 100.0),
}


@dataclass
class Verdict:
    """Hold what became of one device."""

    device: str
    table: str = ""
    refused: str = ""
    powers: list[float] = field(default_factory=list)
    outlets: int = 0
    equal: int = 0
    different: list[str] = field(default_factory=list)
    known: int = 0
    messages: list[str] = field(default_factory=list)


def list_walks() -> list[str]:
    """Return the names of the recorded devices, none where they are not here."""
    return sorted(path.stem for path in WALKS.glob("*.snmprec"))


def load_walk(name: str) -> Recording:
    """Return the objects of a recorded device."""
    return Recording(parse_walk((WALKS / f"{name}.snmprec").read_text("utf-8", "replace")))


def load_expected(name: str) -> dict[str, dict[str, Any]]:
    """Return what the other system reads of power and energy, by object."""
    listed = json.loads((WALKS / f"{name}.expected.json").read_text("utf-8"))
    classes = {name for name, _ in CLASSES.values()}
    return {row["sensor_oid"].lstrip("."): row for row in listed if row["sensor_class"] in classes}


def judge_device(name: str) -> Verdict:
    """Read a recorded device as a whole and by outlets, and compare every value with the other system's."""
    recording, verdict = load_walk(name), Verdict(name)
    expected = load_expected(name)
    verdict.known = len(expected)
    read: dict[str, tuple[str, float | str]] = {}
    try:
        source = find_table(Replay(recording), read_identity(Replay(recording)), None, "unit")
        verdict.table = source.vendor
        for row in _read(recording, verdict).values():
            if row["kind"] == "power":
                verdict.powers.append(row.get("power_w", math.nan))
            read |= {oid: (channel, row[channel]) for channel, oid in row["oids"].items()}
    except JoulelabError as error:
        verdict.refused = str(error)
    read |= _read_outlets(recording, verdict)
    for oid, (channel, value) in read.items():
        if oid in expected:
            _compare(verdict, channel, value, expected[oid])
    return verdict


def _read(recording: Recording, verdict: Verdict, **config: Any) -> dict[str, dict[str, Any]]:
    streams = read_session(Replay(recording), **config)
    for row in streams.values():
        verdict.messages += [note for note in row.get("notes", ()) if note not in verdict.messages]
    return streams


def _read_outlets(recording: Recording, verdict: Verdict) -> dict[str, tuple[str, float | str]]:
    """Read each outlet on its own: one that is not metered is no reason to leave out the others."""
    session = Replay(recording)
    read: dict[str, tuple[str, float | str]] = {}
    try:
        source = find_table(session, read_identity(session), None, "outlet")
        level = source.levels.get("outlet")
        offered = list_rows(session, level) if level else []
    except JoulelabError:
        return read
    for row in offered:
        try:
            streams = read_session(session, outlets=[row.index], phases=False)
        except JoulelabError:
            continue
        verdict.outlets += 1
        for stream in streams.values():
            read |= {oid: (channel, stream[channel]) for channel, oid in stream["oids"].items()}
    return read


def _compare(verdict: Verdict, channel: str, value: float | str, other: dict[str, Any]) -> None:
    kind, factor = CLASSES.get(channel, ("", 1.0))
    where = f"{channel} of {other['sensor_descr']}"
    theirs = float(other["sensor_current"])
    if kind != other["sensor_class"]:
        verdict.different.append(f"{where}: they call it {other['sensor_class']}")
    elif isinstance(value, str):
        verdict.different.append(f"{where}: a gap, they read {theirs:g} ({value})")
    elif channel == "apparent_va":
        verdict.different.append(f"{where}: they call VA power ({theirs:g})")
    elif math.isclose(value * factor, theirs, rel_tol=1e-6, abs_tol=1e-6):
        verdict.equal += 1
    else:
        verdict.different.append(f"{where}: {value * factor:g}, they read {theirs:g}")


def print_table() -> None:
    """Print a line for each device, and what is different below it."""
    verdicts = [judge_device(name) for name in list_walks()]
    for verdict in verdicts:
        watts = " + ".join("energy alone" if math.isnan(watts) else f"{watts:g} W" for watts in verdict.powers)
        read = watts or ("refused" if verdict.table else "not recognised")
        unread = verdict.known - verdict.equal - len(verdict.different)
        count = (
            f"{verdict.equal} equal, {len(verdict.different)} different, {unread} not read; {verdict.outlets} outlets"
        )
        print(f"{verdict.device:34} {verdict.table:16} {read:24} {count}")
        for line in [*verdict.different[:4], *filter(None, [verdict.refused]), *verdict.messages]:
            print(f"    {line}")
        if len(verdict.different) > 4:
            print(f"    and {len(verdict.different) - 4} more")
    known = sum(bool(v.table) for v in verdicts)
    print(f"{known} of {len(verdicts)} recognised, {sum(bool(v.powers) for v in verdicts)} read")


if __name__ == "__main__":
    print_table()
