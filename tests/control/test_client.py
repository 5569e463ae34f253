from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time

import pytest
from tests.control.fake import fails, hear, wait_for

from joulelab.control import client
from joulelab.control.client import CapRequest, Caps, restore_leftovers
from joulelab.control.keeper import ROOT_DENIED
from joulelab.control.leftovers import has_leftovers
from joulelab.control.state import StateFolder
from joulelab.core.process_identity import read_start_ticks
from joulelab.core.setting import GET_PERMISSION

pytestmark = pytest.mark.system

TWO = [CapRequest("gpu:0", 170.0), CapRequest("gpu:1", 0.5, "share")]


def keeper_of(caps):
    return caps._link.pid


def test_nothing_is_started_before_it_is_needed(environ):
    with Caps(environ) as caps:
        assert list(caps.fds) == []
        assert caps.serve() == []
        assert caps.release() == []
    caps.close()


def test_status_needs_nothing_and_leaves_nothing(environ):
    with Caps(environ) as caps:
        status = caps.status()
        assert list(caps.fds) == []
    assert [(d.scope, d.requested, d.lowest, d.highest, d.holder) for d in status.devices] == [
        ("gpu:0", 300.0, 100.0, 400.0, None),
        ("gpu:1", 320.0, 100.0, 400.0, None),
    ]
    assert ("gpu:9", "it is out") in status.missing
    assert json.dumps(status.to_json())
    assert not StateFolder(environ).path.exists()


def test_caps_are_set_changed_and_put_back(environ, files):
    with Caps(environ, who={"command": "train", "run": "r1"}) as caps:
        held = caps.set(TWO)
        assert [(h.scope, h.asked, h.requested, h.enforced, h.found, h.default) for h in held] == [
            ("gpu:0", 170.0, 170.0, 170.0, 300.0, 350.0),
            ("gpu:1", 175.0, 175.0, 175.0, 320.0, 350.0),
        ]
        assert held[0].to_json()["device"] == "GPU-0"
        (again,) = caps.set([CapRequest("GPU-0", 150.0)])
        assert (again.requested, again.found) == (150.0, 300.0)
        first, _ = caps.status().devices
        holder = f"root (pid {os.getpid()}, keeper {keeper_of(caps)}, `train`, since "
        assert first.holder.startswith(holder) or os.getuid()
        released = caps.release()
        assert [(r.device, r.outcome, r.now) for r in released] == [
            ("GPU-1", "restored", 320.0),
            ("GPU-0", "restored", 300.0),
        ]
        caps.set([CapRequest("gpu:0", 140.0)])
        keeper = keeper_of(caps)
    assert (files.get("GPU-0"), files.get("GPU-1")) == ({"cap_w": 300.0}, {"cap_w": 320.0})
    assert read_start_ticks(keeper) is None
    assert not StateFolder(environ).list_devices()


def test_a_refusal_is_an_error_of_ours(environ, files):
    with Caps(environ) as caps:
        with fails("refused.out-of-range") as caught:
            caps.set([CapRequest("gpu:0", 99.0)])
        assert "100 to 400 W" in str(caught.value)
        with fails("config.not-a-number"):
            caps.set([CapRequest("gpu:0", float("nan"))])
        with fails("config.number-of-devices"):
            caps.set([])
        files.flaws("GPU-1", deny=True)
        with fails("denied") as caught:
            caps.set(TWO)
        assert caught.value.next == (GET_PERMISSION if os.getuid() else ROOT_DENIED)
        files.flaws("GPU-1", bug=True)
        with fails("error.keeper-failed") as caught:
            caps.set(TWO)
        assert caught.value.why == "RuntimeError('a bug')"
        files.flaws("GPU-1", shift=9.0)
        with fails("refused.not-kept") as caught:
            caps.set(TWO)
        assert "184 W" in caught.value.why
        assert caps.release() == []
    assert files.get("GPU-0") == {"cap_w": 300.0}


