"""Know the schema versions: bring older documents up to date while reading, refuse newer ones.

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


def upgrade(
    document: Document, data: Mapping[str, Any], *, where: str, steps: Mapping[int, Step] = STEPS, schema: int = SCHEMA
) -> dict[str, Any]:
    """Return the document in the current schema; raise NewerSchema, or StoreError where it is unknown."""
    current = dict(data)
    version = current.get("schema")
    if not isinstance(version, int) or isinstance(version, bool):
        raise StoreError(f"no schema version in {document}", where=where, why="not written by joulelab, or damaged")
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
            raise StoreError(f"schema {version} can no longer be read", where=where, why=f"no step to {version + 1}")
        current = {**step(document, current), "schema": version + 1}
        version += 1
    return current
