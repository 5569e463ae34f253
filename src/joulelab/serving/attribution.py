"""Divide the measured energy of short windows among the requests that were served in them.

A model with few parameters is fitted to the windows of a run: idle power, power while requests are decoded, energy per
prompt token that is computed (prefill, with the power of the time that it takes), per output token after the first
(decode), and per 1000 tokens of context of a decoded token. Its parts divide the energy that was *measured* in each
window, so that all shares add up to it exactly; the model only decides who gets which part. Pure mathematics: no file,
no sentence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.serving.request_records import Request

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NS = 1_000_000_000
CONTEXT_UNIT = 1000
TERMS = ("busy_w", "prefill_j", "decode_j", "context_j")
BUSY, PREFILL, DECODE, CONTEXT = range(4)
DRAWS = 200  # of the model's parameters, for the uncertainty of shares
FAST_QUANTILE = 0.1  # requests whose first token came this fast did not wait in a queue
LAGS = 6  # windows over which errors of the model may be correlated
FEWEST_WINDOWS = 12
FINER = 4  # cells of a window, in which the pace of decoding is constant
PACE_ROUNDS = 30
ENGINE_ROUNDS = 2
ENGINE_CELLS = 8  # cells that are fitted together for the times of the engine


@dataclass(frozen=True, slots=True)
class EnergyWindows:
    """Hold the measured energy of consecutive windows of one scope (J); `edges_ns` has one entry more."""

    edges_ns: Ints
    energy_j: Floats

    @property
    def seconds(self) -> Floats:
        """Return the lengths of the windows, in s."""
        return np.diff(self.edges_ns) / NS


@dataclass(frozen=True, slots=True)
class IdlePower:
    """Hold the power without requests (W) and its standard uncertainty; `source` is `before`, `gaps` or `fitted`."""

    watts: float
    u_w: float
    source: str


@dataclass(frozen=True, slots=True)
class Activity:
    """Hold what each request did in each window, as one row for each pair of them.

    `amounts` has a column for each of TERMS: share of the busy time (s), prefill tokens, decode tokens, and context of
    these decode tokens in 1000 tokens. `seconds` is the time of the request in the window.
    """

    request: Ints
    window: Ints
    amounts: Floats
    seconds: Floats
    windows: int
    requests: int

    def sum_windows(self) -> Floats:
        """Return the amounts of each window."""
        return _sum_rows(self.window, self.amounts, self.windows)


@dataclass(frozen=True, slots=True)
class EnergyModel:
    """Hold the fitted parameters in the order of TERMS, their covariance, and the idle power.

    `scatter` is the standard deviation of measured / modelled energy of a window, above idle.
    """

    values: Floats
    covariance: Floats
    idle: IdlePower
    scatter: float
    windows: int

    def average(self, weights: Floats) -> tuple[float, float]:
        """Return a weighted sum of the parameters and its standard uncertainty."""
        return float(weights @ self.values), math.sqrt(max(float(weights @ self.covariance @ weights), 0.0))


@dataclass(frozen=True, slots=True)
class Shares:
    """Hold the energy of each request (J): by part (busy, prefill, decode, context), and of idle time.

    `u_j` is the standard uncertainty of the division, without that of the meter. `unassigned_j` was measured while no
    request was there, or is idle energy that no request gets. The sum of all is the measured energy.
    """

    parts_j: Floats
    idle_j: Floats
    u_j: Floats
    unassigned_j: float

    @property
    def total_j(self) -> Floats:
        """Return the energy of each request, in J."""
        return np.asarray(self.parts_j.sum(axis=1) + self.idle_j)


def list_activity(requests: Sequence[Request], edges_ns: Ints) -> Activity:
    """Place the work of requests in windows.

    Prefill happens directly before the first token, for a time that follows from its prompt; the time before was spent
    in a queue. Requests that are decoded at the same moment get their tokens at the same pace, because a server
    computes them together; the pace over time follows from all of them. The busy time that is no prefill is shared
    equally by the requests that are in the engine at that moment.
    """
    base = int(edges_ns[0])
    edges = (edges_ns - base) / NS
    times = _list_times(requests, base)
    pace = estimate_engine_pace(times)
    for _ in range(ENGINE_ROUNDS):
        placed = _place_work(times, edges, pace)
        pace = _fit_engine_pace(placed, pace)
    return _place_work(times, edges, pace).merge_cells(len(requests), len(edges) - 1)


@dataclass(frozen=True, slots=True)
class _RequestTimes:
    """Hold times (s) and tokens of requests; what is unknown counts as no token, a missing first token as the end."""

    sent: Floats
    first: Floats
    last: Floats
    prompt: Floats
    output: Floats


@dataclass(frozen=True, slots=True)
class _EnginePace:
    """Hold the time of a prompt token, and of an iteration of the engine without any (s)."""

    prefill_s: float
    fixed_s: float


@dataclass(frozen=True, slots=True)
class _PlacedWork:
    """Hold the work of requests in cells, one row for each pair of them, and iterations and busy time of the cells."""

    request: Ints
    cell: Ints
    rows: Floats  # the columns of TERMS, then seconds
    iterations: Floats
    busy_s: Floats

    def merge_cells(self, requests: int, windows: int) -> Activity:
        """Add up the cells of a window for each request."""
        key, place = np.unique(self.request * windows + self.cell // FINER, return_inverse=True)
        merged = _sum_rows(place, self.rows, len(key))
        size = len(TERMS)
        return Activity(key // windows, key % windows, merged[:, :size], merged[:, size], windows, requests)


def _place_work(times: _RequestTimes, edges: Floats, engine: _EnginePace) -> _PlacedWork:
    sent, first, last, prompt = times.sent, times.first, times.last, times.prompt
    begin = np.maximum(sent, first - engine.prefill_s * prompt)
    entered = np.maximum(sent, begin - engine.fixed_s)
    fine = _refine(edges)
    cells = len(fine) - 1
    request, cell, low, high = _cross_windows(entered, last, fine)
    prefill = _find_overlap(low, high, begin[request], first[request]) / np.maximum(first - begin, 1e-9)[request]
    decoded = np.maximum(times.output - 1, 0.0)
    progress, pace = _find_progress(
        request, cell, _find_overlap(low, high, first[request], last[request]), decoded, cells
    )
    tokens = decoded[request] * progress
    ends = np.cumsum(progress) - np.repeat(*_count_before(request, progress))
    context = prompt[request] + 1 + decoded[request] * (ends - progress / 2)
    shared, busy = _share_busy_time(low, high, entered, begin, first, last)
    rows = np.column_stack([shared, prompt[request] * prefill, tokens, tokens * context / CONTEXT_UNIT, high - low])
    return _PlacedWork(request, cell, rows, pace * np.diff(fine), np.diff(busy(fine)))


def estimate_engine_pace(times: _RequestTimes) -> _EnginePace:
    """Estimate the time per prompt token from the requests that waited least for their first token."""
    waited = times.first - times.sent
    usable = (waited > 0) & (times.prompt > 0)
    if not usable.any():
        return _EnginePace(0.0, 0.0)
    return _EnginePace(float(np.quantile(waited[usable] / times.prompt[usable], FAST_QUANTILE)), 0.0)


def _fit_engine_pace(placed: _PlacedWork, before: _EnginePace) -> _EnginePace:
    """Fit the busy time of cells by the iterations and tokens in them; an estimate that it cannot replace stays."""
    amounts = _sum_rows(placed.cell, placed.rows, len(placed.busy_s))
    design = np.column_stack([placed.iterations, amounts[:, PREFILL], amounts[:, DECODE], amounts[:, CONTEXT]])
    grouped = [
        np.add.reduceat(column, np.arange(0, len(column), ENGINE_CELLS)) for column in (*design.T, placed.busy_s)
    ]
    values = fit_nonnegative(np.column_stack(grouped[:-1]), grouped[-1])
    prefill_s = float(values[1])
    return _EnginePace(prefill_s if prefill_s > 0 else before.prefill_s, float(values[0]))


def _refine(edges: Floats) -> Floats:
    """Cut each window into FINER cells."""
    inside = edges[:-1, None] + np.diff(edges)[:, None] * np.arange(FINER) / FINER
    return np.append(inside.ravel(), edges[-1])


def _find_progress(request: Ints, cell: Ints, overlap: Floats, decoded: Floats, cells: int) -> tuple[Floats, Floats]:
    """Return the share of a request's decode tokens in each of its cells, and the pace of each cell.

    The pace (tokens/s of one request) of each cell is the one that explains the time that every request took.
    """
    pace = np.ones(cells)
    present = np.bincount(cell, weights=overlap, minlength=cells)
    count = len(decoded)
    for _ in range(PACE_ROUNDS):
        path = np.bincount(request, weights=overlap * pace[cell], minlength=count)
        ratio = np.divide(decoded, path, out=np.zeros(count), where=path > 0)
        wanted = np.bincount(cell, weights=overlap * ratio[request], minlength=cells)
        pace *= np.divide(wanted, present, out=np.ones(cells), where=present > 0)
    path = np.bincount(request, weights=overlap * pace[cell], minlength=count)
    share = np.divide(overlap * pace[cell], path[request], out=np.zeros(len(cell)), where=path[request] > 0)
    return share, np.where(present > 0, pace, 0.0)


def _count_before(request: Ints, progress: Floats) -> tuple[Floats, Ints]:
    """Return the sum of `progress` before each request's first row, and its number of rows; rows are in order."""
    spans = np.bincount(request)
    spans = spans[spans > 0]
    begins = np.cumsum(spans) - spans
    return np.concatenate([[0.0], np.cumsum(progress)])[begins], spans


