"""Make phases and work done out of marks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(slots=True)
class Phase:
    """Hold one named interval in monotonic ns; `open_end` says that nothing closed it."""

    id: str
    name: str
    n: int | None
    start_ns: int
    end_ns: int
    parent: str | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)
    open_end: bool = False
    work: dict[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Return the name as people say it: `epoch 3`."""
        return self.name if self.n is None else f"{self.name} {self.n}"

    @property
    def duration_s(self) -> float:
        """Return the length in s."""
        return (self.end_ns - self.start_ns) * 1e-9


@dataclass(slots=True)
class Work:
    """Hold work done: amounts by name (summed over ranks) and times (ns) of single reports."""

    amounts: dict[str, float] = field(default_factory=dict)
    times_ns: list[int] = field(default_factory=list)


def phases_of(marks: Iterable[Mapping[str, Any]], start_ns: int, end_ns: int) -> tuple[list[Phase], Work]:
    """Return the phases that overlap [start, end], in order, with the work reported in each and in all."""
    lines = sorted(marks, key=lambda m: int(m.get("t", 0)))
    phases, work = _intervals(lines, end_ns), Work()
    for line in lines:
        if line.get("mark") != "work" or not start_ns <= int(line["t"]) <= end_ns + 1_000_000_000:
            continue
        for name, amount in line.get("amounts", {}).items():
            work.amounts[name] = work.amounts.get(name, 0.0) + float(amount)
        work.times_ns.extend(int(t) for t in line.get("at", ()))
        _credit(phases, line)
    inside = [p for p in phases.values() if p.end_ns > start_ns and p.start_ns < end_ns]
    return sorted(inside, key=lambda p: (p.start_ns, -p.end_ns)), work


def _intervals(lines: list[Mapping[str, Any]], end_ns: int) -> dict[str, Phase]:
    phases: dict[str, Phase] = {}
    switched: dict[str, Phase] = {}
    for k, line in enumerate(lines):
        kind, t = line.get("mark"), int(line.get("t", 0))
        if kind == "begin":
            phases[line["id"]] = Phase(
                line["id"],
                line["name"],
                line.get("n"),
                t,
                end_ns,
                line.get("parent"),
                line.get("labels") or {},
                open_end=True,
            )
        elif kind == "end" and line.get("id") in phases:
            phases[line["id"]].end_ns, phases[line["id"]].open_end = t, False
        elif kind == "switch":
            source = str(line.get("file", ""))
            if source in switched:
                last = switched.pop(source)
                last.end_ns, last.open_end = t, False
            if line.get("name"):
                phases[f"switch-{k}"] = switched[source] = Phase(f"switch-{k}", line["name"], line.get("n"), t, end_ns)
    return phases


def _credit(phases: Mapping[str, Phase], line: Mapping[str, Any]) -> None:
    """Add a work report to its phase and to every phase around that."""
    current = phases.get(line.get("phase") or "")
    seen: set[str] = set()
    while current is not None and current.id not in seen:
        seen.add(current.id)
        for name, amount in line.get("amounts", {}).items():
            current.work[name] = current.work.get(name, 0.0) + float(amount)
        current = phases.get(current.parent or "")
