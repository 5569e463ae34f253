"""Plan with runs that a cluster only accounted for: their energy is known as one total, and not when it was used.

Where energy and time are enough, the energy is taken as spread evenly, which is said. Where a course or peaks are
needed, such runs are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.analysis.job_accounting import JOB_SCOPE
from joulelab.core.errors import ConfigError
from joulelab.instruments.slurm.energies import find_plugin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.draws import Measured

PLUGIN = "slurm "  # before the name of Slurm's plugin, in the model of a job's stream
COVERS = {"node.ac": "ac", "node.dc": "dc", "cpu + dram": "parts", "gpu": "parts"}
MOST = 3  # runs that are named in a note
MEASURE = "leave it out, and name a run that was measured: joulelab run -- COMMAND"


def side_told(measured: Measured) -> str:
    """Return which side of the supplies a job's energy is of: ac, dc, parts of nodes, or `job` where nobody tells."""
    told = measured.accounted.covers if measured.accounted is not None else ""
    models = [str(s.model or "") for s in measured.result.scopes if s.scope == JOB_SCOPE]
    plugins = [find_plugin(model.removeprefix(PLUGIN)) for model in models if model.startswith(PLUGIN)]
    # What was added to a run tells families of scopes, what was imported the plugin that is in its model.
    found = {told} if told in COVERS else {" + ".join(plugin.parts) for plugin in plugins}
    sides = {COVERS.get(one, "parts") for one in found}
    return sides.pop() if len(sides) == 1 else "parts" if sides else JOB_SCOPE


def nodes_told(measured: Measured) -> int | None:
    """Return on how many nodes a run was, by its label `nodes` where nothing else tells; None where that neither."""
    label = str(measured.result.labels.get("nodes", ""))
    return measured.nodes or (int(label) if label.isascii() and label.isdecimal() else 0) or None


def nodes_of(measured: Measured) -> int:
    """Return on how many nodes a run was. Raises ConfigError where only its energy is known."""
    nodes = nodes_told(measured)
    if nodes is None:
        raise ConfigError(
            f"run {measured.result.run} does not tell on how many nodes it ran",
            why="a cluster accounted for its energy, and nothing else of it is known",
            next="import it again with their number: joulelab import slurm JOB --label nodes=N",
        )
    return nodes


def check_course(measured: Sequence[Measured], what: str, next: str = MEASURE) -> None:
    """Refuse runs of which nobody knows when they drew how much. Raises ConfigError that names the first of them."""
    for one in measured:
        if not one.resolved:
            why = "a cluster accounted for its energy as one total: its power over time and its highest are not known"
            raise ConfigError(f"{what} cannot be told from run {one.result.run}", why=why, next=next)


def evenly(measured: Sequence[Measured]) -> tuple[str, ...]:
    """Return what has to be said where the energy of some runs is taken as spread evenly; nothing where it is not."""
    flat = list(dict.fromkeys(one.result.name or one.result.run for one in measured if not one.resolved))
    if not flat:
        return ()
    more = f" and {len(flat) - MOST} more" if len(flat) > MOST else ""
    whose = "their" if len(flat) > 1 else "its"
    said = "a cluster accounted for the energy as one total, which is taken as spread evenly over"
    return (f"{', '.join(flat[:MOST])}{more}: {said} {whose} time; how it was is not known, and in no interval",)


def outer_scopes(measured: Measured) -> set[tuple[str, str]]:
    """Return host and scope of what a run's energy is the sum of."""
    if measured.resolved:
        return {(draw.host, scope) for draw in measured.draws for scope in draw.scopes}
    return {(s.host, s.scope) for s in measured.result.scopes if s.scope == JOB_SCOPE}
