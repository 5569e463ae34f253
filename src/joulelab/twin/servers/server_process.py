"""Run a twin's server as a process of its own: order on standard input, answer on standard output.

A server module has `FLAWS` (its class of flaws, `PanelFlaws` or one with more fields) and a function
`serve(truth, directory, flaws, port)`, a context manager that yields a `ServiceInfo`. `python -m MODULE` runs it with
`run_server(...)` from here; a test may use `serve` in a thread of its own, or kill the process and start it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError, MissingDependency, Unavailable
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from _typeshed import DataclassInstance

PACKAGE = "joulelab.twin.servers"
START_S = 15.0
STOP_S = 5.0
LOG = "server.log"  # standard error of the server, in its directory
# The extra with the libraries of a server and of the meter that reads it.
_EXTRAS = {"analyzer": "analyzer", "bmc": "ipmi", "modbus": "modbus", "pdu": "snmp", "plug": "mqtt"}


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """Describe a server: entries for the `[meters]` table of a joulelab.toml, ports, and other facts.

    `environment` is to be exported so that programs find it; credentials are there or in files of the directory.
    """

    entries: Mapping[str, Mapping[str, Any]]
    ports: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def run_server(serve: Callable[..., AbstractContextManager[ServiceInfo]], flaws: DataclassInstance) -> None:
    """Serve by the order (a line of JSON) on standard input until the input ends; its owner holds the other end."""
    order = json.loads(sys.stdin.readline())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    directory = Path(order["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with Truth(Path(order["truth"])) as truth, contextlib.ExitStack() as stack:
            changed = replace(flaws, **order.get("flaws", {}))
            served = stack.enter_context(serve(truth, directory, changed, int(order.get("port", 0))))
            print(json.dumps({"served": asdict(served)}), flush=True)  # noqa: T201 the protocol
            sys.stdin.read()
    except JoulelabError as error:
        kind = "missing" if isinstance(error, MissingDependency) else "failed"
        fields = {"what": error.what, "why": error.why, "next": error.next}
        print(json.dumps({kind: fields}), flush=True)  # noqa: T201


def keep_file(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return the content of a file of secrets; create it for its owner alone if it is missing."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(make())
    return path.read_bytes()


def strip_twin(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without twins: their libraries are removed from the path, others stay."""
    environ = {key: value for key, value in inherited.items() if key != "JOULELAB_TWIN"}
    folders = environ.pop("LD_LIBRARY_PATH", "").split(":")
    # A folder of a twin has the truth file beside it.
    others = [folder for folder in folders if not (folder and (Path(folder).parent / "truth").is_file())]
    if path := ":".join(others):
        environ["LD_LIBRARY_PATH"] = path
    return environ


class ServerProcess:
    """Start a server module by name (`pdu`), and stop it by its pid at the end of the block.

    `served` describes the server, `log` is the file with its standard error. `kill()` and `start()` restart it on the
    same port.
    """

    def __init__(
        self, name: str, truth: Path, directory: Path, *, flaws: Mapping[str, Any] | None = None, port: int = 0
    ) -> None:
        self.name = name
        self._order = {"truth": str(truth), "directory": str(directory), "flaws": dict(flaws or {}), "port": port}
        self._process: subprocess.Popen[str] | None = None
        self.log = directory / LOG
        self.served = ServiceInfo({})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """Return the id of the process, None if it does not run."""
        return None if self._process is None else self._process.pid

    def start_process(self) -> None:
        """Start the process without waiting for it."""
        words = [sys.executable, "-m", f"{PACKAGE}.{self.name}"]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=strip_twin(os.environ),
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(self._order) + "\n")
            self._process.stdin.flush()

    def wait_until_served(self) -> None:
        """Wait until it serves. Raises MissingDependency, and Unavailable if it does not start."""
        assert self._process is not None
        answer = self._read_answer()
        if "served" not in answer:
            self.stop()
            answer = answer or self._diagnose_failure()
            fields = answer.get("missing") or answer["failed"]
            kind = MissingDependency if "missing" in answer else Unavailable
            raise kind(fields["what"], where=f"twin {self.name}", why=fields["why"], next=fields["next"])
        self.served = ServiceInfo(**answer["served"])
        if not self._order["port"] and len(set(self.served.ports.values())) == 1:
            self._order["port"] = next(iter(self.served.ports.values()))  # for a restart on the same port

    def start(self) -> None:
        """Start it and wait until it serves."""
        self.start_process()
        self.wait_until_served()

    def _read_answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        until = monotonic_ns() + round(START_S * NS)
        ready, _, _ = select.select([self._process.stdout], [], [], max(until - monotonic_ns(), 0) / NS)
        line = self._process.stdout.readline() if ready else ""
        try:
            answer = json.loads(line)
        except ValueError:
            return {}
        return answer if isinstance(answer, dict) else {}

    def _diagnose_failure(self) -> dict[str, Any]:
        """Return the reason of a missing answer in the form of an answer: the last error in the log."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|NotFound)\b", line)]
        why = (errors or lines or [f"no answer within {START_S:.0f} s, and no word why"])[-1]
        lacking = re.search(r"No module named '(\w+)", why)
        if lacking is not None and lacking[1] not in sys.stdlib_module_names:
            extra = _EXTRAS.get(self.name)
            install = f"pip install 'joulelab[{extra}]'" if extra else f"pip install {lacking[1]}"
            return {"missing": {"what": f"it needs {lacking[1]}", "why": why, "next": install}}
        more = f"while the twin runs, more is in {self.log}"
        return {"failed": {"what": "it did not start", "why": why, "next": more}}

    def kill(self) -> None:
        """Kill it, as a power cut does."""
        if self._process is not None:
            self._process.kill()
        self.stop()

    def stop(self) -> None:
        """End it by closing its input; kill it if it does not end in time."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
