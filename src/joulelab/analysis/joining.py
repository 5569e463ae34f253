"""Join the meters of a run: align, guide, add cords, rank the channels of a scope, and compare meters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from joulelab.analysis.channels import EnergyChannel, ScopeChannels, sum_cords
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.power import PowerCurve
from joulelab.analysis.result import Lag, MeterComparison
from joulelab.analysis.slow_meters import (
    FULL_VIEW,
    SAME_LOAD,
    ChannelSums,
    CumulativeEnergy,
    DoubtedCurve,
    Guide,
    GuidedCurve,
    WatchedCurve,
    accumulate_energy,
    estimate_lag,
    find_window_means,
    has_moved,
    shows_workload,
)
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family, find_parent, find_roots, rank_scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.analysis.result import ChannelEnergy, Check, ScopeResult

INNER_FAMILIES = ("gpu", "cpu", "dram")
OUTER_FAMILIES = ("node.dc", "node.ac", "psu", "psu.dc", "outlet", "rack")
SLOW_FACTOR = 2.0  # a meter with this many times the step of the fast meters inside it is guided by them
FOLLOWS_CORRELATION = 0.5  # correlation below which a meter does not follow a load that moved
GUIDE_COVERAGE = 0.98  # share of the workload that the fast meters must have seen to guide
COUNTER_BONUS = 2.0  # factor by which a power must be better than a counter of the same meter to be preferred
SLOW_PENALTY = 3.0  # factor by which a slow meter inside a node must be better than a fast one to be preferred
NO_LAG = "no-lag"
AGREE_SHARE = 0.005  # meters that differ by less agree, however small their uncertainties are
# Standard uncertainties by which meters differ: a run compares 20 and more pairs, of which 5 % would differ by twice.
DIFFER_FACTOR = 2.5
# A difference is evidence for a load in step with a sensor only if it is large against the energy, and against the
# bound that would then be part of the interval. A difference of 1 % is no reason to print ± 77 %.
EVIDENT_SHARE = 0.03
EVIDENT_BOUND_SHARE = 0.05
# A counter takes these terms from a power of the same sensor: they are as large, but not the same errors.
OWN_TERMS = ("sampling:", "missed:")


@dataclass(frozen=True)
class JoinedScopes:
    """Hold the joined scopes, the estimated lags, and failed checks of sums that lack a part.

    `sums` caches sums of the parts of nodes.
    """

    scopes: list[ScopeChannels]
    lags: list[Lag] = field(default_factory=list)
    incomplete: list[Check] = field(default_factory=list)
    sums: ChannelSums = field(default_factory=ChannelSums)


@dataclass(frozen=True)
class _FastMeters:
    """Hold the fast meters of a host, to compare its slow ones with: GPUs, packages and memory."""

    channels: list[EnergyChannel]
    curve: CumulativeEnergy
    sees_all: bool
    known: dict[tuple[int, int], Quantity] = field(default_factory=dict)
    seen: dict[tuple[int, int], float] = field(default_factory=dict)

    def coverage(self, a_ns: int, b_ns: int) -> float:
        """Return the share of [a, b] in which all of these meters were read."""
        if (a_ns, b_ns) not in self.seen:
            self.seen[a_ns, b_ns] = min(c.coverage(a_ns, b_ns) for c in self.channels)
        return self.seen[a_ns, b_ns]

    def energy(self, a_ns: int, b_ns: int) -> Quantity:
        """Return the energy of [a, b] in J; cached, because every slow meter needs the same time spans."""
        if (a_ns, b_ns) not in self.known:
            self.known[a_ns, b_ns] = add_quantities(c.energy(a_ns, b_ns) for c in self.channels)
        return self.known[a_ns, b_ns]


def join_meters(scopes: Sequence[ScopeChannels], a_ns: int, b_ns: int) -> JoinedScopes:
    """Join the channels of a run whose workload ran in [a, b]."""
    lags: list[Lag] = []
    together = ChannelSums()
    hosts = {s.host for s in scopes}
    fast = {host: _select_fast([s for s in scopes if s.host == host], together) for host in hosts}
    aligned = [_align_scope(s, fast[s.host], (a_ns, b_ns), lags) for s in scopes]
    doubted = {(g.host, g.meter, g.stream) for g in lags if g.doubted}
    timed = {(g.host, g.meter, g.stream) for g in lags if g.applied or g.why in (NO_LAG, "load-repeats")}
    guided = [_guide_scope(s, fast[s.host], (a_ns, b_ns), timed, doubted) for s in aligned]
    sums, incomplete = sum_cords(guided)
    found = {(s.host, s.scope): s for s in guided}
    for (host, scope), channels in sums.items():
        known = found.get((host, scope)) or ScopeChannels(scope, host, find_parent(scope, None), ())
        found[host, scope] = replace(known, channels=(*known.channels, *channels))
    ranked = (_rank_channels(s, a_ns, b_ns) for s in found.values())
    return JoinedScopes(sorted(ranked, key=lambda s: (s.host, rank_scope(s.scope))), lags, incomplete, together)


def select_inner_scopes(scopes: Iterable[ScopeChannels]) -> list[ScopeChannels]:
    """Return the measured GPUs, packages and memory of a host; none of them contains another."""
    inside = {s.scope: s for s in scopes if find_family(s.scope) in INNER_FAMILIES and not s.estimate}
    return [inside[name] for name in find_roots(inside, {name: s.parent for name, s in inside.items()})]


def _select_fast(scopes: list[ScopeChannels], sums: ChannelSums) -> _FastMeters | None:
    """Return the fast meters of a host, None if there are none, or no slow meters to compare with them."""
    channels = [scope.best for scope in select_inner_scopes(scopes)]
    if not channels or not any(find_family(s.scope) in OUTER_FAMILIES for s in scopes):
        return None
    curve = sums.add_up(channels)
    sees_all = all(_find_seen_share(channel) >= FULL_VIEW for channel in channels)
    return _FastMeters(channels, curve, sees_all) if curve.t[-1] > curve.t[0] else None


def _find_seen_share(channel: EnergyChannel) -> float:
    """Return the share of the time that a fast channel measures, as it was read."""
    if channel.spec.kind == "counter":
        return channel.spec.seen
    return min(channel.spec.seen, (channel.spec.window_s or 0.0) / max(channel.step_s, channel.update_s))


def _align_scope(
    scope: ScopeChannels, fast: _FastMeters | None, workload: tuple[int, int], lags: list[Lag]
) -> ScopeChannels:
    """Return a scope whose streams are moved back by their lag behind the reference, if the lag is well known."""
    shifts: dict[tuple[str, str], Lag] = {}
    # Of the channels of a stream, the power with the shortest window shows times best.
    for channel in sorted(scope.channels, key=lambda c: (c.spec.kind != "power", c.spec.window_s or 0.0)):
        key = (channel.meter, channel.stream.name)
        reference = _find_lag_reference(scope, channel, fast)
        if reference is None or (key in shifts and shifts[key].why in ("", NO_LAG)):
            continue
        against, curve = reference
        least = channel.spec.lag_s / 2 + channel.update_s + curve.step_s
        shown = find_window_means(channel, curve.base_ns)
        found = estimate_lag(shown, curve, least)
        why = NO_LAG if not found.why and abs(found.lag_s) <= 2 * found.u_s else found.why
        if key not in shifts or why in ("", NO_LAG):
            shifts[key] = Lag(
                host=scope.host,
                meter=channel.meter,
                stream=channel.stream.name,
                scope=scope.scope,
                against=against,
                lag_s=found.lag_s,
                u_s=found.u_s,
                correlation=found.correlation,
                applied=not why,
                why=why,
                total_s=found.lag_s + channel.spec.lag_s / 2,
                numbers=found.numbers,
            )
    if fast is not None and find_family(scope.scope) in OUTER_FAMILIES:
        shifts = _doubt_meters(scope, fast, workload, shifts)
    lags += shifts.values()
    moved = {key: lag for key, lag in shifts.items() if lag.applied}
    channels = []
    for channel in scope.channels:
        lag = moved.get((channel.meter, channel.stream.name))
        if lag is not None:
            assert isinstance(channel.curve, (PowerCurve, CounterCurve))  # sums and guides are made later
            channel = replace(channel, curve=channel.curve.shift_back(lag.lag_s, lag.u_s))  # noqa: PLW2901
        channels.append(channel)
    return replace(scope, channels=tuple(channels))


def _doubt_meters(
    scope: ScopeChannels, fast: _FastMeters, workload: tuple[int, int], lags: dict[tuple[str, str], Lag]
) -> dict[tuple[str, str], Lag]:
    """Mark the streams around a node that do not follow its load although it moved; see the rules at RISE_SHARE.

    A stream whose energy agrees with that of another meter of its scope is believed in any case.
    """
    is_seen = fast.sees_all or any(lag.correlation >= SAME_LOAD for lag in lags.values())
    found = dict(lags)
    for key in (key for key, lag in lags.items() if lag.correlation < FOLLOWS_CORRELATION):
        channels = [c for c in scope.channels if (c.meter, c.stream.name) == key]
        if any(_is_dead(c, fast, workload, is_seen=is_seen) for c in channels) and not any(
            _has_same_energy(c, other, workload) for c in channels for other in scope.channels if other.meter != key[0]
        ):
            found[key] = replace(lags[key], doubted=True)
    return found


def _is_dead(channel: EnergyChannel, fast: _FastMeters, workload: tuple[int, int], *, is_seen: bool) -> bool:
    """Return whether a channel misses a movement of the load: of the whole workload, or in it if that `is_seen`.

    One of several cords may carry a small part of a node, or nothing: it is not judged by the whole.
    """
    base, quantum_w = fast.curve.base_ns, _find_quantum_w(channel, fast)
    shown, late_s = find_window_means(channel, base), channel.spec.lag_s / 2 + channel.update_s + fast.curve.step_s
    a, b = ((t - base) * 1e-9 for t in workload)
    rises = shows_workload(shown, fast.curve, (a, b), late_s, quantum_w)
    if rises or (rises is not None and channel.stream.parts < 2 and _find_seen_share(channel) >= FULL_VIEW):
        return not rises
    return is_seen and has_moved(shown, fast.curve, late_s, quantum_w)


def _has_same_energy(channel: EnergyChannel, other: EnergyChannel, workload: tuple[int, int]) -> bool:
    """Return whether two channels with a known accuracy agree about the energy of the workload."""
    energy, expected = channel.energy(*workload), other.energy(*workload)
    return judge_difference(energy - expected, expected) == "agree"


def _find_lag_reference(
    scope: ScopeChannels, channel: EnergyChannel, fast: _FastMeters | None
) -> tuple[str, CumulativeEnergy] | None:
    """Return the reference for a channel's lag: the fast meters inside its scope, or the fastest other meter of it."""
    if find_family(scope.scope) in OUTER_FAMILIES and fast is not None:
        names = dict.fromkeys(find_family(c.stream.scope) for c in fast.channels)
        return " + ".join(names), fast.curve
    others = [c for c in scope.channels if c.meter != channel.meter and not c.spec.estimate]
    best = min(others, key=lambda c: (c.step_s, c.meter), default=None)
    if best is None or (best.step_s, best.meter) > (channel.step_s, channel.meter):
        return None
    return best.meter, accumulate_energy(best, int(best.readings.t0_ns[0]))


