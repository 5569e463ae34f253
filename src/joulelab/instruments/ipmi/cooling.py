"""Read temperatures and fans of a BMC one by one, for as long as there is time: power is worth more."""

from __future__ import annotations

from math import isnan, nan
from typing import TYPE_CHECKING

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import ReadFailed
from joulelab.instruments.ipmi import parse as ipmi_parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.instruments.ipmi.parse import Sensor
    from joulelab.instruments.ipmi.watched import Watched

READING = (0x04, 0x2D)


class Cooling:
    """Read sensors in turn; a BMC too slow for all of them is asked for the others the next time."""

    def __init__(
        self,
        link: Watched,
        sensors: Sequence[Sensor],
        state: Callable[[Sensor, float], float],
        *,
        now: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._link, self._sensors, self._state, self._now = link, sensors, state, now
        self._first = 0

    def row(self, until_ns: int) -> Sequence[float]:
        """Return a row, NaN for what was not read this time or has no reading. Raises ReadFailed, Denied."""
        count = len(self._sensors)
        row = [nan] * count
        begin = self._now()
        enough_ns = begin + (until_ns - begin) // 2  # the other half is for an answer that is slower than the others
        first, slowest_ns = self._first, 0
        for k in range(count):
            number = (first + k) % count
            asked_ns = self._now()
            if k and asked_ns + slowest_ns > enough_ns:
                self._first = number
                break
            try:
                row[number] = self._value(self._sensors[number], until_ns)
            except _Silent as error:
                if all(map(isnan, row)):
                    raise error.cause from None
                self._first = number
                self._link.failed = None  # it did answer before; whether it is gone is for the next reading to say
                break
            slowest_ns = max(slowest_ns, self._now() - asked_ns)
        if all(map(isnan, row)):
            why = "neither a temperature nor a fan has a reading"
            raise ReadFailed("the BMC gives no reading of cooling now", where=self._link.where, why=why)
        return row

    def _value(self, sensor: Sensor, until_ns: int) -> float:
        try:
            code, data = self._link.raw(*READING, bytes([sensor.number]), until_ns)
        except ReadFailed as error:
            raise _Silent(error) from None
        try:
            return self._state(sensor, ipmi_parse.reading(sensor, data)) if not code else nan
        except ReadFailed:
            if not ipmi_parse.is_reading(data):  # malformed, which says nothing of the sensor
                raise
            return nan


class _Silent(Exception):
    """Carry the error of a BMC that did not answer."""

    def __init__(self, cause: ReadFailed) -> None:
        super().__init__(cause)
        self.cause = cause
