"""Divide the measured energy of short windows among the requests that were served in them.

A server computes in iterations: each gives one token to every request that is decoded, and computes the prompts of
requests that begin (prefill). So the energy above idle of a window is linear in four amounts that follow from the times
and tokens of its requests: iterations, prompt tokens that were computed, output tokens after the first (decode tokens),
and their context in 1000 tokens. Each coefficient includes the power of the time that its amount adds. The model is
fitted to the windows of a run; `energy_shares.py` divides the energy that was *measured* in each of them by its parts,
so that all shares add up to it exactly. Pure mathematics: no file, no sentence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from joulelab.serving.request_records import PROGRESS_NS
from joulelab.serving.window_fit import estimate_covariance, fit_nonnegative

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.serving.request_records import Request

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NS = 1_000_000_000
CONTEXT_UNIT = 1000
TERMS = ("iteration_j", "prefill_j", "decode_j", "context_j")
ITERATION, PREFILL, DECODE, CONTEXT = range(4)
FAST_QUANTILE = 0.1  # requests whose first token came this fast did not wait in a queue
FEWEST_WINDOWS = 12
# Standard uncertainty of the model itself, relative: its parameters are not quite the same under all loads, so that
# intervals of a good meter would be too narrow by the fit alone (benchmarks/serving.py).
TOKEN_ERROR = 0.02  # of the energy of a prefill token
ITERATION_ERROR = 0.5  # iterations: a server may compute a prompt in several, of which the times show only the last
FEWEST_EMPTY = 3  # windows without requests from which the idle power is taken
PACE_ROUNDS = 30
PACE_CELL_S = 0.5  # in which the pace of decoding is constant, where requests do not state their progress
SHORTEST_S = 1e-6
# A limit of power changes the energy of an iteration with prefill by a factor, all its parts alike. Before the fit, the
# factor is 1 with this standard uncertainty: a cap at 60 % saves 22 % of an iteration's energy on the twin's GPUs.
LIMIT_SPREAD = 0.3
LAG_SPREAD_S = 0.1  # of a meter, beyond the lag that the analysis of its readings corrects
LAG_ROUNDS = 5
LAG_STEP_S = 0.01
LAG_LARGEST_STEP_S = 0.25
LAG_ENOUGH_S = 0.001


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

    `amounts` has a column for each of TERMS: its share of the iterations, prefill tokens, decode tokens, and context of
    these decode tokens in 1000 tokens. `seconds` is the time of the request in the window. `prefills` counts the
    iterations with prefill in each window, `company` the requests that were decoded in them.
    """

    request: Ints
    window: Ints
    amounts: Floats
    seconds: Floats
    prefills: Floats
    company: Floats
    requests: int

    @property
    def windows(self) -> int:
        """Return the number of windows."""
        return len(self.prefills)

    @property
    def is_empty(self) -> npt.NDArray[np.bool_]:
        """Return for each window whether no request was there."""
        return np.asarray(np.bincount(self.window, weights=self.seconds, minlength=self.windows) == 0)

    def sum_windows(self) -> Floats:
        """Return the amounts of each window."""
        return sum_rows(self.window, self.amounts, self.windows)


@dataclass(frozen=True, slots=True)
class EnergyModel:
    """Hold the fitted parameters in the order of TERMS, their covariance, and the idle power.

    `idle_slope` is their change per W of idle power. `scatter` is the standard deviation of measured / modelled energy
    of a window, above idle. `lag_s` is the time by which the meter is late.
    """

    values: Floats
    covariance: Floats
    idle: IdlePower
    idle_slope: Floats
    scatter: float
    windows: int
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenEnergy:
    """Hold energy above idle per prefill token and per decode token (J), with standard uncertainties.

    Multiplied by their numbers of tokens, they add up to `active_j`, the measured energy above idle. The meter's own
    error is not included. NaN: there are no such tokens.
    """

    prefill_j: float
    prefill_u_j: float
    decode_j: float
    decode_u_j: float
    active_j: float
    prefill_tokens: float
    decode_tokens: float


