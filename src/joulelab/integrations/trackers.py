"""Log energy and power into the W&B and MLflow runs that the user has: `with logged(): train()`."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import ConfigError
from joulelab.integrations import mlflow, wandb
from joulelab.run import marking
from joulelab.run.live import LiveReader, import_live_modules, wait_until_covered
from joulelab.run.measure import Measurement, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from joulelab.analysis.live_energy import LiveFigures
    from joulelab.analysis.result import Fact, Result

_log = logging.getLogger("joulelab")
TrackerChoice = Literal["auto", "wandb", "mlflow", "none"]
TRACKERS = {"wandb": wandb.find_wandb_run, "mlflow": mlflow.find_mlflow_run}
POWER_S = 5.0  # points are logged seldom, so their power is a mean over 5 s
SUMMARY_S = 30.0  # how long the end of a block may wait for a tracker that does not answer


class Tracker(Protocol):
    """Write figures into one run of the user's."""

    name: str

    def log_point(self, at_ns: int, seconds: float, values: Mapping[str, float]) -> None:
        """Write figures of now, `seconds` after the block began."""

    def log_summary(self, figures: Mapping[str, float], told: Mapping[str, Fact]) -> None:
        """Write figures of the whole, and facts."""


class _TrackerLog:
    """Hand figures to the trackers that are active; one that fails is named once and left out from then on."""

    def __init__(self, to: TrackerChoice) -> None:
        self._wanted = list(TRACKERS) if to == "auto" else [to] if to != "none" else []
        self._asked = to != "auto"
        self._found: dict[str, Tracker] = {}
        self._failed: set[str] = set()
        self._last: LiveFigures | None = None

    def find(self, names: tuple[str, ...] = tuple(TRACKERS)) -> None:
        """Look for runs that are active by now: many a training begins its own."""
        for name in set(names) & set(self._wanted) - self._found.keys() - self._failed:
            with self._guarded(name):
                tracker = TRACKERS[name]()
                if tracker is not None:
                    self._found[name] = tracker

    def point(self, now: LiveFigures | None) -> None:
        """Log what is new; called in a thread of ours, which sees W&B's run but not MLflow's."""
        self.find(("wandb",))
        if now is None or now is self._last:
            return
        self._last = now
        values = _list_live_values(now)
        self._each(lambda tracker: tracker.log_point(now.at_ns, now.seconds, values))

    def finish(self, now: LiveFigures | None, result: Result, folder: Path) -> None:
        """Log a last point and the totals, for a bounded time."""
        self.find()
        if self._asked and not self._found and not self._failed:
            _log.warning(
                "nothing is logged: no run of %s is active; start one before the block", ", ".join(self._wanted)
            )
        figures, told = _list_totals(result), _list_facts(result, folder)

        def log() -> None:
            self.point(now)
            self._each(lambda tracker: tracker.log_summary(figures, told))

        thread = threading.Thread(target=log, name="joulelab-log", daemon=True)
        thread.start()
        thread.join(SUMMARY_S)
        if thread.is_alive():
            _log.warning("the summary is not logged: no answer within %.0f s", SUMMARY_S)

    def _each(self, log: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._found.items()):
            with self._guarded(name):
                log(tracker)

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a tracker's problem is not the training's
            self._failed.add(name)
            self._found.pop(name, None)
            _log.warning("energy is not logged to %s any more: %s: %s", name, type(error).__name__, error)


