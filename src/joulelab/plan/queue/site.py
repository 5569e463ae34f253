"""Describe a site for schedules: its nodes, its power budget, and how unused nodes are counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from joulelab.plan.plan_tables import TomlTable

Unused = Literal["idle", "off"]
Count = Literal["mean", "highest"]

KEYS = (
    "jobs", "runs", "repeat", "every", "nodes", "budget_w", "margin", "idle_w", "unused", "rated_w", "node_w",
    "accuracy", "count", "slowdown", "pue", "zone", "workloads", "tariff", "intensity",
)  # fmt: skip
WORKLOAD_KEYS = ("runs", "gpus", "gpu_w", "model", "caps")
CAP_KEYS = ("cap_w", "slowdown", "node_w", "highest_w")
SLOWDOWN = 0.10  # a job may take so much longer for its cap, unless said otherwise


@dataclass(frozen=True, slots=True)
class Site:
    """Hold a site: powers in W, of its compute nodes with those that idle, without cooling.

    `margin` is the share of the budget that is kept free. `unused` nodes idle at `idle_w`, or are off and draw nothing.
    `count` says by which figure of a job the budget is kept. `pue` multiplies energy, never power.
    """

    nodes: int
    budget_w: float
    idle_w: float
    unused: Unused = "idle"
    count: Count = "highest"
    margin: float = 0.0
    rated_w: float | None = None
    pue: float = 1.0

    @property
    def limit_w(self) -> float:
        """Return what may be planned with: the budget without the margin, in W."""
        return self.budget_w * (1 - self.margin)

    @property
    def rest_w(self) -> float:
        """Return what a node draws that no job uses, in W."""
        return self.idle_w if self.unused == "idle" else 0.0

    @property
    def room_w(self) -> float:
        """Return what jobs may add to what unused nodes draw, in W."""
        return self.limit_w - self.nodes * self.rest_w

    def check(self) -> None:
        """Refuse a site on which nothing can run. Raises ConfigError."""
        if not 0 <= self.margin < 1:
            raise ConfigError(
                f"a margin of {100 * self.margin:g} % leaves nothing of the budget",
                next="give less than 100%: --margin 5%",
            )
        if self.nodes < 1:
            raise ConfigError("the site has no nodes", next="give --nodes, or nodes in [schedule]")
        if self.room_w <= 0:
            drawn = f"{self.nodes} idle nodes draw {self.nodes * self.rest_w:g} W of {self.limit_w:g} W"
            raise ConfigError(
                "the power budget is used up before any job starts", why=drawn,
                next='give a higher budget, fewer nodes, or unused = "off"',
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GivenCap:
    """Hold what a plan file says of one cap (W per GPU): time as a ratio to that without, powers of a node in W."""

    cap_w: float
    slowdown: float
    node_w: float
    highest_w: float


@dataclass(frozen=True, slots=True)
class Workload:
    """Hold where the cap response of a workload is from: runs, a model of its GPUs, or ratios that were given."""

    name: str
    runs: tuple[str, ...] = ()
    gpus: int | None = None
    gpu_w: float | None = None
    model: str = ""
    caps: tuple[GivenCap, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """Hold the table [schedule] of a plan file; None where it says nothing. Times in s, powers in W."""

    jobs: str = ""
    runs: tuple[str, ...] = ()
    repeat: int | None = None
    every_s: float | None = None
    nodes: int | None = None
    budget_w: float | None = None
    margin: float | None = None
    idle_w: float | None = None
    unused: Unused | None = None
    rated_w: float | None = None
    node_w: float | None = None
    accuracy: float | None = None
    count: Count | None = None
    slowdown: float | None = None
    pue: float | None = None
    zone: str = ""
    tariff: str = ""
    intensity: str = ""
    workloads: tuple[Workload, ...] = ()


def read_schedule(table: TomlTable) -> Schedule:
    """Read [schedule]; what is wrong is noted with the table's problems."""
    table.allow(KEYS)
    shares = {key: _share(table, key) for key in ("margin", "accuracy", "slowdown")}
    pue = table.positive("pue")
    if pue is not None and pue < 1:
        table.wrong("pue", f"pue is {pue:g}", next="give the ratio of all power to that of computers: 1.3")
    if ("every" in table) != ("repeat" in table):
        table.wrong("", "repeat and every belong together", next='give both: repeat = 100, every = "10m"')
    found = Schedule(
        jobs=table.text("jobs") or "", runs=table.texts("runs") or (), repeat=table.whole("repeat", 1),
        every_s=table.time("every"), nodes=table.whole("nodes", 1), budget_w=table.positive("budget_w"),
        idle_w=_or_none(table, "idle_w"), unused=cast("Unused | None", table.one_of("unused", ("idle", "off"))),
        rated_w=table.positive("rated_w"), node_w=table.positive("node_w"),
        count=cast("Count | None", table.one_of("count", ("mean", "highest"))), pue=pue,
        zone=table.text("zone") or "", tariff=table.text("tariff") or "", intensity=table.text("intensity") or "",
        workloads=_workloads(table.table("workloads")), **shares,
    )  # fmt: skip
    if found.jobs and found.runs:
        table.wrong("runs", "jobs and runs are both given", why="jobs are of a file or of runs", next="give one")
    return found


def _or_none(table: TomlTable, key: str) -> float | None:
    """Return a number of at least 0."""
    value = table.values.get(key)
    return 0.0 if value == 0 and not isinstance(value, bool) else table.positive(key)


def _share(table: TomlTable, key: str) -> float | None:
    """Return a share of at least 0 and below 1."""
    share = _or_none(table, key)
    if share is not None and share >= 1:
        table.wrong(key, f"{key} is {share:g}", next="give a share below 1: 0.1")
        return None
    return share


def _workloads(table: TomlTable) -> tuple[Workload, ...]:
    found = []
    for name in table.values:
        one = table.table(name)
        one.allow(WORKLOAD_KEYS)
        each = Workload(
            name, one.texts("runs") or (), one.whole("gpus", 1), one.positive("gpu_w"), one.text("model") or "",
            tuple(cap for cap in map(_cap, one.tables("caps")) if cap is not None),
        )  # fmt: skip
        ways = [bool(each.runs), each.gpus is not None or each.gpu_w is not None, "caps" in one]
        if sum(ways) != 1:
            one.wrong(
                "", f"the caps of {name} are told in {sum(ways)} ways", next="give runs, or gpus and gpu_w, or caps"
            )
        elif ways[1] and None in (each.gpus, each.gpu_w):
            one.wrong("", f"gpus and gpu_w of {name} belong together", next="give both")
        found.append(each)
    return tuple(found)


def _cap(table: TomlTable) -> GivenCap | None:
    table.allow(CAP_KEYS)
    cap, slowdown, node = (table.positive(key) for key in ("cap_w", "slowdown", "node_w"))
    highest = table.positive("highest_w")
    for key in ("cap_w", "slowdown", "node_w"):
        if key not in table:
            table.wrong("", f"{table.shown} has no {key}", next="give cap_w, slowdown and node_w")
    if cap is None or slowdown is None or node is None:
        return None
    return GivenCap(cap, slowdown, node, node if highest is None else highest)
