from __future__ import annotations

import ast
import errno
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from dataclasses import asdict

import pytest
from tests.control.fake import as_nobody, fails, for_everybody, wait_for
from tests.rows import every_row

from joulelab.control import client, leftovers, state
from joulelab.control.protocol import CapOutcome
from joulelab.control.state import CapJournal, DeviceBusy, StateFolder, format_holder, get_user_name
from joulelab.core.setting import GET_PERMISSION
from joulelab.store import safe_files

WHO = {"user": "alice", "pid": 7, "command": "train", "since": "today"}
ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")


def journal(device="GPU-0", **changes):
    usual = {"scope": "gpu:0", "kind": "power", "found": {"cap_w": 300.0}, "default": {"cap_w": 350.0}}
    return CapJournal(device, **{**usual, "set": [{"cap_w": 170.0}], "who": WHO, "utc": "now", **changes})


def test_a_second_keeper_is_told_who_has_the_device(environ):
    here = StateFolder(environ)
    lock = here.lock_device("GPU-0", WHO, "gpu:0")
    with fails("refused.device-busy") as caught:
        StateFolder(environ).lock_device("GPU-0", {}, "gpu:0")
    assert (caught.value.where, caught.value.what) == ("gpu:0", "held by alice (pid 7, `train`, since today)")
    other = StateFolder(environ).lock_device("GPU-1", {}, "gpu:1")
    lock.close()
    lock.close()
    again = StateFolder(environ).lock_device("GPU-0", {}, "gpu:0")
    assert (here.path / "GPU-0.lock").exists()
    for one in (other, again):
        one.close()


@pytest.mark.system
def test_a_lock_goes_with_its_process_only(environ):
    code = (
        "import os, sys, time; from joulelab.control.state import StateFolder\n"
        "lock = StateFolder(os.environ).lock_device('GPU-0', {'user': 'bob'}, 'gpu:0')\n"
        "print('has it', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(DeviceBusy, match="bob"):
        StateFolder(environ).lock_device("GPU-0", {}, "gpu:0")
    assert StateFolder(environ).inspect_device("GPU-0") == ({"user": "bob"}, None)
    process.kill()
    process.wait()
    process.stdout.close()
    wait_for(lambda: not leftovers.is_locked(str(StateFolder(environ).path / "GPU-0.lock")))
    StateFolder(environ).lock_device("GPU-0", {}, "gpu:0").close()


def test_a_lock_file_that_was_removed_is_no_lock(environ):
    here = StateFolder(environ)
    old = here.lock_device("GPU-0", WHO, "gpu:0")
    (here.path / "GPU-0.lock").unlink()
    new = here.lock_device("GPU-0", {"user": "bob"}, "gpu:0")
    holder, _ = here.inspect_device("GPU-0")
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
    lock = state.DeviceLock(path)
    assert leftovers.is_locked(str(tmp_path / "x.lock"))
    assert path.looks == 2
    lock.close()


def test_a_lock_without_words_is_told_as_somebodys(environ):
    here = StateFolder(environ)
    lock = here.lock_device("GPU-0", WHO, "gpu:0")
    for text in ("", "[1]", "{"):
        (here.path / "GPU-0.lock").write_text(text)
        with fails("refused.device-busy"):
            here.lock_device("GPU-0", {}, "gpu:0")
    assert here.inspect_device("GPU-0") == ({}, None)
    here.write_journal(journal())
    assert here.inspect_device("GPU-0") == (WHO, None)
    lock.close()
    assert format_holder({"user": "bob", "pid": 3}) == "bob (pid 3)"
    assert format_holder({"user": "bob", "pid": 3, "keeper": 4}) == "bob (pid 3, keeper 4)"


def test_a_journal_comes_back_as_it_was_and_everybody_may_read_it(environ):
    here = StateFolder(environ)
    here.lock_device("GPU-0", WHO, "gpu:0").close()
    assert here.read_journal("GPU-0") is None
    assert here.list_devices() == []
    here.write_journal(journal())
    assert here.read_journal("GPU-0") == journal()
    assert here.list_devices() == ["GPU-0"]
    assert here.get_journal_path("GPU-0").stat().st_mode & 0o777 == 0o644
    assert (here.path / "GPU-0.lock").stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in here.path.iterdir()) == ["GPU-0.json", "GPU-0.lock"]
    assert here.inspect_device("GPU-0") == (None, journal())
    here.remove_journal("GPU-0")
    here.remove_journal("GPU-0")
    assert here.list_devices() == []


