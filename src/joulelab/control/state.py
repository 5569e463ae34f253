"""Store the state of caps that must outlive a keeper: a lock and a journal for each device, and a short log."""

from __future__ import annotations

import contextlib
import copy
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

from joulelab.control.leftovers import JOURNAL, LOCK, LOCKS, STATE, TWIN, get_caps_folder, get_locks_folder, is_locked
from joulelab.core.clock import NS, read_boot_id, read_utc_ns
from joulelab.core.errors import Refused, StoreError
from joulelab.core.process_identity import PROC, read_start_ticks
from joulelab.core.setting import GET_PERMISSION
from joulelab.store import safe_files
from joulelab.store.documents import decode_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA = 1
LOG_BYTES = 64 * 1024
MAX_JOURNAL_BYTES = 1 << 20
HOST_PIDS = "pid:[4026531836]"  # the first pid namespace of every kernel (PROC_PID_INIT_INO in proc_ns.h)


@dataclass(frozen=True, slots=True)
class CapJournal:
    """Record the original setting of a device (`found`) and every setting that the keeper may have made (`set`)."""

    device: str
    scope: str
    kind: str
    found: Mapping[str, float]
    default: Mapping[str, float] | None
    set: Sequence[Mapping[str, float]]
    boot: str = field(default_factory=read_boot_id)
    pid: int = field(default_factory=os.getpid)
    ticks: int | None = field(default_factory=read_start_ticks)
    who: Mapping[str, Any] = field(default_factory=dict)
    utc: str = ""
    schema: int = SCHEMA

    @property
    def is_from_this_boot(self) -> bool:
        """Return whether the machine has not been restarted since the journal was written."""
        return self.boot == read_boot_id()

    def check_content(self, device: str) -> None:
        """Raise ValueError for a journal of another device, or one whose values cannot be restored."""
        texts = (self.scope, self.boot, self.utc)
        if self.device != device or not (all(isinstance(t, str) for t in texts) and isinstance(self.who, dict)):
            raise ValueError("it was not written for this device")
        if self.kind not in ("power", "clocks"):
            raise ValueError(f"unknown kind {self.kind!r}")
        for setting in [self.found, *self.set, *([] if self.default is None else [self.default])]:
            empty = not setting and self.kind == "power"  # clocks that are not locked are {}
            if empty or not all(_is_number(value) for value in setting.values()):
                raise ValueError(f"{setting!r} is no setting")
        if self.kind == "power" and any(setting.keys() - self.found.keys() for setting in self.set):
            raise ValueError(f"{self.set!r} cannot be restored to {self.found!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class DeviceBusy(Refused):
    """Report a device that another keeper holds; it may be free again soon."""


class DeviceLock:
    """Hold a lock file until it is closed; the file names the holder as long as its journal exists."""

    def __init__(self, path: Path, journal: Path | None = None) -> None:
        """Take the lock without waiting. Raises BlockingIOError if another process has it, OSError."""
        self._journal = journal
        self._is_named = False
        self._fd = _lock_file(path)

    def write_holder(self, holder: Mapping[str, Any]) -> None:
        """Write the name of the holder into the file; if the disk is full, the name is missing, but the lock holds."""
        text = json.dumps(dict(holder)).encode() + b"\n"
        self._is_named = True
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text, 0)

    def close(self) -> None:
        """Release the lock; releasing twice is harmless."""
        if self._fd >= 0:
            if self._is_named and self._journal is not None and not os.path.lexists(self._journal):
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def _lock_file(path: Path) -> int:
    """Open and lock a file. Only its owner may open it, because any reader could block the keeper with a lock."""
    while True:
        fd = safe_files.open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            # If the file was removed meanwhile, this lock protects nothing: try again.
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