def _list_times(requests: Sequence[Request], base: int) -> _RequestTimes:
    sent = np.array([(r.sent_ns - base) / NS for r in requests])
    last = np.array([(r.last_ns - base) / NS for r in requests])
    first = np.array([((r.last_ns if r.first_ns is None else r.first_ns) - base) / NS for r in requests])
    prompt = np.array([float(max((r.prompt_tokens or 0) - (r.cached_tokens or 0), 0)) for r in requests])
    answered = np.array([r.first_ns is not None for r in requests], dtype=bool)
    output = np.array([float(r.output_tokens or 0) for r in requests])
    return _RequestTimes(sent, first, last, np.where(answered, prompt, 0.0), output)


def _cross_windows(begin: Floats, end: Floats, edges: Floats) -> tuple[Ints, Ints, Floats, Floats]:
    """Return request, window, and begin and end (s) of each overlap of a request with a window."""
    from_window = np.clip(np.searchsorted(edges, begin, side="right") - 1, 0, len(edges) - 1)
    to_window = np.clip(np.searchsorted(edges, end, side="left"), 0, len(edges) - 1)
    spans = np.maximum(to_window - from_window, 0)
    request = np.repeat(np.arange(len(begin)), spans)
    offsets = np.arange(len(request)) - np.repeat(np.cumsum(spans) - spans, spans)
    window = np.repeat(from_window, spans) + offsets
    low = np.maximum(begin[request], edges[window])
    high = np.minimum(end[request], edges[window + 1])
    kept = high > low
    return request[kept], window[kept], low[kept], high[kept]


