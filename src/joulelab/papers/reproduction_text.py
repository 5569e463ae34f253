"""Write reproductions: for the terminal (the answer first), as documents in Markdown or LaTeX, as CSV and JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from joulelab.papers.judgement import (
    GROUPS,
    Count,
    Figure,
    Group,
    Kind,
    count_kind,
    count_strictly,
    count_verdicts,
    list_misses,
    select_kind,
)
from joulelab.papers.reproduction import ENOUGH
from joulelab.report import format as fmt
from joulelab.report.study_csv import write_records
from joulelab.report.tables import DOCUMENT_FORMATS, Column, FilledColumn, Table, join_columns
from joulelab.report.terminal import BLANK_LINE, TextBlock, TextLine, list_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.papers.judgement import Tolerance
    from joulelab.papers.reproduction import Reproduction, TruthCoverage

WITHIN = (
    "the paper's own ± where it prints one, else 5 %, a tenth of a gain (at most 2 points), or one step of the caps"
)
STRICT = "measured in the paper, and not determined by a number of the twin that was fitted or chosen to match"
PREDICTED = (
    "also those that depend on a chosen number of the twin; without fitted figures, and without those that follow from "
    "other figures by algebra"
)
COVERAGE = "± behind a reproduced figure is its expanded uncertainty (k = 2)."
UNEXPLAINED, FOLLOWS, CHANGED = "no reason is known", "it follows from other figures", "the twin was changed"
KINDS: tuple[Kind, ...] = ("calibrated", "predicted", "identity", "finding")
GROUP_TITLES: dict[Group, str] = {
    "measured": "Counted strictly: measured, and nothing fitted or chosen determines them",
    "chosen": "Chosen: numbers of the twin were chosen knowing these",
    "determined": "Determined by fitted or chosen numbers",
    "calibrated": "Calibrated on: numbers of the twin were fitted to these",
    "derived": "Derived: algebra on other figures, counted once with them",
    "": "Outside of a twin: shown, not judged",
}
FINDINGS, MISSES, METERS, NOTES = "Findings of the paper", "Misses", "What the meters cost", "Notes"
VERDICTS = {"hit": "hit", "miss": "MISS", "": fmt.NOTHING}
MOST_ROWS = 12  # longer tables of a paper are files only
FEWEST_DIGITS, MOST_DIGITS = 4, 9


def lay_out_reproduction(made: Reproduction, *, is_whole: bool = False) -> list[TextBlock]:
    """Lay out counts, misses with their reasons, and the figures that count strictly; everything else if `is_whole`."""
    blocks: list[TextBlock] = [TextLine(made.paper.entries.title, "bold"), list_facts(list_answers(made))]
    blocks += _lay_out_list(
        MISSES, [("MISS", text) for text in word_misses(made.figures, is_changed=bool(made.changes))], label=4
    )
    tables = make_group_tables(made.figures)
    for table in tables if is_whole else tables[:1]:
        blocks += [BLANK_LINE, table]
    if is_whole:
        for table in (each.table for each in made.tables if len(each.table.rows) <= MOST_ROWS):
            blocks += [BLANK_LINE, replace(table, notes=()), *(TextLine(note) for note in table.notes)]
        blocks += _lay_out_list(FINDINGS, word_findings(made.figures), label=3)
        blocks += _lay_out_list(METERS, [("-", text) for text in made.meters], label=1)
        blocks += _lay_out_list(NOTES, [("-", text) for text in word_notes(made.figures)], label=1)
    blocks += [BLANK_LINE, list_facts(list_circumstances(made))]
    more = [] if is_whole else [("every figure", f"joulelab reproduce {made.paper.name} --all")]
    commands = [(name, f"-> {command}") for name, command in (*more, *made.next_commands)]
    return [*blocks, BLANK_LINE, list_facts(commands)]


def list_answers(made: Reproduction) -> list[tuple[str, str]]:
    """List the counts, the findings, how sure energies are, and what counts as within."""
    found = count_kind(made.figures, "finding")
    answers = [("strictly", word_strict_count(made.figures)), ("figures", word_wide_count(made.figures))]
    answers += [("neither", text)] if (text := word_uncounted(made.figures)) else []
    answers += [("findings", f"{found.hits} of {found.total} hold")] if found.total else []
    answers += [("left", f"{made.left} of {made.slots} runs have no result")] if made.left else []
    return [*answers, ("energy", word_coverage(made.coverage)), ("allowed", WITHIN)]


def list_circumstances(made: Reproduction) -> list[tuple[str, str]]:
    """List the twins, their changed and assumed numbers, how long it took, and where the results are."""
    facts = [("twin", f"{name}: {title}" if title else name) for name, title in made.twins.items()]
    if made.changes:
        facts.append(("changed", f"{', '.join(made.changes)}: it is not the calibrated twin any more"))
    facts += [("assumed", text)] if (text := word_assumptions(made)) else []
    facts.append(("ran", word_runs(made)))
    facts += [("hardware", made.paper.entries.hardware)] if made.paper.entries.hardware else []
    facts += [("study", made.folder)] if made.folder else []
    return facts + ([("files", "\n".join(made.files))] if made.files else [])


def _lay_out_list(title: str, lines: Sequence[tuple[str, str]], *, label: int) -> list[TextBlock]:
    if not lines:
        return []
    facts = list_facts(lines, label_width=label, styles={"MISS": "bold", "NO": "bold"})
    return [BLANK_LINE, TextLine(title, "bold"), facts]


def write_document(made: Reproduction, form: str) -> str:
    """Write a reproduction in a format of DOCUMENT_FORMATS, with everything."""
    document = DOCUMENT_FORMATS[form]

    def write_facts(facts: Iterable[tuple[str, str]]) -> str:
        return document.write_list(f"{name}: {', '.join(text.splitlines())}" for name, text in facts)

    parts: list[Table | str] = [document.write_heading(made.paper.entries.title), write_facts(list_answers(made))]
    findings = [f"{holds}: {text}" for holds, text in word_findings(made.figures)]
    lists = {FINDINGS: findings, METERS: list(made.meters), NOTES: word_notes(made.figures)}
    if misses := word_misses(made.figures, is_changed=bool(made.changes)):
        parts += [document.write_title(MISSES), document.write_list(misses)]
    parts += [*make_group_tables(made.figures), *(table.table for table in made.tables)]
    for title, lines in lists.items():
        parts += [document.write_title(title), document.write_list(lines)] if lines else []
    return document.write_document([*parts, write_facts(list_circumstances(made)), document.escape_text(COVERAGE)])


# Sentences


def word_strict_count(figures: Iterable[Figure]) -> str:
    """Word how many of the figures that count strictly lie within their tolerance."""
    return _word_count(count_strictly(figures), STRICT)


def word_wide_count(figures: Iterable[Figure]) -> str:
    """Word how many of all predictions lie within their tolerance."""
    return _word_count(count_kind(figures, "predicted"), PREDICTED)


def word_uncounted(figures: Iterable[Figure]) -> str:
    """Word how many misses are in neither count; empty if there is none."""
    count = sum(not f.is_strict and f.kind not in ("predicted", "finding") for f in list_misses(figures))
    are = "miss is" if count == 1 else "misses are"
    return f"{count} more {are} listed and in neither count: identities, or fitted to" if count else ""


def _word_count(found: Count, what: str) -> str:
    if not found.total:
        return "no figure"
    lacking = f" ({found.unjudged} have no result)" if found.unjudged else ""
    return f"{found.hits} of {found.total} within tolerance{lacking}: {what}"


def word_findings(figures: Iterable[Figure]) -> list[tuple[str, str]]:
    """Word each finding with its numbers, behind yes, NO or -."""
    holds = {"hit": "yes", "miss": "NO", "": fmt.NOTHING}
    found = select_kind(figures, "finding")
    return [(holds[f.verdict], f"{f.label}: {f.detail}" if f.detail else f.label) for f in found]


def word_misses(figures: Iterable[Figure], *, is_changed: bool = False) -> list[str]:
    """Word each miss with its reason, those that count strictly first; a changed twin is a reason."""
    texts: list[str] = []
    notes: set[str] = set()
    for figure in list_misses(figures):
        why = figure.note or (FOLLOWS if figure.kind == "identity" else CHANGED if is_changed else UNEXPLAINED)
        why = "as above" if figure.note in notes else why
        notes |= {figure.note} - {""}
        why = f"{why[:1].upper()}{why[1:]}{'' if why.endswith(('.', '!', '?')) else '.'}"
        if figure.kind == "finding":
            texts.append(f"{figure.label}: does not hold. {why}")
            continue
        numbers = f"{format_reproduced(figure)} instead of {_add_unit(format_number(figure.published), figure.unit)}"
        off = f"{format_deviation(figure)}, allowed {format_tolerance(figure.tolerance, figure.unit)}"
        group = "" if figure.is_strict else f", {figure.group}"
        texts.append(f"{figure.label}: {numbers} ({off}{group}). {why}")
    return texts


def word_notes(figures: Iterable[Figure]) -> list[str]:
    """Word the remarks on figures that do not miss."""
    return [f"{f.label}: {f.note}" for f in figures if f.note and f.verdict != "miss"]


def word_runs(made: Reproduction) -> str:
    """Word how many runs there are, and how long they took, in virtual and in real time."""
    runs = f"{made.slots - made.left} of {made.slots} runs" if made.left else f"{made.slots} runs"
    there = made.slots - made.left - made.new
    before = "" if not there else "; all were there already" if not made.new else f"; {there} were there already"
    took = fmt.format_rough_duration(made.took_s)
    return f"{runs} of together {fmt.format_duration(made.ran_s)}, in virtual time: {took}, seed {made.seed}{before}"


def word_assumptions(made: Reproduction) -> str:
    """Word which of the twins' numbers were chosen knowing a published figure; empty if none was."""
    count = len(made.assumed)
    if not count:
        return ""
    is_one_twin = len(made.twins) == 1
    numbers = f"{count} number{'' if count == 1 else 's'} of the twin{'' if is_one_twin else 's'}"
    text = f"{numbers} {'was' if count == 1 else 'were'} chosen knowing published figures: {', '.join(made.assumed)}"
    node = next(iter(made.twins)) if is_one_twin else "NODE"
    return f"{text}; joulelab twin --show {node} shows {'its origin' if count == 1 else 'the origin of each'}"


