"""Set a WT300E up for a run, and restore its original settings, also after a recorder that was killed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, Unavailable
from joulelab.instruments.analyzer import answers
from joulelab.instruments.analyzer.accuracy import MODELS, WIRED_ELEMENTS, Model, Ranges, list_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.instruments.analyzer.client import Link
    from joulelab.instruments.analyzer.settings import AnalyzerSettings

UPDATED = 1  # the bit of the event register that an update sets
OVER_RANGE = ("voltage or current", "voltage peak", "current peak")  # from bit 6 on, three bits per element
_BATCH = 8  # queries in one message: instruments have small buffers
_HEADER = re.compile(r":[A-Z0-9:]{3,40}\Z")
_VALUE = re.compile(r"[ -:<-~]{0,80}\Z")  # printable, without a second command behind it


@dataclass(slots=True)
class InstrumentState:
    """Hold how the instrument is set; `integration` is a key of `answers.INTEGRATION_STATES`."""

    identity: answers.Identity
    model: Model
    elements: tuple[int, ...]
    ranges: dict[int, Ranges]
    is_auto: bool
    crest: int
    is_dc: bool
    has_line_filter: bool
    update_s: float
    integration: str


def get_state_folder() -> Path:
    """Return the folder of this user's state, after the XDG rules."""
    base = os.environ.get("XDG_STATE_HOME") or ""
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "joulelab"


