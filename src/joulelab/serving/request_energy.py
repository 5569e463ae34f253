"""Divide the energy of a run among its requests: from the run folder to figures per request, and sums by label.

The energy of short windows comes from the joined meters of a scope; `attribution.py` and `energy_shares.py` divide it.
Every figure carries the error of the division, and that of the meter, which is the same for all requests and adds up in
sums.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.analyse import find_span, load_joined
from joulelab.analysis.result import make_plain
from joulelab.analysis.study_cells import Note
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.core.text import finite_or_none
from joulelab.serving.attribution import (
    ITERATION,
    LAG_SPREAD_S,
    PREFILL,
    Activity,
    EnergyModel,
    EnergyWindows,
    IdlePower,
    compute_token_energy,
    find_idle,
    fit_requests,
    list_activity,
)
from joulelab.serving.energy_shares import share_energy
from joulelab.serving.request_records import list_requests
from joulelab.serving.window_figures import SCOPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.analyse import RunSpan
    from joulelab.analysis.channels import EnergyChannel, ScopeChannels
    from joulelab.serving.energy_shares import Shares
    from joulelab.serving.request_records import Request
    from joulelab.store.run_reader import Run

WINDOW_S = 2.0
UPDATES_PER_WINDOW = 10  # a window's energy is then off by at most a few percent at its edges
LONGEST_WINDOW_S = 30.0  # a slower meter does not show which request used what
MOST_WINDOWS = 5000  # more are merged: a day has windows of 17 s
SHARED_KINDS = ("gain",)  # errors that scale with any part of the energy
FEWEST_SEEN, MOST_OFF = 0.98, 0.1  # coverage, and difference from the best meter, of a faster one that guides it
FEWEST_KNOWN = 0.9  # share of requests with known tokens below which energy is divided by time


@dataclass(frozen=True, slots=True)
class RequestEnergy:
    """Hold the energy of one request (J): in all, and by part; `flags` say what is unknown about it.

    `idle_j` is its share of the idle energy, zero unless the division includes idle.
    """

    request: Request
    energy: Quantity
    prefill_j: float
    decode_j: float
    idle_j: float
    flags: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return one line of the output."""
        r = self.request
        return {
            "id": r.id,
            "status": r.status,
            "labels": dict(r.labels),
            "prompt_tokens": r.prompt_tokens,
            "output_tokens": r.output_tokens,
            "energy_j": self.energy.value,
            "expanded_j": self.energy.expanded,
            "prefill_j": self.prefill_j,
            "decode_j": self.decode_j,
            "idle_j": self.idle_j,
            "sent_ns": r.sent_ns,
            "latency_s": r.latency_s,
            "flags": list(self.flags),
        }


@dataclass(frozen=True, slots=True)
class LabelEnergy:
    """Hold the sum over the requests with one value of a label; tokens are None if no request states them."""

    label: str
    requests: int
    prompt_tokens: int | None
    output_tokens: int | None
    energy: Quantity


