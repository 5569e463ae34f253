"""`joulelab gate`: what runs and commands are judged by, and with which exit code."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.entry import JOULELAB
from tests.report.synthetic import make_run

from joulelab.analysis.results_file import load_result
from joulelab.cli.group import run_commands
from joulelab.report.gate_output import judge_groups
from joulelab.report.group_comparison import RunGroup

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call, Fail

    from joulelab.analysis.result import Result


@pytest.mark.system
def test_runs_are_judged_against_a_baseline(call: Call, runs: Path, tmp_path: Path) -> None:
    base = tmp_path / "kept runs"
    for watts in (299.0, 300.0, 301.0):
        make_run(base, gpu_w=watts, labels={"branch": "main"})
    make_run(base, gpu_w=900.0, end={"exit_code": 1})  # a failed run of a folder is left out
    for watts in (330.0, 331.0):
        make_run(runs, gpu_w=watts, labels={"branch": "mine"})
    same = make_run(runs, gpu_w=300.5, name="same")
    above = json.loads(call("gate", base, "branch=mine", "--json", code=1).stdout)
    assert (above["decision"], above["exit_code"]) == ("above", 1)
    assert above["ratio_interval"][0] > 1.05
    assert (len(above["baseline"]["runs"]), above["baseline"]["left_out"]) == (3, 1)
    (step,) = [line for line in call("gate", base, "branch=mine", code=1).output.splitlines() if line[:3] == "-> "]
    assert step == f"-> joulelab compare '{base}' vs branch=mine"
    compared = json.loads(call(*shlex.split(step)[2:], "--json").stdout)  # it can be pasted
    assert [(len(compared[k]["runs"]), compared[k]["left_out"]) for k in "ab"] == [(3, 1), (2, 0)]
    text = call("gate", base, "same", "--limit", "3%", code=0).output
    assert text.startswith("Not above:")
    assert "a rise of 3.0 % is excluded" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    alone = json.loads(call("gate", same, "branch=mine", "--json", "--limit", "20%", code=0).stdout)
    assert alone["decision"] == "not above"
    two = sorted(path for path in base.iterdir())[:1]
    once = json.loads(call("gate", two[0], same, "--json", code=2).stdout)
    assert (once["decision"], once["reason"]) == ("undecided", "one-run-each")
    text = call("gate", two[0], "same", "--runs", runs, code=2).output
    assert "one run each" in text
    command = shlex.join(load_result(same).command)
    assert f"-> joulelab gate --runs {runs} '{two[0]}' -- {command}\n" in text


def test_runs_without_energy_are_not_counted(call: Call, runs: Path, tmp_path: Path) -> None:
    base = tmp_path / "kept"
    for watts in (299.0, 300.0, 301.0):
        make_run(base, gpu_w=watts)
    lost = make_run(base, gpus=0, cpus=0)
    make_run(runs, gpu_w=300.5, name="same")
    text = call("gate", base, "same", code=0).output
    assert re.search(r"^baseline +3 ", text, re.MULTILINE)
    assert "1 run without a total energy, not counted." in " ".join(text.split())
    assert f"joulelab show {lost.name}" in text


@pytest.mark.parametrize(
    ("given", "lacking", "new"),
    [
        ({"gpus": 0}, ["gpu:0", "gpu:1"], []),
        ({"gpus": 1}, ["gpu:1"], []),
        ({"cpus": 0}, ["cpu:0"], []),
        ({"gpus": 3}, [], ["gpu:2"]),
    ],
)
def test_runs_of_other_devices_are_not_judged(
    call: Call, runs: Path, given: dict[str, Any], lacking: list[str], new: list[str]
) -> None:
    for watts in (299.0, 300.0, 301.0):
        make_run(runs, gpu_w=watts, name="main")
    for watts in (89.0, 90.0, 91.0):
        make_run(runs, cpu_w=watts, name="mine", **given)
    data = json.loads(call("gate", "name=main", "name=mine", "--json", code=2).stdout)
    assert (data["decision"], data["reason"], data["ratio"]) == ("undecided", "scopes", None)
    assert (data["not_in_current"], data["not_in_baseline"]) == (lacking, new)
    text = " ".join(call("gate", "name=main", "name=mine", code=2).output.split())
    assert " + ".join(lacking or new) in text


def test_a_baseline_of_mixed_devices_is_not_judged(call: Call, runs: Path) -> None:
    for watts, gpus in ((299.0, 2), (300.0, 2), (301.0, 0)):
        make_run(runs, gpu_w=watts, gpus=gpus, name="main")
    for watts in (299.0, 300.0, 301.0):
        make_run(runs, gpu_w=watts, name="mine")
    data = json.loads(call("gate", "name=main", "name=mine", "--json", code=2).stdout)
    assert (data["reason"], data["not_in_baseline"], data["not_in_current"]) == ("scopes", ["gpu:0", "gpu:1"], [])


def move_run(run: Result, host: str) -> Result:
    """Return a run as if it had been measured on another host."""
    scopes = tuple(replace(scope, host=host) for scope in run.scopes)
    groups = tuple(replace(group, hosts=(host,) * len(group.scopes)) for group in run.groups)
    return replace(run, host=host, scopes=scopes, groups=groups)


def test_counters_of_one_name_on_two_hosts_are_two_devices(runs: Path) -> None:
    results = tuple(load_result(make_run(runs, cpu_w=watts, gpus=0)) for watts in (89.9, 90.0, 90.1))
    base, same = RunGroup("A", "main", results), RunGroup("B", "mine", results)
    other = RunGroup("B", "mine", tuple(move_run(run, "node2") for run in results))
    near, far = (judge_groups(base, group, 0.05, 0.05).verdict for group in (same, other))
    assert (near.decision, near.reason) == ("not above", "")
    assert near.interval == pytest.approx((1.0, 1.0), abs=0.01)
    assert (far.decision, far.reason) == ("undecided", "meters")
    assert far.interval == pytest.approx((0.92, 1.08), abs=0.01)


def test_runs_without_energy_cannot_be_judged(call: Call, runs: Path) -> None:
    for name in ("a", "b"):
        make_run(runs, gpus=0, cpus=0, name=name)
    assert "joulelab meters" in call("gate", "a", "b", code=2).output
    assert json.loads(call("gate", "a", "b", "--json", code=2).stdout)["ratio"] is None


def test_errors_are_no_answers(fail: Fail, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(runs, name="a")
    assert fail("gate", "none", "a", code=2).code == "not-a-run.unknown"
    assert fail("gate", "a", code=2).code == "usage.gate-runs"
    assert fail("gate", "a", "a", code=2).code == "usage.same-run"
    assert fail("gate", "a", run.name, "--", "true", code=2).code == "usage.gate-runs"
    assert run_commands(["gate", "a", "b", "--limit", "5"]) == 2
    assert "is not a precision" in capsys.readouterr().err


METER = """
import os
from joulelab.core.spec import Accuracy, Spec, Stream
class Steady:
    def streams(self):
        accuracy = Accuracy(gain=0.01, source="datasheet")
        channel = Spec("power_w", "power", "W", "power", update_s=0.05, accuracy=accuracy)
        return [Stream("node", "power", "node.ac", 0.05, (channel,))]
    def read(self, stream): return (float(os.environ.get("WATTS", 1000)),)
    def close(self): pass
