"""Choose the meters of a run: the usual ones, configured ones, or those that are named; resolve their secrets.

Secrets come from the environment, a file or the keyring, never from the configuration itself.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.text import suggest_name
from joulelab.store.safe_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.run.config.configuration import Config, MeterEntry
    from joulelab.site.footprint import Site

SECRET_SOURCES = ("env", "file", "keyring")
HIDDEN = "***"
# Shorter secrets are not searched in texts: any text may contain them by chance.
SHORT_SECRET = 4


def resolve_secrets(entry: MeterEntry, environ: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of an entry with the secrets filled in, and warnings; only the meter may see them.

    Raises ConfigError.
    """
    settings, warnings = dict(entry.settings), []
    for key in entry.secrets:
        if key in settings:
            try:
                settings[key], warning = _resolve_secret(entry, key, settings[key], environ)
            except ConfigError as error:
                where = f"{entry.sources.get(key, entry.source)}, {key}"
                raise ConfigError(error.what, where=where, why=error.why, next=error.next, code=error.code) from None
            warnings += [f"meter {entry.name}: {warning}"] if warning else []
    if settings.get("verify") is False and not settings.get("fingerprint") and list_secrets(entry, settings):
        why = "verify = false sends its secret to whoever answers at its address"
        warnings.append(f"meter {entry.name}: {why}; remove it, and the error names the fingerprint to set instead")
    if entry.parts:
        settings.setdefault("parts", entry.parts)
    return settings, warnings


def mask_secrets(entry: MeterEntry) -> dict[str, Any]:
    """Return the settings of an entry for printing: secrets are replaced by their source."""
    return {k: _describe_source(v) if k in entry.secrets else v for k, v in entry.settings.items()}


def list_secrets(entry: MeterEntry, settings: Mapping[str, Any]) -> list[str]:
    """Return the secrets in resolved settings, so that texts can be searched for them."""
    found = [settings.get(key) for key in entry.secrets]
    return [value for value in found if isinstance(value, str) and len(value) >= SHORT_SECRET and value != "public"]


def hide_secrets(text: str, entry: MeterEntry, settings: Mapping[str, Any]) -> str:
    """Return a text in which the secrets of the entry are replaced."""
    for value in list_secrets(entry, settings):
        text = text.replace(value, HIDDEN)
    return text


def _describe_source(value: Any) -> str:
    if isinstance(value, dict) and len(value) == 1:
        kind, place = next(iter(value.items()))
        return f"{HIDDEN} ({kind} {place})"
    return HIDDEN


def _resolve_secret(entry: MeterEntry, key: str, value: Any, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """Return a secret, and a warning if it is stored unsafely. Raises ConfigError."""
    example = f"{entry.name}_{key}".upper().replace("-", "_")
    if key == "community" and value == "public":
        return value, None
    if not isinstance(value, dict):
        places = f'{{ env = "{example}" }}, {{ file = "~/.{entry.name}" }} or {{ keyring = "SERVICE/USER" }}'
        then = f"write {key} = {places}"
        raise ConfigError(
            "a secret is given in plain text", why="others may read it", next=then, code="config.secret-in-plain-text"
        )
    kind, place = _read_reference(value)
    if kind == "env":
        if not environ.get(place):
            what = f"the variable {place} is not set"
            raise ConfigError(what, next=f"export {place}=..., or use a file or the keyring", code="config.no-secret")
        return environ[place], None
    if kind == "file":
        return _read_secret_file(entry.sources.get(key, entry.source).file.parent / Path(place).expanduser())
    return _read_keyring(place), None


def _read_reference(value: Mapping[str, Any]) -> tuple[str, str]:
    for key in (key for key in value if key not in SECRET_SOURCES):
        raise ConfigError(
            f"unknown source {key!r}", next=suggest_name(key, list(SECRET_SOURCES)), code="config.secret-source"
        )
    if len(value) != 1 or not all(isinstance(place, str) and place for place in value.values()):
        then = 'write { env = "NAME" }, { file = "PATH" } or { keyring = "S/U" }'
        raise ConfigError("a secret has exactly one source", next=then, code="config.secret-source")
    return next(iter(value.items()))


def _read_secret_file(path: Path) -> tuple[str, str | None]:
    try:
        text = read_regular(path).decode().strip()
        mode = path.stat().st_mode
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        then = (
            f"write it: (umask 077; cat > {path}), or correct the path" if missing else "name a file that you can read"
        )
        raise ConfigError(
            f"cannot read {path}", why=error.strerror, next=then, code="config.secret-unreadable"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path} is not text", next="write the secret alone into it", code="config.secret-unreadable"
        ) from None
    if not text:
        raise ConfigError(f"{path} is empty", next="write the secret alone into it", code="config.no-secret")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return text, f"{path} can be read by others; chmod 600 {path}"
    return text, None


