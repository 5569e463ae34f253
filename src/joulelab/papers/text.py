"""Print a reproduction as text, Markdown or LaTeX."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.text import Text

from joulelab.papers import told as say
from joulelab.papers.judged import count
from joulelab.papers.tables import sections, table_columns
from joulelab.report.console import print_facts
from joulelab.report.study.table import fits, fitting, print_table
from joulelab.report.study.text import escaped, latex_table, markdown_table, tex
from joulelab.report.study_tables import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from joulelab.papers.told import Told

NARROWEST = 16  # labels are wrapped, but to no less than this
MOST_ROWS = 12  # longer tables of a paper are files only
FINDINGS = "Findings of the paper"
MISSES = "What misses, and why"
METERS = "What the meters cost"
NOTES = "Notes"
COVERAGE = "± behind a reproduced figure is its expanded uncertainty (k = 2)."


def print_told(console: Console, told: Told) -> None:
    """Print everything: tables of figures, findings, counts, misses with their reason, meters, files, what is next."""
    console.print(Text(told.paper.title, style="bold"))
    print_facts(console, heading(told))
    for title, columns in sections(told.figures):
        _print_columns(console, title, columns)
    for table in (each for each in told.tables if len(each.rows) <= MOST_ROWS):
        _print_columns(console, table.title, table_columns(table))
        print_facts(console, [("", table.note)] if table.note else [], label=0)
    _print_list(console, FINDINGS, say.findings(told.figures), label=3)
    _print_list(console, MISSES, [("MISS", text) for text in say.missed(told.figures)], label=4)
    _print_list(console, METERS, [("-", text) for text in told.meters], label=1)
    _print_list(console, NOTES, [("-", text) for text in say.notes(told.figures)], label=1)
    console.print()
    console.print(Text("In short", style="bold"))
    print_facts(console, summary(told))
    if told.then:
        console.print()
        label = max(len(name) for name, _ in told.then)
        print_facts(console, [(name, f"-> {command}") for name, command in told.then], label=label)


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
    parts = [f"## {escaped(told.paper.title)}", _items(_named(heading(told)))]
    for title, columns in _tables(told):
        parts += [f"**{escaped(title)}**", markdown_table(columns)]
    for title, lines in _lists(told):
        parts += [f"**{title}**", _items(lines)]
    return "\n\n".join([*parts, _items(_named(summary(told))), escaped(COVERAGE)]) + "\n"


def told_latex(told: Told) -> str:
    """Return a reproduction in LaTeX (booktabs); sentences come as lists."""
    parts = [r"% \usepackage{booktabs}", rf"\section*{{{tex(told.paper.title)}}}"]
    parts += [_itemize(_named(heading(told)))]
    parts += [latex_table(title, columns, left=1) for title, columns in _tables(told)]
    parts += [rf"\paragraph{{{tex(title)}}}" + "\n" + _itemize(lines) for title, lines in _lists(told)]
    return "\n".join([*parts, _itemize(_named(summary(told))), tex(COVERAGE)]) + "\n"


def _tables(told: Told) -> list[tuple[str, list[Column]]]:
    return [*sections(told.figures), *((table.title, table_columns(table)) for table in told.tables)]


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
    return "\n".join(f"- {escaped(line)}" for line in lines)


def _itemize(lines: Sequence[str]) -> str:
    items = "\n".join(rf"\item {tex(line)}" for line in lines)
    return f"\\begin{{itemize}}\n{items}\n\\end{{itemize}}"


def _print_list(console: Console, title: str, lines: Sequence[tuple[str, str]], *, label: int) -> None:
    if not lines:
        return
    console.print()
    console.print(Text(title, style="bold"))
    print_facts(console, lines, label=label, styles={"MISS": "bold", "NO": "bold"})


def _print_columns(console: Console, title: str, columns: list[Column]) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    label, *others = _wrapped(columns, console.width)
    misses = [text == "MISS" for text in columns[-1].cells]
    for fit in fitting(label, others, console.width):
        print_table(console, [label, *fit], misses, left=(0,))


def _wrapped(columns: list[Column], width: int) -> list[Column]:
    """Return the columns with heads and labels in several lines where they would not fit otherwise."""
    if fits(columns, width):
        return columns
    label, *others = [Column(_folded(c.head, c.cells), c.cells) for c in columns]
    longest = max((len(text) for text in label.cells), default=0)
    for room in range(longest, NARROWEST - 1, -1):
        short = Column(
            label.head, tuple("\n".join(textwrap.wrap(text, room, break_on_hyphens=False)) for text in label.cells)
        )
        if fits([short, *others], width):
            return [short, *others]
    return [label, *others]


def _folded(head: str, cells: Sequence[str]) -> str:
    """Return a head in lines that are no wider than what is below it, but whole words."""
    room = max((len(line) for text in cells for line in text.splitlines()), default=len(head))
    return "\n".join(textwrap.wrap(head, max(room, 1), break_long_words=False))
