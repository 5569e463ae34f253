"""Keep calibrations as files: one JSON document per calibration, in the state folder, named after the host.

A run stores the calibrations of its host as events, so that its folder is enough to compute every figure again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, StoreError
from joulelab.store.documents import read_json
from joulelab.store.safe_files import make_folder, replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "JOULELAB_CALIBRATIONS"
STATE_VARIABLE = "JOULELAB_STATE"
TWIN_VARIABLE = "JOULELAB_TWIN"  # of programs on a simulated node
MACHINE_FOLDER = "/var/lib/joulelab/calibrations"
SCHEMA = 1
MOST_RECORDED = 20  # newest calibrations of a host that a run stores
EVENT = "calibration"  # of a run
# Parts of a file that its digest is of; files without the mark are of the first development version.
OLD_DIGESTED = ("schema", "id", "utc_s", "host", "reference", "devices")
DIGESTED, DIGEST_MARK = (*OLD_DIGESTED, "assumed", "is_simulated", "twin"), "2:"
IDENTITY = re.compile(r"[\w.+-]{1,200}")  # part of a file name


def list_folders(environ: Mapping[str, str]) -> list[Path]:
    """Return the folders of calibrations: that of the user, to which new ones are written, then that of the machine."""
    if environ.get(VARIABLE):
        return [Path(environ[VARIABLE])]
    if environ.get(STATE_VARIABLE):
        return [Path(environ[STATE_VARIABLE]) / "calibrations"]
    base = environ.get("XDG_STATE_HOME") or ""
    state = Path(base) if base.startswith("/") else Path(environ.get("HOME") or "/") / ".local" / "state"
    return [state / "joulelab" / "calibrations", Path(MACHINE_FOLDER)]


def list_files(environ: Mapping[str, str], host: str) -> list[Path]:
    """Return the files of calibrations of a host, the oldest first; most hosts have none."""
    found: dict[str, Path] = {}
    for folder in list_folders(environ):
        try:
            names = [path.name for path in folder.iterdir()]
        except OSError:
            continue
        for name in names:
            if name.startswith(f"{host}@") and name.endswith(".json"):
                found.setdefault(name, folder / name)
    return [found[name] for name in sorted(found)]


def read_calibration(path: Path) -> dict[str, Any]:
    """Read a calibration. Raises StoreError if the file is damaged, ConfigError if it is something else."""
    record = read_json(path)
    why = ""
    if record.get("schema") != SCHEMA or not isinstance(record.get("devices"), list):
        why = f"its schema is {record.get('schema')!r}, {SCHEMA} is known"
    elif not isinstance(record.get("id"), str) or not IDENTITY.fullmatch(record["id"]):
        why = f"its id is {record.get('id')!r}, not the name of a run"
    elif record.get("digest") != compute_digest(record, is_old=not str(record.get("digest")).startswith(DIGEST_MARK)):
        why = "its content was changed or damaged after the calibration"
    if why:
        what = "this is no calibration" if "digest" not in record else "this calibration cannot be used"
        then = "copy the original file again, or repeat the calibration: joulelab calibrations"
        raise ConfigError(what, where=str(path), why=why, next=then, code="config.no-calibration")
    return record


def compute_digest(record: Mapping[str, Any], *, is_old: bool = False) -> str:
    """Return the SHA-256 of the figures and identities of a calibration: it shows damage, and edits by hand."""
    content = {key: record.get(key) for key in (OLD_DIGESTED if is_old else DIGESTED)}
    found = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return found if is_old else DIGEST_MARK + found


def load_calibrations(environ: Mapping[str, str], host: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the calibrations of a host, the oldest first, and a sentence for each file that cannot be used.

    Those of another simulated node are left out: all twins of a kind have the same UUIDs, but not the same flaws.
    Of more than a run stores, the newest of each device comes first; a sentence says how many are left out.
    """
    records, problems = [], []
    for path in list_files(environ, host):
        try:
            record = read_calibration(path)
            if not record.get("is_simulated") or record.get("twin") == environ.get(TWIN_VARIABLE):
                records.append(record)
        except (StoreError, ConfigError) as error:
            problems.append(f"a calibration is not used: {error}")
    records.sort(key=_read_time)
    chosen = _choose_newest(records)
    if len(chosen) < len(records):
        lost = len(records) - len(chosen)
        problems.append(
            f"{lost} of {len(records)} calibrations are not used: a run stores {MOST_RECORDED}, the newest of each "
            "device first; remove those that are not needed: joulelab calibrations --remove ID"
        )
    return chosen, problems


