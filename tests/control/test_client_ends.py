from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.control.fake import wait_for

from joulelab.control.client import CapRequest, Caps, restore_leftovers
from joulelab.control.leftovers import has_leftovers
from joulelab.control.state import StateFolder
from joulelab.core.process_identity import read_start_ticks

pytestmark = pytest.mark.system

TWO = [CapRequest("gpu:0", 170.0), CapRequest("gpu:1", 0.5, "share")]


def test_the_end_of_the_client_puts_back_and_is_logged(environ, files):
    process = holding(environ)
    assert files.get("GPU-0") == {"cap_w": 170.0}
    process.kill()
    process.wait()
    wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0} and not StateFolder(environ).list_devices())
    log = wait_for((StateFolder(environ).path / "log").read_text)
    assert "gpu:0: back at 300 W, as found (it was at 170 W)" in log
    assert "the client ended" in log or "the client closed" in log
    with Caps(environ) as caps:
        caps.set([CapRequest("gpu:0", 180.0)])


HOLD = """
import json, os, signal, subprocess, sys, time
from joulelab.control.client import Caps, CapRequest
caps = Caps(os.environ)
caps.set([CapRequest("gpu:0", 170.0)])
{then}
print(json.dumps([caps._link.pid]), flush=True)
time.sleep(600)
"""


def holding(environ, then=""):
    """Return a process that holds a cap; `keeper` is its keeper's pid."""
    process = subprocess.Popen([sys.executable, "-c", HOLD.format(then=then)], env=environ, stdout=subprocess.PIPE)
    with process.stdout as out:
        (process.keeper,) = json.loads(out.readline())
    return process


def test_children_that_inherit_everything_do_not_hold_a_cap(environ, files, tmp_path):
    then = "os.set_inheritable(caps.fds[0], True)\nif os.fork() == 0:\n    "
    then += f"while not os.path.exists({str(tmp_path / 'over')!r}): time.sleep(0.05)\n    os._exit(0)"
    process = holding(environ, then)
    process.kill()
    process.wait()
    wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0})
    (tmp_path / "over").touch()
    log = wait_for((StateFolder(environ).path / "log").read_text)
    assert "the client ended" in log


FORKED = """
import os
from joulelab.control.client import CapRequest, Caps
from tests.control.fake import fails
with Caps(dict(os.environ)) as caps:
    caps.set([CapRequest("gpu:0", 170.0)])
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert caps.release() == []
            assert caps.serve() == []
            assert list(caps.fds) == []
            with fails("error.other-process"):
                caps.status()
            caps.close()
            caps.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert caps.status().devices[0].holder
    print("held", flush=True)
    input()
"""


def test_a_forked_child_lets_go_without_putting_back(environ, files):
    # In a process of its own: a worker that has loaded frameworks with threads cannot be forked safely.
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FORKED], env=environ, text=True, **pipes) as process:
        assert process.stdout.readline() == "held\n"
        assert files.get("GPU-0") == {"cap_w": 170.0}
        process.communicate("\n")
    assert process.returncode == 0


def test_both_killed_is_put_back_by_the_next_start(environ, files):
    process = holding(environ)
    os.kill(process.pid, signal.SIGSTOP)  # so that neither has the time to see the other's end
    for pid in (process.keeper, process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: has_leftovers(environ))
    assert files.get("GPU-0") == {"cap_w": 170.0}
    with Caps(environ) as caps:
        assert caps.status().devices[0].leftover["found"] == 300.0
    (told,) = restore_leftovers(environ)
    assert (told.outcome, told.now) == ("restored", 300.0)
    assert files.get("GPU-0") == {"cap_w": 300.0}


def test_the_next_cap_finishes_what_was_left_first(environ, files):
    process = holding(environ)
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(process.keeper, signal.SIGKILL)
    wait_for(lambda: read_start_ticks(process.keeper) is None)
    with Caps(environ) as caps:
        (held,) = caps.set([CapRequest("gpu:0", 150.0)])
        assert held.found == 300.0
    process.kill()
    process.wait()
    assert files.get("GPU-0") == {"cap_w": 300.0}


def test_the_standard_files_may_be_closed(environ, files):
    code = (
        "import os; [os.close(fd) for fd in (0, 1, 2)]\n"
        "from joulelab.control.client import Caps, CapRequest\n"
        "with Caps(os.environ) as caps:\n"
        "    held = caps.set([CapRequest('gpu:0', 170.0)])\n"
        "    os._exit(held[0].requested != 170.0 or caps.release()[0].outcome != 'restored')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], env=environ).returncode == 0
    assert files.get("GPU-0") == {"cap_w": 300.0}


def test_a_gpu_lost_at_the_end_keeps_its_journal(environ, files):
    with Caps(environ) as caps:
        caps.set(TWO)
        files.flaws("GPU-1", lost=True)
        outcomes = {r.device: r for r in caps.release()}
        assert (outcomes["GPU-0"].outcome, outcomes["GPU-1"].outcome) == ("restored", "failed")
        assert "joulelab cap restore" in outcomes["GPU-1"].message
    assert StateFolder(environ).list_devices() == ["GPU-1"]
    (told,) = restore_leftovers(environ)
    assert told.outcome == "failed"
    files.flaws("GPU-1")
    assert [r.outcome for r in restore_leftovers(environ)] == ["restored"]
