from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from joulelab.run.config.configuration import load_config

if TYPE_CHECKING:
    from joulelab.run.config.configuration import Config

INSTRUMENT = str(Path(__file__).with_name("instrument.py"))


class Places:
    """Files of a configuration in a test's folder, and what is read of them."""

    def __init__(self, root: Path) -> None:
        self.system = root / "etc" / "joulelab.toml"
        self.user = root / "home" / "joulelab" / "joulelab.toml"
        self.project = root / "work" / "joulelab.toml"
        self.cwd = root / "work" / "deep" / "er"
        self.named = root / "named.toml"
        self.environ = {"XDG_CONFIG_HOME": str(root / "home"), "JOULELAB_ETC": str(root / "etc")}
        for path in (self.system, self.user, self.cwd / "x"):
            path.parent.mkdir(parents=True)

    def write(self, place: str, text: str) -> Path:
        path: Path = getattr(self, place)
        path.write_text(text.replace("INSTRUMENT", INSTRUMENT))
        if place == "named":
            self.environ["JOULELAB_CONFIG"] = str(path)
        return path

    def load(self, host: str = "node07.cluster", **more: Any) -> Config:
        return load_config(self.environ, host, cwd=str(self.cwd), **more)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)
