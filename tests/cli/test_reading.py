"""Commands that read runs: ls, show, compare, export, query."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import epochs, make_run
from tests.report.test_facts import told

if TYPE_CHECKING:
    from tests.cli.conftest import Call, Fail


@pytest.mark.system  # pure, and slow
def test_ls_lists_runs_with_their_energy(call: Call, runs: Path) -> None:
    make_run(runs, name="baseline")
    make_run(runs, gpus=0, cpus=0, command=["sleep", "1"])
    make_run(runs, state="killed")
    make_run(runs, state="live")
    make_run(runs, gpus=0, cpus=0, estimate=True, end={"outcome": "signal", "exit_code": None, "signal": 9})
    text = call("ls").output
    lines = {line.split()[0]: line for line in text.splitlines()[2:]}
    assert len(lines) == 5
    assert max(len(line) for line in text.splitlines()) <= 80
    assert any("baseline: python" in line and "± 0." in line and "exit 0" in line for line in lines.values())
    assert any("no meter" in line and "sleep 1" in line for line in lines.values())
    assert any(" killed " in line for line in lines.values())
    assert any(" live " in line for line in lines.values())
    assert any("~" in line and "signal 9" in line for line in lines.values())


def test_ls_json_has_the_numbers_of_show(call: Call, runs: Path) -> None:
    run = make_run(runs, name="baseline", labels={"gpu": "H100"})
    [row] = json.loads(call("ls", "--json").stdout)
    shown = json.loads(call("show", "--json").stdout)
    assert row["run"] == run.name
    assert row["energy"] == shown["energy"]
    assert row["duration_s"] == shown["duration_s"] == 10.0
    assert row["labels"] == {"gpu": "H100"}


def test_ls_and_compare_show_the_data(call: Call, runs: Path) -> None:
    first = make_run(runs, gpus=1, cpus=0, marks=[told(data="cifar-10", accuracy=0.9)])
    assert "cifar-10" in call("ls").output
    second = make_run(runs, gpus=1, cpus=0)
    text = call("ls").output
    assert text.split()[:7] == ["run", "age", "time", "energy", "outcome", "data", "command"]
    assert "exit 0   cifar-10  python" in text
    facts = {row["run"]: row["facts"] for row in json.loads(call("ls", "--json").stdout)}
    assert facts == {first.name: {"accuracy": 0.9, "data": "cifar-10"}, second.name: {}}
    text = call("compare", first.name, second.name).output
    assert "data" in text.split("accuracy")[0]
    facts = json.loads(call("compare", first.name, second.name, "--json").stdout)["facts"]
    assert facts == {"data": {"a": "cifar-10", "b": None}, "accuracy": {"a": 0.9, "b": None}}


def test_ls_shows_the_last_runs(call: Call, runs: Path) -> None:
    assert json.loads(call("ls", "--json").stdout) == []
    assert call("ls").output.endswith("Make one:\n-> joulelab run -- CMD\n")
    for _ in range(3):
        make_run(runs, gpus=0, cpus=0)
    assert len(json.loads(call("ls", "-n", "2", "--json").stdout)) == 2
    assert "2 of 3 " in call("ls", "-n", "2").output
    assert "3 of 3 " not in call("ls", "--all").output


def test_ls_shows_damaged_runs(call: Call, runs: Path) -> None:
    run = make_run(runs, gpus=0, cpus=0)
    (run / "run.json").write_text("{")
    assert "damaged" in call("ls").output
    [row] = json.loads(call("ls", "--json").stdout)
    assert row["problem"]


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("state", ["live", "killed", "closed", "sealed"])
def test_show_works_in_every_state(call: Call, runs: Path, state: str) -> None:
    run = make_run(runs, state=state, name="it", marks=epochs(3, 9.0), idle=True)
    text = call("show", "it", "--phases", "--budget", "--scopes", "all").output
    assert run.name in text
    assert "by gpu" in text
    assert "uncertainty, %" in text
    data = json.loads(call("show", run.name[:15], "--json").stdout)
    assert data["state"] == ("closed" if state == "sealed" else state)
    assert data["folder"] == str(run)
    assert [p["title"] for p in data["phases"]] == ["train", "epoch 1", "epoch 2", "epoch 3"]
    # 2 x 300 W and 90 W; before the end of a run its last reading counts.
    assert data["energy"]["value"] / data["duration_s"] == pytest.approx(690, rel=0.08)


def test_show_reads_a_run_by_its_path(call: Call, runs: Path, tmp_path: Path) -> None:
    run = make_run(runs)
    moved = run.rename(tmp_path / "elsewhere")
    assert f"\nrun        {moved}" in call("show", moved).output
    assert r"\toprule" in call("show", moved, "--format", "latex").stdout


@pytest.mark.system  # pure, and slow
def test_compare(call: Call, runs: Path) -> None:
    make_run(runs, name="base", gpu_w=300.0)
    make_run(runs, name="capped", gpu_w=250.0, seconds=11.0)
    text = call("compare", "base", "capped").output
    assert "10.0 %" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    data = json.loads(call("compare", "base", "capped", "--json").stdout)
    energy = data["lines"][0]
    assert energy["name"] == "energy"
    assert energy["differ"] is True
    assert energy["ratio"]["value"] == pytest.approx(590 * 11 / 6900, rel=0.01)
    shown = re.search(r"^energy .* ([-+][\d.]+) ± [\d.]+ %", text, re.MULTILINE)
    assert shown is not None
    assert float(shown[1]) == pytest.approx((energy["ratio"]["value"] - 1) * 100, abs=0.1)


@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_export_writes_a_file_per_table(call: Call, runs: Path, tmp_path: Path, to: str) -> None:
    run = make_run(runs, state="closed")
    names = call("export", run.name, "--to", to, "-o", "out").output.split()
    assert f"out/node1.nvml.power.{to}" in names
    assert (tmp_path / "out" / "metadata.json").is_file()
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["energy"] == json.loads(call("show", "--json").stdout)["energy"]
    if to == "csv":
        rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "node1.nvml.power.csv").read_text())))
        assert {r["scope"] for r in rows} == {"gpu:0", "gpu:1"}


def test_export_json_goes_to_a_file_or_to_the_output(call: Call, runs: Path, tmp_path: Path) -> None:
    run = make_run(runs)
    data = json.loads(call("export", "--to", "json", "-o", "-").stdout)
    assert data["run"]["id"] == run.name
    assert data["samples"]
    listed = json.loads(call("export", "--to", "json", "--json").stdout)
    assert [Path(f).name for f in listed["files"]] == ["run.json", "results.json"]
    assert (tmp_path / f"{run.name}-json" / "run.json").is_file()


@pytest.mark.system  # pure, and slow
def test_query_prints_a_table_json_or_csv(call: Call, runs: Path) -> None:
    run = make_run(runs, name="baseline")
    sql = "SELECT name, scope, energy_j, started FROM runs JOIN energies USING (run) ORDER BY scope"
    text = call("query", sql).stdout
    assert "baseline  cpu:0" in text
    rows = json.loads(call("query", sql, "--json").stdout)
    assert [r["scope"] for r in rows] == ["cpu:0", "gpu:0", "gpu:1"]
    assert rows[0]["started"].startswith("2023-11-14T22:13:20")
    table = list(csv.DictReader(io.StringIO(call("query", sql, "--csv").stdout)))
    assert float(table[0]["energy_j"]) == rows[0]["energy_j"]
    assert json.loads(call("query", "SELECT 'nan'::DOUBLE AS x, NULL AS y", "--json").stdout) == [
        {"x": None, "y": None}
    ]
    wide = call("query", "SELECT * FROM energies").stdout
    assert f"run            {run.name}" in wide
    assert "energy_j" in wide


def test_query_explains_what_there_is(fail: Fail, runs: Path) -> None:
    make_run(runs)
    failure = fail("query", "SELECT nonsense FROM runs")
    assert failure.code == "config.query-failed"
    assert "runs(" in str(failure.next)
    assert fail("query", "DROP TABLE runs").code == "refused.query-changes"
