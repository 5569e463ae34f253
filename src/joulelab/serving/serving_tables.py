"""Show the figures of a load and the energy of requests: the answer first, one table, at most three notes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulelab.analysis.study_cells import Note
from joulelab.report import format as fmt
from joulelab.report.messages import word_note
from joulelab.report.tables import Column, Table, TableRow, make_table, scale_column
from joulelab.report.terminal import BLANK_LINE, STATUS_STYLES, TextBlock, list_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.analysis.goals import BestCell
    from joulelab.core.quantity import Quantity
    from joulelab.report.tables import TableCell
    from joulelab.serving.request_energy import Attribution
    from joulelab.serving.window_figures import WindowFigures

MOST_NOTES = 3
MOST_LABELS = 20
SMALLEST_SHARE = 0.05  # percent
UNIT_NAMES = {"output_token": "output token", "token": "token", "request": "request"}
SCOPE_NAMES = {"gpu": "GPU", "node": "node", "wall": "wall"}


def make_window_table(
    figures: Sequence[WindowFigures], unit: str = "output_token", best: BestCell | None = None
) -> Table:
    """Return a table with one row for each steady window: load, rate of tokens, times, joules per unit by scope.

    The best window and those without a significant difference from it are marked.
    """
    names = [name for name in SCOPE_NAMES if any(name in one.scopes for one in figures)]
    per = {name: [_find_unit(one, name, unit) for one in figures] for name in names}
    net = {name: [_find_unit(one, name, unit, is_net=True) for one in figures] for name in names[:1]}
    wide = names[-1] if names else ""
    columns: list[Column] = [Column("load", align="left"), Column("output\ntokens/s")]
    columns += [
        Column("TTFT p50", "ms", factor=1e-3, digits=3, is_optional=True),
        Column("TTFT p99", "ms", factor=1e-3, digits=3),
    ]
    columns += [
        Column("TPOT p50", "ms", factor=1e-3, digits=3, is_optional=True),
        Column("TPOT p99", "ms", factor=1e-3, digits=3),
    ]
    columns += [_scale_unit(f"J/{UNIT_NAMES[unit]}\n{SCOPE_NAMES[name]}", per[name]) for name in names]
    columns += [_scale_unit(f"without idle\n{SCOPE_NAMES[name]}", some, is_optional=True) for name, some in net.items()]
    columns += [Column(f"mean W\n{SCOPE_NAMES[wide]}", bare=True, is_optional=True)] if wide else []
    rows = []
    for k, one in enumerate(figures):
        tokens = one.work.get("output_tokens")
        cells: list[TableCell] = [
            _name_window(one, best),
            None if tokens is None else fmt.format_rate(tokens / one.duration_s),
        ]
        cells += [one.facts.get(name) for name in ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")]
        cells += [per[name][k] for name in names] + [some[k] for some in net.values()]
        cells += [one.scopes[wide].mean_w if wide in one.scopes else None] if wide else []
        rows.append(TableRow(tuple(cells), "best" if best is not None and best.cell == one.title else ""))
    return make_table(columns, rows)


def _find_unit(one: WindowFigures, scope: str, unit: str, *, is_net: bool = False) -> Quantity | None:
    found = one.scopes.get(scope)
    return None if found is None else (found.net_per_unit if is_net else found.per_unit).get(unit)


def _scale_unit(name: str, values: Iterable[Quantity | None], *, is_optional: bool = False) -> Column:
    known = [abs(value.value) for value in values if value is not None]
    is_small = bool(known) and max(known) < 0.1
    title = name.replace("J/", "mJ/") if is_small else name
    return Column(title, factor=1e-3 if is_small and title != name else 1.0, is_optional=is_optional)


def _name_window(one: WindowFigures, best: BestCell | None) -> str:
    if best is None:
        return one.title
    return (
        f"{one.title} (best)" if best.cell == one.title else f"{one.title} (~)" if one.title in best.tied else one.title
    )


def lay_out_windows(figures: Sequence[WindowFigures], best: BestCell | None = None, goal: str = "") -> list[TextBlock]:
    """Return the answer about the steady windows of a load: the best one for a goal, and the table."""
    facts = [("goal", describe_best_window(best, goal))] if goal else []
    blocks: list[TextBlock] = [list_facts(facts), BLANK_LINE] if facts else []
    return [*blocks, make_window_table(figures, best=best)]


def describe_best_window(best: BestCell | None, goal: str) -> str:
    """Return the best window for a goal in words."""
    if best is None:
        return f"no window is within the limits of {goal}"
    tied = f"; no significant difference: {', '.join(best.tied)}" if best.tied else ""
    return f"{best.cell} is best for {goal}{tied}"


def lay_out_requests(found: Attribution, by: str | None = None) -> list[TextBlock]:
    """Return the energy of the requests of a run: the answer, one table, at most three notes."""
    blocks: list[TextBlock] = [list_facts(list_request_facts(found)), BLANK_LINE]
    blocks.append(_make_account_table(found) if by is None else _make_label_table(found, by))
    notes = [("note", word_note(note, "serving")) for note in list_attribution_notes(found)[:MOST_NOTES]]
    return [*blocks, BLANK_LINE, list_facts(notes, styles=STATUS_STYLES)] if notes else blocks


def list_request_facts(found: Attribution) -> list[tuple[str, str]]:
    """Return the answer in labelled lines: energy of a request, of tokens, share of idle."""
    where = SCOPE_NAMES.get(found.scope, found.scope)
    how = "by time alone" if found.by_time else "by prefill and decode tokens"
    idle = "idle included" if found.with_idle else "without idle"
    lines = [("requests", f"{len(found.requests):,} at the {where}, divided {how}, {idle}")]
    done = sorted((o.energy for o in found.requests if o.request.status == "ok"), key=lambda energy: energy.value)
    if done:
        lines.append(("median", f"{fmt.format_quantity(done[len(done) // 2], 'J')} for a request"))
    for label, token in (("prefill", found.prefill_token), ("decode", found.decode_token)):
        if token is not None:
            lines.append((label, f"{fmt.format_quantity(token, 'J')} for a token"))
    if math.isfinite(found.idle_share) and not found.with_idle:
        lines.append(("idle", f"{100 * found.idle_share:.0f} % of the energy"))
    return lines


def list_attribution_notes(found: Attribution) -> list[Note]:
    """Return the remarks about a division: obstacles first."""
    failed = sum(one.request.status != "ok" for one in found.requests)
    notes = list(found.notes)
    if found.idle_source == "fitted":
        notes.append(Note("idle.fitted"))
    if failed:
        notes.append(Note("failed-requests", {"failed": float(failed), "requests": float(len(found.requests))}))
    return notes


def _make_account_table(found: Attribution) -> Table:
    """Return where the measured energy went; the rows add up to it."""
    prefill, decode = (sum(getattr(one, name) for one in found.requests) for name in ("prefill_j", "decode_j"))
    idle = sum(one.idle_j for one in found.requests) if found.with_idle else found.idle.value
    parts = [("requests: prefill", prefill), ("requests: decode", decode)]
    if found.by_time:
        parts = [("requests", prefill + decode)]
    parts += [("idle", idle), ("not assigned", found.unassigned_j)]
    whole = found.measured.value
    energy = scale_column("energy", "J", [found.measured])
    rows = [_make_part_row(name, part, whole) for name, part in parts]
    rows[-1] = TableRow(rows[-1].cells, has_rule_below=True)
    rows.append(TableRow(("measured", found.measured, "100"), "total"))
    return make_table([Column("", align="left"), energy, Column("share", "%")], rows)


def _make_part_row(name: str, part: float, whole: float) -> TableRow:
    """Return a part of the measured energy; one that would be rounded to 0 % is 0."""
    share = 100 * part / whole if whole > 0 else 0.0
    return TableRow((name, part if abs(share) >= SMALLEST_SHARE else "0", f"{share:.1f}"))


def _make_label_table(found: Attribution, by: str) -> Table:
    """Return the sums by the values of a label, the largest first."""
    shown = list(found.labels.values())[:MOST_LABELS]
    energy = scale_column("energy", "J", [one.energy for one in shown])
    each = [one.energy * (1 / one.requests) for one in shown]
    columns = [Column(by, align="left"), Column("requests"), Column("prompt\ntokens"), Column("output\ntokens"), energy]
    columns.append(scale_column("per request", "J", each))
    rows: list[tuple[TableCell, ...]] = []
    for one, per in zip(shown, each, strict=True):
        numbers = (one.requests, one.prompt_tokens, one.output_tokens)
        counts = [None if number is None else fmt.format_amount(number) for number in numbers]
        rows.append((one.label, *counts, one.energy, per))
    return make_table(columns, rows)
