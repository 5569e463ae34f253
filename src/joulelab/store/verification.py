"""Verify that the files of a run are those that were recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import NewerSchema, NotARun, StoreError
from joulelab.store.damage import word_damage
from joulelab.store.run_folder import RunState, find_run
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from joulelab.store.manifest import FileCheck
    from joulelab.store.run_reader import Run

WHOLE, DAMAGED, UNKNOWN = "whole", "damaged", "not verifiable"


@dataclass(frozen=True, slots=True)
class Verification:
    """Hold the result for one run: its status, the compared files, and problems as (file, text)."""

    folder: Path
    status: str
    files: tuple[FileCheck, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "run": self.folder.name,
            "folder": str(self.folder),
            "status": self.status,
            "files": [
                {"name": f.name, "status": f.status, "size": f.size, "recorded": f.record.size, "rows": f.record.rows}
                for f in self.files
            ],
            "problems": [f"{name}: {text}" for name, text in self.problems],
        }


def verify_run(runs: Path, word: str) -> Verification:
    """Find a run and compare all its files with its manifest. Raises NotARun, NewerSchema."""
    folder = Path(word)
    try:
        folder = find_run(runs, word)
        with open_run(folder) as run:
            return _verify_files(run)
    except (NotARun, NewerSchema):
        raise
    except StoreError as error:
        return Verification(folder, DAMAGED, problems=(("run.json", f"{error.what} ({error.why})"),))


def _verify_files(run: Run) -> Verification:
    checks, has_manifest = run.check_files()
    problems: dict[str, str] = {c.name: word_damage(run.path, c).what for c in checks if c.status != WHOLE}
    try:
        if run.state is RunState.LIVE:
            return Verification(run.path, UNKNOWN, problems=(("end.json", "the run is still recording"),))
        for info in run.tables():
            for stream in info.streams if not has_manifest else ():  # an unreadable file is damaged, hash or not
                run.series(info, stream.name)
        run.marks()
        damage = {p.path.relative_to(run.path).as_posix(): p.what for p in run.damage(run.events())}
    except StoreError as error:  # end.json cannot be read
        damage = {"end.json": f"{error.what} ({error.why})"}
    problems |= {name: text.removeprefix(f"{run.path}/").removeprefix(f"{name} ") for name, text in damage.items()}
    status = DAMAGED if problems else WHOLE if has_manifest else UNKNOWN
    if status == UNKNOWN and not run.lists_files and any(line.get("mark") == "work" for line in run.marks()):
        problems["marks"] = "the run reports work; lines deleted from its marks cannot be noticed"
    return Verification(run.path, status, tuple(checks), tuple(problems.items()))
