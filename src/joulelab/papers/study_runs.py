"""Read the runs of a study on twins: finished slots, series of channels, runs as the model lays them out; draw them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joulelab.core.scope import find_family
from joulelab.report.charts.print_painter import render_chart
from joulelab.study.matrix import TWIN
from joulelab.study.slots import State, list_claimed_slots, read_slot
from joulelab.twin.timeline import lay_out_run
from joulelab.twin.virtual.cells import find_model, make_request, read_description
from joulelab.twin.virtual.slot import make_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from joulelab.report.charts.chart_model import Chart
    from joulelab.store.run_reader import Run
    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.slots import Slot
    from joulelab.twin.nodefile import Description
    from joulelab.twin.timeline import RunTimes, Timeline
    from joulelab.twin.workload_progress import RunRequest

    Floats = npt.NDArray[np.float64]
    Times = npt.NDArray[np.int64]
    Series = tuple[Times, Floats]

REPEAT = "r"  # folders of repeats begin with it; those of warm-ups do not


class TwinCell(NamedTuple):
    """Hold a cell of a study on a twin: the twin, and the request of the cell."""

    study: Study
    cell: PlannedCell
    described: Description
    request: RunRequest

    def make_seed(self, slot: str) -> int:
        """Return the seed of a slot's scatter."""
        return make_seed(self.study, self.cell, slot)

    def lay_out(self, times: RunTimes, slot: str) -> Timeline:
        """Lay out a run of the cell as the twin has it, with the scatter of that slot."""
        _, model = find_model(self.described, self.cell)
        return lay_out_run(self.described.node, model, self.request, times, self.make_seed(slot))


def list_slots(folder: Path) -> list[Slot]:
    """List the repeats that a study's folder has, by cell."""
    cells = sorted((folder / "cells").glob("*/"))
    return [read_slot(slot) for cell in cells for slot in list_claimed_slots(cell) if slot.name.startswith(REPEAT)]


def list_finished(study: Study) -> Iterator[tuple[PlannedCell, Slot, Path]]:
    """List cell, slot and run folder of each repeat that has ended."""
    cells = study.read_cells()
    for slot in list_slots(study.folder):
        cell = cells.get(slot.folder.parent.name)
        if cell is not None and slot.state is State.DONE and slot.run is not None:
            yield cell, slot, slot.run


def find_twin_cell(study: Study, cell: PlannedCell) -> TwinCell | None:
    """Return a cell with its twin; None if it ran on a real node."""
    node = study.nodes.get(cell.workload.node_type)
    if node is None or node.executor != TWIN:
        return None
    described = read_description(node)
    return TwinCell(study, cell, described, make_request(described, node, cell))


def read_channel(run: Run, channel: str, family: str) -> list[Series]:
    """Read times (ns) and values of a channel from every scope of a family, in the order of the scopes."""
    found = {}
    for table in run.tables():
        for stream in table.streams:
            if find_family(stream.scope) == family and any(spec.name == channel for spec in stream.channels):
                series = run.series(table, stream.name, channels=[channel])
                found[stream.scope] = (series.t0_ns, series.values[channel])
    return [found[scope] for scope in sorted(found)]


def sum_series(parts: Sequence[Series]) -> Series:
    """Sum series that were read one after another in each round, at the times of the first."""
    times, first = parts[0]
    total = first.copy()
    for at, values in parts[1:]:
        total += np.interp(times, at, values)
    return times, total


def write_chart(chart: Chart, stem: Path, remark: str, formats: Sequence[str]) -> list[Path]:
    """Write a chart with a remark below it in each format; return the files. Raises MissingDependency."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    rendered, _ = render_chart(chart, formats, remark=remark)
    files = {stem.with_name(f"{stem.name}.{kind}"): data for kind, data in rendered.items()}
    for file, data in files.items():
        file.write_bytes(data)
    return list(files)
