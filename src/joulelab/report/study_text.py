"""Write the tables of a study as Markdown or LaTeX, to be pasted into a paper. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from joulelab.report import study_rows as rows
from joulelab.report.study import COVERAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.analysis.metrics import Summary
    from joulelab.report.study_rows import Column

SPECIAL = {
    "\\": r"\textbackslash{}",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "µ": r"$\mu$",
    "²": r"$^2$",
}


def study_markdown(summary: Summary) -> str:
    """Return the tables and notes of a study in Markdown."""
    parts = [part for title, columns in _tables(summary) for part in (f"**{_escaped(title)}**", _markdown(columns))]
    best = [f"- {name}: {_escaped(text)}" for name, text in _best(summary)]
    notes = [f"- {_escaped(note)}" for note in (COVERAGE, *summary.notes)]
    return "\n\n".join([*parts, *(["\n".join(best)] if best else []), "\n".join(notes)]) + "\n"


def study_latex(summary: Summary) -> str:
    """Return the tables of a study in LaTeX (booktabs), each with a caption; the notes come as a paragraph."""
    parts = [_latex(title, columns) for title, columns in _tables(summary)]
    said = [f"{name}: {text}." for name, text in _best(summary)] + [COVERAGE, *summary.notes]
    return "\n".join([r"% \usepackage{booktabs}", *parts, *(_tex(each) for each in said)]) + "\n"


def _tables(summary: Summary) -> list[tuple[str, list[Column]]]:
    tables = []
    for line in summary.lines:
        label, title = rows.label_column(summary, line), rows.line_title(summary, line)
        best = rows.best_column(summary, line)
        marks = [best] if any(best.cells) else []
        tables.append((title, [label, *rows.measured_columns(summary, line), *marks]))
        compared = rows.compared_columns(summary, line)
        if compared:
            tables.append((f"{title}: gains in percent", [label, *compared]))
    if summary.scaling:
        tables.append(("scaling, compared with the fewest GPUs", rows.scaling_columns(summary, summary.scaling)))
    return tables


def _best(summary: Summary) -> list[tuple[str, str]]:
    found = []
    for best in summary.best:
        of = "" if len(summary.lines) == 1 else " of all lines" if best.line is None else f" of {best.line}"
        found.append((f"best for {best.goal.text}{of}", rows.best_text(summary, best)))
    return found


def _markdown(columns: Sequence[Column]) -> str:
    lines = _rows(columns, _escaped)
    rule = ["---:"] * len(columns)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:]))


def _latex(title: str, columns: Sequence[Column]) -> str:
    lines = [rf"{' & '.join(cells)} \\" for cells in _rows(columns, _tex)]
    inner = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
    tabular = f"\\begin{{tabular}}{{{'r' * len(columns)}}}\n{inner}\n\\end{{tabular}}"
    return f"\\begin{{table}}\n\\centering\n\\caption{{{_tex(title)}}}\n{tabular}\n\\end{{table}}"


def _rows(columns: Sequence[Column], write: Callable[[str], str]) -> list[list[str]]:
    heads = [[write(c.head.replace("\n", " ")) for c in columns]]
    return heads + [[write(cell) for cell in cells] for cells in zip(*(c.cells for c in columns), strict=True)]


def _escaped(text: str) -> str:
    return re.sub(r"([|*_~<`\\])", r"\\\1", text)


def _tex(text: str) -> str:
    safe = "".join(SPECIAL.get(letter, letter) for letter in text)
    return re.sub(r"([-+]?[\d.]+) ± ([\d.?]+)", r"$\1 \\pm \2$", safe)
