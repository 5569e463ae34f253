"""measure(), phase and work as other processes meet them: scripts, children, ranks, recorded runs; and their cost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from tests.recorder.driving import FAKE, SRC
from tests.run.supervised import Bench, marks, recorders_in
from tests.waiting import until

import joulelab
from joulelab.store.run_folder import RunState, list_runs, read_end, read_run_state

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    # Without what measures coverage, too: it imports a lot and takes its time.
    base = {k: v for k, v in os.environ.items() if not k.startswith(("JOULELAB", "COVERAGE"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**base, "PYTHONPATH": SRC, **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


ARGUMENTS = f"meters=[dict(meter={FAKE!r})]"


def test_a_process_that_ends_without_leaving_its_block_closes_the_run(tmp_path: Path) -> None:
    code = f"import joulelab\njoulelab.measure('x', {ARGUMENTS}).__enter__()\n"
    failed = python(f"{code}raise KeyError('y')\n", JOULELAB_RUNS=str(tmp_path))
    assert failed.returncode == 1
    (run,) = list_runs(tmp_path)
    assert read_run_state(run) is RunState.CLOSED
    assert (read_end(run) or {})["exit_code"] == 1
    assert recorders_in(run) == []


def test_the_recorder_ends_with_a_process_that_never_left_its_block(tmp_path: Path) -> None:
    code = f"import joulelab, os\nm = joulelab.measure('x', {ARGUMENTS})\nm.__enter__()\nos._exit(0)\n"
    done = python(code, JOULELAB_RUNS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (run,) = list_runs(tmp_path)
    until(lambda: read_run_state(run) is RunState.KILLED and recorders_in(run) == [])
    time.sleep(0.3)  # it may have been about to write its first rows when its owner ended
    until(lambda: recorders_in(run) == [])
    assert read_run_state(run) is RunState.KILLED


def test_children_of_a_measured_process_mark_its_run(tmp_path: Path) -> None:
    code = f"""
import joulelab, multiprocessing, subprocess, sys

def worker():
    for _ in range(100):
        joulelab.work(samples=1)

if __name__ == "__main__":
    with joulelab.measure("x", {ARGUMENTS}) as m:
        for how in ("fork", "forkserver"):
            p = multiprocessing.get_context(how).Process(target=worker)
            p.start(); p.join()
        child = "import joulelab\\nwith joulelab.measure('child'):\\n  [joulelab.work(samples=1) for _ in range(100)]"
        subprocess.run([sys.executable, "-c", child], check=True)
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    base = dict(os.environ)
    environ = {**base, "PYTHONPATH": SRC, "JOULELAB_RUNS": str(tmp_path / "runs")}
    subprocess.run([sys.executable, str(script)], env=environ, check=True, timeout=300)
    (run,) = list_runs(tmp_path / "runs")
    assert sum(w["amounts"]["samples"] for w in marks(run, "work")) == 300
    assert [b["name"] for b in marks(run, "begin")] == ["child"]


def test_other_ranks_are_inert(tmp_path: Path) -> None:
    code = f"import joulelab\nwith joulelab.measure('x', {ARGUMENTS}) as m: pass\nprint(m.run, m.energy)"
    done = python(code, JOULELAB_RUNS=str(tmp_path / "runs"), LOCAL_RANK="1")
    assert done.stdout.split() == ["None", "None"], done.stderr
    assert not (tmp_path / "runs").exists()


def test_inside_joulelab_run_a_block_is_a_phase(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    code = (
        "import joulelab, time\n"
        "with joulelab.measure('block') as m: time.sleep(0.3); joulelab.work(samples=2)\n"
        "print(m.energy.value / m.duration_s, m.run)"
    )
    done = bench.run(sys.executable, "-c", code)
    watts, run = done.stdout.split()
    assert float(watts) == pytest.approx(200, rel=0.12)
    assert run == str(bench.run_folder)
    assert [m["name"] for m in marks(bench.run_folder, "begin")] == ["block"]
    assert len(list_runs(bench.runs)) == 1


def test_a_closed_run_is_not_marked_any_more(tmp_path: Path) -> None:
    (tmp_path / "host" / "marks").mkdir(parents=True)
    (tmp_path / "end.json").write_text("{}")
    code = "import joulelab.run.marking as p; print(p.writer())"
    assert python(code, JOULELAB_RUN=str(tmp_path), JOULELAB_HOST="host").stdout.strip() == "None"


def test_work_is_written_though_the_process_just_ends(tmp_path: Path) -> None:
    (tmp_path / "host" / "marks").mkdir(parents=True)
    code = "import joulelab\nfor _ in range(50): joulelab.work(samples=1)"
    assert python(code, JOULELAB_RUN=str(tmp_path), JOULELAB_HOST="host").returncode == 0
    assert sum(w["amounts"]["samples"] for w in marks(tmp_path, "work")) == 50


def test_importing_costs_next_to_nothing() -> None:
    code = "import sys; before = set(sys.modules); import joulelab; print(*(set(sys.modules) - before))"
    assert set(python(code).stdout.split()) == {"joulelab", "joulelab.core", "joulelab.core.version", "__future__"}
    assert {"measure", "measured", "phase", "work", "mark"} <= set(dir(joulelab))
    with pytest.raises(AttributeError, match="no attribute"):
        _ = joulelab.nonsense


def test_without_a_recording_marks_do_nothing(tmp_path: Path) -> None:
    code = """
import sys, joulelab
before = set(sys.modules)
joulelab.work(samples=64)
with joulelab.phase("x", n=1): pass
import joulelab.run.marking as p
print(p.writer(), sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in ("numpy", "msgspec")))
"""
    assert python(code).stdout == "None []\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.campaign  # test_without_a_recording_marks_do_nothing looks at what is done, not at how long it takes
def test_without_a_recording_marks_cost_nothing() -> None:
    code = """
import timeit, joulelab
work, phase = joulelab.work, joulelab.phase
def in_phase():
    with phase("x", n=1): pass
n = 20000
print(min(timeit.repeat(lambda: work(samples=64), number=n, repeat=7)) / n * 1e9,
      min(timeit.repeat(in_phase, number=n, repeat=7)) / n * 1e9)
"""
    work_ns, phase_ns = map(float, python(code).stdout.split())
    assert work_ns < 2000
    assert phase_ns < 10000
