"""Use calibrations in an analysis: measured gain and offset replace the assumed errors of a meter.

Every calibration is one set of error sources, shared by all runs that use it: they cancel in ratios of runs on the same
devices, and add where the devices of one calibration are added. Errors of the reference and of the node on which it was
made are also those of other calibrations with them. The rule of use is in `judge_use`.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.result import Check
from joulelab.core.scope import find_family
from joulelab.core.spec import Accuracy
from joulelab.store.calibration_files import EVENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from joulelab.analysis.checks import RunEvidence
    from joulelab.analysis.readings import Floats, Readings
    from joulelab.core.spec import Spec, Stream

YEAR_S = 365.25 * 86400
# The rule of use; `docs/how-to/calibrate.md` has it as a table. Widths are relative, largest errors.
FRESH_YEARS, MOST_YEARS = 1.0, 3.0
WIDER_PER_YEAR = 0.005  # after the first
OTHER_DRIVER = 0.01
NEAR_K, MOST_BEYOND_K = 5.0, 30.0  # beyond the temperatures of the calibration
LEAST_HEAT = 0.0002  # change of the gain per K that is allowed for at least
NEAR_LOAD, OTHER_LOAD = 1.1, 0.01  # times the highest reading of the calibration; width above
MOST_LOAD = 1.5  # times that reading above which the line of a calibration says nothing
LOAD_BANDS = 4  # of the range of a calibration: within one the error of a bent sensor is the same
LEAST_GAIN, MOST_GAIN = 0.5, 2.0  # a file with another gain is damaged
LEAST_U = 1e-4  # relative standard uncertainty at full load: no reference is better, so a file with less is damaged


@dataclass(frozen=True, slots=True)
class DeviceCalibration:
    """Hold the calibration of one device: its true power is `gain` x reading + `offset_w`.

    `factors` are independent errors of gain and offset (W) by number; all devices of one calibration share them. Those
    with a name in `sources` are also shared by other calibrations with the same reference or node.
    `bend_w` is the largest distance from a straight line, `heat_per_k` the largest relative change per K.
    """

    identity: str
    utc_s: float
    reference: str
    meter: str
    scope: str
    device: str
    model: str
    driver: str
    gain: float
    offset_w: float
    low_w: float
    high_w: float
    cold_c: float
    hot_c: float
    bend_w: float
    heat_per_k: float
    factors: tuple[tuple[float, float], ...]
    calibrated_on: str = ""
    sources: tuple[str, ...] = ()
    channel: str = ""

    @property
    def date(self) -> str:
        """Return the day of the calibration (UTC): `2026-11-18`."""
        return dt.datetime.fromtimestamp(self.utc_s, dt.UTC).date().isoformat()

    def select_channels(self, specs: Sequence[Spec]) -> list[Spec]:
        """Return the channels of a stream that have the gain that was fitted: those of the same sensor.

        A meter states by `shared` that its channels err by the same factor: the counter and the powers of NVML, whose
        values are of one sensor in every generation that was measured. Another channel keeps its assumed error.
        """
        fitted = next((spec for spec in specs if spec.name == self.channel), None)
        if fitted is None:
            return list(specs)
        shared = fitted.accuracy.shared
        return [spec for spec in specs if spec is fitted or (shared and spec.accuracy.shared == shared)]

    def fits_stream(self, host: str, meter: str, stream: Stream) -> bool:
        """Return whether it is the calibration of a stream: a GPU by its UUID, other devices by their scope as well.

        A device without UUID or serial is the same only on the host on which it was calibrated.
        """
        same = self.meter == meter and self.device == stream.device
        same = same and (bool(self.device) or host == self.calibrated_on)
        return same and (self.scope == stream.scope or (bool(self.device) and find_family(stream.scope) == "gpu"))


@dataclass(frozen=True, slots=True)
class CalibratedAccuracy(Accuracy):
    """State the accuracy of a calibrated channel: independent errors (source, relative, W) instead of largest ones.

    `gain` is the largest error that they amount to at the highest power of the calibration, for those who need one
    number. `missing_w` is the power that the values of a counter lack. `doubts` are codes and numbers by `judge_use`.
    A true power is `scale` times what the device itself reads, plus `shift_w`. `bend` is the error (source, standard
    uncertainty in W) of a sensor that is not straight over `range_w`: it is the same at the same load only.
    """

    factors: tuple[tuple[str, float, float], ...] = ()
    missing_w: float = 0.0
    date: str = ""
    scale: float = 1.0
    shift_w: float = 0.0
    bend: tuple[str, float] = ("", 0.0)
    range_w: tuple[float, float] = (0.0, 1.0)
    doubts: tuple[tuple[str, Mapping[str, float]], ...] = ()


@dataclass(frozen=True, slots=True)
class CalibrationUse:
    """Hold whether a calibration is used in a run, the relative width that is added, and the reasons as codes.

    `reason` names the source of the width: runs share it only if their reasons are the same.
    """

    is_used: bool
    wider: float = 0.0
    reason: str = ""
    doubts: tuple[tuple[str, Mapping[str, float]], ...] = ()


def read_calibrations(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, DeviceCalibration]]:
    """Return the calibrations that a run stored, by host, the newest first; rows with unusable values are left out."""
    found = [(host, one) for host, one in _read_rows(events) if one is not None]
    return sorted(found, key=lambda pair: -pair[1].utc_s)


def _read_rows(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, DeviceCalibration | None]]:
    """Yield host and calibration of each stored row, None if it has unusable values."""
    for event in (e for e in events if e.get("event") == EVENT):
        rows = event.get("devices")
        for row in rows if isinstance(rows, list) else [rows]:
            yield str(event.get("host", "")), _read_device(event, row)


def replace_calibrations(events: Iterable[dict[str, Any]], instead: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return events with another calibration in place of those that a run stored; None leaves them."""
    if instead is None:
        return list(events)
    others = [event for event in events if event.get("event") != EVENT]
    return (
        [*others, {**instead, "t": 0, "event": EVENT, "host": "", "calibrated_on": instead.get("host", "")}]
        if instead
        else others
    )


