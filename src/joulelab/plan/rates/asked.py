"""Be a rate that a service tells: what is kept is used, and the service is asked for what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.errors import ConfigError
from joulelab.plan.rates.kept import read_kept
from joulelab.plan.rates.services import SERVICES, fetch, label_of, series_of
from joulelab.plan.rates.services.access import REMOVED
from joulelab.plan.rates.steps import SLACK_S, check_edges

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from joulelab.analysis.readings import Floats
    from joulelab.plan.rates.rate import Label
    from joulelab.plan.rates.steps import Steps


class Fetch(Protocol):
    """Ask a service, as `services.fetch` does."""

    def __call__(
        self, service: str, zone: str, since_s: float, until_s: float, *, forecast: bool, covers: str, folder: Path
    ) -> Steps:
        """Return the series between two times (s since 1970)."""
        ...


class Asked:
    """Give what a service tells of a zone, by `SERVICE:ZONE[:COVERS]`; it is asked when a time is asked for first.

    Past times are actual values, kept ones where they are whole; times to come are the newest forecast. The label is
    the service's, and that of the series once it is there.
    """

    def __init__(
        self,
        service: str,
        zone: str,
        covers: str,
        kept: Path,
        *,
        ask: Fetch = fetch,
        now: Callable[[], float] = lambda: read_utc_ns() / NS,
    ) -> None:
        self._series = series_of(service, zone, covers)
        self._named = service, zone, covers
        self._label = label_of(service, zone, covers)
        self._kept = kept
        self._ask = ask
        self._now = now
        self._steps: Steps | None = None

    @classmethod
    def of(cls, spec: str, kept: Path) -> Asked:
        """Return the rate of `em:DE`, `em:DE:direct`. Raises ConfigError."""
        service, *rest = spec.split(":")
        if len(rest) > 2:
            raise ConfigError(f"{spec!r} says too much", next=f"write it as {service}:ZONE or {service}:ZONE:direct")
        zone, covers = [*rest, "", ""][:2]
        return cls(service, zone, covers, kept)

    @property
    def label(self) -> Label:
        """Return what it is."""
        return self._label if self._steps is None else self._steps.label

    def changes(self, since_s: float, until_s: float) -> Floats:
        """Return the times (s since 1970) strictly between two at which it may change. Raises JoulelabError."""
        return self.steps(since_s, until_s).changes(since_s, until_s)

    def means(self, edges_s: Floats) -> Floats:
        """Return its mean between each two of ascending times. Raises JoulelabError where it is not known."""
        edges = check_edges(edges_s)
        return self.steps(float(edges[0]), float(edges[-1])).means(edges)

    def steps(self, since_s: float, until_s: float) -> Steps:
        """Return a series that holds the time between two, as far as the service tells it. Raises JoulelabError."""
        if self._steps is not None and is_whole(self._steps, since_s, until_s):
            return self._steps
        ahead = until_s > self._now()
        found = None if ahead else self._from_kept(since_s, until_s)
        if found is None:
            service, zone, covers = self._named
            found = self._ask(service, zone, since_s, until_s, forecast=ahead, covers=covers, folder=self._kept)
        self._steps = found
        return found

    def _from_kept(self, since_s: float, until_s: float) -> Steps | None:
        try:
            found = read_kept(self._series, self._kept)
        except ConfigError:
            return None
        return found if is_whole(found, since_s, until_s) else None


def is_service(word: str) -> bool:
    """Return whether a word names a service, also one that was removed: `Asked` refuses those."""
    return word in SERVICES or word in REMOVED


def is_whole(steps: Steps, since_s: float, until_s: float) -> bool:
    """Return whether a series is known at all times between two."""
    if steps.since_s > since_s + SLACK_S or steps.end_s < until_s - SLACK_S:
        return False
    return not any(since < until_s and until > since_s for since, until in steps.gaps())
