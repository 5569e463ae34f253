"""Keep what was sent to Slurm in the study's folder, so that another driver finds it again: `STUDY/jobs/TOKEN/`."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, read_clock_pair
from joulelab.core.errors import StoreError
from joulelab.store.documents import read_json
from joulelab.store.run_folder import write_json_atomic
from joulelab.store.safe_files import open_file, open_regular, read_regular, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FOLDER, FILE, SLOTS, SCRIPT = "jobs", "job.json", "slots.txt", "script.sh"
MOST_ANSWER = 64 * 1024


@dataclass(slots=True)
class SubmittedJob:
    """Hold a job or an array of jobs: a task for each slot. `job` is None while its number is not known."""

    folder: Path
    slots: tuple[Path, ...]
    data: dict[str, Any]

    @property
    def job(self) -> str | None:
        """Return the job's number."""
        job = self.data.get("job")
        return None if job is None else str(job)

    @property
    def name(self) -> str:
        """Return the job's name, by which it is found where its number could not be written down."""
        return str(self.data["name"])

    @property
    def utc_ns(self) -> int:
        """Return when it was prepared."""
        return int(self.data["utc_ns"])

    def task(self, index: int) -> str:
        """Return a task as Slurm names it."""
        return f"{self.job}_{index}" if len(self.slots) > 1 else str(self.job)

    def out(self, index: int) -> Path:
        """Return the file of what a slot tells."""
        return self.folder / f"out.{index}"

    def err(self, index: int) -> Path:
        """Return the file of what its process wrote beside that."""
        return self.folder / f"err.{index}"

    @property
    def script(self) -> Path:
        """Return the job's script."""
        return self.folder / SCRIPT

    def write_script(self, text: str) -> Path:
        """Write the job's script; return its file. Raises StoreError."""
        try:
            replace_file(self.script, text.encode(), sync=False)
        except OSError as error:
            raise StoreError("cannot keep a job's script", where=str(self.folder), why=error.strerror) from error
        return self.script

    def note(self, **changes: Any) -> None:
        """Write down more of it. Raises StoreError."""
        self.data |= changes
        write_json_atomic(self.folder / FILE, self.data)


@contextlib.contextmanager
def lock_jobs(study: Path) -> Iterator[int]:
    """Hold the lock on the jobs of a study: who submits has it, and sbatch inherits it. Raises StoreError."""
    folder = study / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        fd = open_file(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise StoreError("cannot keep jobs", where=str(folder), why=error.strerror) from error
    try:
        with contextlib.suppress(OSError):  # a file system without locks costs a job too many, which ends at once
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def prepare_job(study: Path, slots: Sequence[Path], about: Mapping[str, Any]) -> SubmittedJob:
    """Make the folder of a job that will be submitted. Raises StoreError."""
    now = read_clock_pair().utc_ns
    stamp = dt.datetime.fromtimestamp(now // NS, dt.UTC).strftime("%Y%m%d-%H%M%S")
    token = f"{stamp}-{os.urandom(4).hex()}"
    folder = study / FOLDER / token
    data = {"job": None, "name": f"joulelab-{study.name}-{token}", "utc_ns": now, "over": False, **about}
    try:
        folder.mkdir()
        names = "".join(f"{slot.relative_to(study)}\n" for slot in slots)
        replace_file(folder / SLOTS, names.encode(errors="surrogateescape"), sync=False)
    except OSError as error:
        raise StoreError("cannot keep a job", where=str(folder), why=error.strerror) from error
    sent = SubmittedJob(folder, tuple(slots), data)
    sent.note()
    return sent


def read_open_jobs(study: Path, known: Mapping[str, SubmittedJob]) -> list[SubmittedJob]:
    """Return the jobs that are not over and not known yet, the oldest first; one that cannot be read is left out."""
    found = []
    with contextlib.suppress(OSError):
        for folder in sorted(Path(entry.path) for entry in os.scandir(study / FOLDER) if entry.is_dir()):
            if folder.name in known:
                continue
            with contextlib.suppress(StoreError, OSError, KeyError, ValueError, TypeError):
                data = read_json(folder / FILE)
                if data.get("over"):
                    continue
                slots = tuple(study / line for line in read_regular(folder / SLOTS).decode().splitlines())
                sent = SubmittedJob(folder, slots, data)
                if sent.name and sent.utc_ns:
                    found.append(sent)
    return found


def read_answer(file: Path) -> dict[str, Any] | None:
    """Return the last that a slot told, None where that was not its end."""
    for line in reversed(_tail(file, MOST_ANSWER).splitlines()):
        with contextlib.suppress(ValueError):
            told = json.loads(line)
            if isinstance(told, dict) and "is" in told:
                return None if told["is"] == "waits" else told
    return None


def read_tail(file: Path, most: int) -> str:
    """Return the end of a text."""
    return _tail(file, most).decode(errors="replace").strip()


def _tail(file: Path, most: int) -> bytes:
    try:
        with open_regular(file) as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - most))
            return opened.read()
    except OSError:
        return b""