def test_a_second_client_is_refused_and_one_that_waits_a_moment_is_not(environ, files, monkeypatch):
    monkeypatch.setattr(client, "BUSY_WAIT_S", 0.1)
    with Caps(environ, who={"command": "first"}) as first, Caps(environ) as second:
        first.set([CapRequest("gpu:0", 170.0)])
        with fails("refused.device-busy") as caught:
            second.set([CapRequest("gpu:0", 200.0)])
        assert f"(pid {os.getpid()}, keeper {keeper_of(first)}, `first`, since" in caught.value.what
        second.set([CapRequest("gpu:1", 200.0)])
        monkeypatch.setattr(client, "BUSY_WAIT_S", 120.0)
        timer = threading.Timer(0.2, first.release)
        timer.start()
        assert second.set([CapRequest("gpu:0", 200.0)])[0].found == 300.0
        timer.join()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.campaign), signal.SIGSEGV])
def test_a_keeper_that_died_is_started_again(environ, files, number):
    with Caps(environ) as caps:
        caps.set(TWO)
        died = keeper_of(caps)
        os.kill(died, number)
        heard = hear(caps, "keeper-started")
        assert [e["event"] for e in heard] == ["keeper-died", "keeper-started"]
        assert heard[0] == {"event": "keeper-died", "keeper": f"keeper {died}", "why": f"it was ended by {number.name}"}
        assert [c["requested"] for c in heard[1]["caps"]] == [170.0, 175.0]
        assert keeper_of(caps) != died
        assert [(d.requested, d.holder is None) for d in caps.status().devices] == [(170.0, False), (175.0, False)]
        assert [(r.outcome, r.found) for r in caps.release()] == [("restored", 320.0), ("restored", 300.0)]


def test_a_keeper_that_died_unnoticed_is_no_matter(environ, files):
    with Caps(environ) as caps:
        caps.set(TWO)
        os.kill(keeper_of(caps), signal.SIGKILL)
        (held,) = caps.set([CapRequest("gpu:0", 150.0)])
        assert held.found == 300.0
        assert files.get("GPU-1") == {"cap_w": 175.0}
        assert [e["event"] for e in caps.serve()] == ["keeper-died"]
        os.kill(keeper_of(caps), signal.SIGKILL)
        assert sorted((r.device, r.outcome) for r in caps.release()) == [("GPU-0", "restored"), ("GPU-1", "restored")]
    assert (files.get("GPU-0"), files.get("GPU-1")) == ({"cap_w": 300.0}, {"cap_w": 320.0})


def test_what_somebody_else_has_finished_is_told(environ, files):
    with Caps(environ) as caps:
        caps.set(TWO)
        os.kill(keeper_of(caps), signal.SIGKILL)
        os.waitpid(keeper_of(caps), 0)  # somebody else's wait
        assert has_leftovers(environ)
        assert {r.outcome for r in restore_leftovers(environ)} == {"restored"}
        assert not has_leftovers(environ)
        assert restore_leftovers(environ) == []
        assert {(r.outcome, r.now) for r in caps.release()} == {("left", None)}


def test_a_keeper_that_is_told_to_end_puts_back_and_is_not_started_again(environ, files):
    with Caps(environ) as caps:
        caps.set(TWO)
        os.kill(keeper_of(caps), signal.SIGTERM)
        (event,) = hear(caps, "caps-released")
        assert event["problem"].endswith("got SIGTERM")
        assert {d["outcome"] for d in event["devices"]} == {"restored"}
        assert (files.get("GPU-0"), files.get("GPU-1")) == ({"cap_w": 300.0}, {"cap_w": 320.0})
        wait_for(lambda: caps.serve() == [] and not caps.fds)
        assert {r.outcome for r in caps.release()} == {"restored"}
        assert caps.release() == []


def test_a_release_that_a_signal_forestalled_tells_once(environ, files):
    with Caps(environ) as caps:
        caps.set([CapRequest("gpu:0", 170.0)])
        keeper = keeper_of(caps)
        os.kill(keeper, signal.SIGTERM)
        wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0})
        (told,) = caps.release()
        assert told.outcome == "restored"


