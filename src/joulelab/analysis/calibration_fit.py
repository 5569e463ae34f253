"""Fit gain and offset of meters against a reference meter, with their covariance, from the steps of a staircase.

The true power of a device is `gain` times its reading plus `offset`. A reference around several devices, and in front
of the power supplies of their node, shows

    reading = (1 + r) x supply(rest + drift + sum over devices + sum over what is measured beside them) + r0

The steps do not show every number of this model. What they cannot show has a prior: the errors r and r0 that the maker
of the reference states, the efficiency of the supplies, the share of power that the rest of the node (fans, boards)
adds when a device works, and the offset of a device that is never without power. The covariance contains all of it, so
an interval is never narrower than these priors allow. Pure: arrays in, numbers and codes out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.statistics import t_975
from joulelab.core.quantity import COVERAGE_FACTOR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from joulelab.analysis.readings import Floats, Ints

    Flags = npt.NDArray[np.bool_]

# What a fit needs.
LEAST_RANGE = 0.2  # of the highest reading of a device: range of its load
LEAST_RANGE_W = 15.0
LEAST_APART = 0.3  # share of a device's movement (standard deviation) that no combination of the others explains
FEWEST_UPDATES = 5  # updates of the reference in a step
FEWEST_FREEDOM = 4  # steps more than numbers that they determine
LEAST_FOLLOWED = 0.9  # correlation of the reference with the sum of the devices inside it
# Root mean square of the residuals, of the range of the reference: more is no noise (drawn nodes have up to 0.0007), it
# is a reference that mixes steps, or loads that change in them. Such errors are alike: a wider interval would not help.
MOST_RESIDUAL = 0.01
WORTH = 0.75  # of the assumed interval: a calibration that is not clearly narrower is not worth its steps
MOST_CHANGE = 0.25  # a gain further from 1: reference and device do not measure the same
# Priors: largest errors, taken as uniform unless noted.
EFFICIENCY_LOADS = np.array([0.2, 0.5, 1.0])  # loads at which 80 PLUS states efficiencies
# A real supply beside a parabola through its three efficiencies: its slope, and the change of its slope with its load.
CURVE_ERROR, CURVE_BEND = 0.004, 0.02
# Share of a device's power that the rest of its node adds when it works, at most, by its fans: at a fixed speed it is
# the loss of boards and cables; a speed that is read every few seconds misses a part; all fans take up to 15 %.
FOLLOW_SHARE = {"fixed": 0.01, "measured": 0.015, "unknown": 0.1}
CPU_SHARE = 0.05  # more, if no CPU is measured beside: a thread that starts the work of a GPU takes 10 to 20 W
HEAT_ERROR = 0.001  # relative change of a sensor's gain per K
BEND_ERROR = 0.02  # of the range: four times the largest distance of a sensor from a straight line
DRIFT_ERROR_W = 20.0  # of the rest of a node between the middle and the ends of a staircase
REST_ERROR_W = 1e5  # no limit: the rest of a node is not known
GAIN_ERROR = 2.0  # no limit either: what the steps are to show
LEAST_SCATTER = 0.3  # of the residuals beside the expected one: no less is believed, as errors of steps may be alike
WARM_K = 5.0  # difference from the temperatures of a staircase that its result allows for at each load
ROUNDS = 10  # of the fit, which is nearly linear
SMALL_FACTOR = 1e-6  # of the variance: error sources below it are left out
PARTS = {
    "reference": ("reference",),
    "supply": ("efficiency", "slope"),
    "rest of the node": ("drift", "beside", "follow"),
    "sensor": ("bend", "heat"),
}
SHARED = ("reference", "efficiency", "slope", "follow", "beside")  # the same in another staircase of the same node


@dataclass(frozen=True, slots=True)
class FittedDevice:
    """Describe a device whose meter is to be calibrated; `gain` and `offset_w` are its assumed largest errors."""

    scope: str
    gain: float
    offset_w: float


@dataclass(frozen=True, slots=True)
class SupplyPrior:
    """Describe the power supplies of a node: rated output (W) of all that share the load, and their efficiency.

    `efficiency` is that at 50 % load, `low_drop` and `full_drop` are by how much it is lower at 20 and at 100 % load;
    each is a middle and a largest error.
    """

    rated_w: float
    efficiency: tuple[float, float]
    low_drop: tuple[float, float]
    full_drop: tuple[float, float]


@dataclass(frozen=True, slots=True)
class ReferenceMeter:
    """Describe the reference: its largest errors, relative and in W, and the time between its updates (s).

    `is_around`: it also measures the rest of the node. `supply` are the power supplies behind it, None behind them.
    `fans` are `fixed` if their speed did not change, `measured` if it is read beside, else `unknown`.
    """

    gain: float
    offset_w: float
    update_s: float
    is_around: bool = True
    supply: SupplyPrior | None = None
    fans: str = "unknown"


@dataclass(frozen=True, slots=True)
class BesideMeter:
    """Describe what is measured beside the devices (a CPU, fans): W for one unit of its reading, and ± `half`."""

    scope: str
    watts: float = 1.0
    half: float = 0.05


@dataclass(frozen=True)
class LoadSteps:
    """Hold mean powers (W) of steps with a constant load: a row for each step, a column for each device.

    `number` is that of the step: a long step is several rows. `_u_w` are standard uncertainties from noise, resolution
    and edges, without gain and offset. `is_there` is False for a device that was removed or without power. Unknown
    temperatures (degC) are NaN.
    """

    number: Ints
    middle_s: Floats
    seconds: Floats
    reference_w: Floats
    reference_u_w: Floats
    device_w: Floats
    device_u_w: Floats
    celsius: Floats
    is_there: Flags
    beside: Floats

    def __len__(self) -> int:
        return int(self.reference_w.size)

    def count_steps(self) -> int:
        """Return the number of steps."""
        return int(np.unique(self.number).size)


@dataclass(frozen=True, slots=True)
class FitRefusal:
    """Hold why steps do not give a calibration, as a code with numbers; `scope` names the devices."""

    code: str
    scope: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceFit:
    """Hold gain and offset (W) of one device, and what else the steps show about it.

    `bend_w` is the largest distance from the straight line, `heat_per_k` the relative change of the gain per K; `_u`
    are standard uncertainties. Readings from `low_w` to `high_w` and temperatures from `cold_c` to `hot_c` were seen.
    `budget` has the parts of the expanded uncertainty, relative, at the highest reading; `own_u_w` is the standard
    uncertainty (W) there without what a second staircase with the same reference, node and offset has in common.
    """

    scope: str
    gain: float
    gain_u: float
    offset_w: float
    offset_u_w: float
    correlation: float
    bend_w: float
    bend_u_w: float
    heat_per_k: float
    heat_u: float
    low_w: float
    high_w: float
    cold_c: float
    hot_c: float
    budget: Mapping[str, float]
    own_u_w: float = 0.0

    def compute_power(self, reading_w: float) -> float:
        """Return the true power (W) for a reading."""
        return self.gain * reading_w + self.offset_w

    def compute_expanded(self, reading_w: float) -> float:
        """Return the expanded uncertainty (W, k = 2) of the true power for a reading."""
        both = 2 * reading_w * self.correlation * self.gain_u * self.offset_u_w
        variance = (reading_w * self.gain_u) ** 2 + self.offset_u_w**2 + both + (self.bend_half_w**2) / 3
        return COVERAGE_FACTOR * math.sqrt(variance)

    @property
    def bend_half_w(self) -> float:
        """Return the largest error (W) from a sensor that is not straight."""
        return math.hypot(self.bend_w, COVERAGE_FACTOR * self.bend_u_w)


@dataclass(frozen=True)
class CalibrationFit:
    """Hold the fit of all devices together.

    `factors` has two rows for each device (gain, offset in W) and a column for each independent source of error; its
    `sources` are the names of the numbers (`reference/gain`, `efficiency/low`) that another calibration with the same
    reference or node has in common, empty for those of this one.
    `residual_w` is measured minus fitted power of the reference. `slope` is W at the reference for one W of a device,
    with its standard uncertainty. `scatter` is the spread of the residuals beside the expected one.
    """

    devices: tuple[DeviceFit, ...]
    factors: Floats
    sources: tuple[str, ...]
    residual_w: Floats
    slope: float
    slope_u: float
    scatter: float
    freedom: int


def fit_calibration(
    steps: LoadSteps,
    devices: Sequence[FittedDevice],
    reference: ReferenceMeter,
    beside: Sequence[BesideMeter] = (),
    *,
    accept_far: bool = False,
) -> CalibrationFit | FitRefusal:
    """Fit gain and offset of all devices, or return the reason why the steps do not show them.

    `accept_far` takes gains and offsets beyond the assumed errors of a device, too.
    """
    if (refusal := find_refusal(steps, devices, reference)) is not None:
        return refusal
    model = _StepModel(steps, devices, reference, beside)
    sigma = np.hypot(steps.reference_u_w, np.sqrt(((1.1 * steps.device_u_w) ** 2).sum(axis=1)))
    first = _solve_model(model, sigma)
    if first.freedom < FEWEST_FREEDOM:
        count = steps.count_steps()
        return FitRefusal("too-few-steps", "", {"steps": count, "needed": count - first.freedom + FEWEST_FREEDOM})
    # The residuals show how far the steps scatter; the spread of few residuals may be too small by chance.
    few = t_975(first.freedom) / COVERAGE_FACTOR
    scale = max(first.scatter, LEAST_SCATTER) * max(few, 1.0)
    # A step without a device is of another time: the other steps do not show how far it scatters, and the rest of the
    # node may have been anywhere on its drift.
    moved = float(np.linalg.norm(first.values[model.find_places("drift")])) / math.sqrt(3)
    apart = np.hypot(max(scale, 1.0) * sigma, moved)
    sigma = np.where(steps.is_there.all(axis=1), scale * sigma, apart)
    found = _solve_model(model, sigma, first.values)
    residual = steps.reference_w - model.predict(found.values)
    if (refusal := find_poor_fit(steps, residual)) is not None:
        return refusal
    lines = [_fit_line(model, found.values, k) for k in range(len(devices))]
    fits = tuple(_describe_device(model, found, line, k) for k, line in enumerate(lines))
    for fit, device in zip(fits, devices, strict=True):
        if abs(fit.gain - 1) > MOST_CHANGE:
            return FitRefusal("unlikely-gain", fit.scope, {"gain": fit.gain})
        if reference.is_around and not accept_far and (far := find_far_value(fit, device)) is not None:
            return far
        expanded = fit.compute_expanded(fit.high_w) / fit.high_w
        assumed = COVERAGE_FACTOR / math.sqrt(3) * math.hypot(device.gain, device.offset_w / fit.high_w)
        if expanded >= WORTH * assumed:
            worst = max(fit.budget, key=lambda part: fit.budget[part])
            numbers = {"expanded": expanded, "assumed": assumed, f"of {worst}": fit.budget[worst]}
            return FitRefusal(f"no-better.{worst.replace(' ', '-')}", fit.scope, numbers)
    if reference.is_around and not accept_far and (far := find_far_sum(found, lines, devices)) is not None:
        return far
    slope = model.differentiate_supply(found.values)
    slope_u = math.sqrt(float(slope[1] @ found.covariance @ slope[1]))
    return CalibrationFit(
        fits, *find_factors(model, found, lines), residual, slope[0], slope_u, first.scatter, found.freedom
    )  # fmt: skip


def find_poor_fit(steps: LoadSteps, residual_w: Floats) -> FitRefusal | None:
    """Return a refusal if the fitted powers are far from those of the reference."""
    here = steps.is_there.all(axis=1)
    rms_w, range_w = float(np.sqrt(np.mean(residual_w[here] ** 2))), float(np.ptp(steps.reference_w[here]))
    if rms_w <= MOST_RESIDUAL * range_w:
        return None
    return FitRefusal("poor-fit", "", {"residual_w": rms_w, "range_w": range_w, "share": rms_w / range_w})


def find_far_value(fit: DeviceFit, device: FittedDevice) -> FitRefusal | None:
    """Return a refusal if gain or offset are clearly beyond the assumed largest errors of a device.

    A reference around a node cannot tell such a device from a rest of the node that follows the load.
    """
    # A reading is up to `device.gain` wrong, so its reciprocal is the range of gains.
    low, high = 1 / (1 + device.gain), 1 / (1 - device.gain)
    if not low - COVERAGE_FACTOR * fit.gain_u <= fit.gain <= high + COVERAGE_FACTOR * fit.gain_u:
        return FitRefusal("far-gain", fit.scope, {"change": fit.gain - 1, "assumed": device.gain})
    if abs(fit.offset_w) > device.offset_w + COVERAGE_FACTOR * fit.offset_u_w:
        return FitRefusal("far-offset", fit.scope, {"offset_w": fit.offset_w, "assumed_w": device.offset_w})
    return None


def find_far_sum(found: _Solution, lines: Sequence[_DeviceLine], devices: Sequence[FittedDevice]) -> FitRefusal | None:
    """Return a refusal if the sum of the offsets is clearly beyond what it is if those of the devices are independent.

    A node without its devices that is in another state moves each of many offsets by little, all of them to one side.
    """
    total_w = sum(line.offset_w for line in lines)
    effect = np.sum([line.effects[1] for line in lines], axis=0)
    u_w = math.sqrt(float(effect @ found.covariance @ effect))
    assumed_w = COVERAGE_FACTOR / math.sqrt(3) * math.hypot(*(device.offset_w for device in devices))
    if len(devices) < 2 or abs(total_w) <= assumed_w + COVERAGE_FACTOR * u_w:
        return None
    scope = ", ".join(device.scope for device in devices)
    return FitRefusal("far-offset.sum", scope, {"offset_w": total_w, "assumed_w": assumed_w})


def find_refusal(steps: LoadSteps, devices: Sequence[FittedDevice], reference: ReferenceMeter) -> FitRefusal | None:
    """Return why steps cannot show the gains of devices, None if they may: range, separate movement, speed."""
    if steps.count_steps() < 2:
        return FitRefusal("too-few-steps", "", {"steps": steps.count_steps(), "needed": 2})
    shortest = float(steps.seconds.min())
    if shortest < FEWEST_UPDATES * reference.update_s:
        numbers = {"update_s": reference.update_s, "step_s": shortest, "needed_s": FEWEST_UPDATES * reference.update_s}
        return FitRefusal("slow-reference", "", numbers)
    watts = np.where(steps.is_there, steps.device_w, np.nan)
    for k, device in enumerate(devices):
        high = float(np.nanmax(watts[:, k]))
        span = high - float(np.nanmin(watts[:, k]))
        if span < max(LEAST_RANGE * high, LEAST_RANGE_W):
            return FitRefusal("small-range", device.scope, {"range_w": span, "high_w": high})
    here = steps.is_there.all(axis=1)
    moved = steps.device_w[here] - steps.device_w[here].mean(axis=0)
    for k, device in enumerate(devices):
        others = np.delete(moved, k, axis=1)
        own = moved[:, k] - others @ np.linalg.lstsq(others, moved[:, k], rcond=None)[0]
        apart = float(np.linalg.norm(own) / np.linalg.norm(moved[:, k]))
        if apart < LEAST_APART:
            size = np.linalg.norm(others, axis=0) * np.linalg.norm(moved[:, k])
            nearest = int(np.argmax(np.abs(others.T @ moved[:, k]) / size))
            partner = devices[nearest + (nearest >= k)].scope
            return FitRefusal("move-together", f"{device.scope}, {partner}", {"apart": apart})
    if np.corrcoef(moved.sum(axis=1), steps.reference_w[here])[0, 1] < LEAST_FOLLOWED:
        return FitRefusal("does-not-follow", ", ".join(device.scope for device in devices))
    return None


class _StepModel:
    """Predict the reference in each step from a vector of numbers, each with a prior."""

    def __init__(
        self,
        steps: LoadSteps,
        devices: Sequence[FittedDevice],
        reference: ReferenceMeter,
        beside: Sequence[BesideMeter],
    ) -> None:
        self.steps = steps
        self.devices = devices
        self.reference = reference
        there = np.where(steps.is_there, steps.device_w, np.nan)
        self.low, self.high = np.nanmin(there, axis=0), np.nanmax(there, axis=0)
        # Temperatures count from those under load; a device without a thermometer has no drift.
        celsius = np.where(there > (self.low + self.high) / 2, steps.celsius, np.nan)
        means = [np.nanmean(column) if np.isfinite(column).any() else np.nan for column in celsius.T]
        self.middle_c = np.array(means)
        self.warm_k = np.nan_to_num(steps.celsius - self.middle_c)
        self.tau = _scale_times(steps.middle_s)
        self.names: list[str] = []
        prior: list[float] = []
        half: list[float] = []

        def add(name: str, value: float, largest: float) -> None:
            self.names.append(name)
            prior.append(value)
            half.append(largest)

        for device in devices:
            add(f"gain/{device.scope}", 1.0, GAIN_ERROR)
            add(f"offset/{device.scope}", 0.0, device.offset_w)
        for device in devices:
            add(f"bend/{device.scope}", 0.0, BEND_ERROR)
            add(f"heat/{device.scope}", 0.0, HEAT_ERROR)
        add("reference/gain", 0.0, reference.gain)
        add("reference/offset", 0.0, reference.offset_w)
        if reference.is_around:
            has_cpu = any(one.scope.startswith("cpu") for one in beside)
            most = FOLLOW_SHARE[reference.fans] + (0.0 if has_cpu else CPU_SHARE)
            add("follow", most / 2, most / 2)
            add("rest", float(steps.reference_w.min()) / 2, REST_ERROR_W)
            add("drift/1", 0.0, DRIFT_ERROR_W)
            add("drift/2", 0.0, DRIFT_ERROR_W)
            for one in beside:
                add(f"beside/{one.scope}", one.watts, one.half)
        if reference.supply is not None:
            add("efficiency/middle", *reference.supply.efficiency)
            add("efficiency/low", *reference.supply.low_drop)
            add("efficiency/full", *reference.supply.full_drop)
            add("slope/level", 0.0, CURVE_ERROR)
            add("slope/bend", 0.0, CURVE_BEND)
        self.prior = np.array(prior)
        self.prior_u = np.maximum(np.array(half), 1e-9) / math.sqrt(3)

    def find_places(self, *kinds: str) -> list[int]:
        """Return the places of the numbers of some kinds."""
        return [k for k, name in enumerate(self.names) if name.partition("/")[0] in kinds]

    def predict(self, values: Floats) -> Floats:
        """Return the reading (W) of the reference in each step."""
        steps = self.steps
        part = {kind: values[self.find_places(kind)] for kind in ("gain", "offset", "bend", "heat", "reference")}
        range_w = self.high - self.low
        share = (steps.device_w - self.low) / range_w
        above = steps.device_w - self.low
        bent = part["bend"] * range_w * share * (1 - share)
        watts = part["gain"] * (steps.device_w + bent + part["heat"] * self.warm_k * above) + part["offset"]
        total = np.where(steps.is_there, watts, 0.0).sum(axis=1)
        if self.reference.is_around:
            moved = np.where(steps.is_there, part["gain"] * above, 0.0).sum(axis=1)
            first, second = values[self.find_places("drift")]
            drift = first * self.tau + second * (self.tau**2 - 1 / 3)
            total = total + values[self.find_places("follow")[0]] * moved + values[self.find_places("rest")[0]] + drift
            total = total + steps.beside @ values[self.find_places("beside")]
        gain, offset = part["reference"]
        return np.asarray((1 + gain) * self._convert(total, values) + offset)

    def _convert(self, watts: Floats, values: Floats) -> Floats:
        """Return the input (W) of the supplies for an output, a parabola through the efficiencies at three loads."""
        supply = self.reference.supply
        if supply is None:
            return watts
        middle, low, full = values[self.find_places("efficiency")]
        inputs = EFFICIENCY_LOADS / (middle - np.array([low, 0.0, full]))
        c = np.linalg.solve(np.vander(EFFICIENCY_LOADS, 3), inputs)
        q = watts / supply.rated_w
        level, bend = values[self.find_places("slope")]
        off = q - (q.max() + q.min()) / 2
        return np.asarray(supply.rated_w * (np.polyval(c, q) + level * off + bend / 2 * off**2))

    def differentiate(self, values: Floats) -> Floats:
        """Return the derivatives of the prediction: a row for each step, a column for each number."""
        columns = []
        for k in range(values.size):
            by = 1e-3 * min(self.prior_u[k], 1.0)
            up, down = values.copy(), values.copy()
            up[k] += by
            down[k] -= by
            columns.append((self.predict(up) - self.predict(down)) / (2 * by))
        return np.column_stack(columns)

    def differentiate_supply(self, values: Floats) -> tuple[float, Floats]:
        """Return W at the reference for one W of a device at the middle load, and its derivatives by all numbers."""
        places = self.find_places("rest")
        if not places:
            return 1.0, np.zeros(values.size)

        def find_slope(some: Floats) -> float:
            more, less = some.copy(), some.copy()
            more[places[0]] += 1.0
            less[places[0]] -= 1.0
            return float((self.predict(more) - self.predict(less)).mean()) / 2

        found = []
        for k in range(values.size):
            by = 1e-3 * min(self.prior_u[k], 1.0)
            up, down = values.copy(), values.copy()
            up[k] += by
            down[k] -= by
            found.append((find_slope(up) - find_slope(down)) / (2 * by))
        return find_slope(values), np.array(found)


def _scale_times(middle_s: Floats) -> Floats:
    """Return times from -1 at the begin of a staircase to 1 at its end."""
    middle, half = (middle_s.max() + middle_s.min()) / 2, max(float(np.ptp(middle_s)) / 2, 1e-9)
    return np.asarray((middle_s - middle) / half)


@dataclass(frozen=True)
class _Solution:
    """Hold the most likely numbers, their covariance and its inverse, and degrees of freedom.

    `scatter` is the spread of the residuals beside the expected one.
    """

    values: Floats
    covariance: Floats
    information: Floats
    scatter: float
    freedom: int

    def find_variance(self, effect: Floats, known: Sequence[int]) -> float:
        """Return the variance of a sum of the numbers times `effect`, if some of them were known."""
        left = np.setdiff1d(np.arange(effect.size), known)
        return float(effect[left] @ _invert_scaled(self.information[np.ix_(left, left)]) @ effect[left])


def _solve_model(model: _StepModel, sigma: Floats, start: Floats | None = None) -> _Solution:
    """Find the most likely numbers by Gauss and Newton's method."""
    values = (model.prior if start is None else start).copy()
    weight, prior_weight = 1 / sigma**2, 1 / model.prior_u**2
    for _ in range(ROUNDS):
        slopes = model.differentiate(values)
        residual = model.steps.reference_w - model.predict(values)
        information = slopes.T @ (slopes * weight[:, np.newaxis]) + np.diag(prior_weight)
        covariance = _invert_scaled(information)
        step = covariance @ (slopes.T @ (residual * weight) + (model.prior - values) * prior_weight)
        values = values + step
    residual = (model.steps.reference_w - model.predict(values)) / sigma
    # Steps that a number with a wide prior uses up are no longer free.
    used = float(np.sum((slopes @ covariance) * slopes * weight[:, np.newaxis]))
    freedom = math.floor(model.steps.count_steps() - used + 1e-9)
    # The rows of one step may err alike: their mean then scatters as much as each of them.
    sums = np.bincount(model.steps.number, residual)
    rows = np.bincount(model.steps.number)
    alike = float(np.sum(sums[rows > 0] ** 2 / rows[rows > 0])) / max(freedom, 1)
    single = float(np.sum(residual**2)) / max(len(model.steps) - used, 1.0)
    return _Solution(values, covariance, information, math.sqrt(max(alike, single)), freedom)


