"""Hold a table once and write it for the terminal, Markdown, LaTeX, CSV or HTML.

Cells are quantities, numbers, texts or None. Figures are rounded in one place (`format.py`), so that the terminal, a
page and a paper show the same digits; CSV has them in full. Nothing is printed here: writers return text.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
import unicodedata
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.quantity import Quantity
from joulelab.core.text import escape_unprintable
from joulelab.report import format as fmt
from joulelab.report.html import Html, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

GAP = 2  # blanks between two columns
FIRST_ACCENT = "\u0300"  # letters before it take one cell
ROOMY = 100  # cells of a terminal in which texts are wrapped before optional columns are left out
LEAST_TEXT = 16  # cells to which texts are wrapped where a table is too wide
HARD_BLANK = "\N{NO-BREAK SPACE}"  # a blank at which no line is wrapped
WHOLE_WORDS: Any = {"break_on_hyphens": False, "break_long_words": False}  # how texts are wrapped
UNKNOWN_WIDTH = " ± ?"  # after a figure; a table has a mark in its place, and a line below that explains it
NO_INTERVAL, UNKNOWN_REASON = "‡", "the uncertainty is unknown"
EXPANDED = "_expanded"  # in CSV, the column after a quantity: its expanded uncertainty (k = 2), empty where unknown
STYLES = {"total": "bold", "best": "bold", "dim": "dim"}  # of rows, in the terminal
ANSI = {"bold": "\x1b[1m", "dim": "\x1b[2m", "yellow": "\x1b[33m", "bold red": "\x1b[1;31m"}
ANSI_END = "\x1b[0m"
INLINE_STYLE = "text-align:{};padding:1px 8px;white-space:nowrap;{}"
# Signs that have a meaning in Markdown: anywhere (mkdocs reads attributes in braces); outside of words; of tags and
# entities; of links; at the beginning.
MARKDOWN_SIGN = re.compile(
    r"[\\`*|~{]|(?<![^\W_])_|_(?![^\W_])|<(?=[a-zA-Z/!?])|&(?=#?\w+;)|\[(?=[^\]]*\][(\[:])|^[#>]"
)
LONE_MINUS = re.compile(r"(?<![\w$.,:/-])-(?=\d)")  # of a figure; not of a name, a range or an option
FIGURE_PAIR = re.compile(r"([-+]?\d(?:[\d.,]*\d)?) ± (\d(?:[\d.,]*\d)?|\?)")
LATEX_SPECIAL = {
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
    "‡": r"$^\ddagger$",
    "<": "$<$",
    ">": "$>$",
}


@dataclass(frozen=True, slots=True)
class MarkedCell:
    """Hold a figure with marks around it: `~` before an estimate, `!` after a cap that was not in force."""

    value: Quantity | float | None
    before: str = ""
    after: str = ""


TableCell = Quantity | float | str | None | MarkedCell


@dataclass(frozen=True, slots=True)
class Column:
    """Describe a column: heading (may have several lines), unit and alignment.

    Figures are divided by `factor` to be in `unit`; shares of one are shown in percent. Figures that are smaller than
    their interval are shown in words, except `signed` ones, such as a quality; derived ones are `not resolved`.
    A `bare` figure has the digits that its interval allows, but no interval, and one digit more unless it `is_amount`
    of money or CO2e. `digits` are those of numbers without an uncertainty. Optional columns are left out of a terminal
    that is too narrow, the last one first.
    """

    name: str
    unit: str = ""
    align: Literal["left", "right"] = "right"
    factor: float = 1.0
    signed: bool = False
    is_derived: bool = False
    bare: bool = False
    is_amount: bool = False
    digits: int = 4
    is_share: bool = False
    is_optional: bool = False
    is_unknown: bool = False

    @property
    def heading(self) -> str:
        """Return name and unit: `energy, kJ`; with a mark after it if no uncertainty of the column is known."""
        parts = ", ".join(part for part in (self.name, self.unit) if part)
        return f"{parts}{HARD_BLANK}{NO_INTERVAL}" if self.is_unknown and not parts.endswith(NO_INTERVAL) else parts


FilledColumn = tuple[Column, tuple[TableCell, ...]]


@dataclass(frozen=True, slots=True)
class TableRow:
    """Hold one row. `style` is total, best, dim, or a class of a page; `depth` indents the first cell."""

    cells: tuple[TableCell, ...]
    style: str = ""
    depth: int = 0
    has_rule_below: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Hold a table with its title, and the notes to be read below it.

    The first `label_count` columns name the rows: they are in each part of a table that is too wide for a terminal.
    `no_interval` is the reason why figures have no interval; its second line may be a command, after `->`.
    """

    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    label_count: int = 1
    no_interval: str = ""


