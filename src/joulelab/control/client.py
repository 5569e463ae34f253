"""Set caps from a program; the original caps are restored however the program ends."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from joulelab.control.link import CapdUnavailable, KeeperLink, connect_keeper
from joulelab.control.protocol import CapDevice, CapOutcome, CapRequest, CapStatus, HeldCap, rebuild_error
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, JoulelabError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["CapDevice", "CapOutcome", "CapRequest", "CapStatus", "Caps", "HeldCap", "restore_leftovers"]
ANSWER_TIMEOUT_S = 60.0  # a driver that wakes many GPUs is slow
RELEASE_TIMEOUT_S = 20.0
BUSY_WAIT_S = 1.0  # a device whose last keeper is just restoring is free in a moment
CAPD_WAIT_S = 10.0  # a killed capd is restarted in a moment
MOST_KEEPERS = 10  # asked for one answer, if somebody kills them again and again
FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 1.0  # between two of them
RESTORE = "joulelab cap restore"
NEVER_NS = 1 << 62
FIRST_RETRY_NS = NS // 4
LAST_RETRY_NS = 60 * NS
CAPD_RETRY_NS = 5 * NS  # connecting costs nothing
HEALTHY_NS = 10 * NS
MAX_PROBLEMS = 10  # reported of one outage


class Caps:
    """Hold caps for this process until `release`, `close`, or its end.

    Poll `fds` until `due_ns` and call `serve()`: it replaces a keeper that died, or waits for a new capd. Nothing
    is started before the first use. Several threads may use it; in a forked child it does nothing.
    """

    def __init__(
        self, environ: Mapping[str, str], *, who: Mapping[str, str] | None = None, guarded: bool = False
    ) -> None:
        """Take the environment, words about the client, and whether its keeper needs a guard (see `start_keeper`)."""
        self._environ = dict(environ)
        self._is_guarded = guarded
        self._who = dict(who or {})
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self._link: KeeperLink | None = None
        self._needs_capd = False  # capd held our caps: no other keeper may
        self._is_holding = False  # the keeper of this link has our caps
        self._deaths = 0  # of keepers that had been asked something
        self._has_lost_set = False  # a failed request: a device that we do not hold may be capped
        self._last_id = 0
        self._held: dict[str, tuple[HeldCap, CapRequest]] = {}  # by device
        self._early_outcomes: list[CapOutcome] = []  # restored by a keeper without our request
        self._events: deque[dict[str, Any]] = deque()
        self._problems: set[str] = set()  # reported since the caps were last set
        self._resume_id = 0
        self._cleanup_id = 0
        self._due_ns = NEVER_NS
        self._delay_ns = 0
        self._started_ns = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def fds(self) -> Sequence[int]:
        """Return the files to poll; they change when a keeper is replaced."""
        link = self._link
        # A file that another thread is closing shows -1, which cannot be polled.
        return () if link is None or self._pid != os.getpid() else [fd for fd in link.fds if fd >= 0]

    @property
    def due_ns(self) -> int:
        """Return when `serve()` is needed even if nothing becomes readable (monotonic)."""
        return self._due_ns

    def status(self) -> CapStatus:
        """Read every device, its cap and its holder; needs no root and takes no lock. Raises JoulelabError."""
        with self._mutex:
            self._check_process()
            if self._link is not None:
                return self._read_status()
            try:
                return self._read_status(direct=True)  # every user may read: capd is not needed for it
            finally:
                self._close_link()

    def set(self, requests: Sequence[CapRequest]) -> list[HeldCap]:
        """Set caps, all of them or none, and wait until they are set. Raises JoulelabError.

        Held devices that are not named keep their caps.
        """
        with self._mutex:
            self._check_process()
            for request in requests:
                if not math.isfinite(request.value):
                    what, code = f"{request.value} is not a cap", "config.not-a-number"
                    raise ConfigError(what, where=request.device, next="give a number", code=code)
            deaths = self._deaths
            try:
                return self._set_caps(requests)
            except JoulelabError as error:
                self._has_lost_set = self._has_lost_set or self._deaths > deaths
                if self._has_lost_set and not self._held:  # a keeper that died may have set some of them
                    self._early_outcomes = self.release()
                    if left := word_caps_left(self._environ):
                        error.why = "; ".join([*([error.why] if error.why else []), *left])
                        error.next = RESTORE
                raise

    def restore_leftovers(self) -> list[CapOutcome]:
        """Restore the caps of killed keepers on all free devices. Raises JoulelabError."""
        with self._mutex:
            self._check_process()
            return _read_outcomes(self._insist_on_answer(lambda: {"do": "restore"}, ANSWER_TIMEOUT_S))

    def release(self) -> list[CapOutcome]:
        """Restore the original caps and wait for it; failures are outcomes, nothing is raised."""
        with self._mutex:
            if self._pid != os.getpid():
                return []
            outcomes, self._early_outcomes = self._early_outcomes, []
            held = [one for one, _ in self._held.values()]
            self._held = {}
            self._due_ns = NEVER_NS
            return outcomes + (self._release_held(held) if held or self._has_lost_set else [])

    def serve(self) -> list[dict[str, Any]]:
        """Read the keeper's messages, and replace a keeper that died, with the same caps. Return events.

        `keeper-died` {keeper, why}, `keeper-started` {keeper, caps}, `caps-problem` {problem}, `caps-released`
        {why, devices, problem}: a signal made the keeper restore, and it is not replaced.
        """
        if self._pid != os.getpid() or not self._mutex.acquire(blocking=False):
            return []  # another thread waits for the keeper's answer and handles its messages
        try:
            if self._link is not None:
                for message in self._link.receive_messages(0.0):
                    self._handle_message(message)
                if self._link.broken:
                    self._note_death(self._link)
            if monotonic_ns() >= self._due_ns:
                self._resume_caps()
            events = list(self._events)
            self._events.clear()
            return events
        finally:
            self._mutex.release()

    def close(self) -> None:
        """Release the caps and let the keeper end; failures are in the log of caps. Closing twice is harmless."""
        if self._pid != os.getpid():
            if self._link is not None:
                self._link.abandon()
                self._link = None
            return
        with self._mutex:
            try:
                self.release()
            finally:
                self._close_link()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            what, why = "these caps belong to the process that made them", f"pid {self._pid}"
            raise JoulelabError(what, where="caps", why=why, code="error.other-process")

    def _set_caps(self, requests: Sequence[CapRequest]) -> list[HeldCap]:
        until = time.monotonic() + BUSY_WAIT_S
        while True:
            answer = self._insist_on_answer(lambda: self._make_set_request(requests), ANSWER_TIMEOUT_S)
            if answer["is"] == "set":
                return self._store_held(answer["caps"], requests)
            if not (answer["error"].get("held") and time.monotonic() < until):
                raise rebuild_error(answer["error"])
            if not answer.get("id"):  # capd has no room for another client, and has disconnected
                self._close_link()
            time.sleep(0.05)

    def _open_link(self, *, direct: bool = False, patient: bool = True) -> KeeperLink:
        if self._link is None:
            kind = {"direct": direct, "capd": self._needs_capd, "guarded": self._is_guarded, "patient": patient}
            self._link = connect_keeper(self._environ, **kind)
            self._needs_capd = self._needs_capd or self._link.pid is None
            self._started_ns = monotonic_ns()
        return self._link

    def _wait_for_link(self, *, direct: bool = False) -> KeeperLink:
        """Open the link; wait up to 10 s for a capd that is being restarted. Raises JoulelabError."""
        until = time.monotonic() + CAPD_WAIT_S
        while True:
            try:
                return self._open_link(direct=direct)
            except CapdUnavailable:
                if time.monotonic() >= until:
                    raise
            time.sleep(0.05)

    def _close_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
            self._is_holding = False

    def _read_status(self, *, direct: bool = False) -> CapStatus:
        answer = self._insist_on_answer(lambda: {"do": "status"}, ANSWER_TIMEOUT_S, direct=direct)
        if answer["is"] == "refused":
            raise rebuild_error(answer["error"])
        return CapStatus.from_json(answer)

    def _make_set_request(self, requests: Sequence[CapRequest]) -> dict[str, Any]:
        caps = [request.to_json() for request in requests]
        if not self._is_holding:  # a new keeper holds nothing yet: name the other caps, too
            named = {(request.device, request.unit == "Hz") for request in requests}
            for held, request in self._held.values():
                names = (held.scope, held.device, held.device[: -len(".clocks")])
                if not named & {(name, held.unit == "Hz") for name in names}:
                    caps.append(request.to_json())
        return {"do": "set", "caps": caps, "who": self._who}

    def _store_held(self, caps: Sequence[Mapping[str, Any]], requests: Sequence[CapRequest]) -> list[HeldCap]:
        held = [HeldCap.from_json(one) for one in caps]
        for one, request in zip(held, requests, strict=False):
            self._held[one.device] = one, CapRequest(one.device, request.value, request.unit)
        self._is_holding = True
        self._problems.clear()
        self._due_ns = NEVER_NS
        return held[: len(requests)]

    def _make_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _insist_on_answer(
        self, make_request: Callable[[], dict[str, Any]], timeout_s: float, *, direct: bool = False
    ) -> dict[str, Any]:
        """Return the answer of the first keeper that lives long enough to give one. Raises JoulelabError."""
        pause_s = FIRST_PAUSE_S
        for _ in range(MOST_KEEPERS):
            answer = self._request_answer(make_request(), timeout_s, direct=direct)
            if answer is not None:
                return answer
            time.sleep(pause_s)
            pause_s = min(LAST_PAUSE_S, 2 * pause_s)
        what, code = f"the keeper of caps died {MOST_KEEPERS} times in a row", "error.keeper-died"
        raise JoulelabError(what, where="caps", next=RESTORE, code=code)

    def _request_answer(
        self, request: dict[str, Any], timeout_s: float, *, direct: bool = False
    ) -> dict[str, Any] | None:
        """Return the keeper's answer, None if it died. Starts a keeper if needed; raises JoulelabError."""
        link = self._wait_for_link(direct=direct)
        try:
            answer = link.request_answer({**request, "id": self._make_id()}, timeout_s, self._handle_message)
        except JoulelabError:
            link.abandon()  # it notices, and restores when it can
            self._link = None
            self._is_holding = False
            if self._held:
                self._schedule_retry()
            raise
        if answer is None:
            self._deaths += 1
            self._note_death(link)
        return answer

    def _release_held(self, held: Sequence[HeldCap]) -> list[CapOutcome]:
        outcomes: list[CapOutcome] = []
        failure: JoulelabError | None = None
        try:
            answer = None if self._link is None else self._request_answer({"do": "release"}, RELEASE_TIMEOUT_S)
            outcomes, self._early_outcomes = self._early_outcomes, []  # a signal may have been first
            outcomes += _read_outcomes(answer) if answer is not None else []
            left = [one.device for one in held if one.device not in {other.device for other in outcomes}]
            if left or self._has_lost_set:  # the keeper died, or never had them: another one restores them
                restore = {"do": "restore", "devices": None if self._has_lost_set else left}
                outcomes += _read_outcomes(self._insist_on_answer(lambda: restore, RELEASE_TIMEOUT_S))
        except JoulelabError as error:
            failure = error
        self._has_lost_set = False
        known = {one.device for one in outcomes}
        return outcomes + [_word_unknown_end(one, failure) for one in held if one.device not in known]

    def _note_death(self, link: KeeperLink) -> None:
        """Report that the keeper died; replace it at once, or later if it died soon after its start."""
        self._link = None  # before it is closed: another thread may be reading `fds`
        how, name = link.close(), link.name
        known, self._is_holding = self._is_holding or self._resume_id > 0, False
        self._resume_id = self._cleanup_id = 0
        if not self._held:
            return
        if known:  # else its refusal was reported already
            self._events.append({"event": "keeper-died", "keeper": name, "why": how})
        if monotonic_ns() - self._started_ns > HEALTHY_NS:
            self._delay_ns = 0
        if self._due_ns == NEVER_NS:
            self._schedule_retry()

    def _schedule_retry(self, longest_ns: int | None = None) -> None:
        longest_ns = LAST_RETRY_NS if longest_ns is None else longest_ns
        self._due_ns = monotonic_ns() + min(longest_ns, self._delay_ns)
        self._delay_ns = min(longest_ns, max(FIRST_RETRY_NS, 2 * self._delay_ns))

    def _resume_caps(self) -> None:
        """Ask a new keeper for the caps of the last one; the answer is handled later."""
        self._due_ns = NEVER_NS
        try:
            link = self._open_link(patient=False)  # the caller has a workload to look after
        except JoulelabError as error:
            self._report_problem(f"the caps are not set again yet: {error}")
            self._schedule_retry(CAPD_RETRY_NS if isinstance(error, CapdUnavailable) else None)
            return
        self._resume_id = self._make_id()
        caps = [request.to_json() for _, request in self._held.values()]
        link.send_message({"id": self._resume_id, "do": "set", "caps": caps, "who": self._who})

    def _handle_message(self, message: dict[str, Any]) -> None:
        """Handle a message that no request waits for: the end of a keeper, or the answer to a resumed set."""
        kind, number = message.get("is"), message.get("id")
        if kind == "ended":
            self._early_outcomes += (outcomes := [CapOutcome.from_json(one) for one in message["devices"]])
            self._held.clear()
            if outcomes:
                problem = f"the caps are no longer held: {self._get_keeper_name()} got {message['why']}"
                devices = [one.to_json() for one in outcomes]
                event = {"event": "caps-released", "why": message["why"], "devices": devices, "problem": problem}
                self._events.append(event)
        elif self._resume_id and (number == self._resume_id or (kind == "refused" and not number)):
            self._resume_id = 0
            if kind == "set":
                self._store_held(message["caps"], [request for _, request in self._held.values()])
                event = {"event": "keeper-started", "keeper": self._get_keeper_name(), "caps": message["caps"]}
                self._events.append(event)
            else:
                self._handle_refusal(message["error"])
        elif self._cleanup_id and number == self._cleanup_id and kind == "released":
            self._cleanup_id = 0
            self._early_outcomes += _read_outcomes(message)

    def _get_keeper_name(self) -> str:
        return "the keeper" if self._link is None else self._link.name

    def _handle_refusal(self, fields: Mapping[str, Any]) -> None:
        """Try again later; if that is useless, give up the caps and have the original ones restored."""
        error = rebuild_error(fields)
        if not fields.get("final"):
            self._report_problem(f"the caps are not set again yet: {error}")
            self._schedule_retry()
            return
        self._report_problem(f"the caps are gone, and will not be set again: {error}")
        devices, self._held = list(self._held), {}
        assert self._link is not None  # it sent the refusal
        self._cleanup_id = self._make_id()
        self._link.send_message({"id": self._cleanup_id, "do": "restore", "devices": devices})

    def _report_problem(self, text: str) -> None:
        """Report a problem once while it lasts."""
        if text not in self._problems and len(self._problems) < MAX_PROBLEMS:
            self._problems.add(text)
            self._events.append({"event": "caps-problem", "problem": text})


