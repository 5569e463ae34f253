"""Write the first call of some functions of joulelab, with its time, to a file: for test_walk.py, in every process."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

wanted = {tuple(step) for step in json.loads(os.environ.get("WALK_STEPS", "[]"))}
target = os.environ.get("WALK_FILE", os.devnull)


def note_call(frame: FrameType, event: str, _: object) -> None:
    if event == "call":
        code = frame.f_code
        step = (code.co_filename.rpartition("/joulelab/")[2], code.co_qualname)
        if step in wanted:
            wanted.discard(step)
            with open(target, "a") as file:
                file.write(json.dumps([time.monotonic_ns(), os.getpid(), *step]) + "\n")


if wanted:
    threading.setprofile(note_call)
    sys.setprofile(note_call)
