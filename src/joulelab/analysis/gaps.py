"""Pair gap events into stretches without readings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.analysis.result import Gap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def list_gaps(events: Iterable[Mapping[str, Any]]) -> list[Gap]:
    """Return the gaps of all streams in the order in which they began."""
    gaps: list[Gap] = []
    running: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for event in sorted(events, key=lambda e: int(e.get("t", 0))):
        key = (str(event.get("host", "")), str(event.get("meter", "")), str(event.get("stream", "")))
        if event.get("event") == "gap":
            running.setdefault(key, event)
        elif event.get("event") == "gap-end" and key in running:
            gaps.append(_gap(key, running.pop(key), int(event.get("to", event["t"]))))
    gaps.extend(_gap(key, event, None) for key, event in running.items())
    return sorted(gaps, key=lambda g: g.from_ns)


def _gap(key: tuple[str, str, str], begun: Mapping[str, Any], to_ns: int | None) -> Gap:
    return Gap(key[1], key[2], int(begun.get("from", begun["t"])), to_ns, str(begun.get("reason", "")))
