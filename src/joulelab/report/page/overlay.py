"""Set up what pages of several runs share: power over each other, links to runs, rated power. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.text import escape_unprintable
from joulelab.report import format as fmt
from joulelab.report import rated
from joulelab.report.html import Html, tag
from joulelab.report.page.blocks import Block, Drawn, Lines, Part, Text
from joulelab.report.page.document import profile_figure
from joulelab.report.page.profile import in_common, profile_json
from joulelab.report.page.tables import shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.analysis.power_profile import PowerProfile, PowerTrace
    from joulelab.analysis.result import Result
    from joulelab.core.quantity import Quantity
    from joulelab.report.page.make import Link

SOURCE = "profiles"
MOST = 6  # profiles that can be told apart over each other
NOTHING = "Power over time: nothing was measured of all these runs alike."
ESTIMATE = "What runtime x rated power would have said of each run, and how far that is from what was measured."


def power_part(
    results: Sequence[Result], profiles: Sequence[PowerProfile | None], labels: Sequence[str]
) -> tuple[Part, dict[str, Any]]:
    """Return the picture of the runs' power over each other, and the data of the page that it is drawn from."""
    there = [(r, p, label) for r, p, label in zip(results, profiles, labels, strict=True) if p is not None]
    drawn, without = there[:MOST], [label for p, label in zip(profiles, labels, strict=True) if p is None]
    said: list[Block] = []
    if len(there) > MOST:
        said.append(Text(f"The first {MOST} of {len(there)} runs are drawn."))
    if without:
        said.append(Text(f"No power was read in {', '.join(without)}."))
    if not drawn:
        return Part("power", "Power over time", tuple(said)), {}
    names = [label for _, _, label in drawn]
    common = in_common([profile for _, profile, _ in drawn])
    told = [
        _told(found.label, [(name, r, t) for name, (r, *_), t in zip(names, drawn, found.traces, strict=True)])
        for found in common
    ]
    data = {
        "profiles": [profile_json(profile, result) for result, profile, _ in drawn],
        "labels": names,
        "common": [
            {
                "label": escape_unprintable(found.label),
                "ids": [escape_unprintable(t.id) for t in found.traces],
                "told": escape_unprintable(words),
            }
            for found, words in zip(common, told, strict=True)
        ],
    }
    words = told[0] if told else NOTHING
    picture = Drawn(profile_figure(SOURCE, shown(words), overlay=True), words)
    return Part("power", "Power over time", (picture, *said)), {SOURCE: data}


def _told(label: str, of: Sequence[tuple[str, Result, PowerTrace]]) -> str:
    """Return in words what is drawn of each run: mean power and how long."""
    each = []
    for name, result, trace in of:
        mean, took = _mean(result, trace), fmt.format_duration(result.duration_s)
        each.append(
            f"{name}: {fmt.format_quantity(mean.value, mean.expanded, 'W')} for {took}" if mean else f"{name}: {took}"
        )
    return f"Power over time of {label}. {'; '.join(each)}."


def _mean(result: Result, trace: PowerTrace) -> Quantity | None:
    """Return the mean power (W) of what a trace shows, as tables have it; None where they do not have it."""
    if trace.role == "scope":
        names = {name: s.mean_w for s in result.scopes for name in (s.scope, f"{s.host}/{s.scope}")}
        return names.get(trace.label)
    group = result.group({"whole": "measured", "rest": trace.label}.get(trace.id, trace.id))
    return group.mean_w if group else None


def run_link(run: Result, path: Path, link: Link | None) -> Html | str:
    """Return the name of a run, as a link where it has a page of its own."""
    address = link(path) if link else None
    return tag("a", shown(run.run), href=address) if address else run.run


def estimate_part(results: Sequence[Result], labels: Sequence[str]) -> Part:
    """Return what runtime x rated power would have said of each run."""
    told = tuple((label, rated.describe_rated(run.rated)) for label, run in zip(labels, results, strict=True))
    return Part("estimate", "Runtime x rated power", (Text(ESTIMATE), Lines(told)))


def doubted(said: Sequence[str]) -> list[Block]:
    """Return what makes a comparison doubtful, where nobody overlooks it."""
    return [Text(text, "note warn") for text in dict.fromkeys(said)]


def live(results: Sequence[Result]) -> bool:
    """Return whether one of the runs goes on."""
    return any(run.state == "live" for run in results)
