"""Add the cords of a node: streams that declare the scope they are parts of become one channel of that scope."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.readings import Readings
from joulelab.analysis.result import Check
from joulelab.core.quantity import Quantity, total
from joulelab.core.scope import find_family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.channels import EnergyChannel, ScopeChannels
    from joulelab.analysis.readings import Ints


class SumCurve:
    """Answer the energy of several channels together: each has its own terms, what they share adds linearly.

    `readings` are their powers (W) at the times of the one that was read least; a sum of counters has none of its own.
    """

    def __init__(self, parts: Sequence[EnergyChannel]) -> None:
        self.parts = tuple(parts)
        base = min(self.parts, key=lambda c: len(c.readings)).readings
        value = np.zeros(len(base))
        for part in self.parts:
            r = part.readings
            value = value + np.interp((base.t0_ns - r.t0_ns[0]).astype(np.float64), r.t0_ns - r.t0_ns[0], r.value)
        self.readings = Readings(base.t0_ns, base.t1_ns, value)

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J."""
        return total(part.energy(a_ns, b_ns, steps_ns) for part in self.parts)


def sum_cords(scopes: Sequence[ScopeChannels]) -> tuple[dict[tuple[str, str], list[EnergyChannel]], list[Check]]:
    """Return the sums by host and scope, and a failed check for each that lacks a cord: there is no sum then."""
    groups: dict[tuple[str, str, str, str, str], list[EnergyChannel]] = {}
    for scope in scopes:
        for channel in scope.channels:
            stream = channel.stream
            if stream.sums:
                # Supplies are counted by the meter that lists them, outlets over all PDUs.
                by = "" if find_family(stream.scope) == "outlet" else channel.meter
                key = (scope.host, stream.sums, find_family(stream.scope), by, channel.spec.name)
                groups.setdefault(key, []).append(channel)
    found: dict[tuple[str, str], list[EnergyChannel]] = {}
    lacking: dict[str, Check] = {}
    for (host, whole, kind, _, name), parts in groups.items():
        wanted = max(part.stream.parts for part in parts)
        if len(parts) == wanted:
            found.setdefault((host, whole), []).append(_sum(whole, parts))
        else:
            meters = ", ".join(dict.fromkeys(p.meter for p in parts))
            read = f"{len(parts)} of {wanted} {kind}s are read ({name} of {meters})"
            message = f"{whole}: {read}, so there is no sum"
            numbers = {"read": float(len(parts)), "wanted": float(wanted)}
            lacking[message] = Check("cords", "failed", message, "joulelab meters", whole, numbers)
    return found, list(lacking.values())


def _sum(scope: str, parts: list[EnergyChannel]) -> EnergyChannel:
    first = parts[0]
    meters = "+".join(dict.fromkeys(part.meter for part in parts))
    members = ", ".join(part.stream.scope for part in parts)
    stream = replace(first.stream, name=f"sum of {members}", scope=scope, parent=None, sums="", parts=0)
    frozen = any(part.frozen for part in parts)
    unknown = next((p.spec.accuracy for p in parts if p.spec.accuracy.source == "unknown"), first.spec.accuracy)
    spec = replace(first.spec, accuracy=unknown, limits=None)
    return replace(
        first, meter=meters, stream=stream, spec=spec, curve=SumCurve(parts), members=tuple(parts), frozen=frozen
    )
