"""Give energy, power, cost and CO2e as plain numbers, for the metrics of frameworks and experiment trackers."""

from __future__ import annotations

import contextlib
import logging
import math
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError, StoreError
from joulelab.core.quantity import Quantity
from joulelab.core.text import name_one
from joulelab.run import marking
from joulelab.run.live import wait_until_covered
from joulelab.site.footprint import compute_footprint, restore_site
from joulelab.store.journal import read_header
from joulelab.store.run_folder import read_meta

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulelab.analysis.live_energy import LiveFigures
    from joulelab.analysis.result import Result
    from joulelab.site.footprint import Site

_log = logging.getLogger("joulelab")
LEAST_S = 1.0  # power is a mean over at least this time
SHARE, CREDIT_S = 0.01, 0.3  # of the time of a training that rows may take; the first rows may take a bit more
TRIES = 3


def find_site(run: Path) -> Site | None:
    """Return the site that a run recorded, None without one."""
    return restore_site((read_meta(run).get("options") or {}).get("site"))


def analyse_block(run: Path, start_ns: int, end_ns: int) -> Result:
    """Return the result of [start, end] (monotonic ns) in a run that may go on, once its readings are on disk."""
    from joulelab.analysis.analyse import analyse_phase
    from joulelab.store.run_reader import open_run

    if (writer := marking.writer()) is not None:
        writer.flush()
    wait_until_covered(run, end_ns)
    with open_run(run) as opened:
        return analyse_phase(opened, start_ns, end_ns)


def list_metrics(
    energy: Quantity | None, seconds: float, work: Mapping[str, float], site: Site | None
) -> dict[str, float]:
    """Return energy (J, kWh), mean power (W), joules per unit of work, cost and CO2e (kg).

    An energy that is smaller than its interval gives no metrics.
    """
    if energy is None or not energy.is_resolved or seconds <= 0:
        return {}
    values = {"energy_j": energy.value, "energy_kwh": energy.kwh.value, "power_w": energy.value / seconds}
    for kind in _choose_kinds(work):
        values[f"j_per_{name_one(kind)}"] = energy.value / work[kind]
    footprint = compute_footprint(energy, site)
    if site is not None and footprint.cost is not None:
        values[f"cost_{site.currency.lower()}"] = footprint.cost.value
    if footprint.co2e_kg is not None:
        values["co2e_kg"] = footprint.co2e_kg.value
    return {name: round_metric(value) for name, value in values.items() if math.isfinite(value)}


def round_metric(value: float) -> float:
    """Return a value with six digits: frameworks print their rows."""
    return float(f"{value:.6g}")


def _choose_kinds(work: Mapping[str, float]) -> list[str]:
    """Choose the kinds of work that the energy of a training is divided by; steps only if there are no others."""
    from joulelab.analysis.marked_phases import list_figure_kinds

    kinds = [kind for kind in list_figure_kinds(work) if work[kind] > 0]
    return [kind for kind in kinds if kind != "steps"] or kinds


def has_power_meter(folder: Path) -> bool:
    """Return whether readings of power or energy are recorded in a folder of a host, False if that is not known yet."""
    with contextlib.suppress(OSError, StoreError):  # a file that is just being created
        streams = [stream for path in folder.glob("*.journal") for stream in read_header(path).streams]
        return any(channel.kind == "power" or channel.unit == "J" for stream in streams for channel in stream.channels)
    return False


class LiveMetrics:
    """Follow the energy of a training that runs; each row has the figures up to the last readings on disk.

    Rows are read in the training itself, so that they are fresh: at most a hundredth of its time is spent on them.
    """

    def __init__(self, folder: Path, start_ns: int) -> None:
        """Take this host's folder in the run, and the start of the training (monotonic ns). Raises StoreError."""
        from joulelab.analysis.live_energy import EnergyTail

        self._folder, self._start_ns = folder, start_ns
        self._site = find_site(folder.parent)
        self._tail = EnergyTail(folder, start_ns)
        self._last: LiveFigures | None = None
        self._spent_ns = self._failures = 0

    def close(self) -> None:
        """Release the files."""
        self._tail.close()

    def read_row(self, work: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics so far, with the mean power since the row before; empty without new readings.

        `work` is that of the whole node up to now: the part after the last readings is left out by its time.
        """
        now_ns = monotonic_ns()
        trained_ns = now_ns - self._start_ns
        if self._spent_ns > SHARE * trained_ns + CREDIT_S * NS:
            return {}
        try:
            now, self._failures = self._tail.read(), 0
        except (JoulelabError, OSError, ValueError) as error:
            self._failures += 1  # a file that is just being created may fail to be read once or twice
            if self._failures == TRIES:
                _log.warning("energy is missing in the metrics: %s: %s", type(error).__name__, error)
            return {}
        finally:
            self._spent_ns += monotonic_ns() - now_ns
        before = self._last
        if now is None or "measured" not in now.energy or (before is not None and now.at_ns <= before.at_ns):
            return {}
        share = min(now.seconds * NS / trained_ns, 1.0)
        energy = now.energy["measured"]
        row = list_metrics(energy, now.seconds, {kind: done * share for kind, done in work.items()}, self._site)
        if row:
            self._last = now
            if before is not None and (seconds := now.seconds - before.seconds) >= LEAST_S:
                row["power_w"] = round_metric((energy.value - before.energy["measured"].value) / seconds)
        return row

    def make_gap(self, work: Mapping[str, float]) -> dict[str, float]:
        """Return a row of NaN, for logs that need the same names in each row; empty without a power meter."""
        if not has_power_meter(self._folder):
            return {}
        return dict.fromkeys(list_metrics(Quantity(1.0), 1.0, work, self._site), math.nan)
