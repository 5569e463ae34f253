"""Make the page of a run: what it used, when, of what that is made up, and how sure that is.

Rows, cells and lines are those of the terminal (`report.rows`, `report.table`): a page shows more of them, not others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.core.text import escape_unprintable
from joulelab.report import format as fmt
from joulelab.report.page.blocks import Drawn, Part, html_of
from joulelab.report.page.document import profile_figure
from joulelab.report.page.parts import Page, Section
from joulelab.report.page.profile import profile_json
from joulelab.report.page.run_facts import configuration, recomputed, workload
from joulelab.report.page.run_figures import distribution, energies, meters, phases, rated, uncertainty
from joulelab.report.page.run_summary import checked, gaps, summary
from joulelab.report.run_tables import name_ending

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.power_profile import PowerProfile
    from joulelab.analysis.result import Result
    from joulelab.report.page.blocks import Block

POWER = "power-data"


def run_page(
    result: Result,
    folder: Path,
    profile: PowerProfile | None,
    *,
    handle: str | None = None,
    raw: str | None = None,
    live: str | None = None,
) -> Page:
    """Return the page of a run: live or ended, with or without meters.

    `handle` is how commands name the run. `raw` and `live` are addresses of finer and of the newest data, where
    it is served.
    """
    figure: list[Block] = []
    data = {}
    if profile is not None:
        data[POWER] = profile_json(profile, result)
        said = power_in_words(result)
        figure.append(Drawn(profile_figure(POWER, said, raw=raw, live=live), said))
    parts = run_parts(result, folder, profile, tuple(figure), handle=handle)
    sections = tuple(Section(part.id, part.title, html_of(part.blocks)) for part in parts)
    going = result.state == "live"
    return Page(title_of(result), subtitle_of(result), sections, data, live=going)


def run_parts(
    result: Result,
    folder: Path,
    profile: PowerProfile | None,
    figure: tuple[Block, ...] = (),
    *,
    handle: str | None = None,
) -> list[Part]:
    """Return the sections of a run's page; `figure` is power over time. What there is nothing of is left out."""
    name = handle or str(folder)
    made: list[tuple[str, str, tuple[Block, ...]]] = [
        ("summary", "Summary", summary(result)),
        ("power", "Power over time", figure),
        ("energy", "Energy by scope", energies(result)),
        ("phases", "Phases", phases(result)),
        ("rated", "What rated power would have said", rated(result)),
        ("distribution", "Distribution of power", distribution(result, profile)),
        ("meters", "Meters compared", meters(result)),
        ("uncertainty", "Uncertainty", uncertainty(result)),
        ("checks", "Checks", checked(result)),
        ("gaps", "Gaps", gaps(result)),
        ("workload", "Workload", workload(result)),
        ("configuration", "Configuration", configuration(folder)),
        ("recompute", "How to recompute", recomputed(result, folder, name)),
    ]
    return [Part(*each) for each in made if each[2]]


def title_of(result: Result) -> str:
    """Return what a page of a run is headed by: its name, else its id."""
    return escape_unprintable(result.name or result.run)


def subtitle_of(result: Result) -> str:
    """Return the line below: id, when and where it ran, how it ended."""
    named = [result.run] if result.name else []
    return escape_unprintable(" · ".join([*named, *_when(result), result.host, name_ending(result)]))


def _when(result: Result) -> list[str]:
    return [f"{result.start_utc[:19].replace('T', ' ')} UTC"] if result.start_utc else []


def power_in_words(result: Result) -> str:
    """Return in words what power over time shows, for those who do not see it and as its caption."""
    whole = result.group("measured")
    if whole is None:
        return "Power over time."
    scopes = fmt.join_scopes(list(dict.fromkeys(whole.scopes)))
    told = f"Power over time of {scopes}: {fmt.format_watts(whole.mean_w.value)} on average"
    rows = [s for s in result.scopes if (s.host, s.scope) in set(zip(whole.hosts, whole.scopes, strict=True))]
    if len(rows) == 1 and rows[0].statistics is not None:
        seen = rows[0].statistics
        told += f", from {fmt.format_watts(seen.minimum)} to {fmt.format_watts(seen.maximum)}"
    return f"{told}, over {fmt.format_duration(result.duration_s)}. Time 0 is the start of the workload."
