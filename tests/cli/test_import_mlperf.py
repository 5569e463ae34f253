from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.instruments.mlperf_bench import write_load, write_spl

if TYPE_CHECKING:
    from tests.cli.conftest import Call, Fail

SUBMISSION = Path(__file__).parents[3] / "shared" / "data" / "mlperf-power" / "llama2-70b-99-offline"


def test_a_folder_of_a_run_becomes_energy_per_token(call: Call, fail: Fail, tmp_path: Path) -> None:
    folder = tmp_path / "run_1"
    folder.mkdir()
    write_spl(folder / "spl.txt", ["400"] * 2 + ["1000"] * 6 + ["400"] * 2)
    assert fail("import", "csv", write_load(folder / "mlperf_log_detail.txt"), code=1).code == "read-failed.no-readings"
    found = json.loads(call("import", "mlperf", folder, "--json").stdout)
    assert found["duration_s"] == 4.0
    assert found["per_work"]["tokens"]["value"] == pytest.approx(4.0, rel=0.01)
    assert fail("import", "mlperf").code == "config.no-file"
    assert fail("import", "mlperf", tmp_path / "none", code=1).kind == "unavailable"
    write_spl(folder / "spl.txt", ["400"] * 9, hour=19)
    failure = fail("import", "mlperf", folder, code=1)
    assert failure.code == "read-failed.no-readings"
    assert "clock_offset_s=-25200" in str(failure.next)
    (folder / "ranging").mkdir()
    write_spl(folder / "ranging" / "spl.txt", ["400"])
    assert fail("import", "mlperf", folder).code == "config.mlperf"


@pytest.mark.skipif(not SUBMISSION.is_dir(), reason=f"no {SUBMISSION}: published logs are not part of the project")
def test_a_published_submission_has_its_energy_per_token(call: Call) -> None:
    """8 H200, llama2-70b, Offline: 0.2436 J per token at the wall."""
    found = json.loads(call("import", "mlperf", SUBMISSION, "--json").stdout)
    per_token = found["per_work"]["tokens"]
    print(f"{per_token['value']:.4f} J/token")
    assert round(per_token["value"], 4) == 0.2436
    assert found["duration_s"] == pytest.approx(3116.735, abs=0.002)
    assert [(p["name"], round(p["work"]["tokens"] / 1e6, 2)) for p in found["phases"]] == [("test", 78.74)]