def test_the_fields_on_the_disk_are_those_of_older_versions(environ):
    here = StateFolder(environ)
    lock = here.lock_device("GPU-0", WHO, "gpu:0")
    here.write_journal(journal())
    lock.close()
    fields = "device scope kind found default set boot pid ticks who utc schema"
    assert list(json.loads(here.get_journal_path("GPU-0").read_text())) == fields.split()
    assert json.loads((here.path / "GPU-0.lock").read_text()) == WHO


def test_device_names_lead_nowhere_else(environ):
    here = StateFolder(environ)
    for name in ("../../etc/passwd", ".hidden", "a/b", "powercap-intel-rapl:0", "GPU-0.clocks", "ü%2F"):
        lock = here.lock_device(name, {}, name)
        here.write_journal(journal(name))
        assert name in here.list_devices()
        assert here.get_journal_path(name).parent == here.path
        lock.close()
    assert not any(p.is_dir() for p in here.path.iterdir())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("{", "store.damaged"),
        ("[]", "store.damaged"),
        ({"schema": 2}, "store.other-schema"),
        ({"unknown": 1}, "store.damaged"),
        ({"found": {"cap_w": "300"}}, "store.damaged"),
        ({"set": [{"cap_w": True}]}, "store.damaged"),
        ({"found": 3}, "store.damaged"),
        ({"set": None}, "store.damaged"),
    ],
)
def test_a_journal_that_cannot_be_understood_is_not_guessed_at(environ, change, code):
    here = StateFolder(environ)
    here.lock_device("GPU-0", {}, "gpu:0").close()
    text = change if isinstance(change, str) else json.dumps({**asdict(journal()), **change})
    here.get_journal_path("GPU-0").write_text(text)
    with fails(code) as caught:
        here.read_journal("GPU-0")
    assert caught.value.next == f"set the cap by hand, then remove {here.get_journal_path('GPU-0')}"


def test_a_full_disk_means_no_journal_and_says_how_to_go_on(environ):
    here = StateFolder(environ)
    lock = here.lock_device("GPU-0", {}, "gpu:0")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with fails("refused.no-space") as refused:
            here.write_journal(journal())
        lock.write_holder({"user": "x" * 100})  # costs the text only
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.where == str(here.path)
    assert [p.name for p in here.path.iterdir()] == ["GPU-0.lock"]
    assert leftovers.is_locked(str(here.path / "GPU-0.lock"))
    lock.close()


def test_a_state_that_cannot_be_made_names_both_ways(environ):
    elsewhere = "make it writable, or set JOULELAB_STATE to a folder on another disk, for all users and containers"
    advice = GET_PERMISSION if os.geteuid() else elsewhere
    with fails("refused.state-not-writable") as caught:
        StateFolder({**environ, "JOULELAB_STATE": "/dev/null/state"}).lock_device("GPU-0", {}, "gpu:0")
    assert caught.value.next == advice
    error = StateFolder(environ)._explain_write_error(
        OSError(errno.EROFS, "Read-only file system"), StateFolder(environ).path, "gpu:0"
    )
    assert "make it writable, or set JOULELAB_STATE" in str(error)


