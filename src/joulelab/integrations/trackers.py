"""Log energy and power into the user's own W&B and MLflow runs: `with logged(): train()`."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from joulelab.core.clock import monotonic_ns, read_utc_ns
from joulelab.core.errors import ConfigError
from joulelab.core.text import name_one
from joulelab.integrations.energy_metrics import analyse_block, list_metrics
from joulelab.run import marking
from joulelab.run.live import LiveReader, import_live_modules
from joulelab.run.measure import Measurement, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from joulelab.analysis.live_energy import LiveFigures
    from joulelab.analysis.result import Fact, Result

_log = logging.getLogger("joulelab")
TrackerChoice = Literal["auto", "wandb", "mlflow", "none"]
POWER_S = 5.0  # points are logged seldom, so their power is a mean over 5 s
SUMMARY_S = 30.0  # how long the end of a block may wait for a tracker that does not answer
WANDB_SECONDS = "joulelab/seconds"
MLFLOW_MARKER = "joulelab/energy_j"
MOST_TAG_LETTERS = 500  # that every store of MLflow takes


class Tracker(Protocol):
    """Write figures into one run of an experiment tracker."""

    def log_point(self, at_ns: int, seconds: float, values: Mapping[str, float]) -> None:
        """Write live figures, `seconds` after the block began."""

    def log_summary(self, figures: Mapping[str, float], facts: Mapping[str, Fact]) -> None:
        """Write the totals, and facts about the run."""


class WandbTracker:
    """Write to one W&B run (online, offline or disabled) without changing the user's step."""

    def __init__(self, run: Any) -> None:
        self._run = run
        run.define_metric("joulelab/*", step_metric=WANDB_SECONDS)

    def log_point(self, at_ns: int, seconds: float, values: Mapping[str, float]) -> None:  # noqa: ARG002 - W&B adds the time
        """Add figures to the row that the user writes next.

        A row of our own would take a step number from the user's rows. A rest is written when the run finishes.
        """
        self._run.log({WANDB_SECONDS: seconds, **values}, commit=False)

    def log_summary(self, figures: Mapping[str, float], facts: Mapping[str, Fact]) -> None:
        """Put totals and facts into the user's summary."""
        self._run.summary.update({**figures, **facts})