def _find_overlap(low: Floats, high: Floats, begin: Floats, end: Floats) -> Floats:
    return np.asarray(np.maximum(np.minimum(high, end) - np.maximum(low, begin), 0.0))


def _share_busy_time(
    low: Floats, high: Floats, entered: Floats, begin: Floats, first: Floats, last: Floats
) -> tuple[Floats, Callable[[Floats], Floats]]:
    """Return the share (s) of each overlap in the busy time that is no prefill, and the busy time up to any moment."""
    prefilling = _count_present([(begin, first)])
    present = _count_present([(entered, last)])
    moments = np.unique(np.concatenate([entered, begin, first, last]))
    middle = (moments[1:] + moments[:-1]) / 2
    active, other = present(middle), prefilling(middle)
    decoding = np.where(other > 0, 0.0, np.divide(1.0, active, out=np.zeros(len(active)), where=active > 0))
    shared = np.concatenate([[0.0], np.cumsum(np.diff(moments) * decoding)])
    busy = np.concatenate([[0.0], np.cumsum(np.diff(moments) * (active > 0))])
    return (
        np.asarray(np.interp(high, moments, shared) - np.interp(low, moments, shared)),
        lambda t: np.asarray(np.interp(t, moments, busy)),
    )


def _count_present(spans: Sequence[tuple[Floats, Floats]]) -> Callable[[Floats], Ints]:
    """Return a function that counts the spans which contain a moment."""
    begins = np.sort(np.concatenate([begin for begin, _ in spans]))
    ends = np.sort(np.concatenate([end for _, end in spans]))
    return lambda t: np.searchsorted(begins, t, side="right") - np.searchsorted(ends, t, side="right")


