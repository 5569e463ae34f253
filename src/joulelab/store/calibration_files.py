"""Keep calibrations as files: one JSON document per calibration, in the state folder, named after the host.

A run stores the calibrations of its host as events, so that its folder is enough to compute every figure again.
"""

from __future__ import annotations

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
    """
    records, problems = [], []
    for path in list_files(environ, host)[-MOST_RECORDED:]:
        try:
            record = read_calibration(path)
            if not record.get("is_simulated") or record.get("twin") == environ.get(TWIN_VARIABLE):
                records.append(record)
        except (StoreError, ConfigError) as error:
            problems.append(f"a calibration is not used: {error}")
    return records, problems


def write_calibration(environ: Mapping[str, str], host: str, record: Mapping[str, Any]) -> Path:
    """Store a calibration for a host and return its file. Raises StoreError."""
    folder = list_folders(environ)[0]
    path = folder / f"{host}@{record['id']}.json"
    try:
        make_folder(folder)
        replace_file(
            path, json.dumps({**record, "digest": compute_digest(record)}, indent=1).encode() + b"\n", sync=True
        )
    except OSError as error:
        what, then = "the calibration cannot be stored", f"set {VARIABLE} to a folder that you may write to"
        raise StoreError(what, where=str(path), why=error.strerror, next=then, code="store.unwritable") from error
    return path