def test_a_keeper_without_caps_that_dies_is_not_missed(environ):
    with Caps(environ) as caps:
        caps.set([CapRequest("gpu:0", 170.0)])
        caps.release()
        os.kill(keeper_of(caps), signal.SIGTERM)
        wait_for(lambda: not (caps.serve() or caps.fds))
        assert caps.release() == []


@pytest.mark.parametrize(
    ("nth", "where"),
    [
        (1, "after set"),
        (2, "before set"),
        pytest.param(1, "before set", marks=pytest.mark.campaign),
        pytest.param(2, "after set", marks=pytest.mark.campaign),
    ],
)
def test_a_keeper_killed_in_the_middle_of_a_set_leaves_nothing(environ, files, nth, where):
    # The first set asks, the second puts back.
    files.flaws("GPU-0", die=where, nth=nth)
    with Caps(environ) as caps:
        assert caps.set([CapRequest("gpu:0", 170.0)])[0].found == 300.0
        assert {r.outcome for r in caps.release()} <= {"restored", "as found"}
    assert (files.get("GPU-0"), StateFolder(environ).list_devices()) == ({"cap_w": 300.0}, [])


@pytest.mark.parametrize("where", ["before set", pytest.param("after set", marks=pytest.mark.campaign)])
def test_keepers_killed_twice_in_a_row_are_replaced(environ, files, where):
    files.flaws("GPU-0", die=[where] * 2)
    with Caps(environ) as caps:
        assert caps.set([CapRequest("gpu:0", 170.0)])[0].found == 300.0
        assert files.read("GPU-0")["flaws"] == {"die": []}
        files.flaws("GPU-0", die=[where] * 2)
        (outcome,) = caps.release()
        assert outcome.outcome in ("restored", "as found")
    assert (files.get("GPU-0"), StateFolder(environ).list_devices()) == ({"cap_w": 300.0}, [])


def test_a_client_gives_up_keepers_that_always_die_and_names_the_caps_in_force(environ, files, monkeypatch):
    monkeypatch.setattr(client, "MOST_KEEPERS", 1)
    with Caps(environ) as caps:
        files.flaws("GPU-0", die=["after set", "before set"])  # over the request, then over its undoing
        with fails("error.keeper-died") as caught:
            caps.set(TWO[:1])
        assert (files.get("GPU-0"), files.read("GPU-0")["flaws"]) == ({"cap_w": 170.0}, {"die": []})
        assert caught.value.why == "gpu:0 may still be at 170 W instead of 300 W"
        assert caught.value.next == "joulelab cap restore"
        assert [one.outcome for one in restore_leftovers(environ)] == ["restored"]
        caps.set(TWO)
        assert client.word_caps_left(environ) == []
        files.flaws("GPU-0", die=["before set"] * 2)  # over the release, then over the restore
        outcomes = {one.device: one for one in caps.release()}
        assert outcomes["GPU-0"].outcome == "failed"
        assert outcomes["GPU-0"].message.startswith("gpu:0 may still be at 170 W instead of 300 W: caps: the keeper")
        assert outcomes["GPU-0"].message.endswith("1 times in a row; joulelab cap restore")
        StateFolder(environ).get_journal_path("GPU-2").write_text("{")
        sentences = client.word_caps_left(environ)
        assert [text.split()[0] for text in sentences] == ["gpu:0", f"{StateFolder(environ).path}/GPU-2.json:"]
        StateFolder(environ).get_journal_path("GPU-2").unlink()
        restore_leftovers(environ)
    assert (files.get("GPU-0"), files.get("GPU-1")) == ({"cap_w": 300.0}, {"cap_w": 320.0})


def test_a_request_whose_keeper_died_is_undone_at_once(environ, files, monkeypatch):
    monkeypatch.setattr(client, "MOST_KEEPERS", 1)
    with Caps(environ) as caps:
        files.flaws("GPU-0", die="after set")
        with fails("error.keeper-died") as caught:
            caps.set(TWO[:1])
        assert (files.get("GPU-0"), files.read("GPU-0")["flaws"]) == ({"cap_w": 300.0}, {})
        assert "may still be" not in str(caught.value)
        assert [one.outcome for one in caps.release()] == ["restored"]


