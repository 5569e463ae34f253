"""A job of a small fleet, made from twins with known truth, is read back from real servers as a run."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from benchmarks.fleet import begin_ns
from benchmarks.fleet_model import NS, Fleet, Plan, Scraped
from tests.instruments import timeseries

from joulelab.analysis.analyse import analyse_run
from joulelab.report.run_rows import list_energy_rows
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Call, Fail

pytestmark = pytest.mark.system

SPAN_S = 1200.0
JOB = "4711"


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet(Plan(8, begin_ns(SPAN_S), SPAN_S, job_nodes=4, job_s=480.0, seed=3))


def put(address: str, scraped: Scraped) -> None:
    request = urllib.request.Request(f"{address}/api/v1/import", scraped.victoria(), method="POST")
    timeseries.OPENER.open(request, timeout=120).close()


def flush(address: str) -> None:
    timeseries.OPENER.open(f"{address}/internal/force_flush", timeout=120).close()


@pytest.fixture(scope="module")
def victoria(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with timeseries.victoria(tmp_path_factory.mktemp("victoria")) as address:
        for scraped in fleet.telemetry():
            put(address, scraped)
        flush(address)
        yield address


@pytest.fixture(scope="module")
def prom(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    lines: dict[str, list[str]] = {}
    for scraped in fleet.telemetry():
        for metric, some in scraped.openmetrics().items():
            lines.setdefault(metric, []).extend(some)
    text = "".join(f"{line}\n" for some in lines.values() for line in some)
    with timeseries.prometheus(tmp_path_factory.mktemp("prometheus"), text) as address:
        yield address


@pytest.fixture(params=["victoria", "prom"])
def server(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def group(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(g["energy"] for g in found["groups"] if g["name"] == name)


def holds(energy: dict[str, Any], true: float) -> bool:
    return bool(abs(energy["value"] - true) <= energy["expanded"])


def test_a_job_is_read_back_with_its_truth(call: Call, fleet: Fleet, server: str) -> None:
    job = fleet.jobs[0]
    found = json.loads(call("import", "prometheus", JOB, f"address={server}", "--json").stdout)
    assert {s["host"] for s in found["scopes"]} == {f"node000{n}" for n in range(1, 5)}
    assert len(found["scopes"]) == 4 * 9
    assert all(node in found["remarks"][0] for node in (JOB, "node0001", "node0002", "node0003", "node0004"))
    assert found["labels"] == {"slurm_job": JOB, "user": "ada", "account": "physics", "partition": "gpu"}
    assert found["name"] == "job-4711"
    assert abs(found["start_ns"] - job.start_ns) < 8 * NS
    assert abs(found["end_ns"] - job.end_ns) < 8 * NS
    true = fleet.true_j(job, job.start_ns, job.end_ns)
    for name, gain in (("gpu", 0.05), ("node.ac", 0.02)):
        energy = group(found, name)
        assert holds(energy, true[name])
        # What is stated is counted, and what two scrapes leave open; not much more.
        assert 2 * gain / 3**0.5 < energy["expanded"] / energy["value"] < 2 * gain / 3**0.5 + 0.02
        assert 0 < energy["budget"]["interval"] < 0.01 * energy["value"]
    with open_run(Path(found["folder"])) as run:
        assert {t.meter for t in run.tables()} == {"nvml", "bmc", "host"}
        gpu = next(s for t in run.tables() for s in t.streams if s.scope == "gpu:0")
        assert [c.name for c in gpu.channels] == ["energy_j", "power_w", "load", "temperature_c", "cap_enforced_w"]
        assert gpu.device == "GPU-node0001-0"
        assert gpu.channels[0].accuracy.gain == 0.05
        assert 0.01 < (gpu.channels[0].update_s or 0) <= 1.0, "an agent reads once a second: values are as old"
        about = run.meta["imported"]["archives"][0]
        assert (about["job"], len(about["nodes"]), len(about["unsure_s"])) == (JOB, 4, 2)
    assert "host.busy" in "".join(found["load"])


def test_the_run_is_shown_and_compared_like_any_other(
    call: Call, fleet: Fleet, victoria: str, tmp_path: Path, runs: Path
) -> None:
    (tmp_path / "joulelab.toml").write_text(
        f'[meters.fleet]\nmeter = "prometheus"\naddress = "{victoria}"\npreset = "joulelab"\n'
    )
    done = call("import", "prometheus", JOB, "--entry", "fleet").stdout
    assert "4 nodes" in done.splitlines()[0]
    assert "4 x whole node at the wall on 4 nodes" in call("show", "job-4711").stdout
    shown = call("show", "job-4711", "--all").stdout
    assert "node.ac (4)" in shown
    assert "node0002/rest of node.ac" in shown
    assert_many_rests_are_one_row(next(runs.glob("*/run.json")).parent)
    # Two other nodes of the same interval: the fleet's history is there to compare with.
    since, until = (str(t / NS) for t in (fleet.jobs[0].start_ns, fleet.jobs[0].end_ns))
    words = (f"address={victoria}", "--node", "node0006, node0007", "--from", since, "--to", until, "--name", "others")
    found = json.loads(call("import", "prometheus", *words, "--json").stdout)
    assert {s["host"] for s in found["scopes"]} == {"node0006", "node0007"}
    assert "interval" not in group(found, "gpu")["budget"], "who gives an interval knows it"
    assert "job-4711" in call("compare", "job-4711", "others").stdout


def assert_many_rests_are_one_row(folder: Path) -> None:
    with open_run(folder) as run:
        result = analyse_run(run)
    rests = [g for g in result.groups if g.name == "rest of node.ac"]
    many = replace(result, groups=(*(g for g in result.groups if g not in rests), *rests * 16))
    rows = {row.label: row for row in list_energy_rows(many)}
    assert [label for label in rows if "rest" in label] == ["rest of node.ac (64)"]
    assert rows["rest of node.ac (64)"].energy.value == pytest.approx(16 * sum(g.energy.value for g in rests))
    assert "node0003/rest of node.ac" in {row.label for row in list_energy_rows(many, every=True)}


def test_scrapes_that_fail_are_gaps(call: Call, tmp_path: Path) -> None:
    """A node is not scraped for two minutes, the BMC of another is not read for one, a third is never scraped."""
    fleet = Fleet(Plan(3, begin_ns(SPAN_S), SPAN_S, job_nodes=3, job_s=480.0, seed=5))
    job, middle = fleet.jobs[0], fleet.jobs[0].start_ns // 1_000_000 + 240_000
    with timeseries.victoria(tmp_path) as address:
        one, two, three = fleet.telemetry()
        put(address, without(one, middle, middle + 120_000))
        put(address, silent(two, middle, middle + 60_000))
        put(address, replace(three, series=[s for s in three.series if s[0]["__name__"] == "joulelab_slurm_job_info"]))
        flush(address)
        found = json.loads(call("import", "prometheus", JOB, f"address={address}", "--json").stdout)
    assert any("node0003" in problem for problem in found["problems"])
    assert sum("bmc" in problem for problem in found["problems"]) == 1
    scopes = {(s["host"], s["scope"]): s["reading"] for s in found["scopes"]}
    whole, broken = scopes["node0001", "node.ac"], scopes["node0002", "node.ac"]
    assert (whole["channel"], broken["channel"]) == ("energy_j", "power_w")
    assert whole["coverage"] < 0.8, "the hole is seen"
    for host, reading in (("node0001", whole), ("node0002", broken)):
        made = fleet.timeline(int(host[-1]) - 1)
        assert holds(reading["energy"], made.energy("node.ac", job.start_ns, job.end_ns)), host
    assert broken["energy"]["expanded"] > whole["energy"]["expanded"]


def test_what_was_not_seen_of_a_job_is_said_in_the_run(call: Call, tmp_path: Path) -> None:
    """Telemetry begins while the job runs, ends for one node before it does, and tells what nodes are rated at."""
    fleet = Fleet(Plan(3, begin_ns(SPAN_S), SPAN_S, job_nodes=3, job_s=480.0, seed=5))
    begin = fleet.jobs[0].start_ns // 1_000_000
    with timeseries.victoria(tmp_path) as address:
        for number, scraped in enumerate(fleet.telemetry()):
            scraped.add("joulelab_rated_watts", np.full(scraped.t_ms.size, 9000.0 + number), scope="node.ac")
            seen = without(scraped, 0, begin + 200_000)
            put(address, without(seen, begin + 300_000, 10**15) if number == 1 else seen)
        flush(address)
        printed = call("import", "prometheus", JOB, f"address={address}").stdout
        found = json.loads(call("import", "prometheus", JOB, f"address={address}", "--json").stdout)
    checks = [c for c in found["checks"] if c["name"] == "interval" and c["status"] == "failed"]
    failed = [c["message"] for c in checks]
    assert ["node0002" in message for message in failed] == [False, True]
    assert {c["texts"]["what"] for c in checks} <= set(found["problems"])
    assert "too-short" not in {c["code"] for c in found["checks"] if c["status"] != "ok"}
    shown = call("show", Path(found["folder"]).name).stdout
    for text in (" ".join(printed.split()), " ".join(shown.split())):
        assert all(message in text for message in failed)
        assert "gpu:0-7, node.ac of node0002: " in text
    rated = found["rated"]
    assert [(d["host"], d["rated_w"]) for d in rated["devices"]] == [(f"node000{n + 1}", 9000.0 + n) for n in range(3)]
    assert rated["unknown"] == []
    assert rated["ratio"]["value"] > 1


def without(scraped: Scraped, since_ms: int, until_ms: int) -> Scraped:
    """Return what is left where no scrape came through for a while."""
    left = Scraped(scraped.name, scraped.t_ms)
    for labels, values, at in scraped.series:
        times = scraped.t_ms if at is None else at
        keep = (times < since_ms) | (times > until_ms)
        left.series.append((labels, values[keep], times[keep]))
    return left


def silent(scraped: Scraped, since_ms: int, until_ms: int) -> Scraped:
    """Return what an agent shows whose BMC does not answer for a while: its sum stands still and then lacks that."""
    left = Scraped(scraped.name, scraped.t_ms)
    for labels, values, at in scraped.series:
        times, shown = scraped.t_ms if at is None else at, values
        during = (times >= since_ms) & (times <= until_ms)
        if labels.get("meter") == "bmc" and labels["__name__"] == "joulelab_power_watts":
            times, shown = times[~during], values[~during]
        elif labels.get("meter") == "bmc" and labels["__name__"] == "joulelab_energy_joules_total":
            before = int(np.flatnonzero(during)[0]) - 1
            lost = values[np.flatnonzero(during)[-1] + 1] - values[before]
            shown = np.where(during, values[before], np.where(times > until_ms, values - lost, values))
        elif labels.get("meter") == "bmc" and labels["__name__"].endswith("timestamp_seconds"):
            shown = np.where(during, values[np.flatnonzero(during)[0] - 1], values)
        left.series.append((labels, shown, times))
    return left


def test_what_is_wrong_is_said(fail: Fail, runs: Path, victoria: str) -> None:
    for words, code, kind, named in (
        (("99", f"address={victoria}"), 1, "unavailable", "99"),
        ((JOB, f"address={victoria}", "--node", "node0099"), 1, "unavailable", JOB),
        ((JOB, f"address={victoria}", "nodes=7"), 2, "config", "nodes"),
        ((JOB,), 2, "config", "address"),
    ):
        failure = fail("import", "prometheus", *words, code=code)
        assert (failure.kind, named in failure.what) == (kind, True), failure
    assert fail("import", "slurm", "7", "--node", "a").code == "config.not-for-source"
    assert not list(runs.glob("*/run.json"))
