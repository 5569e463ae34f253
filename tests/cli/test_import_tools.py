"""Import results of CodeCarbon, Zeus and perun: files that these tools wrote (tool_results/README.md), and bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from joulelab.instruments.file.tool_results import read_tool_results
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from tests.cli.conftest import Call, Fail

FILES = Path(__file__).parent / "tool_results"
CODECARBON, ZEUS, MEASUREMENT, PERUN = (
    FILES / name for name in ("codecarbon-3.3.2.csv", "zeus-0.16.0.csv", "zeus-0.16.0.json", "perun-1.0.0.json")
)
NAMES = "timestamp,project_name,duration,emissions,cpu_energy,gpu_energy,ram_energy,energy_consumed,gpu_count,pue"
HOUR = "2026-05-01T12:00:00,net,3600,0.4,0.1,0.8,0.1,1.0,8,1.0"
NOTHING = "2026-05-01T12:00:00,net,3600,0,0,0,0,0,0,1.0"


def list_energies(found: dict[str, Any]) -> dict[str, float]:
    return {s["scope"]: s["reading"]["energy"]["value"] for s in found["scopes"]}


def list_codes(found: dict[str, Any]) -> list[str]:
    return [check["code"] for check in found["checks"] if check["status"] != "note"]


def test_codecarbon_rows_become_runs_with_estimates_marked_and_contradictions_named(call: Call) -> None:
    done = json.loads(call("import", "codecarbon", CODECARBON, "--zone", "Europe/Berlin", "--json").stdout)
    busy, tasks, unread = done["runs"]
    assert [run["labels"] for run in (busy, tasks)] == [
        {"origin": "codecarbon 3.3.2", "project": name} for name in ("resnet, small", "tasks")
    ]
    assert list_energies(busy) == pytest.approx({"cpu": 1.110923e-5 * 3.6e6, "dram": 2.761491e-5 * 3.6e6}, rel=1e-5)
    assert all(scope["reading"]["estimate"] for scope in busy["scopes"])
    assert (busy["energy"]["expanded"], busy["start_utc"][:19]) == (None, "2026-11-17T23:21:00")
    assert busy["duration_s"] == pytest.approx(5.014311402)
    assert busy["facts"]["codecarbon_co2e_kg"] == pytest.approx(1.475196e-5)  # beside ours, never mixed with it
    assert busy["footprint"]["co2e_kg"] is None
    assert list_codes(busy) == ["estimate.imported"]
    # Real files of CodeCarbon: the duration of the last task only; GPUs and CPUs that were found, but read as 0.
    assert list_codes(tasks) == ["estimate.imported", "does-not-add-up.power"]
    assert list_codes(unread) == ["not-read", "not-read", "estimate.imported"]
    assert list_energies(unread).keys() == {"dram"}
    with open_run(Path(busy["folder"])) as run:
        (about,) = run.meta["imported"]["archives"]
    assert (about["archive"], about["file"], about["line"]) == ("codecarbon", CODECARBON.name, 2)


def test_every_view_names_the_origin(call: Call, tmp_path: Path) -> None:
    printed = call("import", "codecarbon", CODECARBON).stdout
    assert "does not add up" in printed
    assert "~139.4" in printed
    assert max(map(len, printed.splitlines()[1:])) <= 80
    listed = call("ls").stdout
    assert listed.count("from codecarbon") == 3
    run = next(line.split()[0] for line in listed.splitlines() if "~139.4" in line)
    shown = call("show", run).stdout
    assert "from codecarbon 3.3.2" in shown
    assert "covers     CPUs, memory" in shown
    assert "peak" not in shown  # a total has none
    assert "codecarbon 3.3.2" in call("query", "select labels from runs").stdout
    call("report", run, "-o", tmp_path / "page.html")
    assert "codecarbon 3.3.2" in (tmp_path / "page.html").read_text()


def test_zeus_windows_and_measurements_have_an_energy_for_each_device(call: Call) -> None:
    done = json.loads(call("import", "zeus", ZEUS, "--json").stdout)["runs"]
    assert [(run["name"], run["labels"].get("inside")) for run in done] == [
        ("training", None),
        ("epoch", "training"),
        ("epoch", "training"),
    ]
    assert list_energies(done[0]) == {"gpu:0": 3010.0, "gpu:1": 3010.0}
    assert done[0]["duration_s"] == pytest.approx(4.2448)
    one = json.loads(call("import", "zeus", ZEUS, "only=training", "gain=0.05", "--json").stdout)
    assert one["energy"]["expanded"] == pytest.approx(6020 * 0.05 * 2 / 3**0.5, rel=1e-3)
    whole = json.loads(call("import", "zeus", MEASUREMENT, "--start", "2026-11-18T00:00Z", "--json").stdout)
    assert list_energies(whole)["dram:1"] == pytest.approx(250.671508)
    assert (len(whole["scopes"]), whole["start_utc"][:10]) == (6, "2026-11-18")


def test_a_round_of_perun_has_its_hosts_and_its_own_total_as_a_fact(call: Call) -> None:
    found = json.loads(call("import", "perun", PERUN, "--json").stdout)
    assert found["labels"] == {"origin": "perun 1.0.0", "project": "pe", "round": "0"}
    assert list_energies(found) == pytest.approx({"gpu": 4507.374, "cpu": 2285.312, "dram": 391.7763})
    assert {scope["host"] for scope in found["scopes"]} == {"node1"}
    assert found["facts"]["perun_energy_kwh"] * 3.6e6 == pytest.approx(7184.4624)
    assert list_codes(found) == []


def test_energies_are_those_of_the_devices_before_pue_and_parts_are_compared_with_the_total(tmp_path: Path) -> None:
    path = tmp_path / "emissions.csv"
    path.write_text(f"{NAMES}\n{HOUR}\n{HOUR.replace('1.0,8,1.0', '1.2,8,1.25')}\n{NOTHING}\n")
    (plain, other), remarks = read_tool_results("codecarbon", path)
    assert "1 of its results have no energy and are left out (first: line 4)" in remarks[0]
    assert [(t.scope, t.joules, t.is_estimate) for t in plain.totals] == [
        ("gpu", 0.8 * 3.6e6, False),
        ("cpu", 0.1 * 3.6e6, True),
        ("dram", 0.1 * 3.6e6, True),
    ]
    assert not plain.doubts
    assert sum(t.joules or 0.0 for t in other.totals) == pytest.approx(1.0 * 3.6e6 / 1.25)
    assert [doubt["code"] for doubt in other.doubts] == ["does-not-add-up.sum", "included.pue"]
    data = json.loads(PERUN.read_text())
    (execution,) = data["nodes"][0].values()
    execution["metadata"] |= {"post-processing.pue": "1.5", "post-processing.power_overhead": "100"}
    path.write_text(json.dumps(data))
    ((found,), _) = read_tool_results("perun", path)
    assert [doubt["code"] for doubt in found.doubts] == ["does-not-add-up.sum", "included.overhead"]


def test_rows_that_a_later_row_of_the_same_run_includes_are_left_out_and_reasons_are_those_of_the_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "emissions.csv"
    half, whole = HOUR.replace("12:00", "11:30").replace("3600,0.4,0.1,0.8,0.1,1.0", "1800,0.2,0.05,0.4,0.05,0.5"), HOUR
    rows = [f"{half},a", f"{whole},a", f"{whole},b", f"{whole.replace('T12', 'T13')},a"]  # flush, stop; others
    path.write_text("\n".join([f"{NAMES},run_id", *rows]))
    results, remarks = read_tool_results("codecarbon", path)
    assert [one.line for one in results] == [3, 4, 5]
    assert "1 of 4 rows are left out" in remarks[0]
    path.write_text(f"{NAMES}\n{HOUR.replace('0.1,0.8,0.1', 'nan,0.8,0.0')}\n")
    ((found,), _) = read_tool_results("codecarbon", path)
    assert [total.reason for total in found.totals] == [
        "",
        "the file states no energy in cpu_energy",
        "the file states 0 kWh in ram_energy",
    ]


BAD = (
    ("codecarbon", f"{NAMES}\n{HOUR.replace('0.8', 'much')}\n", "read-failed.cell", "line 2, column 'gpu_energy'"),
    ("codecarbon", f"{NAMES}\n{HOUR}\n{HOUR.replace(',0.8', ',-0.8')}\n", "read-failed.cell", "line 3"),
    ("codecarbon", f"{NAMES}\n{HOUR.replace('3600', '0')}\n", "read-failed.cell", "column 'duration'"),
    ("codecarbon", f"{NAMES}\n{HOUR.replace('2026-05', 'May')}\n", "read-failed.cell", "column 'timestamp'"),
    ("codecarbon", f"{NAMES}\n{HOUR.replace('8,1.0', '8,0.5')}\n", "read-failed.cell", "column 'pue'"),
    ("codecarbon", f"{NAMES}\n{HOUR.replace('8,1.0', '8,0')}\n", "read-failed.cell", "column 'pue'"),
    ("codecarbon", f"{NAMES}\n{HOUR}\n{HOUR[:-4]}\n", "read-failed.shape", "line 3"),
    ("codecarbon", f"{NAMES}\n{HOUR.replace('0.8', '800')}\n", "read-failed.impossible-power", "line 2"),
    ("codecarbon", f"{NAMES}\n", "read-failed.no-rows", ""),
    ("codecarbon", f"{NAMES}\n{NOTHING}\n", "read-failed.no-energy", ""),
    ("codecarbon", "timestamp,duration,emissions,energy_consumed\n2021-05-01T12:00:00,9,1,2\n", "config.old-file", ""),
    ("codecarbon", "t,w\n1,2\n", "config.no-result", ""),
    ("zeus", "start_time,window_name,elapsed_time,gpu0_energy\n1794961070.1,a,nan,3\n", "read-failed.cell", "line 2"),
    ("zeus", '{"time": 2.0, "gpu_energy": {"0": "x"}}', "read-failed.cell", "gpu_energy.0"),
    ("zeus", '{"time": -1, "gpu_energy": {}}', "config.no-result", ""),
    ("perun", "\x89HDF\r\n", "config.no-result", ""),
    ("perun", "PERUN REPORT\n", "config.no-result", ""),
    ("perun", '{"id": "x"}', "config.no-result", ""),
    ("perun", '{"nodes": [{"a": {"metadata": 3}}], "metrics": []}', "read-failed.no-times", ""),
)


def test_a_bad_file_is_refused_with_its_place(fail: Fail, tmp_path: Path, runs: Path) -> None:
    path, wrong = tmp_path / "file", []
    for tool, text, code, place in BAD:
        path.write_text(text, encoding="latin-1")
        failure = fail("import", tool, path, code=2 if code.startswith("config") else 1)
        if failure.code != code or place not in str(failure.where):
            wrong.append((tool, text[-60:], failure.code, failure.where))
    assert not wrong
    assert not runs.exists()
    for words, code in (
        (("csv", CODECARBON), "config.tool-result"),
        (("zeus", ZEUS, "only=test"), "config.only"),
        (("zeus", ZEUS, "windows=2"), "config.unknown-key"),
        (("perun", PERUN, "--from", "0"), "config.not-for-source"),
        (("perun",), "config.no-file"),
    ):
        assert fail("import", *words).code == code