@dataclass(frozen=True, slots=True)
class Attribution:
    """Hold the energy of a run's requests at one scope (J).

    `measured` is that of the whole run. It is the sum of all requests, of `idle` (power without requests x time, unless
    the requests include it) and `unassigned`. `by_time`: the energy was divided by time alone, because `notes` say why.
    """

    scope: str
    family: str
    measured: Quantity
    idle: Quantity
    unassigned_j: float
    with_idle: bool
    requests: tuple[RequestEnergy, ...]
    prefill_token: Quantity | None = None
    decode_token: Quantity | None = None
    by_time: bool = False
    window_s: float = WINDOW_S
    idle_source: str = ""
    notes: tuple[Note, ...] = ()
    labels: Mapping[str, LabelEnergy] = field(default_factory=dict)

    @property
    def median_j(self) -> float:
        """Return the median energy of a request that ended well, in J."""
        done = [one.energy.value for one in self.requests if one.request.status == "ok"]
        return float(np.median(done)) if done else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the division as plain data, without the single requests."""
        plain = {
            name: getattr(self, name) for name in ("scope", "family", "with_idle", "by_time", "window_s", "idle_source")
        }
        quantities = {
            name: make_plain(getattr(self, name)) for name in ("measured", "idle", "prefill_token", "decode_token")
        }
        sums = {
            value: {"requests": one.requests, "prompt_tokens": one.prompt_tokens, "output_tokens": one.output_tokens}
            | {"energy": make_plain(one.energy)}
            for value, one in self.labels.items()
        }
        numbers = {"requests": len(self.requests), "unassigned_j": self.unassigned_j}
        shares = {"median_j": finite_or_none(self.median_j), "idle_share": finite_or_none(self.idle_share)}
        return plain | quantities | numbers | shares | {"labels": sums, "notes": [note.code for note in self.notes]}

    @property
    def idle_share(self) -> float:
        """Return the share of idle energy in the measured energy."""
        return self.idle.value / self.measured.value if self.measured.value > 0 else math.nan


def attribute_run(run: Run, *, scope: str | None = None, with_idle: bool = False, by: str | None = None) -> Attribution:
    """Divide the energy of a run among its requests; `by` names a label whose values are summed.

    Raises ConfigError if the run has no requests, no label of that name, or no energy at the scope.
    """
    requests = list_requests(run.marks(), str(run.path))
    if not requests:
        raise ConfigError(
            "the run has no requests", where=run.path.name, why="no program recorded them in it",
            next="record some: joulelab serving measure --url URL --rate 1,2,4, or joulelab serving import FILE",
            code="config.no-requests",
        )  # fmt: skip
    if by is not None and not any(by in request.labels for request in requests):
        known = sorted({name for request in requests for name in request.labels})
        raise ConfigError(
            f"no request has the label {by!r}", where=run.path.name,
            next=f"use one of {', '.join(known)}" if known else "label them when they are sent: --label NAME=VALUE",
            code="config.unknown-label",
        )  # fmt: skip
    measured = measure_scope(run, scope)
    return divide_energy(measured, requests, with_idle=with_idle, by=by)


@dataclass(frozen=True, slots=True)
class MeasuredScope:
    """Hold the energy of a scope over a run, and in windows; idle power is that before the load, None if unknown."""

    scope: str
    family: str
    whole: Quantity
    windows: EnergyWindows
    idle: IdlePower | None
    update_s: float


def measure_scope(run: Run, scope: str | None = None) -> MeasuredScope:
    """Read the energy of a scope in windows: `gpu`, `node`, `wall`, or the first that was measured.

    Raises ConfigError if it was not measured.
    """
    span = find_span(run, list(run.events()))
    joined = load_joined(run, span)
    measured = [(name, [s for s in joined.scopes if find_family(s.scope) == f]) for name, f in _list_families(scope)]
    found = next((each for each in measured if each[1]), None)
    if found is None:
        there = sorted({find_family(s.scope) for s in joined.scopes})
        raise ConfigError(
            f"no power of {scope or 'GPUs, node or wall'} was measured", where=run.path.name,
            why=f"the run has {', '.join(there) or 'no power meter'}", next="choose another --scope",
            code="config.unknown-scope",
        )  # fmt: skip
    name, scopes = found
    curves = [_choose_curve(one, span.start_ns, span.end_ns) for one in scopes]
    update_s = max(_find_update(channel) for channel, _ in curves)
    edges = _cut_windows(span, update_s)
    spans = [(int(a), int(b)) for a, b in pairwise(edges)]
    energy = np.array([sum(channel.energy(*span).value * factor for channel, factor in curves) for span in spans])
    whole = add_quantities(one.best.energy(span.start_ns, span.end_ns) for one in scopes)
    windows = EnergyWindows(edges, np.asarray(energy, dtype=np.float64))
    return MeasuredScope(name, find_family(scopes[0].scope), whole, windows, _find_idle(curves, span), update_s)


def _find_update(channel: EnergyChannel) -> float:
    return max(channel.update_s, channel.step_s)


def _choose_curve(scope: ScopeChannels, a_ns: int, b_ns: int) -> tuple[EnergyChannel, float]:
    """Return the channel that shows when energy was used, and the factor that makes its total that of the best one.

    It is the best one, unless that is too slow for short windows and a faster meter agrees with it.
    """
    best = scope.best
    if UPDATES_PER_WINDOW * _find_update(best) <= WINDOW_S:
        return best, 1.0
    total = best.energy(a_ns, b_ns).value
    for channel in sorted(scope.channels[1:], key=_find_update):
        if _find_update(channel) >= _find_update(best) or channel.coverage(a_ns, b_ns) < FEWEST_SEEN:
            continue
        own = channel.energy(a_ns, b_ns).value
        if own > 0 and not channel.frozen and not channel.spec.estimate and abs(total / own - 1) <= MOST_OFF:
            return channel, total / own
    return best, 1.0


def _list_families(scope: str | None) -> list[tuple[str, str]]:
    chosen = SCOPES if scope is None else {scope: SCOPES[scope]}
    return [(name, family) for name, families in chosen.items() for family in families]


def _cut_windows(span: RunSpan, update_s: float) -> Any:
    """Return the edges (ns) of windows over the run, whole updates of the meter long."""
    length_s = (span.end_ns - span.start_ns) * 1e-9
    window_s = min(max(WINDOW_S, UPDATES_PER_WINDOW * update_s, length_s / MOST_WINDOWS), LONGEST_WINDOW_S)
    count = max(int(length_s / window_s), 1)
    return np.linspace(span.start_ns, span.end_ns, count + 1).astype(np.int64)


def _find_idle(curves: Sequence[tuple[EnergyChannel, float]], span: RunSpan) -> IdlePower | None:
    if span.idle is None or span.idle[1] <= span.idle[0]:
        return None
    seconds = (span.idle[1] - span.idle[0]) * 1e-9
    idle = add_quantities(channel.energy(*span.idle) * factor for channel, factor in curves) * (1 / seconds)
    # The meter's own errors are the same in idle time and under load: they are no error of the difference.
    return IdlePower(idle.value, idle.without("gain", "offset", "lag", "unseen", "in-step").u, "before")


def divide_energy(
    measured: MeasuredScope, requests: Sequence[Request], *, with_idle: bool = False, by: str | None = None
) -> Attribution:
    """Divide the energy of a scope among requests by the model, or by time where the model cannot be fitted."""
    windows = measured.windows
    notes = list(_find_obstacles(measured, requests))
    fitted = None if notes else fit_requests(windows, requests, measured.idle, max(LAG_SPREAD_S, measured.update_s))
    by_time = fitted is None
    if fitted is None:
        activity = list_activity(requests, windows.edges_ns)
        idle = measured.idle or find_idle(windows, activity) or IdlePower(0.0, 0.0, "unknown")
        notes = notes or [Note("too-few-windows", {"windows": float((~activity.is_empty).sum())})]
        fitted = _use_time_alone(activity), _make_time_model(idle)
    activity, model = fitted
    shares = share_energy(windows, activity, model, with_idle=with_idle)
    idle_j = Quantity(0.0) if with_idle else _find_idle_energy(windows, model.idle)
    tokens = None if by_time else compute_token_energy(windows, activity, model)
    scale = _find_shared_terms(measured.whole)
    decode_u_j = 0.0
    if tokens is not None:  # errors of the whole energy, such as those of its edges, are those of its largest part
        decode_u_j = math.hypot(
            tokens.decode_u_j, measured.whole.without(*SHARED_KINDS, "offset").u / max(tokens.decode_tokens, 1.0)
        )
    known = measured.whole.known and not by_time  # how far a division by time is off, is not known
    members = tuple(_make_request(k, request, shares, scale, known) for k, request in enumerate(requests))
    found = Attribution(
        scope=measured.scope,
        family=measured.family,
        measured=measured.whole,
        idle=idle_j,
        unassigned_j=shares.unassigned_j - idle_j.value,
        with_idle=with_idle,
        requests=members,
        prefill_token=None if tokens is None else _make_token(tokens.prefill_j, tokens.prefill_u_j, "prefill", scale),
        decode_token=None if tokens is None else _make_token(tokens.decode_j, decode_u_j, "decode", scale),
        by_time=by_time,
        window_s=float(np.median(windows.seconds)),
        idle_source=model.idle.source,
        notes=tuple(notes),
    )
    return found if by is None else replace(found, labels=_sum_labels(by, found, shares, scale))


def _find_obstacles(measured: MeasuredScope, requests: Sequence[Request]) -> Iterable[Note]:
    """Yield why energy cannot be divided by tokens."""
    if UPDATES_PER_WINDOW * measured.update_s > LONGEST_WINDOW_S:
        yield Note("slow-meter", {"update_s": measured.update_s})
    answered = [request for request in requests if request.first_ns is not None]
    known = [request for request in answered if request.prompt_tokens is not None and request.output_tokens is not None]
    if len(known) < FEWEST_KNOWN * len(answered) or not answered:
        yield Note("no-usage", {"unknown": float(len(answered) - len(known)), "requests": float(len(answered))})


def _make_time_model(idle: IdlePower) -> EnergyModel:
    size = len(("iteration", "prefill", "decode", "context"))
    values = np.zeros(size)
    values[ITERATION] = 1.0
    return EnergyModel(values, np.zeros((size, size)), idle, np.zeros(size), 0.0, 0)


def _use_time_alone(activity: Activity) -> Activity:
    amounts = np.zeros_like(activity.amounts)
    amounts[:, ITERATION] = activity.seconds
    return replace(activity, amounts=amounts)


def _find_idle_energy(windows: EnergyWindows, idle: IdlePower) -> Quantity:
    """Return idle power x time, never more than what was measured in a window."""
    energy = np.clip(np.minimum(windows.seconds * idle.watts, windows.energy_j), 0.0, None)
    return Quantity(float(energy.sum()), {"idle": idle.u_w * float(windows.seconds.sum())})


def _find_shared_terms(whole: Quantity) -> dict[str, float]:
    """Return the relative errors of the meter that every share has alike, by source."""
    if whole.value <= 0:
        return {}
    kept = {source: u for source, u in whole.terms.items() if source.split(":", 1)[0] in SHARED_KINDS}
    return {source: u / whole.value for source, u in kept.items()}


def _make_token(value: float, u: float, name: str, scale: Mapping[str, float]) -> Quantity | None:
    if not math.isfinite(value):
        return None
    return Quantity(value, {source: share * value for source, share in scale.items()} | {f"fit:{name}": u})


def _make_request(k: int, request: Request, shares: Shares, scale: Mapping[str, float], known: bool) -> RequestEnergy:
    total, parts = float(shares.total_j[k]), shares.parts_j[k]
    terms = {source: share * total for source, share in scale.items()} | {f"share:{request.id}": float(shares.u_j[k])}
    flags = []
    if request.first_ns is not None and (request.prompt_tokens is None or request.output_tokens is None):
        flags.append("no-usage")
    if request.status != "ok":
        flags.append(request.status)
    prefill = float(parts[PREFILL])
    return RequestEnergy(
        request,
        Quantity(total, terms, known),
        prefill,
        float(parts.sum()) - prefill,
        float(shares.idle_j[k]),
        tuple(flags),
    )


def _sum_labels(by: str, found: Attribution, shares: Shares, scale: Mapping[str, float]) -> dict[str, LabelEnergy]:
    """Return the sums by the values of a label, the largest first; requests without the label are `-`."""
    members: dict[str, list[int]] = {}
    for k, one in enumerate(found.requests):
        members.setdefault(one.request.labels.get(by, "-"), []).append(k)
    sums = {}
    for value, places in members.items():
        total, u = shares.sum_requests(places)
        terms = {source: share * total for source, share in scale.items()} | {f"share:{by}={value}": u}
        own = [found.requests[k].request for k in places]
        prompt, output = _sum_known(r.prompt_tokens for r in own), _sum_known(r.output_tokens for r in own)
        sums[value] = LabelEnergy(
            value, len(places), prompt, output, Quantity(total, terms, found.measured.known and not found.by_time)
        )
    return dict(sorted(sums.items(), key=lambda item: -item[1].energy.value))


def _sum_known(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def write_requests(found: Attribution, path: Path) -> None:
    """Write one row for each request as JSONL, or as Parquet by the end of the file's name. Raises ConfigError."""
    rows = [one.to_json() | {"scope": found.scope, "with_idle": found.with_idle} for one in found.requests]
    if path.suffix == ".parquet":
        _write_parquet(rows, path)
    elif path.suffix in (".jsonl", ".json"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        raise ConfigError(
            f"{path.name} is neither JSONL nor Parquet", where="--out", next="name it .jsonl or .parquet",
            code="config.out-format",
        )  # fmt: skip


def _write_parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    import duckdb

    texts = {"labels": json.dumps, "flags": ",".join}
    columns = list(rows[0])
    plain = [[texts[name](row[name]) if name in texts else row[name] for name in columns] for row in rows]
    kinds = {"id": "VARCHAR", "status": "VARCHAR", "labels": "VARCHAR", "flags": "VARCHAR", "scope": "VARCHAR"}
    kinds |= {"with_idle": "BOOLEAN", "prompt_tokens": "BIGINT", "output_tokens": "BIGINT", "sent_ns": "BIGINT"}
    with duckdb.connect() as database:
        listed = ", ".join(f"{name} {kinds.get(name, 'DOUBLE')}" for name in columns)
        database.execute(f"CREATE TABLE requests ({listed})")
        database.executemany(f"INSERT INTO requests VALUES ({', '.join('?' * len(columns))})", plain)  # noqa: S608 names of our own
        database.execute(f"COPY requests TO '{str(path).replace(chr(39), chr(39) * 2)}' (FORMAT parquet)")
