"""Statements: model cards that huggingface_hub reads, BoAmps reports that fit its schemas, SCI, and plain text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.codes import raises_code
from tests.outside import make_home
from tests.report.synthetic import epochs, make_run

from joulelab.analysis.result import Check
from joulelab.analysis.results_file import load_result
from joulelab.core.quantity import Quantity
from joulelab.report.citation import OUTSIDE, gather_methods
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
    """Return the facts of runs of 10 s, a minute apart: 2 GPUs of 300 W and a CPU of 90 W, 6.9 kJ each; 128 samples."""
    runs = [make_run(make_home(), marks=epochs(2, 10.0), **given) for _ in range(count)]
    results = [
        replace(load_result(run).with_site(site), start_utc=f"2026-11-18T12:0{k}:00.000+00:00")
        for k, run in enumerate(runs)
    ]
    return gather_statement(results, gather_methods(results, [read_meta(run) for run in runs]))


def add_again(facts: StatementFacts, *changes: dict[str, Any], **given: Any) -> StatementFacts:
    """Return the facts of the same runs with other fields of their results."""
    changed = [replace(result, **fields) for result, fields in zip(facts.results, changes, strict=True)]
    return gather_statement(changed, facts.methods, **given)


def move_host(facts: StatementFacts, host: str) -> dict[str, Any]:
    """Return the fields of the first result as those of another node."""
    first = facts.results[0]
    groups = tuple(replace(group, hosts=(host,) * len(group.scopes)) for group in first.groups)
    return {"host": host, "scopes": tuple(replace(one, host=host) for one in first.scopes), "groups": groups}


SHARE = Check(
    "shared-node", "note",
    numbers={"node_j": 6900.0, "energy_j": 4000.0, "low_j": 3000.0, "high_j": 5000.0, "others_j": 2900.0},
    texts={"rule": "equal"},
)  # fmt: skip


def test_others_on_the_node_are_in_every_form() -> None:
    alone, shared = make_facts(), add_again(make_facts(), {"checks": (SHARE,)})
    assert shared.energy == alone.energy  # the figure stays the measured one
    (found,) = describe_statement(shared, STATED)["shared"]
    assert (found["code"], found["energy_j"], found["low_j"], found["high_j"]) == ("shared-node", 4000, 3000, 5000)
    assert describe_statement(alone, STATED)["shared"] == []
    part = "4.00 kJ (3.00 to 5.00 kJ); others used it too"
    assert part in dict(list_text_facts(shared))["share"]
    assert "share" not in dict(list_text_facts(alone))
    assert part in make_model_card(shared, STATED)["source"]
    assert part in dict(list_sci_facts(shared, STATED))["E"]
    assert part in make_boamps_report(shared, STATED, "")["task"]["taskDescription"]
    assert part in list_ai_act_facts(shared)[2][2]


def test_shares_of_several_runs_are_added() -> None:
    text = dict(list_text_facts(add_again(make_facts(2), {"checks": (SHARE,)}, {"checks": (SHARE,)})))["share"]
    assert text.startswith("others used the node too in 2 of 2 runs: ")
    assert text.endswith("of the node's 13.8 kJ in these, the runs: 8.00 kJ (6.00 kJ to 10.0 kJ)")
    accounted = replace(SHARE, code="shared-node.accounted", numbers={"node_j": 900.0, "low_j": 0.0, "high_j": 900.0})
    text = dict(list_text_facts(add_again(make_facts(2), {"checks": (accounted,)}, {})))["share"]
    assert text.startswith("others used the node too in 1 of 2 runs: ")
    assert text.endswith("the runs: 0 J to 900 J")


def test_runs_at_the_same_time_on_one_node_are_refused() -> None:
    facts = make_facts(2)
    early, later = ({"start_utc": f"2026-11-18T12:00:0{second}.000+00:00"} for second in ("0", "8"))
    with raises_code("store.overlapping-runs") as caught:
        add_again(facts, early, later)
    assert all(result.run in (caught.value.where or "") for result in facts.results)
    assert caught.value.next
    touching = {"start_utc": "2026-11-18T12:00:09.500+00:00"}
    assert add_again(facts, early, touching).hosts == 1
    assert add_again(facts, early, later | move_host(facts, "node2")).hosts == 2
    assert add_again(facts, early | {"twin": "bnl-h100"}, later | {"twin": "bnl-h100"}).hosts == 1  # virtual time


def test_boot_ids_tell_nodes_of_one_name_apart() -> None:
    facts = make_facts(2)
    same = {"start_utc": "2026-11-18T12:00:00.000+00:00"}
    one, other = ({"started": {"boot_id": boot}} for boot in ("a", "b"))
    add_again(facts, same, same, metas=[one, other])
    renamed = same | move_host(facts, "container")
    for changes, metas in (((same, same), [one, one]), ((same, renamed), [one, one]), ((same, same), [one, {}])):
        with raises_code("store.overlapping-runs"):
            add_again(facts, *changes, metas=metas)


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


def test_the_quality_of_boamps_is_of_a_whole_node() -> None:
    facts = make_facts()
    whole = replace(facts, methods=replace(facts.methods, left_out=(OUTSIDE,)))
    assert make_boamps_report(whole, STATED, "")["quality"] == "high"
    shared = replace(whole, results=(replace(facts.results[0], checks=(SHARE,)),))
    for lacking in (facts, shared, make_facts(cpus=0)):
        assert "quality" not in make_boamps_report(lacking, STATED, "")
    task = make_boamps_report(make_facts(cpus=0), STATED, "")["task"]
    assert task["taskDescription"].startswith("not measured: CPUs; memory; the rest of the node")


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


def test_making_counts_each_node_for_its_own_time() -> None:
    facts = add_again(make_facts(2), {}, move_host(make_facts(2), "node2"))
    stated = replace(STATED, embodied_kg=3000.0)  # two nodes of 1500 kg, 10 s each
    embodied = 1_500_000 * 20 / (5 * 365.25 * 86400)
    assert (facts.hosts, facts.node_s, facts.duration_s) == (2, 20.0, 20.0)
    assert compute_sci(facts, stated).embodied_g == pytest.approx(embodied)
    assert dict(list_sci_facts(facts, stated))["M"].endswith(
        ": 3,000 kg for 2 nodes over 5 years, used for 20.00 s, times of all nodes added"
    )
    joined = make_facts().results[0]
    scopes = tuple(replace(one, host="node2") if one.scope == "cpu:0" else one for one in joined.scopes)
    groups = tuple(
        replace(g, hosts=tuple("node2" if scope == "cpu:0" else joined.host for scope in g.scopes))
        for g in joined.groups
    )
    both = add_again(make_facts(), {"scopes": scopes, "groups": groups})
    assert (both.hosts, both.node_s) == (2, 20.0)
    assert compute_sci(both, stated).embodied_g == pytest.approx(embodied)


def test_the_equation_of_several_pues_is_true() -> None:
    facts = add_again(make_facts(2), {}, {"site": replace(SITE, pue=1.0)})
    text = dict(list_sci_facts(facts, STATED))["E"]
    terms, _, total = text.partition("; ")[2].partition(";")[0].partition(" = ")
    figures = [float(word) for word in re.findall(r"(?<=PUE )[\d.]+|[\d.]+(?= ±)", terms)]
    assert figures[1::2] == [1.25, 1.0]
    assert figures[0] * figures[1] + figures[2] * figures[3] == pytest.approx(float(total.split()[0]), rel=0.02)
    assert facts.site_energy.value == pytest.approx(2.25 * 6900, rel=0.02)
    only_pue = add_again(make_facts(), {"site": Site(pue=1.25)})
    assert " x PUE 1.25 = " in dict(list_sci_facts(only_pue, STATED))["E"]


def test_a_site_that_no_run_recorded_is_named() -> None:
    sentence = "recorded no site, so that of now is used"
    recorded = {"site": replace(SITE, is_recorded=True)}
    for facts, text in (
        (make_facts(), f"the run {sentence}"),
        (add_again(make_facts(2), recorded, {}), f"1 of 2 runs {sentence}"),
    ):
        assert text in dict(list_text_facts(facts))["CO2e"]
        assert text in make_model_card(facts, STATED)["source"]
        assert text in dict(list_sci_facts(facts, STATED))["I"]
    assert dict(list_text_facts(facts))["CO2e"].count("Germany") == 1
    facts = add_again(make_facts(), recorded)
    assert sentence not in dict(list_text_facts(facts))["CO2e"] + make_model_card(facts, STATED)["source"]


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
