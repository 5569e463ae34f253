"""A meter whose true energy is known at any time: its power jumps between two levels, by the monotonic clock.

`joulelab run --meter tests/campaign/square_meter.py -- CMD`; the counter goes on where it was when a recorder restarts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.spec import Accuracy, Spec, Stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUMMARY = "a power that jumps, for the campaign"
CONFIG: dict[str, str] = {}
LOW_W, HIGH_W, HALF_S = 60.0, 240.0, 0.7
PERIOD_S, UPDATE_S = 0.05, 0.01
DEVICES = 2


def compute_energy_j(t_ns: int) -> float:
    """Return the energy of one device since the boot."""
    waves, rest_s = divmod(t_ns / NS, 2 * HALF_S)
    low_s = min(rest_s, HALF_S)
    return waves * HALF_S * (LOW_W + HIGH_W) + low_s * LOW_W + (rest_s - low_s) * HIGH_W


def compute_true_energy_j(start_ns: int, end_ns: int) -> float:
    """Return the energy of all devices between two times."""
    return DEVICES * (compute_energy_j(end_ns) - compute_energy_j(start_ns))


def open_meter(config: Mapping[str, Any]) -> SquareMeter:
    return SquareMeter()


class SquareMeter:
    """Show the counters of two GPUs, which step every 10 ms."""

    def streams(self) -> Sequence[Stream]:
        """Return one stream for each device."""
        accuracy = Accuracy("assumed", gain=0.01, shared="square")  # both jump together, as GPUs of one job do
        energy = Spec("energy_j", "energy", "J", "counter", UPDATE_S, accuracy=accuracy)
        return [Stream(f"gpu:{k}.power", "power", f"gpu:{k}", PERIOD_S, (energy,)) for k in range(DEVICES)]

    def read(self, stream: Stream) -> Sequence[float]:
        """Return the energy at the last step of the counter."""
        step_ns = round(UPDATE_S * NS)
        return (compute_energy_j(monotonic_ns() // step_ns * step_ns),)

    def close(self) -> None:
        """Do nothing."""
