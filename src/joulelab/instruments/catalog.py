"""Survey the meters of this machine: what can be measured and how well; what cannot, why, what to do. Data only."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from joulelab import instruments
from joulelab.core.errors import Denied, JoulelabError, Unavailable
from joulelab.instruments.hooks import HasMissing, Missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from joulelab.core.spec import Archive, Meter, Spec, Stream

Status = Literal["open", "unavailable", "denied", "failed", "on request", "not configured"]
ESTIMATE = "estimate"  # the one meter that measures nothing, with an option of its own


@dataclass(frozen=True, slots=True)
class MeterChannel:
    """Describe one channel of an open meter; `period_s` is how often it is read."""

    meter: str
    scope: str
    parent: str | None
    period_s: float
    device: str
    model: str
    spec: Spec

    @property
    def accuracy(self) -> str:
        """Return the accuracy in words, with its source."""
        accuracy = self.spec.accuracy
        if self.spec.kind == "state" or self.spec.unit not in ("J", "W"):
            return ""
        if accuracy.source == "unknown":
            return "unknown"
        return f"±{accuracy.gain * 100:.2g} % ({accuracy.source})"


@dataclass(frozen=True, slots=True)
class MeterRow:
    """Describe one meter: whether it opened, its channels, or its error.

    `code` is that of the error. Of an entry of the configuration, `module` is what reads it, `feeds` what it covers,
    and `source` the file that has it.
    """

    meter: str
    summary: str
    status: Status
    privilege: str
    tried: str
    what: str = ""
    why: str = ""
    next: str = ""
    channels: tuple[MeterChannel, ...] = ()
    missing: tuple[Missing, ...] = ()
    module: str = ""
    feeds: str = ""
    source: str = ""
    code: str = ""


def survey_meters(
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    names: Iterable[str] | None = None,
    *,
    estimate: bool = False,
    named: bool = True,
) -> list[MeterRow]:
    """Open every meter once, describe it, close it; a meter that opens on request only is not opened unless named.

    With `named` False, `names` are merely those to look at.
    """
    is_asked = estimate or (names is not None and named)
    chosen = instruments.list_meters() if names is None else names
    return [_survey_meter(name, (configs or {}).get(name, {}), is_asked=is_asked) for name in chosen]


def _survey_meter(name: str, config: Mapping[str, Any], *, is_asked: bool) -> MeterRow:
    try:
        if name in instruments.list_archives():
            module: Any = importlib.import_module(f"{instruments.__name__}.{name}")
        else:
            module = instruments.find_meter(name)
    except JoulelabError as error:
        return _add_error(MeterRow(name, "", "failed", "", ""), error)
    unopened = replace(_start_row(name, module), status="not configured", next=make_add_command(name, module))
    if is_configured(module) and not is_asked:
        return unopened
    if not is_asked and not getattr(module, "DEFAULT", True):
        option = "--estimate" if name == ESTIMATE else f"--meter {name}"
        return replace(unopened, status="on request", next=f"joulelab run {option} -- CMD")
    row = describe_meter(name, module, lambda: instruments.open_meter(name, config))
    return unopened if is_configured(module) and row.status == "failed" else row


def is_configured(module: Any) -> bool:
    """Return whether a meter is one that the configuration names, with an address and what it feeds."""
    return not getattr(module, "DEFAULT", True) and "feeds" in getattr(module, "CONFIG", ())


def make_add_command(name: str, module: Any) -> str:
    """Return the command that adds a meter to the configuration."""
    places = [key for key in ("address", "resource", "url", "path") if key in getattr(module, "CONFIG", ())]
    return " ".join([f"joulelab meters --add {name}", *(f"{key}=..." for key in places[:1])])


def describe_meter(name: str, module: Any, open_it: Callable[[], Meter | Archive]) -> MeterRow:
    """Open a meter or an archive, describe it, close it."""
    row = _start_row(name, module)
    try:
        meter = open_it()
    except JoulelabError as error:
        return _add_error(row, error)
    try:
        streams: Callable[[], Sequence[Stream]] | None = getattr(meter, "streams", None)
        if streams is None:  # an archive: it lists its series when it is read
            return row
        channels = tuple(
            MeterChannel(name, stream.scope, stream.parent, stream.period_s, stream.device, stream.model, spec)
            for stream in streams()
            for spec in stream.channels
        )
        missing = tuple(meter.missing()) if isinstance(meter, HasMissing) else ()
        return replace(row, channels=channels, missing=missing)
    except JoulelabError as error:
        return _add_error(row, error)
    finally:
        meter.close()


def _start_row(name: str, module: Any) -> MeterRow:
    summary, privilege, tried = (getattr(module, line, "") for line in ("SUMMARY", "PRIVILEGE", "TRIED"))
    return MeterRow(name, summary, "open", privilege, tried)


def _add_error(row: MeterRow, error: JoulelabError) -> MeterRow:
    status: Status = "unavailable" if isinstance(error, Unavailable) else "failed"
    if isinstance(error, Denied):
        status = "denied"
    why, advice = error.why or "", error.next or ""
    return replace(row, status=status, what=error.what, why=why, next=advice, code=error.code)
