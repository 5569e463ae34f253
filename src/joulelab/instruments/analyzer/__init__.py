"""Read a power analyzer of the Yokogawa WT300E family, at the pace of its own updates."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import DeviceLost, JoulelabError, ReadFailed, Unavailable
from joulelab.instruments.analyzer import answers, client, setup
from joulelab.instruments.analyzer.accuracy import build_streams, widen_ranges
from joulelab.instruments.analyzer.settings import CONFIG, read_settings
from joulelab.instruments.hooks import Missing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Meter, Stream
    from joulelab.instruments.analyzer.settings import AnalyzerSettings

    Connect = Callable[[], client.Link]

__all__ = ["CONFIG", "DEFAULT", "PRIVILEGE", "SECRETS", "SUMMARY", "TRIED", "check", "diagnose", "open_meter"]

SUMMARY = "power analyzer (Yokogawa WT300E family) by SCPI: VXI-11, socket, serial, USBTMC, GPIB"
PRIVILEGE = "none over the network; the device's group for serial (dialout) and USB"
TRIED = "the simulated node; not on hardware"
DEFAULT = False
SECRETS: tuple[str, ...] = ()

# The update bit before and after the values; the first query also waits for an update.
READ_QUERY = ":STAT:EESR?;:NUM:NORM:VAL?;:STAT:EESR?"
NEXT_QUERY = f":COMM:WAIT 1;{READ_QUERY}"
_RANGE_CHECK_NS = {"serial": 10 * NS}  # how often ranges are compared, 1 s for other interfaces
# An answer that took longer than this share of the period was waited for: its update came just then.
_WAITED = 0.1
# The share of a deviation from the grid by which it moves: clocks drift slowly, delays of the host come and go.
_FOLLOWED = 0.05


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    read_settings(config)


def open_meter(config: Mapping[str, Any], tap: Callable[[Connect], Connect] | None = None) -> Meter:
    """Open the analyzer. Raises ConfigError, ReadFailed, Unavailable, Denied, MissingDependency.

    `tap` stands between the meter and the links that it opens, to write down the answers.
    """
    settings = read_settings(config)

    def connect() -> client.Link:
        return client.open_link(settings.address, settings.where, settings.timeout_s, baud_rate=settings.baud_rate)

    return Analyzer(settings, tap(connect) if tap else connect)


def diagnose(config: Mapping[str, Any], error: Exception) -> list[str]:
    """Explain why an analyzer did not open. Raises ConfigError."""
    from joulelab.instruments.analyzer.doctor import explain_failure

    return explain_failure(read_settings(config), error)


class UpdatePace:
    """Count the updates that were not read, by the times of the answers on the grid of the instrument's updates.

    Each row is an update of its own, so the number of rows is a lower limit of the number of updates.
    """

    def __init__(self, period_s: float) -> None:
        self.missed = 0  # since the beginning; taken back where an update was only late
        self.update_ns = 0  # time of the last update, as well as it is known
        self._period_ns = round(period_s * NS)
        self._grid_ns: float | None = None
        self._rows = 0
        self._missed_before = 0

    def restart_grid(self) -> None:
        """Begin anew after a gap: updates within a gap are not missed."""
        self._grid_ns = None

    def count_row(self, begin_ns: int, end_ns: int) -> None:
        """Count an update that was asked for at `begin_ns` and read at `end_ns`."""
        if self._grid_ns is None:
            self._grid_ns, self.update_ns = float(end_ns), end_ns
            self._rows, self._missed_before = 0, self.missed
            return
        self._rows += 1
        is_waited = end_ns - begin_ns > _WAITED * self._period_ns
        place = (end_ns - self._grid_ns) / self._period_ns
        number = round(place) if is_waited else math.floor(place + _WAITED)
        if number < self._rows:  # the grid began too late
            self._grid_ns -= (self._rows - number) * self._period_ns
            number = self._rows
        elif is_waited:
            self._grid_ns += _FOLLOWED * (place - number) * self._period_ns
        self.missed = self._missed_before + number - self._rows
        self.update_ns = end_ns if is_waited else min(end_ns, round(self._grid_ns + number * self._period_ns))


class Analyzer:
    """Read one instrument; `connect` opens a link to it."""

    def __init__(
        self,
        settings: AnalyzerSettings,
        connect: Callable[[], client.Link],
        *,
        now: Callable[[], int] = monotonic_ns,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._connect, self._now, self._pause = connect, now, pause
        self._where = settings.where
        self._events: list[dict[str, Any]] = []
        self._missing: list[Missing] = []
        self._originals = setup.OriginalSettings()
        self._link: client.Link | None = None
        self._is_closed = False
        self._is_redundant = False
        self._rows: dict[str, Sequence[float]] = {}  # of the last update, not read yet
        self._duplicate = 0  # answers without a new update
        self._warnings: set[str] = set()
        self._range_check_ns = 0
        try:
            self._state = self._open_instrument()
            self._ranges_at_opening = self._state.ranges
            self._pace = UpdatePace(self._state.update_s)
            self._integrals = [answers.Integral() for _ in self._state.elements]
            first, _ = self._read_update()  # maybe measured before the set-up
            second, _ = self._read_update()
            pairs = zip((*first, *second), 2 * self._list_ranges_w(), strict=True)
            self._is_redundant = all(answers.is_consistent(element, range_w) for element, range_w in pairs)
            self._streams = build_streams(settings, self._state, second)
        except BaseException:
            self._release_instrument()
            raise
        self._report_state()

    def streams(self) -> Sequence[Stream]:
        """Return one stream per element."""
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        """Return the next update that this stream has not had. Raises ReadFailed, DeviceLost."""
        row = self._rows.pop(stream.name, None)
        if row is None:
            values, seconds = self._read_update()
            names = (s.name for s in self._streams)
            self._rows = dict(zip(names, (self._make_row(e, seconds) for e in values), strict=True))
            row = self._rows.pop(stream.name)
        age_s = max(self._now() - self._pace.update_ns, 0) / NS
        return (*row, age_s, float(self._pace.missed), float(self._duplicate))

    def events(self) -> list[dict[str, Any]]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def missing(self) -> Sequence[Missing]:
        """Return the channels that this instrument does not give."""
        return self._missing

    def close(self) -> None:
        """Restore the original settings and end the link."""
        if not self._is_closed:
            self._is_closed = True
            self._release_instrument()

    # The link.

    def _open_instrument(self) -> setup.InstrumentState:
        """Connect and set up. Raises MeterError, ConfigError."""
        self._link = self._connect()
        return setup.set_up_instrument(self._make_dialogue(), self._settings)

    def _make_dialogue(self) -> setup.Dialogue:
        assert self._link is not None
        return setup.Dialogue(self._link, self._where, self._originals)

    def _reopen_instrument(self) -> None:
        """Connect again after a failure. Raises ReadFailed, DeviceLost."""
        before = self._state
        try:
            state = self._open_instrument()
        except JoulelabError as error:
            self._drop_link()
            if isinstance(error, Unavailable):
                lost, code = error, "device-lost.not-usable"
                raise DeviceLost(lost.what, where=lost.where, why=lost.why, next=lost.next, code=code) from error
            raise
        if state.identity.serial != before.identity.serial or state.elements != before.elements:
            self._drop_link()
            why = f"serial {state.identity.serial} instead of {before.identity.serial}"
            what, advice, code = "another instrument answers", "check the cabling", "device-lost.other-instrument"
            raise DeviceLost(what, where=self._where, why=why, next=advice, code=code)
        self._state = state
        self._integrals = [answers.Integral() for _ in state.elements]

    def _drop_link(self) -> None:
        self._pace.restart_grid()
        link, self._link = self._link, None
        if link is not None:
            link.abandon()

    def _release_instrument(self) -> None:
        link, self._link = self._link, None
        if link is None:
            self._originals.release_file(is_restored=False)
            return
        try:
            setup.restore_settings(link, self._originals)
        except ReadFailed as error:
            logging.getLogger(__name__).warning("the original settings are not restored: %s", error)
            self._originals.release_file(is_restored=False)
            link.abandon()
        else:
            link.close()

    # Reading.

    def _list_ranges_w(self) -> list[float]:
        """Return the power range of each element, with auto range the widest; infinite where it is unknown."""
        return [math.inf if math.isnan(r.watts) else r.watts for r in widen_ranges(self._state)]

    def _read_update(self) -> tuple[list[answers.Element], float]:
        """Return the next update and the seconds of integration. Raises ReadFailed, DeviceLost."""
        until_ns = self._now() + round(self._settings.timeout_s * NS)
        if self._link is None:
            self._reopen_instrument()
        while True:
            begin_ns = self._now()
            try:
                is_new, values, seconds = self._query_update(until_ns)
            except ReadFailed:
                self._drop_link()  # a late answer would be taken for the next one
                raise
            if is_new:
                break
            self._duplicate += 1
            if self._now() > until_ns:
                self._pace.restart_grid()
                why, advice = f"none within {self._settings.timeout_s:g} s", "check on its panel that it is not on hold"
                raise ReadFailed("no update", where=self._where, why=why, next=advice, code="read-failed.no-update")
            self._pause(self._state.update_s / 20)
        end_ns = self._now()
        self._pace.count_row(begin_ns, end_ns)
        try:
            self._check_values(values, seconds, end_ns)
        except ReadFailed:
            self._pace.restart_grid()
            raise
        self._check_ranges(end_ns)
        return values, seconds

    def _query_update(self, until_ns: int) -> tuple[bool, list[answers.Element], float]:
        """Wait for an update; return whether it is new, its values and the seconds of integration. Raises ReadFailed.

        Values that were read between two looks at the update bit, the second of which found it clear, are those of one
        update, and no row had them before: however long host or network stand still in between.
        """
        assert self._link is not None
        query, events = NEXT_QUERY, 0
        while True:
            before, values, seconds, after = answers.parse_update(
                self._link.query(query), len(self._state.elements), self._where
            )
            events |= before | after
            if not after & setup.UPDATED:
                for bit in (bit for bit in range(6, 15) if events >> bit & 1):
                    self._warn(f"element {1 + (bit - 6) // 3}: {setup.OVER_RANGE[(bit - 6) % 3]} over range")
                return bool(events & setup.UPDATED), values, seconds
            if self._now() > until_ns:
                what, why = "it updates faster than it answers", "an update came while each answer was made"
                raise ReadFailed(what, where=self._where, why=why, next="raise period_s", code="read-failed.slow")
            query = READ_QUERY

    def _check_values(self, values: Sequence[answers.Element], seconds: float, end_ns: int) -> None:
        for element, range_w, integral in zip(values, self._list_ranges_w(), self._integrals, strict=True):
            answers.check_element(element, range_w, self._where, is_redundant=self._is_redundant)
            if self._state.integration == "STAR" and not integral.accept_value(
                element.joules, seconds, end_ns, range_w
            ):
                text = f"{element.joules:g} J after {seconds:g} s"
                raise answers.refuse_answer("the integral jumped", self._where, text, "impossible-energy")

    def _make_row(self, element: answers.Element, seconds: float) -> Sequence[float]:
        joules = math.nan if math.isnan(seconds) or self._state.integration != "STAR" else element.joules
        return (
            element.watts, joules, element.volts, element.amperes, element.apparent, element.factor,
            element.hertz if math.isfinite(element.hertz) else math.nan,
        )  # fmt: skip

    # Events.

    def _report_state(self) -> None:
        state, identity, settings = self._state, self._state.identity, self._settings
        ranges = {str(e): {"volts": r.volts, "amperes": r.amperes, "scale": r.scale} for e, r in state.ranges.items()}
        text = f"{identity.maker} {identity.model} {identity.serial} {identity.firmware}"
        facts = {"ranges": ranges, "crest": state.crest, "update_s": state.update_s}
        facts |= {"redundant": self._is_redundant, "integration": state.integration}
        event = {"t": self._now(), "event": "analyzer", "meter": settings.label, "what": "found", "text": text}
        self._events.append(event | facts)
        if self._originals.problem:
            self._warn(f"its settings could not be restored after a kill: {self._originals.problem}")
        if state.is_auto:
            self._warn("auto range is on: readings drop out while it switches; set voltage_v and current_a")
        if state.integration != "STAR" and settings.integrate:
            why = f"its integration is {answers.INTEGRATION_STATES[state.integration]} and holds somebody's result"
            self._missing.append(Missing(self._streams[0].scope, "no energy_j", why, "reset it on the instrument"))

    def _warn(self, text: str) -> None:
        """Add a warning to the result of the run, once."""
        if text not in self._warnings:
            self._warnings.add(text)
            self._events.append({"t": self._now(), "event": "problem", "meter": self._settings.label, "what": text})

    def _check_ranges(self, now_ns: int) -> None:
        """Compare the ranges from time to time: a person may change them on the panel."""
        if now_ns - self._range_check_ns < _RANGE_CHECK_NS.get(self._settings.address.interface, NS):
            return
        self._range_check_ns = now_ns
        scales = {e: r.scale for e, r in self._state.ranges.items()}
        try:
            self._state.ranges = setup.read_ranges(self._make_dialogue(), scales)
        except ReadFailed:  # this update is good; the next reading connects again
            self._drop_link()
            return
        for element, new in self._state.ranges.items() if not self._state.is_auto else ():
            old = self._ranges_at_opening[element]
            if repr(new) != repr(old) and not new.watts <= old.watts:  # NaN: an external sensor
                change = f"from {old.volts:g} V {old.amperes:g} A to {new.volts:g} V {new.amperes:g} A"
                self._warn(f"element {element}: the range was changed {change}; the accuracy is stated for the first")
