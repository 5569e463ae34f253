"""What notebooks show, without a notebook: tables as text and as HTML, the power picture, long sessions."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.rows import every_row

from joulelab.analysis.result import Check, GpuLoad, GroupResult, Result
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
    text, page = shown.to_text(), shown.to_html()
    assert "cell 1 · <a> & b  1.000 s" in text
    assert max(map(len, text.splitlines())) <= 80
    ET.fromstring(page)
    assert "&lt;a&gt; &amp; b" in page
    assert page.count("font-weight:bold") == 4  # the cells of the total


def make_result(energy: Quantity | None, seconds: float, **more: Any) -> Result:
    mean = None if energy is None else energy / seconds
    groups = () if energy is None or mean is None else (GroupResult("measured", ("gpu:0",), energy, mean, None),)
    state: dict[str, Any] = {"state": "live", "outcome": "live", "exit_code": None, "signal": None, "start_utc": ""}
    times: dict[str, Any] = {"start_ns": 0, "end_ns": round(seconds * 1e9)}
    empty: dict[str, Any] = {"phases": (), "work": {}, "load": {}, "gaps": (), "checks": ()}
    return Result("r1", None, "h", [], scopes=(), groups=groups, **state, **times, **empty | more)


def notebook(*energies: float | None, between: float | None = 30.0) -> NotebookFigures:
    parts = [
        NotebookPart(f"cell {k}", 1.0, None if e is None else Quantity(e, {"gain:x": 0.05 * e}))
        for k, e in enumerate(energies, 1)
    ]
    rest = NotebookPart("between cells", 3.0, None if between is None else Quantity(between, {"gain:x": 1.5}))
    whole = join_parts("total", (*parts, rest))
    picture = CURVE if between is not None else None
    return NotebookFigures(Path("/runs/r1"), tuple(parts), rest, picture, make_result(whole.energy, whole.duration_s))


def test_a_notebook_begins_with_the_answer_and_shows_idle_power() -> None:
    text = describe_notebook(notebook(10.0, 60.0), is_over=False).to_text()
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    assert lines[:4] == [
        ["joulelab", "the notebook so far · 5.000 s"],
        ["energy", "100 ± 10 J (± 10 %), 20.0 W on average"],
        ["covers", "GPUs only (1): no meter for the rest of the node"],
        ["idle", "10.0 W between cells: 30.0 % of the energy, 60.0 % of the time"],
    ]
    assert [line[0] for line in lines[7:11]] == ["cell", "cell", "between", "total"]
    assert text.endswith("more       joulelab show r1 --all")


def test_a_cell_without_energy_gives_the_reason_and_the_next_step() -> None:
    assert describe_cell(MeasuredCell("x", None, 0.5, None, None)).to_text() == "joulelab   x · 500 ms · not recorded"
    text = describe_notebook(notebook(None, None, between=None), is_over=True).to_text()
    assert "joulelab meters" in text
    assert "idle" not in text

    # Its edges are unsure by 40 J; around it are 100 W: 2 s would give 20 %.
    short = make_result(Quantity(1.0, {"edge:x": 20.0}), 0.01, checks=(Check("too-short", "warning", "gpu:0"),))
    cell = MeasuredCell("x", Path("/runs/r1"), 0.01, short, None, 100.0)
    text = describe_cell(cell).to_text()
    assert "energy     too short to measure in 10.0 ms; 100.0 W on average around it" in text
    assert "Repeat its work for 2 s or more:" in text
    assert "-> for _ in range(200): ..." in text
    assert "warning" not in text
    assert "for 5 s or more" in describe_cell(replace(cell, around_w=None)).to_text()


def test_an_idle_cell_shows_idle_power_and_no_stack_of_notes() -> None:
    loads = (GpuLoad("h", "gpu:0", 0.0, 0.0),)
    checks = tuple(Check("too-short", "warning", f"gpu:{k}") for k in range(5))
    result = make_result(Quantity(1000.0, {"gain:x": 30.0}), 10.0, gpu_loads=loads, checks=checks)
    text = describe_cell(MeasuredCell("x", Path("/runs/r1"), 10.0, result, CURVE)).to_text()
    assert "idle       the GPUs did nothing: 100.0 W is idle power" in text
    assert text.count("warning") <= 3
    busy = replace(result, gpu_loads=(replace(loads[0], maximum=0.9),))
    assert "idle" not in describe_cell(MeasuredCell("x", Path("/runs/r1"), 10.0, busy, CURVE)).to_text()


def test_of_many_cells_those_that_used_most_are_listed() -> None:
    shown = describe_notebook(notebook(*(float(k) for k in range(1, 101))), is_over=True)
    assert shown.table is not None
    labels = [row.cells[0] for row in shown.table.rows]
    assert labels[:2] == ["cell 72", "cell 73"]
    assert labels[-3:] == ["71 others", "between cells", "total"]
    assert len(labels) == 32
    assert dict(shown.answer)["energy"].startswith("5.1 ± ")


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
