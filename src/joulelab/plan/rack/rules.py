"""Say how many nodes fit by each rule: nameplate, measured maximum, percentiles, what caps promise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from joulelab.plan.cap_response import SAME_CAP_W
from joulelab.plan.rack.extremes import Refusal, exceeding, percent, percentile_of
from joulelab.plan.rack.fit import EXACT, allowed_w, fit, stranded_w
from joulelab.plan.rack.guarantee import ACCURACY, PEAKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.measured_runs import HostTrace
    from joulelab.plan.rack.capping import Held
    from joulelab.plan.rack.extremes import Exceeding, Peak, Percentile
    from joulelab.plan.rack.facility import Limit, Rack
    from joulelab.plan.rack.guarantee import Guarantee

Kind = Literal["nameplate", "maximum", "percentile", "caps"]


@dataclass(frozen=True, slots=True)
class Row:
    """Hold what one rule says: the power of a node (W), how many fit and what keeps out one more.

    A percentile has its estimate `value_w` and its confidence interval `low_w` to `high_w`; its `node_w` is the upper
    end of that. `upper_w` is what the power may be at most by all that is known of it, None where nothing is; `lacks`
    says what is not in it because nobody knows it. `sure` is how many fit then. `held` says which caps the runs were
    under, `cap_w` how high these were on each GPU. `free` is the share of what may be drawn that nodes leave, `exceed`
    how often a node was above what each of them may draw, `stranded_w` what is provisioned for nodes and never drawn
    with so many. `refused` says why there is no answer.
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
    value_w: float | None = None
    low_w: float | None = None
    high_w: float | None = None
    lacks: tuple[str, ...] = ()
    held: str = ""
    cap_w: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {"exceed": None if self.exceed is None else self.exceed.to_json(), "lacks": list(self.lacks)}


@dataclass(frozen=True, slots=True)
class Basis:
    """Hold what rows are made with: the rack, its limits, what nodes drew, and the highest of it (W).

    `hidden` is by which factor readings may hide peaks, None where nobody knows; `above` by which share other nodes
    may draw more than these. `held` are the caps that all of these runs were under.
    """

    rack: Rack
    limits: tuple[Limit, ...]
    draws: tuple[HostTrace, ...]
    drawn_w: float | None
    hidden: float | None = 1.0
    above: float = 0.0
    held: Held | None = None

    @property
    def wider(self) -> float:
        """Return by which factor a node may draw more than was read, by all that is known but the meter's accuracy."""
        return (self.hidden or 1.0) * (1 + self.above)

    @property
    def lacks(self) -> tuple[str, ...]:
        """Return what nobody knows of what nodes drew."""
        found = [ACCURACY] if any(draw.gain is None for draw in self.draws) else []
        return (*found, *([PEAKS] if self.hidden is None else []))

    def row(self, rule: str, kind: Kind, node_w: float, upper_w: float | None, said: str) -> Row:
        """Return how many nodes of `node_w`, and of `upper_w` at most, fit by a rule."""
        found = fit(self.limits, node_w)
        return Row(
            rule, kind, node_w, upper_w, found.nodes, None if upper_w is None else fit(self.limits, upper_w).nodes,
            found.binding.name, self.rack.free(found.nodes, node_w),
            allowed_w(self.limits, found.nodes) if found.nodes else None, said=said,
        )  # fmt: skip

    def beside(self, row: Row) -> Row:
        """Return a row with what nodes drew set beside it: how often that was too much, and what stays stranded.

        They have to have drawn it as the rule takes them: under these caps, or without any.
        """
        nodes = row.nodes or 0
        most_w = self.drawn_w or row.node_w
        row = replace(row, stranded_w=None if most_w is None else stranded_w(self.limits, nodes, most_w))
        if not self.draws or row.allowed_w is None:
            return row
        gain = max(draw.gain or 0.0 for draw in self.draws)
        # As in `fit`: a node that fits to the watt does not exceed it by rounding.
        over = exceeding(
            self.draws, row.allowed_w * (1 + EXACT), confidence=self.rack.rules.confidence,
            wider=(1 + gain) * self.wider,
        )  # fmt: skip
        return replace(row, exceed=over)

    def seen(self, row: Row) -> Row:
        """Return a row of what nodes drew, with the caps that they drew it under and what nobody knows of it."""
        row = self.beside(replace(row, lacks=self.lacks))
        return row if self.held is None else replace(row, held=self.held.said, cap_w=self.held.cap_w)


