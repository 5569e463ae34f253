"""Hold everything that a device answered as one text file: a bug report that is a test.

    joulelab-capture: 1
    family: snmp
    device: Raritan PX3
    setting: outlets = [1, 2]

    [values]
    outlet:capture.1 power_w 205.5   # the display shows 206
    [exchanges]
    1.3.6.1.2.1.1.2.0<TAB>oid 1.3.6.1.4.1.13742.6

`values` are what joulelab reads from the answers; whoever sends the file corrects a number to what the device's own
display shows. A number is compared in the digits that it is written with, `none` is a gap, `refused CODE` an error of
opening. Secrets are removed by `removal.py`; `families.py` knows how each family asks and answers.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError, MeterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from joulelab.core.spec import Meter

MARK, VERSION = "joulelab-capture", 1
LABEL = "capture"  # of the meter that reads a capture: the name of the sender's entry is not stored
FILE_FAMILIES = ("hwmon", "rapl", "cray")
REFUSED, NONE = "refused", "none"
ADVICE = "Correct a number to what the device's own display shows: that is the test."
# Channels that differ from one reading of the same answers to the next.
_PASSING = ("age_s", "missed", "duplicate")
_COMMENT = re.compile(r"(?:^|\s)#(?:\s|$)")  # names of sensors may hold a #
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True, slots=True)
class StatedValue:
    """Hold one line of values: `text` is a number as it was written, `none`, or the code of a refusal."""

    scope: str
    channel: str
    text: str
    comment: str = ""

    def __str__(self) -> str:
        line = " ".join(filter(None, (self.scope, self.channel, self.text)))
        return f"{line}  # {self.comment}" if self.comment else line

    def fits(self, text: str) -> bool:
        """Return whether another value is the same in the digits that this one is written with."""
        if self.text == text:
            return True
        try:
            stated, read = float(self.text), float(text)
        except ValueError:
            return False
        mantissa, _, exponent = self.text.lower().partition("e")
        digits = len(mantissa.partition(".")[2])
        half = 0.5 * 10.0 ** (int(exponent or 0) - digits)
        return abs(stated - read) <= half * (1 + 1e-9) + 1e-11 * abs(stated)


@dataclass(slots=True)
class Capture:
    """Hold a device's answers by request, in the order they came; `about` are the lines of the header."""

    family: str
    about: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    values: list[StatedValue] = field(default_factory=list)
    exchanges: dict[str, str] = field(default_factory=dict)

    @property
    def meter_name(self) -> str:
        """Return the name of the meter that reads its replay; a family of files has one meter."""
        return self.family if self.family in FILE_FAMILIES else LABEL


@dataclass(slots=True)
class Tape:
    """Note what a device answers, or, without a device, give the answers that were noted."""

    exchanges: dict[str, str] = field(default_factory=dict)
    is_live: bool = True

    def take(self, request: str, ask: Callable[[], str]) -> str | None:
        """Return the answer to a request, None where none was noted. Raises what `ask` raises."""
        if self.is_live:
            self.exchanges[request] = ask()
        return self.exchanges.get(request)


def format_capture(capture: Capture) -> str:
    """Return the text of a capture."""
    lines = [f"{MARK}: {VERSION}", f"family: {capture.family}"]
    lines += [f"{key}: {_escape(value)}" for key, value in capture.about.items()]
    lines += [f"setting: {key} = {json.dumps(value, ensure_ascii=False)}" for key, value in capture.settings.items()]
    lines += ["", "[values]", f"# What joulelab reads. {ADVICE}", *map(str, capture.values), "", "[exchanges]"]
    lines += [f"{_escape(request)}\t{_escape(answer)}" for request, answer in capture.exchanges.items()]
    return "\n".join(lines) + "\n"


