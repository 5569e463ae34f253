"""The site of runs that recorded none: the one that is set now, on study pages and in the API as in the terminal."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.page.reading import Reader

from joulelab.dashboard import api
from joulelab.dashboard.run_entries import Place
from joulelab.dashboard.studies import StudyLooker
from joulelab.report.page.document import write_offline_page
from joulelab.report.page.study_page import open_study_report
from joulelab.site.footprint import Site, choose_site

CAPS = Path(__file__).parents[2] / "examples" / "studies" / "caps"
SITE = Site("DE", "Germany", 381.0, 2023, "lifecycle", "Ember 2024", price=0.3, currency="EUR", pue=1.2)
KWH = 3.6e6  # J


def _read_study(studies: Path, site: Site | None) -> tuple[list[dict[str, object]], set[str], list[str]]:
    """Return the cells of the API, the heads of the page's tables, and its notes about cost."""
    (study,) = StudyLooker(studies).look()
    cells = api.describe_study(study, Place("caps", study.folder, studies), site)["summary"]["cells"]
    page = Reader(write_offline_page(open_study_report(study.folder, site=site).make_page()))
    heads = {head.partition(",")[0] for table in page.tables for head in table[0]}
    heads |= set(page.by_class["name"])
    return cells, heads, [text for text in page.by_class["said"] if text.startswith("Cost and CO2e:")]


@pytest.mark.system
def test_a_study_whose_runs_recorded_no_site_is_at_the_one_that_is_set_now(tmp_path: Path) -> None:
    shutil.copytree(CAPS, tmp_path / "caps")
    cells, heads, notes = _read_study(tmp_path, None)
    assert [cell["footprint"] for cell in cells] == [None] * 9
    assert (heads & {"cost", "CO2e", "cost of all runs"}, notes) == (set(), [])
    cells, heads, notes = _read_study(tmp_path, SITE)
    for cell in cells:
        kwh = cell["energy"]["value"] / KWH  # type: ignore[index]
        found = {name: cell["footprint"][name]["value"] for name in ("kwh", "cost", "co2e_kg")}  # type: ignore[index]
        assert found == pytest.approx({"kwh": kwh, "cost": kwh * 1.2 * 0.3, "co2e_kg": kwh * 1.2 * 0.381})
    assert heads >= {"cost", "CO2e", "cost of all runs", "CO2e of all runs"}
    assert len(notes) == 1
    assert "2023" in notes[0]
    assert "Ember 2024" in notes[0]


def test_a_site_that_a_run_recorded_stays() -> None:
    recorded = replace(SITE, zone="FR", is_recorded=True)
    assert choose_site(recorded, SITE) is recorded
    assert choose_site(recorded, None) is recorded
    assert choose_site(None, SITE) is SITE
    assert choose_site(None, None) is None
