"""A run keeps the site that was set when it was made; every output carries the same cost and CO2e."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from tests.report.page.reading import Reader
from tests.report.synthetic import make_run
from tests.rows import every_row

import joulelab
from joulelab.analysis.results_file import load_head, load_result, read_head, read_result
from joulelab.cli.group import commands
from joulelab.core.quantity import Quantity
from joulelab.dashboard.api import describe_run
from joulelab.dashboard.lists import _write_row
from joulelab.dashboard.run_entries import Place, read_entry
from joulelab.report.comparison import compare_runs, write_comparison
from joulelab.report.footprint_text import (
    format_co2e,
    format_cost,
    list_footprint_facts,
    name_publisher,
    word_footprint,
    word_site,
)
from joulelab.report.group_comparison import RunGroup, compare_groups, write_groups
from joulelab.report.page.document import write_offline_page
from joulelab.report.page.run_page import open_run_report
from joulelab.report.run_summary import describe_measurement, write_headline
from joulelab.report.run_tables import lay_out_run, write_run_document
from joulelab.report.terminal import write_blocks
from joulelab.run.config.configuration import load_config, load_site
from joulelab.run.config.meter_choice import choose_meters
from joulelab.run.run_options import RunOptions
from joulelab.site.footprint import Site, compute_footprint
from joulelab.site.intensity import load_intensity_table
from joulelab.site.site_settings import read_site

if TYPE_CHECKING:
    from joulelab.analysis.result import Result

VALUES = {"zone": "DE", "price": "0.30 EUR", "pue": 1.2}
FRANCE = read_site({"zone": "FR", "price": "0.20 EUR"})


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return an environment without a configuration; the tests write the user's file."""
    monkeypatch.delenv("JOULELAB_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    found = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "JOULELAB_ETC": str(tmp_path / "etc")}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def write_config(environ: dict[str, str], text: str, name: str = "XDG_CONFIG_HOME") -> Path:
    folder = Path(environ[name]) / "joulelab" if name == "XDG_CONFIG_HOME" else Path(environ[name])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "joulelab.toml").write_text(text)
    return folder / "joulelab.toml"


def make_site() -> Site:
    site = read_site(VALUES)
    assert site is not None
    return site


def run_at_site(runs: Path, site: Site | None = None, **more: Any) -> Path:
    return make_run(runs, options={"site": (site or make_site()).to_json()}, **more)


def print_run(result: Result, path: Path, width: int = 80) -> str:
    return write_blocks(lay_out_run(result, path, width=width), width)


