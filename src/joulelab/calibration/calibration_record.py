"""Fit the steps of a run and make the document of a calibration, which runs store and use."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.calibration_fit import FitRefusal, SupplyPrior, fit_calibration
from joulelab.calibration.recorded_steps import read_steps
from joulelab.core.errors import ConfigError, Refused
from joulelab.core.version import __version__
from joulelab.report.messages.catalogue import find_message
from joulelab.report.messages.wording import fill_text
from joulelab.store.calibration_files import SCHEMA, TWIN_VARIABLE, compute_digest

if TYPE_CHECKING:
    from joulelab.analysis.calibration_fit import CalibrationFit
    from joulelab.analysis.channels import EnergyChannel
    from joulelab.calibration.recorded_steps import FitOptions, RecordedSteps
    from joulelab.store.run_reader import Run

# Lowest efficiencies at half load of the classes of 80 PLUS (230 V, redundant). How much better a supply of a class may
# be, and how much lower its efficiency is at 20 and 100 % load, is our assumption.
CLASSES = {"bronze": 0.85, "silver": 0.89, "gold": 0.92, "platinum": 0.94, "titanium": 0.96}
BETTER = 0.012
LOW_DROP, FULL_DROP = (0.0125, 0.0075), (0.018, 0.010)
REPORTED_HALF = 0.003  # of efficiencies from a test report, for another voltage and temperature
UNKNOWN_SUPPLY = (0.94, 0.04), (0.02, 0.02), (0.025, 0.025)
UNKNOWN_LOAD = 0.6  # of the rated power at the highest power that was seen
SUPPLY_FORM = "titanium:12000 (class and rated W of all supplies) or 94.5,96.2,94.8:12000 (percent at 20, 50, 100 %)"


@dataclass(frozen=True)
class FittedRun:
    """Hold a fit with the steps that it is from, and its document."""

    fit: CalibrationFit
    recorded: RecordedSteps
    record: dict[str, Any]


def parse_supply(text: str) -> SupplyPrior:
    """Read the supplies of a node: `titanium:12000` or `94.5,96.2,94.8:12000`. Raises ConfigError."""
    name, _, rated = text.partition(":")
    found = re.fullmatch(r"(\d+(?:\.\d*)?) ?W?", rated.strip())
    if found is not None and float(found[1]) > 0:
        rated_w, least = float(found[1]), CLASSES.get(name.strip().lower())
        if least is not None:
            return SupplyPrior(rated_w, (least + BETTER / 2, BETTER / 2), LOW_DROP, FULL_DROP)
        parts = re.fullmatch(r"(\d+(?:\.\d*)?),(\d+(?:\.\d*)?),(\d+(?:\.\d*)?)", name.strip())
        shares = [float(part) / 100 for part in parts.groups()] if parts else []
        if shares and all(0.5 < share < 1 for share in shares):
            low, middle, full = shares
            half = REPORTED_HALF
            return SupplyPrior(rated_w, (middle, half), (middle - low, half), (middle - full, half))
    raise ConfigError(
        f"{text!r} does not describe power supplies", where="--supply", next=f"give {SUPPLY_FORM}", code="config.supply"
    )


def guess_supply(highest_w: float) -> SupplyPrior:
    """Return supplies of which nothing is known but the highest power (W) at the wall that they gave."""
    return SupplyPrior(highest_w / UNKNOWN_LOAD, *UNKNOWN_SUPPLY)


def fit_run(run: Run, options: FitOptions) -> FittedRun:
    """Fit the steps of a run. Raises ConfigError, Refused with the code of the refusal."""
    recorded = read_steps(run, options)
    found = fit_calibration(
        recorded.steps, recorded.devices, recorded.reference, recorded.beside, accept_far=options.accept_far
    )
    if isinstance(found, FitRefusal):
        raise word_refusal(found)
    return FittedRun(found, recorded, make_record(run, options, found, recorded))


def word_refusal(refusal: FitRefusal) -> Refused:
    """Return a refusal as an error, in the words of the catalogue."""
    message = find_message("calibration", refusal.code)
    assert message is not None, refusal.code
    values: dict[str, Any] = {"scope": refusal.scope, **refusal.numbers}
    what, then = (fill_text(part, values) for part in (message.text, message.next))
    return Refused(what, where="calibrate", next=then, code=f"refused.{refusal.code}")


def name_source(number: str, reference: EnergyChannel) -> str:
    """Return the name of an error that calibrations have in common by the same reference or the same node.

    `number` is one of the fit, empty for an error of this calibration alone.
    """
    if not number:
        return ""
    if number.startswith("reference/"):
        meter = reference.stream.device or f"{reference.meter}@{reference.host}"
        return f"calibration-reference/{meter}/{number.removeprefix('reference/')}"
    return f"calibration-node/{reference.host}/{number}"


def make_record(run: Run, options: FitOptions, fit: CalibrationFit, recorded: RecordedSteps) -> dict[str, Any]:
    """Return the document of a calibration: plain data, the same for every host and version."""
    utc_s = int((run.meta.get("started") or {}).get("utc_ns", 0)) * 1e-9
    reference = recorded.reference_channel
    model = f" ({reference.stream.model})" if reference.stream.model else ""
    sources = [name_source(name, reference) for name in fit.sources]
    devices = []
    for number, (one, channel) in enumerate(zip(fit.devices, recorded.channels, strict=True)):
        rows = fit.factors[2 * number : 2 * number + 2]
        devices.append(
            {
                "scope": one.scope,
                "meter": channel.meter,
                "channel": channel.spec.name,
                "device": channel.stream.device,
                "model": channel.stream.model,
                "driver": recorded.drivers.get(channel.stream.device, ""),
                "gain": one.gain,
                "offset_w": one.offset_w,
                "gain_u": one.gain_u,
                "offset_u_w": one.offset_u_w,
                "own_u_w": one.own_u_w,
                "low_w": one.low_w,
                "high_w": one.high_w,
                "cold_c": one.cold_c if math.isfinite(one.cold_c) else None,
                "hot_c": one.hot_c if math.isfinite(one.hot_c) else None,
                "bend_w": one.bend_half_w,
                "heat_per_k": abs(one.heat_per_k) + 2 * one.heat_u,
                "factors": [[float(g), float(o)] for g, o in rows.T],
                "sources": sources,
            }
        )
    accuracy = reference.spec.accuracy
    twin = (run.meta.get("environment") or {}).get(TWIN_VARIABLE)
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "id": run.path.name,
        "utc_s": utc_s,
        "host": reference.host,
        "run": run.path.name,
        "joulelab": __version__,
        "is_simulated": bool(twin or run.meta.get("twin")),
        "twin": twin,
        "reference": {
            "text": f"{reference.meter}{model}",
            "meter": reference.meter,
            "device": reference.stream.device,
            "scope": reference.stream.scope,
            "gain": accuracy.gain,
            "offset_w": recorded.reference.offset_w,
            "accuracy": accuracy.reference,
        },
        "assumed": {
            "supply": None if recorded.reference.supply is None else asdict(recorded.reference.supply),
            "fans": recorded.reference.fans,
            "zero": None if options.zero is None else options.zero.path.name,
        },
        "slope": [fit.slope, fit.slope_u],
        "steps": recorded.count,
        "devices": devices,
    }
    return {**record, "digest": compute_digest(record)}
