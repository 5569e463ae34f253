"""Ask a service of prices or carbon intensities: page by page, within its limits, errors in words of our own.

What may pass (no network, too many requests, a fault of the service, an answer that is cut) is ReadFailed; a key that
is refused is Denied; a zone or a time that the service does not have is ConfigError.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import email.utils
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.errors import ConfigError, Denied, ReadFailed
from joulelab.instruments.http import HttpClient, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from joulelab.instruments.http import Answer
    from joulelab.plan.rates.rate import Kind

HOUR_S, DAY_S = 3600.0, 86_400.0
TIMEOUT_S = 30.0
PATIENCE_S = 90.0  # waited in all for a service that asks us to come again
PAUSES_S = (1.0, 4.0)  # after faults of the service
MOST_SAID = 160  # characters of a service's own words in a message
LEAST_SECRET = 4  # a shorter one would be found in any text
HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class About:
    """Say what a service is. `secrets` are the keys that it needs, by the variable that holds each otherwise.

    `page_s` is the longest time asked for at once, `choices` what its figures may cover.
    """

    word: str
    title: str
    address: str
    kind: Kind
    unit: str
    covers: Literal["direct", "lifecycle", ""]
    licence: str
    resolution_s: float
    page_s: float
    secrets: Mapping[str, str] = field(default_factory=dict)
    choices: tuple[str, ...] = ()
    advice: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """Say what is asked for at once: times in s since 1970; `covers` where the service offers a choice."""

    zone: str
    since_s: float
    until_s: float
    forecast: bool = False
    covers: Literal["direct", "lifecycle", ""] = ""


@dataclass(frozen=True, slots=True)
class Value:
    """Hold one value, in the unit of the service's label, and when it holds; None is a gap that the service told."""

    start_s: float
    end_s: float
    value: float | None
    estimated: bool | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """Hold what a service told; `issued_s` is when a forecast was made, by the service where it says so."""

    values: list[Value]
    issued_s: float | None = None


