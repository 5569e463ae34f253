from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.analysis.studies import cell, trial
from tests.rows import every_row

from joulelab.analysis.cell_metrics import summarise_cells
from joulelab.core.quantity import Quantity
from joulelab.report import format as fmt
from joulelab.report.html import Html
from joulelab.report.study_tables import write_study_document
from joulelab.report.tables import (
    DOCUMENT_FORMATS,
    Column,
    MarkedCell,
    TableRow,
    escape_latex,
    escape_markdown,
    format_cell,
    join_columns,
    join_tables,
    make_record_table,
    make_table,
    measure_table,
    measure_text,
    scale_column,
    split_table,
    write_csv,
    write_html,
    write_latex,
    write_markdown,
    write_terminal,
)

if TYPE_CHECKING:
    import pytest

ENERGIES = [Quantity(1234.0, {"gain": 6.0}), Quantity(800.0, {"gain": 4.0}), Quantity(2034.0, {"gain": 10.0})]
TABLE = make_table(
    [Column("", align="left"), scale_column("energy", "J", ENERGIES), Column("mean", "W")],
    [
        TableRow(("gpu:0", MarkedCell(ENERGIES[0], "~"), 61.71)),
        TableRow(("gpu:1", ENERGIES[1], None), has_rule_below=True),
        TableRow(("measured", ENERGIES[2], 101.7), "total"),
    ],
    title="Energy",
    notes=["k = 2"],
)


def test_figures_are_rounded_to_their_uncertainty_in_the_unit_of_their_column() -> None:
    joules = scale_column("energy", "J", ENERGIES)
    assert joules.heading == "energy, kJ"
    assert format_cell(ENERGIES[0], joules) == "1.234 ± 0.012"
    assert format_cell(Quantity(1234.0, known=False), joules) == "1.234 ± ?"
    assert format_cell(Quantity(1234.0), joules) == "1.234"
    assert format_cell(61.713, Column("mean", "W")) == "61.71"
    assert format_cell(12, Column("n")) == "12"
    assert format_cell("a", Column("name")) == "a"
    assert format_cell(None, Column("name")) == "-"


def test_a_mark_stands_at_figures_only() -> None:
    assert format_cell(MarkedCell(12.0, "~", "!"), Column("cap")) == "~12.00!"
    assert format_cell(MarkedCell(None, "~"), Column("cap")) == "-"


def test_shares_are_percent_and_may_be_below_zero() -> None:
    percent = Column("gain", "%", is_share=True)
    assert format_cell(Quantity(0.1234, {"a": 0.005}), percent) == "12.3 ± 1.0"
    assert format_cell(Quantity(-0.01, {"a": 0.02}), percent) == "not resolved"
    assert format_cell(Quantity(-0.05, {"a": 0.02}), percent) == "-5 ± 4"
    assert format_cell(Quantity(0.0), percent) == "0"
    assert format_cell(Quantity(0.1, known=False), percent) == "10.0 ± ?"


def test_a_figure_that_is_smaller_than_its_interval_is_in_words() -> None:
    q = Quantity(10.0, {"edge:a": 10.0})
    assert format_cell(q, Column("energy", "J")) == fmt.TOO_SHORT_CELL
    assert format_cell(MarkedCell(q, "~"), Column("energy", "J")) == fmt.TOO_SHORT_CELL
    assert format_cell(q, Column("net", "J", is_derived=True)) == fmt.NOT_RESOLVED
    assert format_cell(q, Column("quality", signed=True)) == "10 ± 20"
    assert format_cell(q, Column("mean", "W", bare=True)) == fmt.TOO_SHORT_CELL
    assert format_cell(Quantity(1065.3, {"edge:a": 210.0}), Column("mean", "W", bare=True)) == "1,070"


def test_the_terminal_has_a_rule_below_the_headings_and_a_blank_line_before_sums() -> None:
    assert write_terminal(TABLE).splitlines() == [
        "Energy",
        "",
        "              energy, kJ  mean, W",
        "─────────────────────────────────",
        "gpu:0     ~1.234 ± 0.012    61.71",
        "gpu:1      0.800 ± 0.008        -",
        "",
        "measured     2.03 ± 0.02    101.7",
        "",
        "k = 2",
    ]


def test_bold_only_where_the_terminal_knows_it() -> None:
    assert "\x1b[1m" not in write_terminal(TABLE)
    lines = write_terminal(TABLE, is_styled=True).splitlines()
    assert [line for line in lines if line.startswith("\x1b[1m")] == [lines[0], lines[2], lines[7]]


def test_wide_letters_take_two_cells_and_accents_none() -> None:
    assert [measure_text(text) for text in ("abc", "漢字", "e\u0301", "µJ")] == [3, 4, 1, 2]
    heads = ("run", "gain-loss =\n2 x EDS(2)", "energy, µJ")
    rows = [("a", "1", "2.5 ± 0.1"), ("bcdef", "-12.25", "漢字"), ("", "", "")]
    assert write_terminal(make_table(heads, rows)).split("\n") == [
        "       gain-loss =",
        "run     2 x EDS(2)  energy, µJ",
        "──────────────────────────────",
        "a                1   2.5 ± 0.1",
        "bcdef       -12.25        漢字",
        "",
    ]


