from __future__ import annotations

import ast
import errno
import json
import os
import re
import resource
import subprocess
import sys
from dataclasses import asdict

import pytest
from tests.control.fake import as_nobody, for_everybody, wait_for

from joulelab.control import leftover, state
from joulelab.control.state import InUse, Journal, State, holder_text, user_name
from joulelab.core.errors import Refused, StoreError
from joulelab.store import safe_files

WHO = {"user": "alice", "pid": 7, "command": "train", "since": "today"}
ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")


def journal(device="GPU-0", **changes):
    usual = {"scope": "gpu:0", "kind": "power", "found": {"cap_w": 300.0}, "default": {"cap_w": 350.0}}
    return Journal(device, **{**usual, "set": [{"cap_w": 170.0}], "who": WHO, "utc": "now", **changes})


def test_a_second_keeper_is_told_who_has_the_device(environ):
    here = State(environ)
    lock = here.lock("GPU-0", WHO, "gpu:0")
    with pytest.raises(InUse, match=r"gpu:0: held by alice \(pid 7, `train`, since today\)"):
        State(environ).lock("GPU-0", {}, "gpu:0")
    other = State(environ).lock("GPU-1", {}, "gpu:1")
    lock.close()
    lock.close()
    again = State(environ).lock("GPU-0", {}, "gpu:0")
    assert (here.folder / "GPU-0.lock").exists()
    for one in (other, again):
        one.close()


@pytest.mark.system
def test_a_lock_goes_with_its_process_only(environ):
    code = (
        "import os, sys, time; from joulelab.control.state import State\n"
        "lock = State(os.environ).lock('GPU-0', {'user': 'bob'}, 'gpu:0'); print('has it', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(InUse, match="bob"):
        State(environ).lock("GPU-0", {}, "gpu:0")
    assert State(environ).look("GPU-0") == ({"user": "bob"}, None)
    process.kill()
    process.wait()
    process.stdout.close()
    wait_for(lambda: not leftover.is_held(str(State(environ).folder / "GPU-0.lock")))
    State(environ).lock("GPU-0", {}, "gpu:0").close()


def test_a_lock_file_that_was_removed_is_no_lock(environ):
    here = State(environ)
    old = here.lock("GPU-0", WHO, "gpu:0")
    (here.folder / "GPU-0.lock").unlink()
    new = here.lock("GPU-0", {"user": "bob"}, "gpu:0")
    holder, _ = here.look("GPU-0")
    assert holder == {"user": "bob"}
    old.close()
    new.close()


class Removing:
    """Be a path whose file somebody removes, or replaces, right after it was opened."""

    def __init__(self, path, replace):
        self._path, self._replace, self.looks = path, replace, 0

    def __fspath__(self):
        return str(self._path)

    def stat(self):
        self.looks += 1
        if self.looks == 1:
            self._path.unlink()
            if self._replace:
                self._path.touch()
        return self._path.stat()


@pytest.mark.parametrize("replace", [True, False])
def test_a_lock_is_taken_again_where_its_file_goes_meanwhile(tmp_path, replace):
    path = Removing(tmp_path / "x.lock", replace)
    lock = state.Lock(path, {})
    assert leftover.is_held(str(tmp_path / "x.lock"))
    assert path.looks == 2
    lock.close()


def test_a_lock_without_words_is_told_as_somebodys(environ):
    here = State(environ)
    lock = here.lock("GPU-0", WHO, "gpu:0")
    for text in ("", "[1]", "{"):
        (here.folder / "GPU-0.lock").write_text(text)
        with pytest.raises(InUse, match="held by somebody;"):
            here.lock("GPU-0", {}, "gpu:0")
    assert here.look("GPU-0") == ({}, None)
    here.write(journal())
    assert here.look("GPU-0") == (WHO, None)
    lock.close()
    assert holder_text({"user": "bob", "pid": 3}) == "bob (pid 3)"
    assert holder_text({"user": "bob", "pid": 3, "keeper": 4}) == "bob (pid 3, keeper 4)"


def test_a_journal_comes_back_as_it_was_and_everybody_may_read_it(environ):
    here = State(environ)
    here.lock("GPU-0", WHO, "gpu:0").close()
    assert here.read("GPU-0") is None
    assert here.devices() == []
    here.write(journal())
    assert here.read("GPU-0") == journal()
    assert here.devices() == ["GPU-0"]
    assert here.path("GPU-0").stat().st_mode & 0o777 == 0o644
    assert (here.folder / "GPU-0.lock").stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in here.folder.iterdir()) == ["GPU-0.json", "GPU-0.lock"]
    assert here.look("GPU-0") == (None, journal())
    here.remove("GPU-0")
    here.remove("GPU-0")
    assert here.devices() == []


