"""Answer in JSON: runs, one run, its power over time, comparisons, sums, studies. docs/how-to/api.md describes it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.dashboard.run_entries import check_inside
from joulelab.dashboard.run_search import find, parse
from joulelab.dashboard.selection import sum_entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.dashboard.run_entries import Entry, Place
    from joulelab.dashboard.run_table import Snapshot
    from joulelab.dashboard.selection import SelectionSum
    from joulelab.dashboard.slow_work import OpenRun, OpenRuns
    from joulelab.dashboard.studies import StudyEntry
    from joulelab.site.footprint import Site

    Pairs = Sequence[tuple[str, str]]

BUCKETS, MOST_BUCKETS = 2000, 20_000
MOST_COMPARED = 6
MOST_SUMMED = 500


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Hold a part of a run (s from the start of the workload; None: its end) and the number of its buckets."""

    since_s: float | None
    until_s: float | None
    buckets: int


def encode_json(data: Any) -> bytes:
    """Return plain data as JSON; lone surrogates of file names stay escaped."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=str).encode()


def describe_runs(snapshot: Snapshot, given: Pairs) -> dict[str, Any]:
    """Return one page of runs. Raises ConfigError."""
    found = find(snapshot, parse(given))
    return {
        "total": found.total,
        "page": found.query.page,
        "pages": found.pages,
        "waiting": snapshot.waiting,
        "in_studies": found.in_studies,
        "runs": [entry.to_json() for entry in found.entries],
    }


def describe_run(place: Place, site: Site | None = None) -> dict[str, Any]:
    """Return the result of a run, as `joulelab show --json` prints it; `site` is the one that is set now.

    Raises JoulelabError, OSError.
    """
    from joulelab.analysis.results_file import load_result
    from joulelab.report.result_json import describe_result

    check_inside(place)
    return describe_result(load_result(place.path).with_site(site))


def read_time_span(given: Pairs) -> TimeSpan:
    """Read the part of a run from an address. Raises ConfigError."""
    values = dict(given)
    unknown = [key for key in values if key not in ("from", "to", "buckets")]
    if unknown:
        raise ConfigError(f"unknown parameter {unknown[0][:40]!r}", next="valid: from, to, buckets")
    since, until = (_read_seconds(values.get(key, ""), key) for key in ("from", "to"))
    text = values.get("buckets") or str(BUCKETS)
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MOST_BUCKETS):
        raise ConfigError(f"buckets cannot be {text[:40]!r}", next=f"a whole number from 1 to {MOST_BUCKETS}")
    if since is not None and until is not None and since >= until:
        raise ConfigError("from must be before to")
    return TimeSpan(since, until, int(text))


def _read_seconds(text: str, name: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e9:
        raise ConfigError(f"{name} cannot be {text[:40]!r}", next="seconds from the start of the workload")
    return value


def describe_power(place: Place, runs: OpenRuns, wanted: TimeSpan) -> dict[str, Any] | None:
    """Return power over time of a part of a run, None where no power was measured. Raises JoulelabError, OSError."""
    check_inside(place)

    def make_power(opened: OpenRun) -> dict[str, Any] | None:
        from joulelab.analysis.power_profile import make_profile
        from joulelab.report.charts.power_chart import encode_power_chart, make_power_chart

        result = opened.result()
        start_ns = None if wanted.since_s is None else result.start_ns + round(wanted.since_s * NS)
        end_ns = None if wanted.until_s is None else result.start_ns + round(wanted.until_s * NS)
        profile = make_profile(opened.run, buckets=wanted.buckets, start_ns=start_ns, end_ns=end_ns)
        if profile is None:
            return None
        return encode_power_chart(make_power_chart(profile, result)) | {"live": result.state == "live"}

    return runs.use(place.path, make_power)


def choose_runs(snapshot: Snapshot, given: Pairs, least: int = 2, most: int = MOST_COMPARED) -> list[Entry]:
    """Return the runs that an address names, in its order. Raises ConfigError."""
    names = list(dict.fromkeys(value for key, value in given if key == "run" and value))
    if not least <= len(names) <= most:
        count = "1 run is" if len(names) == 1 else f"{len(names)} runs are"
        raise ConfigError(f"{count} selected", next=f"select {least} to {most}")
    found = []
    for name in names:
        entries = snapshot.find(name)
        if len(entries) != 1:
            raise ConfigError(f"there is no run {name[:60]!r}" if not entries else f"{name!r} is several runs")
        found.append(entries[0])
    return found


def sum_runs(snapshot: Snapshot, given: Pairs) -> SelectionSum:
    """Add up the runs that an address names. Raises ConfigError."""
    return sum_entries(choose_runs(snapshot, given, 1, MOST_SUMMED))


def describe_comparison(places: Sequence[Place], site: Site | None = None) -> dict[str, Any]:
    """Return two runs compared, as `joulelab compare --json` prints it. Raises JoulelabError, OSError."""
    from joulelab.analysis.results_file import load_result
    from joulelab.report.comparison import compare_runs

    if len(places) != 2:
        raise ConfigError(f"{len(places)} runs are named", next="name two: run=A&run=B")
    for place in places:
        check_inside(place)
    first, second = (load_result(place.path).with_site(site) for place in places)
    return compare_runs(first, second).to_json()


def describe_study(study: StudyEntry, place: Place, site: Site | None = None) -> dict[str, Any]:
    """Return the results of a study so far, and its slots with the ids of their runs.

    `site` is the one that is set now, for runs that recorded none. Raises JoulelabError, OSError.
    """
    from joulelab.report.result_json import describe_summary
    from joulelab.report.study_summary import summarise_study
    from joulelab.study.folder import open_study

    check_inside(place)
    results, summary = summarise_study(open_study(study.folder), site=site)
    ids = {(place.cell, place.slot): place.id for place in study.places}
    rows = [row | {"id": ids.get((row["cell"], row["slot"]))} for row in results.rows]
    plain = describe_summary(summary)
    notes = describe_summary(summary, results.notes)["notes"]
    return {"study": study.to_json(), "summary": plain, "notes": notes, "slots": rows}
