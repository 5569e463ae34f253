"""Say how many nodes fit by each rule: nameplate, measured maximum, percentiles, what caps promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from joulelab.planner.rack.extremes import Refusal, exceeding, percent, percentile_of
from joulelab.planner.rack.fit import EXACT, allowed_w, fit, stranded_w

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.planner.draws import Draw
    from joulelab.planner.rack.extremes import Exceeding, Peak
    from joulelab.planner.rack.facility import Limit, Rack
    from joulelab.planner.rack.guarantee import Guarantee

Kind = Literal["nameplate", "maximum", "percentile", "caps"]


@dataclass(frozen=True, slots=True)
class Row:
    """Hold what one rule says: the power of a node (W), how many fit and what keeps out one more.

    `upper_w` is what that power may be at most by all that is known of it, None where nobody knows; `sure` is how many
    fit then. `free` is the share of what may be drawn that they leave, `exceed` how often a node was above what each of
    them may draw, `stranded_w` what is provisioned for nodes and never drawn with so many. `refused` says why there is
    no answer.
    """

    rule: str
    kind: Kind
    node_w: float | None = None
    upper_w: float | None = None
    nodes: int | None = None
    sure: int | None = None
    binding: str = ""
    free: float | None = None
    allowed_w: float | None = None
    exceed: Exceeding | None = None
    stranded_w: float | None = None
    said: str = ""
    refused: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {"exceed": None if self.exceed is None else self.exceed.to_json()}


@dataclass(frozen=True, slots=True)
class Basis:
    """Hold what rows are made with: the rack, its limits, what nodes drew, and the highest of it (W).

    `wider` is by which factor readings may hide peaks, None where nobody knows.
    """

    rack: Rack
    limits: tuple[Limit, ...]
    draws: tuple[Draw, ...]
    drawn_w: float | None
    wider: float | None = 1.0

    def widened(self, upper_w: float | None) -> float | None:
        """Return an upper figure (W) with hidden peaks counted, None where nobody knows."""
        return None if upper_w is None or self.wider is None else upper_w * self.wider

    def row(
        self, rule: str, kind: Kind, node_w: float, upper_w: float | None, said: str, *, capped: bool = False
    ) -> Row:
        """Return what a rule says that takes nodes to draw `node_w`, and `upper_w` at most.

        Nodes that are `capped` draw less than was seen without caps, so that says nothing of them.
        """
        found = fit(self.limits, node_w)
        each = allowed_w(self.limits, found.nodes) if found.nodes else None
        over = None
        drawn_w = node_w if self.drawn_w is None else min(self.drawn_w, node_w) if capped else self.drawn_w
        if self.draws and each is not None and not capped:
            # As in `fit`: a node that fits to the watt does not exceed it by rounding.
            over = exceeding(self.draws, each * (1 + EXACT), confidence=self.rack.rules.confidence)
        return Row(
            rule, kind, node_w, upper_w, found.nodes, None if upper_w is None else fit(self.limits, upper_w).nodes,
            found.binding.name, self.rack.free(found.nodes, node_w), each, over,
            stranded_w(self.limits, found.nodes, drawn_w), said,
        )  # fmt: skip


def rows_of(
    basis: Basis, rated: tuple[float, str] | None, peak: Peak | None, guarantee: Guarantee | str
) -> tuple[Row, ...]:
    """Return the rows of all rules; those without an answer say why."""
    found = []
    if rated is None:
        found.append(Row("nameplate", "nameplate", refused="not known; give rated_w of the node, or --rated"))
    else:
        found.append(basis.row("nameplate", "nameplate", rated[0], rated[0], rated[1]))
    return (*found, *_maxima(basis, peak), *_percentiles(basis), *_caps(basis, guarantee))


def _maxima(basis: Basis, peak: Peak | None) -> list[Row]:
    found = []
    if peak is not None:
        upper = basis.widened(peak.upper_w)
        name = "simulated maximum" if peak.simulated else "measured maximum"
        found.append(basis.row(name, "maximum", peak.value_w, upper, peak.said))
    given_w = basis.rack.rules.max_w
    if given_w is not None:
        said = "as given; nobody says how it was measured"
        found.append(basis.row("maximum as given" if found else "measured maximum", "maximum", given_w, None, said))
    refused = "no node was measured; name runs, or give --max"
    return found or [Row("measured maximum", "maximum", refused=refused)]


def _percentiles(basis: Basis) -> list[Row]:
    """Return rows of percentiles; where one is refused, so is every higher one: it needs more, not less."""
    asked = [p / 100 for p in basis.rack.rules.percentiles if basis.draws]
    found: dict[float, Row] = {}
    lower: Refusal | None = None
    for p in sorted(asked):
        one = percentile_of(basis.draws, p, confidence=basis.rack.rules.confidence)
        if isinstance(one, Refusal):
            lower = lower or one
            found[p] = Row(percent(p), "percentile", refused=one.said.removeprefix(f"{percent(p)} "))
        elif lower is not None:
            found[p] = Row(percent(p), "percentile", refused=f"as {percent(lower.p)}, which would need less")
        else:
            upper = basis.widened(one.upper_w)
            found[p] = basis.row(percent(p), "percentile", one.value_w, upper, one.said)
    return [found[p] for p in asked]


def _caps(basis: Basis, guarantee: Guarantee | str) -> list[Row]:
    caps: Sequence[float] = basis.rack.rules.caps_w
    if isinstance(guarantee, str):
        return [Row(f"caps {cap:g} W", "caps", refused=guarantee) for cap in caps] or [
            Row("caps", "caps", refused=guarantee)
        ]
    if not caps and guarantee.gpu_w is None:
        return [Row("caps", "caps", refused="the GPUs' highest cap is not known; give --gpu-power, or --cap")]
    every = dict.fromkeys([*([guarantee.gpu_w] if guarantee.gpu_w else []), *caps])
    rows = []
    for cap in every:
        node_w = guarantee.node_w(cap)
        capped = guarantee.gpu_w is None or cap < guarantee.gpu_w
        upper = _caps_upper(basis, guarantee, node_w)
        rows.append(basis.row(f"caps {cap:g} W", "caps", node_w, upper, guarantee.said, capped=capped))
    return rows


def _caps_upper(basis: Basis, guarantee: Guarantee, node_w: float) -> float | None:
    """Return what a node may draw under caps (W) where its host was measured by readings that hide peaks."""
    if not guarantee.known:
        return None
    if guarantee.source != "measured":
        return node_w
    return None if basis.wider is None else node_w + (basis.wider - 1) * max(guarantee.hosts_w)
