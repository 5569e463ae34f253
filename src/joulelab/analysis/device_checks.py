"""Doubt the devices of a run: held back, idle, hidden from the workload, or used by others too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.result import Check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulelab.analysis.checks import Facts
    from joulelab.analysis.result import CheckStatus

IDLE_LOAD = 0.01  # a device that never was busier than this did nothing
# Bits of nvmlClocksEventReasons that mean that the device was held back: power cap, thermal, brake.
THROTTLED = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


def device_checks(facts: Facts) -> Iterator[Check]:
    """Run the checks of devices."""
    yield from _held_back(facts)
    yield from _idle_gpus(facts)
    yield from _hidden(facts)
    yield from _strangers(facts)


def _held_back(facts: Facts) -> Iterator[Check]:
    for scope in facts.channels:
        inside = facts.seen(scope, "throttle").astype(np.int64)
        for bit, name in THROTTLED.items():
            share = float(np.mean((inside & bit) != 0)) if inside.size else 0.0
            if share > 0.01:
                status: CheckStatus = "note" if bit == 0x4 else "warning"
                yield Check(
                    "throttled", status, f"{facts.called(scope)}: held back by {name} in {share:.0%} of the readings"
                )


def _idle_gpus(facts: Facts) -> Iterator[Check]:
    gpus = [(c, s) for c, s in zip(facts.channels, facts.scopes, strict=True) if s.scope.startswith("gpu:")]
    idle = [s for c, s in gpus if (load := facts.seen(c, "load")).size and float(load.max()) < IDLE_LOAD]
    if idle and len(idle) < len(gpus):
        joules, whole = (sum(s.energy.value for s in some) for some in (idle, [s for _, s in gpus]))
        message = f"{facts.names(idle)}: idle all the time, {joules / whole:.0%} of the GPUs' energy"
        yield Check("idle GPUs", "note", message, "use them, or ask for a node with fewer")


def _hidden(facts: Facts) -> Iterator[Check]:
    for event in facts.named("devices"):
        hidden = [
            facts.place(event.get("host"), g.get("scope")) for g in event.get("gpus", ()) if not g.get("visible", True)
        ]
        if hidden:
            message = (
                f"{', '.join(hidden)}: hidden from the workload by CUDA_VISIBLE_DEVICES, and measured all the same"
            )
            yield Check("hidden GPUs", "note", message, "joulelab show RUN --json lists every scope by itself")


def _strangers(facts: Facts) -> Iterator[Check]:
    ours = {int(p) for e in facts.named("tree") for p in e.get("pids", ())}
    ours |= {int(e["pid"]) for e in facts.named("workload") if "pid" in e}
    foreign: dict[str, set[int]] = {}
    for event in sorted(facts.named("process"), key=lambda e: int(e["t"])):
        there = {int(p) for p in event.get("pids", ())} - ours
        scope, t = facts.place(event.get("host"), event.get("scope", "")), int(event["t"])
        if t < facts.start_ns:  # who was there last before the start is there at the start
            foreign[scope] = there
        elif t <= facts.end_ns:
            foreign.setdefault(scope, set()).update(there)
    for scope, pids in foreign.items():
        if pids:
            listed = ", ".join(str(p) for p in sorted(pids)[:5])
            message = f"{scope}: processes that are not the workload's were there ({listed})"
            yield Check("other processes", "warning", message)