def word_coverage(found: TruthCoverage) -> str:
    """Word in how many slots, and in how many cells, the true energy lies within the stated uncertainty."""
    if not found.slots:
        return "no run has a known true energy"
    widest, farthest = (fmt.format_percent(share, signed=False) for share in (found.widest, found.farthest))
    text = f"the true energy lies within the stated uncertainty in {found.inside} of {found.slots} runs"
    text += f" (the widest is ± {widest}, the largest error {farthest})"
    if found.cells != found.slots:  # with one run each, cells are runs, which are counted already
        text += f"; in at least {100 * ENOUGH:g} % of the runs of {found.cells_inside} of {found.cells} cells"
        name, inside, slots = found.worst
        text += "" if inside == slots else f", in {inside} of {slots} of the worst ({name})"
    more = f"; of every scope that was read, in {found.scopes_inside} of {found.scopes}"
    return text + (more if found.scopes > found.slots else "")


# Tables of figures


def make_group_tables(figures: Sequence[Figure]) -> list[Table]:
    """Make a table of each group of figures that has any, those that count strictly first."""
    groups = [(t, [f for f in figures if f.group == g and f.kind != "finding"]) for g, t in GROUP_TITLES.items()]
    return [make_figure_table(title, own) for title, own in groups if own]


def make_figure_table(title: str, figures: Sequence[Figure]) -> Table:
    """Make a table of figures: published and reproduced with their unit, deviation, tolerance, verdict."""
    columns: list[FilledColumn] = [
        (Column("figure", align="left"), tuple(f.label for f in figures)),
        (Column("published"), tuple(_add_unit(format_number(f.published), f.unit) for f in figures)),
        (Column("reproduced"), tuple(format_reproduced(f) for f in figures)),
    ]
    if any(f.kind != "outside" for f in figures):
        columns += [
            (Column("off by"), tuple(format_deviation(f) for f in figures)),
            (Column("allowed", is_optional=True), tuple(format_tolerance(f.tolerance, f.unit) for f in figures)),
            (Column(""), tuple(VERDICTS[f.verdict] for f in figures)),
        ]
    return join_columns(columns, styles=["best" if f.verdict == "miss" else "" for f in figures], title=title)


