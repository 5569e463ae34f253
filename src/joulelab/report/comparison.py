"""Compare two runs: ratios with their intervals, what both meters share cancelled, and a verdict in words. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.marked_phases import list_figure_kinds
from joulelab.analysis.result import GroupResult
from joulelab.analysis.study_cells import Note
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.report import format as fmt
from joulelab.report.messages import COMPARISON, word_notes

if TYPE_CHECKING:
    from joulelab.analysis.result import Fact, Result

ONE_RUN_EACH = Note("one-run-each")


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """Hold one line of a comparison; `ratio` is B / A, None where it cannot be formed."""

    name: str
    unit: str
    a: Quantity
    b: Quantity
    ratio: Quantity | None
    estimate: bool = False

    @property
    def difference(self) -> bool | None:
        """Return whether A and B differ beyond the interval, None where that cannot be said."""
        if self.ratio is None or self.ratio.expanded is None:
            return None
        return abs(self.ratio.value - 1) > self.ratio.expanded

    def verdict(self) -> str:
        """Return what can be said, in words."""
        if self.ratio is None:
            return "cannot be compared"
        if self.difference is None:
            return f"{_more(self.ratio.value)}, accuracy unknown"
        return _more(self.ratio.value) if self.difference else "no significant difference"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        ratio = None if self.ratio is None else self.ratio.to_json()
        plain = {"name": self.name, "unit": self.unit, "a": self.a.to_json(), "b": self.b.to_json(), "ratio": ratio}
        return plain | {"estimate": self.estimate, "differ": self.difference, "verdict": self.verdict()}


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Hold two runs side by side; `same_devices` says whether the meters' gains cancel."""

    a: Result
    b: Result
    lines: tuple[ComparedFigure, ...]
    same_devices: bool

    def line(self, name: str) -> ComparedFigure | None:
        """Return a line by its name."""
        return next((each for each in self.lines if each.name == name), None)

    def verdict(self) -> str:
        """Return the comparison in one sentence."""
        energy, time = self.line("energy"), self.line("time")
        took = ""
        if time is not None and time.ratio is not None and abs(time.ratio.value - 1) >= 0.0005:
            share = time.ratio.value - 1
            took = f"; it takes {fmt.format_percent(abs(share), signed=False)} {'longer' if share > 0 else 'less time'}"
        if energy is None or energy.ratio is None:
            return f"The energies cannot be compared: {self._why_not()}{took}"
        share, expanded = energy.ratio.value - 1, energy.ratio.expanded
        mark = " (an estimate)" if energy.estimate else ""
        if expanded is None:
            size = fmt.format_percent(abs(share), signed=False)
            return f"B reads {size} {_direction(share)}{mark}, but the accuracy is unknown, so no interval{took}"
        if not energy.difference:
            return f"No significant difference in energy: B / A - 1 = {fmt.format_change(share, expanded)}{mark}{took}"
        return f"B uses {_sized(share, expanded)}{mark}{took}"

    @property
    def facts(self) -> dict[str, tuple[Fact | None, Fact | None]]:
        """Return what each workload told of itself, the data first; None where it did not."""
        names = dict.fromkeys([*(n for n in ("data",) if n in {**self.a.facts, **self.b.facts}), *self.a.facts])
        return {name: (self.a.facts.get(name), self.b.facts.get(name)) for name in {**names, **self.b.facts}}

    @property
    def twins(self) -> dict[str, str]:
        """Return the twins that A and B ran on in virtual time, empty for runs that were measured."""
        return {"A": self.a.twin, "B": self.b.twin}

    def doubts(self, first: str = "A", second: str = "B") -> list[Note]:
        """List the reasons why the two may not be comparable; `first` and `second` are their names."""
        notes, names = [], {"first": first, "second": second}
        wholes = self.a.group("measured"), self.b.group("measured")
        if (
            wholes[0]
            and wholes[1]
            and _families(wholes[0]) != _families(wholes[1])
            and find_common_families(self.a, self.b)
        ):
            families = " + ".join(find_common_families(self.a, self.b))
            notes.append(Note("points-differ", texts={**names, "families": families}))
        if self.a.twin != self.b.twin:
            sources = [fmt.name_twins([twin]) if twin else "measured" for twin in (self.a.twin, self.b.twin)]
            texts = {**names, "first_source": sources[0], "second_source": sources[1]}
            notes.append(Note("simulated-differ", texts=texts))
        data = self.facts.get("data", (None, None))
        if data[0] != data[1]:
            shown = ["unknown" if d is None else fmt.format_fact(d) for d in data]
            notes.append(Note("data-differ", texts={**names, "first_data": shown[0], "second_data": shown[1]}))
        for label, run in ((first, self.a), (second, self.b)):
            failed = [c for c in run.checks if c.status == "failed"]
            notes += [Note("check-failed", texts={"label": label, "name": c.name, "check": c}) for c in failed[:3]]
        return notes

    def notes(self) -> list[Note]:
        """List the notes that belong beside the figures."""
        notes = self.doubts()
        if any(line.ratio is not None and line.unit == "J" for line in self.lines):
            notes.append(Note("same-devices" if self.same_devices else "different-devices"))
        energy = self.line("energy")
        if energy is not None and energy.ratio is not None and "unseen" in energy.ratio.budget():
            share = 2 * energy.ratio.with_bound().u / energy.ratio.value
            notes.append(Note("in-step", {"share": share}))
        return [*notes, ONE_RUN_EACH]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "a": self.a.run,
            "b": self.b.run,
            "twin": {"a": self.a.twin, "b": self.b.twin},
            "same_devices": self.same_devices,
            "lines": [line.to_json() for line in self.lines],
            "verdict": self.verdict(),
            "notes": word_notes(self.notes(), COMPARISON),
            "messages": [{"code": note.code, "numbers": dict(note.numbers)} for note in self.notes()],
            "facts": {name: {"a": a, "b": b} for name, (a, b) in self.facts.items()},
        }

    def _why_not(self) -> str:
        without = [label for label, run in (("A", self.a), ("B", self.b)) if run.energy is None]
        if not without and not self.line("energy"):
            return "nothing was measured in both"
        damaged = [label for label, run in (("A", self.a), ("B", self.b)) if run.is_damaged and label in without]
        if damaged:
            return f"files of {' and '.join(damaged)} cannot be read or are missing"
        return f"no power meter was read in {' and '.join(without)}" if without else "one of them is zero"