def _invert_scaled(matrix: Floats) -> Floats:
    """Return the inverse of a symmetric matrix whose entries have different units."""
    scale = 1 / np.sqrt(np.diag(matrix))
    return np.asarray(np.linalg.inv(matrix * np.outer(scale, scale)) * np.outer(scale, scale))


@dataclass(frozen=True)
class _DeviceLine:
    """Hold the straight line through the powers of a device in its steps.

    `effects` are the derivatives of its gain and offset (W) by all numbers of the model. `off_w` are the distances of
    the powers from the line, `off_effects` their derivatives, and `warmer_w` their change for 1 K.
    """

    gain: float
    offset_w: float
    effects: Floats
    off_w: Floats
    off_effects: Floats
    warmer_w: Floats


def _fit_line(model: _StepModel, values: Floats, number: int) -> _DeviceLine:
    """Lay a straight line through the powers of a device that the model has for its steps.

    A bend and a drift with temperature look alike in a staircase, in which a device that works is warm: what is known
    of the line is far more than what is known of each of them.
    """
    there = model.steps.is_there[:, number]
    reading = model.steps.device_w[there, number]
    places = [2 * number, 2 * number + 1, model.find_places("bend")[number], model.find_places("heat")[number]]
    gain, offset_w, bend, heat = (float(values[place]) for place in places)
    above = reading - model.low[number]
    range_w = model.high[number] - model.low[number]
    bent = above * (1 - above / range_w)
    warm = model.warm_k[there, number] * above
    shown = reading + bend * bent + heat * warm
    power = gain * shown + offset_w
    slopes = np.zeros((reading.size, values.size))
    slopes[:, places] = np.column_stack((shown, np.ones_like(reading), gain * bent, gain * warm))
    base = np.column_stack((reading, np.ones_like(reading)))
    solve = np.linalg.pinv(base)
    line, effects = solve @ power, solve @ slopes
    off_effects = slopes - base @ effects
    return _DeviceLine(float(line[0]), float(line[1]), effects, power - base @ line, off_effects, gain * above)


