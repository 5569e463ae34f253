"""Be a family of setters whose devices are files: what is set survives processes, and flaws are written into them.

A device is `<JOULELAB_FAKE>/<device>.json`: {"setting": {...}, "default": {...} | null, "flaws": {...}}. Flaws:
`refuse`, `deny`, `lost`, `bug`, `unread`; `fail` (that many sets fail); `shift` (W that it shows too much after a set);
`die` ("before set" | "after set": the process is killed there, at the n-th set, or `always`; a list: one process at
each place); `hang` (s); `loose` (enforced stays up).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import until

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import Denied, DeviceLost, JoulelabError, ReadFailed, Refused, Unavailable
from joulelab.core.setting import SetterFamily, Setting, SettingLimits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.control.client import Caps

LOWEST, HIGHEST, DEFAULT = 100.0, 400.0, 350.0


class Files:
    """Make and look at devices."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def add(self, device: str, setting: Mapping[str, float], *, default: Any = "usual", **flaws: Any) -> None:
        usual = {"cap_w": DEFAULT} if default == "usual" else default
        self._write(device, {"setting": dict(setting), "default": usual, "flaws": flaws})

    def get(self, device: str) -> dict[str, float]:
        return self.read(device)["setting"]

    def put(self, device: str, **setting: float) -> None:
        self._write(device, self.read(device) | {"setting": setting})

    def default(self, device: str, **setting: float) -> None:
        self._write(device, self.read(device) | {"default": setting})

    def flaws(self, device: str, **flaws: Any) -> None:
        self._write(device, self.read(device) | {"flaws": flaws})

    def read(self, device: str) -> dict[str, Any]:
        return json.loads((self.folder / f"{device}.json").read_text())

    def _write(self, device: str, content: Mapping[str, Any]) -> None:
        new = self.folder / f".{device}.{os.getpid()}"
        new.write_text(json.dumps(content))
        new.replace(self.folder / f"{device}.json")


class Fake:
    """Set one file."""

    def __init__(self, files: Files, device: str, scope: str) -> None:
        self._files = files
        self.device, self.scope, self.model = device, scope, "fake"
        self.kind = "clocks" if device.endswith(".clocks") else "power"

    def limits(self) -> SettingLimits:
        self._flaw("lost")
        default = self._files.read(self.device)["default"]
        if self.kind == "clocks":
            return SettingLimits(2e8, 2e9, 2e9, "Hz")
        return SettingLimits(LOWEST, HIGHEST, next(iter(default.values()), None) if default else None, "W")

    def get(self) -> Setting:
        self._flaw("lost", "unread")
        return self._files.get(self.device)

    def enforced(self) -> float | None:
        flaws = self._files.read(self.device)["flaws"]
        return HIGHEST if flaws.get("loose") else next(iter(self.get().values()), None)

    def setting(self, value: float) -> Setting:
        if self.kind == "clocks":
            return {"lowest_hz": 2e8, "highest_hz": value}
        now = self.get()
        return {key: value * (1 + 0.2 * k) for k, key in enumerate(now)}

    def set(self, setting: Setting) -> None:
        time.sleep(self._files.read(self.device)["flaws"].get("hang", 0.0))
        self._flaw("lost", "bug", "refuse", "deny", "fail")
        self._die("before set")
        shift = self._files.read(self.device)["flaws"].get("shift", 0.0)
        self._files.put(self.device, **{key: value + shift for key, value in setting.items()})
        self._die("after set")

    def default(self) -> Setting | None:
        return self._files.read(self.device)["default"]

    def _die(self, where: str) -> None:
        flaws = self._files.read(self.device)["flaws"]
        if isinstance(places := flaws.get("die"), list):
            if places[:1] == [where]:
                self._files.flaws(self.device, **flaws | {"die": places[1:]})
                os.kill(os.getpid(), signal.SIGKILL)
        elif places == where:
            left = flaws.get("nth", 1) - 1
            if not flaws.get("always"):
                self._files.flaws(self.device, **(flaws | {"nth": left} if left else {}))
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    def _flaw(self, *names: str) -> None:
        flaws = self._files.read(self.device)["flaws"]
        for name in names:
            if not flaws.get(name):
                continue
            if name == "bug":
                raise RuntimeError("a bug")
            if name == "fail":
                self._files.flaws(self.device, **flaws | {"fail": flaws["fail"] - 1})
            kind = {"lost": DeviceLost, "refuse": Refused, "deny": Denied}.get(name, ReadFailed)
            raise kind(f"flaw {name}", where=self.scope, next="try again")


