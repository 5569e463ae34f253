"""Keep beside a slot what was true of it: energies of every point by the model's own integral."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.clock import NS
from joulelab.store.documents import read_json
from joulelab.store.run_folder import write_json_atomic
from joulelab.twin import power_curves

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.twin.timeline import Timeline

FILE = "truth.json"
SHOWN = "node.ac"


def truth_of(timeline: Timeline) -> dict[str, Any]:
    """Return the true energies (J) by point over the workload, its time (s), and how the node's power was spread (W).

    Median and maximum are of means over 1 s.
    """
    a, b = timeline.start_ns, timeline.end_ns
    names = [*timeline.node.leaves(), *power_curves.NODE_POINTS]
    share, curve = timeline.curve(SHOWN)
    edges = np.arange(a, b + 1, NS, dtype=np.int64)
    means = share * np.diff(curve.joules(edges)) if len(edges) > 1 else share * curve.watts(edges)
    return {
        "energy_j": {name: timeline.energy(name, a, b) for name in names},
        "time_s": (b - a) / NS,
        SHOWN: {"median_w": float(np.median(means)), "max_w": float(means.max())},
    }


def keep_truth(slot: Path, timeline: Timeline) -> None:
    """Write a slot's truth. Raises StoreError."""
    write_json_atomic(slot / FILE, truth_of(timeline), sync=False)


def read_truth(slot: Path) -> dict[str, Any]:
    """Return what was true of a slot that ran on a twin. Raises StoreError where there is nothing."""
    return read_json(slot / FILE)
