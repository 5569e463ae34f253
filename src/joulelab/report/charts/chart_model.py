"""Define the charts as data: values, intervals and texts. The painters (svg_painter, print_painter) only draw them.

Values are in the unit of their axis. Texts come from `report.format`, so that a chart and its table show the same
figures. Every chart has a `title` and a `note`, the sentence below it; `description` is for people who do not see it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulelab.report import format as fmt

if TYPE_CHECKING:
    from joulelab.analysis.power_profile import PowerProfile, PowerTrace

EXPANDED_NOTE = "Error bars: 95 % intervals (k = 2)."
COMPARED_NOTE = (
    "Error bars (95 %, k = 2) compare the cells of a line: a cell differs significantly from the best if their bars do "
    "not overlap. Errors that these cells have in common are left out."
)
UNSHARED_NOTE = "Error bars (95 %, k = 2) leave out errors that the cells of a line have in common."
NOT_CAPPED = {"uncapped": "cap not in force"}
MARK_NAMES = {"best": "best", "tied": "no significant difference", "reference": "reference", **NOT_CAPPED}
FRONT_MARK_NAMES = {"tied": "perhaps on the front", "reference": "reference", **NOT_CAPPED}
MARKS_NOTE = "Star: best. Ring: no significant difference from it. Square: reference."
# A family has the same colour in all charts; page/assets/profile_data.js has the same table.
FAMILY_COLOURS = {
    "gpu": 0, "cpu": 1, "dram": 2, "supply loss": 3, "psys": 4, "node.dc": 4, "node.ac": 5, "rack": 6, "rest": 7,
}  # fmt: skip


def get_lower_end(value: float, expanded: float, *, signed: bool = False) -> float:
    """Return the lower end of an interval; energies, powers and times do not go below zero, `signed` values may."""
    return value - expanded if signed else max(value - expanded, min(value, 0.0))


def format_point(value: float, expanded: float | None) -> str:
    """Return the value of a point or bar with its interval, if it has one."""
    return fmt.format_interval(value, expanded, unresolved=fmt.NOT_RESOLVED) if expanded else fmt.format_number(value)


@dataclass(frozen=True, slots=True)
class ChartBar:
    """Hold one value with its expanded uncertainty (None: unknown) and the text that shows both.

    `colour` is a number from 0 to 7; `mark` is best, tied, reference or empty.
    """

    label: str
    value: float
    expanded: float | None
    text: str
    colour: int = 0
    mark: str = ""


@dataclass(frozen=True, slots=True)
class BarChart:
    """Hold horizontal bars, `is_upright` ones, or points (`is_dotted`), whose axis need not begin at 0.

    `level` is a reference line; `keys` are the legend of the colours.
    """

    title: str
    description: str
    label: str
    bars: tuple[ChartBar, ...]
    note: str = ""
    is_upright: bool = False
    is_dotted: bool = False
    level: float | None = None
    keys: tuple[str, ...] = ()

    @property
    def is_signed(self) -> bool:
        """Return whether values are changes, which may be below zero."""
        return self.is_dotted or self.level == 0

    def list_marks(self) -> dict[str, str]:
        """Return the marks that occur, each with its name in the legend."""
        occurring = {bar.mark for bar in self.bars}
        return {mark: name for mark, name in MARK_NAMES.items() if mark in occurring}


@dataclass(frozen=True, slots=True)
class StackPart:
    """Hold one part of a stacked bar: the index of its key, its length and its text."""

    key: int
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class StackedBar:
    """Hold one bar made of parts, the text at its end, and the expanded uncertainty of the sum."""

    label: str
    parts: tuple[StackPart, ...]
    text: str
    expanded: float | None = None


@dataclass(frozen=True, slots=True)
class StackChart:
    """Hold horizontal stacked bars; `keys` name the parts, `colours` are the colours of the keys."""

    title: str
    description: str
    label: str
    bars: tuple[StackedBar, ...]
    keys: tuple[str, ...]
    colours: tuple[int, ...] = ()
    note: str = ""

    def get_colour(self, key: int) -> int:
        """Return the colour number of a key."""
        return self.colours[key] if self.colours else key


@dataclass(frozen=True, slots=True)
class HistogramChart:
    """Hold the percentage of values between each two `edges`, and named lines (`marks`) such as the median."""

    title: str
    description: str
    label: str
    edges: tuple[float, ...]
    shares: tuple[float, ...]
    marks: tuple[tuple[str, float], ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class ChartCurve:
    """Hold the points of one curve; `best`, `tied`, `reference`, `front` and `uncapped` are indices of points.

    Points whose cap was not in force (`uncapped`) are open and not joined with others.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    expanded: tuple[float, ...] | None
    x_expanded: tuple[float, ...] | None = None
    names: tuple[str, ...] = ()
    best: int | None = None
    tied: tuple[int, ...] = ()
    reference: int | None = None
    front: tuple[int, ...] = ()
    uncapped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CurveChart:
    """Hold curves with common axes; `ticks` are names instead of numbers, `level` is a reference line.

    `has_one_front`: one Pareto front for all curves, otherwise one for each. `bars` explains the error bars: pages
    print it once for all charts, prints below each. `goal` is the goal of the best points if it has limits.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[ChartCurve, ...]
    note: str = ""
    ticks: tuple[str, ...] | None = None
    is_joined: bool = True
    level: float | None = None
    has_one_front: bool = True
    bars: str = ""
    goal: str = ""

    @property
    def caption(self) -> str:
        """Return the text below a chart that stands alone."""
        return " ".join(filter(None, (self.bars, self.note)))

    @property
    def is_pareto(self) -> bool:
        """Return whether a Pareto front is drawn through the points."""
        return self.name == "pareto"

    @property
    def is_signed(self) -> bool:
        """Return whether values are changes, which may be below zero."""
        return self.level is not None

    @property
    def full_title(self) -> str:
        """Return the title, with the label of the curve if there is only one curve."""
        labels = [curve.label for curve in self.curves]
        return ", ".join(filter(None, (self.title, *labels))) if len(labels) == 1 else self.title

    def list_marks(self) -> dict[str, str]:
        """Return the marks that occur (best, tied, reference), each with its name in the legend."""
        names = FRONT_MARK_NAMES if self.is_pareto else MARK_NAMES
        names = {**names, "best": f"best for {self.goal}"} if self.goal else names
        occurring = {
            "best": any(curve.best is not None for curve in self.curves),
            "tied": any(curve.tied for curve in self.curves),
            "reference": any(curve.reference is not None for curve in self.curves),
            "uncapped": any(curve.uncapped for curve in self.curves),
        }
        return {mark: name for mark, name in names.items() if occurring[mark]}

    def list_counts(self) -> list[float]:
        """List the numbers of GPUs along the axis; empty if the axis shows something else."""
        return sorted({x for curve in self.curves for x in curve.x}) if self.x_label == "GPUs" else []

    def list_fronts(self) -> list[list[tuple[float, float, str]]]:
        """List the Pareto fronts as sorted points: x, y, name."""
        fronts = [[(curve.x[i], curve.y[i], curve.names[i]) for i in curve.front] for curve in self.curves]
        if self.has_one_front:
            fronts = [[point for front in fronts for point in front]]
        return [sorted(front) for front in fronts]


@dataclass(frozen=True, slots=True)
class HeatTile:
    """Hold one cell of a heat map: text, tooltip, colour from 0 to 1, and `mark` (best, tied, reference or empty)."""

    text: str
    tooltip: str
    share: float
    mark: str = ""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Hold a heat map over two knobs: rows of tiles, None where no cell has run; `low` and `high` label the scale."""

    name: str
    title: str
    x_label: str
    y_label: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    tiles: tuple[tuple[HeatTile | None, ...], ...]
    low: str
    high: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class PowerLine:
    """Hold a power (W) drawn as a horizontal line; `kind` is rated, mean or idle."""

    label: str
    watts: float
    kind: str


@dataclass(frozen=True, slots=True)
class PowerSpan:
    """Hold a phase or a gap: begin and end (s after the start of the workload); the outermost phases have `depth` 0."""

    label: str
    from_s: float
    to_s: float
    depth: int = 0


@dataclass(frozen=True, slots=True)
class PowerChart:
    """Hold power over time of one run: its profile, reference lines, phases and gaps."""

    title: str
    description: str
    profile: PowerProfile
    start_utc: str
    lines: tuple[PowerLine, ...]
    phases: tuple[PowerSpan, ...]
    gaps: tuple[PowerSpan, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class CommonTrace:
    """Hold a scope that several runs have in common: its name, its trace in each run, and a description."""

    label: str
    traces: tuple[PowerTrace, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class OverlayChart:
    """Hold power over time of several runs in one chart, by time or by fraction of the runtime."""

    title: str
    description: str
    charts: tuple[PowerChart, ...]
    labels: tuple[str, ...]
    names: tuple[str, ...]
    common: tuple[CommonTrace, ...] = field(default_factory=tuple)
    by_fraction: bool = False


StaticChart = BarChart | StackChart | HistogramChart | CurveChart | HeatMap
Chart = StaticChart | PowerChart | OverlayChart
