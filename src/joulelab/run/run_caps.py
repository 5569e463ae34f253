"""Set the caps of a run: choose the devices, set caps before the workload starts, restore them after its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from joulelab.core.clock import NEVER_NS
from joulelab.core.errors import ConfigError, JoulelabError, Unavailable
from joulelab.instruments.visible import HIDING_VARIABLES, read_node_gpus
from joulelab.store.redact import redact_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.control.client import CapDevice, CapRequest, Caps, CapStatus, HeldCap
    from joulelab.instruments.visible import NodeGpus
    from joulelab.run.recording import RunRecording

CapValue = tuple[float, Literal["W", "share", "Hz"]]


def choose_gpus(
    status: CapStatus,
    environ: Mapping[str, str],
    words: str | None = None,
    *,
    read_gpus: Callable[[], NodeGpus] = read_node_gpus,
) -> list[str]:
    """Return the scopes of the GPUs that the workload sees, or those in `words`: `0,1`, `GPU-5f3a`, `all`.

    Raises ConfigError for a GPU that does not exist or is ambiguous, Unavailable without GPUs.
    """
    there = _list_devices(status, "gpu")
    if not there:
        why = "; ".join(f"{scope}: {reason}" for scope, reason in status.missing)
        then = "joulelab cap status"
        raise Unavailable("there is no GPU to cap", where="cap", why=why or None, next=then, code="unavailable.no-gpu")
    known = {device.scope: device.device for device in there}
    if words is not None:
        return _find_named_gpus(known, words)
    if not any(name in environ for name in HIDING_VARIABLES):
        return list(known)
    seen = read_gpus().find_visible(environ)
    if not seen.scopes:
        raise ConfigError(
            "the workload sees no GPU",
            where="cap",
            why=seen.why,
            next="name one: --gpu 0",
            code="config.no-visible-gpu",
        )
    seen.check_caps("cap")
    chosen = [scope for scope in seen.scopes if scope in known]
    if not chosen:
        why = "; ".join(f"{scope}: {reason}" for scope, reason in status.missing if scope in seen.scopes)
        what = f"no cap can be set on {', '.join(seen.scopes)}, which the workload sees"
        raise Unavailable(what, where="cap", why=why or None, next="joulelab cap status", code="unavailable.no-cap")
    return chosen


def choose_cpus(status: CapStatus) -> list[str]:
    """Return the scopes of the CPU packages. Raises Unavailable where none can be capped."""
    there = [device.scope for device in _list_devices(status, "cpu")]
    if not there:
        raise Unavailable(
            "there is no CPU package to cap", where="cap", next="joulelab cap status", code="unavailable.no-cpu"
        )
    return there


def make_cap_requests(scopes: Sequence[str], value: CapValue) -> list[CapRequest]:
    """Return a request for each scope; a value is a number with its unit: W, share or Hz."""
    from joulelab.control.client import CapRequest

    return [CapRequest(scope, value[0], value[1]) for scope in scopes]


def _list_devices(status: CapStatus, family: str) -> list[CapDevice]:
    """Return the devices of a family, each once: a GPU has its cap and its clocks."""
    found = {d.scope: d for d in status.devices if d.scope.partition(":")[0] == family}
    found |= {d.scope: d for d in status.devices if d.scope in found and d.kind == "power"}
    return list(found.values())


def _find_named_gpus(known: Mapping[str, str], words: str) -> list[str]:
    if words.strip() == "all":
        return list(known)
    scopes = []
    for word in (part.strip().removeprefix("gpu:") for part in words.split(",")):
        fitting = [
            s for s, device in known.items() if s == f"gpu:{word}" or (len(word) > 4 and device.startswith(word))
        ]
        if len(fitting) != 1:
            why = f"there are {', '.join(known)}"
            raise ConfigError(f"there is no GPU {word!r}", where="--gpu", why=why, code="config.unknown-gpu")
        scopes += [scope for scope in fitting if scope not in scopes]
    return scopes


class Companion(Protocol):
    """Define work that is done during a workload, such as the search for a good cap."""

    def begin(self, recording: RunRecording, capping: RunCaps) -> None:
        """Begin, just after the start of the workload, and return at once."""

    def end(self) -> None:
        """End, just after the end of the workload."""


class RunCaps:
    """Set the caps of one run through a keeper; every change is an event of the run.

    `guarded`: the keeper has a guard, which restores the caps if the keeper and this process are killed together.
    """

    def __init__(
        self,
        requests: Sequence[CapRequest],
        environ: Mapping[str, str],
        recording: RunRecording,
        *,
        guarded: bool = False,
    ) -> None:
        self._is_guarded = guarded
        self._requests = requests
        self._environ = environ
        self._recording = recording
        self._caps: Caps | None = None
        self._waiting: list[str] = []

    @property
    def fds(self) -> Sequence[int]:
        """Return the file descriptors to poll."""
        return () if self._caps is None else self._caps.fds

    @property
    def due_ns(self) -> int:
        """Return when `serve()` is needed even if nothing becomes readable (monotonic)."""
        return NEVER_NS if self._caps is None else self._caps.due_ns

    def apply(self) -> None:
        """Set the requested caps. Raises JoulelabError; then none is set."""
        if self._requests:
            self.set(self._requests)

    def set(self, requests: Sequence[CapRequest]) -> list[HeldCap]:
        """Set caps, also while the workload runs and from another thread. Raises JoulelabError."""
        from joulelab.control.client import Caps

        if self._caps is None:
            run = "" if self._recording.run is None else str(self._recording.run)
            command = " ".join(redact_command(self._recording.command))
            who = {"command": command, "run": run}
            self._caps = Caps(self._environ, who=who, guarded=self._is_guarded)
        held = self._caps.set(requests)
        for each in held:
            self._recording.event("cap-set", **each.to_json())
        return held

    def serve(self) -> None:
        """Store the events of the keeper, such as its death and its replacement."""
        for event in () if self._caps is None else self._caps.serve():
            self._note(event)

    def release(self) -> None:
        """Restore the original caps; a cap that could not be restored is a problem of the run."""
        caps, self._caps = self._caps, None
        if caps is None:
            return
        try:
            for each in caps.release():
                self._recording.event("cap-restored", **each.to_json())
                if each.outcome in ("left", "failed") or each.keeps_journal:
                    self._recording.problems.append(each.message)
        except JoulelabError as error:
            self._recording.problems.append(str(error))
        finally:
            for event in caps.serve():
                self._note(event)
            caps.close()

    def _note(self, event: Mapping[str, Any]) -> None:
        fields = dict(event)
        kind = str(fields.pop("event"))
        self._recording.event(kind, **fields)
        if "problem" in fields:
            self._recording.problems.append(str(fields["problem"]))
            self._waiting += [str(fields["problem"])] if kind == "caps-problem" else []
        elif kind == "keeper-started":  # problems of the time without a keeper are over; their events stay
            for problem in self._waiting:
                self._recording.problems.remove(problem)
            self._waiting.clear()