def _find_quantum_w(channel: EnergyChannel, fast: _FastMeters | None) -> float:
    """Return the coarsest power step (W) of a channel and of the fast meters inside it."""
    shown = [channel, *(fast.channels if fast is not None else ())]
    steps_w: list[float] = [c.spec.accuracy.quantum / (c.step_s if c.spec.kind == "counter" else 1.0) for c in shown]
    return max(steps_w)


def _guide_scope(
    scope: ScopeChannels,
    fast: _FastMeters | None,
    workload: tuple[int, int],
    timed: set[tuple[str, str, str]],
    doubted: set[tuple[str, str, str]],
) -> ScopeChannels:
    """Return a scope whose slow power channels are guided, or watched, by the fast meters inside the scope.

    `timed` are the streams with a known lag: with a wrong lag, a guided meter would be wrong with a small uncertainty.
    """
    if fast is None or find_family(scope.scope) not in OUTER_FAMILIES:
        return scope
    covered = fast.coverage(*workload) >= GUIDE_COVERAGE
    channels = []
    for channel in scope.channels:
        stream = (channel.host, channel.meter, channel.stream.name)
        if stream in doubted:
            assert isinstance(channel.curve, (PowerCurve, CounterCurve))
            channels.append(replace(channel, curve=DoubtedCurve(channel.curve)))
        else:
            channels.append(_guide_channel(channel, fast, workload, timed=stream in timed) if covered else channel)
    return replace(scope, channels=tuple(channels))