class MlflowTracker:
    """Write to one MLflow run by its id: the active run is known in the user's thread only."""

    def __init__(self, module: Any, run_id: str) -> None:
        from mlflow import entities

        self._entities = entities
        self._client = module.MlflowClient(tracking_uri=module.get_tracking_uri())
        self._run_id = run_id
        self._step: int | None = None

    def log_point(self, at_ns: int, seconds: float, values: Mapping[str, float]) -> None:  # noqa: ARG002 - it has times
        """Write figures with their own time (monotonic ns), in one call."""
        metric, at_ms, step = self._entities.Metric, _find_utc_ms(at_ns), self._find_next_step()
        metrics = [metric(name, value, at_ms, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def log_summary(self, figures: Mapping[str, float], facts: Mapping[str, Fact]) -> None:
        """Write the totals as metrics and the facts as tags."""
        metric, at_ms = self._entities.Metric, _find_utc_ms(monotonic_ns())
        metrics = [metric(name, value, at_ms, 0) for name, value in figures.items()]
        tags = [self._entities.RunTag(k.replace("/", "."), str(v)[:MOST_TAG_LETTERS]) for k, v in facts.items()]
        self._client.log_batch(self._run_id, metrics=metrics, tags=tags)

    def _find_next_step(self) -> int:
        """Return the number of the next point; points of an earlier block in the same run come before it."""
        if self._step is None:
            earlier = self._client.get_metric_history(self._run_id, MLFLOW_MARKER)
            self._step = max((point.step for point in earlier), default=-1)
        self._step += 1
        return self._step


def _find_utc_ms(at_ns: int) -> int:
    return (read_utc_ns() - (monotonic_ns() - at_ns)) // 1_000_000


def find_wandb_run() -> WandbTracker | None:
    """Return the active W&B run of this process, or None; W&B is not imported for that."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    return None if run is None else WandbTracker(run)


def find_mlflow_run() -> MlflowTracker | None:
    """Return the active MLflow run of the calling thread, or None; MLflow is not imported for that."""
    module: Any = sys.modules.get("mlflow")
    find_active = getattr(module, "active_run", None)
    run = find_active() if find_active is not None else None
    return None if run is None else MlflowTracker(module, run.info.run_id)


TRACKERS: dict[str, Callable[[], Tracker | None]] = {"wandb": find_wandb_run, "mlflow": find_mlflow_run}


class _TrackerLog:
    """Send figures to the active trackers; one that fails is reported once and left out from then on."""

    def __init__(self, to: TrackerChoice) -> None:
        self._wanted = list(TRACKERS) if to == "auto" else [to] if to != "none" else []
        self._is_explicit = to != "auto"
        self._found: dict[str, Tracker] = {}
        self._failed: set[str] = set()
        self._last: LiveFigures | None = None

    def find_trackers(self, names: tuple[str, ...] = tuple(TRACKERS)) -> None:
        """Look for runs that are active by now: a training may start its own."""
        for name in set(names) & set(self._wanted) - self._found.keys() - self._failed:
            with self._guard(name):
                tracker = TRACKERS[name]()
                if tracker is not None:
                    self._found[name] = tracker

    def log_point(self, now: LiveFigures | None) -> None:
        """Log new figures. It runs in a thread of ours, which can find W&B's run but not MLflow's."""
        self.find_trackers(("wandb",))
        if now is None or now is self._last:
            return
        self._last = now
        values = _list_live_values(now)
        self._call_each(lambda tracker: tracker.log_point(now.at_ns, now.seconds, values))

    def log_summary(self, now: LiveFigures | None, result: Result, folder: Path) -> None:
        """Log a last point and the totals, in at most SUMMARY_S."""
        self.find_trackers()
        if self._is_explicit and not self._found and not self._failed:
            names = ", ".join(self._wanted)
            _log.warning("nothing is logged: no run of %s is active; start one before the block", names)
        figures, facts = _list_totals(result), _list_facts(result, folder)

        def log() -> None:
            self.log_point(now)
            self._call_each(lambda tracker: tracker.log_summary(figures, facts))

        thread = threading.Thread(target=log, name="joulelab-log", daemon=True)
        thread.start()
        thread.join(SUMMARY_S)
        if thread.is_alive():
            _log.warning("the summary is not logged: no answer within %.0f s", SUMMARY_S)

    def _call_each(self, log: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._found.items()):
            with self._guard(name):
                log(tracker)

    @contextlib.contextmanager
    def _guard(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a tracker's problem must not reach the training
            self._failed.add(name)
            self._found.pop(name, None)
            _log.warning("energy is not logged to %s any more: %s: %s", name, type(error).__name__, error)


@contextlib.contextmanager
def logged(
    run: Measurement | Path | str | None = None, *, to: TrackerChoice = "auto", every_s: float = 10.0
) -> Iterator[Measurement | None]:
    """Log power and energy of a `with` block into the active W&B and MLflow runs each `every_s`, and totals at its end.

    `run` is an open measurement, or a run folder; the default is the run that this process is part of, or one that is
    started for the block and returned by `with`. `auto` means the trackers that are imported and have an active run:
    nothing is imported or started. Does nothing on ranks other than the first of a node.
    """
    if to not in ("auto", "none", *TRACKERS):
        raise ConfigError(f"there is no tracker {to!r}", next=f"take one of auto, none, {', '.join(TRACKERS)}")
    log, start_ns = _TrackerLog(to), monotonic_ns()
    own = measure() if run is None and marking.writer() is None else None
    live: LiveReader | None = None
    try:
        with own or contextlib.nullcontext():
            folder = _find_host_folder(run)
            if folder is None or to == "none":
                yield own
                return
            log.find_trackers()
            import_live_modules()
            start_ns = monotonic_ns()
            with LiveReader(folder, start_ns, every_s=every_s, power_s=POWER_S, then=log.log_point) as live:
                yield own
    finally:
        if live is not None and folder is not None:
            ended = run if isinstance(run, Measurement) and run.ended else own
            _log_totals(log, live, folder.parent, ended, start_ns)


def _find_host_folder(run: Measurement | Path | str | None) -> Path | None:
    """Return this host's folder in a run, None if nothing is recorded or another rank logs it."""
    writer = marking.writer()
    if writer is not None and writer.rank:
        return None
    mine = writer.folder.parent if writer is not None else None
    path = run.run if isinstance(run, Measurement) else Path(run) if run is not None else None
    if path is None or (mine is not None and mine.parent.resolve() == path.resolve()):
        return mine
    from joulelab.store.run_folder import read_meta

    return path / str(read_meta(path)["host"])


def _log_totals(log: _TrackerLog, live: LiveReader, run: Path, ended: Measurement | None, start_ns: int) -> None:
    end_ns = monotonic_ns()
    try:
        result = ended.result if ended is not None else analyse_block(run, start_ns, end_ns)
        if result is not None:
            log.log_summary(live.read_until(result.end_ns), result, run)
    except Exception as error:  # noqa: BLE001 - the block has run
        _log.warning("the summary is not logged: %s: %s", type(error).__name__, error)


def _list_live_values(now: LiveFigures) -> dict[str, float]:
    """Return power (W) and energy (J) of everything, and of each family of scopes."""
    values: dict[str, float] = {}
    for name, energy in now.energy.items():
        prefix = "joulelab" if name == "measured" else f"joulelab/{name}"
        values |= {f"{prefix}/power_w": now.power_w.get(name, math.nan), f"{prefix}/energy_j": energy.value}
    return _keep_finite(values)


def _list_totals(result: Result) -> dict[str, float]:
    """Return energy (J) with its expanded uncertainty, mean power (W), time (s), cost, CO2e (kg), joules per work."""
    prefix = "joulelab/total"
    values: dict[str, float | None] = {f"{prefix}/duration_s": result.duration_s}
    figures = list_metrics(result.energy, result.duration_s, {}, result.site)
    values |= {f"{prefix}/{name}": value for name, value in figures.items() if name not in ("energy_j", "power_w")}
    for group in (g for g in result.groups if " " not in g.name):
        name = prefix if group.name == "measured" else f"{prefix}/{group.name}"
        values[f"{name}/energy_j"] = group.energy.value
        values[f"{name}/energy_expanded_j"] = group.energy.expanded
        values[f"{name}/mean_power_w"] = group.mean_w.value
    for work, per in result.per_work().items():
        one = name_one(work)
        values |= {f"{prefix}/j_per_{one}": per.value, f"{prefix}/j_per_{one}_expanded": per.expanded}
    values |= {f"{prefix}/{work}": amount for work, amount in result.work.items()}
    return _keep_finite(values)


def _list_facts(result: Result, folder: Path) -> dict[str, Fact]:
    """Return id and folder of the run, the source of its carbon intensity, and the facts that it reported."""
    whole = result.group("measured")
    facts: dict[str, Fact] = {"joulelab/run": result.run, "joulelab/folder": str(folder.resolve())}
    if result.site is not None and result.site.g_per_kwh is not None:
        from joulelab.report.footprint_text import word_source

        facts["joulelab/carbon_intensity"] = word_source(result.site)
    if whole is not None and whole.estimate:
        facts["joulelab/estimate"] = True
    return facts | {f"joulelab/fact/{name}": value for name, value in result.facts.items()}


def _keep_finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
