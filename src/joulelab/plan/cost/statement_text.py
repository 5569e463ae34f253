"""Word a statement of energy and carbon (or cost) for a paper, in plain text and in LaTeX. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.core.quantity import Quantity
from joulelab.plan.cost.cost_output import amount_text, cell, energy_scale, label_text, per_unit
from joulelab.plan.rates.steps import shown as time_shown
from joulelab.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.cost.statement import Statement

MOST = 3  # meters that are named
SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "µ": r"$\mu$", "€": r"\texteuro{}",
}  # fmt: skip


def statement_text(statement: Statement) -> str:
    """Return the statement in plain text."""
    return " ".join(_sentences(statement))


def statement_latex(statement: Statement) -> str:
    """Return the statement for LaTeX, without packages but textcomp's for the euro sign."""
    escaped = "".join(SPECIAL.get(sign, sign) for sign in statement_text(statement))
    return escaped.replace("CO2e", "CO$_2$e").replace(" x ", r" $\times$ ")


def _sentences(s: Statement) -> list[str]:
    sentences = [_simulated(s), _energy(s), _amount(s), _rate(s), _rated(s), _making(s), _sci(s)]
    sentences.append(f"Not included: {'; '.join(s.excluded)}.")
    sentences.append(_sure(s))
    return [sentence for sentence in sentences if sentence]


def _simulated(s: Statement) -> str:
    if not s.twins:
        return ""
    _, _, how = fmt.name_twins(s.twins).partition(": ")
    return f"These figures are simulated ({how}); nothing was measured."


def _energy(s: Statement) -> str:
    verb = "would use" if s.planned else "used"
    jobs = f"{s.jobs} runs" if s.jobs > 1 else f"The {'work' if s.planned else 'run'} {s.names[0]}"
    nodes = f"{_nodes(s)}, {fmt.format_duration(s.duration_s)} in all"
    how = ["scaled from runs"] if s.planned else []
    inside = "; ".join(part for part in (fmt.join_scopes(s.scopes), *s.covers) if part)
    where = f"{s.scope} ({inside})" if inside else s.scope
    by = [] if s.planned or s.twins else [f"{'accounted' if s.even else 'measured'} by {', '.join(s.meters[:MOST])}"]
    return f"{jobs} {verb} {_energies(s.energy_kwh)} of electricity: {'; '.join([*how, where, *by, nodes])}."


def _nodes(s: Statement) -> str:
    """Return on how many nodes it was; where runs differ, each number."""
    if s.nodes is None:
        return "on a number of nodes that is not known"
    *others, last = s.nodes
    listed = f"{', '.join(map(str, others))} and {last}" if others else f"{last}"
    return f"on {listed} node{'s' if last > 1 else ''}"


def _said(q: Quantity, unit: str) -> str:
    """Return a quantity for a paper: without an interval where the accuracy is not known."""
    return f"{cell(q) if q.known else fmt.format_number(q.value)} {unit}"


def _energies(q: Quantity) -> str:
    factor, unit = energy_scale([q.value])
    return _said(q * (1 / factor), unit)


def _rough(kwh: float) -> str:
    factor, unit = energy_scale([kwh])
    return f"{fmt.format_number(kwh / factor, 3)} {unit}"


def _amounts(q: Quantity, unit: str) -> str:
    return amount_text(q, unit) if q.known else amount_text(Quantity(q.value), unit)


def _amount(s: Statement) -> str:
    unit, price = s.label.unit.partition("/")[0], s.label.kind == "price"
    figure = fmt.format_number(s.mean_rate) if s.varies else fmt.format_fact(s.mean_rate)
    article = "a" if price or s.label.kind == "marginal" else "an"
    rate = f"{article} {'price' if price else f'{s.label.kind} carbon intensity'} of {figure} "
    rate += s.label.unit if price else "g CO2e per kWh"
    result = f"this {'costs' if price else 'corresponds to'} {_amounts(s.amount, unit)}"
    if s.site.pue is None:
        return f"At {rate} {result}."
    moved = " and the energy of moving data" if s.site.moved_kwh is not None else ""
    overhead = f"With a power usage effectiveness of {cell(s.site.overhead)}{moved}"
    return f"{overhead} it is {_energies(s.site_kwh)} at the site; at {rate} {result}."


def _rate(s: Statement) -> str:
    noun = "price" if s.label.kind == "price" else "intensity"
    told = label_text(s.label)
    over = ""
    if s.varies:
        step = s.label.resolution_s
        steps = "as it changes" if step is None else f"in steps of {fmt.format_duration(step)}"
        slots = f"{s.changes} slots" if s.changes > 1 else "one slot"
        when = f"from {time_shown(s.since_s)} to {time_shown(s.until_s)} ({slots})"
        spread = "at a flat power" if s.planned else "spread evenly" if s.even else "over the power profile"
        over = f", {steps}, {spread} {when}" if s.changes > 1 else f", {steps}, {when}"
    return f"The {noun} is {told}{over}."


def _rated(s: Statement) -> str:
    if s.rated_kwh is None:
        return "Rated power x time is not given: the rated power is not known."
    of = "" if s.rated_of == "node" else f" of the {s.rated_of.replace('gpu', 'GPUs').replace('cpu', 'CPUs')} alone"
    times = "" if s.ratio is None else f", {_said(s.ratio, 'times')} what the same devices used"
    return f"Rated power x time{of} would have said {_rough(s.rated_kwh)}{times}."


def _making(s: Statement) -> str:
    if s.share is None:
        return ""
    unit = s.label.unit.partition("/")[0]
    text = _amounts(s.share, unit)
    what = "Buying the nodes" if unit != "g" else "Making the nodes"
    return f"{what} adds {text}, by their hours of use over their lifetime."


def _sci(s: Statement) -> str:
    if s.sci is None and s.label.kind == "price":
        return ""
    if s.sci is None:
        return "No software carbon intensity (SCI) is given: the runs are of several workloads."
    made = "with the making of the nodes" if s.sci.embodied else "without the making of the nodes: M is not known"
    value = s.sci.value if s.sci.value.known else Quantity(s.sci.value.value)
    return f"The software carbon intensity (SCI, ISO/IEC 21031) is {per_unit(value, s.sci.unit, 'g')}, {made}."


def _sure(s: Statement) -> str:
    known = "Intervals are expanded uncertainties (k = 2)"
    if not s.amount.known:
        known = "No interval is given: the accuracy of the meter is not known"
    doubts: Sequence[str] = [] if s.rate_known else [
        f"the uncertainty of the {'price' if s.label.kind == 'price' else 'intensity'} is not known and not included"
    ]  # fmt: skip
    return "; ".join([known, *doubts]) + "."
