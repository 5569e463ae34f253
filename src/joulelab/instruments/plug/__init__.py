"""Measure a small node through a smart plug: Shelly (Gen2 and later) over HTTP, Tasmota over HTTP or MQTT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, Denied, JoulelabError, MeterError, Unavailable
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.http import Auth, HttpClient, reach
from joulelab.instruments.plug import client as plugs
from joulelab.instruments.settings import check_keys, read_choice, seconds, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Meter

    PlugSource = plugs.HttpPlug | plugs.PublishingTasmota

SUMMARY = "a small node's AC power through a smart plug (Shelly, Tasmota): indicative"
PRIVILEGE = "none, or the plug's own user and password"
TRIED = "the simulated node and a real MQTT broker; not on hardware"
CONFIG = wall.COMMON | {
    "address": "plug: HOST or HOST:PORT; with via = mqtt the broker (port 1883)",
    "kind": "shelly or tasmota",
    "channel": "number of the switch or clamp, if the plug has several; of a Shelly with both its name (em1:0)",
    "via": "http, or mqtt for a Tasmota that publishes (http)",
    "topic": "topic of the plug, with via = mqtt",
    "update_s": "how often it publishes (TelePeriod), with via = mqtt (10)",
    "user": "user of the plug or of the broker",
    "password": "its password",
}
DEFAULT = False
SECRETS = ("password",)
LEAST_PERIOD_S = 0.5
ASSUMED_GAIN = 0.05
# A Shelly keeps energy by the minute, and does not say how often the total moves.
COUNTER_S = {"shelly": 60.0, "tasmota": 1.0}


class PlugSettings:
    """Hold a checked entry. Raises ConfigError."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        check_keys("plug", config, CONFIG)
        self.config = config
        self.label = label = wall.label_of(config)
        self.period_s = seconds(label, config, "period_s", 1.0)
        if self.period_s < LEAST_PERIOD_S:
            what, advice = f"period_s is {self.period_s:g}", f"give {LEAST_PERIOD_S:g} or more: plugs are slow"
            raise ConfigError(what, where=f"meter {label}", next=advice, code="config.wrong-value")
        self.kind: str = read_choice(label, config, "kind", tuple(COUNTER_S))
        self.via: str = read_choice(label, config, "via", ("http", "mqtt"), "http")
        names = [f"{part}:{n}" for part in plugs.SHELLY_COMPONENTS for n in range(8)] if self.kind == "shelly" else []
        self.channel: int | str | None = read_choice(label, config, "channel", (None, *range(8), *names))
        self.topic = text(label, config, "topic") or ""
        if self.via == "mqtt" and (self.kind != "tasmota" or not self.topic or set(self.topic) & set("+#")):
            what, advice = (
                "via = mqtt is for a Tasmota with a topic",
                'set kind = "tasmota" and topic (on its MQTT page)',
            )
            raise ConfigError(what, where=f"meter {label}", next=advice, code="config.no-topic")
        self.user, self.password = (text(label, config, key) or "" for key in ("user", "password"))
        self.host, self.port = wall.address(config, 1883 if self.via == "mqtt" else 80)
        self.timeout_s = seconds(label, config, "timeout_s", 5.0)
        self.update_s = seconds(label, config, "update_s", 10.0)

    @property
    def base_url(self) -> str:
        """Return the address for HTTP."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    PlugSettings(config)


def open_meter(config: Mapping[str, Any], tap: Callable[[HttpClient], HttpClient] | None = None) -> Meter:
    """Read the plug once. Raises ReadFailed, Denied, Unavailable, ConfigError, MissingDependency.

    `tap` stands between the meter and a plug that is asked by HTTP, to write down the answers.
    """
    settings = PlugSettings(config)
    source = _open_source(settings, tap)
    try:
        first, age_s = _read_source(source, settings.label)
    except JoulelabError:
        source.close_connection()
        raise
    return PlugMeter(source, settings.label, _describe_stream(settings, first, has_age=age_s is not None))


class PlugMeter:
    """Read one plug."""

    def __init__(self, source: PlugSource, label: str, stream: Stream) -> None:
        self._source, self._label, self._stream = source, label, stream

    def streams(self) -> Sequence[Stream]:
        """Return the one stream."""
        return (self._stream,)

    def read(self, stream: Stream) -> Sequence[float]:  # noqa: ARG002 there is one
        """Return one row in SI. Raises ReadFailed, Denied."""
        reading, age_s = _read_source(self._source, self._label)
        return reading.values if age_s is None else (*reading.values, age_s)

    def close(self) -> None:
        """End the connection."""
        self._source.close_connection()


def diagnose(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Explain why a plug did not open: probe name and port, and word the error."""
    try:
        settings = PlugSettings(config)
    except ConfigError as wrong:
        return [str(wrong)]
    found = reach(settings.base_url, settings.timeout_s)
    if found[-1].endswith("."):
        return found
    if isinstance(error, Denied):
        return [*found, "It answers, and refuses the user or the password."]
    if error.code in plugs.CONTRADICTED or (isinstance(error, Unavailable) and error.code != Unavailable.code):
        return [*found, f"It answers, but {error.what}; {error.next}."]
    other = "tasmota" if settings.kind == "shelly" else "shelly"
    return [*found, f'It does not answer as a {settings.kind} with a meter does: {error}. Is it kind = "{other}"?']


