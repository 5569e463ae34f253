from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from tests.hostile.folders import make_run

if TYPE_CHECKING:
    from pathlib import Path

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
