"""Serve a twin: make its directory, start what shows it, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.process_identity import find_process, identify_process
from joulelab.core.text import suggest_name
from joulelab.twin import servers
from joulelab.twin.job_notes import find_jobs_folder, write_models
from joulelab.twin.model import Node
from joulelab.twin.servers import nvml
from joulelab.twin.servers.powercap import PowercapFlaws, PowercapServer
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth
from joulelab.twin.twin_driver import Driver, JobDriver, LoadDriver, ScriptDriver, read_machine_load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from joulelab.twin.profile import Profile
    from joulelab.twin.workload_progress import WorkloadModel

CONFIG = "JOULELAB_CONFIG"
# Not servers of a node-level meter.
_OTHERS = ("llm", "nvml", "powercap", "server_process")


def list_servers() -> list[str]:
    """Return the servers that there are: modules of `servers`, one per instrument."""
    found = (module.name for module in pkgutil.iter_modules(servers.__path__) if not module.ispkg)
    return [name for name in found if name not in _OTHERS and not name.startswith("_")]


class WallMeters:
    """Serve instruments of a truth file from the beginning of the block to its end.

    `missing` is the reason of a missing server; `environment` holds the variables to export. `flaws` go by server.
    `rated_w` is the power on the node's nameplate, 0 where unknown.
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
        chosen = list_servers() if wanted is None else list(wanted)
        for name in (*chosen, *(flaws or {})):
            if name not in list_servers():
                raise ConfigError(f"there is no server {name!r}", where="twin", next=suggest_name(name, list_servers()))
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
                server.start_process()
            for name, server in self.servers.items():
                try:
                    server.wait_until_served()
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
        lines += ["", f"[meters.{name}]", *(f"{key} = {_format_toml(value)}" for key, value in entry.items())]
    path.write_text("\n".join(lines) + "\n")


def _format_toml(value: Any) -> str:
    """Return plain data in TOML: inline tables, lists, texts, numbers."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_format_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_format_toml(item) for item in value) + "]"
    return json.dumps(value)


LIVE_ROOM = 1 << 20
LLM_ROOM = 1 << 22  # two segments for each iteration: some six hours of iterations of 10 ms
PREFIX = "joulelab-twin-"


class TwinServer:
    """Serve a node from the beginning of the block to its end.

    `profiles` script it; with `follow` it follows this machine's load instead; with neither it idles, and simulated
    jobs (`python -m joulelab.twin.job`) may run on it, also those that `workloads` models. `wall` names the node-level
    meters to serve, each with its flaws; once it serves, the attribute `wall` is what serves them (None: there are
    none). With `llm` (settings of `servers/llm.py`) it serves a language model, and its attribute `llm` is that server;
    then nothing else runs on it. `environment` is what to export so that other programs see it, `truth` what truly
    happens, `missing` why there is no NVML library (None: there is one).
    """

    def __init__(
        self,
        node: Node | None = None,
        *,
        profiles: Mapping[str, Profile] | None = None,
        follow: bool = False,
        load: Callable[[], float] = read_machine_load,
        powercap: PowercapFlaws | None = None,
        workloads: Mapping[str, WorkloadModel] | None = None,
        wall: Mapping[str, Mapping[str, Any]] | None = None,
        llm: Mapping[str, Any] | None = None,
        directory: Path | None = None,
        start_ns: int | None = None,
        library: Callable[[], Path] = nvml.build_library,
        inherited: Mapping[str, str] = os.environ,
    ) -> None:
        if follow and profiles:
            raise ConfigError("a twin follows either the load or profiles", where="twin", next="drop one of the two")
        if llm is not None and (follow or profiles):
            raise ConfigError("a language model runs on an idle twin", where="twin", next="drop the load or profiles")
        self._node = node or Node()
        self._profiles = dict(profiles or {})
        self._follow = follow
        self._load = load
        self._powercap = powercap or PowercapFlaws()
        self._workloads = workloads or {}
        self._wall = wall or {}
        self.wall: WallMeters | None = None
        self._llm = llm
        self.llm: ServerProcess | None = None
        self._parent = directory
        self._start_ns = start_ns
        self._library = library
        self._inherited = inherited
        self._stack = contextlib.ExitStack()
        self.missing: JoulelabError | None = None
        self.environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            parent = Path(self._parent or tempfile.gettempdir())
            remove_leftovers(parent)
            self.directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
            (self.directory / "owner").write_text(json.dumps(identify_process()))
            room = {"room": LIVE_ROOM if self._llm is None else LLM_ROOM} if self._is_moved() else {}
            path = self.directory / "truth"
            self.truth = stack.enter_context(
                Truth.create(path, self._node, profiles=self._profiles, start_ns=self._start_ns, **room)
            )
            # Twins have the same devices: each has a state of its own.
            state = self.directory / "state"
            state.mkdir()
            self.environment = {"JOULELAB_TWIN": str(path), "JOULELAB_STATE": str(state)} | self._place_library()
            if self._node.packages or self._node.psys:
                self.powercap = stack.enter_context(
                    PowercapServer(self.truth, self.directory / "powercap", self._powercap)
                )
                self.environment["JOULELAB_POWERCAP"] = str(self.powercap.root)
            if self._wall:
                self.wall = stack.enter_context(
                    WallMeters(path, self.directory, self._wall, self._wall, rated_w=self._node.rated_w)
                )
                self.environment |= self.wall.environment
            if self._llm is not None:
                self.llm = stack.enter_context(ServerProcess("llm", path, self.directory / "llm", flaws=self._llm))
                self.environment |= self.llm.served.environment
            self.driver = self._driver()
            if self.driver is not None:
                stack.enter_context(self.driver)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _place_library(self) -> dict[str, str]:
        """Copy the library into the directory; without one the rest is served all the same."""
        try:
            built = self._library()
        except JoulelabError as error:
            self.missing = error
            return {}
        folder = self.directory / "lib"
        folder.mkdir()
        shutil.copy2(built, folder / nvml.LIBRARY)
        others = self._inherited.get("LD_LIBRARY_PATH")
        return {"LD_LIBRARY_PATH": f"{folder}:{others}" if others else str(folder)}

    def _is_moved(self) -> bool:
        """Return whether anything is written after the start: by a driver, or by jobs."""
        return self._follow or not self._profiles or ScriptDriver.is_needed(self._profiles)

    def _driver(self) -> Driver | None:
        if self._follow:
            return LoadDriver(self.truth, load=self._load)
        if ScriptDriver.is_needed(self._profiles):
            return ScriptDriver(self.truth, self._profiles)
        if not self._profiles and self._llm is None:
            find_jobs_folder(self.truth).mkdir()
            write_models(self.truth.path, self._workloads)
            return JobDriver(self.truth)
        return None


def remove_leftovers(parent: Path) -> None:
    """Remove what twins of ours left behind that were killed; others' and those that run are left alone."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            if find_process(json.loads((folder / "owner").read_text())) == "ended":
                shutil.rmtree(folder, ignore_errors=True)