@contextlib.contextmanager
def logged(
    run: Measurement | Path | str | None = None, *, to: TrackerChoice = "auto", every_s: float = 10.0
) -> Iterator[Measurement | None]:
    """Log power and energy of a `with` block into the active W&B and MLflow runs each `every_s`, and totals at its end.

    `run` is a measurement that goes on, or the folder of a run; unless given, it is the run that this process is part
    of, or one that is started for the block and returned by `with`. `auto` means the trackers that are imported and
    have an active run: nothing is imported or started. Inert on ranks other than the first of a node.
    """
    if to not in ("auto", "none", *TRACKERS):
        raise ConfigError(f"there is no tracker {to!r}", next=f"take one of auto, none, {', '.join(TRACKERS)}")
    board, start_ns = _TrackerLog(to), monotonic_ns()
    own = measure() if run is None and marking.writer() is None else None
    live: LiveReader | None = None
    try:
        with own or contextlib.nullcontext():
            folder = _find_host_folder(run)
            if folder is None or to == "none":
                yield own
                return
            board.find()
            import_live_modules()
            start_ns = monotonic_ns()
            with LiveReader(folder, start_ns, every_s=every_s, power_s=POWER_S, then=board.point) as live:
                yield own
    finally:
        if live is not None and folder is not None:
            ended = run if isinstance(run, Measurement) and run.ended else own
            _log_totals(board, live, folder.parent, ended, start_ns)


def _find_host_folder(run: Measurement | Path | str | None) -> Path | None:
    """Return this host's folder in the run that is meant, None where nothing is recorded or others log it."""
    writer = marking.writer()
    if writer is not None and writer.rank:
        return None
    mine = writer.folder.parent if writer is not None else None
    path = run.run if isinstance(run, Measurement) else Path(run) if run is not None else None
    if path is None or (mine is not None and mine.parent.resolve() == path.resolve()):
        return mine
    from joulelab.store.run_folder import read_meta

    return path / str(read_meta(path)["host"])


def _log_totals(board: _TrackerLog, live: LiveReader, run: Path, ended: Measurement | None, start_ns: int) -> None:
    end_ns = monotonic_ns()
    try:
        result = ended.result if ended is not None else _analyse_block(run, start_ns, end_ns)
        if result is not None:
            board.finish(live.read_until(result.end_ns), result, run)
    except Exception as error:  # noqa: BLE001 - the block has run
        _log.warning("the summary is not logged: %s: %s", type(error).__name__, error)


def _analyse_block(run: Path, start_ns: int, end_ns: int) -> Result:
    """Return what was found in [start, end] of a run that goes on, once its readings are there."""
    from joulelab.analysis.analyse import analyse_phase
    from joulelab.store.run_reader import open_run

    writer = marking.writer()
    if writer is not None:
        writer.flush()  # work that is summed up still
    wait_until_covered(run, end_ns)
    with open_run(run) as opened:
        return analyse_phase(opened, start_ns, end_ns)


def _list_live_values(now: LiveFigures) -> dict[str, float]:
    """Return power (W) and energy (J) of everything, and of each family of scopes."""
    values: dict[str, float] = {}
    for name, energy in now.energy.items():
        at = "joulelab" if name == "measured" else f"joulelab/{name}"
        values |= {f"{at}/power_w": now.power_w[name], f"{at}/energy_j": energy.value}
    return _keep_finite(values)


def _list_totals(result: Result) -> dict[str, float]:
    """Return the totals: energy (J) with its expanded uncertainty, mean power (W), time (s), joules per work."""
    at = "joulelab/total"
    values: dict[str, float | None] = {f"{at}/duration_s": result.duration_s}
    for group in (g for g in result.groups if " " not in g.name):
        name = at if group.name == "measured" else f"{at}/{group.name}"
        values[f"{name}/energy_j"] = group.energy.value
        values[f"{name}/energy_expanded_j"] = group.energy.expanded
        values[f"{name}/mean_power_w"] = group.mean_w.value
    for work, per in result.per_work().items():
        one = work.removesuffix("s")
        values |= {f"{at}/j_per_{one}": per.value, f"{at}/j_per_{one}_expanded": per.expanded}
    values |= {f"{at}/{work}": amount for work, amount in result.work.items()}
    return _keep_finite(values)


def _list_facts(result: Result, folder: Path) -> dict[str, Fact]:
    """Return which run it is, where it lies, and what it told of itself."""
    whole = result.group("measured")
    told: dict[str, Fact] = {"joulelab/run": result.run, "joulelab/folder": str(folder.resolve())}
    if whole is not None and whole.estimate:
        told["joulelab/estimate"] = True
    return told | {f"joulelab/fact/{name}": value for name, value in result.facts.items()}


def _keep_finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
