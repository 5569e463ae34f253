"""Add what an archive told after the fact to a run that is closed: the energy that a cluster accounted, for one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import StoreError
from joulelab.store.attached import attach_host
from joulelab.store.imported import Part, meter_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.core.spec import Fetched


def attach_archive(
    run: Path, name: str, fetched: Sequence[Fetched], facts: Mapping[str, Any], *, meter: str = "slurm"
) -> None:
    """Add what an archive told to a closed run as the host `name`: once, and whole. Raises StoreError.

    `facts` go into the host's events as they are. Only the caches of the run are removed.
    """
    stamps = [t for one in fetched for row in one.rows for t in row[:2]]
    if not stamps:
        raise StoreError("there is nothing to add", where=str(run))
    plain: dict[str, Any] = json.loads(json.dumps(dict(facts), default=str))
    attach_host(run, name, [Part(meter_names([meter])[0], fetched)], plain, (min(stamps), max(stamps)))