class StateFolder:
    """Lock devices of this machine, and read and write their journals. The folders are created at the first write.

    `path` has the journals. `locks` has the locks: it is the same folder unless JOULELAB_STATE moves the journals.
    """

    def __init__(self, environ: Mapping[str, str], *, proc: Path = PROC) -> None:
        self.path = Path(get_caps_folder(environ))
        self.locks = Path(get_locks_folder(environ))
        self._proc = proc
        # A folder for locks that somebody chose is shared by those who have to.
        self._is_host_needed = not (environ.get(TWIN) or environ.get(LOCKS))

    def lock_device(self, device: str, holder: Mapping[str, Any], scope: str) -> DeviceLock:
        """Lock a device. Raises DeviceBusy with its holder, Refused if a folder cannot be written or is not shared."""
        folder = self.path
        try:
            for folder in dict.fromkeys((self.locks, self.path)):
                safe_files.make_folder(folder)
                safe_files.check_folder(folder, os.geteuid())
                if self._is_host_needed and not is_shared_with_host(folder, self._proc):
                    raise _explain_private_folder(folder, scope)
            lock = DeviceLock(self.get_lock_path(device), self.get_journal_path(device))
        except BlockingIOError:
            text = format_holder(self._read_holder(device) or {})
            advice, code = "wait until it ends: joulelab cap status", "refused.device-busy"
            raise DeviceBusy(f"held by {text}", where=scope, next=advice, code=code) from None
        except OSError as error:
            raise self._explain_write_error(error, folder, scope) from error
        try:
            self._check_former_holder(device, scope)
        except BaseException:
            lock.close()
            raise
        elsewhere = {} if self.path == self.locks else {"notes": str(self.path), "boot": read_boot_id()}
        lock.write_holder({**holder, **elsewhere})
        return lock

    def _check_former_holder(self, device: str, scope: str) -> None:
        """Raise Refused if a killed keeper left its journal of this device in another folder than ours."""
        notes = self._find_former_notes(device)
        if not notes.is_dir() or (notes != self.path and os.path.lexists(self._get_path(notes, device, JOURNAL))):
            advice = f"{STATE}={notes.parent} joulelab cap restore; if that folder is gone for good, "
            advice += f"set the cap by hand, then remove {self.get_lock_path(device)}"
            what, why = "a cap was left behind on it", f"a killed keeper noted it in {notes}"
            raise Refused(what, where=scope, why=why, next=advice, code="refused.leftover-elsewhere")

    def _find_former_notes(self, device: str) -> Path:
        """Return the folder of the journals that the last keeper of a device used; a reboot ends caps, and counts."""
        former = self._read_holder(device) or {}
        is_now = former.get("boot", read_boot_id()) == read_boot_id()
        return Path(str(former.get("notes", self.locks))) if is_now else self.path

    def find_notes(self, device: str) -> StateFolder:
        """Return the state with the journal of a device: this one, or the one whose keeper used the lock last."""
        notes = self._find_former_notes(device)
        if notes == self.path or not os.path.lexists(self._get_path(notes, device, JOURNAL)):
            return self
        other = copy.copy(self)
        other.path = notes
        return other

    def write_journal(self, journal: CapJournal) -> None:
        """Write a journal so that it survives a power loss; needs the lock. Raises Refused: no journal, no cap."""
        text = json.dumps(asdict(journal), indent=1).encode() + b"\n"
        try:
            safe_files.replace_file(self.get_journal_path(journal.device), text, sync=True, mode=0o644)
        except OSError as error:
            raise self._explain_write_error(error, self.path, journal.scope) from error

    def read_journal(self, device: str) -> CapJournal | None:
        """Read the journal of a device, None if it has none. Raises StoreError for one that cannot be used."""
        path = self.get_journal_path(device)
        where, advice = str(path), advise_manual_reset(path)
        try:
            data = decode_json(safe_files.read_regular(path, MAX_JOURNAL_BYTES, follow=False))
            if data.get("schema") != SCHEMA:
                why = f"schema {data.get('schema')!r}, this version writes {SCHEMA}"
                what = "the journal was written by another version of joulelab"
                raise StoreError(what, where=where, why=why, next=advice, code="store.other-schema")
            journal = CapJournal(**data)
            journal.check_content(device)
        except FileNotFoundError:
            return None
        except OSError as error:
            what, code = "cannot read the journal", "store.unreadable"
            raise StoreError(what, where=where, why=error.strerror, next=advice, code=code) from error
        except (TypeError, ValueError, AttributeError) as error:
            what, code = "the journal is damaged", "store.damaged"
            raise StoreError(what, where=where, why=str(error), next=advice, code=code) from None
        return journal

    def remove_journal(self, device: str) -> None:
        """Remove a journal once the device is restored. Raises OSError."""
        self.get_journal_path(device).unlink(missing_ok=True)
        safe_files.sync_directory(self.path)

    def list_devices(self) -> list[str]:
        """List the devices that have a journal: here, where their last keeper wrote it, or in a folder that is gone."""
        elsewhere = [device for device in _list_names(self.locks, LOCK) if self._may_have_notes_elsewhere(device)]
        return sorted({*_list_names(self.path, JOURNAL), *elsewhere})

    def _may_have_notes_elsewhere(self, device: str) -> bool:
        notes = self._find_former_notes(device)
        return notes != self.path and (not notes.is_dir() or self.find_notes(device) is not self)

    def get_journal_path(self, device: str) -> Path:
        """Return the path of a device's journal."""
        return self._get_path(self.path, device, JOURNAL)

    def get_lock_path(self, device: str) -> Path:
        """Return the path of a device's lock."""
        return self._get_path(self.locks, device, LOCK)

    def inspect_device(self, device: str) -> tuple[dict[str, Any] | None, CapJournal | None]:
        """Return the holder of a device, or else its left-over journal. Needs neither lock nor root.

        Raises StoreError.
        """
        journal = self.find_notes(device).read_journal(device)
        locked = is_locked(str(self.get_lock_path(device)))
        if locked is None:  # this user may not look: see whether the process that wrote the journal lives
            here = journal if journal is not None and journal.is_from_this_boot else None
            locked = here is not None and read_start_ticks(here.pid) == here.ticks
        if not locked:
            return None, journal
        return self._read_holder(device) or dict(journal.who if journal else {}), None

    def append_log(self, text: str) -> None:
        """Append a line to the administrator's log, which stays below 64 KiB. A line that cannot be written is lost."""
        path = self.path / "log"
        line = f"{format_utc()} {' '.join(text.split())}\n".encode(errors="backslashreplace")
        with contextlib.suppress(OSError):
            safe_files.check_folder(self.path, os.geteuid())
            with open(safe_files.open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), "r+b") as file:
                if os.fstat(file.fileno()).st_size + len(line) <= LOG_BYTES:
                    file.write(line)
                    return
                newest = file.read()[-LOG_BYTES // 2 :].partition(b"\n")[2]
            safe_files.replace_file(path, newest + line, sync=True, mode=0o644)

    @staticmethod
    def _get_path(folder: Path, device: str, ending: str) -> Path:
        name = urllib.parse.quote(device, safe=":")
        return folder / f"{'%2E' + name[1:] if name.startswith('.') else name}{ending}"

    def _read_holder(self, device: str) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, ValueError):
            holder = decode_json(safe_files.read_regular(self.get_lock_path(device), MAX_JOURNAL_BYTES, follow=False))
            return holder if isinstance(holder, dict) else None
        return None

    def _explain_write_error(self, error: OSError, folder: Path, scope: str) -> Refused:
        variable = STATE if folder == self.path else LOCKS
        elsewhere = f"or set {variable} to a folder on another disk, for all users and containers"
        writable, code = f"make it writable, {elsewhere}", "refused.state-not-writable"
        advice = GET_PERMISSION if os.geteuid() else writable
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            advice, code = f"free some space, {elsewhere}", "refused.no-space"
        elif error.errno == errno.EROFS:
            advice = writable
        elif isinstance(error, safe_files.UntrustedPlace):
            advice, code = error.next, "refused.state-untrusted"
        what, why = f"{scope} is not capped: its original cap cannot be saved", error.strerror or str(error)
        return Refused(what, where=str(folder), why=why, next=advice, code=code)


