"""Answers of `plan cost`: sums, choices, notes as codes, statements for papers, within 80 columns and 25 lines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.plan.measured_runs import measured, node_run

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.core.text import SERVED_TWIN
from joulelab.plan.cost.cost_books import CostBooks, CostJob, make_books
from joulelab.plan.cost.cost_output import describe_books, format_per_unit, format_total, lay_out_books
from joulelab.plan.cost.job_energy import RunEnergy
from joulelab.plan.cost.sites import PlanSite, read_start
from joulelab.plan.cost.statement import make_statements
from joulelab.plan.cost.work import Work, plan_work
from joulelab.plan.plan_tables import NodeKind
from joulelab.report.terminal import write_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.plan.measured_runs import MeasuredRun

KIND = NodeKind("dgx", rated_w=10_200.0, price=300_000.0, lifetime_years=5.0, use=0.8, embodied_kg=1500.0)
NORTH = PlanSite("north", "30", "0.10EUR", 1.1)
HOME = PlanSite("home", "380", "0.32EUR", 1.4, 0.03)


def run_of(folder: Path, **more: Any) -> MeasuredRun:
    given: dict[str, Any] = {"seconds": 20.0, "work": {"tokens": 4e6}, "name": "fifty_%"} | more
    return measured(node_run(folder, 6000.0, **given))


def books(folder: Path, *sites: PlanSite, kind: NodeKind | None = KIND, **more: Any) -> CostBooks:
    rated_w = None if kind is None else kind.rated_w
    return make_books([CostJob(RunEnergy(run_of(folder, **more), rated_w), kind)], list(sites) or [HOME])


def text_of(found: CostBooks, **more: bool) -> str:
    return write_blocks(lay_out_books(found, **more), 80)


def codes(found: CostBooks) -> set[str]:
    return {note.code for note in found.notes}


def statement(found: CostBooks) -> str:
    return str(make_statements(found)[0]["text"])


def test_money_and_carbon_are_in_the_first_sentence_and_in_one_table(tmp_path: Path) -> None:
    found = books(tmp_path, kind=None)
    text = text_of(found)
    first = " ".join(text.split("\n\n")[0].split())
    assert first.startswith("The run fifty_% used 32.8 ± 1.4 Wh: 0.0147 ± 0.0009 EUR and 17.4 ± 1.1 g CO2e")
    assert "(0.32 EUR/kWh; 380 g/kWh; PUE 1.40 ± 0.06)" in first
    assert "per million tokens" in first
    (entry,) = found.entries
    kwh = entry.energy_kwh.value
    assert entry.get_total("cost").value == pytest.approx(kwh * 1.4 * 0.32)
    assert entry.get_total("carbon").value == pytest.approx(kwh * 1.4 * 380)
    assert len(text.splitlines()) <= 25
    assert max(map(len, text.splitlines())) <= 80


def test_one_rate_alone_is_answered_and_the_other_is_asked_for(tmp_path: Path) -> None:
    money = books(tmp_path, PlanSite("x", tariff="0.3EUR"))
    assert money.purposes == ("cost",)
    assert "cost.no-intensity" in codes(money)
    carbon = books(tmp_path / "b", PlanSite("x", intensity="300"))
    assert carbon.purposes == ("carbon",)
    assert carbon.notes[0].code == "cost.no-price"
    neither = books(tmp_path / "c", PlanSite("x"))
    assert neither.notes[0].code == "cost.no-rates"
    assert "fifty_% used 32.8 ± 1.4 Wh." in text_of(neither)


def test_several_sites_are_a_choice_in_which_common_errors_cancel(tmp_path: Path) -> None:
    found = books(tmp_path, NORTH, HOME)
    first = " ".join(text_of(found).split("\n\n")[0].split())
    assert first.startswith("Choose north: lowest cost 0.05114 ± 0.00015 EUR (home: 1.22 times as much)")
    assert "and least carbon" in first
    assert max(map(len, text_of(found).splitlines())) <= 80
    north, home = (entry.get_total("carbon") for entry in found.entries)
    kwh = found.entries[0].energy_kwh
    assert (home - north).terms["pue:home"] == pytest.approx(kwh.value * 380 * 0.03)
    ratio = home / north
    assert sum(abs(u) for s, u in ratio.terms.items() if s.startswith("gain:")) < 0.2 * kwh.u / kwh.value * ratio.value
    alike = books(tmp_path / "alike", HOME, replace(HOME, name="twice"))
    assert "Choose home or twice: lowest cost" in " ".join(text_of(alike).split())


def test_several_runs_are_added(tmp_path: Path) -> None:
    jobs = [CostJob(RunEnergy(run_of(tmp_path))), CostJob(RunEnergy(run_of(tmp_path, seconds=10.0)))]
    found = make_books(jobs, [HOME])
    (total,) = found.sums
    assert total.totals["cost"].value == pytest.approx(sum(e.get_total("cost").value for e in found.entries))
    assert text_of(found).startswith("2 runs used")
    assert "all 2" in text_of(found)


def test_many_runs_fit_on_a_screen(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    found = make_books([CostJob(RunEnergy(run))] * 30, [HOME])
    text = text_of(found)
    assert len(text.splitlines()) <= 25
    assert "and 24 more" in text
    assert "all 30" in text
    assert text_of(found, is_explained=True).count("fifty_%  20.00 s") == 30


def test_a_work_of_its_own_runs_is_beside_one_that_is_compared(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    alone = CostJob(plan_work(Work("alone", "runs", 2.0), [run]))
    both = [CostJob(plan_work(Work("w", "runs", 1.0), [run]), NodeKind(name)) for name in ("a", "b")]
    text = " ".join(text_of(make_books([alone, *both], [HOME])).split())
    assert text.startswith("alone would use 66 ± 4 Wh: ")
    assert "For w, choose a or b: lowest cost" in text


def test_kinds_of_nodes_are_compared_for_the_same_work(tmp_path: Path) -> None:
    slow, fast = run_of(tmp_path, seconds=40.0), run_of(tmp_path, seconds=20.0)
    other = NodeKind("cheap", rated_w=8000.0, price=50_000.0, lifetime_years=5.0)
    work = Work("epoch", "tokens", 1e12)
    jobs = [CostJob(plan_work(work, [slow]), other), CostJob(plan_work(work, [fast]), KIND)]
    found = make_books(jobs, [PlanSite("home", tariff="0.32EUR", pue=1.4)])
    (even,) = found.evens
    assert even.rate is not None
    at = even.rate.value  # at that price both cost the same, all included
    whole = [e.shares["cost"].amount.value + e.site_kwh.value * at for e in found.entries]
    assert whole[0] == pytest.approx(whole[1])
    own = [{s for s in e.site_kwh.terms if s.startswith("assumed:")} for e in found.entries]
    assert own[0]
    assert not own[0] & own[1]  # the scatter of runs does not cancel between kinds of nodes
    text = " ".join(text_of(found).split())
    assert text.startswith("For epoch, choose cheap: lowest cost")
    assert "cheap and dgx are equal at" in text
    assert not found.sums
    with pytest.raises(ConfigError, match="one planned work"):
        make_statements(found)


def test_planned_work_at_a_series_needs_a_time(tmp_path: Path) -> None:
    rows = "\n".join(f"2026-01-01T{hour:02d}:00Z,{100 + 100 * hour}" for hour in range(24))
    (tmp_path / "s.csv").write_text(f"# kind: average\n# unit: g/kWh\ntime,value\n{rows}\n")
    site = PlanSite("x", "s.csv", folder=tmp_path)
    job = CostJob(plan_work(Work("long", "runs", 540.0), [run_of(tmp_path)]))  # 3 h
    with pytest.raises(ConfigError, match="add --at"):
        make_books([job], [site])
    found = make_books([job], [site], start=read_start("2026-01-01T02:00", []))
    assert found.entries[0].amounts["carbon"].mean_rate == pytest.approx(400.0)
    assert {"cost.flat-power", "cost.single-run"} <= codes(found)
    assert "from 2026-01-01 02:00 UTC to 2026-01-01 05:00 UTC (3 slots, flat power)" in statement(found)
    assert "starting 2026-01-01 02:00 UTC" in " ".join(text_of(found).split())


def test_the_rate_of_several_runs_is_their_mean(tmp_path: Path) -> None:
    rows = "2023-11-14T22:13:00Z,100\n2023-11-14T22:13:32Z,300\n"  # runs start at 22:13:22
    (tmp_path / "s.csv").write_text(f"# kind: average\n# unit: g/kWh\n# end: 2023-11-15T00:00Z\ntime,value\n{rows}")
    jobs = [CostJob(RunEnergy(run_of(tmp_path, seconds=seconds))) for seconds in (10.0, 30.0)]
    found = make_books(jobs, [PlanSite("x", "s.csv", folder=tmp_path)])
    assert found.entries[0].amounts["carbon"].mean_rate == pytest.approx(100.0)
    (total,) = found.sums
    mean = total.totals["carbon"].value / total.energy_kwh.value
    assert 150 < mean < 250
    assert f"s.csv, {mean:.1f} g/kWh on average" in " ".join(text_of(found).split())


def test_reasons_are_behind_why(tmp_path: Path) -> None:
    work = Work("epoch", "tokens", 1e9, nodes=4)
    job = CostJob(plan_work(work, [run_of(tmp_path)], rated_w=10_200.0), KIND)
    found = make_books([job], [HOME])
    assert found.notes[0].code == "cost.assumed-step"
    assert len(text_of(found).splitlines()) <= 25
    short, long = (" ".join(text_of(found, is_explained=why).split()) for why in (False, True))
    for word in ("nameplate", "step nodes 1 to 4", "each doubling keeps"):
        assert word not in short
        assert word in long


def test_an_unknown_accuracy_has_no_interval(tmp_path: Path) -> None:
    found = books(tmp_path, gain=None)
    assert "± ?" not in text_of(found)
    assert "‡ no interval: the accuracy of a meter is unknown" in text_of(found)
    assert "cost.accuracy-unknown" in codes(found)
    text = statement(found)
    assert "±" not in text.replace("1.40 ± 0.06", "")
    assert "the accuracy of a meter is unknown" in text


def test_twins_are_called_simulated_and_never_added_to_measured_runs(tmp_path: Path) -> None:
    found = books(tmp_path, twin={"name": "bnl", "rated_w": 10_200.0})
    assert "These figures are simulated: twin bnl" in text_of(found)
    assert describe_books(found)["simulated"] is True
    assert statement(found).startswith("These figures are simulated")
    real, twin = run_of(tmp_path, name="real"), run_of(tmp_path, name="sleep")
    twin = replace(twin, result=replace(twin.result, twin=SERVED_TWIN))
    with pytest.raises(ConfigError, match=r"not mixed \(real was measured, sleep is simulated\)"):
        make_books([CostJob(RunEnergy(one)) for one in (real, twin)], [HOME])
    kinds = [CostJob(plan_work(Work("w", "tokens", 1e9), [run]), NodeKind(n)) for run, n in ((real, "a"), (twin, "b"))]
    works = [CostJob(plan_work(Work(n, "tokens", 1e9), [run])) for run, n in ((real, "a"), (twin, "b"))]
    for jobs in (kinds, works):
        with pytest.raises(ConfigError, match="not mixed"):
            make_books(jobs, [HOME])


@pytest.mark.parametrize("scope", ["node.dc", "gpu:0"])
def test_whole_nodes_at_the_wall_are_not_mixed_with_less(tmp_path: Path, scope: str) -> None:
    wall, other = run_of(tmp_path, name="wall"), run_of(tmp_path, name="other", scope=scope)
    jobs = [CostJob(RunEnergy(one)) for one in (wall, other)]
    works = [CostJob(plan_work(Work("w", "tokens", 1e9), [run]), NodeKind(n)) for run, n in ((wall, "a"), (other, "b"))]
    for mixed in (jobs, works):
        with pytest.raises(ConfigError, match=r"not mixed .* at the wall, .*; name runs that were measured alike"):
            make_books(mixed, [HOME])


def test_parts_of_nodes_are_named_in_the_first_sentence_and_note(tmp_path: Path) -> None:
    found = books(tmp_path, PlanSite("x"), scope="gpu:0", kind=None)
    assert " Wh in parts of the nodes." in text_of(found)
    assert found.notes[0].code == "cost.side-parts"


def test_the_kind_of_a_marginal_rate_is_in_the_first_sentence(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("# kind: marginal\n# unit: g/kWh\n# step: 1h\ntime,value\n2023-11-14T22:00Z,700\n")
    found = books(tmp_path, PlanSite("x", "m.csv", folder=tmp_path), kind=None)
    assert "(m.csv, marginal, 700 g/kWh)" in " ".join(text_of(found).split())


def test_one_rate_for_several_runs_is_no_average(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / str(k), seconds=20.0 + 7 * k) for k in range(5)]
    site = PlanSite("x", "table:DE", pue=1.2)
    text = text_of(make_books([CostJob(RunEnergy(run)) for run in runs], [site]))
    assert "(Germany 2023, 381 g/kWh by Ember and Energy Institute; PUE 1.2)" in " ".join(text.split())


def test_choices_without_a_significant_difference_are_named_together(tmp_path: Path) -> None:
    work = Work("w", "tokens", 1e12, nodes=8)
    runs = [run_of(tmp_path / "a"), measured(node_run(tmp_path, 6500.0, seconds=20.0, work={"tokens": 4e6}))]
    kinds = [replace(KIND, name="a"), replace(KIND, name="b", price=250_000.0)]
    jobs = [CostJob(plan_work(work, [run]), kind) for run, kind in zip(runs, kinds, strict=True)]
    found = make_books(jobs, [HOME])
    text = " ".join(text_of(found).split())
    assert "For w, choose a or b: lowest cost" in text
    assert "(no significant difference)" in text
    assert not any(even.is_resolved for even in found.evens)
    assert "are equal at" not in text
    assert "at any" not in text


def test_a_statement_has_all_that_a_reader_needs(tmp_path: Path) -> None:
    found = books(tmp_path)
    (one,) = make_statements(found)
    for part in (
        "whole nodes, at the wall (node.ac)", "measured by pdu (accuracy: assumed)", "effectiveness of 1.40 ± 0.06",
        "average carbon intensity of 380 g CO2e per kWh", "price of 0.32 EUR/kWh", "Rated power x time would be",
        "ISO/IEC 21031", "per million tokens", "Not included:", "k = 2", "uncertainty of the intensity is unknown",
        "Making the nodes adds", "Buying the nodes adds",
    ):  # fmt: skip
        assert part in one["text"], part
    whole = found.entries[0].get_total("carbon").value
    assert one["sci"]["g_per_unit"]["value"] == pytest.approx(whole / 4e6)  # (E x I + M) / R
    assert r"fifty\_\%" in one["latex"]
    assert r"$\pm$" in one["latex"]
    assert "CO$_2$e" in one["latex"]
    bare = statement(books(tmp_path / "bare", PlanSite("x", "380"), kind=None, scope="node.dc"))
    for part in ("losses of the power supplies", "no PUE", "making and disposal", "M is unknown"):
        assert part in bare, part


def test_statements_of_several_runs(tmp_path: Path) -> None:
    runs = [run_of(tmp_path), run_of(tmp_path, hosts=["a", "b", "c"], labels={"workload": "sleep"})]
    found = make_books([CostJob(RunEnergy(run)) for run in runs], [HOME])
    (one,) = make_statements(found)
    assert one["sci"] is None
    assert "the runs are of several workloads" in one["text"]
    assert "on 1 and 3 nodes" in one["text"]
    money = make_books([CostJob(RunEnergy(runs[0]))], [PlanSite("x", tariff="1EUR")])
    assert "SCI" not in statement(money)


def test_a_forecast_is_called_one(tmp_path: Path) -> None:
    rows = "2023-11-14T22:00Z,681.1789\n2023-11-14T23:00Z,700\n"
    head = "# kind: average\n# unit: g/kWh\n# issued: 2023-11-14T12:00Z\n"
    (tmp_path / "s.csv").write_text(f"{head}time,value\n{rows}")
    found = books(tmp_path, PlanSite("x", "s.csv", folder=tmp_path))
    assert "a forecast, issued 2023-11-14 12:00 UTC" in " ".join(text_of(found, is_explained=True).split())
    text = statement(found)
    assert "intensity of 681.2 g CO2e per kWh" in text
    assert "from 2023-11-14 22:13:22 UTC to 2023-11-14 22:13:42 UTC (one slot)" in text


def test_a_demand_charge_is_in_no_sum(tmp_path: Path) -> None:
    text = (
        'unit = "EUR/kWh"\nprice = 0.3\n[demand]\nprice_per_kw = 10\nper = "month"\n[fee]\nprice = 5\nper = "month"\n'
    )
    (tmp_path / "t.toml").write_text(text)
    found = books(tmp_path, PlanSite("x", tariff="t.toml", pue=1.5, folder=tmp_path), kind=None)
    (entry,) = found.entries
    assert entry.charges == pytest.approx({"demand per month": 90.0, "fee per month": 5.0})
    assert entry.get_total("cost").value == pytest.approx(entry.site_kwh.value * 0.3)
    assert "cost.charges" in codes(found)


def test_amounts_have_the_unit_that_fits() -> None:
    assert format_total(Quantity(1520.0, {"a": 10.0}), "g") == "1.52 ± 0.02 kg CO2e"
    assert format_total(Quantity(2.5e6), "EUR") == "2.500 million EUR"
    assert format_per_unit(Quantity(2e-9), "tokens", "EUR") == "0.002000 EUR per million tokens"
    assert format_per_unit(Quantity(0.5), "samples", "g") == "0.5000 g CO2e per sample"
    assert format_per_unit(Quantity(3.0), "gpu_hours", "EUR") == "3.000 EUR per GPU-hour"
