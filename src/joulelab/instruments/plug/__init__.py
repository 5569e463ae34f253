"""Measure a small node through a smart plug: Shelly (Gen2 and later) over HTTP, Tasmota over HTTP or MQTT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from joulelab.core.errors import ConfigError, Denied, JoulelabError, MeterError, ReadFailed, Unavailable
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.http import Auth, HttpClient, parse_json, reach
from joulelab.instruments.plug import values
from joulelab.instruments.plug.mqtt import MqttListener
from joulelab.instruments.settings import check_keys, seconds, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.spec import Meter
    from joulelab.instruments.plug.values import PlugRow

SUMMARY = "a small node's AC power through a smart plug (Shelly, Tasmota): indicative"
PRIVILEGE = "none, or the plug's own user and password"
TRIED = "the simulated node and a real MQTT broker; not on hardware"
CONFIG = wall.COMMON | {
    "address": "plug: HOST or HOST:PORT; with via = mqtt the broker (port 1883)",
    "kind": "shelly or tasmota",
    "channel": "which switch or clamp of it (0)",
    "component": "switch, pm1 or em1 of a Shelly (the one that measures)",
    "via": "http, or mqtt for a Tasmota that publishes (http)",
    "topic": "topic of the plug, with via = mqtt",
    "update_s": "how often it publishes (TelePeriod), with via = mqtt (10)",
    "user": "user of the plug or of the broker",
    "password": "its password",
}
DEFAULT = False
SECRETS = ("password",)
PERIOD_S, LEAST_PERIOD_S, TIMEOUT_S, TELE_S = 1.0, 0.5, 5.0, 10.0
STALE = 3  # publishing periods without a message after which there is no reading
ASSUMED_GAIN = 0.05
# Shelly keeps energy by the minute, and does not say how often the total moves.
COUNTER_S = {"shelly": 60.0, "tasmota": 1.0}


class Source(Protocol):
    """Give one reading, and its age (s) where it was sent to us."""

    def row(self) -> tuple[PlugRow, float | None]:
        """Return the reading. Raises MeterError."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    check_keys("plug", config, CONFIG)
    label = wall.label_of(config)
    _period_s(config, label)
    kind, via, _ = _kinds(config, label)
    for key in ("user", "password"):
        text(label, config, key)
    if via == "mqtt":
        _topic(config, label, kind)
    elif kind == "shelly":
        _choice(config, "component", tuple(values.SHELLY), "", label)
    wall.address(config, 1883 if via == "mqtt" else 80)
    seconds(label, config, "timeout_s", TIMEOUT_S)
    seconds(label, config, "update_s", TELE_S)


