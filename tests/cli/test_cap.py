"""`joulelab cap`, end to end on the twin: caps are set, kept, and come back whatever happens."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from tests.cli.capped import FOUND_W, CapBench, kill
from tests.recorder.driving import rows_of
from tests.waiting import until

from joulelab.core.clock import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system
SLEEP = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[CapBench]:
    with CapBench(tmp_path) as made:
        yield made


def test_a_command_runs_under_its_cap_and_the_found_one_comes_back(bench: CapBench) -> None:
    look = (
        "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetPowerManagementLimit(n.nvmlDeviceGetHandleByIndex(1)))"
    )
    done = bench.call("cap", "170", "--", sys.executable, "-c", f"{look}; raise SystemExit(7)", code=7)
    assert done.stdout.strip() == "170000"
    assert bench.caps() == [FOUND_W, FOUND_W]
    assert not bench.journals()
    events = [e for e in bench.events() if e["event"] in ("cap-set", "cap-restored")]
    assert [(e["scope"], e["found"]) for e in events if e["event"] == "cap-set"] == [("gpu:0", 250), ("gpu:1", 250)]
    assert [e["outcome"] for e in events if e["event"] == "cap-restored"] == ["restored", "restored"]


def test_some_gpus_a_share_and_the_cpus(bench: CapBench) -> None:
    workload = bench.start("cap", "--gpu", "1", "50%", "--cpu", "120", "--", *SLEEP)
    bench.wait_caps(FOUND_W, 130.0)
    zone = next((bench.state.parent.parent / "powercap").glob("intel-rapl/intel-rapl:0"))
    until(lambda: (zone / "constraint_0_power_limit_uw").read_text().strip() == "120000000")
    workload.send_signal(signal.SIGTERM)
    assert workload.wait(120) == -signal.SIGTERM
    assert bench.caps() == [FOUND_W, FOUND_W]
    assert (zone / "constraint_0_power_limit_uw").read_text().strip() == "350000000"


def test_hidden_gpus_are_left_alone(bench: CapBench) -> None:
    bench.environ["CUDA_VISIBLE_DEVICES"] = "1"
    workload = bench.start("cap", "170", "--", *SLEEP)
    bench.wait_caps(FOUND_W, 170.0)
    workload.send_signal(signal.SIGINT)
    workload.wait(120)
    bench.wait_caps(FOUND_W, FOUND_W)


def test_what_cannot_be_set_is_refused_and_nothing_runs(bench: CapBench) -> None:
    cases = [
        (("90",), "refused", "100 to 260 W"),
        (("300",), "refused", "100 to 260 W"),
        (("--gpu", "7", "170"), "config", "'7'"),
        (("a lot",), "config.cap", "'a lot'"),
        ((), "usage.no-cap", ""),
        (("--gpu", "0", "--cpu", "100"), "usage.no-cap", "--gpu"),
        (("170", "180"), "usage.too-many-words", "'180'"),
    ]
    bench.refuse("cap", [((*words, "--", "touch", "ran"), *rest) for words, *rest in cases], code=125)
    assert not (bench.folder / "ran").exists()
    for gpu in range(bench.gpus):
        bench.truth.change_flaws(gpu, refuse_caps=True)
    # Both ways to proceed are named.
    cases = [(("170", "--", "touch", "ran"), "denied", both) for both in ("root", "capd")]
    bench.refuse("cap", cases, code=125)
    assert not (bench.folder / "ran").exists()


def test_a_second_writer_is_told_who_holds_the_gpu(bench: CapBench) -> None:
    bench.start("cap", "170", "--", *SLEEP)
    bench.wait_caps(170.0, 170.0)
    done = bench.call("cap", "200", "--", "true", code=125)
    assert "time.sleep" in done.stderr, "its command"
    status = json.loads(bench.call("cap", "status", "--json").stdout)
    assert all(d["holder"] for d in status["devices"] if d["scope"] == "gpu:0" and d["kind"] == "power")
    assert "gpu:0" in bench.call("cap", "status").stdout
    assert bench.caps() == [170.0, 170.0]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_joulelab_ends_by_a_signal(bench: CapBench, number: signal.Signals) -> None:
    joulelab = bench.start("cap", "170", "--", *SLEEP)
    assert joulelab.stdout is not None
    assert joulelab.stdout.readline() == "up\n"
    assert bench.caps() == [170.0, 170.0]
    joulelab.send_signal(number)
    assert joulelab.wait(120) == -number
    bench.wait_caps(FOUND_W, FOUND_W)
    until(lambda: not bench.journals())
    if number == signal.SIGKILL:
        os.killpg(joulelab.pid, signal.SIGKILL)  # the workload went on


def test_a_killed_keeper_is_replaced_and_the_run_says_so(bench: CapBench) -> None:
    script = "import sys; print('up', flush=True); sys.stdin.readline()"
    joulelab = bench.start("cap", "170", "--", sys.executable, "-c", script, stdin=-1)
    assert joulelab.stdout is not None
    assert joulelab.stdin is not None
    joulelab.stdout.readline()
    first = bench.keeper()
    kill(first)
    until(lambda: bench.journals() and bench.keeper() != first and bench.caps() == [170.0, 170.0])
    joulelab.stdin.write("\n")
    joulelab.stdin.flush()
    assert joulelab.wait(120) == 0
    assert bench.caps() == [FOUND_W, FOUND_W]
    assert any(check["name"] == "keeper" for check in bench.checks())


def test_all_killed_at_once_the_next_start_puts_back(bench: CapBench) -> None:
    joulelab = bench.start("cap", "170", "--", *SLEEP)
    bench.wait_caps(170.0, 170.0)
    keeper = bench.keeper()
    joulelab.send_signal(signal.SIGSTOP)  # so that it starts no other keeper
    kill(keeper)
    os.killpg(joulelab.pid, signal.SIGKILL)
    joulelab.wait(120)
    assert bench.caps() == [170.0, 170.0]
    assert bench.journals()
    status = json.loads(bench.call("cap", "status", "--json").stdout)
    assert [d["scope"] for d in status["devices"] if d["leftover"]] == ["gpu:0", "gpu:1"]
    done = bench.call("ls")
    assert "gpu:0" in done.stderr
    assert bench.caps() == [FOUND_W, FOUND_W]
    assert not bench.journals()
    assert json.loads(bench.call("cap", "restore", "--json").stdout) == []


def states(bench: CapBench) -> list[Path]:
    return list((bench.folder / "runs").glob("*/*/nvml.state.*.journal"))


def test_a_cap_that_somebody_else_changes_is_left_and_marked(bench: CapBench) -> None:
    script = "import sys; print('up', flush=True); sys.stdin.readline()"
    joulelab = bench.start("cap", "170", "--", sys.executable, "-c", script, stdin=-1)
    assert joulelab.stdout is not None
    assert joulelab.stdin is not None
    joulelab.stdout.readline()
    bench.truth.set_cap(0, 200.0)
    changed = monotonic_ns()
    until(lambda: sum(row[1] > changed for file in states(bench) for row in rows_of(file)) >= 4)  # of two GPUs
    joulelab.stdin.write("\n")
    joulelab.stdin.flush()
    _, told = joulelab.communicate(timeout=120)
    assert bench.caps() == [200.0, FOUND_W]
    assert "200" in told
    assert any("200 W" in check["message"] for check in bench.checks() if check["name"] == "cap")


def test_a_gpu_that_is_lost_keeps_its_journal_and_the_others_come_back(bench: CapBench) -> None:
    script = "import sys; print('up', flush=True); sys.stdin.readline()"
    joulelab = bench.start("cap", "170", "--", sys.executable, "-c", script, stdin=-1)
    assert joulelab.stdout is not None
    joulelab.stdout.readline()
    bench.truth.change_flaws(0, lost_at_s=bench.truth.count_seconds())
    _, told = joulelab.communicate("\n", timeout=120)
    assert joulelab.returncode == 0
    assert "gpu:0" in told
    assert bench.caps()[1] == FOUND_W
    assert len(bench.journals()) == 1
    again = bench.call("cap", "150", "--", "true")
    assert "gpu:0" in again.stderr
    bench.truth.change_flaws(0, lost_at_s=None)
    bench.call("ls")
    assert bench.caps() == [FOUND_W, FOUND_W]
