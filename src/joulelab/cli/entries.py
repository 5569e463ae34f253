"""Open entries of the configuration for commands that look at them; what they say never shows a secret."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.core.errors import JoulelabError, Unavailable
from joulelab.run.config.modules import find_meter_module, is_live
from joulelab.run.config.secrets import hide_secrets, resolve_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Archive, Meter
    from joulelab.instruments.catalog import Row
    from joulelab.run.config.entry import Config, MeterEntry

TOGETHER = 16


@dataclass(slots=True)
class Opener:
    """Open one entry as a run would. `error` is what it raised, with secrets taken out of it."""

    entry: MeterEntry
    error: JoulelabError | None = None
    warnings: list[str] = field(default_factory=list)
    _settings: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def module(self) -> Any:
        """Return the entry's module."""
        return find_meter_module(self.entry.meter)

    def open(self) -> Any:
        """Return the open meter or archive. Raises JoulelabError."""
        try:
            self._settings, self.warnings = resolve_secrets(self.entry, os.environ)
            return self._open()
        except JoulelabError as error:
            self.error = error
            clean = {key: self.clean(getattr(error, key)) for key in ("what", "where", "why", "next")}
            for key, text in clean.items():
                setattr(error, key, text)
            raise
        except Exception as error:  # noqa: BLE001 - modules of any make
            why = self.clean(f"{type(error).__name__}: {error}")
            self.error = Unavailable("it failed", where=f"meter {self.entry.name}", why=why)
            raise self.error from None

    def diagnose(self) -> list[str]:
        """Return what the meter's module finds out about a failure, in sentences."""
        ask: Callable[..., Sequence[str]] | None = getattr(self.module, "diagnose", None)
        if ask is None or self.error is None or not self._settings:
            return []
        try:
            return [self.clean(text) for text in ask({"label": self.entry.name, **self._settings}, self.error)]
        except Exception as error:  # noqa: BLE001 - the failure itself is told in any case
            return [self.clean(f"looking further failed ({type(error).__name__}: {error})")]

    def clean(self, text: Any) -> Any:
        """Return a text without secrets."""
        return hide_secrets(text, self.entry, self._settings) if isinstance(text, str) else text

    def _open(self) -> Meter | Archive:
        from joulelab.recorder.plan import MeterPlan, Plan, open_meter
        from joulelab.run.run_options import RunOptions

        module = self.module
        if not is_live(module):
            archive: Archive = module.open_archive({"label": self.entry.name, **self._settings})
            return archive
        plan = Plan(Path(), "", os.getpid(), offers=RunOptions(runs=Path()).offers(os.environ))
        wanted = MeterPlan(self.entry.meter, self.entry.name, self._settings, self.entry.usual)
        return open_meter(plan, wanted)


def load_configuration(named: Path | None) -> Config:
    """Load this host's configuration as a run does and print its warnings; its problems stay with the caller."""
    from joulelab.run.config.configuration import load_config
    from joulelab.run.run_options import host_name

    config = load_config(os.environ, host_name(), named=named)
    for warning in config.warnings:
        click.echo(f"joulelab: {warning}", err=True)
    return config


def rows_of(entries: Sequence[MeterEntry]) -> list[Row]:
    """Open entries, some at once, and describe them."""
    from concurrent.futures import ThreadPoolExecutor

    from joulelab.instruments.catalog import describe

    def row(entry: MeterEntry) -> Row:
        opener = Opener(entry)
        found = describe(entry.name, opener.module, opener.open)
        return replace(found, module=entry.meter, feeds=entry.feeds, source=str(entry.source))

    if not entries:
        return []
    with ThreadPoolExecutor(min(TOGETHER, len(entries))) as pool:
        return list(pool.map(row, entries))
