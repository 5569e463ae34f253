from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.report.synthetic import HOST, make_run
from tests.waiting import until

if TYPE_CHECKING:
    from tests.cli.conftest import Fail

pytestmark = pytest.mark.system

SCRIPT = [sys.executable, "-c", "from joulelab.cli import main; main()", "mark"]
# Gets a signal at the very moment when its command has started.
SIGNALLED = """
import os, signal
from joulelab.cli import main
from joulelab.run import workload_process
start = workload_process.start_workload
def start_and_signal(*arguments):
    pid = start(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)
    return pid
workload_process.start_workload = start_and_signal
main()
"""


@pytest.fixture
def recorded(runs: Path) -> dict[str, str]:
    run = make_run(runs, state="live", gpus=0, cpus=0)
    return {"JOULELAB_RUN": str(run), "JOULELAB_HOST": HOST}


def lines(recorded: dict[str, str]) -> list[dict[str, Any]]:
    folder = Path(recorded["JOULELAB_RUN"]) / HOST / "marks"
    found = [json.loads(line) | {"file": p.name} for p in folder.glob("*.jsonl") for line in p.read_text().splitlines()]
    return sorted(found, key=lambda line: line["t"])


def mark(recorded: dict[str, str], *words: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*SCRIPT, *words], env=os.environ | recorded | more, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def test_marks_switch_the_phase_of_the_calling_script(recorded: dict[str, str]) -> None:
    for words in (["load"], ["epoch", "--n", "3"], ["--end"]):
        assert mark(recorded, *words).stdout == ""
    found = lines(recorded)
    assert [(m["mark"], m["name"], m["n"]) for m in found] == [
        ("switch", "load", None),
        ("switch", "epoch", 3),
        ("switch", None, None),
    ]
    assert len({m["file"] for m in found}) == 1
    assert found[0]["file"].startswith(f"sh-{os.getpid()}-")


def test_work_comes_before_the_switch(recorded: dict[str, str]) -> None:
    mark(recorded, "next", "--work", "samples=64", "--work", "samples=6", "--work", "tokens=1e3")
    first, second = lines(recorded)
    assert (first["mark"], first["amounts"]) == ("work", {"samples": 70.0, "tokens": 1000.0})
    assert (second["mark"], second["name"]) == ("switch", "next")


def test_facts_are_told_before_all_else(recorded: dict[str, str]) -> None:
    facts = ("data=cifar-10", "accuracy=0.91", "epochs=3", "real=true", "at=a=b", "ver=007", "commit=123e4567")
    facts += ("of=inf", "short=12e4", "lr=1e-05")
    said = mark(recorded, "next", *(word for fact in facts for word in ("--fact", fact)), "--json").stderr
    first, second = lines(recorded)
    told = {"data": "cifar-10", "accuracy": 0.91, "epochs": 3, "real": True, "at": "a=b", "ver": "007"}
    told |= {"commit": "123e4567", "of": "inf", "short": "12e4", "lr": 1e-05}
    assert (first["mark"], first["facts"], second["mark"]) == ("fact", told, "switch")
    assert json.loads(said)["facts"] == told
    mark(recorded, "--fact", "data=x", LOCAL_RANK="1")
    mark(recorded, "--fact", "data=mnist")
    assert [m["facts"]["data"] for m in lines(recorded) if m["mark"] == "fact"] == ["cifar-10", "mnist"]


def test_a_command_is_a_phase_and_its_exit_code_is_ours(recorded: dict[str, str]) -> None:
    code = "import sys; print(sys.argv[1:]); sys.exit(7)"
    done = mark(recorded, "step", "--n", "1", "--", sys.executable, "-c", code, "--n", "--", "-x", code=7)
    assert done.stdout == "['--n', '--', '-x']\n"
    begin, end = lines(recorded)
    assert (begin["mark"], begin["name"], begin["n"]) == ("begin", "step", 1)
    assert (end["mark"], end["id"]) == ("end", begin["id"])


def test_work_of_a_command_belongs_to_its_phase(recorded: dict[str, str]) -> None:
    mark(recorded, "step", "--work", "samples=10", "--", "true")
    begin, work, end = lines(recorded)
    assert work["phase"] == begin["id"] == end["id"]
    assert work["amounts"] == {"samples": 10.0}
    mark(recorded, "step", "--work", "samples=10", "--", "false", code=1)
    assert len([m for m in lines(recorded) if m["mark"] == "work"]) == 1  # what failed did no work


def test_signals_reach_the_command_and_its_death_is_repeated(recorded: dict[str, str], tmp_path: Path) -> None:
    started = tmp_path / "started"
    mark(recorded, "step", "--", "sh", "-c", "kill -9 $$", code=-9)
    process = subprocess.Popen(
        [*SCRIPT, "step", "--", "sh", "-c", f"touch {started}; exec sleep 600"], env=os.environ | recorded
    )
    until(lambda: len(lines(recorded)) == 3 and started.exists())
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == -signal.SIGTERM
    assert lines(recorded)[-1]["mark"] == "end"


def test_a_signal_right_after_the_start_reaches_the_command(recorded: dict[str, str]) -> None:
    words = [sys.executable, "-c", SIGNALLED, "mark", "step", "--", "sleep", "600"]
    assert subprocess.run(words, env=os.environ | recorded, check=False).returncode == -signal.SIGTERM
    assert [line["mark"] for line in lines(recorded)] == ["begin", "end"]


def test_a_command_that_does_not_exist_is_127(recorded: dict[str, str]) -> None:
    assert "cannot be started" in mark(recorded, "step", "--", "/no/such", code=127).stderr


def test_outside_a_run_it_says_nothing_and_runs_the_command() -> None:
    outside = {"JOULELAB_RUN": "", "JOULELAB_HOST": ""}
    done = mark(outside, "load", "--work", "samples=1")
    assert done.stdout + done.stderr == ""
    assert mark(outside, "load", "-v").stderr.endswith("nothing is marked\n-> joulelab run -- CMD\n")
    assert mark(outside, "load", "--", "echo", "hello").stdout == "hello\n"
    assert json.loads(mark(outside, "load", "--json").stderr)["recorded"] is False


def test_other_ranks_mark_no_phases(recorded: dict[str, str]) -> None:
    mark(recorded, "load", "--work", "samples=1", LOCAL_RANK="1")
    assert [m["mark"] for m in lines(recorded)] == ["work"]


def test_a_script_does_not_fail_by_its_marks(recorded: dict[str, str]) -> None:
    folder = Path(recorded["JOULELAB_RUN"]) / HOST / "marks"
    folder.rmdir()
    assert mark(recorded, "load").stderr == ""
    folder.mkdir()
    # A folder where its file should be: no mark can be written, whoever tries.
    stat = Path("/proc/self/stat").read_text()
    ticks = stat[stat.rindex(")") + 1 :].split()[19]
    (folder / f"sh-{os.getpid()}-{ticks}.jsonl").mkdir()
    assert "nothing is marked" in mark(recorded, "load").stderr


def test_wrong_marks(fail: Fail) -> None:
    for words, code in (
        ((), "usage.no-name"),
        (("x", "--end"), "usage.exclusive"),
        (("--", "true"), "usage.no-name"),
        (("x", "y"), "usage"),
        (("--fact", "data"), "usage"),
    ):
        assert fail("mark", *words).code == code