def test_device_names_lead_nowhere_else(environ):
    here = State(environ)
    for name in ("../../etc/passwd", ".hidden", "a/b", "powercap-intel-rapl:0", "GPU-0.clocks", "ü%2F"):
        lock = here.lock(name, {}, name)
        here.write(journal(name))
        assert name in here.devices()
        assert here.path(name).parent == here.folder
        lock.close()
    assert not any(p.is_dir() for p in here.folder.iterdir())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("{", r"the journal is damaged \(not JSON\); set the cap by hand, then remove"),
        ("[]", "the journal is damaged"),
        ({"schema": 2}, "schema 2, this joulelab writes 1"),
        ({"unknown": 1}, "unexpected keyword"),
        ({"found": {"cap_w": "300"}}, "is no setting"),
        ({"set": [{"cap_w": True}]}, "is no setting"),
        ({"found": 3}, "values"),
        ({"set": None}, "NoneType"),
    ],
)
def test_a_journal_that_cannot_be_understood_is_not_guessed_at(environ, change, said):
    here = State(environ)
    here.lock("GPU-0", {}, "gpu:0").close()
    text = change if isinstance(change, str) else json.dumps({**asdict(journal()), **change})
    here.path("GPU-0").write_text(text)
    with pytest.raises(StoreError, match=said):
        here.read("GPU-0")


def test_a_full_disk_means_no_journal_and_says_how_to_go_on(environ):
    here = State(environ)
    lock = here.lock("GPU-0", {}, "gpu:0")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(Refused, match=r"not capped.*free some space, or set JOULELAB_STATE") as refused:
            here.write(journal())
        lock.tell({"user": "x" * 100})  # costs the text only
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.where == str(here.folder)
    assert [p.name for p in here.folder.iterdir()] == ["GPU-0.lock"]
    assert leftover.is_held(str(here.folder / "GPU-0.lock"))
    lock.close()


def test_a_state_that_cannot_be_made_names_both_ways(environ):
    advice = r"run as root, or ask for capd" if os.geteuid() else "make it writable, or set JOULELAB_STATE"
    with pytest.raises(Refused, match=advice):
        State({**environ, "JOULELAB_STATE": "/dev/null/state"}).lock("GPU-0", {}, "gpu:0")
    error = State(environ)._unwritten(OSError(errno.EROFS, "Read-only file system"), "gpu:0")
    assert "make it writable, or set JOULELAB_STATE" in str(error)


@pytest.mark.system
@ROOT
def test_others_see_who_holds_a_device_but_cannot_hold_it_up(environ, tmp_path):
    for_everybody(tmp_path)
    here = State(environ)
    lock = here.lock("GPU-0", WHO, "gpu:0")
    here.write(journal())
    code = (
        "from joulelab.control.state import State; from joulelab.control.leftover import *\n"
        "here = State(os.environ); print(here.look('GPU-0')[0], here.look('GPU-1'), has_leftovers(os.environ))\n"
        "print(is_held(str(here.folder / 'GPU-0.lock')))\n"
        "try: here.lock('GPU-0', {}, 'gpu:0')\n"
        "except Exception as error: print(error)"
    )
    seen, held, refused = as_nobody(code, environ).splitlines()
    assert seen == f"{WHO} (None, None) False"
    assert held == "None"
    assert "Permission denied); run as root, or ask for capd" in refused
    lock.close()
    here.write(journal(pid=os.getpid(), ticks=-1))
    code = "print(State(os.environ).look('GPU-0'))"
    assert as_nobody(code, environ).startswith("(None, Journal(")


def test_leftovers_are_journals_that_nobody_holds(environ):
    assert not leftover.has_leftovers(environ)
    here = State(environ)
    assert here.devices() == []
    lock = here.lock("GPU-0", {}, "gpu:0")
    assert not leftover.has_leftovers(environ)
    here.write(journal())
    assert not leftover.has_leftovers(environ)
    lock.close()
    assert leftover.has_leftovers(environ)
    (here.folder / "GPU-0.lock").unlink()
    assert leftover.has_leftovers(environ)
    here.remove("GPU-0")
    assert not leftover.has_leftovers(environ)


