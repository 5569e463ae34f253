"""Hold a rate as a series of steps: from a file, a service, or a tariff that was laid out over time."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.rate import check_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulelab.analysis.readings import Floats
    from joulelab.plan.rates.rate import Label

SLACK_S = 1e-3  # times of today as floats are good to less than a microsecond; sums of them to this
MOST_NAMED = 3  # gaps that a message names


@dataclass(frozen=True, eq=False)
class Steps:
    """Hold values (in the label's unit) that begin at `start_s` (s since 1970, ascending) and last until the next.

    The last one ends at `end_s`. NaN is a gap: not known, and refused where it is used. `u` is the standard uncertainty
    of each value where somebody states it. Raises ConfigError where the arrays do not fit together.
    """

    label: Label
    start_s: Floats
    values: Floats
    end_s: float
    u: Floats | None = None

    def __post_init__(self) -> None:
        for name in ("start_s", "values"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        if self.u is not None:
            object.__setattr__(self, "u", np.asarray(self.u, dtype=np.float64))
        same = self.values.shape == self.start_s.shape and (self.u is None or self.u.shape == self.start_s.shape)
        if self.start_s.ndim != 1 or not self.start_s.size or not same:
            raise self._wrong("has no values, or not one for each time")
        if not np.isfinite(self.start_s).all() or not (np.diff([*self.start_s, self.end_s]) > 0).all():
            raise self._wrong("does not go forward in time at each step", "sort it, and leave out what is there twice")
        check_size(self.values, self.label)
        if self.u is not None and (self.u < 0).any():
            first = int(np.argmax(self.u < 0))
            what = f"has an uncertainty below 0 at {shown(self.start_s[first])}: {self.u[first]:g} {self.label.unit}"
            raise self._wrong(what, "a standard uncertainty is 0 or more; correct the series")
        if self.label.kind != "price" and (self.values < 0).any():
            first = int(np.argmax(self.values < 0))
            what = f"is negative at {shown(self.start_s[first])}: {self.values[first]:g} {self.label.unit}"
            raise self._wrong(what, "a carbon intensity cannot be below 0; correct the series")

    def _wrong(self, what: str, then: str | None = None) -> ConfigError:
        return ConfigError(f"{self.label.name or 'the series'} {what}", next=then)

    @property
    def since_s(self) -> float:
        """Return when the series begins, in s since 1970."""
        return float(self.start_s[0])

    def gaps(self) -> list[tuple[float, float]]:
        """Return from when until when (s since 1970) it is not known, between its beginning and its end."""
        return self._missing(self.values)

    def _missing(self, values: Floats) -> list[tuple[float, float]]:
        ends = np.append(self.start_s[1:], self.end_s)
        found: list[tuple[float, float]] = []
        for k in np.flatnonzero(np.isnan(values)):
            since, until = float(self.start_s[k]), float(ends[k])
            if found and found[-1][1] == since:
                since = found.pop()[0]
            found.append((since, until))
        return found

    def changes(self, since_s: float, until_s: float) -> Floats:
        """Return the times (s since 1970) strictly between two at which it may change, ascending."""
        times = np.append(self.start_s, self.end_s)
        return times[(times > since_s) & (times < until_s)]

    def means(self, edges_s: Floats) -> Floats:
        """Return its mean between each two of ascending times; at a moment, its value then.

        Raises ConfigError where it has a gap there, begins later or ends earlier: a series is never continued.
        """
        return self._averaged(edges_s, self.values)

    def u_means(self, edges_s: Floats) -> Floats | None:
        """Return the standard uncertainty of each mean, None where nobody states any.

        Neighbours are taken to be wrong alike, so that it does not shrink over time. Raises ConfigError as `means`.
        """
        if self.u is None:
            return None
        self.means(edges_s)  # a gap is told as one
        return self._averaged(edges_s, self.u)

    def _averaged(self, edges_s: Floats, values: Floats) -> Floats:
        edges = check_edges(edges_s)
        if edges.size < 2:
            return np.empty(0)
        edges = self._inside(edges)
        cuts = np.union1d(edges, self.changes(float(edges[0]), float(edges[-1])))
        at = np.minimum(np.searchsorted(self.start_s, cuts, side="right") - 1, self.start_s.size - 1)
        pieces, widths = values[at], np.append(np.diff(cuts), 0.0)
        first = np.searchsorted(cuts, edges)
        # A mean over one step is its value, to the last digit; so is that at a moment.
        single = np.diff(first) <= 1
        used = widths > 0
        used[first[:-1][np.diff(first) == 0]] = True
        self._check_known(cuts, np.isnan(pieces) & used, values)
        sums = np.add.reduceat(np.where(used, pieces, 0.0) * widths, first)[:-1]
        return np.where(single, pieces[first[:-1]], sums / np.where(single, 1.0, np.diff(edges)))

    def _inside(self, edges: Floats) -> Floats:
        """Return times within the series, where they are outside only by rounding."""
        early, late = self.since_s - edges[0], edges[-1] - self.end_s
        if early > SLACK_S or late > SLACK_S:
            have = f"{shown(self.since_s)} to {shown(self.end_s)}"
            asked = f"{shown(edges[0])} to {shown(edges[-1])}"
            raise ConfigError(
                f"{self.label.name or 'the series'} is known from {have} only", why=f"asked for {asked}",
                next="give a series that covers it all; none is continued beyond its ends",
            )  # fmt: skip
        inside: Floats = np.clip(edges, self.since_s, self.end_s)
        return inside

    def _check_known(self, cuts: Floats, unknown: NDArray[np.bool_], values: Floats) -> None:
        if not unknown.any():
            return
        asked = [(a, b) for a, b in self._missing(values) if b > cuts[0] and a <= cuts[-1]]
        named = ", ".join(f"{shown(a)} to {shown(b)}" for a, b in asked[:MOST_NAMED])
        more = f" and {len(asked) - MOST_NAMED} more" if len(asked) > MOST_NAMED else ""
        what, then = "has a gap where it is used", "fill the gap in the series, or use another; a gap is never guessed"
        if values is self.u:
            what = "does not state the uncertainty of a value that is used"
            then = "fill it in, or leave the column of uncertainties out"
        raise ConfigError(f"{self.label.name or 'the series'} {what}", why=f"{named}{more}", next=then)


def check_edges(edges_s: Floats) -> Floats:
    """Return times as an array. Raises ConfigError where they do not ascend."""
    edges = np.asarray(edges_s, dtype=np.float64)
    if edges.ndim != 1 or not np.isfinite(edges).all() or (np.diff(edges) < 0).any():
        raise ConfigError("the times that a rate is asked for do not ascend")
    return edges


def shown(time_s: float) -> str:
    """Return a time (s since 1970) for people: `2026-11-16 14:30 UTC`."""
    try:
        time = dt.datetime.fromtimestamp(float(time_s), dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_s:g} s since 1970"
    form = "%Y-%m-%d %H:%M:%S UTC" if time.second or time.microsecond else "%Y-%m-%d %H:%M UTC"
    return time.strftime(form)
