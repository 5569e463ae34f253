"""The magics in a shell of our own: what runs as a cell is marked, measured and shown, and nothing else changes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.recorder.driving import FAKE, events_of
from tests.rows import every_row
from tests.run.supervised import marks
from tests.waiting import until
from tests.workloads.books import environment

import joulelab
from joulelab.core.clock import monotonic_ns
from joulelab.integrations.jupyter import CellStack, JoulelabMagics, load_ipython_extension, unload_ipython_extension
from joulelab.integrations.jupyter_figures import read_notebook
from joulelab.run import marking, notebook
from joulelab.store.run_folder import RunState, list_runs, read_end, read_run_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("IPython")
CONFIG = f"""\
[meters.fake]
meter = "{FAKE}"
watts = 200
period_s = 0.02
[meters.nvml]
enabled = false
[meters.rapl]
enabled = false
[meters.host]
enabled = false
[run]
period_s = 0.02
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which a device of 200 W is configured and nothing is recorded."""
    for name in ("JOULELAB_RUN", "JOULELAB_HOST", notebook.NOTEBOOK_VARIABLE, "JPY_SESSION_NAME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "joulelab.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOULELAB_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def shell(folder: Path) -> Iterator[Any]:
    """Return a shell of IPython, which keeps what is displayed."""
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = {"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}}
    shell = InteractiveShell(config=Config(config))
    shell.display_pub = CapturingDisplayPublisher(parent=shell)
    try:
        yield shell
    finally:
        unload_ipython_extension(shell)
        shell.restore_sys_module_state()


def shown(shell: Any) -> tuple[str, str]:
    """Return what was displayed last, as text and as HTML."""
    data = shell.display_pub.outputs[-1]["data"]
    return data["text/plain"], data["text/html"]


def begun(run: Path) -> list[tuple[str, str | None]]:
    """Return the names of the phases of a run in order, each with that of the phase around it."""
    lines = list(marks(run, "begin"))
    names = {line["id"]: line["name"] for line in lines}
    return [(line["name"], names.get(line["parent"])) for line in lines]


@pytest.mark.system
def test_cells_are_marked_measured_and_shown(shell: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("%load_ext joulelab")
    run = list_runs(folder / "runs")[0]
    assert f"this kernel is recorded: run {run.name} in {folder / 'runs'}" in capsys.readouterr().out

    shell.run_cell("# wait\nimport asyncio, time, joulelab\ntime.sleep(0.2)")
    body = "%%joulelab the training\n# train\nprint('printed')\nwith joulelab.phase('epoch', n=1):\n"
    body += "    joulelab.fact(data='fashion-mnist', accuracy=0.91)\n"
    body += "    for _ in range(10):\n        await asyncio.sleep(0.05)\n        joulelab.work(samples=4)\n6 * 7"
    done = shell.run_cell(body)
    assert done.result == 42
    assert "printed\n" in capsys.readouterr().out
    text, page = shown(shell)
    assert text.startswith("joulelab   the training · ")
    for said in ("fashion-mnist", "gpu", "epoch 1", "40 samples", "J/sample", run.name):
        assert said in text
        assert said in page
    assert re.search(r"^power +[▁-█]+  .* W to .* W in ", text, re.MULTILINE)
    assert '<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="power of the training' in page

    failed = shell.run_cell("%%joulelab\nprint('before')\n1 / 0")
    assert isinstance(failed.error_in_exec, ZeroDivisionError)
    out = capsys.readouterr().out
    assert out.count("ZeroDivisionError") == out.count("----> 3") + 1 == 2  # its own line, and shown once
    assert shown(shell)[0].startswith("joulelab   this cell · ")
    shell.run_cell("raise KeyboardInterrupt")
    shell.run_cell("get_ipython().run_cell('1 + 1')\nget_ipython().run_cell('')")
    time.sleep(0.2)

    shell.run_cell("%joulelab")
    text, _ = shown(shell)
    assert text.startswith("joulelab   the notebook so far · ")
    for said in (
        "fashion-mnist",
        "loading",
        "cell 1 · wait",
        "cell 2 · train",
        "cell 3",
        "cell 5",
        "cell 6 (runs)",
        " W between cells: ",
    ):
        assert said in text
    check_total(shell, run)

    shell.run_cell("%joulelab status\n%joulelab stop")
    out = capsys.readouterr().out
    assert "recorded, 7 cells so far" in out
    assert f"the recording has ended: run {run.name}" in out
    assert read_run_state(run) is RunState.CLOSED
    names = ["loading"] + [n for k in range(1, 8) for n in ("between cells", f"cell {k}")]
    inner = [("the training", "cell 2"), ("epoch", "the training"), ("measure", "cell 3"), ("table", "cell 6")]
    assert [name for name, around in begun(run) if around is None] == names
    assert [pair for pair in begun(run) if pair[1] is not None] == inner

    check_after_the_recording(shell, folder, capsys)


def check_total(shell: Any, run: Path) -> None:
    """Check that the parts of a notebook are the whole, and that each drew what the device draws."""
    recording = shell.magics_manager.registry[JoulelabMagics.__name__].recording
    found = read_notebook(run, recording.name, recording.since_ns, None)
    assert found is not None
    whole = found.whole
    assert whole.energy is not None
    assert 0.4 < whole.duration_s <= (monotonic_ns() - recording.since_ns) * 1e-9
    assert whole.energy.value == pytest.approx(200 * whole.duration_s, rel=0.05)
    assert found.between.energy is not None
    assert found.between.duration_s > 0.2
    parts = [p.energy.value for p in found.parts if p.energy is not None]
    assert sum(parts) + found.between.energy.value == pytest.approx(whole.energy.value)
    assert found.idle_share is not None
    energy, seconds = found.idle_share
    assert energy == pytest.approx(seconds, abs=0.05)
    assert found.power is not None
    assert found.power.mean == pytest.approx(200, rel=0.05)


def check_after_the_recording(shell: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check what the magics do where nothing is recorded any more."""
    shell.run_cell("%joulelab")
    assert shown(shell)[0].startswith("joulelab   the notebook · ")
    failed = shell.run_cell("%%joulelab alone\nimport time\ntime.sleep(0.1)\nint('x')")
    assert isinstance(failed.error_in_exec, ValueError)
    own = list_runs(folder / "runs")[-1]
    assert len(list_runs(folder / "runs")) == 2
    assert shown(shell)[0].startswith("joulelab   alone · ")
    end = read_end(own)
    assert end is not None
    assert (end["exit_code"], begun(own)) == (1, [])
    for line, said in (
        ("%joulelab stats", "did you mean 'status'?"),
        ("%%joulelab --watts\n1", "takes no options"),
        ("%joulelab status", "nothing is recorded; %joulelab start"),
        ("%unload_ext joulelab", "nothing is recorded"),
        ("%joulelab", "Line magic function `%joulelab` not found"),
    ):
        shell.run_cell(line)
        told = capsys.readouterr()
        assert said in told.out + told.err
    assert marking.writer() is None