def test_a_request_that_failed_beside_held_caps_is_undone_at_the_end(environ, files, monkeypatch):
    monkeypatch.setattr(client, "MOST_KEEPERS", 1)
    with Caps(environ) as caps:
        caps.set([CapRequest("gpu:0", 170.0)])
        files.flaws("GPU-1", die="after set")
        with fails("error.keeper-died"):
            caps.set([CapRequest("gpu:1", 170.0)])
        assert files.get("GPU-1") == {"cap_w": 170.0}
        assert {(one.device, one.outcome) for one in caps.release()} == {("GPU-0", "restored"), ("GPU-1", "restored")}
    assert files.get("GPU-1") == {"cap_w": 320.0}


def test_a_new_keeper_that_is_refused_is_told_and_tried_again(environ, files):
    with Caps(environ) as caps, Caps(environ, who={"command": "thief"}) as other:
        caps.set([CapRequest("gpu:0", 170.0)])
        os.kill(keeper_of(caps), signal.SIGKILL)
        wait_for(lambda: read_start_ticks(keeper_of(caps)) is None)  # then its device is free
        other.set([CapRequest("gpu:0", 200.0)])
        heard = hear(caps, "caps-problem")
        assert "gpu:0: held by" in heard[-1]["problem"]
        assert caps.due_ns < client.NEVER_NS
        other.release()
        heard = hear(caps, "keeper-started")
        assert heard[-1]["caps"][0]["found"] == 300.0
        files.flaws("GPU-0", refuse=True)
        os.kill(keeper_of(caps), signal.SIGKILL)
        heard = hear(caps, "caps-problem")
        assert "flaw refuse" in heard[-1]["problem"]
        assert caps.due_ns < client.NEVER_NS  # it may be over some time
        (told,) = caps.release()
        assert (told.outcome, told.now) == ("failed", None)
        files.flaws("GPU-0")
        restore_leftovers(environ)
    assert files.get("GPU-0") == {"cap_w": 300.0}


def test_a_set_names_all_caps_while_a_new_keeper_has_none_of_them(environ, files):
    with Caps(environ) as caps:
        caps.set(TWO)
        files.flaws("GPU-0", refuse=True)
        os.kill(keeper_of(caps), signal.SIGKILL)
        hear(caps, "caps-problem")
        files.flaws("GPU-0")
        caps.set([CapRequest("gpu:0", 180.0)])
        assert (files.get("GPU-0"), files.get("GPU-1")) == ({"cap_w": 180.0}, {"cap_w": 175.0})
        assert caps.due_ns == client.NEVER_NS


def test_a_cap_that_is_out_of_range_by_now_is_gone_and_put_back(environ, files):
    with Caps(environ) as caps:
        caps.set([CapRequest("gpu:0", 0.5, "share")])
        files.default("GPU-0", cap_w=1000.0)
        os.kill(keeper_of(caps), signal.SIGKILL)
        *_, event = hear(caps, "caps-problem")
        assert "500 W is out of range" in event["problem"]
        assert caps.due_ns == client.NEVER_NS
        wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0})
        assert wait_for(lambda: caps.serve() or caps._early_outcomes)[0].outcome == "restored"
        assert [r.outcome for r in caps.release()] == ["restored"]


def test_a_keeper_that_cannot_be_started_is_told_and_tried_again(environ, files, monkeypatch):
    with Caps(environ) as caps:
        caps.set([CapRequest("gpu:0", 170.0)])
        os.kill(keeper_of(caps), signal.SIGKILL)
        with monkeypatch.context() as patched:
            patched.setattr(sys, "executable", "/nonexistent/python")
            heard = hear(caps, "caps-problem")
            assert "cannot start the keeper" in heard[-1]["problem"]
            (told,) = Caps.release(caps)
            assert told.outcome == "failed"
            assert "gpu:0 may still be at 170 W instead of 300 W" in told.message
    assert [r.outcome for r in restore_leftovers(environ)] == ["restored"]


