from __future__ import annotations

import io

from rich.text import Text

from joulelab.report.columns import print_columns
from joulelab.report.console import make_console, make_table


def test_it_looks_like_a_table_that_is_laid_out_for_a_terminal() -> None:
    heads = ("run", "gain-loss =\n2 x EDS(2)", "energy, µJ")
    rows = [("a", "1", "2.5 ± 0.1"), ("bcdef", "-12.25", "漢字"), ("", "", "")]
    lines, laid_out = io.StringIO(), io.StringIO()
    print_columns(lines, heads, rows, left=(0,), bold=(True, False, False))
    table = make_table(*heads, left=(0,))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    make_console(laid_out, width=200).print(table)
    assert lines.getvalue() == laid_out.getvalue()


def test_a_head_without_rows() -> None:
    lines = io.StringIO()
    print_columns(lines, ("a", "b"), [])
    assert lines.getvalue().splitlines() == ["a  b", "────"]
