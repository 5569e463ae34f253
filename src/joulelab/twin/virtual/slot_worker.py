"""Run slots in virtual time, one after another, as they are named on standard input: `python -m ...worker`.

Each line is the folder of a slot; each answer is one line of JSON with the slot and what became of it. It ends with its
input: nothing is left behind when its caller is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from joulelab.core.errors import JoulelabError
from joulelab.study.slot import describe

LAST_LINES = 3


def main() -> int:
    """Serve until the input ends; return 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the driver, which tells what to do
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    _warm_up()
    for line in sys.stdin:
        folder = line.rstrip("\n")
        if folder:
            os.write(answers, json.dumps({"slot": folder, "told": told_of(Path(folder))}).encode() + b"\n")
    return 0


def _warm_up() -> None:
    from joulelab.run.run_command import ANALYSIS_MODULES, preload_modules
    from joulelab.twin.virtual import virtual_slot

    preload_modules([*ANALYSIS_MODULES, virtual_slot.__name__])


def told_of(folder: Path) -> dict[str, Any]:
    """Run a slot and return what is to be told of it, errors too."""
    from joulelab.twin.virtual.virtual_slot import run_slot

    try:
        return run_slot(folder)
    except JoulelabError as error:
        return {"is": "error", "error": describe(error)}
    except OSError as error:
        plain = {"what": "the slot cannot be run", "where": str(folder), "why": str(error), "next": "mend that"}
        return {"is": "error", "error": {"kind": "StoreError", **plain}}
    except Exception as error:  # noqa: BLE001 - whatever it is, the driver is told
        why = f"{type(error).__name__}: {error}"
        said = " ".join(traceback.format_exc(limit=-LAST_LINES).split())
        plain = {"what": "a slot of a twin failed", "where": str(folder), "why": why, "next": f"tell it: {said}"}
        return {"is": "error", "error": {"kind": "JoulelabError", **plain}}


if __name__ == "__main__":
    sys.exit(main())