@pytest.mark.system
@ROOT
def test_others_see_who_holds_a_device_but_cannot_hold_it_up(environ, tmp_path):
    for_everybody(tmp_path)
    here = StateFolder(environ)
    lock = here.lock_device("GPU-0", WHO, "gpu:0")
    here.write_journal(journal())
    code = (
        "from joulelab.control.state import StateFolder; from joulelab.control.leftovers import *\n"
        "here = StateFolder(os.environ); gpus = [here.inspect_device(name) for name in ('GPU-0', 'GPU-1')]\n"
        "print(gpus[0][0], gpus[1], has_leftovers(os.environ))\n"
        "print(is_locked(str(here.path / 'GPU-0.lock')))\n"
        "try: here.lock_device('GPU-0', {}, 'gpu:0')\n"
        "except Exception as error: print(error.code, error.next)"
    )
    seen, held, refused = as_nobody(code, environ).splitlines()
    assert seen == f"{WHO} (None, None) False"
    assert held == "None"
    assert refused == f"refused.state-not-writable {GET_PERMISSION}"
    lock.close()
    here.write_journal(journal(pid=os.getpid(), ticks=-1))
    code = "print(StateFolder(os.environ).inspect_device('GPU-0'))"
    assert as_nobody(code, environ).startswith("(None, CapJournal(")


def test_leftovers_are_journals_that_nobody_holds(environ):
    assert not leftovers.has_leftovers(environ)
    here = StateFolder(environ)
    assert here.list_devices() == []
    lock = here.lock_device("GPU-0", {}, "gpu:0")
    assert not leftovers.has_leftovers(environ)
    here.write_journal(journal())
    assert not leftovers.has_leftovers(environ)
    lock.close()
    assert leftovers.has_leftovers(environ)
    (here.path / "GPU-0.lock").unlink()
    assert leftovers.has_leftovers(environ)
    here.remove_journal("GPU-0")
    assert not leftovers.has_leftovers(environ)