def rows_of(
    basis: Basis, rated: tuple[float, str] | None, peak: Peak | None, guarantee: Guarantee | str
) -> tuple[Row, ...]:
    """Return the rows of all rules; those without an answer say why."""
    if rated is None:
        first = Row("nameplate", "nameplate", refused="not known; give rated_w of the node, or --rated")
    else:
        first = basis.row("nameplate", "nameplate", rated[0], rated[0], rated[1])
        first = first if basis.held else basis.beside(first)
    return (first, *_maxima(basis, peak), *_percentiles(basis), *_caps(basis, guarantee))


def _maxima(basis: Basis, peak: Peak | None) -> list[Row]:
    found = []
    if peak is not None:
        name = "simulated maximum" if peak.simulated else "measured maximum"
        found.append(basis.seen(basis.row(name, "maximum", peak.value_w, peak.plan_w * basis.wider, peak.said)))
    given_w = basis.rack.rules.max_w
    if given_w is not None:
        said = "as given; nobody says how it was measured"
        name = "maximum as given" if found else "measured maximum"
        row = replace(basis.row(name, "maximum", given_w, None, said), lacks=(ACCURACY, PEAKS))
        found.append(row if basis.held else basis.beside(row))
    refused = "no node was measured; name runs, or give --max"
    return found or [Row("measured maximum", "maximum", refused=refused)]


def _percentiles(basis: Basis) -> list[Row]:
    asked = [p / 100 for p in dict.fromkeys(basis.rack.rules.percentiles) if basis.draws]
    return [_percentile(basis, percentile_of(basis.draws, p, confidence=basis.rack.rules.confidence)) for p in asked]


def _percentile(basis: Basis, one: Percentile | Refusal) -> Row:
    """Return the row of a percentile: nodes are by the upper end of its interval."""
    if isinstance(one, Refusal):
        return Row(percent(one.p), "percentile", refused=one.said.removeprefix(f"{percent(one.p)} "))
    row = basis.row(percent(one.p), "percentile", one.high_w, one.plan_w * basis.wider, one.said)
    return replace(basis.seen(row), value_w=one.value_w, low_w=one.low_w, high_w=one.high_w)


def _caps(basis: Basis, guarantee: Guarantee | str) -> list[Row]:
    caps: Sequence[float] = basis.rack.rules.caps_w
    if isinstance(guarantee, str):
        return [Row(f"caps {cap:g} W", "caps", refused=guarantee) for cap in caps] or [
            Row("caps", "caps", refused=guarantee)
        ]
    if not caps and guarantee.gpu_w is None:
        return [Row("caps", "caps", refused="the GPUs' highest cap is not known; give --gpu-power, or --cap")]
    every = dict.fromkeys([*([guarantee.gpu_w] if guarantee.gpu_w else []), *caps])
    return [_promised(basis, guarantee, cap) for cap in every]


def _no_cap(guarantee: Guarantee, cap_w: float) -> str:
    """Return why GPUs cannot have a cap; nothing where they can, or where their highest is not known."""
    if guarantee.gpu_w is None or guarantee.lowest_w <= cap_w <= guarantee.gpu_w:
        return ""
    return f"GPUs of {guarantee.gpu_w:g} W take caps from {guarantee.lowest_w:g} W, as far as is known, to that"


def _promised(basis: Basis, guarantee: Guarantee, cap_w: float) -> Row:
    """Return the row of a cap; what nodes drew stands beside it only where they drew it under this cap.

    Under a lower cap they draw no more than the promise, nor than was seen.
    """
    refused = _no_cap(guarantee, cap_w)
    if refused:
        return Row(f"caps {cap_w:g} W", "caps", refused=refused)
    node_w = guarantee.node_w(cap_w)
    row = basis.row(f"caps {cap_w:g} W", "caps", node_w, node_w, guarantee.said)
    highest = guarantee.gpu_w is not None and cap_w >= guarantee.gpu_w
    # The maker's nameplate holds at the highest cap whatever the GPUs read.
    row = replace(row, lacks=() if highest and guarantee.source == "nameplate" else guarantee.lacks)
    seen_w = guarantee.gpu_w if basis.held is None else basis.held.cap_w
    if seen_w is not None and abs(cap_w - seen_w) <= SAME_CAP_W:
        return basis.beside(row)
    if basis.held is not None and (seen_w is None or cap_w > seen_w):
        return row
    most_w = min(basis.drawn_w or node_w, node_w)
    return replace(row, stranded_w=stranded_w(basis.limits, row.nodes or 0, most_w))
