"""Turn the settings of a study into the options of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.run.config.configuration import load_config
from joulelab.run.config.meter_choice import choose_meters
from joulelab.run.run_options import RunOptions, get_host_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.control.client import CapRequest
    from joulelab.study.folder import Settings


def make_run_options(
    settings: Settings,
    environ: Mapping[str, str],
    runs: Path,
    *,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    caps: Sequence[CapRequest] = (),
) -> tuple[RunOptions, list[str]]:
    """Return how a slot is recorded, and what is to be warned of. Raises ConfigError for a name that no meter has."""
    config = load_config(environ, get_host_name(), named=None if settings.config is None else Path(settings.config))
    chosen = choose_meters(config, environ, settings.meters, settings.without)
    defaults = config.run
    period_s = settings.period_s if settings.period_s is not None else defaults.get("period_s", 0.1)
    rated = {} if settings.rated_cpu_w is None else {"cpu_w": settings.rated_cpu_w}
    options = RunOptions(
        runs=runs,
        name=name,
        labels=dict(labels or {}),
        also=[{"meter": "estimate", "config": rated}] if settings.estimate else [],
        period_s=period_s,
        slow_period_s=max(1.0, period_s),
        idle_s=settings.idle_s if settings.idle_s is not None else defaults.get("idle_s", 0.0),
        tail_s=defaults.get("tail_s", 0.3),
        caps=tuple(caps),
    )
    named = None if settings.config is None else Path(settings.config)
    read = options.with_meters(chosen, file=named, wanted=settings.meters, without=settings.without)
    return read, [*map(str, chosen.lost), *config.warnings, *chosen.warnings]