@dataclass(frozen=True, slots=True)
class _RequestTimes:
    """Hold times (s) and tokens of requests; what is unknown counts as no token, a missing first token as the end."""

    sent: Floats
    first: Floats
    last: Floats
    prompt: Floats
    context: Floats  # tokens of the prompt, cached ones included
    decoded: Floats  # tokens after the first

    @property
    def entered(self) -> Floats:
        """Return when the first iteration of each request began; the time before was spent in a queue."""
        waited = self.first - self.sent
        decoding = (self.decoded > 0) & (self.last > self.first)
        pace = (self.last - self.first)[decoding] / self.decoded[decoding]
        iteration_s = float(np.median(pace)) if len(pace) else 0.0
        long = (self.prompt > 0) & (self.prompt >= np.median(self.prompt)) & (waited > 0)
        per_token = np.maximum(waited - iteration_s, 0.0)[long] / self.prompt[long]
        token_s = float(np.quantile(per_token, FAST_QUANTILE)) if long.any() else 0.0
        return np.maximum(self.sent, self.first - iteration_s - token_s * self.prompt)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Hold spans of requests in which their pace is constant: tokens, and decode tokens before the span."""

    request: Ints
    begin: Floats
    end: Floats
    decoded: Floats
    before: Floats


def list_activity(requests: Sequence[Request], edges_ns: Ints) -> Activity:
    """Place the work of requests in windows.

    Prefill happens directly before the first token, for a time that follows from its prompt. Decode tokens are placed
    by the progress of the request; where that is not recorded, requests that are decoded at the same moment get their
    tokens at the same pace. The requests that are decoded in an iteration share it equally; if there are none, those
    that begin in it do.
    """
    base = int(edges_ns[0])
    edges, times = (edges_ns - base) / NS, _list_times(requests, base)
    entered, first, last = times.entered, times.first, times.last
    pieces = _list_decode_pieces(requests, times)
    prefill, window, low, high = _cross_windows(entered, np.maximum(first, entered + SHORTEST_S), edges)
    piece, later_window, later_low, later_high = _cross_windows(pieces.begin, pieces.end, edges)
    share = (later_high - later_low) / np.maximum(pieces.end - pieces.begin, SHORTEST_S)[piece]
    tokens = pieces.decoded[piece] * share
    middle = (later_low + later_high) / 2 - pieces.begin[piece]
    inside = pieces.decoded[piece] * middle / np.maximum(pieces.end - pieces.begin, SHORTEST_S)[piece]
    request = pieces.request[piece]
    context = times.context[request] + 1 + pieces.before[piece] + inside
    begun = (high - low) / np.maximum(first - entered, SHORTEST_S)[prefill]
    split, alone = _share_iterations(first, last), _find_lone_prefills(times)
    none = np.zeros(len(prefill))
    rows = np.concatenate([
        np.column_stack([begun * alone[prefill], times.prompt[prefill] * begun, none, none, high - low]),
        np.column_stack([
            tokens * split(later_low, later_high), np.zeros(len(piece)), tokens, tokens * context / CONTEXT_UNIT,
            later_high - later_low,
        ]),
    ])  # fmt: skip
    return _merge_rows(np.concatenate([prefill, request]), np.concatenate([window, later_window]), rows, times, edges)


def _find_lone_prefills(times: _RequestTimes) -> Floats:
    """Return the part of each request in an iteration that computes prompts only, 0 if others are decoded in it."""
    middle = (times.entered + times.first) / 2
    beside = np.maximum(_count_present(times.entered, times.first)(middle), 1)
    return np.where(_count_present(times.first, times.last)(middle) > 0, 0.0, 1 / beside)


def _merge_rows(request: Ints, window: Ints, rows: Floats, times: _RequestTimes, edges: Floats) -> Activity:
    """Add up the rows of each pair of request and window, and count the iterations with prefill."""
    windows = len(edges) - 1
    key, place = np.unique(request * windows + window, return_inverse=True)
    merged, size = sum_rows(place, rows, len(key)), len(TERMS)
    entered, first, last = times.entered, times.first, times.last
    begins = times.prompt > 0
    middle = (entered + first)[begins] / 2
    beside = np.maximum(_count_present(entered[begins], first[begins])(middle), 1)
    decoding = _count_present(first, last)(middle)
    at = np.searchsorted(edges, middle, side="right") - 1
    inside = (at >= 0) & (at < windows)
    counts = np.column_stack([1 / beside, decoding / beside])[inside]
    counted = sum_rows(at[inside], counts, windows)
    return Activity(
        key // windows, key % windows, merged[:, :size], merged[:, size], counted[:, 0], counted[:, 1], len(times.sent)
    )


def _list_times(requests: Sequence[Request], base: int) -> _RequestTimes:
    sent = np.array([(r.sent_ns - base) / NS for r in requests])
    last = np.array([(r.last_ns - base) / NS for r in requests])
    first = np.array([((r.last_ns if r.first_ns is None else r.first_ns) - base) / NS for r in requests])
    answered = np.array([float(r.first_ns is not None) for r in requests])
    prompt = np.array([float(max((r.prompt_tokens or 0) - (r.cached_tokens or 0), 0)) for r in requests])
    context = np.array([float(r.prompt_tokens or 0) for r in requests])
    output = np.array([float(count_output(r)) for r in requests])
    return _RequestTimes(sent, first, last, prompt * answered, context, np.maximum(output - 1, 0.0) * answered)


def count_output(request: Request) -> int:
    """Return the output tokens of a request, its streamed parts where the server reports no number."""
    return (request.chunks or 0) if request.output_tokens is None else request.output_tokens


def _list_decode_pieces(requests: Sequence[Request], times: _RequestTimes) -> _Pieces:
    """Return the spans of constant pace after the first token of each request."""
    size = PROGRESS_NS / NS
    stated = np.array([sum(r.progress) > 0 for r in requests], dtype=bool) & (times.decoded > 0)
    request = np.repeat(
        np.arange(len(requests)), [len(r.progress) * int(s) for r, s in zip(requests, stated, strict=True)]
    )
    chunks = np.array([n for r, s in zip(requests, stated, strict=True) if s for n in r.progress], dtype=np.float64)
    number = np.arange(len(request)) - _count_before(request)
    begin = times.first[request] + number * size
    end = np.minimum(begin + size, np.maximum(times.last[request], begin + SHORTEST_S))
    scale = times.decoded / np.maximum(np.bincount(request, weights=chunks, minlength=len(requests)), 1.0)
    decoded = chunks * scale[request]
    known = _Pieces(request, begin, end, decoded, _sum_before(request, decoded))
    guessed = _guess_decode_pieces(times, ~stated & (times.decoded > 0))
    names = known.__dataclass_fields__
    return _Pieces(*(np.concatenate([getattr(known, name), getattr(guessed, name)]) for name in names))


def _guess_decode_pieces(times: _RequestTimes, chosen: npt.NDArray[np.bool_]) -> _Pieces:
    """Place decode tokens by a common pace (tokens/s of one request) that explains the times of the chosen requests."""
    places = np.flatnonzero(chosen)
    first, last = times.first[chosen], np.maximum(times.last[chosen], times.first[chosen] + SHORTEST_S)
    start = float(first.min()) if len(places) else 0.0
    cells = int((float(last.max()) - start) / PACE_CELL_S) + 1 if len(places) else 1
    row, cell, begin, end = _cross_windows(first, last, np.asarray(start + np.arange(cells + 1) * PACE_CELL_S, float))
    took, count = end - begin, len(places)
    pace = np.ones(cells)
    present = np.bincount(cell, weights=took, minlength=cells)
    for _ in range(PACE_ROUNDS):
        path = np.bincount(row, weights=took * pace[cell], minlength=count)
        ratio = np.divide(times.decoded[chosen], path, out=np.zeros(count), where=path > 0)
        wanted = np.bincount(cell, weights=took * ratio[row], minlength=cells)
        pace *= np.divide(wanted, present, out=np.ones(cells), where=present > 0)
    path = np.bincount(row, weights=took * pace[cell], minlength=count)
    share = np.divide(took * pace[cell], path[row], out=np.zeros(len(cell)), where=path[row] > 0)
    decoded = times.decoded[chosen][row] * share
    return _Pieces(places[row], begin, end, decoded, _sum_before(row, decoded))


def _count_before(request: Ints) -> Ints:
    """Return the number of the first row of each row's request; rows are in the order of requests."""
    return np.searchsorted(request, request, side="left")


