"""Burn together: fill the memory, wait until all are ready, let them burn, and tell what came of it."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.workloads.burning import crew
from joulelab.workloads.burning.host import memory, stress
from joulelab.workloads.burning.settings import CPU

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.workloads.burning.host import Host
    from joulelab.workloads.burning.settings import Settings

READY_S, LATE_S, SETTLE_S = 300.0, 60.0, 300.0


def burn(asked: Settings, given: Mapping[str, str]) -> int:
    """Burn as `given`, which `asked` was read from; return 0, 1 where a product was wrong or something failed.

    Raises ConfigError.
    """
    import joulelab

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    number = crew.count(asked)
    with crew.workers(number, _words(asked, given, number)) as started, contextlib.ExitStack() as stack:
        with joulelab.phase("set-up"):
            ready, reasons = crew.heard(started, "ready", READY_S)
            if reasons:
                return _failed("not all processes could be started", reasons)
            host = stack.enter_context(_host(asked))
            late = host.settle(SETTLE_S) if host else ""
        if late:
            _say(late)
        held = host.held()[1] if host else 0
        crew.tell(started, str(asked.seconds))
        done, reasons = crew.heard(started, "done", asked.seconds + LATE_S)
        beside = {"host_memory_bytes": held, **host.end()} if host else {}
    joulelab.fact(**_facts(asked, ready, done), **beside)
    return _told(done, reasons, beside)


def _words(asked: Settings, given: Mapping[str, str], number: int) -> list[str]:
    """Return what each process is told: nothing that it would have to find out, or share, is left open."""
    known = {"device": asked.device, "backend": asked.backend}
    if asked.device == CPU and asked.memory.share:
        known["memory"] = f"{memory()[1] * asked.memory.share / number / 1e6:.6f}MB"
    return [f"{key}={value}" for key, value in {**given, **known}.items()]


@contextlib.contextmanager
def _host(asked: Settings) -> Iterator[Host | None]:
    if asked.host == "no":
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="joulelab-burn-") as folder:
        longest_s = asked.seconds + SETTLE_S + LATE_S
        with stress(asked.tasks, asked.host_memory, longest_s, Path(folder)) as host:
            yield host


def _facts(
    asked: Settings, ready: Sequence[Mapping[str, Any]], done: Sequence[Mapping[str, Any]]
) -> dict[str, str | float]:
    """Return what is told of the run."""
    told: dict[str, str | float] = {
        "workload": "burn",
        "device": ", ".join(sorted({each["device"] for each in ready})),
        "processes": len(ready),
        "backend": asked.backend,
        "dtype": ", ".join(sorted({each["dtype"] for each in ready})),
        "size": asked.size,
        "memory_bytes": sum(each["memory_bytes"] for each in ready),
        "compared": sum(each["compared"] for each in done),
        "wrong": sum(each["wrong"] for each in done),
    }
    if asked.memory.share:
        told["memory_share"] = asked.memory.share
    if asked.host != "no":
        told |= {"host": asked.host, "host_tasks": asked.tasks}
    return told


def _told(done: Sequence[Mapping[str, Any]], reasons: Sequence[str], beside: Mapping[str, Any]) -> int:
    """Print what was done; return the exit code."""
    products, wrong = (sum(each[key] for each in done) for key in ("products", "wrong"))
    sys.stdout.write(f"products: {products}\nwrong: {wrong}\n")
    for name, value in beside.items():
        sys.stdout.write(f"{name}: {value:g}\n")
    if reasons:
        return _failed("not all processes came to their end", reasons)
    if beside and ("host_exit_code" in beside or "host_bogo_ops" not in beside):
        return _failed("stress-ng failed", ["it ended early, or printed no metrics"])
    return int(wrong > 0)


def _failed(what: str, reasons: Sequence[str]) -> int:
    _say(f"{what} ({'; '.join(reasons)})")
    return 1


def _say(text: str) -> None:
    sys.stderr.write(f"joulelab: burn: {text}\n")