def open_setters(environ: Mapping[str, str]) -> SetterFamily:
    folder = environ.get("JOULELAB_FAKE")
    if not folder:
        raise Unavailable("there is no fake device", where="fake")
    names = sorted(p.stem for p in Path(folder).glob("[!.]*.json"))
    opened = SetterFamily(missing=[("gpu:9", "it is out")])
    files = Files(Path(folder))
    for name in names:
        number = name.removesuffix(".clocks").rpartition("-")[2]
        opened.setters.append(Fake(files, name, f"{'cpu' if name.startswith('powercap') else 'gpu'}:{number}"))
    return opened


def world(folder: Path) -> tuple[dict[str, str], Files]:
    """Return an environment in which processes find fake devices only, and these: GPU-0 at 300 W, GPU-1 at 320 W."""
    files = Files(folder / "devices")
    files.add("GPU-0", {"cap_w": 300.0})
    files.add("GPU-1", {"cap_w": 320.0})
    about = folder / "packages" / "fake_setters-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-setters\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[joulelab.setters]\nfake = tests.control.fake\n")
    (folder / "powercap").mkdir()
    root = Path(__file__).parents[2]
    environ = {
        **{key: value for key, value in os.environ.items() if key not in ("JOULELAB_TWIN", "JOULELAB_CAPD")},
        "PYTHONPATH": f"{about.parent}:{root}",
        "JOULELAB_FAKE": str(files.folder),
        "JOULELAB_STATE": str(folder / "state"),
        "JOULELAB_LOCKS": str(folder / "state" / "caps"),
        "JOULELAB_POWERCAP": str(folder / "powercap"),
        "LD_LIBRARY_PATH": "",
    }
    return environ, files


@contextlib.contextmanager
def fails(code: str) -> Iterator[pytest.ExceptionInfo[JoulelabError]]:
    """Expect an error of joulelab with a code; the code begins with that of its class."""
    with pytest.raises(JoulelabError) as caught:
        yield caught
    assert caught.value.code == code, str(caught.value)
    assert code.split(".", maxsplit=1)[0] == type(caught.value).code


class VirtualTime:
    """Stand in for the module `time`: sleeps take no time, and are added up in `now`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def wait_for(condition: Any, *, within_s: float = 120.0) -> Any:
    """Return what a condition gives once it is true; a file that is not there yet is no failure."""

    def is_there() -> Any:
        with contextlib.suppress(FileNotFoundError):
            return condition()

    return until(is_there, within_s=within_s)


def hear(caps: Caps, event: str, within_s: float = 120.0) -> list[dict[str, Any]]:
    """Serve a client's keeper until an event comes; return it and those before it. Fails where it does not come."""
    heard: list[dict[str, Any]] = []
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        left_s = min(1.0, max(0.0, (caps.due_ns - monotonic_ns()) / 1e9))
        select.select(caps.fds, (), (), left_s)
        heard += caps.serve()
        if any(e["event"] == event for e in heard):
            return heard
    raise AssertionError(f"{event} did not come: {heard}")


BECOME = """
import fcntl, json, os, signal, socket, struct, subprocess, sys, time
from joulelab.control.state import *
from joulelab.control.leftovers import *
from joulelab.control.client import *
import joulelab.core.errors, joulelab.control.protocol
os.setgroups(json.loads(os.environ.get('GROUPS_', '[]'))); os.setgid(65534); os.setuid(65534)
"""


def as_nobody(code: str, environ: Mapping[str, str], *, groups: Sequence[int] = ()) -> str:
    """Run Python code as `nobody`, with what it needs loaded before (the interpreter may be root's); return output."""
    given = {**environ, "GROUPS_": json.dumps(list(groups))}
    done = subprocess.run([sys.executable, "-c", BECOME + code], env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def for_everybody(folder: Path) -> None:
    """Let other users into a test's folder."""
    for each in (folder, *folder.parents):
        if each.stat().st_uid == os.getuid() and each.parent != each:
            each.chmod(each.stat().st_mode | 0o055)
