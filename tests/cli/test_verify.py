from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.hostile.folders import make_run
from tests.instruments.mlperf_bench import write_load, write_session, write_spl

if TYPE_CHECKING:
    from tests.cli.conftest import Call, Fail

PARQUET = "node1/nvml.fast.parquet"


@pytest.fixture
def run(runs: Path) -> Path:
    return make_run(runs)


def change(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def test_a_whole_run_is_verified_file_by_file(call: Call, run: Path) -> None:
    (found,) = json.loads(call("verify", "last", "--json").stdout)
    assert (found["run"], found["status"], found["problems"]) == (run.name, "whole", [])
    files = {file["name"]: file for file in found["files"]}
    size = (run / PARQUET).stat().st_size
    assert files[PARQUET] == {"name": PARQUET, "status": "whole", "size": size, "recorded": size, "rows": 640}
    assert {"run.json", "end.json", "node1/marks/7-7.jsonl"} < files.keys()
    assert f"{run.name}  whole, 7 files" in call("verify", run.name).stdout


def test_damage_ends_with_1_and_names_the_file(call: Call, run: Path, runs: Path) -> None:
    other = make_run(runs)
    change(run / PARQUET)
    (run / "node1" / "marks" / "7-7.jsonl").unlink()
    told = call("verify", run.name, other.name, code=1).stdout
    assert f"{run.name}  damaged, 5 of 7 files are whole" in told
    assert f"damaged  {PARQUET}: it was changed after the run" in told
    assert "damaged  node1/marks/7-7.jsonl: it is missing" in told
    assert f"{other.name}  whole" in told
    found = json.loads(call("verify", run.name, other.name, "--json", code=1).stdout)
    assert [each["status"] for each in found] == ["damaged", "whole"]
    assert ["ee_hpc_wg" in each for each in found] == [False, True]  # what is left of a run has no level


@pytest.mark.parametrize("name", ["run.json", "end.json"])
def test_a_document_that_cannot_be_read_is_damage(call: Call, run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    (found,) = json.loads(call("verify", run, "--json", code=1).stdout)
    assert any(problem.startswith(name) and "FIFO" in problem for problem in found["problems"])


def test_a_run_without_a_manifest_is_not_verifiable(call: Call, run: Path) -> None:
    (run / "manifest.json").unlink()
    (found,) = json.loads(call("verify", run, "--json").stdout)
    assert (found["status"], found["files"]) == ("not verifiable", [])
    assert "not verifiable: it has no manifest" in call("verify", run).stdout
    os.truncate(run / PARQUET, 50)  # that is seen without one
    assert json.loads(call("verify", run, "--json", code=1).stdout)[0]["status"] == "damaged"


def test_a_run_of_0_1_0_that_reports_work_says_that_marks_may_lack(call: Call, run: Path) -> None:
    (run / "manifest.json").unlink()
    end = json.loads((run / "end.json").read_text())
    (run / "end.json").write_text(json.dumps({k: v for k, v in end.items() if k != "files"}))
    (found,) = json.loads(call("verify", run, "--json").stdout)
    assert (found["status"], len(found["problems"])) == ("not verifiable", 1)
    assert "note  the run reports work; lines deleted from its marks" in call("verify", run).stdout


def test_a_run_that_is_not_there_is_refused(fail: Fail, run: Path) -> None:
    assert fail("verify", "nothing", code=1).code == "not-a-run.unknown"


def test_one_damaged_meter_costs_its_scopes_and_the_total(call: Call, run: Path) -> None:
    whole = json.loads(call("show", run, "--json").stdout)
    change(run / PARQUET)
    found = json.loads(call("show", run, "--json").stdout)
    assert found["energy"] is None
    assert [check["code"] for check in found["checks"] if check["status"] == "failed"] == ["damaged"]
    assert [s["scope"] for s in whole["scopes"]] == ["gpu:0", "gpu:1", "cpu:0"]
    assert [s["scope"] for s in found["scopes"]] == ["cpu:0"]
    assert found["scopes"][0]["reading"] == whole["scopes"][2]["reading"]


def test_no_figure_is_made_when_the_interval_may_be_another(call: Call, run: Path) -> None:
    text = (run / "end.json").read_text()
    (run / "end.json").write_text(text.replace("65000000000", "35000000000"))
    found = json.loads(call("show", run, "--json").stdout)
    assert (found["energy"], found["scopes"]) == (None, [])
    assert "damaged" in [check["code"] for check in found["checks"]]


def test_a_newer_manifest_is_refused(fail: Fail, run: Path) -> None:
    (run / "manifest.json").write_text('{"schema": 99, "files": {}}')
    assert fail("verify", run, code=1).code == "newer-schema"


def test_data_without_a_manifest_is_read(call: Call, run: Path) -> None:
    (run / "manifest.json").unlink()
    data = bytearray((run / PARQUET).read_bytes())
    data[4:200] = bytes(196)
    (run / PARQUET).write_bytes(data)
    assert json.loads(call("verify", run, "--json", code=1).stdout)[0]["status"] == "damaged"


# Figures of others.

CODECARBON = Path(__file__).parent / "tool_results" / "codecarbon-3.3.2.csv"
SUBMISSION = Path(__file__).parents[3] / "shared" / "data" / "mlperf-power" / "llama2-70b-99-offline"


def test_a_file_of_codecarbon_is_checked_line_by_line(call: Call, fail: Fail, tmp_path: Path) -> None:
    (found,) = json.loads(call("verify", CODECARBON, "--json").stdout)
    assert (found["kind"], found["status"]) == ("codecarbon", "ok")
    codes = [(check["scope"], check["code"]) for check in found["checks"]]
    assert codes == [
        ("line 3, cpu", "codecarbon.power"),
        ("line 3, ram", "codecarbon.power"),
        ("line 4", "codecarbon.order"),
        ("ram", "codecarbon.constant"),
    ]
    text = call("verify", CODECARBON).stdout
    assert "no figure is wrong for certain; warnings: 3" in text
    assert max(map(len, text.splitlines())) <= 80
    wrong = tmp_path / "emissions.csv"
    header, first, *_ = CODECARBON.read_text().splitlines()
    wrong.write_text("\n".join([header, first, first, first.replace("3.8724148622764124e-05", "0.5"), f"{first},1"]))
    (found,) = json.loads(call("verify", wrong, "--json", code=1).stdout)
    failed = {(check["scope"], check["code"]) for check in found["checks"] if check["status"] == "failed"}
    assert {("line 3", "codecarbon.duplicate"), ("line 4", "codecarbon.sum"), ("line 5", "codecarbon.cell")} <= failed
    old = tmp_path / "old.csv"  # CodeCarbon 1
    old.write_text(
        "timestamp,project_name,duration,emissions,energy_consumed,country_name\n2025-01-01T10:00:00,p,60,0.1,0.4,X\n"
    )
    (found,) = json.loads(call("verify", old, "--json").stdout)
    assert (found["checks"], found["compared"]) == ([], {"sum": 0, "power": 0, "rate": 0, "intensity": 1})
    text = call("verify", old).stdout
    assert "compared emissions with energy\n" in text
    assert "missing  figures to compare parts with total energy (1 of 1 lines)" in text
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert fail("verify", tmp_path / "other.csv").code == "config.not-verifiable"
    (tmp_path / "empty.csv").write_text(header)
    assert fail("verify", tmp_path / "empty.csv").code == "config.no-lines"


def test_a_submission_is_computed_again(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "performance" / "run_1"
    folder.mkdir(parents=True)
    write_spl(folder / "spl.txt", ["400"] * 2 + ["1000"] * 6 + ["400"] * 2)
    write_load(folder / "mlperf_log_detail.txt")
    write_session(folder.parent / "power" / "server.json")
    (found,) = json.loads(call("verify", folder, "--json").stdout)
    assert found["per_work"]["tokens"]["value"] == pytest.approx(4.0, rel=0.01)
    states = {check["code"]: check["status"] for check in found["checks"]}
    assert states["mlperf.rate"] == states["mlperf.gaps"] == states["mlperf.window"] == "ok"
    assert states["mlperf.channels"] == "warning"  # its only channel has 1 W
    text = call("verify", folder).stdout
    assert "no check failed; warnings: 2" in text
    assert states["mlperf.no-controller"] == "warning"  # without client.json
    assert max(map(len, text.replace(str(folder), "").splitlines())) <= 80
    assert states["mlperf.product"] == "ok"
    write_spl(folder / "spl.txt", ["400"] * 2 + ["1000"] * 6 + ["400"] * 2, scale=1000.0)  # power in kW
    (folder / "mlperf_log_summary.txt").write_text("Scenario : Offline\nTokens per second: 999.5\nResult is : VALID\n")
    (found,) = json.loads(call("verify", folder, "--json", code=1).stdout)
    failed = {check["code"]: check["numbers"] for check in found["checks"] if check["status"] == "failed"}
    assert failed.keys() == {"mlperf.product", "mlperf.summary"}
    assert failed["mlperf.product"]["share"] == pytest.approx(0.001, rel=1e-3)
    assert failed["mlperf.summary"] == {"detail": 250.0, "summary": 999.5}
    write_spl(folder / "spl.txt", ["400"] * 2 + ["1000"] * 6 + ["400"] * 2)
    (folder / "mlperf_log_summary.txt").unlink()
    (folder / "mlperf_log_detail.txt").unlink()
    (found,) = json.loads(call("verify", folder.parent.parent, "--json", code=1).stdout)
    assert {check["code"] for check in found["checks"] if check["status"] == "failed"} == {"mlperf.no-window"}


@pytest.mark.system
@pytest.mark.skipif(not SUBMISSION.is_dir(), reason=f"no {SUBMISSION}: published logs are not part of the project")
def test_a_published_submission_follows_from_its_raw_data(call: Call) -> None:
    """8 H200, llama2-70b, Offline: all figures follow; the paths in one log were replaced, so its hash differs."""
    (found,) = json.loads(call("verify", SUBMISSION, "--json", code=1).stdout)
    assert round(found["per_work"]["tokens"]["value"], 4) == 0.2436
    states = {check["code"]: check["status"] for check in found["checks"]}
    assert {code for code, status in states.items() if status == "failed"} == {"mlperf.changed"}
    (changed,) = [check for check in found["checks"] if check["code"] == "mlperf.changed"]
    assert changed["scope"] == "run_1/mlperf_log_detail.txt"
    numbers = {check["code"]: check["numbers"] for check in found["checks"]}
    assert numbers["mlperf.mean"]["found_w"] == pytest.approx(5639.494799, abs=1e-4)


def test_a_run_has_a_level_and_what_the_next_one_needs(call: Call, run: Path) -> None:
    (found,) = json.loads(call("verify", run, "--json").stdout)
    assert found["ee_hpc_wg"]["level"] == 0  # GPUs only: no meter of the whole node
    needs = {row["aspect"]: row["needs"] for row in found["ee_hpc_wg"]["aspects"]}
    assert needs["point"] == "a meter before the power supplies"
    assert {row["aspect"] for row in found["mlperf"]} == {"wall", "second", "whole", "analyzer", "ptdaemon"}
    text = call("verify", run, "--machine-nodes", "4").stdout
    assert "EE HPC WG: no level." in text
    assert max(map(len, text.splitlines())) <= 80
    assert "EE HPC WG" not in call("verify", run, run).stdout  # a list of runs stays short