@pytest.mark.system
def test_looking_for_leftovers_loads_next_to_nothing():
    code = (
        "import sys; before = set(sys.modules); from joulelab.control.leftover import has_leftovers\n"
        "has_leftovers({}); print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = [name for name in ast.literal_eval(done.stdout) if not name.startswith("joulelab.core")]
    assert set(loaded) <= {"__future__", "joulelab", "joulelab.control", "joulelab.control.leftover"}


def test_the_log_stays_small_and_keeps_the_newest(environ):
    here = State(environ)
    here.log("there is no folder yet, and nothing is raised")
    here.lock("GPU-0", {}, "gpu:0").close()
    for number in range(2000):
        here.log(f"line {number}\n{'x' * 60}")
    lines = (here.folder / "log").read_text().splitlines()
    assert (here.folder / "log").stat().st_size <= state.LOG_BYTES
    assert "line 1999 xxx" in lines[-1]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC line \d+ x{60}$", line) for line in lines)
    assert here.devices() == []


def test_a_user_without_a_name_is_a_number():
    assert user_name(0) == "root"
    assert user_name(3_999_999_999) == "3999999999"


def test_where_a_lock_cannot_be_looked_at_the_journal_tells(environ):
    here = State(environ)
    here.folder.mkdir(parents=True)
    (here.folder / "GPU-0.lock").symlink_to("GPU-0.lock")
    assert leftover.is_held(str(here.folder / "GPU-0.lock")) is None
    assert here.look("GPU-0") == (None, None)
    here.write(journal())
    assert here.look("GPU-0") == (WHO, None)
    here.write(journal(ticks=1))
    assert here.look("GPU-0") == (None, journal(ticks=1))
    with pytest.raises(Refused, match="Too many levels of symbolic links"):
        here.lock("GPU-0", {}, "gpu:0")


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_folders_are_for_all_to_read_and_for_us_to_write_whatever_the_umask(environ, umask):
    before = os.umask(umask)
    try:
        here = State(environ)
        here.lock("GPU-0", {}, "gpu:0").close()
        here.write(journal())
    finally:
        os.umask(before)
    for folder in (here.folder, here.folder.parent):
        assert folder.stat().st_mode & 0o7777 == 0o755
    assert here.path("GPU-0").stat().st_mode & 0o777 == 0o644


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(environ):
    here = State(environ)
    here.lock("GPU-0", {}, "gpu:0").close()
    (here.folder / "GPU-0.lock").unlink()
    for name in ("GPU-0.lock", "GPU-1.json", "log"):
        os.mkfifo(here.folder / name)
    assert leftover.is_held(str(here.folder / "GPU-0.lock")) is None
    assert here.look("GPU-0") == (None, None)
    with pytest.raises(Refused, match=r"GPU-0.lock: it is a FIFO, not a regular file\); look who made it"):
        here.lock("GPU-0", {}, "gpu:0")
    with pytest.raises(StoreError, match=r"cannot be read \(it is a FIFO, not a regular file\); set the cap by hand"):
        here.read("GPU-1")
    here.log("lost")
    assert leftover.has_leftovers(environ)


def test_links_lead_nowhere(environ, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    here = State(environ)
    here.lock("GPU-0", {}, "gpu:0").close()
    for name in (".GPU-0.json.tmp", "GPU-1.json", "log", "GPU-2.lock", ".log.tmp"):
        (here.folder / name).symlink_to(victim)
    here.write(journal())
    assert here.read("GPU-0") == journal()
    here.log("a line")
    with pytest.raises(StoreError, match="a link, not a regular file"):
        here.read("GPU-1")
    with pytest.raises(Refused, match="symbolic links"):
        here.lock("GPU-2", {}, "gpu:2")
    (here.folder / "log").unlink()
    here.log("x" * state.LOG_BYTES)
    here.log("y" * 100)
    assert victim.read_text() == "precious"
    assert (here.folder / "log").read_text().endswith(f"{'y' * 100}\n")


def test_a_folder_that_others_can_write_is_not_trusted_by_root(tmp_path):
    folder = tmp_path / "state" / "caps"
    safe_files.make_folder(folder)
    safe_files.check_folder(folder, 0)
    for which, mode in ((folder, 0o777), (folder, 0o1777), (folder, 0o775), (folder.parent, 0o777)):
        which.chmod(mode)
        with pytest.raises(safe_files.UntrustedPlace, match=rf"others can write to {which}") as caught:
            safe_files.check_folder(folder, 0)
        assert caught.value.next.endswith(f"sudo chmod go-w {which}")
        safe_files.check_folder(folder, 1000)  # what others do there harms himself
        which.chmod(0o755)
    folder.parent.chmod(0o1777)  # as /tmp is
    safe_files.check_folder(folder, 0)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(safe_files.UntrustedPlace, match="is no folder of its own"):
        safe_files.check_folder(folder, 0)


@ROOT
def test_root_caps_nothing_where_others_could_have_written(environ, files):
    here = State(environ)
    safe_files.make_folder(here.folder)
    os.chown(here.folder, 12345, 0)
    with pytest.raises(Refused, match=rf"not capped.*{here.folder} belongs to user 12345\); .*sudo chown root"):
        here.lock("GPU-0", {}, "gpu:0")
    os.chown(here.folder, 0, 0)
    here.folder.chmod(0o777)
    with pytest.raises(Refused, match=rf"others can write to {here.folder}\); look at what is in it; sudo chmod go-w"):
        here.lock("GPU-0", {}, "gpu:0")
    here.log("not even this")
    assert list(here.folder.iterdir()) == []


def test_a_folder_that_somebody_else_makes_meanwhile_is_fine(tmp_path):
    class Late(type(tmp_path)):
        def exists(self):
            return False

    folder = tmp_path / "a"
    folder.mkdir(mode=0o700)
    safe_files.make_folder(Late(folder))
    assert folder.stat().st_mode & 0o777 == 0o700
