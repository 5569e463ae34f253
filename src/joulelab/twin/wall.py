"""Serve the node-level meters of a twin, each in a process of its own, and write the joulelab.toml that reads them."""

from __future__ import annotations

import contextlib
import json
import pkgutil
from typing import TYPE_CHECKING, Any, Self

from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.text import suggest_name
from joulelab.twin import servers
from joulelab.twin.servers.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

CONFIG = "JOULELAB_CONFIG"
# Not servers of a node-level meter.
_OTHERS = ("nvml", "powercap", "server_process")


def names() -> list[str]:
    """Return the servers that there are: modules of `servers`, one per instrument."""
    found = (module.name for module in pkgutil.iter_modules(servers.__path__) if not module.ispkg)
    return [name for name in found if name not in _OTHERS and not name.startswith("_")]


class Wall:
    """Serve instruments of a truth file from the beginning of the block to its end.

    `missing` says why a server is not there; `environment` is what to export. `flaws` go by server.
    `rated_w` is what the node's nameplate says, 0 where it says nothing.
    """

    def __init__(
        self,
        truth: Path,
        directory: Path,
        wanted: Iterable[str] | None = None,
        flaws: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        rated_w: float = 0.0,
    ) -> None:
        chosen = names() if wanted is None else list(wanted)
        for name in (*chosen, *(flaws or {})):
            if name not in names():
                raise ConfigError(f"there is no server {name!r}", where="twin", next=suggest_name(name, names()))
        self._directory, self._rated_w = directory, rated_w
        self.servers = {
            name: ServerProcess(name, truth, directory / name, flaws=(flaws or {}).get(name)) for name in chosen
        }
        self.missing: dict[str, JoulelabError] = {}
        self.environment: dict[str, str] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for server in self.servers.values():
                stack.callback(server.stop)
                server.begin()
            for name, server in self.servers.items():
                try:
                    server.wait()
                except JoulelabError as error:
                    self.missing[name] = error
            self._write()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _write(self) -> None:
        entries: dict[str, Mapping[str, Any]] = {}
        for server in self.servers.values():
            self.environment |= server.served.environment
            entries |= server.served.entries
        path = self._directory / "joulelab.toml"
        write_entries(path, entries, self._rated_w)
        self.environment[CONFIG] = str(path)


def write_entries(path: Path, entries: Mapping[str, Mapping[str, Any]], rated_w: float = 0.0) -> None:
    """Write a joulelab.toml with these meters."""
    lines = ["# The meters of a twin on this machine."]
    if rated_w:
        lines += ["", "[node]", f"rated_w = {rated_w}"]
    for name, entry in entries.items():
        lines += ["", f"[meters.{name}]", *(f"{key} = {_toml(value)}" for key, value in entry.items())]
    path.write_text("\n".join(lines) + "\n")


def _toml(value: Any) -> str:
    """Return plain data in TOML: inline tables, lists, texts, numbers."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value)
