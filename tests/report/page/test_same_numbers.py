"""The page, the Markdown, the JSON and the terminal say the same figures: those of `report.format`, from one result."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.report.page.reading import Reader
from tests.study.virtual_study import METERS, write

from joulelab.analysis.power_profile import make_profile
from joulelab.analysis.results_file import load_result
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.report import format as fmt
from joulelab.report import run_tables
from joulelab.report.charts.run_charts import split_energy
from joulelab.report.page.document import write_offline_page
from joulelab.report.page.run_page import make_run_report
from joulelab.report.run_summary import format_energy, write_energy_answer
from joulelab.report.run_tables import lay_out_run
from joulelab.report.terminal import write_blocks
from joulelab.store.run_reader import open_run
from joulelab.twin.virtual import run_twin_study

if TYPE_CHECKING:
    from joulelab.analysis.result import Result

pytestmark = pytest.mark.system

GOLDEN = Path(__file__).parents[2] / "golden" / "schema-1" / "20231114-221320-aaaa"
MORE = """
[meters.inlet]
family = "modbus"
ask_s = 1
options = { profile = "sdm630" }
[meters.bmc]
family = "ipmi"
options = { sources = ["dcmi"] }
[meters.rapl]
family = "rapl"
ask_s = 0.5
"""
OWN = {"99 %", "known from", "correlation", "reason", "fact"}  # heads of tables that the terminal has not
FACTORS = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "mJ": 1e-3, "W": 1.0, "kW": 1e3}


class Told:
    """Hold one run as each of the four tells it."""

    def __init__(self, path: Path) -> None:
        self.result: Result = load_result(path)
        with open_run(path) as run:
            self.profile = make_profile(run)
        report = make_run_report(self.result, path, self.profile)
        self.page = report.make_page()
        self.html = Reader(write_offline_page(self.page))
        self.markdown = report.write_markdown()
        self.json: dict[str, Any] = json.loads(json.dumps(self.result.to_json()))
        blocks = lay_out_run(self.result, path, width=2000)
        blocks += lay_out_run(self.result, path, width=2000, every_scope=True, every_phase=True, budget=True)
        self.terminal = write_blocks(blocks, 2000)

    def rows(self) -> set[tuple[str, ...]]:
        """Return the rows of the terminal's tables, without their empty cells."""
        lines = [re.split(r"\s{2,}", line.strip()) for line in self.terminal.splitlines()]
        return {tuple(cell for cell in line if cell) for line in lines}


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("twin")
    file = write(folder, meters=METERS + MORE, repeats=1, caps="[150]")
    study = run_twin_study(file, str(folder / "node.toml"), folder / "out")
    return Told(next(iter(sorted(study.folder.rglob("run.json")))).parent)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return Told(Path(shutil.copytree(GOLDEN, tmp_path_factory.mktemp("golden") / GOLDEN.name)))


@pytest.fixture(params=["golden", "rich"])
def told(request: pytest.FixtureRequest) -> Told:
    found: Told = request.getfixturevalue(request.param)
    return found


def unit_of(heads: list[str], name: str) -> float:
    return FACTORS[next(h for h in heads if h.startswith(f"{name}, ")).partition(", ")[2]]


def interval(quantity: dict[str, Any] | None, factor: float, unresolved: str = fmt.TOO_SHORT_CELL) -> str:
    if quantity is None:
        return fmt.NOTHING
    wide = quantity["expanded"]
    wide = None if wide is None else wide / factor
    return fmt.format_interval(quantity["value"] / factor, wide, unresolved=unresolved)


def test_every_row_of_the_tables_is_the_terminals(told: Told) -> None:
    terminal = told.rows()
    compared = 0
    for heads, *rows in told.html.tables:
        if OWN & set(heads):
            continue
        for row in rows:
            assert tuple(cell.strip() for cell in row if cell.strip()) in terminal, (heads, row)
            compared += 1
    assert compared >= len(told.result.scopes) + len(told.result.phases)