def _sum_before(request: Ints, amounts: Floats) -> Floats:
    """Return the sum of the amounts in earlier rows of the same request; rows are in the order of requests."""
    before = np.concatenate([[0.0], np.cumsum(amounts)])
    return np.asarray(before[:-1] - before[_count_before(request)])


def _cross_windows(begin: Floats, end: Floats, edges: Floats) -> tuple[Ints, Ints, Floats, Floats]:
    """Return span, window, and begin and end (s) of each overlap of a span with a window."""
    from_window = np.clip(np.searchsorted(edges, begin, side="right") - 1, 0, len(edges) - 1)
    to_window = np.clip(np.searchsorted(edges, end, side="left"), 0, len(edges) - 1)
    spans = np.maximum(to_window - from_window, 0)
    place = np.repeat(np.arange(len(begin)), spans)
    offsets = np.arange(len(place)) - np.repeat(np.cumsum(spans) - spans, spans)
    window = np.repeat(from_window, spans) + offsets
    low = np.maximum(begin[place], edges[window])
    high = np.minimum(end[place], edges[window + 1])
    kept = high > low
    return place[kept], window[kept], low[kept], high[kept]


def _share_iterations(first: Floats, last: Floats) -> Callable[[Floats, Floats], Floats]:
    """Return a function for the mean of 1 / number of requests that are present, over the spans from low to high."""
    moments = np.unique(np.concatenate([first, last]))
    active = _count_present(first, last)((moments[1:] + moments[:-1]) / 2)
    share = np.divide(1.0, active, out=np.zeros(len(active)), where=active > 0)
    path = np.concatenate([[0.0], np.cumsum(np.diff(moments) * share)])
    return lambda low, high: np.asarray(
        (np.interp(high, moments, path) - np.interp(low, moments, path)) / np.maximum(high - low, 1e-12)
    )


