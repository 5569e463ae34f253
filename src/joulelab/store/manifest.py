"""Record the content of a sealed run: `manifest.json` holds size, SHA-256 and number of rows of every raw file.

Sizes are compared whenever a run is opened, hashes when its data is read for an analysis and by `joulelab verify`.
Files of lines may have grown since (by a process that outlived the run): only their first bytes are compared then.
The manifest ends with a hash of itself; those of earlier versions have none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.errors import NewerSchema, StoreError
from joulelab.store.documents import LARGEST_DOCUMENT, read_document
from joulelab.store.safe_files import open_regular, read_regular, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

FILE = "manifest.json"
SCHEMA = 1
RESULTS = ("results.json", "head.json", "rows.json")  # made from the files of a run; those of earlier versions too
BLOCK = 1 << 20
OWN, END = b',\n "sha256": "', b"\n}"
Status = Literal["whole", "missing", "cut", "changed", "unreadable"]
_RAW = re.compile(r"run\.json|end\.json|[^/]+/[^/]+\.(journal|damaged|parquet|jsonl)|[^/]+/marks/[^/]+\.jsonl")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Describe a file as it was when its run was sealed; `rows` is None for files that are not tables."""

    size: int
    sha256: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class FileCheck:
    """Hold the comparison of a file with the manifest; `why` says why the file cannot be read."""

    name: str
    status: Status
    size: int | None
    record: FileRecord
    why: str = ""


def compute_fingerprint(run: Path) -> str:
    """Return a hash of names, sizes and times of the files that results are made from. Raises OSError."""
    lines = [f"{name} {found.st_size} {found.st_mtime_ns}" for name, found in _list_files(run)]
    return hashlib.sha256("\n".join(sorted(lines)).encode(errors="surrogateescape")).hexdigest()[:32]


def _list_files(run: Path) -> Iterator[tuple[str, os.stat_result]]:
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(f"{run}/{folder}") as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                if entry.name.startswith(".") or name in RESULTS:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{name}/")
                    continue
                try:
                    yield name, entry.stat()
                except OSError:  # a link that leads nowhere
                    yield name, entry.stat(follow_symlinks=False)


def write_manifest(
    run: Path, rows: Mapping[str, int], replaced: Iterable[str] = (), unfinished: Iterable[str] = ()
) -> None:
    """Record the raw files of a sealed run, except `unfinished` ones; `rows` are the counts by name. Raises OSError.

    Earlier records stay, so that a changed file is not taken for the original, except for the files that
    the seal has just `replaced`: Parquet files that it wrote, and journals that are in them now.
    """
    try:
        known = read_manifest(run)
    except StoreError:
        return  # a damaged manifest is evidence: it is left as it is
    if known is None:
        known = _read_end_records(run)
    gone, skipped = set(replaced), set(unfinished)
    files = {name: record for name, record in known.items() if name not in gone}
    for name, _ in _list_files(run):
        if name not in files and name not in skipped and _RAW.fullmatch(name):
            with contextlib.suppress(OSError):
                size, digest = _hash_file(run / name)
                files[name] = FileRecord(size, digest, rows.get(name))
    entries = {name: _encode_manifest(record) for name, record in sorted(files.items())}
    text = json.dumps({"schema": SCHEMA, "files": entries}, indent=1, ensure_ascii=False)
    head = text.encode(errors="backslashreplace").removesuffix(END)
    replace_file(run / FILE, head + _encode_own_hash(head), sync=True, own=True)


def _encode_own_hash(head: bytes) -> bytes:
    """Return the end of a manifest whose other lines are `head`."""
    return b'%s%s"%s\n' % (OWN, hashlib.sha256(head + END).hexdigest().encode(), END)


def _encode_manifest(record: FileRecord) -> dict[str, Any]:
    counted = {} if record.rows is None else {"rows": record.rows}
    return {"size": record.size, "sha256": record.sha256, **counted}


def read_manifest(run: Path) -> dict[str, FileRecord] | None:
    """Return the records of a run's files by name, None where it has no manifest. Raises StoreError, NewerSchema."""
    path = run / FILE
    if not os.path.lexists(path):
        return None
    data = read_document(str(path))
    files = data.get("files")
    if type(data.get("schema")) is int and data["schema"] > SCHEMA:
        raise NewerSchema(f"schema {data['schema']} of {FILE} is newer than this joulelab reads", where=str(run))
    if not isinstance(files, dict) or not files:
        raise StoreError(f"{FILE} is damaged", where=str(run), why="it names no files", code="store.damaged")
    if data.keys() - {"schema", "files"}:
        try:
            text = read_regular(path, LARGEST_DOCUMENT)
        except OSError as error:
            raise StoreError(f"{FILE} cannot be read", where=str(run), why=str(error.strerror)) from None
        head = text.rpartition(OWN)[0]
        if text != head + _encode_own_hash(head):
            raise StoreError(f"{FILE} is damaged", where=str(run), why="its own hash differs", code="store.damaged")
    return {name: _decode_manifest(run, name, entry) for name, entry in files.items()}


