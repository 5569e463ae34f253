"""Runs that a cluster only accounted for: rated power by the nodes it tells, nothing made up where it does not."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from tests.analysis.folders import Folder
from tests.analysis.virtual import accuracy

from joulelab.core.errors import ConfigError
from joulelab.core.spec import Spec, Stream
from joulelab.plan.cost.cost_json import books_data
from joulelab.plan.cost.cost_output import rate_text
from joulelab.plan.cost.energy import KWH, RunProfile, nameplate_of, side_of
from joulelab.plan.cost.entries import Books, Job, books_of
from joulelab.plan.cost.scaling import NODE_HOURS, RUNS
from joulelab.plan.cost.sites import Site
from joulelab.plan.cost.statement import statements_of
from joulelab.plan.cost.statement_text import statement_text
from joulelab.plan.cost.work import Work, plan_work
from joulelab.plan.measured_runs import MeasuredRun, find_node_count, read_measured_run
from joulelab.plan.plan_tables import NodeKind

if TYPE_CHECKING:
    from pathlib import Path

KIND = NodeKind("dgx", rated_w=1000.0, price=8766.0, lifetime_years=1.0)
SITE = Site("x", "400", "1EUR")


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


def books(run: MeasuredRun, site: Site = SITE, purpose: Any = "carbon", kind: NodeKind | None = KIND) -> Books:
    return books_of([Job(RunProfile(run, 1000.0), kind)], [site], purpose)


def test_rated_power_by_time_is_that_of_the_nodes_that_were_told(tmp_path: Path) -> None:
    run = job(tmp_path)
    plate = nameplate_of(run, 1000.0)
    assert plate is not None
    assert plate.energy_j == pytest.approx(4 * 1000 * 12)
    assert plate.ratio is not None
    assert plate.ratio.value == pytest.approx(8.0)
    (entry,) = books(run, purpose="cost").entries
    assert entry.share is not None
    assert entry.share.amount.value == pytest.approx(4 * 12 / 3600)  # one unit of money per hour of a node


def test_an_unknown_number_of_nodes_is_not_none_at_all(tmp_path: Path) -> None:
    found = books(job(tmp_path, None), purpose="cost")
    (entry,) = found.entries
    assert entry.job.nodes is None
    assert entry.share is None
    assert entry.account.rated_kwh is None
    (data,) = books_data(found)["entries"]
    assert (data["nodes"], data["rated"], data["purchase"], data["per_node_hour"]) == (None, None, None, None)
    notes = " ".join(found.notes)
    assert "on how many nodes some ran is not known" in notes
    assert "what nodes cost or emitted is not included" in notes
    assert "on a number of nodes that is not known" in statement_text(statements_of(found)[0])


def test_a_statement_says_that_it_was_accounted_and_where(tmp_path: Path) -> None:
    run = job(tmp_path)
    assert side_of(run) == "unknown"
    found = books(run)
    text = statement_text(statements_of(found)[0])
    for part in (
        "which side of the power supplies is not known (nodes as they are)",
        "accounted by slurm",
        "on 4 nodes",
    ):
        assert part in text, part
    assert "at the wall" not in text
    assert "losses of the power supplies, where the accounting is behind them" in text
    assert books_data(found)["entries"][0]["measured_at"] == "unknown"
    assert "only accounted for, by the cluster: nodes as they are" in found.notes
    cray = job(tmp_path / "cray", model="slurm pm_counters")
    assert side_of(cray) == "dc"
    assert "losses of the power supplies" in statement_text(statements_of(books(cray))[0])


def test_it_is_said_that_energy_is_spread_evenly(tmp_path: Path) -> None:
    run = job(tmp_path)
    start = run.start_utc_s
    times = [dt.datetime.fromtimestamp(start + s, dt.UTC).isoformat() for s in (-3, 3, 13)]
    rows = "\n".join(f"{time},{value}" for time, value in zip(times, (100, 300, 500), strict=True))
    end = dt.datetime.fromtimestamp(start + 60, dt.UTC).isoformat(timespec="seconds")
    (tmp_path / "s.csv").write_text(f"# kind: average\n# unit: g/kWh\n# end: {end}\ntime,value\n{rows}\n")
    found = books(run, Site("x", "s.csv", folder=tmp_path))
    (entry,) = found.entries
    assert entry.account.amount.value == pytest.approx(6000 / KWH * (100 * 0.25 + 300 * 0.75), rel=0.02)
    assert "spread evenly" in rate_text(entry)
    assert "by its own power" not in rate_text(entry)
    assert any("spread evenly over the time" in note for note in found.notes)
    assert "spread evenly from" in statement_text(statements_of(found)[0])
    assert not any("spread evenly" in note for note in books(run).notes)  # a figure that never changes


@pytest.mark.parametrize(
    ("covers", "side"), [(("node.ac",), "ac"), (("node.dc",), "dc"), (("cpu", "dram"), "parts"), (("gpu",), "parts")]
)
def test_what_was_added_to_a_run_tells_its_side_and_its_nodes(
    tmp_path: Path, covers: tuple[str, ...], side: str
) -> None:
    run = attached(tmp_path, *covers)
    assert (side_of(run), find_node_count(run)) == (side, 2)


def test_a_label_tells_the_nodes_where_nothing_else_does(tmp_path: Path) -> None:
    assert find_node_count(job(tmp_path / "a", None, labels={"nodes": "3"})) == 3
    assert find_node_count(job(tmp_path / "b", 4, labels={"nodes": "3"})) == 4
    for wrong in ("0", "-1", "many", "²"):
        assert find_node_count(job(tmp_path / "c", None, labels={"nodes": wrong})) is None


def test_work_is_planned_from_accounted_runs_and_that_is_said(tmp_path: Path) -> None:
    runs = [job(tmp_path, name="a"), job(tmp_path, name="b")]
    planned = plan_work(Work("long", NODE_HOURS, 4.0), runs)
    assert planned.whole.value == pytest.approx(4.0 / (4 * 12 / 3600) * 6000)
    assert (planned.nodes, planned.highest_w) == (4, None)
    assert any(note.startswith("a, b: a cluster accounted") and "their time" in note for note in planned.notes)
    assert "not known: it is 500 W on average" in " ".join(
        books_of([Job(planned)], [Site("x", "400", budget_w=600.0)], "carbon").notes
    )


def test_what_a_total_cannot_tell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not tell on how many nodes.*--label nodes=N"):
        plan_work(Work("long", RUNS, 4.0), [job(tmp_path, None)])
    with pytest.raises(ConfigError, match=r"what caps do cannot be told from run .*joulelab run"):
        plan_work(Work("long", RUNS, 4.0, cap_w=300.0), [job(tmp_path)], gpu_w=700.0)


@pytest.mark.parametrize(
    ("budget_w", "said"),
    [(400.0, "does not fit: 500 W on average"), (600.0, "fits into 600 W is not known: it is 500 W on average")],
)
def test_a_budget_is_judged_by_the_mean_as_far_as_that_goes(tmp_path: Path, budget_w: float, said: str) -> None:
    assert said in " ".join(books(job(tmp_path), Site("x", "400", budget_w=budget_w)).notes)


def test_demand_is_not_told_where_the_highest_power_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(
        'unit = "EUR/kWh"\nprice = 0.3\ntime_zone = "UTC"\n[demand]\nprice_per_kw = 10\nper = "month"\n'
    )
    found = books(job(tmp_path), Site("x", tariff="t.toml", folder=tmp_path), "cost")
    assert found.entries[0].charges == {}
    assert "not in it: demand per month; the highest power of" in " ".join(found.notes)