def _read_device(event: Mapping[str, Any], row: Any) -> DeviceCalibration | None:
    try:
        texts: dict[str, Any] = {key: str(row[key]) for key in ("meter", "scope", "device", "model", "driver")}
        numbers: dict[str, Any] = {
            key: float(row[key]) for key in ("gain", "offset_w", "low_w", "high_w", "bend_w", "heat_per_k")
        }
        range_c: dict[str, Any] = {
            key: math.nan if row.get(key) is None else float(row[key]) for key in ("cold_c", "hot_c")
        }
        factors = tuple((float(gain), float(offset)) for gain, offset in row["factors"])
        sources = tuple(map(str, row.get("sources") or [""] * len(factors)))  # older files have none
        named = [source for source in sources if source]
        if len(sources) != len(factors) or len(set(named)) != len(named):
            return None
        name = event["reference"]["text"]
        place = event.get("calibrated_on", event.get("host", ""))
        identity = f"{event['id']}.{_hash_devices(event['devices'])}"
        found = DeviceCalibration(
            identity,
            float(event["utc_s"]),
            str(name),
            **texts,
            **numbers,
            **range_c,
            factors=factors,
            calibrated_on=str(place),
            sources=sources,
            channel=str(row.get("channel") or ""),
        )
        found.date  # noqa: B018 a time that is no date is refused here
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, OSError):
        return None
    values = (found.utc_s, *numbers.values(), *(u for pair in factors for u in pair))
    if not all(map(math.isfinite, values)) or not LEAST_GAIN <= found.gain <= MOST_GAIN:
        return None
    is_ordered = 0 <= found.low_w < found.high_w and found.bend_w >= 0 and found.heat_per_k >= 0
    u_w = math.hypot(*(gain * found.high_w + offset for gain, offset in factors))
    return found if is_ordered and u_w >= LEAST_U * found.high_w else None


