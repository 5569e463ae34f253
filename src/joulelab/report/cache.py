"""Keep results beside their run, valid as long as the run's files are those they were made from; both can be deleted.

`results.json` has all of it; `rows.json` the little that lists and queries over thousands of runs read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import JoulelabError, StoreError
from joulelab.core.version import __version__
from joulelab.store.documents import read_document
from joulelab.store.folder import RunState, run_state, write_json_atomic
from joulelab.store.safe_files import is_own, replace_file
from joulelab.store.upgrade import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulelab.analysis.result import Result

FILE, ROWS = "results.json", "rows.json"
VIEWS = ("energies", "phases", "facts")
WRONG = ("damaged", "impossible power")  # checks after which lists show no energy
LISTED = (
    "name",
    "start_utc",
    "duration_s",
    "energy",
    "state",
    "outcome",
    "exit_code",
    "signal",
    "command",
    "labels",
    "facts",
    "twin",
)


def fingerprint(run: Path) -> str:
    """Return a hash of what results are made from: names, sizes and times of a run's files, and joulelab's version."""
    lines = [f"joulelab {__version__}"]
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(f"{run}/{folder}") as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                if entry.name.startswith(".") or name in (FILE, ROWS):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{name}/")
                    continue
                facts = entry.stat()
                lines.append(f"{name} {facts.st_size} {facts.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(lines)).encode(errors="surrogateescape")).hexdigest()[:32]


def read_cache(run: Path) -> dict[str, Any] | None:
    """Return the cached results of a run, None where there are none or the run has changed since."""
    found = _valid(run, FILE)
    return found if found is not None and all(view in found for view in VIEWS) else None


def _valid(run: Path, file: str) -> dict[str, Any] | None:
    with contextlib.suppress(StoreError, OSError):
        data = read_document(f"{run}/{file}")
        if data.get("schema") == SCHEMA and data.get("inputs") == fingerprint(run):
            return data
    return None


def write_cache(run: Path, result: Result) -> dict[str, Any]:
    """Store a result and return what is stored; a full disk costs only the cache.

    Nothing is stored while the run goes on, nor in the folder of another user, who could plant links there.
    """
    data = {"schema": SCHEMA, "joulelab": __version__, "inputs": "", "result": result.to_json(), **view_rows(result)}
    with contextlib.suppress(StoreError, OSError):
        if is_own(run.stat()) and run_state(run) is not RunState.LIVE:
            data["inputs"] = fingerprint(run)
            write_json_atomic(run / FILE, data)
            _write_rows(run, data)
    return data


def cached_rows(run: Path) -> dict[str, Any] | None:
    """Return what lists and queries tell of a run, None where there is no cache of it or the run has changed since."""
    found = _valid(run, ROWS)
    return found if found is not None and "listed" in found and "facts" in found else None


def rows_of(run: Path) -> dict[str, Any]:
    """Return what lists and queries tell of a run: `listed`, and rows of the views. Raises JoulelabError."""
    found = cached_rows(run)
    if found is not None:
        return found
    results = results_of(run)
    with contextlib.suppress(OSError):
        if results["inputs"] and is_own(run.stat()) and not (run / ROWS).exists():
            _write_rows(run, results)
    return _rows(results)


def _rows(results: Mapping[str, Any]) -> dict[str, Any]:
    result = results["result"]
    measured: dict[str, Any] = next((g for g in result["groups"] if g["name"] == "measured"), {})
    listed = {key: result.get(key) for key in LISTED} | {"estimate": bool(measured.get("estimate"))}
    wrong: dict[str, Any] = next((c for name in WRONG for c in result["checks"] if c["name"] == name), {})
    listed |= {"problem": wrong.get("message"), "check": wrong.get("name")}
    kept = {key: results[key] for key in ("schema", "joulelab", "inputs", *VIEWS)}
    return {**kept, "listed": listed}


def _write_rows(run: Path, results: Mapping[str, Any]) -> None:
    # Not forced to the disk, which takes longer than all else: what a power loss tears is worked out again.
    replace_file(run / ROWS, json.dumps(_rows(results), separators=(",", ":")).encode(), sync=False)


def results_of(run: Path) -> dict[str, Any]:
    """Return the results of a run as plain data, from the cache or worked out and cached. Raises JoulelabError."""
    return read_cache(run) or write_cache(run, result_of(run))


def result_of(run: Path) -> Result:
    """Seal a run that has ended, and work its result out. Raises JoulelabError."""
    from joulelab.analysis.analyse import analyse
    from joulelab.store.run import open_run

    seal_ended(run)
    with open_run(run) as opened:
        return analyse(opened)


def seal_ended(run: Path) -> None:
    """Seal a run that has ended and is not sealed yet; a read-only store is read from its journals."""
    if run_state(run) is RunState.LIVE or not any(run.glob("*/*.journal")):
        return
    from joulelab.store.seal import seal

    with contextlib.suppress(JoulelabError, OSError):
        seal(run)


def query_rows(run: Path) -> Mapping[str, list[dict[str, Any]]]:
    """Return the rows that a run adds to the views of `joulelab query`; none where it cannot be worked out.

    A run that is damaged has a row of `damaged` with its problem.
    """
    try:
        found = rows_of(run)
    except Exception as error:  # noqa: BLE001 one run that cannot be worked out must not hide the others
        return {"damaged": [{"problem": str(error)}]}
    problem = found["listed"]["problem"]
    return {view: found[view] for view in VIEWS} | {"damaged": [{"problem": problem}] if problem else []}


def view_rows(result: Result) -> dict[str, list[dict[str, Any]]]:
    """Return a result as rows of the views of queries; `counted` scopes add up to what was measured."""
    views = {"energies": _energies(result), "phases": _phases(result), "facts": _facts(result)}
    return {name: _finite(rows) for name, rows in views.items()}


def _energies(result: Result) -> list[dict[str, Any]]:
    whole = result.group("measured")
    counted = set(whole.scopes) if whole else set()
    return [
        {
            "host": s.host,
            "scope": s.scope,
            "meter": s.reading.meter,
            "channel": s.reading.channel,
            "energy_j": s.energy.value,
            "uncertainty_j": s.energy.expanded,
            "mean_w": s.mean_w.value,
            "median_w": s.statistics.median if s.statistics else None,
            "max_w": s.statistics.maximum if s.statistics else None,
            "net_j": s.net.value if s.net else None,
            "accuracy": s.reading.accuracy,
            "estimate": s.reading.estimate,
            "counted": s.scope in counted,
            "device": s.device,
            "model": s.model,
        }
        for s in result.scopes
    ]


def _phases(result: Result) -> list[dict[str, Any]]:
    from joulelab.report.rows import phase_rows

    return [
        {
            "phase": p.name,
            "n": p.n,
            "start_s": p.start_s,
            "duration_s": p.duration_s,
            "energy_j": row.energy.value if row.energy else None,
            "uncertainty_j": row.energy.expanded if row.energy else None,
            "depth": p.depth,
            "last": p.last,
            **{f"work_{name}": amount for name, amount in p.work.items()},
        }
        for p, row in zip(result.phases, phase_rows(result, every=True), strict=True)
    ]


def _facts(result: Result) -> list[dict[str, Any]]:
    return [
        {
            "fact": name,
            "value": str(value),
            "number": None if isinstance(value, (str, bool)) else float(value),
        }
        for name, value in result.facts.items()
    ]


def _finite(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def kept(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return [{key: kept(value) for key, value in row.items()} for row in rows]
