"""Set up what pages of several runs share: power over each other, links to runs, rated power. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.report import format as fmt
from joulelab.report import rated
from joulelab.report.page.blocks import Block, Drawn, Lines, Part, Text
from joulelab.report.page.document import profile_figure
from joulelab.report.page.html import Html, tag
from joulelab.report.page.profile import profile_json
from joulelab.report.page.tables import shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.analysis.profile import Profile
    from joulelab.analysis.result import Result
    from joulelab.report.page.make import Link

SOURCE = "profiles"
MOST = 6  # profiles that can be told apart over each other
ESTIMATE = "What runtime x rated power would have said of each run, and how far that is from what was measured."


def power_part(
    results: Sequence[Result], profiles: Sequence[Profile | None], labels: Sequence[str]
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
    data = {
        "profiles": [profile_json(profile, result) for result, profile, _ in drawn],
        "labels": [label for _, _, label in drawn],
    }
    words = f"Power over time. {'; '.join(f'{label}: {_told(result)}' for result, _, label in drawn)}."
    picture = Drawn(profile_figure(SOURCE, shown(words), overlay=True), words)
    return Part("power", "Power over time", (picture, *said)), {SOURCE: data}


def _told(result: Result) -> str:
    whole, took = result.group("measured"), fmt.duration(result.duration_s)
    if whole is None:
        return f"no power meter, {took}"
    return f"{fmt.quantity(whole.mean_w.value, whole.mean_w.expanded, 'W')} for {took}"


def run_link(run: Result, path: Path, link: Link | None) -> Html | str:
    """Return the name of a run, as a link where it has a page of its own."""
    address = link(path) if link else None
    return tag("a", shown(run.run), href=address) if address else run.run


def estimate_part(results: Sequence[Result], labels: Sequence[str]) -> Part:
    """Return what runtime x rated power would have said of each run."""
    told = tuple((label, rated.told(run.rated)) for label, run in zip(labels, results, strict=True))
    return Part("estimate", "Runtime x rated power", (Text(ESTIMATE), Lines(told)))


def doubted(said: Sequence[str]) -> list[Block]:
    """Return what makes a comparison doubtful, where nobody overlooks it."""
    return [Text(text, "note warn") for text in dict.fromkeys(said)]


def live(results: Sequence[Result]) -> bool:
    """Return whether one of the runs goes on."""
    return any(run.state == "live" for run in results)