def _describe_device(model: _StepModel, found: _Solution, line: _DeviceLine, number: int) -> DeviceFit:
    heat_at, high = model.find_places("heat")[number], float(model.high[number])
    heat, heat_u = float(found.values[heat_at]), math.sqrt(float(found.covariance[heat_at, heat_at]))
    covariance = line.effects @ found.covariance @ line.effects.T
    gain_u, offset_u_w = (math.sqrt(float(variance)) for variance in np.diag(covariance))
    # The largest distance from the line, at the temperatures of the steps or some K beside.
    off_u = np.sqrt(np.einsum("ij,jk,ik->i", line.off_effects, found.covariance, line.off_effects))
    beside_w = WARM_K * math.hypot(heat, COVERAGE_FACTOR * heat_u) * line.warmer_w
    far = int(np.argmax(line.off_w**2 + (COVERAGE_FACTOR * off_u) ** 2 + beside_w**2))
    celsius = model.steps.celsius[model.steps.is_there[:, number], number]
    celsius = celsius[np.isfinite(celsius)]
    return DeviceFit(
        scope=model.devices[number].scope,
        gain=line.gain,
        gain_u=gain_u,
        offset_w=line.offset_w,
        offset_u_w=offset_u_w,
        correlation=float(covariance[0, 1]) / (gain_u * offset_u_w),
        bend_w=float(line.off_w[far]),
        bend_u_w=math.hypot(float(off_u[far]), float(beside_w[far]) / COVERAGE_FACTOR),
        heat_per_k=heat,
        heat_u=heat_u,
        low_w=float(model.low[number]),
        high_w=high,
        cold_c=float(celsius.min(initial=math.inf)),
        hot_c=float(celsius.max(initial=-math.inf)),
        budget=_split_uncertainty(model, found, line, number),
        own_u_w=math.sqrt(
            found.find_variance(high * line.effects[0] + line.effects[1], [*model.find_places(*SHARED), 2 * number + 1])
        ),
    )


