"""Write the tables of a study as Markdown or LaTeX, to be pasted into a paper. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from joulelab.report import study_tables
from joulelab.report.messages import word_notes
from joulelab.report.study.table import COVERAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.report.study_tables import Column

APART = re.compile(r"~?[-\d. ]+( ± (< )?[\d. ]+)?[!† ]*")  # a figure, its thousands set apart
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
    "†": r"$^\dagger$",
    "<": "$<$",
    ">": "$>$",
}


def write_study_markdown(summary: StudySummary) -> str:
    """Return the tables and notes of a study in Markdown."""
    parts = [part for title, columns in _tables(summary) for part in (f"**{escaped(title)}**", markdown_table(columns))]
    best = [f"- {name}: {escaped(text)}" for name, text in _best(summary)]
    notes = [f"- {escaped(note)}" for note in (COVERAGE, *word_notes(summary.notes))]
    return "\n\n".join([*parts, *(["\n".join(best)] if best else []), "\n".join(notes)]) + "\n"


def write_study_latex(summary: StudySummary) -> str:
    """Return the tables of a study in LaTeX (booktabs), each with a caption; the notes come as a paragraph."""
    parts = [latex_table(title, columns) for title, columns in _tables(summary)]
    said = [f"{name}: {text}." for name, text in _best(summary)] + [COVERAGE, *word_notes(summary.notes)]
    return "\n".join([r"% \usepackage{booktabs}", *parts, *(tex(each) for each in said)]) + "\n"


def _tables(summary: StudySummary) -> list[tuple[str, list[Column]]]:
    tables = []
    for line in summary.lines:
        label, title = study_tables.make_label_column(summary, line), study_tables.title_line(summary, line)
        best = study_tables.make_best_column(summary, line)
        marks = [best] if any(best.cells) else []
        tables.append((title, [label, *study_tables.list_measured_columns(summary, line), *marks]))
        compared = study_tables.list_compared_columns(summary, line)
        if compared:
            tables.append((f"{title}: gains in percent", [label, *compared]))
    if summary.scaling:
        tables.append(
            ("scaling, compared with the fewest GPUs", study_tables.scaling_columns(summary, summary.scaling))
        )
    return tables


def _best(summary: StudySummary) -> list[tuple[str, str]]:
    found = []
    alone = {line.key for line in summary.lines if study_tables.has_one_cell(summary, line)}
    for best in summary.best:
        if best.line in alone:
            continue
        of = "" if len(summary.lines) == 1 else " of all lines" if best.line is None else f" of {best.line}"
        found.append((f"best for {best.goal.text}{of}", study_tables.describe_best(summary, best)))
    return found


def markdown_table(columns: Sequence[Column]) -> str:
    """Return columns as a table in Markdown."""
    lines = _rows(columns, escaped)
    rule = ["---:"] * len(columns)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:]))


def latex_table(title: str, columns: Sequence[Column], *, left: int = 0, rules: Sequence[int] = ()) -> str:
    """Return columns as a table in LaTeX (booktabs) with a caption.

    The first `left` columns are set to the left; a line is drawn before the rows in `rules`.
    """
    head, *body = [rf"{' & '.join(cells)} \\" for cells in _rows(columns, tex)]
    ruled = [f"\\midrule\n{row}" if k in rules else row for k, row in enumerate(body)]
    inner = "\n".join([r"\toprule", head, r"\midrule", *ruled, r"\bottomrule"])
    places = "l" * left + "r" * (len(columns) - left)
    tabular = f"\\begin{{tabular}}{{{places}}}\n{inner}\n\\end{{tabular}}"
    return f"\\begin{{table}}\n\\centering\n\\caption{{{tex(title)}}}\n{tabular}\n\\end{{table}}"


def _rows(columns: Sequence[Column], write: Callable[[str], str]) -> list[list[str]]:
    heads = [[write(c.head.replace("\n", " ")) for c in columns]]
    return heads + [[write(cell) for cell in cells] for cells in zip(*(c.cells for c in columns), strict=True)]


def escaped(text: str) -> str:
    """Return a text so that Markdown shows it as it is."""
    return re.sub(r"([|*_~<`\\])", r"\\\1", text)


def tex(text: str) -> str:
    """Return a text so that LaTeX shows it as it is; figures with ± as mathematics."""
    safe = "".join(SPECIAL.get(letter, letter) for letter in text)
    whole = re.sub(r"(?<=\d) (?=\d{3}(?:\D|$))", r"\\,", safe) if APART.fullmatch(text) else safe
    return re.sub(r"([-+]?[\d.\\,]+) ± ([\d.?\\,]+)", r"$\1 \\pm \2$", whole).replace("±", r"$\pm$")
