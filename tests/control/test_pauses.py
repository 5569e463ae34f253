"""Pause a job through a keeper, and kill client, keeper and guard: no process stays stopped, no cap stays set."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
from tests.waiting import until

from joulelab.control import __main__ as keeper_program
from joulelab.control import pauses as pauses_module
from joulelab.control.keeper import Keeper
from joulelab.control.leftovers import has_leftovers
from joulelab.control.pauses import JobPauses, PausedJob, continue_processes, list_descendants
from joulelab.control.protocol import KeeperRequest
from joulelab.control.setters import SetterInventory
from joulelab.control.state import StateFolder
from joulelab.core.errors import JoulelabError
from joulelab.core.process_identity import is_stopped, read_start_ticks

# A shell with two children, one of them with a child of its own.
TREE = "sleep 600 & (sleep 600; true) & wait"
# Pauses a job and holds a cap until it is killed.
CLIENT = """
import json, os, sys, time
from joulelab.control.client import CapRequest, Caps
from joulelab.control.pauses import JobPauses
caps, pauses = Caps(os.environ, guarded=True), JobPauses(os.environ, int(sys.argv[1]))
caps.set([CapRequest("gpu:0", 170.0)])
pids = pauses.pause()
print(json.dumps([pids, caps._link.pid, pauses._link.pid, pauses._guard.pid]), flush=True)
while True:
    time.sleep(0.05)
    caps.serve()
    pauses.serve()