def _count_present(begin: Floats, end: Floats) -> Callable[[Floats], Ints]:
    """Return a function that counts the spans which contain a moment."""
    begins, ends = np.sort(begin), np.sort(end)
    return lambda t: np.searchsorted(begins, t, side="right") - np.searchsorted(ends, t, side="right")


def sum_rows(place: Ints, rows: Floats, size: int) -> Floats:
    """Return the sums of the rows of each place."""
    return np.column_stack([np.bincount(place, weights=rows[:, k], minlength=size) for k in range(rows.shape[1])])


def find_idle(measured: EnergyWindows, activity: Activity) -> IdlePower | None:
    """Return the mean power (W) of windows without any request, None if there are fewer than FEWEST_EMPTY."""
    empty = activity.is_empty
    if empty.sum() < FEWEST_EMPTY:
        return None
    watts = measured.energy_j[empty] / measured.seconds[empty]
    return IdlePower(float(watts.mean()), float(watts.std(ddof=1) / math.sqrt(len(watts))), "gaps")


def fit_requests(
    measured: EnergyWindows, requests: Sequence[Request], idle: IdlePower | None = None, lag_u_s: float = LAG_SPREAD_S
) -> tuple[Activity, EnergyModel] | None:
    """Place the work of requests and fit the model to the windows; None for too few windows with requests.

    Without an idle power, that of windows without requests is used, else it is fitted, too. The meter shows energy a
    little late or early: this lag is fitted, because few milliseconds move the energy of a prefill into the next
    window; before the fit it is zero with the standard uncertainty `lag_u_s`.
    """
    lag_s = 0.0
    for _ in range(LAG_ROUNDS):
        activity = list_activity(requests, measured.edges_ns - round(lag_s * NS))
        if (~activity.is_empty).sum() < FEWEST_WINDOWS:
            return None
        early, late = (
            list_activity(requests, measured.edges_ns - round((lag_s + d) * NS)) for d in (-LAG_STEP_S, LAG_STEP_S)
        )
        moved = (late.sum_windows() - early.sum_windows()) / (2 * LAG_STEP_S)
        model = fit_energy_model(measured, activity, idle or find_idle(measured, activity), moved, lag_u_s)
        step_s = min(max(model.lag_s, -LAG_LARGEST_STEP_S), LAG_LARGEST_STEP_S)
        model = replace(model, lag_s=lag_s + model.lag_s)
        lag_s += step_s
        if abs(step_s) < LAG_ENOUGH_S:
            break
    return activity, model


