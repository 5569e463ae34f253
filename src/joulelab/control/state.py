"""Keep what must outlive a keeper, per machine: a lock and a journal for each device, and a short log."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import pwd
import struct
import time
import urllib.parse
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.control.leftover import JOURNAL, LOCK, caps_folder, is_held
from joulelab.core.clock import NS, boot_id, utc_now_ns
from joulelab.core.errors import Refused, StoreError
from joulelab.core.process import start_ticks
from joulelab.core.setting import WAYS
from joulelab.store import safe_files
from joulelab.store.documents import decode_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA = 1
LOG_BYTES = 64 * 1024
LARGEST_JOURNAL = 1 << 20


@dataclass(frozen=True, slots=True)
class Journal:
    """Say what was found on a device and what we may have set, for whoever has to put it back."""

    device: str
    scope: str
    kind: str
    found: Mapping[str, float]
    default: Mapping[str, float] | None
    set: Sequence[Mapping[str, float]]
    boot: str = field(default_factory=boot_id)
    pid: int = field(default_factory=os.getpid)
    ticks: int | None = field(default_factory=start_ticks)
    who: Mapping[str, Any] = field(default_factory=dict)
    utc: str = ""
    schema: int = SCHEMA

    @property
    def same_boot(self) -> bool:
        """Return whether it was written in this boot."""
        return self.boot == boot_id()


class InUse(Refused):
    """Report a device that another keeper holds: for clients a Refused that may be over in a moment."""


class Lock:
    """Hold a device for as long as this is open; others are told who."""

    def __init__(self, path: Path, who: Mapping[str, Any]) -> None:
        """Take it at once. Raises BlockingIOError where somebody has it, OSError where it cannot be made."""
        self._fd = _locked(path)
        self.tell(who)

    def tell(self, who: Mapping[str, Any]) -> None:
        """Write down who holds it; a full disk costs the text, not the lock."""
        text = json.dumps(dict(who)).encode() + b"\n"
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text, 0)

    def close(self) -> None:
        """Let go; twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _locked(path: Path) -> int:
    """Return a locked file. A reader could hold up the keeper with a lock of his own: only the owner may open it."""
    while True:
        fd = safe_files.open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            # Somebody may have removed the file meanwhile: a lock on that would be a lock on nothing.
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