def parse_capture(text: str, where: str = "capture") -> Capture:
    """Read the text of a capture. Raises ConfigError."""
    capture, section = Capture(""), "header"
    for number, line in enumerate(text.splitlines(), 1):
        bare = _COMMENT.split(line, maxsplit=1)[0].strip() if section == "values" else line.strip()
        if line.strip() in ("[values]", "[exchanges]"):
            section = line.strip()[1:-1]
        elif number == 1 and bare != f"{MARK}: {VERSION}":
            raise refuse_capture(where, "it is not a capture", f"its first line is not {MARK}: {VERSION}")
        elif not bare or number == 1:
            continue
        else:
            try:
                _parse_line(capture, section, line)
            except (ValueError, RecursionError) as error:  # the second: JSON that is nested too deeply
                raise refuse_capture(where, f"line {number} of the {section} cannot be read", str(error)) from None
    if not capture.family or not capture.exchanges:
        raise refuse_capture(where, "the capture is not whole", "it has no family or no exchanges")
    return capture


def _parse_line(capture: Capture, section: str, line: str) -> None:
    if section == "exchanges":
        request, tab, answer = line.partition("\t")
        if not tab:
            raise ValueError("there is no tab between request and answer")
        capture.exchanges[_unescape(request)] = _unescape(answer)
    elif section == "values":
        bare, *comment = _COMMENT.split(line, maxsplit=1)
        *scope, channel, text = bare.split()
        if channel == REFUSED and not scope:
            scope, channel = [REFUSED], ""
        elif not scope or (text != NONE and not math.isfinite(float(text))):
            raise ValueError("a line is: scope channel number")
        capture.values.append(StatedValue(" ".join(scope), channel, text, "".join(comment).strip()))
    else:
        key, colon, value = line.partition(": ")
        if not colon:
            raise ValueError("a line is: key: value")
        if key == "family":
            capture.family = value.strip()
        elif key == "setting":
            name, _, setting = value.partition(" = ")
            capture.settings[name] = json.loads(setting)
        else:
            capture.about[key] = _unescape(value)


def refuse_capture(where: str, what: str, why: str) -> ConfigError:
    """Return the error for a file that is no capture, or has lines that cannot be read."""
    advice = "compare it with docs/how-to/capture.md"
    return ConfigError(what, where=where, why=why, next=advice, code="config.not-a-capture")


def read_values(meter: Meter) -> list[StatedValue]:
    """Read an open meter once: every power, energy and state; a power or energy that cannot be read is `none`."""
    values: list[StatedValue] = []
    for stream in meter.streams():
        error = ""
        row: Sequence[float] = [math.nan] * len(stream.channels)
        try:
            row = meter.read(stream)
        except MeterError as failed:
            error = f"{failed.code}: {failed.what}"
        for spec, number in zip(stream.channels, row, strict=True):
            if spec.name in _PASSING:
                continue
            if not math.isnan(number):
                values.append(StatedValue(stream.scope, spec.name, repr(float(f"{number:.12g}"))))
            elif spec.kind != "state":
                values.append(StatedValue(stream.scope, spec.name, NONE, error))
    return values


def state_refusal(error: JoulelabError) -> StatedValue:
    """Return the line of values for a device that could not be opened."""
    return StatedValue(REFUSED, "", error.code, error.what)


def compare_values(stated: Iterable[StatedValue], read: Iterable[StatedValue]) -> list[str]:
    """List the stated values that are not read, or read otherwise; values beyond the stated ones do not count."""
    found = {(value.scope, value.channel): value for value in read}
    wrong: list[str] = []
    for one in stated:
        other = found.get((one.scope, one.channel))
        refused = found.get((REFUSED, ""))
        if other is None and (refused or one.text != NONE):  # a channel that is not there is a gap, too
            wrong.append(f"{one} is stated, and {refused or 'no such value'} is read")
        elif other is not None and not one.fits(other.text):
            wrong.append(f"{one} is stated, and {other.text} is read")
    return wrong


def _escape(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter if letter.isprintable() else "?") for letter in text)


def _unescape(text: str) -> str:
    letters = {escape: letter for letter, escape in _ESCAPES.items()}
    return re.sub(r"\\.", lambda match: letters.get(match[0], match[0]), text)