class OriginalSettings:
    """Hold the settings to restore, from `claim_file` on in a file that is written before anything is changed.

    A lock on the file says that a meter still uses it: the file of a recorder that was killed has none.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.has_started = False  # the integration was started, and has to be stopped and reset
        self.is_left = False  # by a recorder that was killed
        self.problem = ""
        self._file: int | None = None
        self._path = Path()

    def claim_file(self, name: str) -> None:
        """Open the file of an instrument and take over the settings that a killed recorder left."""
        if self._file is not None:
            return
        try:
            path = get_state_folder() / f"analyzer-{re.sub(r'[^A-Za-z0-9_-]+', '-', name)[:60]}.json"
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                text = os.read(file, 65536).decode("utf-8", "replace")
            except OSError as error:
                os.close(file)
                if isinstance(error, BlockingIOError):
                    return  # another meter has claimed the instrument, and will restore it
                raise
        except (OSError, RuntimeError) as error:
            self.problem = str(error)
            return
        self._file, self._path = file, path
        with contextlib.suppress(ValueError):  # a damaged file has nothing to restore
            left, _ = json.JSONDecoder().raw_decode(text)
            found = left.get("found") if isinstance(left, dict) else None
            if isinstance(found, dict) and all(
                isinstance(v, str) and _HEADER.match(k) and _VALUE.match(v) for k, v in found.items()
            ):
                self.found.update(found)
                self.has_started = self.is_left = left.get("started") is True

    def save_file(self) -> None:
        """Write the file; where that fails `problem` has the reason."""
        if self._file is None:
            return
        data = json.dumps({"started": self.has_started, "found": self.found}).encode()
        try:
            os.pwrite(self._file, data, 0)  # in one call: a kill leaves the old text or the new one, maybe with a tail
            os.ftruncate(self._file, len(data))
        except OSError as error:
            self.problem = str(error)

    def release_file(self, *, is_restored: bool) -> None:
        """Give up the claim; settings that were not restored stay in the file for the next run."""
        if is_restored:
            self.found.clear()
            self.has_started = self.is_left = False
        file, self._file = self._file, None
        if file is not None:
            if not (self.found or self.has_started):
                with contextlib.suppress(OSError):
                    self._path.unlink()
            os.close(file)


class Dialogue:
    """Query and change settings; remember the original ones.."""

    def __init__(self, link: Link, where: str, originals: OriginalSettings) -> None:
        self.link = link
        self.where = where
        self.originals = originals
        self.is_fixed = False  # an integration runs: settings cannot be changed, and have to be the wanted ones

    def query_settings(self, headers: Sequence[str]) -> list[str]:
        """Return the values of settings, without the headers that an instrument may put before them."""
        values: list[str] = []
        for k in range(0, len(headers), _BATCH):
            batch = headers[k : k + _BATCH]
            answer = self.link.query(";".join(f"{header}?" for header in batch))
            parts = [part.strip() for part in answer.split(";")]
            if len(parts) != len(batch):
                raise answers.refuse_answer(f"{len(batch)} queries have {len(parts)} answers", self.where, answer)
            values += [part.rpartition(" ")[2] if part.startswith(":") else part for part in parts]
        return values

    def change_settings(self, wanted: Sequence[tuple[str, str]]) -> None:
        """Change the settings that differ from the wanted ones, after the originals are saved. Raises Unavailable."""
        values = self.query_settings([header for header, _ in wanted])
        changes = [(h, w, v) for (h, w), v in zip(wanted, values, strict=True) if not is_same_setting(v, w)]
        if changes and self.is_fixed:
            header, value, before = changes[0]
            what, why = f"{header} is {before} and cannot be set to {value}", "an integration runs"
            advice, code = "stop it on the instrument, or leave this setting out", "unavailable.integrating"
            raise Unavailable(what, where=self.where, why=why, next=advice, code=code)
        for header, _, before in changes:
            self.originals.found.setdefault(header, before)
        if changes:
            self.originals.save_file()
        for k in range(0, len(changes), _BATCH):
            self.link.write(";".join(f"{header} {value}" for header, value, _ in changes[k : k + _BATCH]))

    def check_errors(self) -> None:
        """Refuse to go on where the instrument did not accept a setting. Raises Unavailable."""
        number, text = answers.parse_error(self.link.query(":STAT:ERR?"), self.where)
        if number:
            what, why = "the instrument refuses a setting", f"error {number}: {text}"
            advice = "stop the integration that runs" if number == 813 else "check its firmware and options"
            raise Unavailable(what, where=self.where, why=why, next=advice, code="unavailable.setting-refused")


def is_same_setting(found: str, wanted: str) -> bool:
    """Return whether two settings are the same: numbers by value, words by their shorter form."""
    left, right = found.upper().split(","), wanted.upper().split(",")
    return len(left) == len(right) and all(
        _is_same_word(a.strip(), b.strip()) for a, b in zip(left, right, strict=True)
    )


def _is_same_word(found: str, wanted: str) -> bool:
    try:
        return math.isclose(float(found), float(wanted), rel_tol=1e-4, abs_tol=1e-9)
    except ValueError:
        switches = {"ON": "1", "OFF": "0"}
        left, right = switches.get(found, found), switches.get(wanted, wanted)
        return bool(left and right) and (left.startswith(right) or right.startswith(left))


def set_up_instrument(talk: Dialogue, settings: AnalyzerSettings) -> InstrumentState:
    """Make the instrument ready, start its integration, and return how it is set.

    Raises ReadFailed, Unavailable, ConfigError.
    """
    link, where, originals = talk.link, settings.where, talk.originals
    identity = answers.parse_identity(link.query("*IDN?"), tuple(MODELS), where)
    originals.claim_file(identity.serial if identity.serial.strip("0 ") else where)
    link.write("*CLS")
    talk.change_settings([(":COMM:HEAD", "0")])
    talk.change_settings([(":SYST:COMM:COMM", "WT300"), (":COMM:REM", "1")])
    integration = answers.parse_integration(link.query(":INTEG:STAT?"), where)
    if originals.is_left:
        if integration == "STAR":
            _end_integration(link)
            integration = answers.parse_integration(link.query(":INTEG:STAT?"), where)
        originals.is_left = originals.has_started = False
    model = MODELS[identity.model.upper()]
    talk.is_fixed = integration == "STAR"
    _set_measurement(talk, model, settings)
    talk.is_fixed = False
    state = _read_state(talk, identity, model, integration)
    if settings.timeout_s < 1.5 * state.update_s:
        what = f"it updates every {state.update_s:g} s and cannot be set to {settings.update_s:g} s"
        why, advice = "an integration runs", f"set period_s = {state.update_s:g}, or stop it on the instrument"
        raise Unavailable(what, where=where, why=why, next=advice, code="unavailable.integrating")
    items = [f"{function},{element}" for element in state.elements for function in answers.ITEMS] + ["TIME,1"]
    talk.change_settings(
        [
            (":NUM:FORM", "ASC"),
            (":NUM:NORM:NUM", str(len(items))),
            *((f":NUM:NORM:ITEM{n}", item) for n, item in enumerate(items, 1)),
            *((f":STAT:FILT{n}", "RISE") for n in range(7, 16)),
            (":STAT:FILT1", "FALL"),
        ]
    )
    talk.check_errors()
    if settings.integrate and state.integration == "RES":
        talk.change_settings([(":INTEG:MODE", "NORM"), (":INTEG:TIM", "0,0,0")])
        originals.has_started = True
        originals.save_file()
        link.write(":INTEG:STAR")
        talk.check_errors()
        state.integration = "STAR"
    return state


def _set_measurement(talk: Dialogue, model: Model, settings: AnalyzerSettings) -> None:
    wanted = [(":MEAS:AVER:STAT", "0"), (":MEAS:MHOL", "0"), (":HOLD", "0")]
    if settings.crest is not None:
        wanted.append((":INP:CFAC", str(settings.crest)))
    talk.change_settings(wanted)
    crest = _read_crest(talk.query_settings([":INP:CFAC"])[0])
    chosen = (settings.volts, settings.amperes)
    for name, unit, value, available in zip(("VOLT", "CURR"), "VA", chosen, list_ranges(model, crest), strict=True):
        if value == "keep":
            continue
        talk.change_settings([(f":INP:{name}:AUTO", "1" if value == "auto" else "0")])
        if isinstance(value, float):
            if not any(math.isclose(value, one) for one in available):
                what, why = f"there is no range of {value:g} {unit}", f"crest factor {crest}"
                advice = f"use one of {', '.join(f'{one:g}' for one in available)}"
                raise ConfigError(what, where=settings.where, why=why, next=advice, code="config.no-such-range")
            talk.change_settings([(f":INP:{name}:RANG", f"{value:g}")])
    if settings.ct_ratio is not None:
        ratios = [(f":INP:SCAL:CT:ELEM{e}", f"{settings.ct_ratio:g}") for e in model.elements]
        talk.change_settings([(":INP:SCAL:STAT", "1"), *ratios])
    if not talk.is_fixed:  # another interval is right, too
        talk.change_settings([(":RATE", f"{settings.update_s:g}")])
    talk.check_errors()


def _read_state(talk: Dialogue, identity: answers.Identity, model: Model, integration: str) -> InstrumentState:
    crest, mode, wiring, line_filter, auto_volts, auto_amperes, rate, scaling = talk.query_settings(
        (":INP:CFAC", ":INP:MODE", ":INP:WIR", ":INP:FILT:LINE", ":INP:VOLT:AUTO", ":INP:CURR:AUTO", ":RATE",
         ":INP:SCAL:STAT")
    )  # fmt: skip
    update_s = answers.parse_number(rate, talk.where)
    if not 0.05 <= update_s <= 60:
        raise answers.refuse_answer("its update interval is not possible", talk.where, rate)
    elements = model.elements
    if len(elements) > 1:
        elements = tuple(e for e in WIRED_ELEMENTS.get(wiring.upper(), elements) if e in elements)
    scales = dict.fromkeys(elements, 1.0)
    for element in elements if is_same_setting(scaling, "1") else ():
        ratios = talk.query_settings([f":INP:SCAL:{kind}:ELEM{element}" for kind in ("VT", "CT", "SFAC")])
        scales[element] = math.prod(answers.parse_number(ratio, talk.where) for ratio in ratios)
    return InstrumentState(
        identity=identity,
        model=model,
        elements=elements,
        ranges=read_ranges(talk, scales),
        is_auto=is_same_setting(auto_volts, "1") or is_same_setting(auto_amperes, "1"),
        crest=_read_crest(crest),
        is_dc=mode.upper().startswith("DC"),
        has_line_filter=is_same_setting(line_filter, "1"),
        update_s=update_s,
        integration=integration,
    )


def read_ranges(talk: Dialogue, scales: Mapping[int, float]) -> dict[int, Ranges]:
    """Return the present ranges by element, with their scales. Raises ReadFailed."""
    found = talk.query_settings([":INP:VOLT:RANG", ":INP:CURR:RANG"])
    volts, amperes = (answers.parse_range(text, talk.where) for text in found)
    return {element: Ranges(volts, amperes, scale) for element, scale in scales.items()}


def _read_crest(text: str) -> int:
    return 3 if is_same_setting(text, "3") else 6


def restore_settings(link: Link, originals: OriginalSettings) -> None:
    """Restore the original settings, the last change first. Raises ReadFailed."""
    if originals.has_started:
        _end_integration(link)
    for header in reversed(originals.found):
        link.write(f"{header} {originals.found[header]}")
    originals.release_file(is_restored=True)


def _end_integration(link: Link) -> None:
    link.write(":INTEG:STOP")
    link.write(":INTEG:RES")
