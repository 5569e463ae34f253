"""Make what comes first on the page of a run, and its doubts: figures, checks, gaps. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from joulelab.core.scope import rank_scope
from joulelab.report import format as fmt
from joulelab.report.messages import word_check, word_checks
from joulelab.report.page.blocks import Cards, Fold, Lines, Table, Text
from joulelab.report.page.tables import Grid, Row
from joulelab.report.run_tables import (
    list_check_facts,
    list_missing_facts,
    list_rated_facts,
    list_work_facts,
    write_headline,
)

if TYPE_CHECKING:
    from joulelab.analysis.result import Result
    from joulelab.report.page.blocks import Block

MOST_GAPS = 200


def summary(result: Result) -> tuple[Block, ...]:
    """Return the figures that matter, what they are of, and what is to be known before they are believed."""
    blocks: list[Block] = []
    if result.twin:
        blocks.append(Text(f"{fmt.name_twins([result.twin])}. Nothing here was measured.", "note warn"))
    if result.state == "live":
        blocks.append(Text("This run is still going on: figures are those so far.", "note"))
    blocks.append(Cards(_cards(result)) if result.scopes else Text(f"{write_headline(result)}.", "note warn"))
    if (check := result.bound_check) is not None:
        bound = word_check(check)
        blocks.append(Text(f"{bound.text} -> {bound.next}", "muted"))
    blocks.append(Lines(tuple(_what(result))))
    doubts = Counter(c.status for c in word_checks(result.checks))
    if doubts["failed"] or doubts["warning"]:
        worst = [row for row in list_check_facts(result) if row[0] in ("failed", "warning")]
        blocks.append(Lines(tuple(worst), "checks"))
    return tuple(blocks)


def _cards(result: Result) -> tuple[tuple[str, str, str], ...]:
    energy, whole = result.energy, result.group("measured")
    cards = []
    if energy is not None and whole is not None:
        text = fmt.format_quantity(energy.value, energy.expanded, "J", estimate=whole.estimate)
        cards.append(("energy", text, fmt.join_scopes(sorted(dict.fromkeys(whole.scopes), key=rank_scope))))
    so_far = "so far" if result.state == "live" else ""
    cards.append(("time", fmt.format_duration(result.duration_s), so_far))
    if whole is not None:
        cards.append(("mean power", fmt.format_watts(whole.mean_w.value), ""))
    for kind, q in list(result.per_work().items())[:2]:
        one = kind.removesuffix("s")
        text = fmt.format_quantity(q.value, q.expanded, f"J/{one}", estimate=bool(whole and whole.estimate))
        cards.append((f"per {one}", text, fmt.format_work(result.work[kind], kind)))
    return tuple(cards)


def _what(result: Result) -> list[tuple[str, str]]:
    """Return what ran and on what, and its labels."""
    rows = [("command", shlex.join(result.command))] if result.command else []
    hosts = list(dict.fromkeys(s.host for s in result.scopes))
    if len(hosts) > 1:
        rows.append(("nodes", f"{len(hosts)}: {fmt.join_scopes(hosts)}"))
    models = Counter(s.model for s in result.scopes if s.model and s.scope.startswith("gpu"))
    if models:
        rows.append(("GPUs", ", ".join(f"{count} x {model}" for model, count in models.items())))
    if result.labels:
        rows.append(("labels", ", ".join(f"{k} = {v}" for k, v in result.labels.items())))
    return (
        rows
        + list_work_facts(result)
        + list_rated_facts(result)
        + ([] if result.scopes else list_missing_facts(result))
    )


def checked(result: Result) -> tuple[Block, ...]:
    """Return every doubt with the next command to type, meters that gave nothing, then what was found in order."""
    doubts, missing = list_check_facts(result), list_missing_facts(result)
    fine = [c for c in result.checks if c.status == "ok"]
    blocks: list[Block] = [Lines(tuple(doubts), "checks")] if doubts else []
    if not doubts and result.scopes:
        blocks.append(Text("Nothing was found that would make the figures doubtful."))
    if missing and result.scopes:
        blocks.append(Lines(tuple(missing)))
    if fine:
        rows = tuple((c.name, "in order") for c in fine)
        blocks.append(Fold(f"{len(fine)} in order", (Lines(rows),)))
    return tuple(blocks)


def gaps(result: Result) -> tuple[Block, ...]:
    """Return the stretches without readings, with their reasons."""
    rows = []
    for gap in result.gaps[:MOST_GAPS]:
        since = (gap.from_ns - result.start_ns) * 1e-9
        until = None if gap.to_ns is None else (gap.to_ns - gap.from_ns) * 1e-9
        length = "to the end" if until is None else fmt.format_duration(until)
        cells = (f"{gap.meter} {gap.stream}", _at(since), length, gap.reason)
        rows.append(Row(cells))
    if not rows:
        return ()
    blocks: list[Block] = [
        Table(
            Grid(("stream", "from, s", "for", "reason"), tuple(rows), frozenset({0, 3})),
            "Stretches without readings; s from the start of the workload",
        )
    ]
    if len(result.gaps) > MOST_GAPS:
        blocks.append(Text(f"and {len(result.gaps) - MOST_GAPS} more: `joulelab show --json`"))
    return tuple(blocks)


def _at(seconds: float) -> str:
    return f"{seconds:+.2f}"