def _period_s(config: Mapping[str, Any], label: str) -> float:
    period_s = seconds(label, config, "period_s", PERIOD_S)
    if period_s < LEAST_PERIOD_S:
        raise ConfigError(
            f"period_s is {period_s:g}", where=f"meter {label}", next=f"give {LEAST_PERIOD_S:g} or more: plugs are slow"
        )
    return period_s


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Read the plug once. Raises ReadFailed, Denied, Unavailable, ConfigError."""
    check_keys("plug", config, CONFIG)
    label = wall.label_of(config)
    period_s = _period_s(config, label)
    source = _source(config, label)
    try:
        first, age_s = _named(source, label)
    except JoulelabError:
        source.close()
        raise
    update_s = 1.0 if age_s is None else seconds(label, config, "update_s", TELE_S)
    return PlugMeter(source, label, _stream(config, period_s, update_s, first, timed=age_s is not None))


class PlugMeter:
    """Read one plug."""

    def __init__(self, source: Source, label: str, stream: Stream) -> None:
        self._source, self._label, self._stream = source, label, stream

    def streams(self) -> Sequence[Stream]:
        """Return the one stream."""
        return (self._stream,)

    def read(self, stream: Stream) -> Sequence[float]:
        """Return one row in SI. Raises ReadFailed, Denied."""
        row, age_s = _named(self._source, self._label)
        return row.values() if len(stream.channels) == len(row.values()) else (*row.values(), age_s or 0.0)

    def close(self) -> None:
        """End the connection."""
        self._source.close()


class ShellySource:
    """Ask a Shelly for its status."""

    def __init__(self, client: HttpClient, component: str | None, channel: int) -> None:
        """Find what measures. Raises as `get_json`, ConfigError."""
        self._client, self._channel = client, channel
        found = values.shelly_components(client.get_json("/rpc/Shelly.GetStatus"))
        wanted = [
            n for n in found if n in {f"{kind}:{channel}" for kind in ([component] if component else values.SHELLY)}
        ]
        if not found:
            raise Unavailable(
                "this Shelly measures no power", why="no switch, pm1 or em1 with power", next="use one with a meter"
            )
        if not wanted:
            raise ConfigError(
                f"channel {channel} measures no power",
                where=f"meter {client.label}",
                next=f"it has {', '.join(sorted(found))}",
            )
        self._component = wanted[0].partition(":")[0]

    def row(self) -> tuple[PlugRow, float | None]:
        """Return the reading."""
        component, channel = self._component, self._channel
        if component == "em1":  # its energy is another component's
            return values.shelly(self._client.get_json("/rpc/Shelly.GetStatus"), component, channel), None
        method = {"switch": "Switch", "pm1": "PM1"}[component]
        status = self._client.get_json(f"/rpc/{method}.GetStatus", {"id": str(channel)})
        return values.shelly({f"{component}:{channel}": status}, component, channel), None

    def close(self) -> None:
        """End the connection."""
        self._client.close()


class TasmotaSource:
    """Ask a Tasmota for its sensors: Status 10, Status 8 on old firmware."""

    def __init__(self, client: HttpClient, user: str, password: str, channel: int) -> None:
        self._client, self._channel = client, channel
        self._login = {"user": user or "admin", "password": password} if password else {}
        self._command = "Status 10"
        if "StatusSNS" not in self._ask():
            self._command = "Status 8"

    def row(self) -> tuple[PlugRow, float | None]:
        """Return the reading."""
        return values.tasmota(self._ask(), self._channel), None

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def _ask(self) -> Any:
        answer = self._client.get_json("/cm", {**self._login, "cmnd": self._command}, also=(401,))
        return answer if isinstance(answer, dict) else {}


class TasmotaListener:
    """Take what a Tasmota publishes, and what it answers once when asked at the start."""

    def __init__(self, listener: MqttListener, topic: str, channel: int, update_s: float, timeout_s: float) -> None:
        self._listener, self._topic, self._channel, self._update_s = listener, topic, channel, update_s
        listener.ask(f"cmnd/{topic}/STATUS", "10")
        listener.wait(timeout_s)

    def row(self) -> tuple[PlugRow, float | None]:
        """Return the newest reading."""
        found = self._listener.latest()
        if found is None:
            why = f"nothing of {self._topic!r}; {self._listener.state}"
            raise ReadFailed("the plug has not published", why=why, next="check the topic")
        _, payload, age_s = found
        if age_s > STALE * self._update_s:
            raise ReadFailed("the plug has stopped publishing", why=f"{age_s:.0f} s ago; {self._listener.state}")
        return values.tasmota(parse_json(payload, "plug"), self._channel), age_s

    def close(self) -> None:
        """End the connection."""
        self._listener.close()


def diagnose(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Probe further after opening has failed, and tell what is wrong in sentences."""
    label = wall.label_of(config)
    try:
        port = 1883 if config.get("via") == "mqtt" else 80
        host, number = wall.address(config, port)
    except ConfigError as wrong:
        return [str(wrong)]
    said = reach(
        f"http://{f'[{host}]' if ':' in host else host}:{number}", seconds(label, config, "timeout_s", TIMEOUT_S)
    )
    if said[-1].endswith("."):
        return said
    if isinstance(error, Denied):
        return [*said, "It answers, and refuses the user or the password."]
    if isinstance(error, ConfigError | Unavailable):
        return [
            *said,
            f"{error.what}{f' ({error.why})' if error.why else ''}{f'; {error.next}' if error.next else ''}.",
        ]
    other = {"shelly": "tasmota", "tasmota": "shelly"}.get(str(config.get("kind")))
    if port == 80 and other is not None and _is_kind(host, number, other):
        return [*said, f'It is a {other.capitalize()}: set kind = "{other}".']
    return [*said, f"It answers otherwise than a plug of this kind does: {error}."]


def _is_kind(host: str, port: int, kind: str) -> bool:
    client = HttpClient(f"http://{host}:{port}", timeout_s=2.0, label="probe")
    try:
        if kind == "shelly":
            return "gen" in client.get_json("/rpc/Shelly.GetDeviceInfo")
        return bool({"StatusSNS", "WARNING"} & set(client.get_json("/cm", {"cmnd": "Status 10"}, also=(401,))))
    except (MeterError, TypeError):
        return False
    finally:
        client.close()