def format_number(value: float | str | None) -> str:
    """Return a figure as it was printed."""
    if value is None:
        return fmt.NOTHING
    return value if isinstance(value, str) else fmt.format_plain(value, MOST_DIGITS)


def format_reproduced(figure: Figure) -> str:
    """Return what the study gave, with its interval where there is one, and with its unit."""
    value = figure.reproduced
    if value is None or isinstance(value, (str, bool)):
        return fmt.NOTHING if value is None else str(value)
    if figure.uncertainty is not None and math.isfinite(figure.uncertainty):
        text = fmt.format_interval(value, figure.uncertainty, signed=True)
    elif float(value).is_integer():  # a cap, a count
        text = format_number(value)
    else:  # one digit more than the paper has, at least four
        published = figure.published if isinstance(figure.published, float | int) else 0.0
        printed = len(f"{published:.{MOST_DIGITS}g}".lstrip("-0.").replace(".", ""))
        text = fmt.format_number(value, min(max(FEWEST_DIGITS, printed), MOST_DIGITS))
    return _add_unit(text, figure.unit)


def format_deviation(figure: Figure) -> str:
    """Return the deviation of a figure in the terms of its tolerance: percent, points, or its unit."""
    off = figure.deviation
    if off is None:
        return fmt.NOTHING
    if figure.tolerance.amount is None:
        return fmt.NOTHING if figure.relative is None else fmt.format_percent(figure.relative)
    allowed = "".join(filter(str.isdigit, format_tolerance(figure.tolerance, figure.unit)))
    digits = max(2, len(allowed.lstrip("0")))  # as many as the limit has, so that a miss does not look like a hit
    size = format_number(abs(off)) if float(off).is_integer() else fmt.format_number(abs(off), digits)
    return f"{'-' if off < 0 else '+'}{size} {_name_points(figure.unit)}"