def test_every_figure_of_the_energy_table_is_the_jsons(told: Told) -> None:
    heads, *rows = next(table for table in told.html.tables if any(h.startswith("energy, ") for h in table[0]))
    joules, watts = unit_of(heads, "energy"), unit_of(heads, "mean")
    scopes = {scope["scope"]: scope | {"energy": scope["reading"]["energy"]} for scope in told.json["scopes"]}
    groups = {group["name"]: group for group in told.json["groups"]}
    assert {"measured", *(s for s in scopes if s.startswith("gpu:"))} <= {row[0] for row in rows}
    for label, *cells in rows:
        told_of = scopes.get(label) or groups[re.sub(r" \(\d+\)$", "", label)]
        statistics = told_of["statistics"] or {}
        mean, wide = told_of["mean_w"]["value"], told_of["mean_w"]["expanded"]
        powers = [statistics.get("median"), statistics.get("maximum")]
        if fmt.is_wide(mean, wide) and cells[2] == fmt.NOTHING:  # readings of power that do not fit a rough mean
            powers = [None, None]
        if label.startswith("rest of "):  # the highest difference of two meters is no power of the node
            powers[1] = None
        expected = [interval(told_of["energy"], joules), fmt.format_value(mean / watts, wide / watts)]
        expected += [fmt.NOTHING if w is None else fmt.format_number(w / watts) for w in powers]
        expected += [interval(told_of["net"], joules, unresolved=fmt.NOT_RESOLVED)] if len(heads) > 5 else []
        assert cells == expected, label


def test_the_first_figures_are_those_of_the_headline_and_the_json(told: Told) -> None:
    energy = told.json["energy"]
    cards = told.html.by_class["value"]
    q = Quantity(energy["value"], {"x": energy["expanded"] / 2})
    assert cards[0] == fmt.format_quantity(q, "J").partition(" (")[0]  # how wide it is stands below
    assert cards[1] == fmt.format_duration(told.json["duration_s"])
    answer = write_energy_answer(told.result)
    assert answer.startswith(format_energy(q))
    assert answer.endswith(f", {cards[2]} on average")
    assert f"energy     {answer}\n" in told.terminal
    assert told.html.by_class["name"][:3] == ["energy", "time", "mean power"]


def test_charts_say_what_the_tables_say(rich: Told) -> None:
    charts = " ".join(rich.html.by_class["label"])
    heads = next(row for row in rich.html.rows if any(h.startswith("energy, ") for h in row))
    unit = next(h for h in heads if h.startswith("energy, ")).partition(", ")[2]
    for scope in ("gpu:0", "gpu:1", "measured"):
        assert rich.html.row(scope)[1] in charts
    assert f"{rich.html.row('measured')[1]} {unit}" in charts


def test_the_stack_adds_up_to_what_was_measured(told: Told) -> None:
    energy = told.result.energy
    assert energy is not None
    parts = split_energy(told.result)
    assert sum(q.value for q in parts.values()) == pytest.approx(energy.value, rel=1e-9)
    assert add_quantities(parts.values()).expanded == pytest.approx(energy.expanded, rel=1e-6)


def test_rated_power_is_told_once(rich: Told) -> None:
    told = run_tables.describe_rated(rich.result.rated)
    assert fmt.format_interval(rich.json["rated"]["ratio"]["value"], rich.json["rated"]["ratio"]["expanded"]) in told
    assert told in " ".join(rich.html.by_class["said"])
    assert told in rich.terminal


def test_markdown_has_the_rows_of_the_page(told: Told) -> None:
    cells = re.compile(r"(?<!\\)\|")
    lines = [line for line in told.markdown.splitlines() if line.startswith("|")]
    plain = {
        tuple(re.sub(r"\\(.)", r"\1", c).strip().strip("*").strip() for c in cells.split(line)[1:-1]) for line in lines
    }
    for row in told.html.rows:
        assert tuple(cell.strip() for cell in row) in plain, row
