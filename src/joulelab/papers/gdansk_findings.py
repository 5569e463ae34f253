"""Judge what the Gdansk paper concludes from its figures by what a study gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.papers.figure_judgement import finding
from joulelab.papers.gdansk_runs import ALL, CAPPED_W, COUNTS, DEFAULT_W, METRICS, cap_of

if TYPE_CHECKING:
    from joulelab.papers.figure_judgement import Figure
    from joulelab.papers.gdansk_runs import Metric, Swept

STEP_W = 10
CAPS = "on 8 GPUs a cap of 160 to 200 W is best for every goal, within one step"
FROM_W, TO_W = 160 - STEP_W, 200 + STEP_W
FEWER = "with 1, 2 or 4 GPUs no goal but energy gains notably"
NOTABLY = "notably is taken as at least half of what a goal gains on 8"
FRACTION = 0.5
NOTES = {
    "caps": "a goal's best cap, and every one without a significant difference from it, lies outside",
    "fewer": f"the paper does not say what it calls notable; {NOTABLY}",
}


def findings(found: Swept) -> list[Figure]:
    """Return every conclusion of the paper with the numbers of the study; those that have no runs yet are open."""
    return [_growth(found), _caps(found), _fewer(found), _scaling(found)]


def _growth(found: Swept) -> Figure:
    gains = [g for count in COUNTS if (g := found.gain(METRICS[0], count)) is not None]
    holds = gains == sorted(set(gains)) if len(gains) == len(COUNTS) else None
    text = "more GPUs at work, more energy is saved by a cap"
    return _finding("growth", text, holds, ", ".join(f"{g:.1f} %" for g in gains) + " with 1, 2, 4, 8")


def _caps(found: Swept) -> Figure:
    """Judge by the caps that are best or not told apart from the best: a step that is no difference does not count."""
    alike = {metric: [cap_of(cell) for cell in found.alike(metric)] for metric in METRICS}
    within = [any(FROM_W <= cap <= TO_W for cap in caps) for caps in alike.values()]
    holds = all(within) if all(alike.values()) else None
    return _finding("caps", CAPS, holds, "; ".join(_best(found, metric) for metric in METRICS if alike[metric]))


def _best(found: Swept, metric: Metric) -> str:
    """Return a goal's best cap, and those not told apart from it."""
    cell = found.best(metric)
    others = [cap_of(c) for c in found.alike(metric) if cell is not None and c.key != cell.key]
    told = f" (no significant difference: {', '.join(f'{cap:g}' for cap in others)} W)" if others else ""
    return f"{metric.label} {'-' if cell is None else f'{cap_of(cell):g}'} W{told}"


def _fewer(found: Swept) -> Figure:
    """Judge every goal but energy, whose numbers are told beside them."""
    gains = {metric: [found.gain(metric, count) for count in COUNTS] for metric in METRICS}
    known = {m: [g for g in of if g is not None] for m, of in gains.items()}
    if any(len(of) < len(COUNTS) for of in known.values()):
        return _finding("fewer", FEWER, None, "")
    most = {metric: (max(of[:-1]), of[-1]) for metric, of in known.items()}
    holds = all(few < FRACTION * whole for metric, (few, whole) in most.items() if metric is not METRICS[0])
    told = [f"{metric.label} {few:.1f} % of {whole:.1f} %" for metric, (few, whole) in most.items()]
    energy, *others = told
    return _finding("fewer", FEWER, holds, f"at most {', '.join(others)} on 8 ({energy}); {NOTABLY}")


def _scaling(found: Swept) -> Figure:
    fast, slow = found.speedup(DEFAULT_W, ALL), found.speedup(CAPPED_W, ALL)
    text = "under the cap training scales a little better to 8 GPUs"
    if fast is None or slow is None:
        return _finding("scaling", text, None, "")
    detail = f"{slow.value:.2f} at {CAPPED_W} W, {fast.value:.2f} at {DEFAULT_W} W"
    return _finding("scaling", text, slow.value > fast.value, detail)


def _finding(name: str, text: str, holds: bool | None, detail: str) -> Figure:
    return finding(f"gdansk.finding.{name}", text, holds, detail, NOTES.get(name, ""))
