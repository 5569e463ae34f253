"""Hold a plan against what came: `joulelab plan review PLAN --actual SPEC`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from joulelab.cli.options import json_option, print_json
from joulelab.cli.plan.given import checked_picture, picture_option
from joulelab.cli.plan.when import draw, plans_option

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.planner.rates.rate import Rate
    from joulelab.planner.shifting.kept_plan import Plan


@click.command("review")
@click.argument("word", metavar="PLAN", default="last")
@click.option("--actual", required=True, metavar="SPEC", help="What came: FILE.csv, kept:NAME, em:DE, gb, ...")
@click.option("--zone", metavar="NAME", help="Time zone of files whose times have none.  [default: UTC]")
@click.option("--no-keep", is_flag=True, help="Do not keep the review in the plan.")
@picture_option
@plans_option
@json_option
def command(
    word: str,
    actual: str,
    zone: str | None,
    no_keep: bool,
    picture: Path | None,
    force: bool,
    plans: Path,
    as_json: bool,
) -> None:
    """Hold a plan of `plan when` against what came.

    PLAN is an id, the beginning of one, a file, or `last`. The plan and the ways beside it are held against the actual
    series, and against the best that could have been done had it been known; both are kept in the plan.
    """
    import datetime as dt

    from joulelab.planner.shifting.kept_plan import find_plan, keep, read_plan, with_review
    from joulelab.planner.shifting.review import check_over, review

    kind = checked_picture(picture, force=force)
    path = find_plan(word, plans)
    plan = read_plan(path)
    clock = dt.datetime.now(dt.UTC)
    check_over(plan, clock.timestamp())  # before a service is asked for what it cannot know
    found = review(plan, _rate(plan, actual, zone), now_s=clock.timestamp())
    now = clock.isoformat(timespec="seconds")
    if not no_keep:
        keep(with_review(plan, {"reviewed_utc": now, **found.to_json()}), path.parent)
    if picture is not None:
        draw(plan, picture, kind, found.actual)
    if as_json:
        print_json({"reviewed_utc": now, **found.to_json(), "file": str(path)})
        return
    from joulelab.report.console import make_console
    from joulelab.report.plan.when import print_review

    print_review(make_console(sys.stdout), found)


def _rate(plan: Plan, spec: str, zone: str | None) -> Rate:
    """Return the actual series; only one of the plan's own kind will do. Raises ConfigError."""
    from joulelab.planner.rates.find import rate_of

    return rate_of(spec, want=plan.slots.label.kind, zone=zone)