def _guide_channel(
    channel: EnergyChannel, fast: _FastMeters, workload: tuple[int, int], *, timed: bool
) -> EnergyChannel:
    slowest = max(max(c.step_s, c.update_s) for c in fast.channels)
    curve = channel.curve
    if not isinstance(curve, PowerCurve) or max(curve.step_s, curve.update_s) < SLOW_FACTOR * slowest:
        return channel
    guide = Guide(fast.curve, fast.energy)
    try:
        if timed:
            return replace(channel, curve=GuidedCurve(curve, guide, *workload))
    except ValueError:
        pass  # it stays without a guide
    return channel if curve.window_s >= curve.step_s else replace(channel, curve=WatchedCurve(curve, guide))


def _rank_channels(scope: ScopeChannels, a_ns: int, b_ns: int) -> ScopeChannels:
    """Sort channels: measured before estimated, known before unknown accuracy, then the smallest uncertainty first.

    Inside a node this ranks meters, and in one meter a counter comes first unless a power is much better. A slow meter
    must be much better than a fast one, because phases are short.
    """
    inside = find_family(scope.scope) not in OUTER_FAMILIES
    if inside and len({c.meter for c in scope.channels}) < 2:
        return scope
    fastest = min(c.step_s for c in scope.channels)
    found = {id(c): c.energy(a_ns, b_ns) for c in scope.channels}

    def find_width(channel: EnergyChannel) -> float:
        energy = found[id(channel)]
        width = energy.u + EVIDENT_BOUND_SHARE * energy.with_bound().u  # an unlikely error counts a little
        return width * (SLOW_PENALTY if inside and channel.step_s > SLOW_FACTOR * fastest else 1.0)

    def rank_channel(channel: EnergyChannel) -> tuple[bool, bool, bool, float, str, float]:
        peers = [c for c in scope.channels if c.meter == channel.meter] if inside else [channel]
        width = min(find_width(c) for c in peers)
        own = find_width(channel) / (COUNTER_BONUS if inside and channel.spec.kind == "counter" else 1.0)
        return channel.spec.estimate, channel.frozen, not found[id(channel)].known, width, channel.meter, own

    return replace(scope, channels=tuple(sorted(scope.channels, key=rank_channel)))


