"""`joulelab run`, end to end: on this machine, without meters as far as it has none, and on the twin."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.cli.entry import JOULELAB

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call

pytestmark = pytest.mark.system

# A meter that exists everywhere and tells no energy.
NO_POWER = ["--meter", "host"]


def joulelab(runs: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    environ = dict(os.environ)
    environ |= {"JOULELAB_RUNS": str(runs), "COLUMNS": "80"}
    done = subprocess.run(
        [*JOULELAB, *words], env=environ, capture_output=True, text=True, cwd=runs.parent, timeout=300
    )
    assert done.returncode == code, done.stderr
    return done


def test_without_a_meter_it_runs_and_prints_no_energy(runs: Path) -> None:
    done = joulelab(runs, "run", *NO_POWER, "-o", "result.json", "--", "sh", "-c", "echo out; echo err >&2")
    assert done.stdout == "out\n"
    assert done.stderr.startswith("err\n")
    assert "energy     no power meter" in done.stderr
    assert not re.search(r"\d\s*[kMm]?J\b", done.stderr)
    assert "joulelab twin -- joulelab run --" in done.stderr
    assert "exit 0" in done.stderr
    [folder] = runs.iterdir()
    assert (folder / "results.json").is_file()
    assert f"runs/{folder.name}" in done.stderr
    assert json.loads((runs.parent / "result.json").read_text())["exit_code"] == 0


def test_json_comes_after_the_output_of_the_command(runs: Path) -> None:
    done = joulelab(runs, "run", *NO_POWER, "--name", "n", "--label", "a=b", "--json", "--", "echo", "out")
    out, _, rest = done.stdout.partition("\n")
    assert out == "out"
    data = json.loads(rest)
    assert data["name"] == "n"
    assert data["labels"] == {"a": "b"}
    assert data["energy"] is None
    assert data["outcome"] == "exit"
    assert data["folder"].endswith(data["run"])
    assert done.stderr == ""


def test_quiet_prints_nothing_and_options_of_the_command_are_its_own_even_without_dashes(runs: Path) -> None:
    code = "import sys; print(sys.argv[1:]); sys.exit(3)"
    words = ("run", "--quiet", *NO_POWER, sys.executable, "-c", code, "--name", "x", "-q", "--json")
    done = joulelab(runs, *words, code=3)
    assert (done.stdout, done.stderr) == ("['--name', 'x', '-q', '--json']\n", "")


def test_endings_are_repeated(runs: Path) -> None:
    joulelab(runs, "run", "-q", *NO_POWER, "--", "sh", "-c", "kill -TERM $$", code=-15)
    done = joulelab(runs, "run", *NO_POWER, "--", "/no/such/command", code=127)
    assert done.stderr.startswith("joulelab: /no/such/command ")
    done = joulelab(runs, "run", "--json", *NO_POWER, "--", "/", code=126)
    data = json.loads(done.stdout)
    assert (data["outcome"], data["error"]["code"]) == ("not-started", "workload.not-started")
    assert data["error"]["what"] in done.stderr


def test_a_store_that_cannot_be_written_does_not_stop_the_command(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = os.environ | {"JOULELAB_RUNS": str(tmp_path / "file" / "runs")}
    done = subprocess.run([*JOULELAB, "run", "--", "echo", "out"], env=environ, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout == "out\n"
    assert str(tmp_path / "file" / "runs") in done.stderr


def test_a_result_that_cannot_be_shown_does_not_change_the_exit_code(runs: Path) -> None:
    done = joulelab(runs, "run", *NO_POWER, "-o", "/no/such/folder/x.json", "--", "sh", "-c", "exit 5", code=5)
    assert "/no/such/folder/x.json" in done.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="the twin's NVML library is built with cc, which is not here")
def test_on_the_twin_every_command_works(runs: Path, tmp_path: Path, call: Call) -> None:
    script = tmp_path / "script.sh"
    words = shlex.join(JOULELAB)
    script.write_text(f"{words} mark load\nsleep 0.2\n{words} mark predict --work samples=10 -- sleep 0.2\n")
    twin = ("twin", "--gpus", "2", "--gpu-model", "v100", "--profile", "constant:level=0.5", "--")
    first = joulelab(runs, *twin, *JOULELAB, "run", "--json", "--name", "a", "--idle", "200ms", "--", "sh", str(script))
    data = json.loads(first.stdout)
    assert [s["scope"] for s in data["scopes"]][:2] == ["gpu:0", "gpu:1"]
    assert data["energy"]["value"] > 0
    assert data["energy"]["expanded"] > 0
    assert [p["title"] for p in data["phases"]] == ["load", "predict"]
    assert data["work"] == {"samples": 10.0}
    second = joulelab(runs, *twin, *JOULELAB, "run", "--name", "b", "--", "sleep", "0.3")
    assert re.search(r"^energy +\d", second.stderr, re.MULTILINE)
    assert re.search(r"^gpu \(2\) +\d", second.stderr, re.MULTILINE)
    assert "joulelab show" in second.stderr
    shown = json.loads(call("show", "a", "--json").stdout)
    assert shown["energy"]["value"] == pytest.approx(data["energy"]["value"], rel=1e-9)
    assert "B " in call("compare", "a", "b").stdout
    assert call("ls").stdout.count("exit 0") == 2
    assert "gpu:0,1" in joulelab(runs, *twin, *JOULELAB, "meters").stdout
    assert "refresh" in joulelab(runs, *twin, *JOULELAB, "doctor", "nvml", "--for", "300ms").stdout