class Door:
    """Ask one service; it is closed by `with`. `now` gives s since 1970."""

    def __init__(
        self,
        about: About,
        address: str,
        secrets: Mapping[str, str],
        *,
        now: Callable[[], float] = lambda: read_utc_ns() / NS,
        sleep: Callable[[float], None] = time.sleep,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.about = about
        self.secrets = secrets
        self.now = now
        self._hidden = [value for value in secrets.values() if len(value) >= LEAST_SECRET]
        self._address = address
        self._sleep = sleep
        self._left_s = PATIENCE_S
        self._timeout_s = timeout_s
        self._open = contextlib.ExitStack()
        self._clients: dict[tuple[tuple[str, str], ...], HttpClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def ask(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Return the answer, whatever its status but for those that pass: then it is asked again, and then ReadFailed.

        Raises ReadFailed, Denied.
        """
        client = self._client(headers or {})
        for pause_s in (*PAUSES_S, None):
            answer = client.ask("GET", path, params)
            while answer.status == 429:
                self._wait(answer)
                answer = client.ask("GET", path, params)
            if answer.status < 500 and answer.status != 408:
                return answer
            if pause_s is not None:
                self._sleep(pause_s)
        said = self.words(answer)
        raise ReadFailed(
            "it fails to answer just now", where=self.about.title, why=f"HTTP {answer.status}{said}",
            next="try again later, or use what is kept: joulelab plan rates list",
        )  # fmt: skip

    def json(self, answer: Answer, wanted: Wanted) -> Any:
        """Return the JSON of an answer of status 200. Raises ReadFailed, Denied, ConfigError for any other."""
        self.check(answer, wanted)
        return parse_json(answer.body, self.about.title)

    def check(self, answer: Answer, wanted: Wanted) -> None:
        """Raise the error that a status stands for."""
        if answer.status == 200:
            return
        why = f"HTTP {answer.status}{self.words(answer)}"
        if answer.status in (401, 402, 403):
            raise self.refused(why)
        then = f"check the zone{': ' + self.about.advice if self.about.advice else ''}, and the time that is asked for"
        raise ConfigError(f"it does not answer for {wanted.zone!r}", where=self.about.title, why=why, next=then)

    def refused(self, why: str) -> Denied:
        """Return the error for a key that is not taken: wrong, expired, or not for this zone or history."""
        names = ", ".join(self.about.secrets.values())
        then = f"check {names} and what the account may read" if names else "try again later"
        return Denied("it refuses us", where=self.about.title, why=why, next=then)

    def words(self, answer: Answer) -> str:
        """Return what a service says itself, cut and without our secrets, with a colon in front; or nothing."""
        text = " ".join(answer.body[: 10 * MOST_SAID].decode("utf-8", "replace").split())
        for secret in self._hidden:
            text = text.replace(secret, HIDDEN)
        shown = "".join(sign if sign.isprintable() else "?" for sign in text)
        if shown.lower().startswith(("<!doctype", "<html")):  # a page for a browser tells nothing here
            return ""
        return f": {shown[:MOST_SAID]}{'...' if len(shown) > MOST_SAID else ''}" if shown else ""

    def _client(self, headers: Mapping[str, str]) -> HttpClient:
        key = tuple(headers.items())
        if key not in self._clients:
            secure = self._address.startswith("https")  # without TLS there is nothing to verify, nor to load for it
            made = HttpClient(
                self._address, headers=headers, timeout_s=self._timeout_s, label=self.about.title,
                verify=secure,
            )  # fmt: skip
            self._clients[key] = self._open.enter_context(made)
        return self._clients[key]

    def _wait(self, answer: Answer) -> None:
        """Wait as long as the service asks, in all no longer than is bearable. Raises ReadFailed."""
        pause_s = retry_after_s(answer.headers.get("retry-after", ""), self.now())
        if pause_s > self._left_s:
            raise ReadFailed(
                "it takes no more requests for now", where=self.about.title, why=f"HTTP 429{self.words(answer)}",
                next=f"try again in {math.ceil(pause_s)} s, or use what is kept: joulelab plan rates list",
            )  # fmt: skip
        self._left_s -= pause_s
        self._sleep(pause_s)


def retry_after_s(text: str, now_s: float) -> float:
    """Return how many seconds a Retry-After header asks to wait, at least 1; 10 where it says nothing that is read."""
    if text.strip().isdecimal():
        return max(float(text), 1.0)
    try:
        return max(email.utils.parsedate_to_datetime(text).timestamp() - now_s, 1.0)
    except (TypeError, ValueError):
        return 10.0


def pages(since_s: float, until_s: float, page_s: float) -> Iterator[tuple[float, float]]:
    """Return the times to ask for one after the other, each at most so long."""
    begin = since_s
    while begin < until_s:
        end = min(begin + page_s, until_s)
        yield begin, end
        begin = end


def utc_s(text: object, title: str) -> float:
    """Return a time of a service's answer in s since 1970; one without an offset is refused. Raises ReadFailed."""
    with contextlib.suppress(ValueError, OverflowError):
        told = dt.datetime.fromisoformat(str(text))
        if told.tzinfo is not None:
            return told.timestamp()
    raise ReadFailed("its answer is not as documented", where=title, why=f"{str(text)[:40]!r} is no time in UTC")


def iso(time_s: float) -> str:
    """Return a time (s since 1970) as services take it, in UTC."""
    return dt.datetime.fromtimestamp(time_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def number(value: object, title: str) -> float | None:
    """Return a number of a service's answer, None where it tells none. Raises ReadFailed for anything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ReadFailed("its answer is not as documented", where=title, why=f"{str(value)[:40]!r} is no number")
    return float(value)


def part(plain: object, key: str, kind: type | tuple[type, ...], title: str) -> Any:
    """Return a part of a service's answer by its key. Raises ReadFailed where it is not there, or of another kind."""
    found = plain.get(key) if isinstance(plain, dict) else None
    if not isinstance(found, kind):
        raise ReadFailed("its answer is not as documented", where=title, why=f"it has no usable {key!r}")
    return found