def compare_runs(a: Result, b: Result) -> RunComparison:
    """Compare two results; what is in both of them is set side by side."""
    same = list_devices(a) == list_devices(b) and bool(list_devices(a))
    keep = ("gain:",) if same else ()
    lines = []
    whole_a, whole_b = _wholes(a, b)
    if whole_a and whole_b:
        estimate = whole_a.estimate or whole_b.estimate
        lines.append(compare_quantities("energy", "J", whole_a.energy, whole_b.energy, keep, estimate=estimate))
    for group in a.groups:
        other = b.group(group.name)
        if group.name != "measured" and other is not None:
            estimate = group.estimate or other.estimate
            lines.append(
                compare_quantities(f"  {group.name}", "J", group.energy, other.energy, keep, estimate=estimate)
            )
    if whole_a and whole_b and whole_a.net and whole_b.net:
        lines.append(compare_quantities("net of idle", "J", whole_a.net, whole_b.net, keep))
    lines.append(compare_quantities("time", "s", Quantity(a.duration_s), Quantity(b.duration_s), ()))
    if whole_a and whole_b:
        estimate = whole_a.estimate or whole_b.estimate
        lines.append(compare_quantities("mean power", "W", whole_a.mean_w, whole_b.mean_w, keep, estimate=estimate))
    per_a, per_b = (_per_work(r, whole) for r, whole in ((a, whole_a), (b, whole_b)))
    lines += [
        compare_quantities(f"per {n.removesuffix('s')}", "J", per_a[n], per_b[n], keep)
        for n in _kinds(a, b)
        if n in per_a and n in per_b
    ]
    timed = a.duration_s > 0 and b.duration_s > 0
    for name in (n for n in _kinds(a, b) if timed and b.work.get(n)):
        per_s = Quantity(a.work[name] / a.duration_s), Quantity(b.work[name] / b.duration_s)
        lines.append(compare_quantities(f"{name}/s", "", *per_s, ()))
    return RunComparison(a, b, tuple(lines), same)


