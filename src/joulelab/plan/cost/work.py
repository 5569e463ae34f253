"""Describe planned work, and say what it would use: from runs of the same workload, scaled with what that is worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.plan.cost.energy import Nameplate, nameplate_of, side_of
from joulelab.plan.cost.scaling import GPU_HOURS, LONGEST, NODE_HOURS, RUNS, Basis, Step
from joulelab.plan.measured_runs import count_nodes, name_workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.core.quantity import Quantity
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.plan.plan_tables import TomlTable

KEYS = ("name", "runs", "amount", GPU_HOURS, NODE_HOURS, "repeats", "nodes", "gpus", "cap_w", "batch")
LONGEST_S = 1000 * 365.25 * 86400.0  # a plan over more is a slip of the pen
AMOUNTS = ("amount", GPU_HOURS, NODE_HOURS, "repeats")


@dataclass(frozen=True, slots=True)
class Work:
    """Hold planned work: so much of a unit that runs report, or hours of GPUs or nodes, or whole `runs`.

    Hours are of GPUs or nodes as they were measured: at a cap the same work takes more of them. `gpus` is per node, for
    runs that do not tell it. What is None stays as it was measured.
    """

    name: str
    unit: str
    amount: float
    runs: tuple[str, ...] = ()
    nodes: int | None = None
    cap_w: float | None = None
    batch: float | None = None
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """Hold what planned work would use: J, s, and by which steps that follows from the runs.

    Its power is taken as flat. `highest_w` is the highest reading of a node times the nodes, None where there is none.
    """

    work: Work
    nodes: int
    whole: Quantity
    time: Quantity
    steps: tuple[Step, ...]
    runs: tuple[str, ...]
    start_utc_s: float
    nameplate: Nameplate | None
    side: str
    twins: tuple[str, ...]
    highest_w: float | None
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return what the work is called."""
        return self.work.name

    @property
    def duration_s(self) -> float:
        """Return how long it would take, in s."""
        return self.time.value

    def between(self, at_s: Floats) -> list[Quantity]:
        """Return the energy (J) between each two of some times (s from its start), at a flat power."""
        shares = np.diff(np.clip(at_s, 0.0, self.duration_s)) / self.duration_s
        return [self.whole * float(share) for share in shares]


def read_work(tables: Sequence[TomlTable]) -> list[Work]:
    """Read [[work]] tables; what is wrong is noted with the tables' problems."""
    found: list[Work] = []
    for table in tables:
        table.allow(KEYS)
        given = [key for key in AMOUNTS if key in table]
        if len(given) != 1:
            said = f"work says {' and '.join(given)}" if given else "work says no amount"
            table.wrong("", said, next=f"give one of {', '.join(AMOUNTS)}: amount = {{ tokens = 1e9 }}")
        unit, amount = _amount(table, given[0]) if given else ("", None)
        found.append(
            Work(
                table.text("name") or f"work {len(found) + 1}", unit, amount or 0.0, table.texts("runs") or (),
                table.whole("nodes", 1), table.positive("cap_w"), table.positive("batch"), table.whole("gpus", 1),
            )
        )  # fmt: skip
    return found


def _amount(table: TomlTable, key: str) -> tuple[str, float | None]:
    if key != "amount":
        return (RUNS if key == "repeats" else key), table.positive(key)
    inner = table.table("amount")
    if len(inner.values) != 1:
        inner.wrong("", "an amount is of one unit", next="write it as amount = { tokens = 1e9 }")
        return "", None
    unit = next(iter(inner.values))
    return unit, inner.positive(unit)


def check_one_workload(work: Work, kinds: Mapping[str, Sequence[MeasuredRun]]) -> None:
    """Refuse to weigh kinds of nodes, by name, of which runs did different work. Raises ConfigError."""
    found = {name: sorted({name_workload(one.result) for one in runs}) for name, runs in kinds.items()}
    if len({each for workloads in found.values() for each in workloads}) > 1:
        why = "; ".join(f"{name}: {', '.join(workloads)[:LONGEST]}" for name, workloads in found.items())
        raise ConfigError(
            f"{work.name}: kinds of nodes are not weighed by different workloads", why=why,
            next="name runs of one workload in each [nodes.NAME], or label them alike: workload=NAME",
        )  # fmt: skip


def plan_work(
    work: Work,
    measured: Sequence[MeasuredRun],
    *,
    at_s: float | None = None,
    rated_w: float | None = None,
    gpus: int | None = None,
    gpu_w: float | None = None,
) -> Planned:
    """Return what planned work would use, from runs of its workload; `at_s` is when it starts (s since 1970).

    `rated_w` of a node, its `gpus` and `gpu_w`, the highest cap of each, are for runs that do not tell them.
    Raises ConfigError where the runs do not tell it, or it would take more than LONGEST_S.
    """
    if not measured:
        raise ConfigError(f"{work.name}: there is no run that tells what it uses", next="name runs of the workload")
    basis = Basis.of(measured, work.unit, gpus=work.gpus, gpu_w=gpu_w)
    if work.gpus is None:
        basis = replace(basis, gpus=gpus)
    scaled = basis.at(nodes=work.nodes, cap_w=work.cap_w, batch=work.batch)
    time = scaled.time * work.amount
    if not time.value <= LONGEST_S:
        what = f"{work.name} would take more than 1000 years on {scaled.nodes} node{'s' if scaled.nodes > 1 else ''}"
        raise ConfigError(what, next="give less work, or more nodes: --nodes N")
    base = scaled.base
    plate = nameplate_of(base, rated_w)
    if plate is not None:
        watts = plate.watts / count_nodes(base) * scaled.nodes
        energy = scaled.energy * work.amount
        ratio = time * watts / energy if plate.of == "node" and energy.value > 0 else None
        plate = Nameplate(watts, time.value, plate.of, plate.source, ratio)
    highest = [draw.highest_w for one in measured for draw in one.draws]
    return Planned(
        work, scaled.nodes, scaled.energy * work.amount, time, scaled.steps, scaled.runs,
        base.start_utc_s if at_s is None else at_s, plate, side_of(base),
        tuple(dict.fromkeys(one.result.twin for one in measured if one.result.twin)),
        max(highest) * scaled.nodes if all(one.resolved for one in measured) else None,
        scaled.notes,
    )  # fmt: skip