def _choose_newest(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most MOST_RECORDED of records in order of time: those that are the newest of a device first."""
    if len(records) <= MOST_RECORDED:
        return records
    seen: set[tuple[str, str]] = set()
    newest: list[int] = []
    replaced: list[int] = []
    for number in reversed(range(len(records))):
        devices = set(_name_devices(records[number]))
        (replaced if devices <= seen else newest).append(number)
        seen |= devices
    return [records[number] for number in sorted([*newest, *replaced][:MOST_RECORDED])]


def _read_time(record: Mapping[str, Any]) -> float:
    utc_s = record.get("utc_s")
    return float(utc_s) if isinstance(utc_s, (int, float)) else 0.0


def _list_rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row for row in record["devices"] if isinstance(row, dict)]


def _name_devices(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(row.get("meter")), str(row.get("device") or row.get("scope"))) for row in _list_rows(record)]


def write_calibration(environ: Mapping[str, str], host: str, record: Mapping[str, Any]) -> Path:
    """Store a calibration for a host and return its file. Raises StoreError.

    It replaces earlier fits of the same run for its own devices; they stay for their other devices.
    """
    folder = list_folders(environ)[0]
    path = folder / _make_name(host, record)
    scopes = {row.get("scope") for row in _list_rows(record)}
    try:
        make_folder(folder)
        earlier = _read_fits(environ, host, folder, record["id"])
        _write_record(path, record)
        for old_path, old in earlier:
            rest = {**old, "devices": [row for row in _list_rows(old) if row.get("scope") not in scopes]}
            rest_path = folder / _make_name(host, rest)
            if rest["devices"]:
                _write_record(rest_path, rest)
            if old_path not in (path, rest_path):
                old_path.unlink()
    except OSError as error:
        what, then = "the calibration cannot be stored", f"set {VARIABLE} to a folder that you may write to"
        raise StoreError(what, where=str(path), why=error.strerror, next=then, code="store.unwritable") from error
    return path


def _read_fits(environ: Mapping[str, str], host: str, folder: Path, identity: str) -> list[tuple[Path, dict[str, Any]]]:
    """Return the calibrations from one run in a folder; damaged ones are left out."""
    found = []
    for path in list_files(environ, host):
        if path.parent == folder and is_named(path, identity):
            with contextlib.suppress(StoreError, ConfigError):
                found.append((path, read_calibration(path)))
    return found


def is_named(path: Path, identity: str) -> bool:
    """Return whether a file is of a calibration: `ID`, or `ID@gpu0-gpu1` for one of several fits of one run."""
    name = path.name.removesuffix(".json").partition("@")[2]
    return identity in (name, name.partition("@")[0])


def _make_name(host: str, record: Mapping[str, Any]) -> str:
    """Return HOST@ID@FIRST-LAST.json. Fits of one run have no devices in common, so their names differ."""
    scopes = [re.sub(r"[^\w.]", "", str(row.get("scope", ""))) for row in _list_rows(record)]
    devices = f"@{'-'.join(dict.fromkeys((scopes[0], scopes[-1])))}" if scopes else ""
    return f"{host}@{record['id']}{devices}.json"


def _write_record(path: Path, record: Mapping[str, Any]) -> None:
    content = {**record, "digest": compute_digest(record)}
    replace_file(path, json.dumps(content, indent=1).encode() + b"\n", sync=True)
