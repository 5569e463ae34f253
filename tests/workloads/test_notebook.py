"""Notebooks without a browser, each in a real kernel: phases, outputs, failures, signals, and what is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.workloads.books import (
    LIMIT_S,
    book,
    code,
    environment,
    is_gone,
    printed,
    run,
    start,
    text,
    wait_for,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

JOULELAB = [sys.executable, "-c", "from joulelab.cli import main; main()"]
TWIN = ("twin", "--gpus", "2", "--gpu-model", "v100", "--profile", "constant:level=0.5", "--")
TRAIN = """\
with joulelab.phase("train"):
    for _ in range(20):
        time.sleep(0.02)
        joulelab.work(samples=2)
with joulelab.measure("predict") as m:
    time.sleep(0.1)
joulelab.work(samples=2)
"""


@dataclass
class Recorded:
    """Hold what a recorded run of a notebook told."""

    result: dict[str, Any]
    copy: Path
    shown: str

    @property
    def top(self) -> list[dict[str, Any]]:
        return [p for p in self.result["phases"] if p["depth"] == 0]

    def phase(self, title: str) -> dict[str, Any]:
        return next(p for p in self.result["phases"] if p["title"] == title)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Record a notebook on the twin, as a user does."""
    if shutil.which("cc") is None:
        pytest.skip("the twin's NVML library is built with cc, which is not here")
    folder = tmp_path_factory.mktemp("notebook")
    file = write(
        folder / "train.ipynb",
        book(
            text("# A notebook"),
            code("seconds = 60\nname = 'nobody'", "parameters"),
            code("# load\nimport os, time, joulelab\ntime.sleep(seconds)\nprint('samples:', name, os.getcwd())"),
            code(""),
            code(TRAIN),
            code("7 * 6"),
        ),
    )
    environ = environment(folder, JOULELAB_RUNS=str(folder / "runs"), COLUMNS="100")
    words = [*JOULELAB, *TWIN, *JOULELAB, "run", "--json", "train.ipynb", "seconds=0.3", "name=two words"]
    words += ["--pause", "300ms", "--out", "done.ipynb"]
    done = subprocess.run(words, env=environ, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"samples: two words {file.parent}\n")
    result = json.loads(done.stdout.partition("\n")[2])
    shown = subprocess.run(
        [*JOULELAB, "show", result["run"], "--all"],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return Recorded(result, folder / "done.ipynb", shown.stdout)


def test_cells_and_the_time_between_them_are_phases(recorded: Recorded) -> None:
    between = "between cells"
    cells = ["cell 1", "parameters", between, "cell 2", between, "cell 4", between, "cell 5"]
    assert [p["title"] for p in recorded.top] == ["kernel start", *cells, "kernel stop"]
    waited = [p["duration_s"] for p in recorded.top if p["title"] == between]
    assert all(seconds >= 0.3 for seconds in waited)
    assert recorded.phase("cell 2")["duration_s"] >= 0.3


def test_the_whole_is_the_sum_of_its_parts(recorded: Recorded) -> None:
    parts = recorded.top
    for one, other in pairwise(parts):
        assert one["start_s"] + one["duration_s"] == pytest.approx(other["start_s"], abs=1e-6)
    whole = next(g for g in recorded.result["groups"] if g["name"] == "gpu")
    covered = sum(p["duration_s"] for p in parts) / recorded.result["duration_s"]
    assert covered > 0.5
    together = sum(p["energy"]["gpu"]["value"] for p in parts)
    # The twin's GPUs are as busy all the time: energy goes as time does.
    assert together == pytest.approx(whole["energy"]["value"] * covered, rel=0.03)


def test_phases_of_the_notebooks_own_code_lie_in_its_cells(recorded: Recorded) -> None:
    inner = [p["title"] for p in recorded.result["phases"] if p["depth"] == 1]
    assert inner == ["train", "predict"]
    assert recorded.phase("train")["work"] == {"samples": 40}
    # Work is credited to the cell as well, and the kernel ends in such order that nothing of it is lost.
    assert recorded.phase("cell 4")["work"]["samples"] == pytest.approx(42)
    assert recorded.result["work"] == {"samples": 42}


def test_the_record_names_the_notebook_and_show_lists_its_cells(recorded: Recorded) -> None:
    assert recorded.result["labels"] == {"notebook": "train.ipynb"}
    assert recorded.result["command"][1:4] == ["-m", "joulelab.run.notebook", "train.ipynb"]
    for line in ("cell 1", "between cells", "cell 5", "  train"):
        assert line in recorded.shown


def test_the_copy_has_parameters_and_outputs(recorded: Recorded) -> None:
    cells = json.loads(recorded.copy.read_text())["cells"]
    injected = next(c for c in cells if "injected-parameters" in c["metadata"].get("tags", ()))
    assert "".join(injected["source"]) == "# Parameters\nseconds = 0.3\nname = 'two words'"
    assert "samples: two words" in printed(recorded.copy, 3)
    assert cells[-1]["outputs"][0]["data"]["text/plain"] == ["42"]


def test_a_cell_that_fails_ends_it_with_1_and_says_which(tmp_path: Path) -> None:
    first = code("import os\nprint('one')\nassert os.system('echo child; echo complaint >&2') == 0")
    cells = first, code("1 / 0", "raises-exception"), code(""), code("int('x')"), code("print('five')")
    # A kernel that only its author has: the Python that runs joulelab takes its place.
    file = write(tmp_path / "a.ipynb", book(*cells, kernel="the-authors-own"))
    done = run(file, "--out", tmp_path / "out.ipynb", code=1)
    assert sorted(done.stdout.split()) == ["child", "one"]
    assert done.stderr.count("complaint\n") == 1
    last = done.stderr.splitlines()[-1]
    assert last == f"joulelab: {file}: cell 4 failed: ValueError: invalid literal for int() with base 10: 'x'"
    assert "Traceback" in done.stderr
    assert "\x1b" not in done.stderr
    assert printed(tmp_path / "out.ipynb", 1) == "one\n"
    errors = [c["outputs"][0]["ename"] for c in json.loads((tmp_path / "out.ipynb").read_text())["cells"][1::2]]
    assert errors == ["ZeroDivisionError", "ValueError"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.ipynb", "ipython", "out.ipynb"]


def test_a_kernel_that_dies_is_told(tmp_path: Path) -> None:
    cells = code("print('one')"), code("import os\nos.rmdir('gone')\nos.kill(os.getpid(), 9)"), code("print('three')")
    file = write(tmp_path / "a.ipynb", book(*cells))
    (tmp_path / "gone").mkdir()
    done = run(file, "--out", tmp_path / "gone" / "out.ipynb", code=1)
    assert done.stdout == "one\n"
    assert "the kernel died in cell 2 (signal 9; was there enough memory?)" in done.stderr
    assert "the copy cannot be written" in done.stderr


def test_a_kernel_that_does_not_start_or_is_not_there_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "kernels" / "broken"
    folder.mkdir(parents=True)
    spec = {"argv": ["false", "{connection_file}"], "display_name": "broken", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    file = write(tmp_path / "a.ipynb", book(code("print(1)"), kernel="broken"))
    assert "the kernel did not start" in run(file, code=1, JUPYTER_PATH=str(tmp_path)).stderr
    (tmp_path / "ipykernel_launcher.py").write_text("raise SystemExit('not in this house')")
    own = write(tmp_path / "c.ipynb", book(code("print(1)")))
    done = run(own, code=1)
    assert "not in this house" in done.stderr
    assert "the kernel did not start" in done.stderr
    foreign = write(tmp_path / "b.ipynb", book(code("x"), kernel="broke", language="forth"))
    done = run(foreign, code=2, JUPYTER_PATH=str(tmp_path))
    assert "there is no kernel 'broke' here; install it; did you mean 'broken'?" in done.stderr


LONG = """\
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"])
def tell(name):
    open(name + ".part", "w").write(f"{os.getpid()} {child.pid}")
    os.rename(name + ".part", name)
print("begun")
tell("running")
"""
POLITE = LONG + "try:\n    time.sleep(600)\nfinally:\n    tell('cleared')\n"
STUBBORN = LONG + "while True:\n    try:\n        time.sleep(600)\n    except KeyboardInterrupt:\n        pass\n"


def begin(folder: Path, source: str, *words: str | Path, **more: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a notebook with a long cell; return its process, and those of its kernel and of the kernel's child."""
    running = start(write(folder / "a.ipynb", book(code(source), code("print('never')"))), *words, **more)
    wait_for((folder / "running").exists, "the cell")
    return running, [int(pid) for pid in (folder / "running").read_text().split()]


@pytest.mark.parametrize(("number", "source"), [(signal.SIGINT, POLITE), (signal.SIGTERM, STUBBORN)])
def test_told_to_end_it_ends_its_kernel_and_leaves_by_the_signal(tmp_path: Path, number: int, source: str) -> None:
    running, pids = begin(tmp_path, source, "--out", tmp_path / "out.ipynb")
    running.send_signal(number)
    out, err = running.communicate(timeout=LIMIT_S)
    assert running.returncode == -number
    assert out == "begun\n"
    assert f"ended by signal {number:d} in cell 1" in err
    assert "Traceback" not in err
    for pid in pids:
        wait_for(lambda pid=pid: is_gone(pid), f"the end of {pid}")  # type: ignore[misc]
    assert printed(tmp_path / "out.ipynb", 1) == "begun\n"
    assert (tmp_path / "cleared").exists() == (source is POLITE)


def test_between_cells_it_ends_at_once(tmp_path: Path) -> None:
    cells = code("import os\nopen('pid.part', 'w').write(str(os.getpid()))\nos.rename('pid.part', 'pid')"), code("1")
    running = start(write(tmp_path / "a.ipynb", book(*cells)), "--pause=600")
    wait_for((tmp_path / "pid").exists, "the first cell")
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=LIMIT_S) == -signal.SIGTERM
    wait_for(lambda: is_gone(int((tmp_path / "pid").read_text())), "the kernel's end")
    running.communicate()


def test_killed_it_leaves_no_kernel(tmp_path: Path) -> None:
    # The folder of its sockets is left: a small one, in a place for temporary files.
    running, (kernel, child) = begin(tmp_path, POLITE, TMPDIR=str(tmp_path))
    running.kill()
    try:
        wait_for(lambda: is_gone(kernel), "the kernel's end")
    finally:
        os.kill(child, signal.SIGKILL)
    running.communicate()


def test_what_cannot_be_run_is_told_before_anything_is_recorded(tmp_path: Path) -> None:
    environ = environment(tmp_path, JOULELAB_RUNS=str(tmp_path / "runs"))
    write(tmp_path / "a.ipynb", book(code("epochs = 1", "parameters")))
    for words, why in (
        (["none.ipynb"], "cannot be read"),
        (["--", "a.ipynb", "epoch=3"], "did you mean 'epochs'"),
        (["a.ipynb", "--kernel", "nope"], "there is no kernel 'nope' here"),
        (
            ["a.ipynb", "--out", "none/x.ipynb"],
            "the copy cannot be written to none/x.ipynb (none: No such file or directory)",
        ),
        (["a.ipynb", "--out", "."], "the copy cannot be written to . (it is a folder)"),
        (["a.ipynb", "--out", "/proc/x.ipynb"], "the copy cannot be written to /proc/x.ipynb"),
    ):
        done = subprocess.run(
            [*JOULELAB, "run", *words], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == 125
        assert why in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_program_of_that_name_is_run_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "odd.ipynb"
    program.write_text("#!/bin/sh\necho program $1\n")
    program.chmod(0o755)
    words = [*JOULELAB, "run", "-q", "--meter", "host", "./odd.ipynb", "x=1"]
    environ = environment(tmp_path, JOULELAB_RUNS=str(tmp_path / "runs"))
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == "program x=1\n"


@pytest.mark.campaign
def test_told_or_killed_at_any_moment_nothing_is_left(tmp_path: Path) -> None:
    rng = random.Random(5)
    file = write(tmp_path / "a.ipynb", book(*(code("import time\ntime.sleep(0.1)") for _ in range(10))))
    for round_ in range(30):
        number = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
        mark = f"JOULELAB_TEST={tmp_path}/{round_}"
        running = start(file, JOULELAB_TEST=mark.partition("=")[2], TMPDIR=str(tmp_path))
        time.sleep(rng.uniform(0, 4))
        for _ in range(rng.choice([1, 1, 2])):
            running.send_signal(number)
        _, err = running.communicate(timeout=LIMIT_S)
        assert running.returncode in (0, -number), err
        assert "Traceback" not in err
        wait_for(lambda mark=mark: not alive(mark), f"the end of all, after {number}")  # type: ignore[misc]


def alive(mark: str) -> list[int]:
    """Return the processes that have a variable in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            name, _, value = mark.partition("=")
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
