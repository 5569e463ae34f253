"""Show calibrations: the result of a fit, its budget and residuals, the comparison of `--check`, and the list."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.calibration_fit import find_far_value
from joulelab.analysis.calibrations import FRESH_YEARS, MOST_YEARS, YEAR_S
from joulelab.core.quantity import COVERAGE_FACTOR, Quantity
from joulelab.report import format as fmt
from joulelab.report.tables import Column, make_table
from joulelab.report.terminal import BLANK_LINE, TextLine, list_facts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.analysis.calibration_fit import DeviceFit
    from joulelab.calibration.calibration_record import FittedRun
    from joulelab.report.tables import Table
    from joulelab.report.terminal import TextBlock

MOST_BENT = 0.01  # of the highest power: a sensor further from a straight line gets a note
MOST_HEAT = 0.0005  # per K, the same for a drift with temperature
SETUP_U = 0.001  # relative, standard: what reference, supplies and losses change by from one day to another
LARGE_PART = 0.5  # of the interval: a part that large is named with its remedy
REMEDIES = {
    "supply": "name the supplies, or the efficiencies of their test report: --supply 94.5,96.2,94.8:12000",
    "offset": "record a run of the idle node without these devices, and give it: --zero RUN",
    "rest of the node": "set the fans to a fixed speed and give --fixed-fans",
    "readings": "take longer steps and more of them: --step 60s --repeat 5",
    "reference": "take a better reference, or a smaller range of it",
    "sensor": "take more steps: --repeat 5",
}


def lay_out_fit(fitted: FittedRun, path: Path | None, run: Path) -> list[TextBlock]:
    """Return the result of a calibration: the answer, one table, notes and the next command; no path: not stored."""
    fit, recorded = fitted.fit, fitted.recorded
    rows = list(zip(fit.devices, recorded.devices, strict=True))
    before = [_find_assumed(one, device.gain, device.offset_w) for one, device in rows]
    after = [one.compute_expanded(one.high_w) / one.compute_power(one.high_w) for one, _ in rows]
    scopes = fmt.join_scopes([one.scope for one, _ in rows])
    answer = f"{scopes}: ± {_percent(max(after))} at full load, where ± {_percent(max(before))} was assumed"
    left = f", {recorded.left_out} left out" if recorded.left_out else ""
    facts = [
        ("calibrated", answer),
        ("reference", f"{fitted.record['reference']['text']}, {fitted.record['reference']['scope']}"),
        ("steps", f"{recorded.count}{left}; {_word_residuals(fitted)}"),
    ]
    if recorded.reference.is_around:
        slope = Quantity(fit.slope, {"slope": fit.slope_u})
        facts.append(("slope", f"{slope} W at the reference for 1 W of a device"))
    blocks: list[TextBlock] = [list_facts(facts, label_width=10), BLANK_LINE, make_fit_table(fit.devices), BLANK_LINE]
    blocks += [list_facts(list_fit_notes(fitted), label_width=10), BLANK_LINE]
    commands = [("run", str(run)), ("file", str(path)), ("next", "joulelab calibrations   # runs use it from now on")]
    if path is None:
        commands[1:] = [("file", "nothing was stored (--dry-run)")]
    return [*blocks, *(TextLine(f"{label:<10} {text}", is_wrapped=False) for label, text in commands)]


def make_fit_table(devices: Sequence[DeviceFit]) -> Table:
    """Return gain and offset of each device, its uncertainty at the lowest and highest reading, bend and drift."""
    columns = [
        Column("", align="left"),
        Column("gain"),
        Column("offset", "W", signed=True),
        Column("U at idle", "W", digits=2),
        Column("U at full\nload, %", digits=2),
        Column("bend", "W", signed=True, is_optional=True),
        Column("drift\n%/10 K", signed=True, is_optional=True),
    ]
    rows = [
        (
            one.scope,
            Quantity(one.gain, {"gain": one.gain_u}),
            Quantity(one.offset_w, {"offset": one.offset_u_w}),
            one.compute_expanded(one.low_w),
            100 * one.compute_expanded(one.high_w) / one.compute_power(one.high_w),
            Quantity(one.bend_w, {"bend": one.bend_u_w}),
            Quantity(1000 * one.heat_per_k, {"heat": 1000 * one.heat_u}),
        )
        for one in devices
    ]
    return make_table(columns, rows)


def list_fit_notes(fitted: FittedRun) -> list[tuple[str, str]]:
    """Return what most of the interval is, with its remedy; sensors that are not straight or drift; simulated ones."""
    devices = fitted.fit.devices
    widest = max(devices, key=lambda one: one.compute_expanded(one.high_w) / one.high_w)
    parts = ", ".join(f"{part} {_percent(u)}" for part, u in widest.budget.items() if u >= 0.0005)
    notes = [("parts", f"of U of {widest.scope} at full load: {parts}")]
    first = next(iter(widest.budget))
    if widest.budget[first] ** 2 >= LARGE_PART * sum(u * u for u in widest.budget.values()):
        notes.append(("note", f"most of it is from the {first}\nTo narrow it, {REMEDIES[first]}"))
    far = [
        one.scope
        for one, device in zip(devices, fitted.recorded.devices, strict=True)
        if (value := find_far_value(one, device)) is not None and value.code == "far-gain"
    ]
    if far:
        why = "boards of this kind are not expected so far off; something else in the node may follow the load"
        notes.append(("warning", f"{fmt.join_scopes(far)}: {why}\nCheck that the fans are fixed and nothing else runs"))
    bent = [one.scope for one in devices if abs(one.bend_w) > MOST_BENT * one.high_w + COVERAGE_FACTOR * one.bend_u_w]
    if bent:
        notes.append(("note", f"{fmt.join_scopes(bent)}: the sensor is not straight; this is part of the interval"))
    hot = [one.scope for one in devices if abs(one.heat_per_k) > MOST_HEAT + COVERAGE_FACTOR * one.heat_u]
    if hot:
        notes.append(("note", f"{fmt.join_scopes(hot)}: the gain changes with temperature; use it near the same one"))
    if fitted.record["is_simulated"]:
        notes.append(("note", "simulated: only runs on this same twin use it"))
    return notes


def _word_residuals(fitted: FittedRun) -> str:
    residual = fitted.fit.residual_w
    rms, worst = float(np.sqrt(np.mean(residual**2))), float(np.abs(residual).max())
    return f"residuals {fmt.format_number(rms, 2)} W rms, {fmt.format_number(worst, 2)} W at most"


def _find_assumed(one: DeviceFit, gain: float, offset_w: float) -> float:
    return COVERAGE_FACTOR / math.sqrt(3) * math.hypot(gain, offset_w / one.high_w)


def _percent(share: float) -> str:
    return f"{fmt.format_number(100 * share, 2)} %"


@dataclass(frozen=True, slots=True)
class CheckedDevice:
    """Hold the comparison of a calibration with a new, short one at full load: powers (W) for the same reading.

    `apart_u_w` is the standard uncertainty of their difference. With the same reference and node the errors of both are
    the same and cancel; what remains is the scatter of readings and the shape of the sensor.
    """

    scope: str
    date: str
    reading_w: float
    before: Quantity
    now: Quantity
    apart_u_w: float

    @property
    def difference(self) -> Quantity:
        """Return by how much the power is now more."""
        return Quantity(self.now.value - self.before.value, {"difference": self.apart_u_w})

    @property
    def verdict(self) -> str:
        """Return `agrees`, or `differs` if the difference is larger than its uncertainty."""
        return "agrees" if abs(self.difference.value) <= COVERAGE_FACTOR * self.apart_u_w else "differs"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        powers = {"before": self.before, "now": self.now, "difference": self.difference}
        found = {name: power.to_json() for name, power in powers.items()}
        return {"scope": self.scope, "date": self.date, "reading_w": self.reading_w, **found, "verdict": self.verdict}


def compare_fit(fitted: FittedRun, records: Sequence[dict[str, Any]]) -> list[CheckedDevice]:
    """Compare a short fit with the newest stored calibration of each device; devices without one are left out."""
    found = []
    for one, new in zip(fitted.fit.devices, fitted.record["devices"], strict=True):
        stored = [
            (float(record["utc_s"]), record, row)
            for record in records
            for row in record["devices"]
            if (row["meter"], row["device"]) == (new["meter"], new["device"])
        ]
        if not stored:
            continue
        utc_s, record, row = max(stored, key=lambda entry: entry[0])
        reading_w = min(one.high_w, float(row["high_w"]))
        u = math.hypot(*(gain * reading_w + offset_w for gain, offset_w in row["factors"]))
        before = Quantity(row["gain"] * reading_w + row["offset_w"], {"calibration": u})
        now = Quantity(one.compute_power(reading_w), {"check": one.compute_expanded(reading_w) / COVERAGE_FACTOR})
        apart_u_w = math.hypot(before.u, now.u)
        if "own_u_w" in row and _is_same_basis(record, fitted.record):
            apart_u_w = math.hypot(float(row["own_u_w"]), one.own_u_w, SETUP_U * reading_w)
        found.append(CheckedDevice(one.scope, _name_day(utc_s), reading_w, before, now, apart_u_w))
    return found


def _is_same_basis(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two calibrations have their reference and what is assumed of the node in common."""
    keys = ("meter", "device", "scope")
    bases = [[[r["reference"].get(key) for key in keys], r.get("assumed")] for r in (one, other)]
    return json.dumps(bases[0], sort_keys=True) == json.dumps(bases[1], sort_keys=True)


