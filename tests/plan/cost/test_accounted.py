"""Runs that a cluster only accounted for: rated power by the nodes it tells, nothing made up where it does not."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from tests.analysis.folders import Folder
from tests.analysis.virtual import accuracy

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import J_PER_KWH
from joulelab.core.spec import Spec, Stream
from joulelab.plan.cost.cost_books import CostBooks, CostJob, make_books
from joulelab.plan.cost.cost_output import describe_books
from joulelab.plan.cost.job_energy import RUNS, RunEnergy, find_nameplate, find_side
from joulelab.plan.cost.sites import PlanSite
from joulelab.plan.cost.statement import make_statements
from joulelab.plan.cost.work import NODE_HOURS, Work, plan_work
from joulelab.plan.measured_runs import MeasuredRun, find_node_count, read_measured_run
from joulelab.plan.plan_tables import NodeKind

if TYPE_CHECKING:
    from pathlib import Path

KIND = NodeKind("dgx", rated_w=1000.0, price=8766.0, lifetime_years=1.0)
SITE = PlanSite("x", "400", "1EUR")


def job(folder: Path, nodes: int | None = 4, model: str = "", **meta: Any) -> MeasuredRun:
    """Return a job of 12 s and 6 kJ, on so many nodes by the accounting."""
    spec = Spec("energy_j", "energy", "J", "counter", 1e-9, accuracy=accuracy(0.05))
    told: dict[str, Any] = {"archive": "slurm", "covers": "nodes as they are"}
    told |= {} if nodes is None else {"node_count": nodes}
    made = Folder(folder, imported={"source": "slurm", "archives": [told]}, **meta)
    stream = Stream("job", "job", "job", 12.0, (spec,), model=model or None)
    return read_measured_run(made.add("slurm", stream, [4.0, 16.0], [0.0, 6000.0]).close(4.0, 16.0).open())


def attached(folder: Path, *covers: str) -> MeasuredRun:
    """Return a run of 12 s without meters, to which 6 kJ that Slurm accounted on two nodes were added."""
    spec = Spec("energy_j", "energy", "J", "counter", 1e-9, accuracy=accuracy(0.05))
    made = Folder(folder).add("slurm", Stream("job", "job", "job", 12.0, (spec,)), [4, 16], [0, 6000], host="slurm-1")
    told = {"host": "slurm-1", "covers": list(covers), "nodes": ["n1", "n2"], "energy_j": 6000}
    return read_measured_run(made.event(16.0, "attached", **told).close(4.0, 16.0).open())


def books(run: MeasuredRun, site: PlanSite = SITE) -> CostBooks:
    return make_books([CostJob(RunEnergy(run, 1000.0), KIND)], [site])


def codes(found: CostBooks) -> set[str]:
    return {note.code for note in found.notes}


def test_rated_power_by_time_is_that_of_the_accounted_nodes(tmp_path: Path) -> None:
    run = job(tmp_path)
    plate = find_nameplate(run, 1000.0)
    assert plate is not None
    assert plate.kwh == pytest.approx(4 * 1000 * 12 / J_PER_KWH)
    assert plate.ratio is not None
    assert plate.ratio.value == pytest.approx(8.0)
    (entry,) = books(run).entries
    assert entry.shares["cost"].amount.value == pytest.approx(4 * 12 / 3600)  # one unit of money per node-hour


def test_an_unknown_number_of_nodes_stays_unknown(tmp_path: Path) -> None:
    found = books(job(tmp_path, None))
    (data,) = describe_books(found)["entries"]
    assert (data["nodes"], data["rated"], data["cost"]["purchase"], data["cost"]["per_node_hour"]) == (None,) * 4
    assert "cost.nodes-unknown" in codes(found)
    assert "on an unknown number of nodes" in make_statements(found)[0]["text"]


def test_a_statement_names_the_accounting_and_its_side(tmp_path: Path) -> None:
    run = job(tmp_path)
    found = books(run)
    (statement,) = make_statements(found)
    for part in ("power supplies unknown (nodes as they are)", "accounted by slurm", "on 4 nodes"):
        assert part in statement["text"], part
    assert find_side(run) == describe_books(found)["entries"][0]["measured_at"] == "unknown"
    assert {"cost.side-unknown", "cost.accounted"} <= codes(found)
    cray = job(tmp_path / "cray", model="slurm pm_counters")
    assert find_side(cray) == "dc"
    assert make_statements(books(cray))[0]["not_included"][0] == "losses of the power supplies"


def test_the_energy_of_a_total_is_spread_evenly(tmp_path: Path) -> None:
    run = job(tmp_path)
    times = [dt.datetime.fromtimestamp(run.start_utc_s + s, dt.UTC).isoformat() for s in (-3, 3, 13)]
    rows = "\n".join(f"{time},{value}" for time, value in zip(times, (100, 300, 500), strict=True))
    end = dt.datetime.fromtimestamp(run.start_utc_s + 60, dt.UTC).isoformat(timespec="seconds")
    (tmp_path / "s.csv").write_text(f"# kind: average\n# unit: g/kWh\n# end: {end}\ntime,value\n{rows}\n")
    found = books(run, PlanSite("x", "s.csv", folder=tmp_path))
    amount = found.entries[0].amounts["carbon"].amount
    assert amount.value == pytest.approx(6000 / J_PER_KWH * (100 * 0.25 + 300 * 0.75), rel=0.02)
    assert "cost.spread-evenly" in codes(found)
    assert "energy spread evenly" in make_statements(found)[0]["text"]
    assert "cost.spread-evenly" not in codes(books(run))  # the rate never changes


@pytest.mark.parametrize(
    ("covers", "side"), [(("node.ac",), "ac"), (("node.dc",), "dc"), (("cpu", "dram"), "parts"), (("gpu",), "parts")]
)
def test_an_attached_accounting_tells_side_and_nodes(tmp_path: Path, covers: tuple[str, ...], side: str) -> None:
    run = attached(tmp_path, *covers)
    assert (find_side(run), find_node_count(run)) == (side, 2)


def test_a_label_tells_the_nodes_if_nothing_else_does(tmp_path: Path) -> None:
    assert find_node_count(job(tmp_path / "a", None, labels={"nodes": "3"})) == 3
    assert find_node_count(job(tmp_path / "b", 4, labels={"nodes": "3"})) == 4
    for wrong in ("0", "-1", "many", "²"):
        assert find_node_count(job(tmp_path / "c", None, labels={"nodes": wrong})) is None


def test_work_is_planned_from_accounted_runs(tmp_path: Path) -> None:
    runs = [job(tmp_path, name="a"), job(tmp_path, name="b")]
    planned = plan_work(Work("long", NODE_HOURS, 4.0), runs)
    assert planned.whole.value == pytest.approx(4.0 / (4 * 12 / 3600) * 6000)
    assert (planned.nodes, planned.highest_w) == (4, None)
    assert [(note.code, note.texts) for note in planned.notes] == [("cost.accounted-total", {"runs": ("a", "b")})]
    with pytest.raises(ConfigError, match=r"the number of nodes of run.*--label nodes=N"):
        plan_work(Work("long", RUNS, 4.0), [job(tmp_path / "none", None)])
    with pytest.raises(ConfigError, match=r"the effect of caps .* run .*joulelab run"):
        plan_work(Work("long", RUNS, 4.0, cap_w=300.0), [runs[0]], gpu_w=700.0)


def test_a_demand_charge_needs_the_highest_power(tmp_path: Path) -> None:
    text = 'unit = "EUR/kWh"\nprice = 0.3\n[demand]\nprice_per_kw = 10\nper = "month"\n'
    (tmp_path / "t.toml").write_text(text)
    assert books(job(tmp_path), PlanSite("x", tariff="t.toml", folder=tmp_path)).entries[0].charges == {}