def open_meter(config): return Steady()
"""


@pytest.mark.system
def test_a_command_is_repeated_until_the_answer_is_clear(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steady.py").write_text(METER)
    options = ("--meter", str(tmp_path / "steady.py"), "--runs", str(runs))
    script = ["sleep", "0.3"]

    def call(*words: str, code: int) -> tuple[str, str]:
        done = subprocess.run([*JOULELAB, *words], capture_output=True, text=True, cwd=tmp_path, timeout=300)
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout, done.stderr

    def joulelab(*words: str, code: int) -> str:
        return "".join(call(*words, code=code))

    for _ in range(5):  # a busy machine makes them scatter
        joulelab("run", "-q", "--name", "base", *options, "--", *script, code=0)
    monkeypatch.setenv("WATTS", "20000")
    text = joulelab("gate", "name=base", "--limit", "50%", "--at-most", "4", *options, "--", *script, code=1)
    assert "run 3 of at most 4: +" in text
    assert "Above: the energy" in text
    (step,) = re.findall(r"^-> joulelab compare --runs (.*)$", text, re.MULTILINE)
    assert shlex.split(step)[:3] == [str(runs), "name=base", "vs"]
    assert len(shlex.split(step)[3:]) == 3
    failed = joulelab("gate", "name=base", *options, "--", "sh", "-c", "exit 3", code=2)
    assert "the command failed (exit 3), so its energy is not judged" in failed
    # With --json, standard output is the JSON and nothing else, also of an error.
    loud = ("sh", "-c", "echo hi; sleep 0.3")
    out, err = call("gate", "name=base", "--json", "--limit", "50%", "--at-most", "4", *options, "--", *loud, code=1)
    assert json.loads(out)["decision"] == "above"
    assert err.splitlines().count("hi") == 3
    out, err = call("gate", "name=base", "--json", *options, "--", "sh", "-c", "echo hi; exit 3", code=2)
    assert json.loads(out)["error"]["code"] == "workload.failed"
    assert "exit 3" in err