def make_table(
    columns: Iterable[Column | str],
    rows: Iterable[TableRow | Sequence[TableCell]],
    *,
    left: Collection[int] = (0,),
    title: str = "",
    notes: Sequence[str] = (),
) -> Table:
    """Make a table; columns given by name are aligned to the right, except columns with an index in `left`.

    Short rows are filled up with empty cells.
    """
    made = [
        c if isinstance(c, Column) else Column(c, align="left" if k in left else "right") for k, c in enumerate(columns)
    ]
    found = []
    for given in rows:
        row = given if isinstance(given, TableRow) else TableRow(tuple(given))
        found.append(replace(row, cells=(*row.cells, *[""] * (len(made) - len(row.cells)))))
    return Table(tuple(made), tuple(found), title, tuple(notes))


def join_columns(
    columns: Iterable[FilledColumn], *, styles: Sequence[str] = (), title: str = "", notes: Sequence[str] = ()
) -> Table:
    """Make a table from columns with their cells; `styles` are the styles of the rows."""
    heads, cells = zip(*columns, strict=True)
    rows = [TableRow(row, styles[k] if styles else "") for k, row in enumerate(zip(*cells, strict=True))]
    return make_table(heads, rows, title=title, notes=notes)


def make_record_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table for CSV: a row per record, with the columns of all records in the order of their first use."""
    names = list(dict.fromkeys(name for record in records for name in record))
    return make_table(names, [[record.get(name) for name in names] for record in records])


def scale_column(name: str, unit: str, values: Iterable[Quantity | float | None], *, signed: bool = False) -> Column:
    """Make a column whose unit has the SI prefix that fits its values."""
    factor, prefixed = fmt.choose_scale([None if v is None else float(v) for v in values], unit)
    return Column(name, prefixed, factor=factor, signed=signed)


def join_tables(first: Table, second: Table) -> Table:
    """Return two tables side by side; the first column of the second table is left out."""
    rows = (replace(a, cells=(*a.cells, *b.cells[1:])) for a, b in zip(first.rows, second.rows, strict=True))
    return replace(first, columns=(*first.columns, *second.columns[1:]), rows=tuple(rows))


def format_cell(cell: TableCell, column: Column) -> str:
    """Return a cell as it is shown: rounded to its uncertainty, in the unit of its column, without the unit."""
    if isinstance(cell, str):
        return cell
    if cell is None:
        return fmt.NOTHING
    if isinstance(cell, MarkedCell):
        text = format_cell(cell.value, column)
        return text if text in fmt.WORDS else f"{cell.before}{text}{cell.after}"
    if isinstance(cell, Quantity):
        return _format_quantity(cell, column)
    return f"{cell:,}" if isinstance(cell, int) else fmt.format_number(cell / column.factor, column.digits)


def _format_quantity(q: Quantity, column: Column) -> str:
    expanded = q.expanded
    if column.is_share:
        if q.value == 0 and not expanded:
            return "0"
        return fmt.format_change(q.value, expanded).replace(" %", "").removeprefix("+")
    if expanded == 0:
        return fmt.format_number(q.value / column.factor, column.digits)
    if column.bare and q.is_resolved:
        format_figure = fmt.format_rounded if column.is_amount else fmt.format_value
        return format_figure(q.value / column.factor, None if expanded is None else expanded / column.factor)
    if not column.signed:
        return fmt.format_scaled(q, column.factor, is_derived=column.is_derived)
    wide = None if expanded is None else expanded / column.factor
    return fmt.format_interval(q.value / column.factor, wide, signed=True)


def clean_text(text: str) -> str:
    """Return a text without control characters, which could move the cursor; our own HTML stays unchanged."""
    if text.isprintable() or isinstance(text, Html):
        return text
    return escape_unprintable(text.replace(HARD_BLANK, " "))


def _fill_cells(table: Table) -> tuple[Table, list[list[str]]]:
    """Return the table and its cells as text, without columns that have neither heading nor text.

    A figure without an interval has a mark; if no uncertainty of a column is known, its heading has it instead.
    """
    texts = [[format_cell(cell, c) for cell, c in zip(row.cells, table.columns, strict=True)] for row in table.rows]
    for k, column in enumerate(table.columns):
        widths = [row[k] for row in texts if "±" in row[k]]
        is_unknown = len(widths) > 1 and all(UNKNOWN_WIDTH in text for text in widths)
        if is_unknown:
            columns = (*table.columns[:k], replace(column, is_unknown=True), *table.columns[k + 1 :])
            table = replace(table, columns=columns)
        for row in texts:
            if UNKNOWN_WIDTH in row[k]:  # a cell that is HTML stays HTML
                row[k] = row[k].replace(UNKNOWN_WIDTH, "" if is_unknown else NO_INTERVAL)
    shown = [k for k, c in enumerate(table.columns) if c.heading or any(row[k] for row in texts)]
    if len(shown) == len(table.columns):
        return table, texts
    rows = tuple(replace(row, cells=tuple(row.cells[k] for k in shown)) for row in table.rows)
    columns = tuple(table.columns[k] for k in shown)
    return replace(table, columns=columns, rows=rows), [[row[k] for k in shown] for row in texts]


def _explain_marks(table: Table, written: str) -> list[str]:
    """Return the lines that explain figures without an interval; none if the written table has no such figure."""
    if NO_INTERVAL not in written:
        return []
    return f"{NO_INTERVAL} no interval: {table.no_interval or UNKNOWN_REASON}".split("\n")


# Terminal


def measure_text(text: str) -> int:
    """Return the width of a line of text, in cells of a terminal."""
    if text.isascii() or max(text) < FIRST_ACCENT:
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def measure_table(table: Table) -> int:
    """Return the width of a table, in cells of a terminal."""
    table, texts = _fill_cells(table)
    return _add_widths(_measure_columns(_split_headings(table), _split_cells(table, texts)))


def style_text(text: str, style: str) -> str:
    """Return a text in bold, dim or a colour for the terminal; unchanged without a style."""
    return f"{ANSI[style]}{text}{ANSI_END}" if style and text else text


def split_table(table: Table, width: int) -> list[Table]:
    """Split a table into parts that fit into a width, each with the labels; no figure is cut off."""
    table, texts = _fill_cells(table)
    labels = range(table.label_count)
    widths = _measure_columns(_split_headings(table), _split_cells(table, texts))
    parts: list[list[int]] = []
    room = 0
    for k in range(table.label_count, len(widths)):
        if not parts or widths[k] + GAP > room:
            parts.append([*labels])
            room = width - _add_widths([widths[n] for n in labels])
        parts[-1].append(k)
        room -= widths[k] + GAP
    if not parts:
        return [table]
    return [_choose_columns(table, places) for places in parts]


def fit_table(table: Table, width: int) -> list[Table]:
    """Return a table that fits into a width, in several parts if necessary.

    Optional columns are left out first; then headings and texts are wrapped to several lines.
    """
    if measure_table(table) <= width:
        return [table]
    optional = [k for k, column in enumerate(table.columns) if column.is_optional]
    if width >= ROOMY or not optional:
        wrapped = _wrap_texts(_fold_headings(table), width)
        if measure_table(wrapped) <= width:
            return [wrapped]
    if not optional:
        parts = split_table(table, width)
        return [p if measure_table(p) <= width else _wrap_texts(p, width, cuts_words=True) for p in parts]
    return fit_table(_choose_columns(table, [k for k in range(len(table.columns)) if k != optional[-1]]), width)


def write_terminal(table: Table, width: int | None = None, *, is_styled: bool = False) -> str:
    """Return a table as lines for a terminal: a rule below the headings, sums in bold where `is_styled`.

    A table that is wider than `width` is made to fit (`fit_table`).
    """
    parts = [style_text(clean_text(table.title), "bold" if is_styled else "")] if table.title else []
    pieces = [table] if width is None else fit_table(table, width)
    parts += [_write_lines(piece, is_styled=is_styled) for piece in pieces]
    for line in _explain_marks(table, "".join(parts)):
        is_wrapped = width is not None and not line.startswith("-> ")
        lines = textwrap.wrap(line, max(width or 0, LEAST_TEXT), **WHOLE_WORDS) if is_wrapped else [line]
        parts[-1] = "\n".join([parts[-1], *lines])
    return "\n\n".join([*parts, *(clean_text(note) for note in table.notes)])


def _write_lines(table: Table, *, is_styled: bool) -> str:
    table, texts = _fill_cells(table)
    heads, body = _split_headings(table), _split_cells(table, texts)
    widths = _measure_columns(heads, body)

    def place(cells: Sequence[str], style: str = "") -> str:
        placed = []
        for text, wide, column in zip(cells, widths, table.columns, strict=True):
            blanks = " " * (wide - measure_text(text))
            placed.append(text + blanks if column.align == "left" else blanks + text)
        return style_text((" " * GAP).join(placed).rstrip(), style if is_styled else "")

    lines = [place(cells, "bold") for cells in heads] + ["─" * _add_widths(widths)]
    for row, cells in zip(table.rows, body, strict=True):
        lines += [place(line, STYLES.get(row.style, "")) for line in cells]
        lines += [""] if row.has_rule_below else []
    return "\n".join(lines)


def _split_headings(table: Table) -> list[list[str]]:
    """Return the lines of the headings; headings with fewer lines are at the bottom."""
    heads = [[clean_text(line) for line in column.heading.split("\n")] for column in table.columns]
    most = max((len(lines) for lines in heads), default=1)
    return [list(line) for line in zip(*([""] * (most - len(lines)) + lines for lines in heads), strict=True)]


def _split_cells(table: Table, texts: Sequence[Sequence[str]]) -> list[list[tuple[str, ...]]]:
    """Return the lines of each row: a text may have several lines, figures are in the first one."""
    found = []
    for row, cells in zip(table.rows, texts, strict=True):
        if row.depth:
            indent = "  " * row.depth
            cells = [indent + cells[0].replace("\n", f"\n{indent}"), *cells[1:]]  # noqa: PLW2901
        if any("\n" in text for text in cells):
            found.append(list(zip_longest(*(map(clean_text, text.split("\n")) for text in cells), fillvalue="")))
        else:
            found.append([tuple(map(clean_text, cells))])
    return found


def _measure_columns(heads: Sequence[Sequence[str]], body: Sequence[Sequence[Sequence[str]]]) -> list[int]:
    lines = [*heads, *(line for row in body for line in row)]
    return [max(map(measure_text, column)) for column in zip(*lines, strict=True)]


def _add_widths(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * max(len(widths) - 1, 0)


def _choose_columns(table: Table, places: Sequence[int]) -> Table:
    rows = tuple(replace(row, cells=tuple(row.cells[k] for k in places)) for row in table.rows)
    return replace(table, columns=tuple(table.columns[k] for k in places), rows=rows, title="", notes=())


def _fold_headings(table: Table) -> Table:
    """Return a table whose headings are wrapped to several lines, so that columns are narrower."""
    table, texts = _fill_cells(table)
    columns = []
    for column, *cells in zip(table.columns, *texts, strict=True):
        room = max((measure_text(line) for text in cells for line in text.split("\n")), default=0)
        lines = [
            part for line in column.heading.split("\n") for part in textwrap.wrap(line, max(room, 1), **WHOLE_WORDS)
        ]
        columns.append(replace(column, name="\n".join(lines), unit=""))
    return replace(table, columns=tuple(columns))


def _wrap_texts(table: Table, width: int, *, cuts_words: bool = False) -> Table:
    """Wrap the widest texts that are aligned to the left, to 16 cells at least; long words are cut in their middle."""
    table, texts = _fill_cells(table)
    widths = _measure_columns(_split_headings(table), _split_cells(table, texts))
    most = list(widths)
    while (excess := _add_widths(most) - width) > 0:
        long = [k for k, c in enumerate(table.columns) if c.align == "left" and most[k] > LEAST_TEXT]
        if not long:
            break
        widest = max(long, key=lambda k: most[k])
        most[widest] = max(most[widest] - excess, LEAST_TEXT)
    rows = []
    for row in table.rows:
        cells = list(row.cells)
        for k, cell in enumerate(cells):
            if most[k] < widths[k] and isinstance(cell, str):
                room = max(most[k] - (2 * row.depth if k == 0 else 0), 2)
                lines = [part for line in cell.split("\n") for part in textwrap.wrap(line, room, **WHOLE_WORDS)]
                cells[k] = "\n".join(
                    fmt.shorten_middle(clean_text(line), room) if cuts_words else line for line in lines
                )
        rows.append(replace(row, cells=tuple(cells)))
    return replace(table, rows=tuple(rows))


# Markdown


def write_markdown(table: Table) -> str:
    """Return a table in Markdown, its title in bold. Texts are escaped, so that they cannot end a cell or the table."""
    table, texts = _fill_cells(table)
    lines = [[escape_markdown(_join_lines(c.heading)) or " " for c in table.columns]]
    lines.append([":---" if c.align == "left" else "---:" for c in table.columns])
    for row, cells in zip(table.rows, texts, strict=True):
        safe = [escape_markdown(_join_lines(text)) for text in cells]
        if row.style == "total":
            safe = [f"**{text}**" if text.strip() else text for text in safe]
        lines.append([HARD_BLANK * 2 * row.depth + safe[0], *safe[1:]])
    parts = [f"**{escape_markdown(table.title)}**"] if table.title else []
    parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    notes = _join_explanation(table, texts) + table.notes
    return "\n\n".join([*parts, *map(escape_markdown, notes)]) + "\n"


def escape_markdown(text: str) -> str:
    """Escape a text for Markdown, only where a sign would have a meaning."""
    return MARKDOWN_SIGN.sub(r"\\\g<0>", clean_text(text))


def _join_lines(text: str) -> str:
    return " ".join(text.split("\n")) if "\n" in text else text


def _join_explanation(table: Table, texts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the explanation of figures without an interval as one sentence, for documents."""
    written = "".join([*(column.heading for column in table.columns), *(text for row in texts for text in row)])
    lines = [line.removeprefix("-> ") for line in _explain_marks(table, written)]
    return (" ".join(lines),) if lines else ()


