"""Read a power analyzer of the Yokogawa WT300E family, paced by its own updates."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import DeviceLost, JoulelabError, ReadFailed, Unavailable
from joulelab.instruments.analyzer import answers, setup
from joulelab.instruments.analyzer import client as scpi
from joulelab.instruments.analyzer.accuracy import relative
from joulelab.instruments.analyzer.config import CONFIG, Options, check_resource, parse
from joulelab.instruments.analyzer.kept import Kept
from joulelab.instruments.analyzer.pace import Pace
from joulelab.instruments.analyzer.streams import STATED_AT, Stated, build, widest
from joulelab.instruments.hooks import Missing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Meter, Stream
    from joulelab.instruments.analyzer.setup import Dialogue, Link

SUMMARY = "power analyzer (Yokogawa WT300E family) by SCPI: VXI-11, socket, serial, USBTMC, GPIB"
PRIVILEGE = "none over the network; the device's group for serial (dialout) and USB"
TRIED = "the simulated node; not on hardware"
DEFAULT = False
SECRETS: tuple[str, ...] = ()

# Ranges are looked at again after so long.
_LOOK_NS = NS
_LOOK_SERIAL_NS = 10 * NS
_ADVISE_AFTER = 10  # readings in a row
_LIMIT = 0.01
_SET_UP = 3  # times timeout_s, for some thirty questions


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    check_resource(parse(config, CONFIG))


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Open the analyzer. Raises ConfigError, ReadFailed, Unavailable, Denied, MissingDependency."""
    options = parse(config, CONFIG)
    address = scpi.parse_resource(options.resource, options.where)

    def connect() -> Link:
        return scpi.open_link(address, options.where, options.timeout_s, baud_rate=options.baud_rate)

    return Analyzer(options, connect, serial=address.kind == "serial")


def diagnose(config: Mapping[str, Any], error: Exception) -> list[str]:
    """Return what is wrong with an analyzer that did not open. Raises ConfigError."""
    from joulelab.instruments.analyzer.doctor import explain

    return explain(parse(config, CONFIG), error)