def _split_uncertainty(model: _StepModel, found: _Solution, line: _DeviceLine, number: int) -> dict[str, float]:
    """Return the parts of the expanded uncertainty of a device, relative, at its highest reading.

    The part of some numbers is what the variance loses if they were known.
    """
    high = float(model.high[number])
    effect = high * line.effects[0] + line.effects[1]
    offset_at = 2 * number + 1
    whole = found.find_variance(effect, [])
    known = {part: model.find_places(*kinds) for part, kinds in PARTS.items()} | {"offset": [offset_at]}
    parts = {part: math.sqrt(max(whole - found.find_variance(effect, places), 0.0)) for part, places in known.items()}
    every = [place for places in known.values() for place in places]
    parts["readings"] = math.sqrt(found.find_variance(effect, every))
    power = high * line.gain + line.offset_w
    return {part: COVERAGE_FACTOR * u / power for part, u in sorted(parts.items(), key=lambda item: -item[1])}


def find_factors(model: _StepModel, found: _Solution, lines: Sequence[_DeviceLine]) -> tuple[Floats, tuple[str, ...]]:
    """Return independent sources of error as columns (effect on gain and offset in W of each device), and their names.

    The sum of squares of a row is a variance, sums of products are covariances. The numbers of a fit err by
    `covariance @ (slopes of the readings x their errors + errors of the priors / prior_u**2)`. So a number that is the
    same in another calibration (`SHARED`) has a column of its own, with a sign that is the same there. What is left of
    the covariance is of the readings and of this device, node and time.
    """
    effects = np.vstack([line.effects for line in lines])
    scale = np.ravel(np.column_stack((model.high, np.ones(len(model.devices)))))  # all in W
    effects = effects * scale[:, np.newaxis]
    covariance = effects @ found.covariance @ effects.T
    least = SMALL_FACTOR * float(np.trace(covariance))
    places = model.find_places(*SHARED)
    shared = effects @ found.covariance[:, places] / model.prior_u[places]
    kept = (shared**2).sum(axis=0) > least
    size, direction = np.linalg.eigh(covariance - shared @ shared.T)
    own = direction[:, size > least] * np.sqrt(size[size > least])
    names = [model.names[place] for place, is_kept in zip(places, kept, strict=True) if is_kept]
    columns = np.hstack((shared[:, kept], own)) / scale[:, np.newaxis]
    return columns, (*names, *[""] * own.shape[1])