def _kinds(config: Mapping[str, Any], label: str) -> tuple[str, str, int]:
    """Return what plug it is, how it is asked, and its channel. Raises ConfigError."""
    kind = _choice(config, "kind", ("shelly", "tasmota"), None, label)
    via = _choice(config, "via", ("http", "mqtt"), "http", label)
    channel = config.get("channel", 0)
    if type(channel) is not int or channel < 0:
        raise ConfigError(f"channel is {channel!r}", where=f"meter {label}", next="give 0, 1, ...")
    return kind, via, channel


def _source(config: Mapping[str, Any], label: str) -> Source:
    kind, via, channel = _kinds(config, label)
    user, password = text(label, config, "user") or "", text(label, config, "password") or ""
    timeout_s = seconds(label, config, "timeout_s", TIMEOUT_S)
    if via == "mqtt":
        return _listener(config, label, kind, channel, user, password, timeout_s)
    host, port = wall.address(config, 80)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    auth = Auth("digest", user or "admin", password) if password and kind == "shelly" else Auth()
    client = HttpClient(url, auth=auth, timeout_s=timeout_s, label=label)
    try:
        if kind == "tasmota":
            return TasmotaSource(client, user, password, channel)
        component = _choice(config, "component", tuple(values.SHELLY), "", label)
        return ShellySource(client, component or None, channel)
    except JoulelabError as error:
        client.close()
        error.where = error.where or label
        raise


def _listener(
    config: Mapping[str, Any], label: str, kind: str, channel: int, user: str, password: str, timeout_s: float
) -> Source:
    topic = _topic(config, label, kind)
    host, port = wall.address(config, 1883)
    update_s = seconds(label, config, "update_s", TELE_S)
    topics = (f"tele/{topic}/SENSOR", f"stat/{topic}/STATUS10", f"stat/{topic}/STATUS8")
    listener = MqttListener(host, port, topics, user=user, password=password, timeout_s=timeout_s, label=label)
    return TasmotaListener(listener, topic, channel, update_s, timeout_s)


def _topic(config: Mapping[str, Any], label: str, kind: str) -> str:
    topic = text(label, config, "topic")
    if kind != "tasmota" or not topic or set(topic) & set("+#"):
        raise ConfigError(
            "via = mqtt is for a Tasmota with a topic",
            where=f"meter {label}",
            next='set kind = "tasmota" and topic = "..." (in %topic% of its MQTT page)',
        )
    return topic


def _choice(config: Mapping[str, Any], key: str, fitting: tuple[str, ...], default: str | None, label: str) -> str:
    value = config.get(key, default)
    if value is None:
        advice = f"set {key} = {' or '.join(f'{one!r}' for one in fitting)}"
        raise ConfigError(f"no {key} is given", where=f"meter {label}", next=advice)
    if value not in fitting and value != default:
        raise ConfigError(f"{key} is {value!r}", where=f"meter {label}", next=f"give {' or '.join(fitting)}")
    return str(value)


def _named(source: Source, label: str) -> tuple[PlugRow, float | None]:
    try:
        return source.row()
    except MeterError as error:
        error.where = label
        raise


def _stream(config: Mapping[str, Any], period_s: float, update_s: float, first: PlugRow, *, timed: bool) -> Stream:
    label, kind = wall.label_of(config), str(config["kind"])
    said = f"indicative: the makers of {kind} plugs state no accuracy class; {ASSUMED_GAIN:.0%} taken"

    def accuracy(quantum: float) -> Accuracy:
        return wall.stated(config, Accuracy("assumed", ASSUMED_GAIN, quantum=quantum, shared=label, reference=said))

    counter_s = max(COUNTER_S[kind], update_s)
    channels = [
        Spec("power_w", "power", "W", "power", update_s, 1.0, accuracy=accuracy(first.quanta[0])),
        Spec("energy_j", "energy", "J", "counter", counter_s, accuracy=accuracy(first.quanta[1])),
        Spec("apparent_va", "apparent power", "VA"),
        Spec("power_factor", "power factor", "1"),
        Spec("voltage_v", "voltage", "V"),
        Spec("current_a", "current", "A"),
    ]
    if timed:
        channels.append(Spec("age_s", "age", "s"))
    place = wall.place(config, "node.ac")
    device = str(config.get("topic") or config["address"])
    return Stream("plug", "plug", place["scope"], period_s, tuple(channels), place["parent"], device=device, model=kind,
                  sums=place["sums"], parts=place["parts"])  # fmt: skip
