"""Know the driver that sent a job: it alone ends it, and others only when it is gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import StoreError
from joulelab.core.process_identity import identify_process
from joulelab.store.documents import read_json
from joulelab.study.slots import is_claim_stale
from joulelab.study.slurm.sent import FILE, FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from joulelab.study.slurm.sent import SubmittedJob
    from joulelab.study.slurm.task import SlotTask

DRIVER, ENDED, LOCK = "driver", "ended", "lock"


class JobDriver:
    """Be the driver that this process is, for the jobs of a study.

    Its lock is held as long as it lives: who cannot see its process, from another container, sees that.
    """

    def __init__(self, study: Path) -> None:
        self._folder = study / FOLDER
        self._own = identify_process()
        self._lock = -1

    def about(self) -> dict[str, Any]:
        """Return what is kept of this driver with a job that it sends; the folder of jobs is there."""
        if self._lock < 0:
            name = f".driver-{os.urandom(4).hex()}"
            with contextlib.suppress(OSError):  # without locks only those in the same container know of us
                self._lock = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                self._own[LOCK] = name
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return {DRIVER: dict(self._own)}

    def other(self, job: SubmittedJob) -> dict[str, Any] | None:
        """Return the driver that sent a job, None where it is this one or not known."""
        driver = job.data.get(DRIVER)
        if not isinstance(driver, dict):
            return None
        same = all(driver.get(key) == self._own[key] for key in ("pid", "ticks", "boot", "space"))
        return None if same else driver

    def keeper(self, job: SubmittedJob) -> str:
        """Return in words the other driver whose job it is, empty where there is none that may still live."""
        driver = self.other(job)
        if driver is None or is_claim_stale(driver, self._folder / str(driver.get(LOCK))):
            return ""
        return f"process {driver.get('pid')} on {driver.get('host')}"

    def note_end(self, tasks: Iterable[SlotTask]) -> None:
        """Write down which tasks this driver is about to cancel: for other drivers they are still to be run."""
        for task in tasks:
            with contextlib.suppress(StoreError):
                task.sent.note(**{ENDED: sorted({*task.sent.data.get(ENDED, ()), task.index})})

    def was_ended(self, task: SlotTask) -> bool:
        """Return whether the other driver that sent a task cancelled it as it was told to stop."""
        if self.other(task.sent) is None:
            return False
        with contextlib.suppress(StoreError):
            return task.index in read_json(task.sent.folder / FILE).get(ENDED, ())
        return False

    def close(self) -> None:
        """Live no more."""
        if self._lock >= 0:
            with contextlib.suppress(OSError):
                (self._folder / str(self._own[LOCK])).unlink()
            os.close(self._lock)
            self._lock = -1