def _hash_devices(rows: Any) -> str:
    """Return a short digest: a second fit of one staircase has other errors, which do not cancel with the first's."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:8]


def judge_use(
    one: DeviceCalibration, *, utc_s: float | None, model: str, driver: str, celsius: float | None, high_w: float | None
) -> CalibrationUse:
    """Return whether a calibration is used in a run at a time, on a device in some state; the one rule of use.

    `celsius` is the mean temperature in the run, `high_w` a high reading of power; unknown values are not compared.
    """
    if model and one.model and model != one.model:
        return CalibrationUse(is_used=False)
    wider: list[float] = []
    reasons: list[str] = []
    doubts: list[tuple[str, Mapping[str, float]]] = []
    years = 0.0 if utc_s is None else abs(utc_s - one.utc_s) / YEAR_S
    if years > MOST_YEARS:
        return CalibrationUse(is_used=False)
    if years > FRESH_YEARS:
        wider.append(WIDER_PER_YEAR * (years - FRESH_YEARS))
        reasons.append("old")
        doubts.append(("calibration.old", {"years": years}))
    if driver and one.driver and driver != one.driver:
        wider.append(OTHER_DRIVER)
        reasons.append(f"driver {driver}")
        doubts.append(("calibration.driver", {}))
    if celsius is not None and math.isfinite(one.cold_c + one.hot_c):
        beyond = max(one.cold_c - NEAR_K - celsius, celsius - one.hot_c - NEAR_K, 0.0)
        if beyond > MOST_BEYOND_K:
            return CalibrationUse(is_used=False)
        if beyond > 0:
            wider.append(max(one.heat_per_k, LEAST_HEAT) * beyond)
            reasons.append("hot" if celsius > one.hot_c else "cold")
            doubts.append(("calibration.temperature", {"celsius": celsius, "cold_c": one.cold_c, "hot_c": one.hot_c}))
    if high_w is not None and high_w > MOST_LOAD * one.high_w:
        return CalibrationUse(is_used=False)
    if high_w is not None and high_w > NEAR_LOAD * one.high_w:
        wider.append(OTHER_LOAD)
        reasons.append("load")
        doubts.append(("calibration.load", {"high_w": high_w, "seen_w": one.high_w}))
    return CalibrationUse(is_used=True, wider=math.hypot(*wider), reason="+".join(reasons), doubts=tuple(doubts))


@dataclass(frozen=True)
class RunCalibrations:
    """Find the calibration of each stream of a run; the newest that may be used counts."""

    stored: Sequence[tuple[str, DeviceCalibration]] = ()
    utc_s: float | None = None
    drivers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_events(cls, events: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]) -> RunCalibrations:
        """Take the calibrations that a run stored; one without a host is for all hosts."""
        stored = read_calibrations(events)
        if not stored:
            return cls()
        started = (meta.get("started") or {}).get("utc_ns")
        return cls(stored, None if started is None else int(started) * 1e-9, read_drivers(events))

    def list_fitting(self, host: str, meter: str, stream: Stream) -> list[DeviceCalibration]:
        """List the calibrations of a stream, the newest first."""
        return [one for at, one in self.stored if at in ("", host) and one.fits_stream(host, meter, stream)]

    def find_use(
        self, host: str, meter: str, stream: Stream, state: Mapping[str, Readings], high_w: float | None
    ) -> tuple[DeviceCalibration, CalibrationUse] | None:
        """Return the calibration of a stream and how it is used, None without one that may be used."""
        fitting = self.list_fitting(host, meter, stream)
        if not fitting:
            return None
        heat = state.get("temperature_c")
        celsius = float(heat.value.mean()) if heat is not None and len(heat) else None
        for one in fitting:
            use = judge_use(
                one,
                utc_s=self.utc_s,
                model=stream.model,
                driver=self.drivers.get(stream.device, ""),
                celsius=celsius,
                high_w=high_w,
            )
            if use.is_used:
                return one, use
        return None


def read_drivers(events: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the version of the driver of each GPU by UUID, as far as a run stored it."""
    found: dict[str, str] = {}
    for event in (e for e in events if e.get("event") == "devices"):
        for gpu in event.get("gpus") or ():
            found[str(gpu.get("uuid", ""))] = str(gpu.get("driver") or "")
    return found