@pytest.mark.system
def test_looking_for_leftovers_loads_next_to_nothing():
    code = (
        "import sys; before = set(sys.modules); from joulelab.control.leftovers import has_leftovers\n"
        "has_leftovers({}); print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = [name for name in ast.literal_eval(done.stdout) if not name.startswith("joulelab.core")]
    assert set(loaded) <= {"__future__", "joulelab", "joulelab.control", "joulelab.control.leftovers"}


def test_the_next_start_reports_what_became_of_leftovers_and_goes_on(environ, monkeypatch):
    outcome = CapOutcome("gpu:0", "GPU-0", "restored", 300.0, 300.0, "W", "gpu:0: back at 300 W")
    for answers, reported in (([[]], []), ([[outcome]], [outcome.message])):
        here, texts = StateFolder(environ), []
        here.lock_device("GPU-0", {}, "gpu:0").close()
        here.write_journal(journal())
        monkeypatch.setattr(client, "restore_leftovers", lambda _, answers=answers: answers.pop())
        leftovers.restore_at_start(environ, texts.append)
        assert texts == reported
    leftovers.restore_at_start(environ, texts.append)  # no answer is left: it fails
    assert "joulelab cap restore" in texts[-1]
    here.remove_journal("GPU-0")
    leftovers.restore_at_start(environ, None)


def test_the_log_stays_small_and_keeps_the_newest(environ):
    here = StateFolder(environ)
    here.append_log("there is no folder yet, and nothing is raised")
    here.lock_device("GPU-0", {}, "gpu:0").close()
    for number in range(2000):
        here.append_log(f"line {number}\n{'x' * 60}")
    lines = (here.path / "log").read_text().splitlines()
    assert (here.path / "log").stat().st_size <= state.LOG_BYTES
    assert "line 1999 xxx" in lines[-1]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC line \d+ x{60}$", line) for line in lines)
    assert here.list_devices() == []


def test_a_user_without_a_name_is_a_number():
    assert get_user_name(0) == "root"
    assert get_user_name(3_999_999_999) == "3999999999"


def test_where_a_lock_cannot_be_looked_at_the_journal_tells(environ):
    here = StateFolder(environ)
    here.path.mkdir(parents=True)
    (here.path / "GPU-0.lock").symlink_to("GPU-0.lock")
    assert leftovers.is_locked(str(here.path / "GPU-0.lock")) is None
    assert here.inspect_device("GPU-0") == (None, None)
    here.write_journal(journal())
    assert here.inspect_device("GPU-0") == (WHO, None)
    here.write_journal(journal(ticks=1))
    assert here.inspect_device("GPU-0") == (None, journal(ticks=1))
    with fails("refused.state-not-writable"):
        here.lock_device("GPU-0", {}, "gpu:0")


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_folders_are_for_all_to_read_and_for_us_to_write_whatever_the_umask(environ, umask):
    before = os.umask(umask)
    try:
        here = StateFolder(environ)
        here.lock_device("GPU-0", {}, "gpu:0").close()
        here.write_journal(journal())
    finally:
        os.umask(before)
    for folder in (here.path, here.path.parent):
        assert folder.stat().st_mode & 0o7777 == 0o755
    assert here.get_journal_path("GPU-0").stat().st_mode & 0o777 == 0o644


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(environ):
    here = StateFolder(environ)
    here.lock_device("GPU-0", {}, "gpu:0").close()
    (here.path / "GPU-0.lock").unlink()
    for name in ("GPU-0.lock", "GPU-1.json", "log"):
        os.mkfifo(here.path / name)
    assert leftovers.is_locked(str(here.path / "GPU-0.lock")) is None
    assert here.inspect_device("GPU-0") == (None, None)
    with fails("refused.state-untrusted"):
        here.lock_device("GPU-0", {}, "gpu:0")
    with fails("store.unreadable"):
        here.read_journal("GPU-1")
    here.append_log("lost")
    assert leftovers.has_leftovers(environ)


def test_links_lead_nowhere(environ, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    here = StateFolder(environ)
    here.lock_device("GPU-0", {}, "gpu:0").close()
    for name in (".GPU-0.json.tmp", "GPU-1.json", "log", "GPU-2.lock", ".log.tmp"):
        (here.path / name).symlink_to(victim)
    here.write_journal(journal())
    assert here.read_journal("GPU-0") == journal()
    here.append_log("a line")
    with fails("store.unreadable"):
        here.read_journal("GPU-1")
    with fails("refused.state-not-writable"):
        here.lock_device("GPU-2", {}, "gpu:2")
    (here.path / "log").unlink()
    here.append_log("x" * state.LOG_BYTES)
    here.append_log("y" * 100)
    assert victim.read_text() == "precious"
    assert (here.path / "log").read_text().endswith(f"{'y' * 100}\n")


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
    here = StateFolder(environ)
    safe_files.make_folder(here.path)
    os.chown(here.path, 12345, 0)
    with fails("refused.state-untrusted") as caught:
        here.lock_device("GPU-0", {}, "gpu:0")
    assert caught.value.next.endswith(f"sudo chown root {here.path}")
    os.chown(here.path, 0, 0)
    here.path.chmod(0o777)
    with fails("refused.state-untrusted") as caught:
        here.lock_device("GPU-0", {}, "gpu:0")
    assert caught.value.next.endswith(f"sudo chmod go-w {here.path}")
    here.append_log("not even this")
    assert list(here.path.iterdir()) == []


def test_a_folder_that_somebody_else_makes_meanwhile_is_fine(tmp_path):
    class Late(type(tmp_path)):
        def exists(self):
            return False

    folder = tmp_path / "a"
    folder.mkdir(mode=0o700)
    safe_files.make_folder(Late(folder))
    assert folder.stat().st_mode & 0o777 == 0o700


# ---- two state folders, and containers


def make_two(environ, tmp_path):
    """Return two state folders on one machine: they share the locks and nothing else."""
    shared = {**environ, "JOULELAB_LOCKS": str(tmp_path / "locks")}
    return [StateFolder({**shared, "JOULELAB_STATE": str(tmp_path / name)}) for name in ("one", "two")]


def test_a_device_has_one_lock_whatever_the_state_folder_is(environ, tmp_path):
    one, two = make_two(environ, tmp_path)
    lock = one.lock_device("GPU-0", WHO, "gpu:0")
    with fails("refused.device-busy") as caught:
        two.lock_device("GPU-0", {}, "gpu:0")
    assert caught.value.what.startswith("held by alice (pid 7")
    assert leftovers.is_locked(str(tmp_path / "locks" / "GPU-0.lock"))
    lock.close()
    two.lock_device("GPU-0", {}, "gpu:0").close()


def test_a_cap_that_was_left_in_another_state_folder_is_named_and_not_taken_for_the_original(environ, tmp_path):
    one, two = make_two(environ, tmp_path)
    lock = one.lock_device("GPU-0", WHO, "gpu:0")
    one.write_journal(journal())
    lock.close()  # as a kill does: the journal stays
    for _ in range(2):
        with fails("refused.leftover-elsewhere") as caught:
            two.lock_device("GPU-0", {}, "gpu:0")
        assert caught.value.next.startswith(f"JOULELAB_STATE={tmp_path / 'one'} joulelab cap restore; ")
    lock = one.lock_device("GPU-0", WHO, "gpu:0")
    one.remove_journal("GPU-0")
    lock.close()
    two.lock_device("GPU-0", {}, "gpu:0").close()


def test_a_note_in_the_folder_of_the_locks_counts_as_well(environ, tmp_path):
    usual = {**environ, "JOULELAB_STATE": str(tmp_path), "JOULELAB_LOCKS": str(tmp_path / "caps")}
    here, moved = StateFolder(usual), StateFolder({**usual, "JOULELAB_STATE": str(tmp_path / "moved")})
    here.lock_device("GPU-0", WHO, "gpu:0").close()
    here.write_journal(journal())
    with fails("refused.leftover-elsewhere"):
        moved.lock_device("GPU-0", {}, "gpu:0")
    here.remove_journal("GPU-0")
    moved.lock_device("GPU-0", {}, "gpu:0").close()


def test_a_note_of_a_folder_that_is_gone_counts_until_the_next_boot(environ, tmp_path, monkeypatch):
    one, two = make_two(environ, tmp_path)
    lock = one.lock_device("GPU-0", WHO, "gpu:0")
    one.write_journal(journal())
    lock.close()
    shutil.rmtree(tmp_path / "one")
    with fails("refused.leftover-elsewhere") as caught:
        two.lock_device("GPU-0", {}, "gpu:0")
    assert caught.value.next.endswith(f"then remove {tmp_path / 'locks' / 'GPU-0.lock'}")
    monkeypatch.setattr(state, "read_boot_id", lambda: "another boot")
    two.lock_device("GPU-0", {}, "gpu:0").close()


def test_a_keeper_that_was_killed_before_it_noted_anything_is_no_matter(environ, tmp_path):
    one, two = make_two(environ, tmp_path)
    one.lock_device("GPU-0", WHO, "gpu:0").close()
    (tmp_path / "locks" / "GPU-0.lock").write_text(json.dumps({"notes": str(one.path)}))
    two.lock_device("GPU-0", {}, "gpu:0").close()


def test_locks_that_cannot_be_written_name_their_variable(environ):
    here = StateFolder({**environ, "JOULELAB_LOCKS": "/dev/null/locks"})
    with fails("refused.state-not-writable") as caught:
        here.lock_device("GPU-0", {}, "gpu:0")
    assert caught.value.where == "/dev/null/locks"
    assert os.geteuid() or "JOULELAB_LOCKS" in caught.value.next


def test_the_locks_of_a_twin_are_its_own(environ, tmp_path):
    mine = {**environ, "JOULELAB_TWIN": "truth", "JOULELAB_STATE": str(tmp_path)}
    assert leftovers.get_locks_folder(mine) == str(tmp_path / "caps")
    assert leftovers.get_locks_folder({"JOULELAB_STATE": str(tmp_path)}) == "/var/lib/joulelab/caps"


def make_proc(folder, pids, mounts):
    """Make the files of /proc that tell a container from its host."""
    (folder / "self" / "ns").mkdir(parents=True)
    (folder / "1").mkdir()
    (folder / "self" / "ns" / "pid").symlink_to(pids)
    (folder / "self" / "mountinfo").write_text("".join(f"9 1 0:9 {line} rw - ext4 /dev/sda rw\n" for line in mounts))
    return folder


@every_row(
    ("mounts", "is_shared"),
    [
        (["/ /"], False),
        (["/ /", "/var/lib/joulelab {}"], False),  # another folder of the host
        (["/ /", "{} {}"], True),
        (["/ /", "/@{} {}"], True),  # a subvolume of btrfs
        (["/ /", "/state {}"], True),  # a partition of its own
        (["/ /", "/ {}"], False),  # a disk or tmpfs of the container
        (["/ /", "/var/lib/docker/volumes/joulelab/_data {}"], False),
        (["/ /", "{} {}", "/other {}"], False),  # the last mount hides the others
        (["/ /", "{} {}", "/ {}-more"], True),
    ],
)
def test_a_container_has_to_mount_the_folder_of_its_host(tmp_path, mounts, is_shared):
    place = tmp_path / "state"
    (place / "caps").mkdir(parents=True)
    proc = make_proc(tmp_path / "proc", "pid:[4026532001]", [line.replace("{}", str(place)) for line in mounts])
    assert state.is_shared_with_host(place / "caps", proc) is is_shared


def test_outside_of_containers_the_first_process_has_the_same_folder(tmp_path):
    folder, proc = tmp_path / "caps", make_proc(tmp_path / "proc", state.HOST_PIDS, [])
    folder.mkdir()
    assert not state.is_shared_with_host(folder, proc)  # the host has no such folder
    (proc / "1" / "root").symlink_to("/")
    assert state.is_shared_with_host(folder, proc)
    (proc / "1" / "root").unlink()
    (proc / "1" / "root" / str(folder)[1:]).mkdir(parents=True)
    assert not state.is_shared_with_host(folder, proc)  # --pid=host, and a root of its own
    assert state.is_shared_with_host(folder, tmp_path / "none")
    (tmp_path / "file").touch()
    assert state.is_shared_with_host(folder, tmp_path / "file")


def test_caps_are_refused_in_a_container_that_keeps_its_state_to_itself(environ, tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "DEFAULT_STATE", str(tmp_path / "machine"))
    proc = make_proc(tmp_path / "proc", "pid:[4026532001]", ["/ /"])
    usual = {key: value for key, value in environ.items() if key not in ("JOULELAB_STATE", "JOULELAB_LOCKS")}
    with fails("refused.state-not-shared") as caught:
        StateFolder(usual, proc=proc).lock_device("GPU-0", {}, "gpu:0")
    assert f"docker run -v {tmp_path / 'machine'}:{tmp_path / 'machine'}" in caught.value.next
    assert not (tmp_path / "machine" / "caps" / "GPU-0.lock").exists()


CONTAINER = """
import os
from joulelab.control.state import StateFolder
from joulelab.core.errors import Refused
try:
    StateFolder({}).lock_device("GPU-0", {}, "gpu:0")
except Refused as error:
    print(error.code)
"""


@pytest.mark.system
@ROOT
def test_a_real_container_is_recognised(environ):
    """A new pid namespace with a /var/lib of its own, as containers have."""
    script = 'mount -t tmpfs none /var/lib && exec "$@"'
    words = ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "sh", "-c", script, "sh", sys.executable, "-c"]
    done = subprocess.run([*words, CONTAINER], env=environ, capture_output=True, text=True)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    assert done.stdout == "refused.state-not-shared\n", done.stderr
