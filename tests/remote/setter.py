"""Open the setters of one family and use them when told: the loader finds the simulated library only at its start.

Run as `python -m tests.remote.setter FAMILY` (`all`: every family); a line of JSON in,
[scope, kind, method, *arguments], a line of JSON out: the answer, or the error's kind and words.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from tests.remote.answers import drop_rights, failure, say

from joulelab.control import setters
from joulelab.core.errors import JoulelabError
from joulelab.core.setting import SettingLimits


def main() -> None:
    drop_rights()
    family = sys.argv[1]
    try:
        opened: Any = (
            setters.open_all_setters(os.environ)
            if family == "all"
            else setters.load_family(family).open_setters(os.environ)
        )
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
                say(asdict(answer) if isinstance(answer, SettingLimits) else answer)
            except JoulelabError as error:
                say(failure(error))
    opened.close()  # twice is harmless


if __name__ == "__main__":
    main()