def lay_out_check(rows: Sequence[CheckedDevice]) -> list[TextBlock]:
    """Return the answer of a check and its table."""
    wrong = [row.scope for row in rows if row.verdict == "differs"]
    if wrong:
        answer = f"{fmt.join_scopes(wrong)}: the calibration does not hold any more"
    else:
        answer = f"the calibration of {fmt.join_scopes([row.scope for row in rows])} holds"
    columns = [
        Column("", align="left"),
        Column("calibrated", align="left"),
        Column("reading", "W"),
        Column("then", "W"),
        Column("now", "W"),
        Column("difference", "W", signed=True),
        Column("", align="left"),
    ]
    table = make_table(
        columns, [(r.scope, r.date, r.reading_w, r.before, r.now, r.difference, r.verdict) for r in rows]
    )
    blocks: list[TextBlock] = [list_facts([("check", answer)], label_width=10), BLANK_LINE, table]
    if wrong:
        blocks += [BLANK_LINE, TextLine("-> joulelab calibrate --reference METER", is_wrapped=False)]
    return blocks


def lay_out_calibrations(found: Sequence[tuple[Path, dict[str, Any]]], now_s: float) -> list[TextBlock]:
    """Return the list of calibrations: devices, date, reference, uncertainty, range, state."""
    if not found:
        none = TextLine("No calibration is stored for this machine.")
        return [none, TextLine("-> joulelab calibrate --reference METER", is_wrapped=False)]
    newest: dict[tuple[str, str], float] = {}
    for _, record in found:
        for row in record["devices"]:
            key = (row["meter"], row["device"] or row["scope"])
            newest[key] = max(newest.get(key, 0.0), float(record["utc_s"]))
    columns = [
        Column("device", align="left"),
        Column("date", align="left"),
        Column("reference", align="left"),
        Column("U, %"),
        Column("up to", "W", digits=3),
        Column("degC", align="left", is_optional=True),
        Column("state", align="left"),
    ]
    rows = []
    for _, record in found:
        for row in record["devices"]:
            u = COVERAGE_FACTOR * math.hypot(
                *(g * row["high_w"] + o for g, o in row["factors"]), row["bend_w"] / 3**0.5
            )
            power = row["gain"] * row["high_w"] + row["offset_w"]
            key = (row["meter"], row["device"] or row["scope"])
            state = _name_state(now_s, float(record["utc_s"]), is_newest=float(record["utc_s"]) == newest[key])
            state = "simulated" if record.get("is_simulated") else state
            heat = "" if row["cold_c"] is None else f"{row['cold_c']:.0f} to {row['hot_c']:.0f}"
            figures = (fmt.format_number(100 * u / power, 2), row["high_w"])
            rows.append((row["scope"], _name_day(record["utc_s"]), record["reference"]["meter"], *figures, heat, state))
    files = [TextLine(f"file       {path}", is_wrapped=False) for path, _ in found]
    return [make_table(columns, rows), BLANK_LINE, *files]


def _name_state(now_s: float, utc_s: float, *, is_newest: bool) -> str:
    years = (now_s - utc_s) / YEAR_S
    if not is_newest:
        return "replaced"
    if years > MOST_YEARS:
        return "too old"
    return "used, wider: old" if years > FRESH_YEARS else "used"


def _name_day(utc_s: float) -> str:
    return dt.datetime.fromtimestamp(float(utc_s), dt.UTC).date().isoformat()
