"""Hold the common part of meters of many devices: streams with a reader each, events, and parts that are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.core.spec import Stream
    from joulelab.instruments.hooks import Missing


class Readers:
    """Be a meter except for `close`: each stream has a function that reads its row."""

    def __init__(self) -> None:
        self._streams: list[Stream] = []
        self._readers: dict[str, Callable[[], Sequence[float]]] = {}
        self._events: list[dict[str, Any]] = []
        self._missing: list[Missing] = []
        self._reported: dict[tuple[str, str], dict[str, Any]] = {}

    def streams(self) -> Sequence[Stream]:
        """Return every stream of every device."""
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        """Return one row. Raises ReadFailed, Denied, DeviceLost."""
        return self._readers[stream.name]()

    def events(self) -> list[dict[str, Any]]:
        """Return the events since the last call, and forget them."""
        drained, self._events = self._events, []
        return drained

    def missing(self) -> Sequence[Missing]:
        """Return the parts that cannot be measured."""
        return self._missing

    def _put(self, stream: Stream, reader: Callable[[], Sequence[float]]) -> None:
        self._streams.append(stream)
        self._readers[stream.name] = reader

    def _report_change(self, event: str, scope: str, **values: Any) -> None:
        """Add an event, unless the last one of this kind and scope had the same values."""
        if self._reported.get((event, scope)) != values:
            self._reported[event, scope] = values
            self._events.append({"t": monotonic_ns(), "event": event, "scope": scope, **values})
