"""Statements: model cards that huggingface_hub reads, BoAmps reports that fit its schemas, SCI, and plain text."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.codes import raises_code
from tests.outside import make_home
from tests.report.synthetic import epochs, make_run

from joulelab.analysis.results_file import load_result
from joulelab.core.quantity import Quantity
from joulelab.report.citation import gather_methods
from joulelab.report.energy_statement import (
    StatedFields,
    StatementFacts,
    compute_sci,
    describe_statement,
    gather_statement,
    list_ai_act_facts,
    list_sci_facts,
    list_text_facts,
    make_boamps_report,
    make_model_card,
    write_model_card,
)
from joulelab.site.footprint import Site
from joulelab.store.run_folder import read_meta

SCHEMAS = Path(__file__).parents[3] / "shared" / "data" / "boamps"
SITE = Site("DE", "Germany", 400.0, 2023, "lifecycle", "Ember", pue=1.25)
STATED = StatedFields(
    training_type="fine-tuning", stage="training", family="text: classification", algorithm="transformer",
    data=("input:text", "output:other"), infrastructure="onPremise", embodied_kg=1500.0, lifetime_years=5.0,
)  # fmt: skip


@cache
def make_facts(count: int = 1, site: Site | None = SITE, **given: Any) -> StatementFacts:
    """Return the facts of runs of 10 s: 2 GPUs of 300 W and a CPU of 90 W, 6.9 kJ each; 128 samples."""
    runs = [make_run(make_home(), marks=epochs(2, 10.0), **given) for _ in range(count)]
    results = [load_result(run).with_site(site) for run in runs]
    return gather_statement(results, gather_methods(results, [read_meta(run) for run in runs]))


def test_a_model_card_is_read_back_by_huggingface_hub() -> None:
    from huggingface_hub import ModelCard

    facts = make_facts()
    card = ModelCard(write_model_card(facts, STATED)).data.to_dict()["co2_eq_emissions"]
    assert card == make_model_card(facts, STATED)
    assert card["emissions"] == pytest.approx(6900 / 3.6e6 * 1.25 * 400, rel=0.05)
    assert len(str(card["emissions"]).replace(".", "").strip("0")) <= 3  # no more digits than its interval allows
    assert (card["training_type"], card["geographical_location"]) == ("fine-tuning", "Germany")
    assert card["hardware_used"] == "2 x H100, 1 x CPU"
    for part in ("measured with joulelab", "NVML, RAPL", "400 g/kWh", "Ember", "PUE 1.25", "not measured: "):
        assert part in card["source"], part


def test_emissions_of_a_tiny_run_are_a_number_in_yaml() -> None:
    from huggingface_hub import ModelCard

    facts = replace(make_facts(), co2e_kg=Quantity(5e-8))
    card = ModelCard(write_model_card(facts, STATED))
    assert card.data.to_dict()["co2_eq_emissions"]["emissions"] == 5e-05


def test_fields_that_nobody_stated_are_left_out() -> None:
    assert make_model_card(make_facts(), StatedFields()).keys() == {
        "emissions", "source", "geographical_location", "hardware_used",
    }  # fmt: skip
    assert make_model_card(make_facts(), StatedFields(location="Oslo"))["geographical_location"] == "Oslo"


def test_emissions_without_an_intensity_are_refused() -> None:
    for site in (None, Site(price=0.3, currency="EUR")):
        with raises_code("config.no-intensity") as caught:
            make_model_card(make_facts(site=site), STATED)
        assert caught.value.next == "joulelab site --zone DE"


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason=f"no {SCHEMAS}: the schemas are not part of the project")
def test_a_boamps_report_fits_its_schemas() -> None:
    import jsonschema
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT4

    schemas = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    registry: Any = Registry().with_resources(
        (schema["id"], Resource.from_contents(schema, default_specification=DRAFT4)) for schema in schemas.values()
    )
    validator = jsonschema.Draft4Validator(schemas["report_schema"], registry=registry)
    for facts in (make_facts(), make_facts(2), make_facts(site=None), make_facts(gpus=0, cpus=1)):
        report = make_boamps_report(facts, STATED, "2026-11-18 12:00:00")
        assert [error.message for error in validator.iter_errors(report)] == []
    report["task"].pop("taskStage")
    assert [error.message for error in validator.iter_errors(report)] == ["'taskStage' is a required property"]


def test_a_boamps_report_has_the_figures_of_each_run() -> None:
    report = make_boamps_report(make_facts(2), STATED, "2026-11-18 12:00:00")
    assert [measure["powerConsumption"] for measure in report["measures"]] == [
        pytest.approx(6900 / 3.6e6, rel=0.02)
    ] * 2
    first = report["measures"][0]
    assert (first["cpuTrackingMode"], first["gpuTrackingMode"]) == ("rapl", "nvml")
    assert (first["measurementDuration"], first["averageUtilizationCpu"]) == (10.0, 0.5)
    assert (
        report["infrastructure"]["components"]
        == [
            {"componentType": "gpu", "nbComponent": 4, "componentName": "H100"},
            {"componentType": "cpu", "nbComponent": 2},
        ]
        or len(report["infrastructure"]["components"]) == 2
    )
    assert report["environment"] == {"country": "Germany", "powerSourceCarbonIntensity": 400.0}
    assert report["quality"] == "high"


def test_a_required_field_that_is_not_known_is_an_error_with_its_option() -> None:
    with raises_code("config.missing-field") as caught:
        make_boamps_report(make_facts(), StatedFields(stage="training"), "")
    assert "taskFamily, algorithms, dataset, infraType" in caught.value.what
    for option in ("--family", "--algorithm", "--model", "--data", "--infra"):
        assert option in (caught.value.next or "")
    with raises_code("config.wrong-field"):
        make_boamps_report(make_facts(), replace(STATED, data=("input:pictures",)), "")


def test_the_sci_is_energy_times_intensity_plus_making_per_work() -> None:
    facts = make_facts(2)
    found = compute_sci(facts, STATED)
    operational = 2 * 6900 / 3.6e6 * 1.25 * 400
    embodied = 1_500_000 * 20 / (5 * 365.25 * 86400)
    assert (found.unit, found.amount, found.missing) == ("sample", 256.0, {})
    assert found.embodied_g == pytest.approx(embodied)
    assert found.score is not None
    assert found.score.value == pytest.approx((operational + embodied) / 256, rel=0.02)
    assert compute_sci(facts, replace(STATED, per="runs")).amount == 2
    with raises_code("config.no-work"):
        compute_sci(facts, replace(STATED, per="tokens"))


def test_parts_of_the_sci_that_are_missing_are_named() -> None:
    lacking = compute_sci(make_facts(site=None), StatedFields())
    assert lacking.missing == {"I": "joulelab site --zone DE", "M": "--embodied KG --lifetime YEARS"}
    assert lacking.score is None
    lines = dict(list_sci_facts(make_facts(), StatedFields()))
    assert lines["SCI"].startswith("not known: M is missing; E x I per R alone is ")
    assert lines["R"] == "128 samples"
    assert "x PUE 1.25 = " in lines["E"]
    assert dict(list_sci_facts(make_facts(), STATED))["SCI"].endswith("CO2e per sample (ISO/IEC 21031:2024)")
    assert dict(list_sci_facts(make_facts(site=None), StatedFields()))["SCI"].startswith("not known")


def test_the_text_states_what_was_measured_and_what_was_not() -> None:
    lines = list_text_facts(make_facts())
    assert [label for label, _ in lines][:4] == ["energy", "CO2e", "time", "work"]
    assert lines[0][1].endswith(", measured")
    assert any(label == "measured" and " by NVML" in text for label, text in lines)
    assert "the rest of the node" in dict(lines)["lacks"]
    assert dict(list_text_facts(make_facts(site=None)))["CO2e"] == "not known: joulelab site --zone DE"


def test_the_ai_act_gets_compute_time_and_energy() -> None:
    rows = list_ai_act_facts(make_facts())
    assert [point for point, _, _ in rows] == ["(d)", "(d)", "(e)"]
    assert rows[0][2] == "not reported: joulelab.work(FLOP=...)"
    assert rows[1][2] == "10.00 s on 2 x H100, 1 x CPU"
    assert rows[2][2].startswith("known: 6.9")
    estimated = list_ai_act_facts(make_facts(gpus=0, cpus=0, estimate=True))
    assert estimated[2][2].startswith("estimated: ~")


def test_a_live_run_and_mixed_runs_are_refused() -> None:
    facts = make_facts()
    with raises_code("store.mixed-runs"):
        gather_statement([facts.results[0], replace(facts.results[0], twin="node")], facts.methods)
    with raises_code("store.still-recording"):
        gather_statement([replace(facts.results[0], state="live")], facts.methods)


def test_a_run_without_an_energy_is_refused() -> None:
    with raises_code("store.no-energy"):
        make_facts(gpus=0, cpus=0)


def test_json_has_everything_and_null_for_what_is_not_known() -> None:
    found = json.loads(json.dumps(describe_statement(make_facts(site=None), StatedFields())))
    assert found["co2e_kg"] is None
    assert found["sci"]["g_per_unit"] is None
    assert found["energy_kwh"]["value"] == pytest.approx(6900 / 3.6e6, rel=0.02)
    assert found["known_by"] == "measured"
