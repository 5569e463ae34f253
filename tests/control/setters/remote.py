"""Open the setters of one family and use them when told: the loader finds the simulated library only at its start.

Run as `python tests/control/setters/remote.py FAMILY` (`all`: every family); a line of JSON in,
[scope, kind, method, *arguments], a line of JSON out: the answer, or the error's kind and words.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from joulelab.control import setters
from joulelab.control.setting import Limits
from joulelab.core import errors
from joulelab.core.errors import JoulelabError


def drop_rights() -> None:
    """Start again without root's right to write what a file's mode forbids (dac_override, dac_read_search)."""
    del os.environ["WITHOUT_OVERRIDE"]
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
    os.execv(sys.executable, [sys.executable, *sys.argv])


def main() -> None:
    if "WITHOUT_OVERRIDE" in os.environ:
        drop_rights()
    family = sys.argv[1]
    try:
        opened: Any = setters.find(os.environ) if family == "all" else setters.load(family).open_setters(os.environ)
    except JoulelabError as error:
        say(failure(error))
        return
    with opened:
        found = {(setter.scope, setter.kind): setter for setter in opened.setters}
        rows = [[s.scope, s.kind, s.device, s.model] for s in opened.setters]
        say({"setters": rows, "missing": opened.missing, "absent": getattr(opened, "absent", [])})
        for line in sys.stdin:
            scope, kind, method, *arguments = json.loads(line)
            try:
                answer = getattr(found[scope, kind], method)(*arguments)
                say(asdict(answer) if isinstance(answer, Limits) else answer)
            except JoulelabError as error:
                say(failure(error))
    opened.close()  # twice is harmless


def failure(error: JoulelabError) -> dict[str, Any]:
    kind = next(c.__name__ for c in type(error).__mro__ if c.__module__ == errors.__name__)
    return {"error": kind, "text": str(error), "why": error.why, "next": error.next}


def say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