def read_records(run: Path) -> dict[str, FileRecord]:
    """Return the records of the manifest, or those in `end.json` before the first seal; none if they are damaged."""
    try:
        found = read_manifest(run)
    except StoreError:
        return {}
    return _read_end_records(run) if found is None else found


def _decode_manifest(run: Path, name: str, entry: object) -> FileRecord:
    is_inside = _RAW.fullmatch(name) and not name.startswith(".")
    if isinstance(entry, dict) and entry.keys() <= {"size", "sha256", "rows"} and is_inside:
        size, digest, rows = entry.get("size"), entry.get("sha256"), entry.get("rows")
        if type(size) is int and size >= 0 and type(digest) is str and type(rows) in (int, type(None)):
            return FileRecord(size, digest, rows)
    raise StoreError(f"{FILE} is damaged", where=str(run), why="a record of it is incomplete", code="store.damaged")


def check_files(run: Path, records: Mapping[str, FileRecord], *, hashes: bool) -> Iterator[FileCheck]:
    """Compare files with their records, by size and, with `hashes`, by content."""
    for name, record in records.items():
        yield check_file(run, name, record, hashes=hashes)


def compare_size(name: str, size: int, recorded: int) -> Status:
    """Compare the size of a file with its record; files of lines may grow."""
    if size < recorded:
        return "cut"
    return "changed" if size > recorded and not name.endswith(".jsonl") else "whole"


def check_file(run: Path, name: str, record: FileRecord, *, hashes: bool) -> FileCheck:
    """Compare one file with its record."""
    try:
        with open_regular(run / name) as file:
            size = os.fstat(file.fileno()).st_size
        status = compare_size(name, size, record.size)
        if status != "whole":
            return FileCheck(name, status, size, record)
        if hashes and _hash_file(run / name, record.size)[1] != record.sha256:
            return FileCheck(name, "changed", size, record)
    except FileNotFoundError:
        return FileCheck(name, "missing", None, record)
    except OSError as error:
        return FileCheck(name, "unreadable", None, record, error.strerror or str(error))
    return FileCheck(name, "whole", size, record)


class Verifier:
    """Compare the files of one run with its manifest; a file is hashed again only if its size or time has changed."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.error: StoreError | None = None
        self.is_sealed = False
        self._records: dict[str, FileRecord] | None = None
        self._known: dict[str, tuple[tuple[int, int], FileRecord, FileCheck]] = {}

    @property
    def records(self) -> dict[str, FileRecord]:
        """Return the records; none if the manifest is missing or cannot be read (`error`)."""
        if self._records is None:
            self._records = self._read()
        return self._records

    def _read(self) -> dict[str, FileRecord]:
        self.error = None
        try:
            found = read_manifest(self.run)
            self.is_sealed = found is not None
            was_sealed = self.is_sealed or any(self.run.glob("*/*.parquet"))  # its manifest may have been deleted
            return found or {} if was_sealed else _read_end_records(self.run)
        except StoreError as error:
            self.error = error
            return {}

    def refresh(self) -> None:
        """Forget the manifest, because the folder has changed; it is read again when needed."""
        self._records = None

    def find_damage(self, path: Path, *, hashes: bool) -> FileCheck | None:
        """Return the difference of a file from its record, None if there is no difference or no record."""
        name = path.relative_to(self.run).as_posix()
        if name not in self.records:
            return None
        check = self._check(name, hashes=hashes)
        if check.status != "whole":
            self.refresh()  # it may have been sealed in between
            if name not in self.records:
                return None
            check = self._check(name, hashes=hashes)
        return None if check.status == "whole" else check

    def _check(self, name: str, *, hashes: bool) -> FileCheck:
        record = self.records[name]
        try:
            found = (self.run / name).stat()
        except OSError:
            return check_file(self.run, name, record, hashes=False)
        look = found.st_size, found.st_mtime_ns
        known = self._known.get(name)
        if known is not None and known[:2] == (look, record):
            return known[2]
        check = check_file(self.run, name, record, hashes=hashes)
        if hashes:
            self._known[name] = look, record, check
        return check


def _read_end_records(run: Path) -> dict[str, FileRecord]:
    """Return the records in `end.json`, which were made before the run was sealed; none if it has no hashes."""
    try:
        end = read_document(f"{run}/end.json")
    except StoreError:
        return {}  # it has not ended, or readers of end.json report the defect
    sizes, hashes = end.get("files"), end.get("sha256")
    if not isinstance(sizes, dict) or not isinstance(hashes, dict):
        return {}
    found = {name: {"size": sizes.get(name), "sha256": digest} for name, digest in hashes.items()}
    return {name: _decode_manifest(run, name, entry) for name, entry in found.items()}


def _hash_file(path: Path, limit: int | None = None) -> tuple[int, str]:
    """Return the number of bytes that were read (at most `limit`) and their SHA-256. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with open_regular(path) as file:
        while block := file.read(BLOCK if limit is None else min(BLOCK, limit - size)):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()