def calibrate_channel(spec: Spec, value: Floats, one: DeviceCalibration, use: CalibrationUse) -> tuple[Spec, Floats]:
    """Return a channel with its accuracy, and its values (W or J), after a calibration.

    The offset of a counter is not in its values, which would no longer be steps, but in `missing_w`.
    """
    is_counter = spec.kind == "counter"
    name = f"calibrated/{one.identity}"
    # By value and time of an energy: E = gain x (energy of the readings) + offset x time.
    pairs = [(g / one.gain, o - one.offset_w * g / one.gain) for g, o in one.factors]
    names = [f"gain:{shared or f'{name}/{k}'}" for k, shared in enumerate(one.sources)]
    factors = [(source, gain, offset) for source, (gain, offset) in zip(names, pairs, strict=True)]
    own = f"{one.meter}/{one.device or one.scope}"
    factors += [(f"gain:{name}/{own}/{use.reason}", use.wider / math.sqrt(3), 0.0)] if use.wider else []
    bend_u_w = one.bend_w / math.sqrt(3)
    low_w, high_w = (max(one.gain * watts + one.offset_w, 1.0) for watts in (one.low_w, one.high_w))
    largest = math.sqrt(3) * math.hypot(*(gain + offset / high_w for _, gain, offset in factors), bend_u_w / high_w)
    accuracy = CalibratedAccuracy(
        source="calibrated",
        gain=largest,
        quantum=spec.accuracy.quantum * one.gain,
        shared=spec.accuracy.shared,
        reference=f"{one.date} against {one.reference}",
        factors=tuple(factors),
        missing_w=one.offset_w if is_counter else 0.0,
        date=one.date,
        scale=one.gain,
        shift_w=one.offset_w,
        bend=(f"offset:{name}/{own}/bend", bend_u_w),
        range_w=(low_w, max(high_w, low_w + 1.0)),
        doubts=use.doubts,
    )
    limits = spec.limits and (
        max(convert_power(accuracy, spec.limits[0]), 0.0),
        convert_power(accuracy, spec.limits[1]),
    )
    modulus = None if spec.modulus is None else spec.modulus * one.gain
    scaled = np.asarray(one.gain * value + (0.0 if is_counter else one.offset_w))
    return replace(spec, accuracy=accuracy, modulus=modulus, limits=limits), scaled


def make_level_terms(accuracy: Accuracy, name: str, joules: float, seconds: float) -> dict[str, float]:
    """Return the standard uncertainties (J) of an energy from gain and offset of its meter, by source."""
    if isinstance(accuracy, CalibratedAccuracy):
        terms = {source: joules * gain + seconds * offset_w for source, gain, offset_w in accuracy.factors}
        source, bend_u_w = accuracy.bend
        if bend_u_w and seconds > 0 and math.isfinite(joules):
            low, high = accuracy.range_w
            terms[f"{source}/{round(LOAD_BANDS * (joules / seconds - low) / (high - low))}"] = seconds * bend_u_w
        return terms
    shared = accuracy.shared or name
    return {
        f"gain:{shared}": joules * accuracy.gain / math.sqrt(3),
        f"offset:{shared}": seconds * accuracy.offset / math.sqrt(3),
    }


def convert_power(accuracy: Accuracy, watts: float) -> float:
    """Return the true power (W) for one by the device's own sensor, such as its cap: a device caps what it reads."""
    return accuracy.scale * watts + accuracy.shift_w if isinstance(accuracy, CalibratedAccuracy) else watts


def get_missing_power(spec: Spec) -> float:
    """Return the power (W) that the values of a counter lack by its calibration."""
    return spec.accuracy.missing_w if isinstance(spec.accuracy, CalibratedAccuracy) else 0.0


def check_calibrations(run: RunEvidence) -> Iterator[Check]:
    """List how calibrations are used in a run: widened, or not at all; rows with unusable values are counted."""
    unusable = sum(one is None for _, one in _read_rows(run.events))
    if unusable:
        yield Check("calibration.unusable", "note", "", {"devices": unusable})
    stored = RunCalibrations(read_calibrations(run.events))
    for scope in run.channels:
        best, place = scope.best, run.name_scope(scope)
        accuracy = best.spec.accuracy
        if isinstance(accuracy, CalibratedAccuracy):
            for code, numbers in accuracy.doubts:
                yield Check(code, "note", place, numbers, {"date": accuracy.date})
        elif fitting := stored.list_fitting(scope.host, best.meter, best.stream):
            yield Check("calibration.not-used", "note", place, {}, {"date": fitting[0].date})
