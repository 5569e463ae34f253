"""Start the recorder: separate it from the workload's terminal, signals and files, then record."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from joulelab.recorder.plan import Plan
from joulelab.recorder.process import Recorder
from joulelab.recorder.signals import IGNORED, REPORTED, open_signals
from joulelab.store.safe_files import open_append

SWITCH_INTERVAL_S = 0.0005


def main() -> None:
    """Record by the plan on standard input; end by os._exit, so that a stuck vendor call cannot delay the end."""
    code = 1
    try:
        commands, status = _private_pipes()
        signals = _take_signals()
        faulthandler.enable()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        usual = _load_meters() if "--warm" in sys.argv else None
        line = _read_line(commands)
        if not line:
            os._exit(0)  # started early, and then not needed
        plan = replace(Plan.from_json(line), usual=usual)
        _use_log(plan.log)
        os.set_blocking(commands, False)
        recorder = Recorder(plan, commands=commands, status=status, signals=signals)
        recorder.start()
        gc.freeze()
        recorder.run()
        code = 0
    except BaseException:  # noqa: BLE001 - to the log with it, whatever it is
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _private_pipes() -> tuple[int, int]:
    """Move the protocol away from files 0 and 1, so that no library writes into it; close other inherited files."""
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(path.name))
    commands, status = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    os.set_blocking(status, False)
    return commands, status


def _take_signals() -> int:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, REPORTED)
    return open_signals(REPORTED)


def _load_meters() -> list[str] | None:
    """Import the usual meters while the owner still prepares the plan, and return their names."""
    with contextlib.suppress(Exception):
        from joulelab.instruments import list_defaults

        return list_defaults()
    return None


def _use_log(path: str | None) -> None:
    if path is not None:
        with contextlib.suppress(OSError):
            log = open_append(path)
            os.dup2(log, 2)
            os.dup2(log, 1)
            os.close(log)


def _read_line(fd: int) -> bytes:
    # Byte by byte: what follows the plan are commands.
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(fd, 1)
        if not data:
            break
        line += data
    return bytes(line)


if __name__ == "__main__":
    main()