"""


def test_a_tree_is_read_from_proc_with_parents_first(tmp_path):
    for pid, parent in ((5, 1), (7, 5), (6, 7), (8, 2), (9, 5)):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a ) name) S {parent} " + "0 " * 30)
    found = list_descendants(5, tmp_path)
    assert sorted(found) == [5, 6, 7, 9]
    assert found[0] == 5
    assert found.index(7) < found.index(6)


def test_a_keeper_of_several_users_pauses_nothing(environ):
    keeper = Keeper(StateFolder(environ), SetterInventory, {"user": "alice", "pid": 7})
    for do in ("pause", "resume"):
        answer = keeper.answer_request(KeeperRequest(do, 5, pid=os.getpid(), ticks=read_start_ticks()))
        assert answer["is"] == "refused"
        assert answer["error"]["code"] == "config.no-pause"


@pytest.fixture
def job():
    process = subprocess.Popen(["/bin/sh", "-c", TREE], start_new_session=True)
    until(lambda: len(list_descendants(process.pid)) == 4)
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def stopped(job):
    return [pid for pid in list_descendants(job.pid) if is_stopped(pid)]


@pytest.mark.system
def test_a_pause_stops_the_whole_tree_and_continues_it(job, environ):
    with JobPauses(environ, job.pid) as pauses:
        assert sorted(pauses.pause()) == sorted(list_descendants(job.pid)) == sorted(stopped(job))
        pauses.resume()
        assert stopped(job) == []
        assert len(pauses.pause()) == 4
    assert stopped(job) == []


@pytest.mark.system
def test_a_process_that_somebody_else_stopped_stays_stopped(job, environ):
    theirs = list_descendants(job.pid)[-1]
    os.kill(theirs, signal.SIGSTOP)
    until(lambda: is_stopped(theirs))
    with JobPauses(environ, job.pid) as pauses:
        assert theirs not in pauses.pause()
    assert stopped(job) == [theirs]


@pytest.mark.system
def test_processes_that_lost_their_parent_in_a_pause_are_continued(job, environ):
    with JobPauses(environ, job.pid) as pauses:
        held = pauses.pause()
        job.kill()
        job.wait()
        pauses.resume()
        assert [pid for pid in held if is_stopped(pid)] == []


@pytest.mark.system
def test_an_ended_job_is_not_paused(environ):
    process = subprocess.Popen(["/bin/true"])
    with JobPauses(environ, process.pid) as pauses:
        process.wait()
        with pytest.raises(JoulelabError) as error:
            pauses.pause()
    assert error.value.code == "error.job-ended"
    assert not pauses.is_paused


@pytest.mark.system
def test_a_killed_keeper_is_replaced_and_the_pause_goes_on(job, environ):
    with JobPauses(environ, job.pid) as pauses:
        pauses.pause()
        first = pauses._link.pid
        os.kill(first, signal.SIGKILL)
        events = until(pauses.serve)
        assert [event["event"] for event in events] == ["pause-keeper-died"]
        assert pauses._link.pid != first
        assert len(stopped(job)) == 4
    assert stopped(job) == []


@pytest.mark.system
def test_keepers_that_die_again_and_again_let_the_job_run(job, environ, monkeypatch):
    begin = pauses_module.start_keeper

    def start_dead(environ):
        sock, pid = begin(environ)
        os.kill(pid, signal.SIGKILL)
        return sock, pid

    with JobPauses(environ, job.pid) as pauses:
        pauses.pause()
        monkeypatch.setattr(pauses_module, "start_keeper", start_dead)
        monkeypatch.setattr(pauses_module, "MOST_KEEPERS", 3)
        os.kill(pauses._link.pid, signal.SIGKILL)
        with pytest.raises(JoulelabError) as error:
            until(pauses.serve)
        assert error.value.code == "error.keeper-died"
        assert stopped(job) == []


@pytest.mark.system
def test_a_keeper_that_hangs_is_killed_at_the_end_of_a_pause(job, environ, monkeypatch):
    with JobPauses(environ, job.pid) as pauses:
        pauses.pause()
        os.kill(pauses._link.pid, signal.SIGSTOP)
        monkeypatch.setattr(pauses_module, "ANSWER_TIMEOUT_S", 0.5)
        pauses.resume()
        assert stopped(job) == []


@pytest.mark.system
@pytest.mark.parametrize(
    "victims",
    [("client",), ("client", "cap", "pause"), ("client", "guard"), ("client", "cap", "guard"), ("group",)],
    ids="+".join,
)
def test_killed_together_the_job_is_continued_and_the_cap_restored(victims, job, environ, files):
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(job.pid)], env=environ, stdout=subprocess.PIPE, start_new_session=True
    )
    with client.stdout as out:
        held, cap, pause, guard = json.loads(out.readline())
    assert files.get("GPU-0") == {"cap_w": 170.0}
    assert sorted(stopped(job)) == sorted(held)
    pids = {"client": client.pid, "cap": cap, "pause": pause, "guard": guard}
    family = [psutil.Process(pid) for pid in (client.pid, cap, pause, guard)]
    if victims == ("group",):
        os.killpg(client.pid, signal.SIGKILL)
    else:
        struck = [psutil.Process(pids[name]) for name in victims]
        for process in struck:
            process.suspend()  # so that none of them sees another one end
        for process in struck:
            process.kill()
    client.wait()
    until(lambda: not any(is_stopped(pid) for pid in held), "the job runs")
    until(lambda: files.get("GPU-0") == {"cap_w": 300.0} and not has_leftovers(environ), "the cap is restored")
    until(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family), "all end")
    assert job.poll() is None


def test_a_reused_pid_is_not_continued(monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda *words: sent.append(words))
    ticks = read_start_ticks()
    continue_processes([(os.getpid(), ticks + 1), (os.getpid(), ticks)])
    assert sent == [(os.getpid(), signal.SIGCONT)]


# The rare ends, without a process


class FakeGuard:
    pid = 1

    def __init__(self, environ, command=()):
        self.dismissed = 0

    def add_process(self, pid):
        raise BrokenPipeError("the guard has ended")

    def dismiss(self):
        self.dismissed += 1


class FakeWatch:
    """A process that is still there when it is looked at first."""

    fds = ()

    def __init__(self):
        self.looks = 0
        self.is_closed = False

    def has_ended(self):
        self.looks += 1
        return self.looks > 1

    def close(self):
        self.is_closed = True


@pytest.fixture
def sent(monkeypatch):
    found = []
    monkeypatch.setattr(os, "kill", lambda *words: found.append(words))
    return found


def test_without_a_guard_nothing_is_stopped(monkeypatch, sent):
    def fail(*words, **more):
        raise OSError("no more processes")

    own = os.getpid(), read_start_ticks()
    monkeypatch.setattr(os, "posix_spawn", fail)
    with pytest.raises(JoulelabError) as error:
        PausedJob(own, {})
    assert error.value.code == "error.no-guard"
    monkeypatch.setattr(pauses_module, "KeeperGuard", FakeGuard)
    monkeypatch.setattr(pauses_module, "list_descendants", lambda root: [root])
    with pytest.raises(JoulelabError) as error:
        PausedJob(own, {})
    assert error.value.code == "error.no-guard"
    assert sent == []


def test_a_job_that_does_not_stop_in_time_is_held_as_far_as_it_stopped(monkeypatch, sent):
    monkeypatch.setattr(pauses_module, "KeeperGuard", FakeGuard)
    monkeypatch.setattr(pauses_module, "STOP_TIMEOUT_S", -1.0)
    job = PausedJob((os.getpid(), read_start_ticks()), {})
    job.resume()
    job.resume()
    assert job.guard.dismissed == 1
    assert sent == []


def test_a_pause_without_a_keeper_ends_and_one_keeper_is_enough(monkeypatch, sent):
    waits, starts = [], []
    monkeypatch.setattr(pauses_module, "wait_readable", lambda fds, seconds: waits.append(seconds))
    monkeypatch.setattr(pauses_module, "start_keeper", lambda environ: (starts.append(environ), 1))
    monkeypatch.setattr(pauses_module, "KeeperLink", lambda *words: words)
    pauses = JobPauses({}, os.getpid())
    assert pauses.serve() == []
    guard = pauses._guard = FakeWatch()
    pauses.resume()
    assert (len(waits), guard.is_closed) == (1, True)
    pauses.prepare()
    pauses.prepare()
    assert len(starts) == 1
    assert sent == []


def test_a_pause_whose_keeper_lives_goes_on():
    with JobPauses({}, os.getpid()) as pauses:
        pauses._link = SimpleNamespace(receive_messages=lambda _: None, broken=False, close=lambda: "")
        pauses.is_paused = True
        assert pauses.serve() == []
        pauses.is_paused = False


def test_the_restorer_of_a_killed_keeper_waits_for_the_client(monkeypatch, environ):
    waits = []
    monkeypatch.setattr(keeper_program, "wait_readable", lambda fds, seconds: waits.append(seconds))
    client = FakeWatch()
    keeper_program.restore_after(client, environ)
    assert (client.looks, len(waits)) == (2, 1)