def _read_keyring(place: str) -> str:
    from joulelab.instruments.keyring import secret

    service, slash, user = place.rpartition("/")
    if not slash or not service or not user:
        then = 'write keyring = "SERVICE/USER"'
        raise ConfigError(f"{place!r} is not an entry of a keyring", next=then, code="config.keyring-entry")
    try:
        found = secret(service, user)
    except JoulelabError as error:
        raise ConfigError(error.what, why=error.why, next=error.next, code="config.keyring") from error
    if not found:
        raise ConfigError(
            f"the keyring has no {place!r}", next=f"store it: keyring set {service} {user}", code="config.no-secret"
        )
    return found


CONFIGURATION = "configuration"  # instead of the name of a meter, for a problem of no single entry


@dataclass(frozen=True, slots=True)
class LostMeter:
    """Hold a configured meter that cannot be read, the problem, and its kind where the entry names it.

    `cause` is the problem of an unreadable file that may define the meter.
    """

    meter: str
    problem: ConfigError
    kind: str = ""
    cause: ConfigError | None = None

    def __str__(self) -> str:
        if self.meter == CONFIGURATION:
            return f"a part of the configuration is not used: {self.problem}"
        return f"meter {self.meter} is not read: {self.problem}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the event that the run stores."""
        problem = self.problem
        what = f"{problem.where}: {problem.what}" if problem.where else problem.what
        said = {"what": what, "why": problem.why or "", "next": problem.next or "", "code": problem.code}
        return {"meter": self.meter, **said}


@dataclass(slots=True)
class MeterChoice:
    """Hold the meters of a run with their secrets (None: the usual meters), and `also`, which are read in addition.

    `entries` are the configured ones among them; `lost` are entries that cannot be read. `node` is the node's
    `rated_w` and `planned_w` of the configuration, `site` its site. `named` are the meters that the person asked for.
    """

    meters: list[dict[str, Any]] | None = field(default=None, repr=False)
    also: list[dict[str, Any]] = field(default_factory=list, repr=False)
    entries: list[MeterEntry] = field(default_factory=list)
    lost: list[LostMeter] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    node: dict[str, float] = field(default_factory=dict)
    site: Site | None = None
    named: list[str] = field(default_factory=list)

    def add_entry(self, entry: MeterEntry, environ: Mapping[str, str]) -> None:
        """Add an entry with its secrets, or its problem if the secrets cannot be read."""
        try:
            settings, warnings = resolve_secrets(entry, environ)
        except ConfigError as problem:
            self.lost.append(LostMeter(entry.name, problem, entry.meter))
            return
        except Exception as error:  # noqa: BLE001 - a secret that cannot be read costs its meter, not the command
            why, then = f"{type(error).__name__}: {error}", 'use another source, such as { env = "NAME" }'
            unread = ConfigError(
                "its secret cannot be read",
                where=str(entry.source),
                why=why,
                next=then,
                code="config.secret-unreadable",
            )
            self.lost.append(LostMeter(entry.name, unread, entry.meter))
            return
        self.entries.append(entry)
        self.also.append(make_plan_item(entry, settings))
        self.warnings += warnings


def choose_meters(
    config: Config, environ: Mapping[str, str], wanted: Sequence[str] = (), without: Sequence[str] = ()
) -> MeterChoice:
    """Return the meters of a run, given by names of entries or of modules. Raises ConfigError for any other name.

    The meters of wrong entries and of unreadable files are `lost`; all others are read.
    """
    lost_meters = list_lost_meters(config, wanted, without)
    choice = MeterChoice(node=dict(config.node), site=config.site, lost=lost_meters, named=list(wanted))
    for name in (*wanted, *without):
        entry = config.find_entry(name)
        if entry is not None and not entry.live:
            raise _refuse_archive(name)
        if _is_builtin(name) and name not in config.lost:
            check_meter_name(config, name)  # refuses an archive
    live = [e for e in config.entries if e.live and not _is_named(e, without)]
    entries = [e for e in live if not wanted or _is_named(e, wanted)]
    for entry in entries:
        choice.add_entry(entry, environ)
    # A usual meter with a wrong entry is not read at all: the entry may choose its devices.
    lost = {word for one in (*choice.lost, *_list_lost_entries(config)) for word in (one.meter, one.kind)}
    taken = {e.meter for e in config.entries if e.usual} | set(config.off) | lost
    if wanted:
        named = {name for e in entries for name in (e.name, e.meter)}
        names = [name for name in wanted if name not in named and name not in lost]
        # The load of the host is no power meter: it is read unless it is left out by name.
        names += [] if "host" in taken else ["host"]
    elif without or taken:
        from joulelab import instruments as meters

        names = [name for name in meters.list_defaults() if name not in taken]
    else:
        return choice
    choice.meters = [{"meter": name} for name in dict.fromkeys(names) if name not in without]
    return choice