def test_a_keeper_that_lived_long_is_started_again_at_once(environ):
    with Caps(environ) as caps:
        caps.set([CapRequest("gpu:0", 170.0)])
        caps._started_ns -= 2 * client.HEALTHY_NS
        caps._delay_ns = client.LAST_RETRY_NS
        os.kill(keeper_of(caps), signal.SIGKILL)
        wait_for(lambda: read_start_ticks(keeper_of(caps)) is None)
        assert hear(caps, "keeper-started")


def test_a_keeper_that_hangs_is_not_waited_for_for_ever(environ, files, monkeypatch):
    monkeypatch.setattr(client, "ANSWER_TIMEOUT_S", 0.4)
    files.flaws("GPU-0", hang=1.0)
    with Caps(environ) as caps:
        with fails("error.no-answer"):
            caps.set([CapRequest("gpu:0", 170.0)])
        assert list(caps.fds) == []
        assert caps.due_ns == client.NEVER_NS
        files.flaws("GPU-0")
    # It notices that nobody waits, and puts back; where that was is in the log.
    wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0} and not StateFolder(environ).list_devices())


def test_several_threads_share_one_keeper(environ, files):
    with Caps(environ) as caps:
        problems = []

        def work(scope, device, base):
            try:
                for step in range(10):
                    (held,) = caps.set([CapRequest(scope, base + step)])
                    assert (held.device, held.requested) == (device, base + step)
            except BaseException as error:
                problems.append(error)

        threads = [
            threading.Thread(target=work, args=a) for a in (("gpu:0", "GPU-0", 150.0), ("gpu:1", "GPU-1", 250.0))
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            caps.serve()
            time.sleep(0.01)
        assert not problems
        assert {r.outcome for r in caps.release()} == {"restored"}


def test_a_program_with_many_files_has_caps_too(environ):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2048)), hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with Caps(environ) as caps:
            caps.set([CapRequest("gpu:0", 170.0)])
            assert min(caps.fds) > 1024
            assert caps.serve() == []
            assert [r.outcome for r in caps.release()] == ["restored"]
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_news_that_a_client_does_not_know_are_no_matter(environ):
    with Caps(environ) as caps:
        caps.set([CapRequest("gpu:0", 170.0)])
        caps._handle_message({"id": 0, "is": "news"})
        assert caps.serve() == []


def test_caps_that_were_held_when_a_keeper_hung_are_set_again(environ, files, monkeypatch):
    with Caps(environ) as caps:
        caps.set([CapRequest("gpu:0", 170.0)])
        files.flaws("GPU-1", hang=1.0)
        with monkeypatch.context() as patched:
            patched.setattr(client, "ANSWER_TIMEOUT_S", 0.3)
            with fails("error.no-answer"):
                caps.set([CapRequest("gpu:1", 170.0)])
        files.flaws("GPU-1")
        assert hear(caps, "keeper-started")[-1]["caps"][0]["requested"] == 170.0
        assert [(r.device, r.outcome) for r in caps.release()] == [("GPU-0", "restored")]
    wait_for(lambda: files.get("GPU-1") == {"cap_w": 320.0} and not StateFolder(environ).list_devices())


def test_what_is_polled_is_open_while_another_thread_buries_a_keeper(environ):
    """The supervisor polls in its own thread; a file that is closed cannot be polled, and would end its loop."""
    seen, done = [], threading.Event()
    with Caps(environ) as caps:
        caps.set(TWO[:1])

        def look():
            while not done.is_set():
                seen.extend(fd for fd in caps.fds if fd < 0)

        watch = threading.Thread(target=look)
        watch.start()
        try:
            for _ in range(2):
                os.kill(keeper_of(caps), signal.SIGKILL)
                hear(caps, "keeper-started")
        finally:
            done.set()
            watch.join()
    assert seen == []