def compare_meters(scopes: Iterable[ScopeResult]) -> tuple[MeterComparison, ...]:
    """Compare the other channels of each scope with its best channel."""
    return tuple(_compare_channels(s, other) for s in scopes for other in s.others if not other.estimate)


def judge_difference(difference: Quantity, best: Quantity) -> str:
    """Return `agree`, `differ` or `cannot tell` for two energies, by the uncertainty of their difference."""
    if not difference.known:
        return "cannot tell"
    allowed = max(DIFFER_FACTOR * difference.u, AGREE_SHARE * abs(best.value))
    return "differ" if abs(difference.value) > allowed else "agree"


def mark_in_step(scopes: Sequence[ScopeChannels], found: Iterable[MeterComparison]) -> list[ScopeChannels]:
    """Mark the best channel of a scope if another meter shows that the load repeats at the rate of its sensor.

    The bound of unseen energy is then part of its interval.
    """
    by_scope: dict[tuple[str, str], list[MeterComparison]] = {}
    for comparison in found:
        by_scope.setdefault((comparison.host, comparison.scope), []).append(comparison)
    return [
        replace(s, channels=(replace(s.best, in_step=True), *s.channels[1:]))
        if any(_is_evidence(c, s, by_scope[s.host, s.scope]) for c in by_scope.get((s.host, s.scope), ()))
        else s
        for s in scopes
    ]


def _is_evidence(comparison: MeterComparison, scope: ScopeChannels, beside: Sequence[MeterComparison]) -> bool:
    """Return whether a comparison shows that the load repeats at the rate of the sensor of the best channel.

    Another channel of that sensor has the same bound. It is evidence if the best channel agrees with the power that
    shows single windows, so that it may have seen no more than these. If it does not agree with it, it has seen more.
    """
    best, difference = comparison.best.energy, abs(comparison.difference.value)
    if comparison.verdict != "differ" or not best.bounds:
        return False
    windows = scope.find_power()
    if (
        windows is not None
        and windows is not scope.best
        and best.bounds.keys() <= comparison.other.energy.bounds.keys()
    ):
        shown = (windows.meter, windows.spec.name)
        verdicts = {(c.other.meter, c.other.channel): c.verdict for c in beside}
        if verdicts.get(shown) != "agree":
            return False
    return difference > max(EVIDENT_SHARE * abs(best.value), EVIDENT_BOUND_SHARE * (best.bound or 0.0))


def _compare_channels(scope: ScopeResult, other: ChannelEnergy) -> MeterComparison:
    best = scope.reading
    own = {f"{s}@other" if s.startswith(OWN_TERMS) else s: u for s, u in other.energy.terms.items()}
    difference = replace(other.energy, terms=own) - best.energy
    return MeterComparison(scope.host, scope.scope, best, other, difference, judge_difference(difference, best.energy))
