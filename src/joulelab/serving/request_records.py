"""Hold one request to an inference server as data; write and read it as a mark line of a run or a line of a file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

MARK = "request"
# ok        the answer is complete
# refused   the server answered with an error before the first token: 429, 500 ...; `detail` has the code
# broken    the answer ended before it was complete: connection lost, an error in the stream
# stalled   nothing came for longer than the time limit
# cancelled the load ended first
Status = Literal["ok", "refused", "broken", "stalled", "cancelled"]
STATUSES: tuple[Status, ...] = ("ok", "refused", "broken", "stalled", "cancelled")
TIMES = ("due_ns", "sent_ns", "first_ns", "last_ns")
PROGRESS_NS = 250_000_000
COUNTS = ("prompt_tokens", "output_tokens", "cached_tokens", "chunks")


@dataclass(frozen=True, slots=True)
class Request:
    """Hold one request; times are monotonic ns of the run's host, None where the event never came.

    `due_ns` is the time at which the load plan wanted it, `sent_ns` the time at which it was sent, `first_ns` and
    `last_ns` those of the first and last token (of the end, if it failed). Tokens are as the server reports them, None
    where it reports none; `cached_tokens` are prompt tokens that the server did not have to compute. `chunks` is the
    number of streamed parts that came, `progress` those that came in each PROGRESS_NS after the first token (empty if
    they were not counted). `labels` are names that the caller chose: team, user.
    """

    id: str
    due_ns: int
    sent_ns: int
    first_ns: int | None
    last_ns: int
    prompt_tokens: int | None
    output_tokens: int | None
    status: Status = "ok"
    detail: str = ""
    cached_tokens: int | None = None
    chunks: int | None = None
    progress: tuple[int, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def late_s(self) -> float:
        """Return how much later than planned it was sent, in s."""
        return (self.sent_ns - self.due_ns) * 1e-9

    @property
    def ttft_s(self) -> float | None:
        """Return the time from sending to the first token, in s."""
        return None if self.first_ns is None else (self.first_ns - self.sent_ns) * 1e-9

    @property
    def latency_s(self) -> float:
        """Return the time from sending to the end, in s."""
        return (self.last_ns - self.sent_ns) * 1e-9

    @property
    def tpot_s(self) -> float | None:
        """Return the mean time per output token after the first, in s; None for fewer than two tokens."""
        if self.first_ns is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.last_ns - self.first_ns) * 1e-9 / (self.output_tokens - 1)

    def to_mark(self) -> dict[str, Any]:
        """Return the content of its mark line."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"t": self.last_ns, "mark": MARK, **plain, "labels": dict(self.labels)}


def read_request(line: Mapping[str, Any], where: str) -> Request:
    """Read a request from its mark line. Raises ConfigError for a line that is not one."""
    try:
        return _decode_request(line)
    except (KeyError, TypeError, ValueError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError("this is no request of joulelab", where=where, why=why, code="config.no-request") from error


def _decode_request(line: Mapping[str, Any]) -> Request:
    times = {name: _read_count(line, name) for name in TIMES}
    counts = {name: _read_count(line, name) for name in COUNTS}
    due_ns, sent_ns, first_ns, last_ns = times.values()
    if due_ns is None or sent_ns is None or last_ns is None:
        raise ValueError("a time is missing: due_ns, sent_ns or last_ns")
    if not sent_ns <= (sent_ns if first_ns is None else first_ns) <= last_ns:
        raise ValueError("its times are not in the order sent, first, last")
    if line["status"] not in STATUSES:
        raise ValueError(f"status {line['status']!r} is none of {', '.join(STATUSES)}")
    progress = tuple(int(part) for part in line.get("progress") or ())
    labels = {str(name): str(value) for name, value in dict(line.get("labels") or {}).items()}
    return Request(
        str(line["id"]), due_ns, sent_ns, first_ns, last_ns, status=line["status"], detail=str(line.get("detail", "")),
        progress=progress, labels=labels, **counts,
    )  # fmt: skip


def _read_count(line: Mapping[str, Any], name: str) -> int | None:
    value = line.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is {value!r}, not a count")
    if value != int(value):
        raise ValueError(f"{name} is {value!r}, not a whole number")
    return int(value)


def list_requests(marks: Iterable[Mapping[str, Any]], where: str = "marks") -> list[Request]:
    """Return the requests among the marks of a run, in the order in which they were sent. Raises ConfigError."""
    found = [read_request(line, where) for line in marks if line.get("mark") == MARK]
    return sorted(found, key=lambda request: request.sent_ns)


def read_requests(path: Path) -> Iterator[Request]:
    """Read a file of requests, one line of JSON each. Raises ConfigError with the line's number."""
    with path.open(encoding="utf-8") as lines:
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except ValueError as error:
                raise ConfigError(
                    "a line is not JSON", where=f"{path}, line {number}", why=str(error), code="config.no-request"
                ) from error
            if not isinstance(line, dict):
                raise ConfigError(
                    "a line is not an object of JSON", where=f"{path}, line {number}", code="config.no-request"
                )
            yield read_request(line, f"{path}, line {number}")
