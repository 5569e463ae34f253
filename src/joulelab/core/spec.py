"""Describe what a meter delivers: channels (`Spec`) in streams (`Stream`), and the meter interface itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What the stored number is:
#   counter  energy (or bytes, events) since some start: subtract it
#   power    watts: integrate it, after `update_s` and `window_s`
#   state    anything else that is read: temperature, clock, load, cap
Kind = Literal["counter", "power", "state"]
AccuracySource = Literal["datasheet", "calibrated", "assumed", "unknown"]
Pace = Literal["host", "instrument"]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """State the largest errors of a channel, and their source.

    `gain` is a relative half-width (0.05 = within 5 % of the reading), `offset` is in watts (a counter adds it up over
    time), `quantum` in the channel's own unit. `shared` names the source of the gain error: two channels
    with the same name are wrong by the same factor, so their errors add linearly and cancel in ratios.
    """

    source: AccuracySource = "unknown"
    gain: float = 0.0
    offset: float = 0.0
    quantum: float = 0.0
    shared: str = ""
    reference: str = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """Describe one channel.

    A power reading is the mean over the last `window_s` before the last of the updates, which come every `update_s`
    (window 0 = instantaneous), and older by an unknown time of up to `lag_s`. A counter steps every `update_s`; `seen`
    is the share of time that it integrates.
    `modulus` is where a counter wraps (None = it never does, so a fall is a reset).
    `limits` are watts that bound any true power of this scope (idle or zero, board limit), None where unknown.
    A state channel of the quantity `age` (s) is the age of the row's other values at the read: values with the same
    time of origin count once.
    """

    name: str
    quantity: str
    unit: str
    kind: Kind = "state"
    update_s: float | None = None
    window_s: float | None = None
    seen: float = 1.0
    modulus: float | None = None
    limits: tuple[float, float] | None = None
    accuracy: Accuracy = field(default_factory=Accuracy)
    estimate: bool = False
    lag_s: float = 0.0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        """Rebuild a Spec from a journal header; keys of newer versions are ignored."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        accuracy = {k: v for k, v in known.pop("accuracy", {}).items() if k in Accuracy.__dataclass_fields__}
        limits = known.pop("limits", None)
        return cls(**known, limits=tuple(limits) if limits else None, accuracy=Accuracy(**accuracy))


def _spec_json(spec: Spec) -> dict[str, Any]:
    accuracy = {name: getattr(spec.accuracy, name) for name in Accuracy.__dataclass_fields__}
    return {name: getattr(spec, name) for name in Spec.__dataclass_fields__} | {"accuracy": accuracy}


@dataclass(frozen=True, slots=True)
class Stream:
    """Describe channels of one device that are read together and share one pair of time stamps.

    Streams of one `table` have the same channels and are stored together, one row per reading. `scope` is what the
    stream covers on its host (`gpu:0`, `cpu:1`, `dram:0`, `node.ac`); `parent` is the scope that contains it, None
    where none is known. `device` identifies the hardware (UUID, serial), `model` its type. `sums` names a scope that
    is the sum of several streams, of which this is one of `parts` (cords of a node, on one PDU or several).
    """

    name: str
    table: str
    scope: str
    period_s: float
    channels: tuple[Spec, ...]
    parent: str | None = None
    pace: Pace = "host"
    device: str = ""
    model: str = ""
    sums: str = ""
    parts: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a journal header."""
        # What asdict() gives, several times faster: a run of many nodes has thousands of streams.
        data: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**data, "channels": tuple(_spec_json(spec) for spec in self.channels)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Stream:
        """Rebuild a Stream from a journal header; keys of newer versions are ignored."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        channels = tuple(Spec.from_json(c) for c in known.pop("channels"))
        return cls(**known, channels=channels)


@dataclass(frozen=True, slots=True)
class Fetched:
    """Hold the readings of one stream from an archive.

    A row is (t0, t1, values): UTC in ns before and after the reading (equal where one time is known), one float per
    channel, NaN = not read. `host` is the node that was measured, empty for the node of the run; `events` are as in a
    run's events file, with `t` in UTC ns (gaps, problems). `meter` is the instrument where an archive has several.
    """

    stream: Stream
    rows: Sequence[tuple[int, int, Sequence[float]]]
    host: str = ""
    events: Sequence[Mapping[str, Any]] = ()
    meter: str = ""


class Archive(Protocol):
    """Read measurements of another program after they were made.

    An archive's module in `joulelab.instruments` has a function `open_archive(config) -> Archive`, beside or instead of
    `open_meter`; it raises as that does.
    """

    def fetch(self, start_utc_ns: int, end_utc_ns: int) -> Sequence[Fetched]:
        """Return the readings of [start, end], and the nearest ones outside. Raises MeterError."""
        ...

    def close(self) -> None:
        """Release the source; closing twice is harmless."""
        ...


class Meter(Protocol):
    """Read an instrument while a run goes on.

    A meter module in `joulelab.instruments` (or an entry point of the group `joulelab.meters`) has a line `SUMMARY`
    and a function `open_meter(config) -> Meter`, which raises `Unavailable` or `Denied` with advice where there is
    nothing to read. `read` is called from one thread only and returns one float per channel, NaN for a channel that
    this device does not have; it raises `ReadFailed`, `Denied` or `DeviceLost`, never returns a made-up number.
    """

    def streams(self) -> Sequence[Stream]:
        """Return the streams; fixed for the life of the meter."""
        ...

    def read(self, stream: Stream) -> Sequence[float]:
        """Return one row for the stream in SI units."""
        ...

    def close(self) -> None:
        """Release the instrument; closing twice is harmless."""
        ...