def test_headings_without_rows() -> None:
    assert write_terminal(make_table(("a", "b"), [])).splitlines() == ["a  b", "────"]


def test_a_text_of_several_lines_takes_several_lines_beside_figures_in_the_first() -> None:
    table = make_table(("pair", "ratio"), [("gpu :\ncpu", "1.2")])
    assert write_terminal(table).splitlines()[2:] == ["gpu :    1.2", "cpu"]
    assert "| gpu : cpu | 1.2 |" in write_markdown(table)


def test_a_table_that_is_too_wide_comes_in_parts_and_no_figure_is_cut_off() -> None:
    names = [f"column {k}" for k in range(12)]
    table = make_table(["cap", *names], [["100 W", *(f"{k}.00 ± 0.10" for k in range(12))]])
    assert measure_table(table) > 80
    parts = split_table(table, 80)
    assert len(parts) == 3
    assert all(measure_table(part) <= 80 for part in parts)
    written = write_terminal(table, 80)
    assert all(f"{k}.00 ± 0.10" in written for k in range(12))
    assert written.count("100 W") == 3


def test_long_names_are_wrapped_before_a_table_is_split() -> None:
    table = make_table(("cell", "energy of the cell"), [("batch=2 cap=100 gpus=1 workload=resnet152", "1.0 ± 0.1")])
    assert write_terminal(table, 60).splitlines() == [
        "                                           energy of",
        "cell                                        the cell",
        "────────────────────────────────────────────────────",
        "batch=2 cap=100 gpus=1 workload=resnet152  1.0 ± 0.1",
    ]
    assert write_terminal(table, 36).splitlines()[2:] == [
        "─────────────────────────────────",
        "batch=2 cap=100 gpus=1  1.0 ± 0.1",
        "workload=resnet152",
    ]


def test_a_word_that_is_too_long_is_cut_in_its_middle() -> None:
    table = make_table(("scope", "energy"), [("x" * 60 + "-first", "1.0 ± 0.1"), ("x" * 60 + "-second", "2.0 ± 0.1")])
    lines = write_terminal(table, 60).splitlines()
    assert max(map(len, lines)) == 60
    assert lines[2].split()[0].endswith("-first")
    assert "…" in lines[3]
    assert lines[3].endswith("-second  2.0 ± 0.1")


def test_optional_columns_are_left_out_where_there_is_no_room() -> None:
    columns = [Column("phase", align="left"), Column("time"), *(Column(f"J/{k}", is_optional=True) for k in "abc")]
    table = make_table(columns, [("train", "1.000 s", 1.0, 2.0, 3.0)])
    assert write_terminal(table, 30).splitlines()[0].split() == ["phase", "time", "J/a", "J/b"]
    assert write_terminal(table, 10).splitlines()[0].split() == ["phase", "time"]


def test_a_table_of_columns_has_a_style_for_each_row() -> None:
    table = join_columns([(Column("cap"), ("100", "200")), (Column("n"), (1, 2))], styles=["", "best"])
    assert [row.style for row in table.rows] == ["", "best"]
    assert write_terminal(table).splitlines()[2:] == ["100  1", "200  2"]


def test_rows_that_lie_in_others_are_indented() -> None:
    table = make_table(("phase", "time"), [TableRow(("train", "9 s")), TableRow(("epoch", "3 s"), depth=1)])
    assert write_terminal(table).splitlines()[3] == "  epoch   3 s"
    assert "\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}epoch" in write_markdown(table)
    assert '<th scope="row" class="depth1">epoch</th>' in write_html(table)


def test_columns_without_heading_and_text_are_left_out_everywhere() -> None:
    table = make_table(("a", "", "b"), [("x", "", "1")])
    assert write_terminal(table).splitlines()[0] == "a  b"
    assert write_markdown(table).splitlines()[0] == "| a | b |"
    assert write_html(table).count("<td") == 1


def test_short_rows_are_filled_up() -> None:
    assert make_table(("a", "b"), [("x",)]).rows[0].cells == ("x", "")


def test_two_tables_side_by_side_share_the_first_column() -> None:
    first, second = make_table(("cap", "time"), [("1", "2")]), make_table(("cap", "gain"), [("1", "3")])
    assert write_terminal(join_tables(first, second)).splitlines()[0] == "cap  time  gain"


def test_markdown_aligns_columns_and_marks_sums() -> None:
    assert write_markdown(TABLE).splitlines() == [
        "**Energy**",
        "",
        "|   | energy, kJ | mean, W |",
        "| :--- | ---: | ---: |",
        r"| gpu:0 | \~1.234 ± 0.012 | 61.71 |",
        "| gpu:1 | 0.800 ± 0.008 | - |",
        "| **measured** | **2.03 ± 0.02** | **101.7** |",
        "",
        "k = 2",
    ]


