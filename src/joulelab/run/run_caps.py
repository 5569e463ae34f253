"""Hold a run's caps: set before the workload starts, watched while it runs, put back when it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from joulelab.core.errors import JoulelabError
from joulelab.store.redact import redact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.control.client import CapRequest, Caps, HeldCap
    from joulelab.run.recording import RunRecording

NEVER_NS = 1 << 62


class Companion(Protocol):
    """Go along with a workload, such as one who tries caps while it runs."""

    def begin(self, recording: RunRecording, capping: RunCaps) -> None:
        """Begin: the workload has just started. Returns at once."""

    def end(self) -> None:
        """End: the workload has ended."""


class RunCaps:
    """Set caps for one run by way of a keeper; every change is an event of the run. Without wishes it does nothing."""

    def __init__(self, wishes: Sequence[CapRequest], environ: Mapping[str, str], recording: RunRecording) -> None:
        self._wishes = wishes
        self._environ = environ
        self._recording = recording
        self._caps: Caps | None = None
        self._waiting: list[str] = []

    @property
    def fds(self) -> Sequence[int]:
        """Return what to poll."""
        return () if self._caps is None else self._caps.fds

    @property
    def due_ns(self) -> int:
        """Return when `serve()` is needed even if nothing becomes readable (monotonic)."""
        return NEVER_NS if self._caps is None else self._caps.due_ns

    def apply(self) -> None:
        """Set what the run asks for. Raises JoulelabError; then nothing is set."""
        if self._wishes:
            self.set(self._wishes)

    def set(self, wishes: Sequence[CapRequest]) -> list[HeldCap]:
        """Set caps, also while the workload runs and from another thread. Raises JoulelabError."""
        from joulelab.control.client import Caps

        if self._caps is None:
            run = "" if self._recording.run is None else str(self._recording.run)
            command = " ".join(redact(self._recording.command))
            self._caps = Caps(self._environ, who={"command": command, "run": run})
        held = self._caps.set(wishes)
        for each in held:
            self._recording.event("cap-set", **each.to_json())
        return held

    def serve(self) -> None:
        """Hear of a keeper that died; it has been replaced by then."""
        for event in () if self._caps is None else self._caps.serve():
            self._note(event)

    def release(self) -> None:
        """Put back what was found; what could not be is told."""
        caps, self._caps = self._caps, None
        if caps is None:
            return
        try:
            for each in caps.release():
                self._recording.event("cap-restored", **each.to_json())
                if each.outcome in ("left", "failed"):
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
        elif kind == "keeper-started":  # what was told while there was none is over; its events stay
            for said in self._waiting:
                self._recording.problems.remove(said)
            self._waiting.clear()