# LaTeX


def write_latex(table: Table) -> str:
    """Return a table in LaTeX (booktabs); title and notes are its caption."""
    table, texts = _fill_cells(table)
    heads = " & ".join(escape_latex(_join_lines(c.heading)) for c in table.columns)
    lines = [r"\toprule", rf"{heads} \\", r"\midrule"]
    for k, (row, cells) in enumerate(zip(table.rows, texts, strict=True), start=1):
        indent = r"\quad " * row.depth
        lines.append(rf"{indent}{' & '.join(escape_latex(_join_lines(text)) for text in cells)} \\")
        lines += [r"\midrule"] if row.has_rule_below and k < len(table.rows) else []
    places = "".join("l" if c.align == "left" or k < table.label_count else "r" for k, c in enumerate(table.columns))
    tabular = [rf"\begin{{tabular}}{{{places}}}", *lines, r"\bottomrule", r"\end{tabular}"]
    notes = table.notes + _join_explanation(table, texts)
    caption = ". ".join(part for part in (table.title, *notes) if part)
    captions = [rf"\caption{{{escape_latex(caption)}}}"] if caption else []
    return "\n".join([r"\begin{table}", r"\centering", *captions, *tabular, r"\end{table}"])


def escape_latex(text: str) -> str:
    """Escape a text for LaTeX; figures with ± become mathematics, and so does the minus of others."""
    safe = "".join(LATEX_SPECIAL.get(letter, letter) for letter in clean_text(text))
    return LONE_MINUS.sub("$-$", FIGURE_PAIR.sub(_write_pair, safe).replace("±", r"$\pm$"))


