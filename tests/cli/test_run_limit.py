"""`joulelab run --stop-at`: a command ends at its limit, and never because a meter fails."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from joulelab.analysis.results_file import load_result
from joulelab.report.limit_text import find_used_energy, list_limit_facts
from joulelab.store.run_folder import list_runs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

METER = """
import time
from joulelab.core.errors import ReadFailed
from joulelab.core.spec import Accuracy, Spec, Stream
class Steady:
    def __init__(self, fails_after_s): self.until = time.monotonic() + fails_after_s
    def streams(self):
        accuracy = Accuracy(gain=0.01, source="datasheet")
        channel = Spec("power_w", "power", "W", "power", update_s=0.05, accuracy=accuracy)
        return [Stream("node", "power", "node.ac", 0.05, (channel,))]
    def read(self, stream):
        if time.monotonic() > self.until: raise ReadFailed("the cable is out")
        return (1000.0,)
    def close(self): pass
def open_meter(config): return Steady(config.get("fails_after_s", 1e9))
"""
# joulelab, for which a limit is lost after 1 s without readings.
CODE = """
import os; os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
from joulelab.cli import main
from joulelab.run import energy_limit
energy_limit.LOST_S = 1.0
main()
"""
# A workload that ends cleanly at its limit: it asks, and it handles the signal.
ASKING = """
import json, signal, sys, time, joulelab
found = {"first": joulelab.remaining().share, "signal": 0}
def stop(number, frame):
    found["signal"], found["left"] = number, joulelab.remaining(is_fresh=True).is_reached
    json.dump(found, open(sys.argv[1], "w")); sys.exit(3)
signal.signal(signal.SIGUSR1, stop)
with joulelab.phase("warm-up"): time.sleep(1.0)
with joulelab.phase("train"): time.sleep(300)
"""

# A workload that ends when its limit is not watched any more: how soon that is depends on how busy the machine is.
UNTIL_LOST = "import time, joulelab\nwhile joulelab.remaining(is_fresh=True).is_watched: time.sleep(0.1)"


def run_limited(folder: Path, *words: str, fails_after_s: float = 1e9) -> subprocess.CompletedProcess[str]:
    (folder / "steady.py").write_text(METER)
    entry = f'[meters.steady]\nmeter = "{folder / "steady.py"}"\nfails_after_s = {fails_after_s}\n'
    site = '[site]\nzone = "DE"\nprice = "0.30 EUR"\n'
    (folder / "joulelab.toml").write_text(entry + site)
    environ = os.environ | {"JOULELAB_RUNS": str(folder / "runs"), "JOULELAB_CONFIG": str(folder / "joulelab.toml")}
    command = [sys.executable, "-c", CODE, "run", "--meter", "steady", *words]
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_ends_at_its_limit_with_its_own_exit_code(tmp_path: Path) -> None:
    """A limit of CO2e for one phase: 0.2 g are about 1.9 kJ in Germany, 1.9 s at 1 kW."""
    (tmp_path / "work.py").write_text(ASKING)
    words = ["--stop-at", "train=0.2g", "--stop-at", "100kWh", "--then", "SIGUSR1"]
    done = run_limited(tmp_path, *words, "--", sys.executable, "work.py", str(tmp_path / "found.json"))
    assert done.returncode == 3, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == {"first": 1.0, "signal": signal.SIGUSR1, "left": True}
    assert "limit of 0.2 g CO2e in train: SIGUSR1 is sent when it is reached (counted: node.ac, middle" in done.stderr
    assert "the limit of 0.2 g CO2e in train is reached" in done.stderr
    (run,) = list_runs(tmp_path / "runs")
    assert not (run / "limit.json").exists()
    result = load_result(run)
    check = next(check for check in result.checks if check.code == "limit.reached")
    used = find_used_energy(result, "train")
    assert used is not None
    print(f"limit {check.numbers['limit_j']:.0f} J, used {used.value:.0f} J")
    assert used.value >= 0.9 * check.numbers["limit_j"]
    assert list_limit_facts(result)[0][1].startswith("0.2 g CO2e in train reached after ")
    assert "0.2 g CO2e in train reached after" in done.stderr


def test_a_meter_that_fails_ends_no_command(tmp_path: Path) -> None:
    command = ["--stop-at", "300kJ", "--then", "touch never", "--", sys.executable, "-c", UNTIL_LOST]
    done = run_limited(tmp_path, *command, fails_after_s=3.0)
    assert done.returncode == 0, done.stderr
    lost = r"the limit of 300 kJ (can no longer|cannot) be watched: .*; the command goes on"  # a busy machine: cannot
    assert re.search(lost, done.stderr), done.stderr
    assert not (tmp_path / "never").exists()
    (run,) = list_runs(tmp_path / "runs")
    assert any(check.code == "limit.lost" for check in load_result(run).checks)


def test_a_command_runs_at_the_limit_and_grace_ends_in_a_kill(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
    words = ["--stop-at", "1kJ", "--grace", "0.5s", "--then", 'echo "$JOULELAB_WORKLOAD_PID" > told']
    done = run_limited(tmp_path, *words, "--", sys.executable, "-c", deaf)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert int((tmp_path / "told").read_text()) > 0
    assert "SIGKILL is sent" in done.stderr
