"""Print a reproduction as text, Markdown or LaTeX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.papers import told as say
from joulelab.papers.judged import count
from joulelab.papers.tables import paper_table, sections
from joulelab.report.tables import Table, escape_latex, escape_markdown, write_latex, write_markdown
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
    if told.left:
        facts.append(("left", f"{told.left} of {told.slots} runs have no result"))
    facts += [("study", told.folder)] if told.folder else []
    return facts + ([("files", "\n".join(told.files))] if told.files else [])


def told_markdown(told: Told) -> str:
    """Return a reproduction in Markdown."""
    parts = [f"## {escape_markdown(told.paper.title)}", _items(_named(heading(told)))]
    parts += [write_markdown(table).rstrip("\n") for table in _tables(told)]
    for title, lines in _lists(told):
        parts += [f"**{title}**", _items(lines)]
    return "\n\n".join([*parts, _items(_named(summary(told))), escape_markdown(COVERAGE)]) + "\n"


def told_latex(told: Told) -> str:
    """Return a reproduction in LaTeX (booktabs); sentences come as lists."""
    parts = [r"% \usepackage{booktabs}", rf"\section*{{{escape_latex(told.paper.title)}}}"]
    parts += [_itemize(_named(heading(told)))]
    parts += [write_latex(table) for table in _tables(told)]
    parts += [rf"\paragraph{{{escape_latex(title)}}}" + "\n" + _itemize(lines) for title, lines in _lists(told)]
    return "\n".join([*parts, _itemize(_named(summary(told))), escape_latex(COVERAGE)]) + "\n"


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


def _items(lines: Sequence[str]) -> str:
    return "\n".join(f"- {escape_markdown(line)}" for line in lines)


def _itemize(lines: Sequence[str]) -> str:
    items = "\n".join(rf"\item {escape_latex(line)}" for line in lines)
    return f"\\begin{{itemize}}\n{items}\n\\end{{itemize}}"


def _lay_out_list(title: str, lines: Sequence[tuple[str, str]], *, label: int) -> list[TextBlock]:
    if not lines:
        return []
    facts = list_facts(lines, label_width=label, styles={"MISS": "bold", "NO": "bold"})
    return [BLANK_LINE, TextLine(title, "bold"), facts]