def _list_names(folder: Path, ending: str) -> list[str]:
    try:
        names = [p.name for p in folder.iterdir()]
    except OSError:
        return []
    return [urllib.parse.unquote(n.removesuffix(ending)) for n in names if n.endswith(ending) and n[0] != "."]


def is_shared_with_host(folder: Path, proc: Path = PROC) -> bool:
    """Return whether a folder is the host's own: outside of containers it is, inside if mounted at its host's path.

    Nothing but files is shared by containers: abstract sockets belong to a network namespace, and nodes such as
    /dev/nvidia0 are often made anew for each container. What cannot be seen counts as shared.
    """
    folder = folder.resolve()
    try:
        pids = str((proc / "self" / "ns" / "pid").readlink())
        if pids == HOST_PIDS:  # a container with --pid=host is told by the root folder of the first process
            return os.path.samestat(folder.stat(), (proc / "1" / "root" / str(folder)[1:]).stat())
        mounts = (proc / "self" / "mountinfo").read_text(errors="replace")
    except FileNotFoundError:
        return not (proc / "1").exists()
    except OSError:
        return True
    # The mounted folder inside its file system, and where it is mounted; a later mount hides earlier ones.
    pairs = reversed([line.split()[3:5] for line in mounts.splitlines()])
    root, place = max((pair for pair in pairs if folder.is_relative_to(pair[1])), key=lambda pair: len(pair[1]))
    return place != "/" and root != "/" and (place.endswith(root) or root.endswith(place))


def _explain_private_folder(folder: Path, scope: str) -> Refused:
    what = f"{scope} is not capped: this container has a {folder} of its own"
    why = "its original cap would be lost with the container, and other containers could cap it at the same time"
    place = folder.parent
    advice = f"mount the host's folder (docker run -v {place}:{place}), or ask the host's capd: docs/how-to/caps.md"
    return Refused(what, where="caps", why=why, next=advice, code="refused.state-not-shared")


def advise_manual_reset(path: Path) -> str:
    """Return the advice for a journal that cannot be used."""
    return f"set the cap by hand, then remove {path}"


def format_holder(holder: Mapping[str, Any]) -> str:
    """Name the holder of a device: user, process, keeper (which may outlive the process), command, start."""
    user, pid, keeper, command, since = (holder.get(key) for key in ("user", "pid", "keeper", "command", "since"))
    parts = [
        f"pid {pid}" if pid else "",
        f"keeper {keeper}" if keeper else "",
        f"`{command}`" if command else "",
        f"since {since}" if since else "",
    ]
    details = ", ".join(part for part in parts if part)
    return f"{user or 'an unknown user'}{f' ({details})' if details else ''}"


def get_user_name(uid: int) -> str:
    """Return the name of a user, or the number if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def format_utc(utc_ns: int | None = None) -> str:
    """Format a UTC time (default: now) as date and time of day."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime((read_utc_ns() if utc_ns is None else utc_ns) // NS))