class State:
    """Give the locks and journals of this machine's caps. The folder is made when something is first written."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.folder = Path(caps_folder(environ))

    def lock(self, device: str, who: Mapping[str, Any], scope: str) -> Lock:
        """Take a device. Raises InUse with who has it, Refused where nothing can be written here."""
        try:
            safe_files.make_folder(self.folder)
            safe_files.check_folder(self.folder, os.geteuid())
            return Lock(self._path(device, LOCK), who)
        except BlockingIOError:
            raise self._held(device, scope) from None
        except OSError as error:
            raise self._unwritten(error, scope) from error

    def write(self, journal: Journal) -> None:
        """Put a journal on the disk, so that it is there after a power loss. Raises Refused: no journal, no cap."""
        text = json.dumps(asdict(journal), indent=1).encode() + b"\n"
        try:
            safe_files.replace_file(self._path(journal.device, JOURNAL), text, sync=True, mode=0o644)
        except OSError as error:
            raise self._unwritten(error, journal.scope) from error

    def read(self, device: str) -> Journal | None:
        """Return a device's journal, None where there is none. Raises StoreError for one that cannot be understood."""
        path = self._path(device, JOURNAL)
        try:
            data = decode_json(safe_files.read_regular(path, LARGEST_JOURNAL, follow=False))
            if data.get("schema") != SCHEMA:
                why = f"schema {data.get('schema')!r}, this joulelab writes {SCHEMA}"
                raise StoreError("the journal is of another joulelab", where=str(path), why=why, next=by_hand(path))
            journal = Journal(**data)
            _check(journal, device)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError("cannot be read", where=str(path), why=error.strerror, next=by_hand(path)) from error
        except (TypeError, ValueError, AttributeError) as error:
            raise StoreError("the journal is damaged", where=str(path), why=str(error), next=by_hand(path)) from None
        return journal

    def remove(self, device: str) -> None:
        """Remove a journal: nothing of ours is set any more. Raises OSError."""
        self._path(device, JOURNAL).unlink(missing_ok=True)
        safe_files.sync_directory(self.folder)

    def devices(self) -> list[str]:
        """Return the devices that have a journal."""
        try:
            names = sorted(p.name for p in self.folder.iterdir())
        except OSError:
            return []
        known = [n for n in names if n.endswith(JOURNAL) and not n.startswith(".")]
        return [urllib.parse.unquote(n.removesuffix(JOURNAL)) for n in known]

    def path(self, device: str) -> Path:
        """Return where a device's journal is."""
        return self._path(device, JOURNAL)

    def look(self, device: str) -> tuple[dict[str, Any] | None, Journal | None]:
        """Return who holds a device, and else its left-over journal; needs neither lock nor root. Raises StoreError."""
        journal = self.read(device)
        held = is_held(str(self._path(device, LOCK)))
        if held is None:  # not ours to see: the journal tells who wrote it
            held = journal is not None and journal.same_boot and start_ticks(journal.pid) == journal.ticks
        if not held:
            return None, journal
        return self._holder(device) or dict(journal.who if journal else {}), None

    def log(self, text: str) -> None:
        """Write a line for the administrator; the file stays small. What cannot be written is lost."""
        path = self.folder / "log"
        line = f"{utc_text()} {' '.join(text.split())}\n".encode(errors="backslashreplace")
        with contextlib.suppress(OSError):
            safe_files.check_folder(self.folder, os.geteuid())
            with open(safe_files.open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), "r+b") as file:
                if os.fstat(file.fileno()).st_size + len(line) <= LOG_BYTES:
                    file.write(line)
                    return
                kept = file.read()[-LOG_BYTES // 2 :].partition(b"\n")[2]
            safe_files.replace_file(path, kept + line, sync=True, mode=0o644)

    def _path(self, device: str, ending: str) -> Path:
        name = urllib.parse.quote(device, safe=":")
        return self.folder / f"{'%2E' + name[1:] if name.startswith('.') else name}{ending}"

    def _holder(self, device: str) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, ValueError):
            told = decode_json(safe_files.read_regular(self._path(device, LOCK), LARGEST_JOURNAL, follow=False))
            return told if isinstance(told, dict) else None
        return None

    def _held(self, device: str, scope: str) -> InUse:
        who = self._holder(device) or {}
        return InUse(f"held by {holder_text(who)}", where=scope, next="wait for it to end: joulelab cap status")

    def _unwritten(self, error: OSError, scope: str) -> Refused:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        elsewhere = "or set JOULELAB_STATE to a folder on another disk"
        then = WAYS if os.geteuid() else f"make it writable, {elsewhere}"
        if full:
            then = f"free some space, {elsewhere}"
        elif error.errno == errno.EROFS:
            then = f"make it writable, {elsewhere}"
        elif isinstance(error, safe_files.UntrustedPlace):
            then = error.next
        what = f"{scope} is not capped: what was found could not be written down"
        return Refused(what, where=str(self.folder), why=error.strerror or str(error), next=then)


def _check(journal: Journal, device: str) -> None:
    """Raise ValueError for what was not written by us for this device, or that it could not be put back to."""
    texts = (journal.scope, journal.boot, journal.utc)
    if journal.device != device or not (all(isinstance(text, str) for text in texts) and isinstance(journal.who, dict)):
        raise ValueError("it was not written for this device")
    if journal.kind not in ("power", "clocks"):
        raise ValueError(f"there is no kind {journal.kind!r}")
    for setting in [journal.found, *journal.set, *([] if journal.default is None else [journal.default])]:
        empty = not setting and journal.kind == "power"  # clocks that are not locked are {}
        if empty or not all(_is_number(value) for value in setting.values()):
            raise ValueError(f"{setting!r} is no setting")
    if journal.kind == "power" and any(setting.keys() - journal.found.keys() for setting in journal.set):
        raise ValueError(f"what was set cannot be put back to {journal.found!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def by_hand(path: Path) -> str:
    """Return what to do about a journal that cannot be used."""
    return f"set the cap by hand, then remove {path}"


def holder_text(who: Mapping[str, Any]) -> str:
    """Return who holds a device, for people: the process it is held for, and the keeper, which may outlive that."""
    user, pid, keeper, command, since = (who.get(key) for key in ("user", "pid", "keeper", "command", "since"))
    inside = [
        f"pid {pid}" if pid else "",
        f"keeper {keeper}" if keeper else "",
        f"`{command}`" if command else "",
        f"since {since}" if since else "",
    ]
    told = ", ".join(part for part in inside if part)
    return f"{user or 'somebody'}{f' ({told})' if told else ''}"


def user_name(uid: int) -> str:
    """Return a user's name, or the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def utc_text(utc_ns: int | None = None) -> str:
    """Return a time of day for people, now unless one is given."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime((utc_now_ns() if utc_ns is None else utc_ns) // NS))
