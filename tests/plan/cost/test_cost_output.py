"""How accounts are worded: tables within 80 columns, statements for papers, JSON, pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.plan.measured_runs import measured, node_run

from joulelab.core.errors import ConfigError
from joulelab.core.text import SERVED_TWIN
from joulelab.plan.cost.cost_json import books_data
from joulelab.plan.cost.cost_output import amount_text, lay_out_books, per_unit, rate_text
from joulelab.plan.cost.energy import RunProfile
from joulelab.plan.cost.entries import Books, Job, books_of, pue_of
from joulelab.plan.cost.sites import Site
from joulelab.plan.cost.start import start_of
from joulelab.plan.cost.statement import statements_of
from joulelab.plan.cost.statement_text import statement_latex, statement_text
from joulelab.plan.cost.work import Work, plan_work
from joulelab.plan.plan_tables import NodeKind
from joulelab.report.terminal import write_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.plan.measured_runs import MeasuredRun

KIND = NodeKind("dgx", rated_w=10_200.0, price=300_000.0, lifetime_years=5.0, use=0.8, embodied_kg=1500.0)
NORTH = Site("north", "30", "0.10EUR", 1.1, data_gb=1.0, kwh_per_gb=0.02)
HOME = Site("home", "380", "0.32EUR", 1.4, 0.03)


def run_of(folder: Path, **more: Any) -> MeasuredRun:
    given: dict[str, Any] = {"seconds": 20.0, "work": {"tokens": 4e6}, "name": "fifty_%"} | more
    return measured(node_run(folder, 6000.0, **given))


def shown(books: Books) -> str:
    return write_blocks(lay_out_books(books), 80)


def books(tmp_path: Path, purpose: Any = "carbon", *sites: Site, kind: NodeKind | None = KIND, **more: Any) -> Books:
    run = run_of(tmp_path, **more)
    job = Job(RunProfile(run, None if kind is None else kind.rated_w), kind)
    return books_of([job], list(sites) or [HOME], purpose)


def test_a_table_of_sites_fits_and_says_what_differs(tmp_path: Path) -> None:
    found = books(tmp_path, "carbon", NORTH, HOME)
    text = shown(found)
    assert max(len(line) for line in text.splitlines()) <= 80
    for word in (
        "north",
        "home",
        "rated x time",
        "making,",
        "than north",
        "change from",
        "PUE 1.1 is taken as exact",
        "average intensity",
    ):
        assert word in " ".join(text.split())
    first, second = found.entries
    assert found.against(first) is None
    against = found.against(second)
    assert against is not None
    difference, ratio = against
    assert difference.value == pytest.approx(second.whole.value - first.whole.value)
    assert ratio is not None
    # The meter's gain is the same at both sites: only PUE and moving are left of what the difference is unsure by.
    kwh = first.account.energy_kwh
    assert difference.terms["pue:home"] == pytest.approx(kwh.value * 380 * 0.03)
    assert sum(abs(u) for s, u in ratio.terms.items() if s.startswith("gain:")) < 0.2 * kwh.u / kwh.value * ratio.value


def test_every_amount_has_rated_power_beside_it(tmp_path: Path) -> None:
    found = books(tmp_path, "cost")
    (entry,) = books_data(found)["entries"]
    assert entry["rated"]["energy_kwh"] == pytest.approx(10.2 * 20 / 3600)
    assert entry["rated"]["ratio"]["value"] == pytest.approx(1.7, rel=0.02)
    assert entry["amount"]["value"] == pytest.approx(entry["energy_kwh"]["value"] * 1.4 * 0.32)
    assert entry["per"]["tokens"]["value"] == pytest.approx(entry["whole"]["value"] / 4e6)
    unknown = books(tmp_path / "other", "cost", kind=None)
    assert books_data(unknown)["entries"][0]["rated"] is None
    assert "no rated power is known" in " ".join(shown(unknown).split())


def test_several_runs_have_a_sum(tmp_path: Path) -> None:
    jobs = [Job(RunProfile(run_of(tmp_path))), Job(RunProfile(run_of(tmp_path, seconds=10.0)))]
    found = books_of(jobs, [HOME], "cost")
    assert found.total["home"].value == pytest.approx(sum(e.whole.value for e in found.entries))
    assert "all 2" in shown(found)


def test_unknown_accuracy_has_no_interval(tmp_path: Path) -> None:
    found = books(tmp_path, "carbon", gain=None)
    assert "± ?" in shown(found)
    (statement,) = statements_of(found)
    text = statement_text(statement)
    assert "±" not in text.replace("1.400 ± 0.060", "")
    assert "the accuracy of the meter is not known" in text


def test_twins_are_called_simulated_everywhere(tmp_path: Path) -> None:
    found = books(tmp_path, "carbon", twin={"name": "bnl", "rated_w": 10_200.0})
    assert found.twins == ["bnl"]
    assert "simulated: twin bnl" in shown(found)
    assert books_data(found)["simulated"] is True
    assert statement_text(statements_of(found)[0]).startswith("These figures are simulated")


def test_a_statement_says_all_that_a_reader_needs(tmp_path: Path) -> None:
    found = books(tmp_path, "carbon")
    (statement,) = statements_of(found)
    text = statement_text(statement)
    for part in (
        "whole nodes, at the wall (node.ac)", "measured by pdu (accuracy: assumed)", "effectiveness of 1.400 ± 0.060",
        "average carbon intensity of 380 g CO2e per kWh", "Rated power x time would have said", "ISO/IEC 21031",
        "per million tokens", "Not included:", "k = 2", "uncertainty of the intensity is not known",
        "Making the nodes adds",
    ):  # fmt: skip
        assert part in text, part
    entry = found.entries[0]
    assert statement.sci is not None
    assert statement.sci.value.value == pytest.approx(entry.whole.value / 4e6)  # (E x I + M) / R
    latex = statement_latex(statement)
    assert r"fifty\_\%" in latex
    assert r"$\pm$" in latex
    assert "CO$_2$e" in latex
    bare = statements_of(books(tmp_path / "bare", "carbon", Site("x", "380"), kind=None, scope="node.dc"))[0]
    said = statement_text(bare)
    for part in ("losses of the power supplies", "no PUE", "making and disposal", "M is not known"):
        assert part in said, part


def test_kinds_of_nodes_are_weighed_for_the_same_work(tmp_path: Path) -> None:
    slow, fast = run_of(tmp_path, seconds=40.0), run_of(tmp_path, seconds=20.0)
    other = NodeKind("cheap", rated_w=8000.0, price=50_000.0, lifetime_years=5.0)
    work = Work("epoch", "tokens", 1e12)
    jobs = [Job(plan_work(work, [slow]), other), Job(plan_work(work, [fast]), KIND)]
    found = books_of(jobs, [HOME], "cost")
    (even,) = found.evens
    assert even.rate is not None
    cheap, dear = found.entries
    assert cheap.share is not None
    assert dear.share is not None
    # At that price both cost the same, all included.
    at = even.rate.value
    whole = [e.share.amount.value + e.account.site_kwh.value * at for e in found.entries if e.share is not None]
    assert whole[0] == pytest.approx(whole[1])
    assert even.saver == "dgx"
    own = [{s for s in e.account.site_kwh.terms if s.startswith("assumed:")} for e in found.entries]
    assert own[0]
    assert not own[0] & own[1]  # how much runs differ does not cancel between kinds of nodes
    assert "cheap and dgx are equal at" in " ".join(shown(found).split())
    assert not found.total
    with pytest.raises(ConfigError, match="one planned work"):
        statements_of(found)


def test_planned_work_at_a_series_needs_a_time(tmp_path: Path) -> None:
    rows = "\n".join(f"2026-01-01T{hour:02d}:00Z,{100 + 100 * hour}" for hour in range(24))
    (tmp_path / "s.csv").write_text(f"# kind: average\n# unit: g/kWh\ntime,value\n{rows}\n")
    site = Site("x", "s.csv", folder=tmp_path)
    job = Job(plan_work(Work("long", "runs", 540.0), [run_of(tmp_path)]))  # 3 h
    with pytest.raises(ConfigError, match="say it: --at"):
        books_of([job], [site], "carbon")
    found = books_of([job], [site], "carbon", start=start_of("2026-01-01T02:00", [site.rate("carbon")]))
    assert found.entries[0].account.mean_rate == pytest.approx(400.0)
    assert "flat power" in " ".join(found.notes)
    assert "it starts at 2026-01-01 02:00 UTC" in found.notes  # nothing was moved
    text = statement_text(statements_of(found)[0])
    assert "at a flat power from 2026-01-01 02:00 UTC to 2026-01-01 05:00 UTC (3 slots)" in text
    assert "on average over long, at a flat power" in rate_text(found.entries[0])


def series_at(
    folder: Path, head: str = "", name: str = "s.csv", values: tuple[float, float] = (681.1789, 700.0)
) -> Site:
    """Return a site with a series in which runs of `run_of` (22:13:22 UTC) lie in one slot."""
    rows = f"2023-11-14T22:00Z,{values[0]}\n2023-11-14T23:00Z,{values[1]}\n"
    (folder / name).write_text(f"# kind: average\n# unit: g/kWh\n{head}time,value\n{rows}")
    return Site(name, name, folder=folder)


def test_a_run_within_one_slot_tells_the_hour_and_how_often_the_rate_changes(tmp_path: Path) -> None:
    (one,) = statements_of(books(tmp_path, "carbon", series_at(tmp_path)))
    text = statement_text(one)
    assert "intensity of 681.2 g CO2e per kWh" in text
    assert "in steps of 1 h 00 min, from 2023-11-14 22:13:22 UTC to 2023-11-14 22:13:42 UTC (one slot)" in text
    flat = statement_text(statements_of(books(tmp_path / "flat", "carbon"))[0])
    assert "slot" not in flat


def test_a_forecast_is_called_one_in_the_table(tmp_path: Path) -> None:
    found = books(tmp_path, "carbon", series_at(tmp_path, "# issued: 2023-11-14T12:00Z\n"))
    assert "a forecast, issued 2023-11-14 12:00 UTC" in " ".join(shown(found).split())
    assert statement_text(statements_of(found)[0]).count("a forecast, issued") == 1


def test_a_start_without_offset_is_in_the_rates_time_zone(tmp_path: Path) -> None:
    berlin = series_at(tmp_path, "# time_zone: Europe/Berlin\n", "b.csv")
    rates = [berlin.rate("carbon")]
    start = start_of("2023-11-14T23:30", rates)
    assert start.at_s == start_of("2023-11-14T22:30Z", rates).at_s
    found = books_of([Job(RunProfile(run_of(tmp_path)))], [berlin], "carbon", start=start)
    assert "starts at 2023-11-14 22:30 UTC (23:30 in Europe/Berlin" in " ".join(found.notes)
    with pytest.raises(ConfigError, match="rates are in Europe/Berlin, UTC"):
        start_of("2023-11-14T23:30", [*rates, HOME.rate("carbon")])
    with pytest.raises(ConfigError, match="is there twice"):
        start_of("2023-10-29T02:30", rates)


def on_twin(run: MeasuredRun, twin: str = SERVED_TWIN) -> MeasuredRun:
    return replace(run, result=replace(run.result, twin=twin))


def test_measured_and_simulated_runs_are_not_added_up(tmp_path: Path) -> None:
    real, twin = run_of(tmp_path, name="real"), on_twin(run_of(tmp_path, name="sleep"))
    with pytest.raises(ConfigError, match=r"not added up \(real was measured, sleep is simulated\)"):
        books_of([Job(RunProfile(one)) for one in (real, twin)], [HOME], "carbon")
    epoch = Work("epoch", "tokens", 1e9)
    kinds = [Job(plan_work(epoch, [run]), NodeKind(name)) for run, name in ((real, "a"), (twin, "b"))]
    assert "simulated: epoch on b; the others come from measured runs" in books_of(kinds, [HOME], "carbon").notes


def test_virtual_time_is_said_only_of_twins_in_it(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    told = {}
    for twin in (SERVED_TWIN, "8xh100"):
        (one,) = statements_of(books_of([Job(RunProfile(on_twin(run, twin)))], [HOME], "carbon"))
        told[twin] = statement_text(one)
    said = "These figures are simulated ({}); nothing was measured. "
    assert told[SERVED_TWIN].startswith(said.format(SERVED_TWIN))
    assert told["8xh100"].startswith(said.format("twin 8xh100, virtual time"))


def test_runs_of_several_workloads_have_no_common_sci(tmp_path: Path) -> None:
    runs = [run_of(tmp_path), run_of(tmp_path, labels={"workload": "sleep"})]
    (one,) = statements_of(books_of([Job(RunProfile(run)) for run in runs], [HOME], "carbon"))
    assert one.sci is None
    assert "No software carbon intensity (SCI) is given: the runs are of several workloads." in statement_text(one)
    (money,) = statements_of(books_of([Job(RunProfile(run)) for run in runs], [HOME], "cost"))
    assert "SCI" not in statement_text(money)


def test_data_is_moved_once_for_all_runs(tmp_path: Path) -> None:
    runs = [run_of(tmp_path), run_of(tmp_path, seconds=10.0)]
    alone, both = (books_of([Job(RunProfile(r)) for r in some], [NORTH], "carbon") for some in (runs[:1], runs))
    bare = [e.account.energy_kwh.value * 1.1 for e in both.entries]
    assert alone.entries[0].account.site_kwh.value == pytest.approx(bare[0] + 0.02)
    assert both.total["north"].value == pytest.approx((sum(bare) + 0.02) * 30)
    assert [e["moved_kwh"]["value"] for e in books_data(both)["entries"]] == [0.01, 0.01]
    assert "once for all 2" in " ".join(both.notes)
    assert "once for all" not in " ".join(alone.notes)
    epoch = Work("epoch", "tokens", 1e9)
    kinds = [Job(plan_work(epoch, [run]), NodeKind(name)) for run, name in zip(runs, "ab", strict=True)]
    assert [e.moved_kwh.value for e in books_of(kinds, [NORTH], "carbon").entries if e.moved_kwh] == [0.02, 0.02]


def test_runs_on_other_numbers_of_nodes_are_told_apart(tmp_path: Path) -> None:
    runs = [run_of(tmp_path), run_of(tmp_path, hosts=["a", "b", "c"])]
    (one,) = statements_of(books_of([Job(RunProfile(run)) for run in runs], [HOME], "carbon"))
    assert "on 1 and 3 nodes" in statement_text(one)


def test_what_is_next_to_nothing_is_not_told(tmp_path: Path) -> None:
    from joulelab.core.quantity import Quantity
    from joulelab.plan.cost.cost_output import _width

    assert _width(Quantity(10_800.0, {"a": 1.5e-12})) == ""
    assert _width(Quantity(10_800.0, {"a": 30.0})) == " ± 60.00 s"
    assert _width(Quantity(10_800.0, known=False)) == " ± ?"
    paid = series_at(tmp_path)
    assert "-0.00 %" not in shown(books(tmp_path, "carbon", paid, Site("same", paid.intensity, folder=tmp_path)))


def test_a_share_of_what_pays_is_not_told(tmp_path: Path) -> None:
    found = books(tmp_path, "cost", Site("a", tariff="0.10EUR"), Site("b", tariff="-0.20EUR"), kind=None)
    against = found.against(found.entries[1])
    assert against is not None
    assert against[0].value < 0
    assert against[1] is None


def test_a_demand_charge_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(
        'unit = "EUR/kWh"\nprice = 0.3\ntime_zone = "UTC"\n'
        '[demand]\nprice_per_kw = 10\nper = "month"\n[fee]\nprice = 5\nper = "month"\n'
    )
    job = Job(RunProfile(run_of(tmp_path)))
    found = books_of([job], [Site("x", tariff="t.toml", pue=1.5, folder=tmp_path)], "cost")
    (entry,) = found.entries
    assert entry.charges == pytest.approx({"demand per month": 90.0, "fee per month": 5.0})
    assert entry.account.amount.value == pytest.approx(entry.account.site_kwh.value * 0.3)
    assert "not in it: demand per month for fifty_%, 90.00 EUR" in found.notes
    assert "not in it: fee per month, 5.00 EUR" in found.notes  # whatever runs


def test_what_is_typed_is_read_or_refused() -> None:
    flat = Site("x", "380").rate("carbon")
    assert start_of("2026-11-17T08:00+01:00", [flat]).at_s == start_of("2026-11-17 07:00", [flat]).at_s
    assert pue_of("1.3±0.1").u == pytest.approx(0.05)
    assert pue_of("1.3+-0.1") == pue_of("1.3±0.1")
    for wrong in ("tomorrow", ""):
        with pytest.raises(ConfigError, match="is no time"):
            start_of(wrong, [flat])
    for wrong in ("0.9", "nan", "x", "1.3±", "1.3±-1", "inf"):
        with pytest.raises(ConfigError, match="is no PUE"):
            pue_of(wrong)


def test_amounts_have_units_that_people_use() -> None:
    from joulelab.core.quantity import Quantity

    assert amount_text(Quantity(2.5e6, {"a": 1e5}), "g") == "2.50 ± 0.20 t CO2e"
    assert amount_text(Quantity(12.0), "EUR") == "12.00 EUR"
    assert per_unit(Quantity(2e-6), "tokens", "g") == "2.000 g CO2e per million tokens"
    assert per_unit(Quantity(0.5), "samples", "EUR") == "0.5000 EUR per sample"


@pytest.mark.system
def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from joulelab.plan.cost.cost_picture import books_picture

    rows = "\n".join(f"2023-11-14T22:13:{second:02d}Z,{second * 10}" for second in range(0, 60, 10))
    (tmp_path / "s.csv").write_text(f"# kind: average\n# unit: g/kWh\ntime,value\n{rows}\n")
    found = books(tmp_path, "carbon", Site("x", "s.csv", folder=tmp_path), gain=None)
    drawn = books_picture(found, "svg").decode()
    for word in ("rated x time", "g/kWh", "power, W", "k = 2"):
        assert word in drawn, word