def _sum_rows(place: Ints, rows: Floats, size: int) -> Floats:
    return np.column_stack([np.bincount(place, weights=rows[:, k], minlength=size) for k in range(rows.shape[1])])


def find_idle(measured: EnergyWindows, activity: Activity) -> IdlePower | None:
    """Return the mean power (W) of windows without any request, None if there are fewer than three."""
    busy_s = np.bincount(activity.window, weights=activity.seconds, minlength=activity.windows)
    empty = busy_s == 0
    if empty.sum() < 3:
        return None
    watts = measured.energy_j[empty] / measured.seconds[empty]
    return IdlePower(float(watts.mean()), float(watts.std(ddof=1) / math.sqrt(len(watts))), "gaps")


def fit_energy_model(measured: EnergyWindows, activity: Activity, idle: IdlePower | None) -> EnergyModel | None:
    """Fit the model to the windows; without an idle power it is fitted too. None for too few windows.

    Parameters are not negative. Their covariance allows for errors of the model that last several windows.
    """
    amounts, seconds = activity.sum_windows(), measured.seconds
    used = seconds > 0
    if used.sum() < FEWEST_WINDOWS:
        return None
    if idle is None:
        design, target = np.column_stack([amounts, seconds])[used], measured.energy_j[used]
    else:
        design, target = amounts[used], (measured.energy_j - idle.watts * seconds)[used]
    values = fit_nonnegative(design, target)
    covariance = _estimate_covariance(design, target - design @ values)
    if idle is None:
        idle = IdlePower(float(values[-1]), math.sqrt(max(covariance[-1, -1], 0.0)), "fitted")
    else:
        covariance += _carry_idle_error(design, seconds[used]) * idle.u_w**2
    modelled = amounts @ values[: len(TERMS)]
    active = modelled > 0.1 * np.max(modelled, initial=0.0)
    ratio = (measured.energy_j - idle.watts * seconds)[active] / modelled[active] if active.any() else np.ones(1)
    size = len(TERMS)
    return EnergyModel(values[:size], covariance[:size, :size], idle, float(np.std(ratio)), int(used.sum()))


def fit_nonnegative(design: Floats, target: Floats) -> Floats:
    """Return the non-negative parameters with the least squares (active sets; columns may be all zero)."""
    scale = np.linalg.norm(design, axis=0)
    usable = scale > 0
    scaled = design / np.where(usable, scale, 1.0)
    values, passive = np.zeros(design.shape[1]), np.zeros(design.shape[1], dtype=bool)
    for _ in range(10 * design.shape[1]):
        gradient = scaled.T @ (target - scaled @ values)
        gradient[passive | ~usable] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-9 * (np.linalg.norm(target) + 1e-30):
            break
        passive[best] = True
        values = _descend(scaled, target, values, passive)
    return np.where(usable, values / np.where(usable, scale, 1.0), 0.0)


def _descend(scaled: Floats, target: Floats, values: Floats, passive: npt.NDArray[np.bool_]) -> Floats:
    """Solve for the passive parameters; step back and fix those that would become negative."""
    while True:
        wanted = np.zeros(len(values))
        wanted[passive] = np.linalg.lstsq(scaled[:, passive], target, rcond=None)[0]
        wrong = passive & (wanted <= 0)
        if not wrong.any():
            return wanted
        step = float(np.min(values[wrong] / (values[wrong] - wanted[wrong])))
        values = values + step * (wanted - values)
        passive &= values > 1e-12
        values = np.where(passive, values, 0.0)


def _estimate_covariance(design: Floats, residual: Floats) -> Floats:
    """Return the covariance of the parameters, robust to unequal errors and to errors correlated over LAGS windows."""
    size = design.shape[1]
    inverse = _invert_normal(design)
    scores = design * residual[:, None]
    middle = scores.T @ scores
    for lag in range(1, min(LAGS, len(residual) - 1) + 1):
        product = scores[lag:].T @ scores[:-lag]
        middle += (1 - lag / (LAGS + 1)) * (product + product.T)
    freedom = len(residual) / max(len(residual) - size, 1)
    return np.asarray(inverse @ middle @ inverse * freedom)


