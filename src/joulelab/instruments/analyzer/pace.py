"""Count an instrument's updates: which were missed, which came twice.

Three witnesses: the bit that the instrument sets at each update and clears when it is read; the times at which answers
came, on the grid of its updates; and the seconds that it has integrated, which do not drift against its own updates.
"""

from __future__ import annotations

import math

from joulelab.core.clock import NS

# An answer that took longer than this share of the period was waited for: the update came just then.
_WAITED = 0.1
# How much of a deviation from the grid is taken over: clocks drift slowly, the host's delays come and go.
_FOLLOW = 0.05


class Pace:
    """Number the updates as they are read; `missed` and `duplicate` count since the beginning."""

    def __init__(self, period_s: float) -> None:
        self.missed = 0
        self.duplicate = 0
        self.update_ns = 0  # when the last update came, as well as is known
        self._period_ns = round(period_s * NS)
        self._grid_ns: float | None = None
        self._index = 0
        self._doubted = 0  # how many of the missed ones the last update alone speaks for
        self._second: tuple[float, int] | None = None
        self._last_s = math.nan

    def restart(self) -> None:
        """Begin a new grid: what was not read in a gap is the gap, not missed."""
        self._grid_ns = None
        self._second = None
        self._last_s = math.nan

    def repeated(self) -> None:
        """Count an answer that came without an update."""
        self.duplicate += 1

    def update(self, begin_ns: int, end_ns: int, *, same: bool, integrated_s: float = math.nan) -> bool:
        """Take an answer that came with an update; return whether it is a new one.

        `begin_ns` and `end_ns` are when it was asked for and when it came, `same` whether all its values are those of
        the last, `integrated_s` the whole seconds of the instrument's own integration (NaN: it does not run).
        """
        if self._grid_ns is None:
            self._grid_ns, self._index = float(end_ns), 0
            self.update_ns = end_ns
            self._check_seconds(integrated_s, self._index)
            return True
        earliest = self._index + 1
        waited = end_ns - begin_ns > _WAITED * self._period_ns
        place = (end_ns - self._grid_ns) / self._period_ns
        index = round(place) if waited else math.floor(place + _WAITED)
        if index <= self._index:
            if same and not waited:
                self.duplicate += 1
                return False
            self._early()
        else:
            self._doubted = index - self._index - 1
            self.missed += self._doubted
            self._index = index
        if waited:
            self._grid_ns += _FOLLOW * (place - index) * self._period_ns if index == self._index else 0.0
            self.update_ns = end_ns
        else:
            self.update_ns = min(end_ns, round(self._grid_ns + self._index * self._period_ns))
        self._check_seconds(integrated_s, earliest)
        return True

    def _early(self) -> None:
        """Take an update that the grid has no place for: the one before was late, or the grid is."""
        if self._doubted:
            self._doubted -= 1
            self.missed -= 1  # it had been late, not missing
        else:
            assert self._grid_ns is not None
            self._grid_ns -= self._period_ns
            self._index += 1

    def _check_seconds(self, integrated_s: float, earliest: int) -> None:
        """Compare the count with the instrument's seconds, each time that they advance.

        A second is seen where it is first read, and may have begun at any update since the last reading (`earliest`).
        """
        before, self._last_s = self._last_s, integrated_s
        if math.isnan(integrated_s) or math.isnan(before):
            return
        if integrated_s < before:
            self._second = None
            return
        if integrated_s == before:
            return
        if self._second is None:
            self._second = (integrated_s, earliest)
            return
        began_s, began = self._second
        behind = (integrated_s - began_s) * NS / self._period_ns - (self._index - began)
        if behind >= 2:
            self.missed += math.floor(behind)
            self._index += math.floor(behind)
            assert self._grid_ns is not None
            self._grid_ns -= math.floor(behind) * self._period_ns