def format_tolerance(tolerance: Tolerance, unit: str) -> str:
    """Return the tolerance of a figure."""
    if tolerance.amount is not None:
        amount = tolerance.amount if unit != "%" else float(f"{tolerance.amount:.2g}")
        return f"± {format_number(amount)} {_name_points(unit)}".rstrip()
    return fmt.NOTHING if tolerance.share is None else f"± {100 * tolerance.share:g} %"


def _name_points(unit: str) -> str:
    return "points" if unit == "%" else unit


def _add_unit(text: str, unit: str) -> str:
    return text if not unit or text == fmt.NOTHING else f"{text} {unit}"


# CSV and JSON


def make_records(made: Reproduction) -> list[dict[str, Any]]:
    """Make a record per figure with all its fields."""
    return [
        {
            "paper": made.paper.name,
            "id": f.id,
            "label": f.label,
            "kind": f.kind,
            "group": f.group,
            "strict": f.is_strict,
            "unit": f.unit,
            "published": f.published,
            "reproduced": f.reproduced,
            "expanded": f.uncertainty,
            "deviation": f.deviation,
            "relative": f.relative,
            "allowed": f.limit,
            "allowed_from": f.tolerance.text,
            "verdict": f.verdict,
            "detail": f.detail,
            "note": f.note,
        }
        for f in made.figures
    ]


def write_figures_csv(all_made: Iterable[Reproduction]) -> str:
    """Write a row per figure of each paper, in full."""
    return write_records([record for made in all_made for record in make_records(made)])


def make_json(made: Reproduction) -> dict[str, Any]:
    """Return a reproduction as plain data: every figure in full, and the counts."""
    counts = {kind: count_kind(made.figures, kind) for kind in KINDS} | {"strict": count_strictly(made.figures)}
    groups = {group: count_verdicts(f for f in made.figures if f.group == group) for group in GROUPS}
    coverage = asdict(made.coverage)
    coverage["worst_cell"] = dict(zip(("cell", "inside", "slots"), coverage.pop("worst"), strict=True))
    tables = [(each.name, each.table, each.records) for each in made.tables]
    return {
        "paper": made.paper.name,
        "title": made.paper.entries.title,
        "twins": dict(made.twins),
        "changes": list(made.changes),
        "assumed": list(made.assumed),
        "seed": made.seed,
        "slots": made.slots,
        "slots_left": made.left,
        "slots_run_now": made.new,
        "virtual_s": made.ran_s,
        "took_s": made.took_s,
        "counts": {name: asdict(count) for name, count in counts.items()},
        "groups": {name: asdict(count) for name, count in groups.items()},
        "within": WITHIN,
        "figures": make_records(made),
        "covered": coverage,
        "meters": list(made.meters),
        "tables": [
            {"name": name, "title": table.title, "note": " ".join(table.notes), "records": [dict(r) for r in records]}
            for name, table, records in tables
        ],
        "folder": made.folder,
        "files": list(made.files),
        "next": [command for _, command in made.next_commands],
    }
