"""Define the messages between a client and a keeper: one JSON object per line, checked before anything acts on it.

Older and newer versions talk to each other: unknown fields of an answer are ignored, those of a request are refused.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from joulelab.core import errors
from joulelab.core.errors import ConfigError, JoulelabError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_LINE_BYTES = 65_536
MAX_CAPS = 256
MAX_TEXT_CHARS = 200
# Control characters, line separators, lone surrogates and marks that reverse the direction of text.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\u202a-\u202e\u2066-\u2069]+")


class CapRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limit one device (`gpu:0`, `cpu:1`, a UUID) to a value in W, as a share of its default, or in Hz."""

    device: str
    value: float
    unit: Literal["W", "share", "Hz"] = "W"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {"device": self.device, "value": self.value, "unit": self.unit}


class KeeperRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hold any request of a client: `caps` and `who` belong to `set`, `devices` (None: all) to `restore`.

    `pid` and `ticks` (its start) are the first process of the job to `pause`.
    """

    do: Literal["status", "set", "release", "restore", "pause", "resume"]
    id: int = 0
    caps: list[CapRequest] = []
    devices: list[str] | None = None
    who: dict[str, Any] = {}
    pid: int = 0
    ticks: int = 0


class _Answer(msgspec.Struct, frozen=True):
    """Share the conversion from and to the JSON of an answer."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Read the fields of an answer; fields of newer versions are ignored."""
        return msgspec.convert(fields, cls)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


class HeldCap(_Answer, frozen=True):
    """Describe a cap that is set; values in `unit`. `found` will be restored (None: the clocks were not locked)."""

    scope: str
    device: str
    model: str
    kind: str
    asked: float
    requested: float | None
    enforced: float | None
    found: float | None
    default: float | None
    unit: str


class CapOutcome(_Answer, frozen=True, omit_defaults=True, rename={"message": "said"}):
    """Describe how a cap ended: `restored`, `as found`, `left`, `failed`. Values in `unit`, None if unset or unread.

    `left`: another program had changed the cap, which was not touched. `failed`: the journal stays for the next try.
    `keeps_journal`: the journal of a cap that is restored could not be removed.
    """

    scope: str
    device: str
    outcome: str
    found: float | None
    now: float | None
    unit: str
    message: str = ""
    keeps_journal: bool = False


class CapDevice(_Answer, frozen=True):
    """Describe a device that can be capped: its range and cap, its holder, and the cap of a killed keeper on it."""

    scope: str
    device: str
    model: str
    kind: str
    unit: str
    lowest: float
    highest: float
    default: float | None
    requested: float | None
    enforced: float | None
    holder: str | None = None
    leftover: dict[str, Any] | None = None


class CapStatus(_Answer, frozen=True):
    """List the devices that can be capped, and (scope, reason) of those that cannot."""

    devices: list[CapDevice] = []
    missing: list[tuple[str, str]] = []


class LineBuffer:
    """Cut received bytes into lines."""

    def __init__(self) -> None:
        self._data = b""

    def add_bytes(self, data: bytes) -> None:
        """Append received bytes."""
        self._data += data

    @property
    def has_line(self) -> bool:
        """Return whether there is a complete line, or more bytes than a line may have."""
        return b"\n" in self._data or len(self._data) > MAX_LINE_BYTES

    def pop_line(self) -> bytes | None:
        """Return the next line, None while it is incomplete. Raises ConfigError for a line that is too long."""
        end = self._data.find(b"\n")
        if end > MAX_LINE_BYTES or (end < 0 and len(self._data) > MAX_LINE_BYTES):
            self._data = b""
            text = f"a message is longer than {MAX_LINE_BYTES} bytes"
            raise ConfigError(text, where="caps", code="config.message-too-long")
        if end < 0:
            return None
        line, self._data = self._data[:end], self._data[end + 1 :]
        return line


_decoder = msgspec.json.Decoder(KeeperRequest)


def parse_request(line: bytes) -> KeeperRequest:
    """Decode a request. Raises ConfigError for anything else."""
    try:
        request = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ConfigError("not a request", where="caps", why=str(error), code="config.not-a-request") from None
    if len(request.caps) > MAX_CAPS or (request.do == "set" and not request.caps):
        what, why = f"a request sets 1 to {MAX_CAPS} devices", f"this one names {len(request.caps)}"
        raise ConfigError(what, where="caps", why=why, code="config.number-of-devices")
    return request


def read_request_id(line: bytes) -> int:
    """Return the number of a wrong request, so that it can be answered; 0 if it has none."""
    try:
        number = msgspec.json.decode(line, type=dict[str, Any]).get("id")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return 0
    return number if type(number) is int and abs(number) < 1 << 53 else 0


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Encode a message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def clean_text(text: object) -> str:
    """Shorten a client's text to one line that is safe on another user's terminal."""
    clean = _UNSAFE.sub(" ", str(text)).strip()
    return clean if len(clean) <= MAX_TEXT_CHARS else f"{clean[: MAX_TEXT_CHARS - 3]}..."


def make_refusal(request_id: int, error: JoulelabError, *, held: bool = False, final: bool = False) -> dict[str, Any]:
    """Make the answer that carries an error; `held`: a retry may succeed soon, `final`: a retry is useless."""
    kind = next(c.__name__ for c in type(error).__mro__ if c.__module__ == errors.__name__)
    words = {"what": error.what, "where": error.where, "why": error.why, "next": error.next}
    fields = {"kind": kind, "code": error.code, **words, "held": held, "final": final}
    return {"id": request_id, "is": "refused", "error": fields}


def rebuild_error(fields: Mapping[str, Any]) -> JoulelabError:
    """Make the error that a refusal carries; older keepers send no code."""
    kind = getattr(errors, str(fields.get("kind")), JoulelabError)
    words = {key: None if fields.get(key) is None else str(fields[key]) for key in ("where", "why", "next")}
    what = str(fields.get("what") or "refused")
    code = str(fields.get("code") or "")
    try:
        error = kind(what, **words, code=code)
    except TypeError:  # some errors need more than words
        error = None
    return error if isinstance(error, JoulelabError) else JoulelabError(what, **words, code=code)
