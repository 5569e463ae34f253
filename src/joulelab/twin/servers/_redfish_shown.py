"""Show a truth file's points as the numbers and times of a BMC."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from joulelab.core.clock import monotonic_ns, read_utc_ns
from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.readings import Panel

if TYPE_CHECKING:
    from joulelab.twin.truth import Truth

KWH_J = 3.6e6
VENDORS = (
    "generic", "sensors", "hgx", "dell", "dell-old", "hpe", "hpe-unmetered", "lenovo", "fujitsu", "inspur", "huawei",
    "supermicro",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RedfishFlaws(PanelFlaws):
    """Describe a BMC: whose tree it serves, how long a session lasts, and the share of requests that end in 500."""

    base_j: float = 4.2e9
    vendor: str = "generic"
    session_s: float = 1800.0
    error_share: float = 0.0
    clock_error_s: float = 0.0  # of ReadingTime
    gpu_quantum_w: float = 0.001
    gpu_quantum_j: float = 0.001

    def __post_init__(self) -> None:
        super(RedfishFlaws, self).__post_init__()
        if self.vendor not in VENDORS:
            raise ConfigError(
                f"there is no vendor {self.vendor!r}", where="redfish", next=suggest_name(self.vendor, VENDORS)
            )


class Shown:
    """Read the points of a node as this BMC shows them."""

    def __init__(self, truth: Truth, flaws: RedfishFlaws) -> None:
        self.truth = truth
        self.flaws = flaws
        self.gpus = len(truth.node.gpus)
        self.supplies = len(truth.node.supply.cords)
        fine = replace(flaws, quantum_w=flaws.gpu_quantum_w, quantum_j=flaws.gpu_quantum_j)
        points = [p for p in truth.points if p.startswith(("psu", "gpu:")) or p in ("node.ac", "node.dc")]
        self.panels = {
            point: Panel(truth, point, fine if point.startswith("gpu") else flaws, number=300 + number)
            for number, point in enumerate(points)
        }

    def watts(self, *points: str) -> float:
        """Return the power at points, summed, as a whole number where it is one."""
        total = sum(self.panels[point].power_w() for point in points)
        return round(total) if float(total).is_integer() else round(total, 6)

    def joules(self, point: str) -> float:
        """Return the counter at a point, in J."""
        return round(self.panels[point].energy_j(), 6)

    def kwh(self, point: str) -> float:
        """Return the counter at a point, in kWh."""
        return round(self.panels[point].energy_j() / KWH_J, 9)

    def time(self, point: str) -> str:
        """Return when the reading at a point was taken, in UTC with milliseconds."""
        now, utc = monotonic_ns(), read_utc_ns()
        age_ns = now - self.panels[point].tick(now)[1]
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            microseconds=(utc - age_ns) / 1000, seconds=self.flaws.clock_error_s
        )
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def capacity_w(self, number: int) -> int:
        """Return what a supply is rated for."""
        supply = self.truth.node.supply
        return round(1.2 * supply.rated_w * supply.cords[number - 1])

    def interval(self) -> str:
        """Return how often readings are taken, as an ISO 8601 duration."""
        return f"PT{self.flaws.period_s:g}S"

    def inlet_c(self) -> float:
        """Return the inlet temperature."""
        return self.truth.node.cooling.inlet_c

    def fan_percent(self) -> int:
        """Return the speed of all fans, as their power has it."""
        return round(100 * self.truth.node.cooling.speed(self.truth.power("fans", monotonic_ns())))

    def fan_rpm(self, number: int) -> int:
        """Return a fan's speed."""
        return round(self.truth.node.cooling.rpm(self.truth.power("fans", monotonic_ns()))) + 20 * number
