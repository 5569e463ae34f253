from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.control.daemon import ROOT, Capd
from tests.control.fake import as_nobody, fails, for_everybody, wait_for, world

from joulelab.cli import capd as capd_command
from joulelab.control import client
from joulelab.control.client import CapRequest, Caps, restore_leftovers
from joulelab.control.daemon import MAX_CLIENTS_PER_USER, RUN_AS_ROOT
from joulelab.control.keeper import ROOT_DENIED
from joulelab.control.leftovers import has_leftovers
from joulelab.control.state import CapJournal, StateFolder

pytestmark = pytest.mark.system

NOBODY = 65534


@pytest.fixture
def capd(environ, tmp_path):
    for_everybody(tmp_path)
    one = Capd(environ, tmp_path)
    yield one
    code = one.close()
    assert code in (0, -signal.SIGKILL)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Serve one capd to all who leave it as it was; return it and its devices."""
    folder = tmp_path_factory.mktemp("shared")
    environ, files = world(folder)
    one = Capd(environ, folder)
    yield one, files
    assert one.close() == 0


def setting(device="gpu:0", value=170.0, **more):
    return {"id": 1, "do": "set", "caps": [{"device": device, "value": value}], **more}


def test_a_client_of_capd_sets_and_puts_back(capd, files):
    with Caps(capd.environ, who={"command": "train"}) as caps:
        (held,) = caps.set([CapRequest("gpu:0", 170.0)])
        assert (held.requested, held.found, caps._link.pid) == (170.0, 300.0, None)
        device = caps.status().devices[0]
        assert f"(pid {os.getpid()}, keeper {capd.process.pid}, `train`, since" in device.holder
        with fails("refused.out-of-range"):
            caps.set([CapRequest("gpu:0", 99.0)])
        assert [r.outcome for r in caps.release()] == ["restored"]
        caps.set([CapRequest("gpu:0", 160.0)])
        files.put("GPU-0", cap_w=222.0)
        assert [r.outcome for r in caps.release()] == ["left"]
    assert [e["caps"] for e in capd.events("set")] == [[["gpu:0", 170.0, "W"]], [["gpu:0", 160.0, "W"]]]
    assert capd.events("refused")[0]["what"] == "99 W is out of range"


def test_two_clients_and_a_keeper_without_capd_exclude_each_other(capd, environ, files, monkeypatch):
    monkeypatch.setattr(client, "BUSY_WAIT_S", 0.1)
    with Caps(capd.environ) as first, Caps(capd.environ) as second, Caps(environ) as direct:
        first.set([CapRequest("gpu:0", 170.0)])
        direct.set([CapRequest("gpu:1", 170.0)])
        for other in (second, direct):
            with fails("refused.device-busy"):
                other.set([CapRequest("gpu:0", 180.0)])
        with fails("refused.device-busy"):
            second.set([CapRequest("gpu:1", 180.0)])
        assert second.release() == []


@pytest.mark.parametrize(
    "frame",
    [
        b"{\n",
        b"\n",
        b"[]\n",
        b"\xff\xfe\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"do":"dance"}\n',
        b"[" * 60000 + b"\n",
        b"x" * 100_000,
        b"x" * 100_000 + b"\n",
        b'{"do":"set","caps":[{"device":"gpu:0","value":"170"}]}\n',
        b'{"do":"set","caps":[{"device":"../../etc/passwd","value":170.0}],"id":1e300}\n',
    ],
)
def test_nonsense_is_refused_and_what_was_held_is_put_back(shared, frame):
    capd, files = shared
    with capd.connect() as sock:
        assert capd.ask(sock, setting())["is"] == "set"
        answer = capd.ask(sock, frame)
        assert answer["is"] == "refused"
        assert "Traceback" not in json.dumps(answer)
        assert capd.hear(sock) is None  # it hangs up
    wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0})
    assert capd.is_well()


def test_half_a_frame_waits_and_goes_with_its_client(shared):
    capd, files = shared
    with capd.connect() as half, capd.connect() as other:
        half.sendall(json.dumps(setting()).encode()[:30])
        assert capd.ask(other, setting())["is"] == "set"
        other.close()
        wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0})
        assert capd.ask(half, json.dumps(setting()).encode()[30:] + b"\n")["is"] == "set"
        half.sendall(b'{"id":2,')
    wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0})
    wait_for(lambda: capd.events("released")[-1]["why"] == "the client closed")


def test_a_client_that_vanishes_is_released_even_if_its_child_lives(capd, files):
    code = (
        "import os, sys, time; from joulelab.control.client import Caps, CapRequest\n"
        "caps = Caps(os.environ); caps.set([CapRequest('gpu:0', 170.0)])\n"
        "child = os.fork() or (time.sleep(600), os._exit(0))\n"
        "print(child, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env=capd.environ, stdout=subprocess.PIPE)
    with process.stdout as out:
        child = int(out.readline())
    assert files.get("GPU-0") == {"cap_w": 170.0}
    process.kill()
    process.wait()
    wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0})
    assert capd.wait("released")["why"] == "the client ended"
    os.kill(child, signal.SIGKILL)
    assert capd.is_well()


@pytest.mark.no_cover
def test_a_thousand_clients_at_once(capd, files):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    clients = [capd.connect() for _ in range(1000)]
    try:
        for number, sock in enumerate(clients):
            with contextlib.suppress(BrokenPipeError):
                sock.sendall(json.dumps(setting(value=150.0 + number / 10)).encode() + b"\n")
        answers = [capd.hear(sock) for sock in clients]
        found = Counter(a["is"] if a["is"] == "set" else a["error"]["code"] for a in answers)
        assert found == {
            "set": 1,
            "refused.device-busy": MAX_CLIENTS_PER_USER - 1,
            "refused.too-many-clients": 1000 - MAX_CLIENTS_PER_USER,
        }
        winner = next(k for k, a in enumerate(answers) if a["is"] == "set")
        assert files.get("GPU-0") == {"cap_w": 150.0 + winner / 10}
    finally:
        for sock in clients:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0})
    wait_for(lambda: len(list(Path(f"/proc/{capd.process.pid}/fd").iterdir())) < 40)
    wait_for(capd.is_well)


def test_a_client_that_never_reads_keeps_nobody_waiting(capd, files):
    with capd.connect() as silent, capd.connect() as polite:
        assert capd.ask(silent, setting("gpu:1", 200.0))["is"] == "set"
        silent.setblocking(False)
        for number in range(5):
            with contextlib.suppress(BlockingIOError):
                while True:
                    silent.send(b'{"id":3,"do":"status"}\n' * 200)
            assert capd.ask(polite, setting("gpu:0", 150.0 + number))["is"] == "set"
        assert files.get("GPU-1") == {"cap_w": 200.0}
    wait_for(lambda: files.get("GPU-1") == {"cap_w": 320.0} and files.get("GPU-0") == {"cap_w": 300.0})
    assert capd.is_well()


STRANGER = """
sock = socket.socket(socket.AF_UNIX); sock.settimeout(120); sock.connect(os.environ["JOULELAB_CAPD"])
for frame in json.loads(os.environ["FRAMES"]):
    try: sock.sendall(json.dumps(frame).encode() + b"\\n")
    except OSError: pass
    data = b""
    while not data.endswith(b"\\n"):
        try: more = sock.recv(65536)
        except OSError: more = b""
        if not more: break
        data += more
    if not data: break
    print(data.decode(), end="")