def fit_energy_model(
    measured: EnergyWindows, activity: Activity, idle: IdlePower | None, moved: Floats, lag_u_s: float
) -> EnergyModel:
    """Fit the model to the windows; `moved` is the change of their amounts per second of lag.

    Parameters are not negative. Their covariance allows for errors of the model that last several windows.
    """
    amounts, seconds = activity.sum_windows(), measured.seconds
    watts = 0.0 if idle is None else idle.watts
    design = amounts if idle is not None else np.column_stack([amounts, seconds])
    target = measured.energy_j - watts * seconds
    values = fit_nonnegative(design, target)
    size = len(TERMS)
    # Iterations with prefill change by a factor under a limit of power. Without it, energy that the requests beside a
    # prefill save in its iterations would be taken off the prefill. Factor and lag are 1 + a change, so that they are
    # not negative either; `before` is what is known of them without the fit.
    totals = amounts.sum(axis=0)
    token_j = values[DECODE] + values[CONTEXT] * totals[CONTEXT] / max(totals[DECODE], 1.0)
    beside = activity.prefills * values[ITERATION] + activity.company * token_j
    late = moved @ values[:size]
    sigma_j = math.sqrt(float(np.mean((target - design @ values) ** 2)))
    more = np.column_stack([beside, late])
    both = np.column_stack([design, more])
    before = np.zeros((2, both.shape[1]))
    before[0, -2], before[1, -1] = sigma_j / LIMIT_SPREAD, sigma_j / lag_u_s
    target = target + more.sum(axis=1)
    values = fit_nonnegative(np.vstack([both, before]), np.concatenate([target, before.sum(axis=1)]))
    fitted = estimate_covariance(both, target, values, before, sigma_j)
    slope = -fitted.solve(seconds)[:size]
    if idle is None:
        idle = IdlePower(float(values[size]), math.sqrt(max(fitted.covariance[size, size], 0.0)), "fitted")
        slope = np.zeros(size)  # its error is part of the covariance
    modelled = both @ values - more.sum(axis=1) - (0.0 if len(values) == size + 2 else seconds * idle.watts)
    active = modelled > 0.1 * np.max(modelled, initial=0.0)
    ratio = (measured.energy_j - idle.watts * seconds)[active] / modelled[active] if active.any() else np.ones(1)
    covariance = fitted.covariance[:size, :size]
    lag_s = float(values[-1]) - 1
    return EnergyModel(values[:size], covariance, idle, slope, float(np.std(ratio)), len(seconds), lag_s)


def compute_token_energy(measured: EnergyWindows, activity: Activity, model: EnergyModel) -> TokenEnergy:
    """Return the energy above idle per prefill token and per decode token."""
    busy = ~activity.is_empty
    seconds = float(measured.seconds[busy].sum())
    active_j = float(measured.energy_j[busy].sum()) - model.idle.watts * seconds
    _, prompt, decoded, _ = (float(total) for total in activity.amounts.sum(axis=0))
    each, u_w, slope = float(model.values[PREFILL]), model.idle.u_w, float(model.idle_slope[PREFILL])
    unseen_j = ITERATION_ERROR * float(model.values[ITERATION]) * float(activity.prefills.sum()) / max(prompt, 1.0)
    variance = float(model.covariance[PREFILL, PREFILL]) + (TOKEN_ERROR * each) ** 2 + unseen_j**2
    rest = math.nan if decoded <= 0 else (active_j - each * prompt) / decoded
    u_rest = math.hypot(prompt * math.sqrt(max(variance, 0.0)), (seconds + prompt * slope) * u_w) / max(decoded, 1.0)
    return TokenEnergy(
        each if prompt > 0 else math.nan, math.hypot(math.sqrt(max(variance, 0.0)), slope * u_w), rest, u_rest,
        active_j, prompt, decoded,
    )  # fmt: skip