def test_terminal_json_python_csv_page_and_dashboard_have_the_same_numbers(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run_at_site(tmp_path / "runs", seconds=1000.0, gpu_w=3000.0)
    result = load_result(path)
    m = joulelab.measure("same")
    m._start_ns = m._end_ns = 1
    m._result = result
    assert result.energy is not None
    assert m.cost is not None
    assert m.co2e is not None
    # 2 GPUs of 3 kW and a CPU of 90 W for 1,000 s
    assert m.cost.value == pytest.approx(6090 * 1000 / 3.6e6 * 1.2 * 0.30, rel=1e-3)
    assert m.co2e.value == pytest.approx(6090 * 1000 / 3.6e6 * 1.2 * 0.381, rel=1e-3)
    assert m.cost.relative == m.co2e.relative == pytest.approx(result.energy.relative)
    cost, co2e = format_cost(m.cost, "EUR"), format_co2e(m.co2e)
    line = f"{cost} and {co2e} CO2e (Germany 2023, 381 g/kWh by Ember and Energy Institute, PUE 1.2)"
    assert line in " ".join(CliRunner().invoke(commands, ["show", str(path)]).stdout.split())
    assert line in " ".join(describe_measurement("same", 1.0, path, result).split())
    assert line in print_run(result, path, 200)
    assert line in write_run_document(result, "markdown")
    assert f"; {line}; 2 GPUs, 1 CPU; nothing measures the rest of the node" in write_headline(result)
    # The headline has the digits that the page has beside its interval.
    assert format_cost(m.cost, "EUR", has_interval=True).startswith(cost.removesuffix(" EUR") + " ± ")
    assert format_co2e(m.co2e, has_interval=True).startswith(co2e.removesuffix(" kg") + " ± ")

    monkeypatch.setenv("JOULELAB_RUNS", str(path.parent))
    asked = ["query", "SELECT * FROM runs", "--csv"]
    row = next(csv.DictReader(io.StringIO(CliRunner().invoke(commands, asked).stdout)))
    assert float(row["cost"]) == pytest.approx(m.cost.value)
    assert float(row["co2e_kg"]) == pytest.approx(m.co2e.value)
    assert float(row["energy_kwh"]) == pytest.approx(result.energy.kwh.value)
    assert (row["currency"], row["intensity_year"], row["intensity_zone"]) == ("EUR", "2023", "DE")
    assert row["intensity_source"] == make_site().source

    place = Place(path.name, path, path.parent)
    shown = json.loads(CliRunner().invoke(commands, ["show", "last", "--json"]).stdout)
    listed = json.loads(CliRunner().invoke(commands, ["ls", "--json"]).stdout)[0]
    for plain in (shown, listed, json.loads(json.dumps(describe_run(place))), read_entry(place).to_json()):
        found = plain["footprint"]
        assert found["kwh"]["value"] == pytest.approx(result.energy.kwh.value)
        assert found["cost"] == pytest.approx({"value": m.cost.value, "expanded": m.cost.expanded})
        assert found["co2e_kg"] == pytest.approx({"value": m.co2e.value, "expanded": m.co2e.expanded})
        assert (found["currency"], plain["site"]["year"], plain["site"]["is_recorded"]) == ("EUR", 2023, True)
        assert plain["site"]["source"] == make_site().source
    cells = str(_write_row(read_entry(place), None, True, True))
    assert f">{cost}<" in cells
    assert f">{co2e} CO2e<" in cells

    page = Reader(write_offline_page(open_run_report(path).make_page()))
    text = " ".join(" ".join(texts) for texts in page.by_class.values())
    assert format_cost(m.cost, "EUR", has_interval=True) in text
    assert format_co2e(m.co2e, has_interval=True) in text
    assert make_site().source in text


def test_a_run_keeps_its_price_and_a_run_without_a_site_has_that_of_now(tmp_path: Path) -> None:
    priced, bare = load_result(run_at_site(tmp_path)), load_result(make_run(tmp_path))
    assert priced.with_site(FRANCE) == priced
    now = bare.with_site(FRANCE).footprint
    assert now is not None
    assert now.site is not None
    assert (now.site.name, now.site.is_recorded) == ("France", False)
    assert bare.with_site(None).footprint == compute_footprint(bare.energy or Quantity(0), None)


def test_a_site_of_now_is_shown_but_not_stored(tmp_path: Path, environ: dict[str, str]) -> None:
    path = make_run(tmp_path / "runs")
    write_config(environ, '[site]\nzone = "FR"\nprice = "0.20 EUR"\n')
    shown = CliRunner().invoke(commands, ["show", str(path), "--json"])
    assert json.loads(shown.stdout)["site"]["zone"] == "FR"
    stored, head = read_result(path), read_head(path)
    assert stored is not None
    assert head is not None
    assert stored.site is head.site is None
    assert load_head(path).with_site(FRANCE).site == FRANCE


def test_a_run_records_the_site_of_its_configuration(tmp_path: Path, environ: dict[str, str]) -> None:
    write_config(environ, '[site]\nzone = "DE"\nprice = "0.30 EUR"\npue = 1.2\n')
    config = load_config(environ, "node1")
    options = RunOptions(runs=tmp_path).with_meters(choose_meters(config, environ))
    assert options.to_json()["site"] == make_site().to_json()
    plain = RunOptions(runs=tmp_path).with_meters(choose_meters(load_config({"HOME": "/nowhere"}, "node1"), environ))
    assert "site" not in plain.to_json()


def test_files_are_merged_and_a_wrong_table_costs_only_the_site(environ: dict[str, str]) -> None:
    write_config(environ, '[site]\nintensity = 45\nsource = "us"\nyear = 2025\nprice = "0.1 EUR"\n', "JOULELAB_ETC")
    user = write_config(environ, '[site]\nzone = "FR"\npue = 1.1\n')
    expected = read_site({"zone": "FR", "price": "0.1 EUR", "pue": 1.1})
    assert load_site(environ).site == load_config(environ, "node1").site == expected
    user.write_text('[run]\nidle_s = 3\n[site]\nzone = "FR"\npue = 0.1\n')
    config, found = load_config(environ, "node1"), load_site(environ)
    assert config.run == {"idle_s": 3.0}
    assert [problem.where for problem in config.problems] == [f"{user}:5"]
    assert [problem.where for problem in found.problems] == [f"{user}:5"]
    assert found.site == config.site == read_site({"intensity": 45, "source": "us", "year": 2025, "price": "0.1 EUR"})
    user.write_text("site = 3\n")
    assert [problem.code for problem in load_site(environ).problems] == ["config.wrong-value"]
    user.write_text("[site")
    assert [problem.code for problem in load_site(environ).problems] == ["config.not-toml"]


def test_without_a_site_one_line_says_how_to_set_it(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    result = load_result(path)
    hint = "not set: joulelab site --zone DE --price 0.30EUR"
    assert print_run(result, path).count(hint) == 1
    assert hint not in describe_measurement("m", 1.0, path, result)
    assert hint not in print_run(replace(result, twin="node"), path)  # simulated energy costs nothing
    nothing = make_run(tmp_path, gpus=0, cpus=0)
    assert hint not in print_run(load_result(nothing), nothing)
    footprint = result.to_json()["footprint"]
    assert footprint["kwh"]["value"] > 0
    assert (footprint["cost"], footprint["co2e_kg"], footprint["currency"]) == (None, None, None)


def test_half_a_site_says_what_is_missing() -> None:
    energy = Quantity(3.6e6, {"gain:a": 1.08e5})
    only_price, only_zone = read_site({"price": "0.3 EUR"}), read_site({"zone": "US", "pue": 1.5})
    assert word_footprint(compute_footprint(energy, only_price)) == "0.300 EUR; no carbon intensity is set"
    text = word_footprint(compute_footprint(energy, only_zone), is_estimate=True)
    assert text == "~0.55 kg CO2e (United States 2023, 366 g/kWh by U.S. EIA, direct, PUE 1.5); no price is set"


def test_every_text_with_co2e_names_year_and_source_of_the_intensity(tmp_path: Path) -> None:
    """One row for each figure of CO2e that people read; pages and lists are compared above."""
    own = read_site({"intensity": 45, "source": "our supplier, contract 7", "year": 2025, "price": "0.1 EUR"})
    assert own is not None
    assert word_site(own) == "2025, 45.0 g/kWh by our supplier"
    for row in (*load_intensity_table().rows, *load_intensity_table().country_rows.values()):
        assert 2 < len(name_publisher(row.source)) <= 30, row.source
        assert row.source.startswith(name_publisher(row.source).removesuffix("…"))
    a, b = (replace(load_result(make_run(tmp_path)), site=make_site()) for _ in "ab")
    pair, groups = compare_runs(a, b), compare_groups(RunGroup("A", "a", (a, a)), RunGroup("B", "b", (b, b)))
    whole = f"2023, 381 g/kWh, lifecycle emissions; source: {make_site().source}"
    texts = [write_comparison(pair, "csv"), write_groups(groups, "csv"), write_groups(groups, "markdown")]
    assert [text for text in texts if whole not in text] == []
    assert groups.to_json()["site"]["source"] == pair.to_json()["site"]["b"]["source"] == make_site().source


def test_an_energy_that_is_not_resolved_has_no_cost(tmp_path: Path) -> None:
    result = load_result(run_at_site(tmp_path))
    whole = result.group("measured")
    assert whole is not None
    vague = replace(whole, energy=Quantity(1.0, {"edge:a": 1.0}))
    assert list_footprint_facts(replace(result, groups=(vague,))) == []


@every_row(
    ("value", "expanded", "text"),
    [(0.3528, 0.021, "0.35 EUR"), (12.345, 0.2, "12.3 EUR"), (1234.5, 0.1, "1,234.50 EUR"),
     (3e-5, 1e-6, "below 0.0001 EUR"), (0.0, 0.0, "0 EUR"), (0.00128, 7.8e-5, "0.00128 EUR"),
     (0.5, None, "0.5000 EUR")],
)  # fmt: skip
def test_amounts_are_rounded_to_their_uncertainty(value: float, expanded: float | None, text: str) -> None:
    terms = {"a": expanded / 2} if expanded else {}
    assert format_cost(Quantity(value, terms, expanded is not None), "EUR") == text


def test_small_masses_are_in_grams() -> None:
    assert format_co2e(Quantity(0.0155, {"a": 0.0005})) == "15.5 g"
    assert format_co2e(Quantity(0.37, {"a": 0.01}), has_interval=True) == "0.37 ± 0.02 kg"


@pytest.mark.parametrize("values", [{"price": "x"}, [1], "DE"])
def test_a_damaged_site_of_a_run_does_not_hide_its_energy(tmp_path: Path, values: object) -> None:
    result = load_result(make_run(tmp_path, options={"site": values}))
    assert result.energy is not None
    assert result.site is None