def _open_source(settings: PlugSettings, tap: Callable[[HttpClient], HttpClient] | None) -> PlugSource:
    label, user, password, timeout_s = settings.label, settings.user, settings.password, settings.timeout_s
    if settings.via == "mqtt":
        topics = (f"tele/{settings.topic}/SENSOR", f"stat/{settings.topic}/STATUS10")
        listener = plugs.MqttListener(
            settings.host, settings.port, topics, user=user, password=password, timeout_s=timeout_s, label=label
        )
        return plugs.PublishingTasmota(listener, settings.topic, settings.channel, settings.update_s, timeout_s)
    auth = Auth("digest", user or "admin", password) if password and settings.kind == "shelly" else Auth()
    client = HttpClient(settings.base_url, auth=auth, timeout_s=timeout_s, label=label)
    client = tap(client) if tap else client
    login = {"user": user or "admin", "password": password} if password else {}
    try:
        return plugs.HttpPlug(client, settings.kind, settings.channel, login)
    except JoulelabError as error:
        client.close()
        error.where = error.where or label
        raise


def _read_source(source: PlugSource, label: str) -> tuple[plugs.PlugReading, float | None]:
    try:
        return source.read_plug()
    except MeterError as error:
        error.where = label
        raise


def _describe_stream(settings: PlugSettings, first: plugs.PlugReading, *, has_age: bool) -> Stream:
    config, kind = settings.config, settings.kind
    update_s = settings.update_s if has_age else 1.0
    reference = f"indicative: the makers of {kind} plugs state no accuracy class; {ASSUMED_GAIN:.0%} assumed"
    power, energy = (
        wall.stated(config, Accuracy("assumed", ASSUMED_GAIN, 0.0, step, settings.label, reference))
        for step in first.steps
    )
    channels = [
        Spec("power_w", "power", "W", "power", update_s, 1.0, accuracy=power),
        Spec("energy_j", "energy", "J", "counter", max(COUNTER_S[kind], update_s), accuracy=energy),
        Spec("apparent_va", "apparent power", "VA"),
        Spec("power_factor", "power factor", "1"),
        Spec("voltage_v", "voltage", "V"),
        Spec("current_a", "current", "A"),
    ]
    if has_age:
        channels.append(Spec("age_s", "age", "s"))
    return Stream(
        name="plug",
        table="plug",
        period_s=settings.period_s,
        channels=tuple(channels),
        device=settings.topic or str(config["address"]),
        model=kind,
        **wall.place(config, "node.ac"),
    )
