"""Upgrade documents of older schema versions while reading, refuse newer ones.

Files on disk are never rewritten for an upgrade (raw data is not changed): each step turns a document of one version
into the next, in memory. A new version adds one entry to `STEPS`, raises `SCHEMA`, and keeps a golden folder
`tests/golden/schema-N` of the version it replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from joulelab.core.errors import NewerSchema, StoreError

SCHEMA = 1
Document = Literal["run", "end", "journal", "table", "results"]
Step = Callable[[Document, dict[str, Any]], dict[str, Any]]

# STEPS[n] turns a document of schema n into one of schema n + 1.
STEPS: Mapping[int, Step] = {}
# Keys of documents that readers rely on, with the types they may have; other keys are read with care.
_TEXT, _COUNT = (str, type(None)), (int, type(None))
TYPES: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "run": {
        **dict.fromkeys(("id", "host", "name", "cwd", "user", "joulelab", "python"), _TEXT),
        **dict.fromkeys(("labels", "options", "environment", "owner", "started", "twin"), (dict, type(None))),
        "command": (list,),
    },
    "end": {
        **dict.fromkeys(("exit_code", "signal", "start_ns", "end_ns", "restarts"), _COUNT),
        **dict.fromkeys(("outcome", "message"), _TEXT),
        **dict.fromkeys(("ended", "files"), (dict, type(None))),
    },
}
_NAMES = {str: "text", int: "a whole number", dict: "an object", list: "a list"}
LARGEST = 2**63
_NOTHING = object()


def upgrade_document(
    document: Document, data: Mapping[str, Any], *, where: str, steps: Mapping[int, Step] = STEPS, schema: int = SCHEMA
) -> dict[str, Any]:
    """Return the document in the current schema; raise NewerSchema, or StoreError if its schema is unknown."""
    current = dict(data)
    version = current.get("schema")
    if not isinstance(version, int) or isinstance(version, bool):
        what, why = f"no schema version in {document}", "not written by joulelab, or damaged"
        raise StoreError(what, where=where, why=why, code="store.no-schema")
    if version > schema:
        raise NewerSchema(
            f"schema {version} is newer than this joulelab reads ({schema})",
            where=where,
            why="written by a newer version",
            next="pip install --upgrade joulelab",
        )
    while version < schema:
        step = steps.get(version)
        if step is None:
            what, why = f"schema {version} can no longer be read", f"no step to {version + 1}"
            raise StoreError(what, where=where, why=why, code="store.old-schema")
        current = {**step(document, current), "schema": version + 1}
        version += 1
    _check_types(document, current, where)
    return current


def _check_types(document: Document, data: Mapping[str, Any], where: str) -> None:
    """Raise StoreError if a value has the wrong type: one bad folder must not stop a list of runs."""
    for key, types in TYPES.get(document, {}).items():
        value = data.get(key, _NOTHING)
        kind = type(value)
        if value is not _NOTHING and (kind not in types or (kind is int and _is_too_large(value))):
            raise _make_damage_error(document, where, f"{key} is not {_NAMES[types[0]]}")
    if document == "run" and not all(type(word) is str for word in data.get("command") or ()):
        raise _make_damage_error(document, where, "command is not a list of texts")
    for key in ("started", "ended"):
        pair = data.get(key)
        if pair and not (_is_count(pair.get("mono_ns", 0)) and _is_count(pair.get("utc_ns", 0))):
            raise _make_damage_error(document, where, f"{key} is not a pair of times")


def _is_too_large(value: int) -> bool:
    return not -LARGEST < value < LARGEST


def _is_count(value: object) -> bool:
    return type(value) is int and not _is_too_large(value)


def _make_damage_error(document: Document, where: str, why: str) -> StoreError:
    what, then = f"{document}.json is damaged", "copy the run folder from its origin"
    return StoreError(what, where=where, why=why, next=then, code="store.damaged")