def list_lost_meters(config: Config, wanted: Sequence[str] = (), without: Sequence[str] = ()) -> list[LostMeter]:
    """List general problems, then wrong entries: all of them, or those wanted by name or by kind of meter.

    If a file cannot be read, an unknown name is lost, too: that file may define it. Otherwise an unknown name raises
    ConfigError.
    """
    lost = _list_lost_entries(config)
    for name in (*wanted, *without):
        if name in config.lost or _is_builtin(name):
            continue
        try:
            check_meter_name(config, name)
        except ConfigError as problem:
            if not config.unread:
                raise
            why = f"{', '.join(map(str, config.unread))} cannot be read and may define it"
            unknown = ConfigError(problem.what, why=why, next="correct that file", code=problem.code)
            lost.append(LostMeter(name, unknown, cause=next(iter(config.unread.values()))))
    missed = [one for one in lost if not {one.meter, one.kind} & {*without}]
    return [*list_general_problems(config), *(one for one in missed if not wanted or {one.meter, one.kind} & {*wanted})]


def _list_lost_entries(config: Config) -> list[LostMeter]:
    kinds = {name: str(config.tables[name].values.get("meter", name)) for name in config.lost}
    return [LostMeter(name, problem, kinds[name]) for name, problems in config.lost.items() for problem in problems]


def word_lost_meters(lost: Iterable[LostMeter]) -> list[str]:
    """Return a warning for each cause, with all meters that are lost by it."""
    causes: dict[int, list[LostMeter]] = {}
    for one in lost:
        causes.setdefault(id(one.cause or one.problem), []).append(one)
    texts = []
    for first, *more in causes.values():
        names = [one.meter for one in (first, *more) if one.meter != CONFIGURATION]
        are_not = f"meters {', '.join(names)} are not" if len(names) > 1 else f"meter {', '.join(names)} is not"
        texts.append(f"{are_not} read: {first.cause or first.problem}" if more else str(first))
    return texts


def list_general_problems(config: Config) -> list[LostMeter]:
    """Return the problems that belong to no entry, such as a file that is not TOML or a wrong key of [run]."""
    own = [problem for problems in config.lost.values() for problem in problems]
    return [LostMeter(CONFIGURATION, problem) for problem in config.problems if problem not in own]


def check_meter_name(config: Config, name: str) -> None:
    """Refuse a name that neither an entry nor a module has. Raises ConfigError with the nearest name."""
    if config.find_entry(name) is not None or "." in name or "/" in name:
        return
    from joulelab import instruments as meters

    try:
        meters.find_meter(name)
    except ConfigError:
        if any(entry.meter == name for entry in config.entries):
            return
        if _is_builtin(name):
            raise _refuse_archive(name) from None
        table = config.tables.get(name)
        if table is not None:
            why = "it is not for this host" if table.values.get("enabled", True) else "it is switched off"
            raise ConfigError(
                f"entry {name} is not used here", where=str(table.source), why=why, code="config.unused-entry"
            ) from None
        valid = [*(entry.name for entry in config.entries), *meters.list_meters(), *meters.list_archives()]
        raise ConfigError(
            f"there is no meter {name!r}", where="meters", next=suggest_name(name, valid), code="config.unknown-meter"
        ) from None


def _refuse_archive(name: str) -> ConfigError:
    return ConfigError(
        f"{name} is not read during a run", next="read it afterwards: joulelab import --help", code="config.archive"
    )


def make_plan_item(entry: MeterEntry, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry for the recorder's plan; only usual meters follow the period of the run."""
    hidden = list_secrets(entry, settings)
    return {"meter": entry.meter, "name": entry.name, "config": dict(settings), "paced": entry.usual, "hide": hidden}


def _is_builtin(name: str) -> bool:
    from joulelab.run.config.meter_entries import is_builtin_meter  # loads instruments: only where a name is given

    return is_builtin_meter(name)


def _is_named(entry: MeterEntry, names: Iterable[str]) -> bool:
    return entry.name in names or entry.meter in names
