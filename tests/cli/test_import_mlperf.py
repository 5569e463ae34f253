from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.instruments.mlperf_bench import write_load, write_mllog, write_session, write_spl

if TYPE_CHECKING:
    from tests.cli.conftest import Call, Fail

SUBMISSION = Path(__file__).parents[3] / "shared" / "data" / "mlperf-power" / "llama2-70b-99-offline"
DETAIL = "mlperf_log_detail.txt"


def test_a_folder_of_a_run_becomes_energy_per_token(call: Call, fail: Fail, tmp_path: Path) -> None:
    folder = tmp_path / "performance" / "run_1"
    folder.mkdir(parents=True)
    write_spl(folder / "spl.txt", ["400"] * 2 + ["1000"] * 6 + ["400"] * 2)
    assert fail("import", "csv", write_load(folder / DETAIL), code=1).code == "read-failed.no-readings"
    found = json.loads(call("import", "mlperf", folder, "--json").stdout)
    assert found["duration_s"] == 4.0
    assert found["per_work"]["tokens"]["value"] == pytest.approx(4.0, rel=0.01)
    assert fail("import", "mlperf").code == "config.no-file"
    assert fail("import", "mlperf", tmp_path / "none", code=1).kind == "unavailable"
    write_spl(folder / "spl.txt", ["400"] * 10, hour=19)
    failure = fail("import", "mlperf", folder, code=1)
    assert failure.code == "read-failed.no-readings"
    assert "clock_offset_s=-25200" in str(failure.next)
    (folder.parent / "ranging").mkdir()
    write_spl(folder.parent / "ranging" / "spl.txt", ["400"])
    write_session(folder.parent / "power" / "server.json")
    assert json.loads(call("import", "mlperf", folder.parent, "--json").stdout)["duration_s"] == 4.0
    for more in (folder.parent / "spl.txt", tmp_path / "spl.txt.gz"):
        write_spl(more, ["400"])
        assert fail("import", "mlperf", folder.parent, more).code == "config.mlperf"


def test_readings_that_cover_a_part_of_the_test_are_refused(fail: Fail, tmp_path: Path) -> None:
    """Clocks that are an hour apart overlap in a test of two hours."""
    write_spl(tmp_path / "spl.txt", ["400"] * 10)
    write_load(tmp_path / DETAIL, begin="05-01-2024 12:00:00.000", end="05-01-2024 14:00:00.000")
    failure = fail("import", "mlperf", tmp_path, code=1)
    assert (failure.code, failure.what) == ("read-failed.no-readings", "the readings do not cover the run")


def test_a_small_computer_has_no_wrong_unit(call: Call, tmp_path: Path) -> None:
    write_spl(tmp_path / "spl.txt", ["5.5"] * 10)
    write_load(tmp_path / DETAIL, "SingleStream", result_query_count=11)
    found = json.loads(call("import", "mlperf", tmp_path, "--json").stdout)
    assert found["per_work"]["samples"]["value"] == pytest.approx(2.0, rel=0.01)
    assert not [c for c in found["checks"] if c["status"] == "failed"]


def test_the_logs_of_all_nodes_belong_to_the_log_of_their_training(call: Call, fail: Fail, tmp_path: Path) -> None:
    powers = tmp_path / "power" / "result_0"
    powers.mkdir(parents=True)
    write_mllog(tmp_path / "result_1.txt", ("run_start", None, {}))
    load = write_mllog(tmp_path / "result_0.txt", *[(key, None, {}) for key in ("run_start", "x", "y", "run_stop")])
    for node in range(3):
        entries = [("power_reading", 5000, {"host": "node_0", "measurement_type": "AC"})] * 6
        write_mllog(powers / f"node_{node}.txt", *entries)
    for subject in (powers, load):
        found = json.loads(call("import", "mlperf", subject, "--json").stdout)
        assert {(s["host"], s["scope"]) for s in found["scopes"]} == {(f"node_{n}", "node.ac") for n in range(3)}
        assert found["energy"]["value"] == pytest.approx(3 * 3 * 5000)
    assert fail("import", "mlperf", powers, "--host", "n1").code == "config.hosts"
    assert fail("import", "mlperf", tmp_path).code == "config.mlperf"


@pytest.mark.system
@pytest.mark.skipif(not SUBMISSION.is_dir(), reason=f"no {SUBMISSION}: published logs are not part of the project")
def test_a_published_submission_has_its_energy_per_token(call: Call) -> None:
    """8 H200, llama2-70b, Offline: 0.2436 J per token at the wall."""
    found = json.loads(call("import", "mlperf", SUBMISSION, "--json").stdout)
    per_token = found["per_work"]["tokens"]
    print(f"{per_token['value']:.4f} J/token")
    assert round(per_token["value"], 4) == 0.2436
    assert 0.0005 < per_token["expanded"] / per_token["value"] < 0.02  # 1.2 %: the analyzer's datasheet, and the edges
    assert found["duration_s"] == pytest.approx(3116.735, abs=0.002)
    assert [(p["name"], round(p["work"]["tokens"] / 1e6, 2)) for p in found["phases"]] == [("test", 78.74)]
