"""Hold what meters of many devices have in common: streams with a reader each, events, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.core.spec import Stream
    from joulelab.instruments.hooks import Missing


class Readers:
    """Be a meter but for `close`: each stream has a function that reads its row."""

    def __init__(self) -> None:
        self._streams: list[Stream] = []
        self._readers: dict[str, Callable[[], Sequence[float]]] = {}
        self._events: list[dict[str, Any]] = []
        self._missing: list[Missing] = []

    def streams(self) -> Sequence[Stream]:
        """Return every stream of every device."""
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        """Return one row. Raises ReadFailed, Denied, DeviceLost."""
        return self._readers[stream.name]()

    def events(self) -> list[dict[str, Any]]:
        """Return what happened since the last call, and forget it."""
        drained, self._events = self._events, []
        return drained

    def missing(self) -> Sequence[Missing]:
        """Return what cannot be measured."""
        return self._missing

    def _put(self, stream: Stream, reader: Callable[[], Sequence[float]]) -> None:
        self._streams.append(stream)
        self._readers[stream.name] = reader
