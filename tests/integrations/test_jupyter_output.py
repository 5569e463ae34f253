"""What notebooks show, without a notebook: tables as text and as HTML, the power picture, long sessions."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.rows import every_row

from joulelab.core.quantity import Quantity
from joulelab.integrations.jupyter import replace_first_line
from joulelab.integrations.jupyter_figures import (
    EARLIER,
    MOST_PARTS,
    MeasuredCell,
    NotebookFigures,
    NotebookPart,
    PowerPicture,
    _NotebookMarks,
    join_parts,
)
from joulelab.integrations.jupyter_output import describe_cell, describe_notebook, draw_blocks, draw_svg

CURVE = PowerPicture((0.0, 50.0, 100.0, 100.0), 0.5)


def test_the_picture_is_well_formed_says_what_it_shows_and_needs_nothing_from_outside() -> None:
    picture = draw_svg(CURVE, 'power of "a" <b>')
    root = ET.fromstring(picture)
    assert root.attrib["role"] == "img"
    assert root[0].tag.endswith("title")
    assert root[0].text == root.attrib["aria-label"] == 'power of "a" <b>: 0 W to 100.0 W in 2.000 s'
    assert picture.count("http") == 1  # the name of SVG itself
    assert not any(word in picture for word in ("<script", "href", "url(", "#"))
    # Colours are those of the page's text.
    assert {e.attrib["fill"] for e in root.iter() if "fill" in e.attrib} == {"currentColor", "none"}
    texts = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert texts == ["100.0 W", "0 W", "0 s", "2.000 s", "dashed: mean, 62.50 W"]


def test_a_line_of_blocks_reaches_from_nothing_to_the_largest_power() -> None:
    assert draw_blocks(CURVE) == "▁▅██  0 W to 100.0 W in 2.000 s"
    assert draw_blocks(CURVE, 2).startswith("▃█  ")
    assert draw_blocks(PowerPicture((0.0, 0.0), 1.0)).startswith("▁▁  ")
    long = PowerPicture(tuple(float(k) for k in range(1000)), 0.1)
    assert len(draw_blocks(long).partition("  ")[0]) <= 48
    assert long.coarsen(10).mean == pytest.approx(long.mean)


def test_what_is_shown_is_text_and_html() -> None:
    part = NotebookPart("cell 1", 1.0, Quantity(1.0, {"gain:x": 0.1}), "<a> & b")
    shown = describe_notebook(replace(notebook(1.0), parts=(part,)), is_over=True)
    lines = shown.to_text().splitlines()
    assert lines[2].split() == ["time", "energy,", "J", "mean,", "W"]
    assert lines[4].split() == ["cell", "1", "·", "<a>", "&", "b", "1.000", "s", "1.00", "±", "0.20", "1.000"]
    page = shown.to_html()
    ET.fromstring(page)
    assert "&lt;a&gt; &amp; b" in page
    assert page.count("font-weight:bold") == 4  # the cells of the total


def notebook(*energies: float | None, between: float | None = 30.0) -> NotebookFigures:
    parts = [
        NotebookPart(f"cell {k}", 1.0, None if e is None else Quantity(e, {"gain:x": 0.05 * e}))
        for k, e in enumerate(energies, 1)
    ]
    rest = NotebookPart("between cells", 3.0, None if between is None else Quantity(between, {"gain:x": 1.5}))
    whole = join_parts("total", (*parts, rest))
    return NotebookFigures(Path("/runs/r"), tuple(parts), rest, whole, CURVE if between is not None else None)


def test_a_notebook_is_the_sum_of_its_cells_and_of_the_time_between_them() -> None:
    text = describe_notebook(notebook(10.0, 60.0), is_over=False).to_text()
    assert text.startswith("the notebook so far: 100 ± 10 J in 5.000 s, 20.00 W on average\n\n")
    assert "idle   between cells: 30.0 % of the energy, 60.0 % of the time" in text
    assert [line.split()[0] for line in text.splitlines()[4:8]] == ["cell", "cell", "between", "total"]
    assert text.endswith("run    /runs/r")


def test_without_a_meter_there_is_no_energy_and_the_next_command_is_told() -> None:
    text = describe_notebook(notebook(None, None, between=None), is_over=True).to_text()
    assert text.startswith("the notebook: 5.000 s, no power meter (`joulelab meters` lists what is missing)")
    assert "idle" not in text
    assert describe_cell(MeasuredCell("x", None, 0.5, None, None)).to_text() == "x: 500 ms, not recorded"


def test_of_many_cells_those_that_used_most_are_listed() -> None:
    shown = describe_notebook(notebook(*(float(k) for k in range(1, 101))), is_over=True)
    labels = [row.cells[0] for row in shown.tables[0].rows]
    assert labels[:2] == ["cell 72", "cell 73"]
    assert labels[-3:] == ["71 others", "between cells", "total"]
    assert len(labels) == 32
    assert shown.to_text().startswith("the notebook: 5.08 ")


def test_the_first_of_very_many_cells_are_one_and_idle_is_not_guessed() -> None:
    def mark(k: int, what: str, **more: object) -> dict[str, Any]:
        return {"t": 10 * k, "mark": what, "id": f"1-{k}", "host": "h", **more}

    names = ["between cells", "cell"] * MOST_PARTS
    lines = [mark(k, "begin", name=n, labels={"notebook": "a", "title": "t"}) for k, n in enumerate(names)]
    lines += [{**mark(k, "end"), "t": 10 * k + 10} for k in range(len(names))]
    lines.append({"t": 5, "mark": "begin", "id": "2-1", "host": "h", "name": "other", "labels": {}})
    lines.append({"t": 5, "mark": "begin", "id": "3-1", "host": "h", "name": "cell", "labels": {"notebook": "b"}})

    class Run:
        end = "of the run"

        def marks(self) -> list[dict[str, Any]]:
            return lines

    marked = _NotebookMarks(cast("Any", Run()), "a", 20)
    assert marked.end == "of the run"
    first, second = marked.lines[:2]
    assert (first["name"], first["t"], second["mark"]) == (EARLIER, 20, "end")
    assert second["t"] == marked.lines[2]["t"]
    assert len([line for line in marked.marks() if line["mark"] == "begin"]) == MOST_PARTS + 1
    parts = (NotebookPart(EARLIER, 1.0, Quantity(1.0)), *notebook(10.0).parts)
    assert replace(notebook(10.0), parts=parts).idle_share is None


@pytest.mark.parametrize(
    ("given", "name", "rest"),
    [
        (["%%joulelab\n", "x\n"], "", ["x\n"]),
        (["%%joulelab  the training \n", "\n", "x\n"], "the training", ["\n", "x\n"]),
        (["%%joulelab a'b\n"], "a'b", []),
        (["%%joulelab\n", "\n", "%%bash\n", "ls\n"], "", ["get_ipython().run_cell_magic('bash', '', 'ls\\n')\n"]),
    ],
)
def test_a_measured_cell_runs_as_any_other_after_its_first_line(given: list[str], name: str, rest: list[str]) -> None:
    first, *others = replace_first_line(given)
    assert first.endswith(f".begin({name!r})\n")
    assert others == rest


@every_row("given", [[], ["x\n"], ["%%joulelab?\n"], ["%%joulelabs\n", "x\n"], ["%joulelab\n"]])
def test_other_cells_are_left_alone(given: list[str]) -> None:
    assert replace_first_line(list(given)) == given
