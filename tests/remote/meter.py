"""Open a meter in this process and read it when told: the loader finds the simulated library only at its start.

Run as `python -m tests.remote.meter NAME CONFIG`; a command per line on stdin, an answer in JSON per line on stdout.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from tests.remote.answers import drop_rights, failure, say

from joulelab import instruments as meters
from joulelab.core.errors import JoulelabError


def main() -> None:
    drop_rights()
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


if __name__ == "__main__":
    main()
