"""Add up scopes without counting anything twice, and find the rest of a node: its energy minus that of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from joulelab.analysis.joining import INNER_FAMILIES
from joulelab.analysis.readings import Readings, describe_power
from joulelab.analysis.result import GroupResult, ScopeResult
from joulelab.analysis.slow_meters import ChannelSums, find_window_means
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import CORDS, find_family, find_parent, find_roots, list_ancestors, rank_scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.analysis.result import PowerStatistics


class ScopePlace(Protocol):
    """Define what is needed to place a scope in the tree; the channels and the result of a scope both have it."""

    @property
    def scope(self) -> str:
        """Return the scope."""

    @property
    def host(self) -> str:
        """Return the host."""

    @property
    def parent(self) -> str | None:
        """Return the scope that contains this one."""

    @property
    def estimate(self) -> bool:
        """Return whether the energy is estimated, not measured."""


P = TypeVar("P", bound=ScopePlace)


def stack_scopes(scopes: Sequence[P]) -> list[tuple[P, list[P]]]:
    """List the scopes that add up to everything measured, each with the parts inside it.

    The rest of a scope is its energy minus that of its parts. A scope that no measured scope contains is listed itself.
    """
    keys = {f"{s.host}/{s.scope}": s for s in _drop_estimates(scopes)}
    tree, summed = _build_tree(keys), _select_summed(keys)
    found = []
    for key in find_roots(summed, tree):
        inside = {
            k: s for k, s in summed.items() if key in list_ancestors(k, tree) and find_family(s.scope) in INNER_FAMILIES
        }
        inner = (
            [inside[k] for k in find_roots(inside, tree)] if find_family(keys[key].scope) not in INNER_FAMILIES else []
        )
        found.append((keys[key], sorted(inner, key=_rank_place)))
    return sorted(found, key=lambda pair: _rank_place(pair[0]))


def _rank_place(scope: ScopePlace) -> tuple[str, tuple[int, str, list[int], str]]:
    return scope.host, rank_scope(scope.scope)


def _drop_estimates(scopes: Sequence[P]) -> tuple[P, ...]:
    """Leave out estimates of families that were measured as well."""
    measured = {(s.host, find_family(s.scope)) for s in scopes if not s.estimate}
    return tuple(s for s in scopes if not s.estimate or (s.host, find_family(s.scope)) not in measured)


def break_down_energy(
    results: tuple[ScopeResult, ...],
    channels: Sequence[ScopeChannels],
    duration_s: float,
    a_ns: int,
    b_ns: int,
    sums: ChannelSums | None = None,
) -> tuple[tuple[GroupResult, ...], dict[str, Quantity]]:
    """Return sums by family and over all, the rest of each node, and the efficiency of supplies.

    `duration_s` (s) is the length of [a, b]; `sums` caches sums of parts over time.
    """
    scopes = _drop_estimates(results)
    keys = {f"{s.host}/{s.scope}": s for s in scopes}
    tree = _build_tree(keys)

    def select_roots(members: dict[str, ScopeResult]) -> list[ScopeResult]:
        chosen = set(find_roots(members, tree))
        return [s for k, s in members.items() if k in chosen]

    families: dict[str, dict[str, ScopeResult]] = {}
    for key, scope in keys.items():
        families.setdefault(find_family(scope.scope), {})[key] = scope
    groups = [_make_group(name, select_roots(members), duration_s) for name, members in families.items()]
    summed = _select_summed(keys)
    if summed:
        groups.append(_make_group("measured", select_roots(summed), duration_s))
    known, together = {(c.host, c.scope): c for c in channels}, sums or ChannelSums()
    several = len({s.host for s in scopes if find_family(s.scope) != "job"}) > 1
    ratios: dict[str, Quantity] = {}
    for key, node in keys.items():
        if not node.scope.startswith("node."):
            continue
        inside = {
            k: s for k, s in summed.items() if key in list_ancestors(k, tree) and find_family(s.scope) in INNER_FAMILIES
        }
        inner = select_roots(inside)
        if inner:
            groups.append(
                _make_rest(node, inner, duration_s, describe_rest(known, node, inner, (a_ns, b_ns), together))
            )
        direct = keys.get(f"{node.host}/node.dc")
        if node.scope == "node.ac" and direct is not None and node.energy.value > 0:
            loss = node.energy - direct.energy
            mean = loss * (1 / max(duration_s, 1e-9))
            groups.append(GroupResult("supply loss", ("node.dc",), loss, mean, None, hosts=(node.host,)))
            name = f"{node.host}: supply efficiency" if several else "supply efficiency"
            ratios[name] = direct.energy / node.energy
    return tuple(groups), ratios


def _select_summed(keys: dict[str, P]) -> dict[str, P]:
    """Select the scopes for the sum of everything: psys, single cords and accounted jobs would count energy twice."""
    # A job covers whole nodes: it is in no sum if anything of them is measured; beside estimates it counts.
    jobs = {k: s for k, s in keys.items() if find_family(s.scope) == "job"}
    read = any(not s.estimate for k, s in keys.items() if k not in jobs)
    keys = {k: s for k, s in keys.items() if k not in jobs} if read or not jobs else jobs
    # The board's maker defines what psys covers: it is in no sum if packages are measured.
    hosts = {s.host for s in keys.values() if find_family(s.scope) == "cpu" and not s.estimate}
    summed = {k: s for k, s in keys.items() if find_family(s.scope) != "psys" or s.host not in hosts}
    # Cords that are not a complete set contain an unknown part of the node: they are in a sum only if nothing else is.
    # So do the sensors of accelerator boards: one may hold two GPUs, or GPU and CPU.
    unclear = (*CORDS, "accel")
    others = {s.host for s in summed.values() if find_family(s.scope) not in unclear}
    return {k: s for k, s in summed.items() if find_family(s.scope) not in unclear or s.host not in others}


def _build_tree(keys: dict[str, P]) -> dict[str, str | None]:
    """Return the containing scope of each scope, including containing scopes that were not measured."""
    tree = {k: f"{s.host}/{s.parent}" if s.parent else None for k, s in keys.items()}
    racks = [k for k, s in keys.items() if find_family(s.scope) == "rack"]
    for key in keys:
        above = tree[key]
        while above is not None and above not in tree:
            host, scope = above.split("/", 1)
            held = find_parent(scope, None)
            tree[above] = f"{host}/{held}" if held else None
            above = tree[above]
    # A rack is read by one host and contains the nodes of all.
    return {
        k: racks[0] if racks and held and held.endswith("/rack") and held not in keys else held
        for k, held in tree.items()
    }


def _make_group(name: str, members: list[ScopeResult], duration_s: float) -> GroupResult:
    energy = add_quantities(s.energy for s in members)
    nets = [s.net for s in members]
    net = add_quantities(n for n in nets if n is not None) if nets and all(n is not None for n in nets) else None
    estimate = any(s.reading.estimate for s in members)
    names, hosts = tuple(s.scope for s in members), tuple(s.host for s in members)
    return GroupResult(name, names, energy, energy * (1 / max(duration_s, 1e-9)), net, estimate, hosts=hosts)


def _make_rest(
    node: ScopeResult, inner: list[ScopeResult], duration_s: float, statistics: PowerStatistics | None
) -> GroupResult:
    energy = node.energy - add_quantities(s.energy for s in inner)
    names = tuple(s.scope for s in inner)
    estimate = any(s.reading.estimate for s in (node, *inner))
    mean = energy * (1 / max(duration_s, 1e-9))
    hosts = tuple(s.host for s in inner)
    statistics = statistics and statistics.include_mean(mean.value)
    return GroupResult(f"rest of {node.scope}", names, energy, mean, None, estimate, statistics, hosts)


def find_rest_power(node: ScopeChannels, inner: Sequence[ScopeChannels], sums: ChannelSums) -> Readings | None:
    """Return the power (W) of a node minus that of its parts, at the node's readings; None if either is missing."""
    power = node.find_power()
    if power is None or not inner:
        return None
    parts = sums.add_up([s.best for s in inner])
    base = parts.base_ns
    shown = find_window_means(power, base)
    inside = (shown.middle - shown.width / 2 >= parts.t[0]) & (shown.middle + shown.width / 2 <= parts.t[-1])
    if not inside.any():
        return None
    rest = shown.value - parts.find_means(shown.middle, shown.width)
    at = base + np.rint(shown.middle[inside] * 1e9).astype(np.int64)
    return Readings.from_rows(at, at, rest[inside])


def describe_rest(
    known: dict[tuple[str, str], ScopeChannels],
    node: ScopeResult,
    inner: list[ScopeResult],
    over: tuple[int, int],
    sums: ChannelSums,
) -> PowerStatistics | None:
    """Return statistics of a node's rest (W) over [a, b]."""
    whole = known[node.host, node.scope]
    rest = find_rest_power(whole, [known[s.host, s.scope] for s in inner], sums)
    shown = whole.find_power()
    if rest is None or shown is None:
        return None
    return describe_power(rest, *over, window_s=shown.spec.window_s, step_s=shown.step_s)