"""


def as_stranger(capd, *frames, groups=()):
    out = as_nobody(STRANGER, {**capd.environ, "FRAMES": json.dumps(frames)}, groups=groups)
    return [json.loads(line) for line in out.splitlines()]


def test_a_client_that_goes_without_reading_is_released(shared):
    capd, files = shared
    sock = capd.connect()
    sock.sendall(json.dumps(setting()).encode() + b"\n")
    wait_for(lambda: files.get("GPU-0") == {"cap_w": 170.0} and select.select([sock], (), (), 0)[0])
    sock.close()
    wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0})
    assert capd.is_well()


@ROOT
def test_groups_count_as_the_kernel_tells_them(environ, tmp_path, files):
    for_everybody(tmp_path)
    capd = Capd(environ, tmp_path, "[[allow]]\ngroups = [54321]\n")
    try:
        assert as_stranger(capd, setting())[0]["is"] == "refused"
        assert as_stranger(capd, setting(), groups=[54000, 54321])[0]["is"] == "set"
    finally:
        capd.close()


@ROOT
def test_users_that_are_not_named_are_refused(capd, files):
    (answer,) = as_stranger(capd, setting(), setting())
    assert answer["is"] == "refused"
    assert (answer["error"]["kind"], answer["error"]["code"]) == ("Refused", "refused.unknown-user")
    assert "ask the administrator" in answer["error"]["next"]
    assert files.get("GPU-0") == {"cap_w": 300.0}
    assert capd.events("refused")[0]["uid"] == NOBODY
    assert capd.is_well()


@ROOT
def test_users_that_are_named_are_held_to_their_range(environ, tmp_path, files):
    for_everybody(tmp_path)
    capd = Capd(environ, tmp_path, "[[allow]]\nusers = ['nobody']\ndevices = ['gpu:0']\nlowest_share = 0.5\n")
    try:
        answers = as_stranger(
            capd, setting("gpu:1", 200.0), setting("gpu:0", 150.0), setting("gpu:0", 200.0, who={"user": "root"})
        )
        assert [a["is"] for a in answers] == ["refused", "refused", "set"]
        assert [a["error"]["code"] for a in answers[:2]] == ["refused.device-not-allowed", "refused.value-not-allowed"]
        assert "175 to 400 W" in answers[1]["error"]["why"]
        wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0})
        assert capd.events("set")[0]["user"] == "nobody"
        # Reload: nobody is nobody any more; a wrong file changes nothing.
        capd.config.write_text("")
        capd.process.send_signal(signal.SIGHUP)
        wait_for(lambda: capd.events("reloaded"))
        assert as_stranger(capd, setting())[0]["error"]["code"] == "refused.unknown-user"
        capd.config.write_text("[[alow]]")
        capd.process.send_signal(signal.SIGHUP)
        wait_for(lambda: capd.events("problem"))
        assert "the former configuration stays" in capd.events("problem")[0]["what"]
        assert capd.is_well()
    finally:
        capd.close()


def test_capd_that_ends_puts_everything_back_and_tells(capd, files):
    with Caps(capd.environ) as caps:
        caps.set([CapRequest("gpu:0", 170.0), CapRequest("gpu:1", 170.0)])
        capd.process.terminate()
        capd.process.wait()
        assert (files.get("GPU-0"), files.get("GPU-1")) == ({"cap_w": 300.0}, {"cap_w": 320.0})
        wait_for(lambda: any(e["event"] == "caps-released" for e in caps.serve()))
        assert {r.outcome for r in caps.release()} == {"restored"}
    assert not capd.path.exists()


def test_capd_that_is_killed_puts_back_when_it_is_started_again(capd, files):
    with Caps(capd.environ) as caps:
        caps.set([CapRequest("gpu:0", 170.0)])
        capd.process.kill()
        capd.process.wait()
        assert has_leftovers(capd.environ)
        assert files.get("GPU-0") == {"cap_w": 170.0}
        capd.start()
        wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0})
        assert capd.wait("restored")["outcome"] == "restored"
        heard = []
        wait_for(lambda: heard.extend(caps.serve()) or any(e["event"] == "keeper-started" for e in heard))
        assert [e["event"] for e in heard] == ["keeper-died", "keeper-started"]
        assert files.get("GPU-0") == {"cap_w": 170.0}
    assert files.get("GPU-0") == {"cap_w": 300.0}


def test_capd_finishes_what_others_left_when_asked(capd, files, environ):
    here = StateFolder(environ)
    here.lock_device("GPU-0", {}, "gpu:0").close()
    here.write_journal(CapJournal("GPU-0", "gpu:0", "power", {"cap_w": 300.0}, None, [{"cap_w": 170.0}]))
    files.put("GPU-0", cap_w=170.0)
    assert [r.outcome for r in restore_leftovers(capd.environ)] == ["restored"]
    assert files.get("GPU-0") == {"cap_w": 300.0}


def test_a_setter_that_fails_in_its_own_way_ends_no_capd(capd, files):
    files.flaws("GPU-0", bug=True)
    with Caps(capd.environ) as caps:
        with fails("error.capd-failed"):
            caps.set([CapRequest("gpu:0", 170.0)])
        files.flaws("GPU-0", deny=True)
        with fails("denied") as caught:
            caps.set([CapRequest("gpu:0", 170.0)])
        assert caught.value.next == (RUN_AS_ROOT if os.getuid() else ROOT_DENIED)
    assert capd.events("problem")[0]["what"] == "RuntimeError('a bug')"


def test_a_device_lost_when_its_client_goes_is_put_back_later(capd, files):
    with Caps(capd.environ) as caps:
        caps.set([CapRequest("gpu:0", 170.0)])
        files.flaws("GPU-0", lost=True)
        assert [r.outcome for r in caps.release()] == ["failed"]
    with capd.connect() as sock:
        files.flaws("GPU-0")
        assert capd.ask(sock, setting())["is"] == "set"
        files.flaws("GPU-0", lost=True)
    wait_for(lambda: has_leftovers(capd.environ))
    files.flaws("GPU-0")
    assert [r.outcome for r in restore_leftovers(capd.environ)] == ["restored"]


def test_a_log_that_nobody_reads_ends_no_capd(environ, tmp_path, files):
    config, path = tmp_path / "capd.toml", tmp_path / "capd.sock"
    config.write_text("")
    config.chmod(0o644)
    code = "from joulelab.cli.capd import command; command()"
    command = [sys.executable, "-c", code, "--config", str(config), "--socket", str(path)]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE)
    assert process.stdout.readline() == f"ready: socket {path}, pid {process.pid}\n".encode()
    process.stdout.close()
    with Caps({**environ, "JOULELAB_CAPD": str(path)}) as caps:
        caps.set([CapRequest("gpu:0", 170.0)])
        assert [r.outcome for r in caps.release()] == ["restored"]
    process.terminate()
    assert process.wait(timeout=120) in (0, 120)  # Python itself minds the closed output at its very end


def test_a_log_whose_reader_hangs_holds_nothing_up(monkeypatch):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    with os.fdopen(reader, "rb") as log, os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        capd_command._print_line("a line that is lost")
        log.read(8192)
        capd_command._print_line("a line")
        monkeypatch.undo()
        output.close()
        assert log.read().endswith(b"xa line\n")
