"""A node-level meter of a test's own: it wants a password, and says of each mistake what it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, Denied, ReadFailed, Unavailable
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.settings import check_keys, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUMMARY = "a pretended PDU"
PRIVILEGE = "a password"
TRIED = "nothing"
CONFIG = wall.COMMON | {
    "address": "where it is",
    "community": "who asks",
    "password": "what it wants to hear",
    "outlets": "outlets of the node",
    "watts": "what each outlet gives",
    "opens_in_s": "how long it takes to open",
    "leak": "make it talk too much",
}
SECRETS = ("community", "password")
DEFAULT = False
RIGHT = "correct-horse-battery"


class Pretended:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        period = seconds("pretended", config, "period_s", 0.05)
        outlets = config.get("outlets") or [""]
        accuracy = Accuracy("assumed", 0.01, shared=wall.label_of(config), reference="pretended")
        power = Spec("power_w", "power", "W", "power", 0.05, 0.05, accuracy=accuracy)
        places = [wall.place(config, "node.ac", str(o), len(outlets)) for o in outlets]
        self._streams = [
            Stream(f"{p['scope']}.power", "power", period_s=period, channels=(power,), **p) for p in places
        ]

    def streams(self) -> Sequence[Stream]:
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        return (float(self.config.get("watts", 100.0)),)

    def close(self) -> None:
        pass


def open_meter(config: Mapping[str, Any]) -> Pretended:
    check_keys("pretended", config, CONFIG)
    time.sleep(config.get("opens_in_s", 0.0))
    host, _ = wall.address(config, 161)
    if "password" not in config:
        raise ConfigError("no password is given", where="pretended", next='set password = { env = "NAME" }')
    if config.get("leak"):
        raise RuntimeError(f"the password is {config['password']}")
    if host == "dead":
        raise ReadFailed("it does not answer", where="pretended", why="timeout", next="is it on?")
    if config["password"] != RIGHT:
        raise Denied("the password is wrong", where="pretended", why="refused", next="ask its owner")
    if 9 in config.get("outlets", ()):
        raise Unavailable("there is no outlet 9", where="pretended", why="it has 8", next="choose 1 to 8")
    return Pretended(config)


def diagnose(config: Mapping[str, Any], error: Exception) -> list[str]:
    host, _ = wall.address(config, 161)
    said = {"dead": "its name resolves, nothing answers at port 161"}
    return [said.get(host, f"it is alive: {type(error).__name__} with {config.get('password')}")]
