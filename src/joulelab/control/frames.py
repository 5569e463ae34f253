"""Carry requests and answers: one JSON object per line, at most 65,536 bytes, checked before anybody acts on it."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import msgspec

from joulelab.core import errors
from joulelab.core.errors import ConfigError, JoulelabError

LIMIT = 65_536
MOST_CAPS = 256
MOST_TEXT = 200
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\u202a-\u202e\u2066-\u2069]+")


class WishFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for one device."""

    device: str
    value: float
    unit: Literal["W", "share", "Hz"] = "W"


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hold any request: `do` says which; the other fields belong to some of them."""

    do: Literal["status", "set", "release", "restore"]
    id: int = 0
    caps: list[WishFrame] = []
    devices: list[str] | None = None
    who: dict[str, Any] = {}


class Lines:
    """Cut what arrives into lines."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> None:
        """Take what was read."""
        self._data += data

    @property
    def waiting(self) -> bool:
        """Return whether there is a line, or already too much for one."""
        return b"\n" in self._data or len(self._data) > LIMIT

    def next(self) -> bytes | None:
        """Return the next line, None where it is not whole yet. Raises ConfigError for one that is too long."""
        end = self._data.find(b"\n")
        if end > LIMIT or (end < 0 and len(self._data) > LIMIT):
            self._data = b""
            raise ConfigError(f"a frame is longer than {LIMIT} bytes", where="caps")
        if end < 0:
            return None
        line, self._data = self._data[:end], self._data[end + 1 :]
        return line


_decoder = msgspec.json.Decoder(Ask)


def parse(line: bytes) -> Ask:
    """Return a request. Raises ConfigError for whatever is none."""
    try:
        ask = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ConfigError("not a request", where="caps", why=str(error)) from None
    if len(ask.caps) > MOST_CAPS or (ask.do == "set" and not ask.caps):
        raise ConfigError(f"a set names 1 to {MOST_CAPS} devices", where="caps", why=f"{len(ask.caps)} are named")
    return ask


def id_of(line: bytes) -> int:
    """Return the number of a request that is wrong otherwise, 0 where it has none."""
    try:
        number = msgspec.json.decode(line, type=dict[str, Any]).get("id")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return 0
    return number if type(number) is int and abs(number) < 1 << 53 else 0


def encode(frame: dict[str, Any]) -> bytes:
    """Return a frame as a line."""
    return json.dumps(frame, separators=(",", ":")).encode() + b"\n"


def plain(text: object) -> str:
    """Return one short line that is safe to show on somebody else's terminal."""
    clean = _CONTROL.sub(" ", str(text)).strip()
    return clean if len(clean) <= MOST_TEXT else f"{clean[: MOST_TEXT - 3]}..."


def refused(number: int, error: JoulelabError, *, held: bool = False, final: bool = False) -> dict[str, Any]:
    """Return the answer that tells an error; `held`: it may be over in a moment, `final`: asking again is no use."""
    kind = next(c.__name__ for c in type(error).__mro__ if c.__module__ == errors.__name__)
    told = {"kind": kind, "what": error.what, "where": error.where, "why": error.why, "next": error.next}
    return {"id": number, "is": "refused", "error": {**told, "held": held, "final": final}}


def error_of(told: dict[str, Any]) -> JoulelabError:
    """Return the error that an answer tells."""
    kind = getattr(errors, str(told.get("kind")), JoulelabError)
    texts = {key: None if told.get(key) is None else str(told[key]) for key in ("where", "why", "next")}
    what = str(told.get("what") or "refused")
    try:
        error = kind(what, **texts)
    except TypeError:  # some errors carry more than texts
        error = None
    return error if isinstance(error, JoulelabError) else JoulelabError(what, **texts)
