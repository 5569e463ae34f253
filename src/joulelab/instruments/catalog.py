"""Survey the meters of this machine: what can be measured and how well; what cannot, why, what to do. Data only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from joulelab import instruments as meters
from joulelab.core.errors import Denied, JoulelabError, Unavailable
from joulelab.instruments.hooks import HasMissing, Missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from joulelab.core.spec import Archive, Meter, Spec, Stream

Status = Literal["open", "unavailable", "denied", "failed", "on request", "not configured"]
ESTIMATE = "estimate"  # the one meter that measures nothing, with an option of its own


@dataclass(frozen=True, slots=True)
class Channel:
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
class Row:
    """Describe one meter: whether it opened, its channels, and what it says instead.

    `code` is that of the error. Of an entry of the configuration, `module` is what reads it, `feeds` what it covers,
    and `source` where it stands.
    """

    meter: str
    summary: str
    status: Status
    privilege: str
    tried: str
    what: str = ""
    why: str = ""
    next: str = ""
    channels: tuple[Channel, ...] = ()
    missing: tuple[Missing, ...] = ()
    module: str = ""
    feeds: str = ""
    source: str = ""
    code: str = ""


def survey(
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    names: Iterable[str] | None = None,
    *,
    estimate: bool = False,
    named: bool = True,
) -> list[Row]:
    """Open every meter once, describe it, close it; a meter that opens on request only is not opened unless named.

    With `named` False, `names` are merely those to look at.
    """
    asked = estimate or (names is not None and named)
    return [
        _row(name, (configs or {}).get(name, {}), asked=asked) for name in (meters.names() if names is None else names)
    ]


def _row(name: str, config: Mapping[str, Any], *, asked: bool) -> Row:
    try:
        module = _archive(name) or meters.find(name)
    except JoulelabError as error:
        return _refused(name, "", "", "", error)
    if is_configured(module) and not asked:
        return _not_configured(name, module)
    if not asked and not getattr(module, "DEFAULT", True):
        option = "--estimate" if name == ESTIMATE else f"--meter {name}"
        return replace(_blank(name, module, "on request"), next=f"joulelab run {option} -- CMD")
    row = describe(name, module, lambda: meters.open_meter(name, config))
    return _not_configured(name, module) if is_configured(module) and row.status == "failed" else row


def archives() -> list[str]:
    """Return the names of sources that are only asked after a run."""
    import pkgutil

    return [module.name for module in pkgutil.iter_modules(meters.__path__) if _archive(module.name) is not None]


def _archive(name: str) -> Any:
    import importlib
    import importlib.util

    path = f"{meters.__name__}.{name}"
    if not name.isidentifier() or importlib.util.find_spec(path) is None:
        return None
    module = importlib.import_module(path)
    return module if hasattr(module, "open_archive") and not hasattr(module, "open_meter") else None


def is_configured(module: Any) -> bool:
    """Return whether a meter is one that the configuration names, with an address and what it feeds."""
    return not getattr(module, "DEFAULT", True) and "feeds" in getattr(module, "CONFIG", ())


def add_command(name: str, module: Any) -> str:
    """Return the command that adds a meter to the configuration."""
    places = [key for key in ("address", "resource", "url", "path") if key in getattr(module, "CONFIG", ())]
    return " ".join([f"joulelab meters --add {name}", *(f"{key}=..." for key in places[:1])])


def describe(name: str, module: Any, open_it: Callable[[], Meter | Archive]) -> Row:
    """Open a meter or an archive, describe it, close it."""
    blank = _blank(name, module, "open")
    try:
        meter = open_it()
    except JoulelabError as error:
        return _refused(name, blank.summary, blank.privilege, blank.tried, error)
    try:
        streams: Callable[[], Sequence[Stream]] | None = getattr(meter, "streams", None)
        if streams is None:  # an archive: it tells what it has when it is asked
            return blank
        channels = tuple(_channel(name, stream, spec) for stream in streams() for spec in stream.channels)
        return replace(blank, channels=channels, missing=_missing(meter))
    except JoulelabError as error:
        return _refused(name, blank.summary, blank.privilege, blank.tried, error)
    finally:
        meter.close()


def _blank(name: str, module: Any, status: Status) -> Row:
    lines = (getattr(module, line, "") for line in ("SUMMARY", "PRIVILEGE", "TRIED"))
    summary, privilege, tried = lines
    return Row(name, summary, status, privilege, tried)


def _not_configured(name: str, module: Any) -> Row:
    return replace(_blank(name, module, "not configured"), next=add_command(name, module))


def _channel(name: str, stream: Stream, spec: Spec) -> Channel:
    return Channel(name, stream.scope, stream.parent, stream.period_s, stream.device, stream.model, spec)


def _missing(meter: object) -> tuple[Missing, ...]:
    return tuple(meter.missing()) if isinstance(meter, HasMissing) else ()


def _refused(name: str, summary: str, privilege: str, tried: str, error: JoulelabError) -> Row:
    status: Status = "unavailable" if isinstance(error, Unavailable) else "failed"
    if isinstance(error, Denied):
        status = "denied"
    return Row(name, summary, status, privilege, tried, error.what, error.why or "", error.next or "", code=error.code)