def restore_leftovers(environ: Mapping[str, str]) -> list[CapOutcome]:
    """Restore the caps of killed keepers on all free devices. Raises JoulelabError."""
    with Caps(environ) as caps:
        return caps.restore_leftovers()


def word_caps_left(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each cap that a killed keeper has noted and nobody has restored; needs no keeper."""
    from joulelab.control.lease import format_value, get_main_value, get_unit
    from joulelab.control.state import StateFolder

    state, sentences = StateFolder(environ), []
    for device in state.list_devices():
        try:
            _, journal = state.inspect_device(device)
        except JoulelabError as error:
            sentences.append(str(error))
            continue
        if journal is not None:
            values = (journal.set[-1] if journal.set else None, journal.found)
            cap, found = (format_value(get_main_value(one), get_unit(journal.kind)) for one in values)
            sentences.append(f"{journal.scope} may still be at {cap} instead of {found}")
    return sentences


def _word_unknown_end(held: HeldCap, failure: JoulelabError | None) -> CapOutcome:
    outcome, text = "left", f"{held.scope}: another keeper has restored it: joulelab cap status"
    if failure is not None:
        from joulelab.control.lease import format_value

        cap, found = format_value(held.requested, held.unit), format_value(held.found, held.unit)
        outcome, text = "failed", f"{held.scope} may still be at {cap} instead of {found}: {failure}"
        text += "" if failure.next else f"; {RESTORE}"
    return CapOutcome(held.scope, held.device, outcome, held.found, None, held.unit, text)


def _read_outcomes(answer: Mapping[str, Any]) -> list[CapOutcome]:
    if answer["is"] == "refused":
        raise rebuild_error(answer["error"])
    return [CapOutcome.from_json(one) for one in answer["devices"]]
