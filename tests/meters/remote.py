"""Open a meter in this process and read it when told: the loader finds the simulated library only at its start.

Run as `python tests/meters/remote.py NAME CONFIG`; a command per line on stdin, an answer in JSON per line on stdout.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from joulelab import meters
from joulelab.core.errors import JoulelabError


def drop_override() -> None:
    """Start again without root's right to read what a file's mode forbids (dac_override, dac_read_search)."""
    del os.environ["WITHOUT_OVERRIDE"]
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
    os.execv(sys.executable, [sys.executable, *sys.argv])


def main() -> None:
    if "WITHOUT_OVERRIDE" in os.environ:
        drop_override()
    name, config = sys.argv[1], json.loads(sys.argv[2])
    try:
        meter: Any = meters.open_meter(name, config)
    except JoulelabError as error:
        say(failure(error))
        return
    streams = {stream.name: stream for stream in meter.streams()}
    missing = [asdict(m) for m in meter.missing()] if hasattr(meter, "missing") else []
    say({"streams": [s.to_json() for s in streams.values()], "missing": missing})
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        try:
            say(meter.events() if command == "events" else list(meter.read(streams[argument])))
        except JoulelabError as error:
            say(failure(error))
    meter.close()
    meter.close()


def failure(error: JoulelabError) -> dict[str, Any]:
    kind = type(error).__name__
    return {"error": kind, "what": error.what, "where": error.where, "why": error.why, "next": error.next}


def say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