def _write_pair(figure: re.Match[str]) -> str:
    value, width = (part.replace(",", "{,}") for part in figure.groups())
    return rf"${value} \pm {width}$"


# CSV


def write_csv(table: Table) -> str:
    """Return a table as CSV with figures in full; None is an empty field, a quantity has a second column."""
    columns: list[tuple[str, list[object]]] = []
    for k, column in enumerate(table.columns):
        cells = [row.cells[k] for row in table.rows]
        values = [cell.value if isinstance(cell, MarkedCell) else cell for cell in cells]
        heading = _join_lines(column.heading)
        columns.append((heading, [_scale_value(value, column) for value in values]))
        if any(isinstance(value, Quantity) for value in values):
            wide = [value.expanded if isinstance(value, Quantity) else None for value in values]
            columns.append((heading + EXPANDED, [_scale_value(value, column) for value in wide]))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([heading for heading, _ in columns])
    writer.writerows(zip(*(values for _, values in columns), strict=True))
    return file.getvalue()


def _scale_value(value: object, column: Column) -> object:
    value = value.value if isinstance(value, Quantity) else value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value / column.factor if is_number and column.factor != 1.0 else value  # type: ignore[operator]


# HTML


def write_html(table: Table, *, is_caption_hidden: bool = False, is_inline: bool = False) -> Html:
    """Return a table as HTML with its title as caption; a hidden caption is for screen readers only.

    Where `is_inline`, cells hold their own style: for notebooks, which have no style sheet of ours.
    """
    table, texts = _fill_cells(table)
    cell = _style_inline if is_inline else _class_cell
    heads = [cell(table, k, _join_lines(column.heading), None) for k, column in enumerate(table.columns)]
    body = []
    for row, cells in zip(table.rows, texts, strict=True):
        style = "total" if row.style == "best" else row.style
        classes = " ".join(word for word in (style, "apart" if row.has_rule_below else "") if word)
        made = [cell(table, k, _join_lines(text), row) for k, text in enumerate(cells)]
        body.append(tag("tr", *made, class_=None if is_inline else classes or None))
    hidden = "sr-only" if is_caption_hidden else None
    caption = tag("caption", clean_text(table.title), class_=hidden) if table.title else None
    left = "text-align:left" if is_inline else None
    notes = [
        tag("tr", tag("td", clean_text(note), colspan=len(table.columns), style=left))
        for note in _join_explanation(table, texts)
    ]
    parts = caption, tag("thead", tag("tr", *heads)), tag("tbody", *body), tag("tfoot", *notes) if notes else None
    return tag("table", *parts, style="border-collapse:collapse" if is_inline else None)


