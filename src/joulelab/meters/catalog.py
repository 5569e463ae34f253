"""Survey the meters of this machine: what can be measured and how well; what cannot, why, what to do. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from joulelab import meters
from joulelab.core.errors import Denied, JoulelabError, Unavailable
from joulelab.meters.hooks import HasMissing, Missing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from joulelab.core.spec import Meter, Spec, Stream

Status = Literal["open", "unavailable", "denied", "failed", "on request"]


@dataclass(frozen=True, slots=True)
class Channel:
    """Describe one channel of an open meter; `period_s` is how often it is read."""

    meter: str
    scope: str
    parent: str | None
    period_s: float
    device: str
    model: str
    spec: Spec

    @property
    def accuracy(self) -> str:
        """Return the accuracy in words, with its source."""
        accuracy = self.spec.accuracy
        if self.spec.kind == "state" or self.spec.unit not in ("J", "W"):
            return ""
        if accuracy.source == "unknown":
            return "unknown"
        return f"±{accuracy.gain * 100:.3g} % ({accuracy.source})"


@dataclass(frozen=True, slots=True)
class Row:
    """Describe one meter: whether it opened, its channels, and what it says instead."""

    meter: str
    summary: str
    status: Status
    privilege: str
    tried: str
    what: str = ""
    why: str = ""
    next: str = ""
    channels: tuple[Channel, ...] = ()
    missing: tuple[Missing, ...] = ()


def survey(
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    names: Iterable[str] | None = None,
    *,
    estimate: bool = False,
) -> list[Row]:
    """Open every meter once, describe it, close it; a meter that opens on request only is not opened unless named."""
    chosen = list(names) if names is not None else None
    rows = []
    for name in chosen if chosen is not None else meters.names():
        asked = chosen is not None or estimate
        rows.append(_row(name, (configs or {}).get(name, {}), asked=asked))
    return rows


def _row(name: str, config: Mapping[str, Any], *, asked: bool) -> Row:
    try:
        module = meters.find(name)
    except JoulelabError as error:
        return _refused(name, "", "", "", error)
    summary, privilege, tried = module.SUMMARY, getattr(module, "PRIVILEGE", ""), getattr(module, "TRIED", "")
    if not asked and not getattr(module, "DEFAULT", True):
        return Row(name, summary, "on request", privilege, tried, next=f"joulelab run --{name} -- CMD")
    try:
        meter = meters.open_meter(name, config)
    except JoulelabError as error:
        return _refused(name, summary, privilege, tried, error)
    try:
        channels = tuple(_channel(name, stream, spec) for stream in meter.streams() for spec in stream.channels)
        return Row(name, summary, "open", privilege, tried, channels=channels, missing=_missing(meter))
    finally:
        meter.close()


def _channel(name: str, stream: Stream, spec: Spec) -> Channel:
    return Channel(name, stream.scope, stream.parent, stream.period_s, stream.device, stream.model, spec)


def _missing(meter: Meter) -> tuple[Missing, ...]:
    return tuple(meter.missing()) if isinstance(meter, HasMissing) else ()


def _refused(name: str, summary: str, privilege: str, tried: str, error: JoulelabError) -> Row:
    status: Status = "unavailable" if isinstance(error, Unavailable) else "failed"
    if isinstance(error, Denied):
        status = "denied"
    return Row(name, summary, status, privilege, tried, error.what, error.why or "", error.next or "")