def _wholes(a: Result, b: Result) -> tuple[GroupResult | None, GroupResult | None]:
    """Return what is compared of each: all that was measured, or what both have of it."""
    wholes = a.group("measured"), b.group("measured")
    if wholes[0] is None or wholes[1] is None or _families(wholes[0]) == _families(wholes[1]):
        return wholes
    names = find_common_families(a, b)
    return (_sum(a, names), _sum(b, names)) if names else (None, None)


def _families(group: GroupResult) -> set[str]:
    return {find_family(scope) for scope in group.scopes}


def find_common_families(a: Result, b: Result) -> tuple[str, ...]:
    """Return the families that both have and that can be compared where all that was measured cannot."""
    both = [g.name for g in a.groups if b.group(g.name) is not None]
    for node in ("rack", "node.ac", "node.dc"):
        if node in both:
            return (node,)
    return tuple(name for name in both if name in ("gpu", "cpu", "dram"))


def _sum(result: Result, names: tuple[str, ...]) -> GroupResult:
    groups = [g for g in result.groups if g.name in names]
    energy = add_quantities(g.energy for g in groups)
    nets = [g.net for g in groups]
    net = add_quantities(n for n in nets if n is not None) if all(n is not None for n in nets) else None
    scopes = tuple(scope for g in groups for scope in g.scopes)
    mean = energy * (1 / max(result.duration_s, 1e-9))
    return GroupResult("compared", scopes, energy, mean, net, any(g.estimate for g in groups))


def _kinds(a: Result, b: Result) -> list[str]:
    """Return the kinds of work by which both can be compared."""
    other = list_figure_kinds(b.work)
    return [kind for kind in list_figure_kinds(a.work) if kind in other]


def _per_work(result: Result, whole: GroupResult | None) -> dict[str, Quantity]:
    return {} if whole is None else {n: whole.energy * (1 / done) for n, done in result.work.items() if done > 0}


def list_devices(result: Result) -> frozenset[tuple[str, ...]]:
    """Return what was measured and by what: host, scope, hardware, meter and channel of all that is counted."""
    whole = result.group("measured")
    counted = set(whole.scopes) if whole else set()
    return frozenset(
        (s.host, s.scope, s.device, s.model, s.reading.meter, s.reading.channel)
        for s in result.scopes
        if s.scope in counted
    )


def compare_quantities(
    name: str, unit: str, a: Quantity, b: Quantity, keep: tuple[str, ...], *, estimate: bool = False
) -> ComparedFigure:
    """Return two quantities side by side; terms whose names begin as in `keep` are of both, and cancel."""
    ratio = None
    if a.value > 0 and b.value > 0:
        # Errors of two runs are their own, but for the gain of a meter that measured both.
        ratio = b.tagged("b", keep=keep) / a.tagged("a", keep=keep)
    return ComparedFigure(name, unit, a, b, ratio, estimate)


def _direction(share: float) -> str:
    return "more" if share > 0 else "less"


def _more(ratio: float) -> str:
    share = ratio - 1
    return f"{fmt.format_percent(abs(share), signed=False)} {_direction(share)}" if share else "equal"


def _sized(share: float, expanded: float) -> str:
    """Return `12.3 % less ± 1.1`, as people say it."""
    value, _, width = fmt.format_change(abs(share), expanded).removeprefix("+").removesuffix(" %").partition(" ± ")
    return f"{value} % {_direction(share)} ± {width}"