@pytest.mark.system
def test_what_somebody_else_records_is_joined_and_left(
    shell: Any, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with joulelab.measure("outer") as m:
        assert m.run is not None
        load_ipython_extension(shell)
        shell.run_cell("%%capture kept\n%%joulelab inner\nprint('x')")
        shell.run_cell("%%joulelab\n\n%%capture kept\nprint('x')")
        assert shell.user_ns["kept"].stdout == "x\n"
        shell.run_cell("get_ipython().run_cell_magic('joulelab', 'called', '1 + 1')")
        assert shown(shell)[0].startswith("joulelab   called · ")
        shell.run_cell("%%joulelab around\nget_ipython().run_cell('%%joulelab inside\\n1 + 1')")
        assert shell.display_pub.outputs[-2]["data"]["text/plain"].startswith("joulelab   inside · ")
        assert re.search(r"^table +\d", shown(shell)[0], re.MULTILINE)  # what the table inside took is told apart
        shell.run_cell("%joulelab stop")
        assert "the run goes on" in capsys.readouterr().out
        unload_ipython_extension(shell)
        shell.run_cell("1")

        # As in a kernel that `joulelab run notebook.ipynb` has started, which marks the cells itself.
        monkeypatch.setenv(notebook.NOTEBOOK_VARIABLE, "a.ipynb")
        marked = notebook.CellPhases(marking.writer(), "a.ipynb")
        marked.next("cell 1")
        load_ipython_extension(shell)
        shell.run_cell("%%joulelab again\n1")
        marked.next(notebook.BETWEEN_CELLS)
        marked.next("cell 2")
        shell.run_cell("%joulelab")
        assert "cell 2 (runs)" in shown(shell)[0]
        assert "loading" not in shown(shell)[0]
        marked.end()
        shell.run_cell("%joulelab stop")
        assert "recorded by joulelab run, cell by cell" in capsys.readouterr().out
    top = [name for name, around in begun(m.run) if around is None]
    between = "between cells"
    own = ["loading", *(name for k in range(1, 5) for name in (f"cell {k}", between)), "cell 5"]
    assert top == [*own, "cell 1", between, "cell 2"]
    assert ("inner", "cell 1") in begun(m.run)
    assert ("measure", "cell 2") in begun(m.run)
    assert ("again", "cell 1") in begun(m.run)
    assert begun(m.run).count(("table", "cell 1")) == 2  # inside of %%capture, and where others mark cells
    assert begun(m.run).count(("table", "around")) == 1
    assert begun(m.run).count(("table", "cell 2")) == 1  # `%joulelab` waits in its cell


@every_row("order", ["pairs", "no beginning", "nested", "cancelled", "replaced"])
def test_cells_that_end_otherwise_than_they_began_are_told_apart(order: str) -> None:
    class Info:
        raw_cell = "x"

    stack, outer, inner, other = CellStack(), Info(), Info(), Info()
    other.raw_cell = "y"
    if order != "no beginning":
        assert stack.push(outer)
    if order in ("nested", "cancelled"):
        assert not stack.push(inner)
    gone = {
        "pairs": [outer],
        "no beginning": [],
        "nested": [inner, outer],
        "cancelled": [inner],
        "replaced": [outer],
    }[order]
    told = {"pairs": outer, "no beginning": other, "nested": outer, "cancelled": None, "replaced": Info()}[order]
    assert [frame.info for frame in stack.pop(other)] == []
    assert [frame.info for frame in stack.pop(told)] == gone


DYING = '''\
import os, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell()
shell.run_cell("%load_ext joulelab")
# On a busy machine a run begins before its meters are open: wait for the first readings on the disk.
shell.run_cell("""import os, time; from pathlib import Path
end, run = time.monotonic() + 100, Path(os.environ["JOULELAB_RUN"])
while not list(run.glob("*/fake.power.0.journal")) and time.monotonic() < end: time.sleep(0.02)""")
shell.run_cell("time.sleep(0.3)")
if sys.argv[1] == "kill":
    os.kill(os.getpid(), 9)
'''


@pytest.mark.no_cover
@pytest.mark.parametrize("how", ["kill", "leave"])
@pytest.mark.system
def test_a_kernel_that_ends_leaves_a_run_that_can_be_read(folder: Path, how: str) -> None:
    environ = environment(folder, JOULELAB_RUNS=str(folder / "runs"))
    words = [sys.executable, "-c", DYING, how]
    done = subprocess.run(words, env=environ, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 0), done.stderr
    run = list_runs(folder / "runs")[0]
    # The recorder outlives a killed kernel for a moment, and may create its journal only then: ask for its last word.
    until(lambda: any(events_of(path, "stop") for path in run.glob("*/events.0.jsonl")))
    until(lambda: read_run_state(run) is not RunState.LIVE)
    assert read_run_state(run) is (RunState.CLOSED if how == "leave" else RunState.KILLED)
    from joulelab.analysis.analyse import analyse_run
    from joulelab.store.run_reader import open_run

    with open_run(run) as opened:
        result = analyse_run(opened)
        read = [opened.series(table, stream.name, channels=[]) for table in opened.tables() for stream in table.streams]
    cell = next(p for p in result.phases if p.title == "cell 2")
    assert "measured" in cell.energy, (done.stderr, result.missing, result.checks)
    begin_ns = result.start_ns + cell.start_s * 1e9
    assert all(series.t1_ns[-1] > begin_ns for series in read), "readings that were not on the disk yet"
    assert cell.energy["measured"].value == pytest.approx(200 * cell.duration_s, rel=0.12)