def _invert_normal(design: Floats) -> Floats:
    """Return the inverse of the normal matrix, with parameters at zero included: their error is that of zero."""
    scale = np.linalg.norm(design, axis=0)
    known = scale > 0
    inverse = np.zeros((design.shape[1], design.shape[1]))
    scaled = design[:, known] / scale[known]
    small = np.linalg.pinv(scaled.T @ scaled, rcond=1e-10)
    inverse[np.ix_(known, known)] = small / np.outer(scale[known], scale[known])
    return inverse


def _carry_idle_error(design: Floats, seconds: Floats) -> Floats:
    change = _invert_normal(design) @ design.T @ seconds
    return np.outer(change, change)


def share_energy(
    measured: EnergyWindows, activity: Activity, model: EnergyModel, *, with_idle: bool, seed: int = 0
) -> Shares:
    """Divide the energy of each window among its requests; the sum of all shares is the measured energy."""
    idle_w = measured.seconds * model.idle.watts
    idle_w = np.clip(np.minimum(idle_w, measured.energy_j), 0.0, None)
    active_j = measured.energy_j - idle_w
    parts = _divide(active_j, activity, model.values)
    spent = _sum_rows(activity.request, parts, activity.requests)
    idle_j: Floats = np.zeros(activity.requests)
    if with_idle:
        weight = activity.seconds
        total = np.bincount(activity.window, weights=weight, minlength=activity.windows)
        rows = np.divide(weight, total[activity.window]) * idle_w[activity.window]
        idle_j = np.asarray(np.bincount(activity.request, weights=rows, minlength=activity.requests), float)
    unassigned = float(measured.energy_j.sum() - spent.sum() - idle_j.sum())
    return Shares(spent, idle_j, _estimate_share_error(active_j, activity, model, parts, seed), unassigned)


def _divide(active_j: Floats, activity: Activity, values: Floats) -> Floats:
    """Return the energy (J) of each pair of request and window by part; by time where the model knows no part."""
    parts = activity.amounts * values
    modelled = np.bincount(activity.window, weights=parts.sum(axis=1), minlength=activity.windows)
    unknown = modelled[activity.window] <= 0
    parts[unknown, BUSY] = activity.amounts[unknown, BUSY]
    modelled = np.bincount(activity.window, weights=parts.sum(axis=1), minlength=activity.windows)
    factor = np.divide(active_j, modelled, out=np.zeros(len(active_j)), where=modelled > 0)
    return np.asarray(parts * factor[activity.window, None])


def _estimate_share_error(active_j: Floats, activity: Activity, model: EnergyModel, parts: Floats, seed: int) -> Floats:
    """Return the standard uncertainty (J) of each request's energy: parameters drawn, and the scatter of windows."""
    rng = np.random.default_rng(seed)
    size = activity.requests
    total, square = np.zeros(size), np.zeros(size)
    draws = np.clip(rng.multivariate_normal(model.values, model.covariance, DRAWS, method="eigh"), 0.0, None)
    for values in draws:
        drawn = np.bincount(activity.request, weights=_divide(active_j, activity, values).sum(axis=1), minlength=size)
        total += drawn
        square += drawn**2
    variance = np.maximum(square / DRAWS - (total / DRAWS) ** 2, 0.0)
    scatter = np.bincount(activity.request, weights=(parts.sum(axis=1) * model.scatter) ** 2, minlength=size)
    idle = np.bincount(activity.request, weights=activity.amounts[:, BUSY], minlength=size) * model.idle.u_w
    return np.asarray(np.sqrt(variance + scatter + idle**2))


def split_by_tokens(energy_j: float, requests: Sequence[Request]) -> Floats:
    """Divide an energy by the tokens of each request alone: what simple tools do."""
    tokens = np.array([float((r.prompt_tokens or 0) + (r.output_tokens or 0)) for r in requests])
    return np.asarray(energy_j * tokens / max(float(tokens.sum()), 1.0))


def split_by_time(energy_j: float, requests: Sequence[Request]) -> Floats:
    """Divide an energy by the time of each request alone."""
    seconds = np.array([r.latency_s for r in requests])
    return np.asarray(energy_j * seconds / max(float(seconds.sum()), 1e-9))
