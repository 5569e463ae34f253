"""What the processes of this folder have in common: answers in JSON, a line each, and rights that root gives up."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from joulelab.core import errors

if TYPE_CHECKING:
    from joulelab.core.errors import JoulelabError


def drop_rights() -> None:
    """Start again without root's right to what a file's mode forbids (dac_override, dac_read_search), if so asked."""
    if os.environ.pop("WITHOUT_OVERRIDE", None) is None:
        return
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
    os.execv(sys.executable, sys.orig_argv)


def failure(error: JoulelabError) -> dict[str, Any]:
    kind = next(c.__name__ for c in type(error).__mro__ if c.__module__ == errors.__name__)
    told = {"what": error.what, "where": error.where, "why": error.why, "next": error.next}
    return {"error": kind, "code": error.code, "text": str(error), **told}


def say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)