class Analyzer:
    """Hold one instrument; `connect` opens a link to it."""

    def __init__(
        self,
        options: Options,
        connect: Callable[[], Link],
        *,
        serial: bool = False,
        now: Callable[[], int] = monotonic_ns,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._now = now
        self._pause = pause
        self._connect = connect
        self._where = options.where
        self._events: list[dict[str, Any]] = []
        self._kept = Kept()
        self._missing: list[Missing] = []
        self._link: Link | None = None
        self._rate_header = ":RATE"
        self._poll = options.wishes.poll
        self._closed = False
        self._redundant = False
        self._waiting: dict[str, Sequence[float]] = {}
        self._last: list[answers.Element] = []
        self._over = 0
        self._poor = 0
        self._look_ns = _LOOK_SERIAL_NS if serial else _LOOK_NS
        self._looked_ns = 0
        try:
            self._state = self._attach(10 * options.timeout_s)
            self._pace = Pace(self._state.update_s)
            self._integrals = [answers.Integral() for _ in self._groups()]
            self._stated = Stated.of(options, self._state, self._settle())
            self._streams = build(options, self._state, self._stated)
        except BaseException:
            self._release()
            raise
        self._say_what_was_found()

    def streams(self) -> Sequence[Stream]:
        """Return one stream per element, or one for their sum."""
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        """Return the next update that this stream has not seen yet. Raises ReadFailed, DeviceLost."""
        row = self._waiting.pop(stream.name, None)
        if row is None:
            shown, seconds = self._next()
            rows = [self._row(element, seconds) for element in shown]
            self._waiting = dict(zip((s.name for s in self._streams), rows, strict=True))
            row = self._waiting.pop(stream.name)
        age_s = max(self._now() - self._pace.update_ns, 0) / NS
        return (*row, age_s, float(self._pace.missed), float(self._pace.duplicate))

    def events(self) -> list[dict[str, Any]]:
        """Return what happened since the last call."""
        events, self._events = self._events, []
        return events

    def missing(self) -> Sequence[Missing]:
        """Return what this instrument does not give."""
        return self._missing

    def close(self) -> None:
        """Put back what was found and let go of the instrument."""
        if not self._closed:
            self._closed = True
            self._release()

    # Attaching and letting go.

    def _attach(self, limit_s: float) -> setup.State:
        """Connect, identify and set up. Raises MeterError."""
        try:
            return self._set_up(limit_s)
        except ReadFailed as error:
            self._drop()
            if f"{self._rate_header}?" not in error.what or not self._rate_is_unknown():
                raise
            self._rate_header = ":SAMP:RATE"
            return self._set_up(limit_s)

    def _set_up(self, limit_s: float) -> setup.State:
        self._link = self._connect()
        talk = self._talk(limit_s)
        state = setup.set_up(talk, self._options.wishes, self._rate_header)
        if self._options.wishes.integrate:
            setup.start_integration(talk, state)
        return state

    def _rate_is_unknown(self) -> bool:
        """Tell whether the instrument is there and has no `:RATE`: other command sets say `:SAMPle:RATE`."""
        self._link = self._connect()
        try:
            self._link.write("*CLS")
            self._link.write(":RATE?")  # where it is known, its answer is what comes next, and no error
            code, _ = answers.parse_error(self._link.query(":STAT:ERR?"), self._where)
        except ReadFailed:
            return False
        finally:
            self._drop()
        return code == 113

    def _talk(self, limit_s: float) -> Dialogue:
        assert self._link is not None
        return setup.Dialogue(self._link, self._where, self._kept, limit_s)

    def _reattach(self) -> None:
        """Connect again after a failure; a reset integral shows by itself. Raises ReadFailed, DeviceLost."""
        before = self._state
        try:
            state = self._attach(_SET_UP * self._options.timeout_s)
        except Unavailable as error:
            self._drop()
            raise DeviceLost(error.what, where=error.where, why=error.why, next=error.next) from error
        except JoulelabError:
            self._drop()
            raise
        if state.identity.serial != before.identity.serial or state.elements != before.elements:
            self._drop()
            why = f"serial {state.identity.serial} instead of {before.identity.serial}"
            raise DeviceLost("another instrument answers", where=self._where, why=why, next="check the cabling")
        self._state = state
        self._compare_ranges(before.ranges, state.ranges)
        self._integrals = [answers.Integral() for _ in self._groups()]
        self._say("reconnected", "the instrument was reached again and set up as before")

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.abandon()

    def _release(self) -> None:
        link, self._link = self._link, None
        if link is None:
            self._kept.release()
            return
        try:
            setup.put_back(link, self._kept)
        except ReadFailed as error:
            logging.getLogger(__name__).warning("what was set is not put back: %s", error)
            self._kept.release()
            link.abandon()
        else:
            link.close()

    # Reading.

    def _groups(self) -> Sequence[int]:
        return (0,) if self._options.wishes.summed else self._state.elements

    def _settle(self) -> list[answers.Element]:
        """Look at a few updates: whether it waits, whether its values fit together. Raises ReadFailed."""
        seen: list[list[answers.Element]] = []
        failed: ReadFailed | None = None
        try:
            self._ask()  # may show an update of before, which clears it
            updated, shown, _ = self._ask()
            seen.append(shown)
            assert self._link is not None
            code, _ = answers.parse_error(self._link.query(":STAT:ERR?"), self._where)
            updated = updated and not code  # it may have come just then, to an instrument that knows no waiting
        except ReadFailed as error:
            updated, failed = False, error
        if not updated and not self._poll:
            self._poll = True
            self._say("poll", "it does not wait for its updates: its status is asked instead")
            if failed is not None:
                self._drop()
                self._state = self._attach(10 * self._options.timeout_s)
        seen.append(self._next()[0])
        ranges = self._watts()
        self._redundant = all(answers.fits(e, w) for shown in seen for e, w in zip(shown, ranges, strict=True))
        return seen[-1]

    def _watts(self) -> list[float]:
        """Return the power range of what is read, with auto range the widest; infinite where it is not known."""
        watts = [r.watts for r in widest(self._state)]
        watts = [sum(watts)] if self._options.wishes.summed else watts
        return [math.inf if math.isnan(w) else w for w in watts]

    def _next(self) -> tuple[list[answers.Element], float]:
        """Return the next update. Raises ReadFailed, DeviceLost."""
        until = self._now() + round(self._options.timeout_s * NS)
        if self._link is None:
            self._reattach()
        while True:
            begin = self._now()
            try:
                updated, shown, seconds = self._ask()
            except ReadFailed:
                self._pace.restart()
                self._drop()  # an answer that comes late would be taken for the next one
                raise
            end = self._now()
            if not updated:
                self._pace.repeated()
                self._pause(self._state.update_s / 20)
            elif self._take(begin, end, shown, seconds):
                self._look(end)
                return shown, seconds
            if self._now() > until:
                self._pace.restart()
                why = f"none within {self._options.timeout_s:g} s"
                raise ReadFailed("no update", where=self._where, why=why, next="is it on hold?")

    def _take(self, begin: int, end: int, shown: list[answers.Element], seconds: float) -> bool:
        """Count the update and check it; return whether it is a new one. Raises ReadFailed."""
        same = _alike(shown, self._last)
        before = self._pace.missed
        integrated_s = seconds if self._state.integration == "STAR" else math.nan
        if not self._pace.update(begin, end, same=same, integrated_s=integrated_s):
            return False
        self._last = shown
        if self._pace.missed > before:
            self._say("missed", f"{self._pace.missed - before} update(s) were not read")
        try:
            self._check(shown, seconds, end)
        except ReadFailed:
            self._pace.restart()
            raise
        return True

    def _check(self, shown: list[answers.Element], seconds: float, end: int) -> None:
        for element, watts, integral in zip(shown, self._watts(), self._integrals, strict=True):
            answers.check_element(element, watts, self._where, redundant=self._redundant)
            if self._state.integration == "STAR" and not integral.check(element.joules, seconds, end, watts):
                why = f"{element.joules:g} J after {seconds:g} s"
                raise ReadFailed("the integral jumped", where=self._where, why=why, next="it is tried again")

    def _ask(self) -> tuple[bool, list[answers.Element], float]:
        """Ask for the next update; return whether it came, and what it shows. Raises ReadFailed."""
        assert self._link is not None
        if self._poll:
            events = self._poll_events(self._link)
            text = self._link.query(":NUM:NORM:VAL?")
        else:
            answer = self._link.query(":COMM:WAIT 1;:STAT:EESR?;:NUM:NORM:VAL?")
            events, text = answers.split_update(answer, self._where)
        shown, seconds = answers.parse_update(text, len(self._groups()), self._where)
        self._notice(events & ~setup.UPDATED)
        return bool(events & setup.UPDATED), shown, seconds

    def _poll_events(self, link: Link) -> int:
        """Ask for the status until it shows an update, for at most two intervals. Raises ReadFailed."""
        update_s = self._state.update_s
        until = self._now() + round(min(2 * update_s, self._options.timeout_s) * NS)
        events = 0
        while True:
            events |= answers.parse_register(link.query(":STAT:EESR?"), self._where)
            if events & setup.UPDATED or self._now() > until:
                return events
            self._pause(min(update_s / 20, 0.02))

    def _row(self, element: answers.Element, seconds: float) -> Sequence[float]:
        self._advise(element)
        joules = math.nan if math.isnan(seconds) or self._state.integration != "STAR" else element.joules
        return (
            element.watts, joules, element.volts, element.amperes, element.apparent, element.factor,
            element.hertz if math.isfinite(element.hertz) else math.nan,
        )  # fmt: skip

    # What is told besides.

    def _say(self, what: str, text: str, **more: Any) -> None:
        event = {"t": self._now(), "event": "analyzer", "meter": self._options.label, "what": what, "text": text}
        self._events.append(event | more)

    def _say_what_was_found(self) -> None:
        state, identity = self._state, self._state.identity
        ranges = {str(e): {"volts": r.volts, "amperes": r.amperes, "scale": r.scale} for e, r in state.ranges.items()}
        facts = {"ranges": ranges, "crest": state.crest, "update_s": state.update_s, "options": state.options}
        facts |= {"redundant": self._redundant, "integration": state.integration}
        said = f"{identity.maker} {identity.model} {identity.serial} {identity.firmware}"
        self._say("found", said, **facts)
        if self._kept.problem:
            self._say("not-kept", f"what was found would be lost with this process: {self._kept.problem}")
        if state.auto:
            text = f"auto range is on: readings drop out while it switches; {STATED_AT}"
            self._say("auto-range", text, next="set voltage_v and current_a")
        wanted_s = self._options.wishes.rate_s
        if wanted_s is not None and not math.isclose(wanted_s, state.update_s):
            self._say("rate", f"it updates every {state.update_s:g} s, not {wanted_s:g} s: an integration runs")
        if state.integration != "STAR" and self._options.wishes.integrate:
            why = f"its integration is {answers.STATES[state.integration]} and holds somebody's result"
            self._missing.append(Missing(self._streams[0].scope, "no energy_j", why, "reset it on the instrument"))

    def _notice(self, events: int) -> None:
        """Tell of inputs beyond their range, once for as long as it lasts."""
        fresh = events & ~self._over
        self._over = events
        for bit in range(6, 15):
            if fresh >> bit & 1:
                element, what = 1 + (bit - 6) // 3, setup.OVER[6 + (bit - 6) % 3]
                self._say("over-range", f"element {element}: {what} over range", element=element)

    def _look(self, now: int) -> None:
        """See now and then whether somebody changed a range."""
        if now - self._looked_ns < self._look_ns:
            return
        self._looked_ns = now
        scales = {e: r.scale for e, r in self._state.ranges.items()}
        try:
            ranges = setup.read_ranges(self._talk(self._options.timeout_s), scales)
        except ReadFailed:  # what was read before is good; the next reading connects again, and says so
            self._pace.restart()
            self._drop()
            return
        self._compare_ranges(self._state.ranges, ranges)
        self._state.ranges = ranges

    def _compare_ranges(self, before: Mapping[int, Any], after: Mapping[int, Any]) -> None:
        for element, ranges in after.items():
            old = before[element]
            if repr(old) != repr(ranges):
                text = (
                    f"element {element}: {old.volts:g} V {old.amperes:g} A, now {ranges.volts:g} V {ranges.amperes:g} A"
                )
                self._say("range", f"{text}; {STATED_AT}", element=element)
                self._poor = 0

    def _advise(self, element: answers.Element) -> None:
        """Advise a smaller range where the present one leaves more than 1 % open, once."""
        share = relative(self._stated.gain, self._stated.offset_w, element.watts)
        if self._poor < 0 or math.isnan(share):
            return
        self._poor = self._poor + 1 if share > _LIMIT else 0
        if self._poor >= _ADVISE_AFTER:
            self._poor = -1
            text = f"a reading of {element.watts:g} W may be off by {100 * share:.1f} % on this range"
            self._say("advice", text, next="choose a smaller current_a, if the largest load allows it")


def _alike(left: Sequence[answers.Element], right: Sequence[answers.Element]) -> bool:
    """Tell whether two updates show the same, words included."""
    return repr(left) == repr(right)
