"""A meter for tests that fails, or hangs, as long as a file is there: no test has to hit the right moment."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.recorder import fake

from joulelab.core.errors import ReadFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.spec import Stream

SUMMARY = "constant power, switched by files"
CONFIG = fake.CONFIG | {"fails": "a file; readings fail while it is there", "hangs": "a file; readings hang likewise"}


def open_meter(config: Mapping[str, Any]) -> Switched:
    return Switched(config)


class Switched(fake.Fake):
    def read(self, stream: Stream) -> Sequence[float]:
        while Path(self.config.get("hangs", "/none")).exists():
            time.sleep(0.02)
        if Path(self.config.get("fails", "/none")).exists():
            raise ReadFailed("fake fails", why="asked to")
        return super().read(stream)