def _class_cell(table: Table, place: int, text: str, row: TableRow | None) -> Html:
    """Return a cell of a page, whose style sheet knows the classes."""
    kind = None if table.columns[place].align == "left" else "number"
    if row is None:
        return tag("th", clean_text(text), scope="col", class_=kind) if text else tag("td", class_=kind)
    if place == 0 and text:
        return tag("th", clean_text(text), scope="row", class_=f"depth{min(row.depth, 6)}" if row.depth else None)
    return tag("td", clean_text(text), class_=kind)


def _style_inline(table: Table, place: int, text: str, row: TableRow | None) -> Html:
    is_bold = row is not None and STYLES.get(row.style) == "bold"
    style = INLINE_STYLE.format(table.columns[place].align, "font-weight:bold" if is_bold else "")
    indent = HARD_BLANK * 2 * (row.depth if row is not None and place == 0 else 0)
    name = "th" if row is None else "td"
    return tag(name, Html(indent), clean_text(text), style=style)


# Documents


@dataclass(frozen=True, slots=True)
class DocumentFormat:
    """Describe a text format of whole documents: how tables, texts, headings and lists are written in it.

    Pairs are the texts before and after a heading, a title, a list, or an item of a list.
    """

    write_table: Callable[[Table], str]
    escape_text: Callable[[str], str]
    heading: tuple[str, str]
    title: tuple[str, str]
    items: tuple[str, str]
    item: tuple[str, str]
    separator: str
    comment: str = ""
    preamble: tuple[str, ...] = ()

    def write_heading(self, text: str) -> str:
        """Return the heading of a document."""
        return self.escape_text(text).join(self.heading)

    def write_title(self, text: str) -> str:
        """Return the title of a part of a document."""
        return self.escape_text(text).join(self.title)

    def write_list(self, lines: Iterable[str]) -> str:
        """Return lines as the items of a list."""
        return "\n".join(self.escape_text(line).join(self.item) for line in lines).join(self.items)

    def write_document(self, parts: Iterable[Table | str]) -> str:
        """Return tables and written parts as a whole."""
        texts = [part if isinstance(part, str) else self.write_table(part).rstrip("\n") for part in parts]
        return self.separator.join([*self.preamble, *texts]) + "\n"


# Another format is one entry here: `joulelab study report` and `joulelab reproduce` offer it then as `--format`.
DOCUMENT_FORMATS = {
    "markdown": DocumentFormat(
        write_markdown, escape_markdown, ("## ", ""), ("**", "**"), ("", ""), ("- ", ""), separator="\n\n"
    ),
    "latex": DocumentFormat(
        write_latex,
        escape_latex,
        heading=("\\section*{", "}"),
        title=("\\paragraph{", "}"),
        items=("\\begin{itemize}\n", "\n\\end{itemize}"),
        item=("\\item ", ""),
        separator="\n",
        comment="% ",
        preamble=("% \\usepackage{booktabs}",),
    ),
}