def test_texts_of_others_break_neither_markdown_nor_latex_nor_html() -> None:
    table = make_table(("name",), [("a|b*<i>&\n\x1b[31m_%",)])
    assert write_markdown(table).splitlines()[2] == r"| a\|b\*\<i>& \\x1b[31m\_% |"
    assert r"a|b*$<$i$>$\& \textbackslash{}x1b[31m\_\%" in write_latex(table)
    assert r"a|b*&lt;i&gt;&amp; \x1b[31m_%" in write_html(table)
    assert "\x1b" not in write_terminal(table)


@every_row(
    ("text", "escaped"),
    [
        ("a`b", r"a\`b"),
        ("energy [J] -> 5 < 6 & x_y #1", "energy [J] -> 5 < 6 & x_y #1"),
        ("_a_ &lt; <b>", r"\_a\_ \&lt; \<b>"),
        ("[a](b) [c][d] [e]: f", r"\[a](b) \[c][d] \[e]: f"),
        ("# a", r"\# a"),
        ("> a", r"\> a"),
        ("{x}", r"\{x}"),
    ],
)
def test_markdown_escapes_only_signs_that_have_a_meaning(text: str, escaped: str) -> None:
    assert escape_markdown(text) == escaped


def test_latex_has_figures_as_mathematics_and_title_and_notes_as_caption() -> None:
    assert write_latex(TABLE).splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{Energy. k = 2}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r" & energy, kJ & mean, W \\",
        r"\midrule",
        r"gpu:0 & \textasciitilde{}$1.234 \pm 0.012$ & 61.71 \\",
        r"gpu:1 & $0.800 \pm 0.008$ & - \\",
        r"\midrule",
        r"measured & $2.03 \pm 0.02$ & 101.7 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    assert escape_latex("109,477 ± 12, ~5 ± ?") == r"$109{,}477 \pm 12$, \textasciitilde{}$5 \pm ?$"


def test_latex_has_a_minus_before_figures_and_a_hyphen_in_names() -> None:
    assert escape_latex("-12.3 (-13.5 to +2)") == "$-$12.3 ($-$13.5 to +2)"
    assert escape_latex("-12.3 ± 1.1") == r"$-12.3 \pm 1.1$"
    for name in ("20261118-015240-beb3", "gpu:0-7", "form of cifar-10", "--cap -", "a 2-3"):
        assert escape_latex(name) == name


def test_csv_has_figures_in_full_and_a_column_for_the_uncertainty() -> None:
    rows = list(csv.DictReader(io.StringIO(write_csv(TABLE))))
    assert float(rows[0]["energy, kJ"]) == 1.234
    assert float(rows[0]["energy, kJ_expanded"]) == 0.012
    assert [row["mean, W"] for row in rows] == ["61.71", "", "101.7"]


def test_records_have_the_columns_of_all_of_them() -> None:
    assert write_csv(make_record_table([{"a": 1, "b": True}, {"a": None, "c": "x, y"}])).splitlines() == [
        "a,b,c",
        "1,True,",
        ',,"x, y"',
    ]


def test_html_has_scopes_for_screen_readers_and_takes_our_own_markup_as_it_is() -> None:
    table = make_table(("run", "energy"), [(Html('<a href="x">r</a>'), "1")], title="Runs")
    written = write_html(table, is_caption_hidden=True)
    assert '<caption class="sr-only">Runs</caption>' in written
    assert '<th scope="col">run</th><th scope="col" class="number">energy</th>' in written
    assert '<th scope="row"><a href="x">r</a></th><td class="number">1</td>' in written
    assert '<tr class="total">' in write_html(TABLE)
    assert '<tr class="apart">' in write_html(TABLE)


def test_html_for_notebooks_holds_its_own_style() -> None:
    written = write_html(TABLE, is_inline=True)
    assert "class=" not in written.replace("<caption>", "")
    assert written.count("font-weight:bold") == 3


def test_a_document_has_headings_lists_and_tables_of_its_format() -> None:
    written = {}
    for name, document in DOCUMENT_FORMATS.items():
        parts = [document.write_heading("a_b"), document.write_title("c"), document.write_list(["5 %", "d"]), TABLE]
        written[name] = document.write_document(parts)
    markdown = ["## a_b", "**c**", "- 5 %\n- d", write_markdown(TABLE)]
    assert written["markdown"] == "\n\n".join(markdown)
    latex = ["% \\usepackage{booktabs}", "\\section*{a\\_b}", "\\paragraph{c}"]
    latex += ["\\begin{itemize}", "\\item 5 \\%", "\\item d", "\\end{itemize}", write_latex(TABLE)]
    assert written["latex"] == "\n".join(latex) + "\n"


def test_another_format_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    shouted = replace(DOCUMENT_FORMATS["markdown"], item=("* ", "!"))
    monkeypatch.setitem(DOCUMENT_FORMATS, "shouted", shouted)
    assert "* ± is a 95 % interval" in write_study_document(
        summarise_cells([cell("a", [trial(1.0, 1.0)] * 2)]), "shouted"
    )
