"""Print a reproduction as text, or as a document in Markdown or LaTeX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.papers import told as say
from joulelab.papers.comparison_tables import paper_table, sections
from joulelab.papers.figure_judgement import count
from joulelab.report.tables import DOCUMENT_FORMATS, Table
from joulelab.report.terminal import BLANK_LINE, TextBlock, TextLine, list_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.papers.told import Told

MOST_ROWS = 12  # longer tables of a paper are files only
FINDINGS = "Findings of the paper"
MISSES = "What misses, and why"
METERS = "What the meters cost"
NOTES = "Notes"
COVERAGE = "± behind a reproduced figure is its expanded uncertainty (k = 2)."


def lay_out_told(told: Told) -> list[TextBlock]:
    """Return everything: tables of figures, findings, counts, misses with their reason, meters, files, what is next."""
    blocks: list[TextBlock] = [TextLine(told.paper.title, "bold"), list_facts(heading(told))]
    for figures in sections(told.figures):
        blocks += [BLANK_LINE, figures]
    for table in (each for each in told.tables if len(each.rows) <= MOST_ROWS):
        blocks += [BLANK_LINE, paper_table(table), *([TextLine(table.note)] if table.note else [])]
    blocks += _lay_out_list(FINDINGS, say.findings(told.figures), label=3)
    blocks += _lay_out_list(MISSES, [("MISS", text) for text in say.missed(told.figures)], label=4)
    blocks += _lay_out_list(METERS, [("-", text) for text in told.meters], label=1)
    blocks += _lay_out_list(NOTES, [("-", text) for text in say.notes(told.figures)], label=1)
    blocks += [BLANK_LINE, TextLine("In short", "bold"), list_facts(summary(told))]
    if told.then:
        label = max(len(name) for name, _ in told.then)
        then = [(name, f"-> {command}") for name, command in told.then]
        blocks += [BLANK_LINE, list_facts(then, label_width=label)]
    return blocks


def heading(told: Told) -> list[tuple[str, str]]:
    """Return on what it ran, which of its numbers were chosen knowing what was published, and how long it took."""
    facts = [("twin", f"{name}: {title}" if title else name) for name, title in told.twins.items()]
    changed = f"{', '.join(told.changes)}: it is not the calibrated twin any more"
    chosen = [("assumed", text)] if (text := say.assumed(told)) else []
    return [*facts, *([("changed", changed)] if told.changes else []), *chosen, ("ran", say.ran(told))]


def summary(told: Told) -> list[tuple[str, str]]:
    """Return the counts, the findings, how sure energies are, and where the results are."""
    held = count(told.figures, "finding")
    facts = [("figures", say.counted(told.figures))]
    if held.total:
        facts.append(("findings", f"{held.hits} of {held.total} hold"))
    facts.append(("energy", say.coverage(told.covered)))
    facts += [("hardware", told.paper.hardware)] if told.paper.hardware else []
    if told.left:
        facts.append(("left", f"{told.left} of {told.slots} runs have no result"))
    facts += [("study", told.folder)] if told.folder else []
    return facts + ([("files", "\n".join(told.files))] if told.files else [])


def told_document(told: Told, form: str) -> str:
    """Return a reproduction in a format of DOCUMENT_FORMATS."""
    document = DOCUMENT_FORMATS[form]
    parts: list[Table | str] = [document.write_heading(told.paper.title), document.write_list(_named(heading(told)))]
    parts += _tables(told)
    for title, lines in _lists(told):
        parts += [document.write_title(title), document.write_list(lines)]
    return document.write_document([*parts, document.write_list(_named(summary(told))), document.escape_text(COVERAGE)])


def _tables(told: Told) -> list[Table]:
    return [*sections(told.figures), *(paper_table(table) for table in told.tables)]


def _lists(told: Told) -> list[tuple[str, list[str]]]:
    lists = [
        (FINDINGS, [f"{holds}: {text}" for holds, text in say.findings(told.figures)]),
        (MISSES, say.missed(told.figures)),
        (METERS, list(told.meters)),
        (NOTES, say.notes(told.figures)),
    ]
    return [(title, lines) for title, lines in lists if lines]


def _named(facts: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{name}: {', '.join(text.splitlines())}" for name, text in facts]


def _lay_out_list(title: str, lines: Sequence[tuple[str, str]], *, label: int) -> list[TextBlock]:
    if not lines:
        return []
    facts = list_facts(lines, label_width=label, styles={"MISS": "bold", "NO": "bold"})
    return [BLANK_LINE, TextLine(title, "bold"), facts]
