"""Query smart plugs: Shelly (Gen2 and later) by HTTP, Tasmota by HTTP or MQTT. Values are in SI units."""

from __future__ import annotations

import math
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Denied, MissingDependency, ReadFailed, Unavailable
from joulelab.instruments.http import parse_json
from joulelab.instruments.wall import find_draw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paho.mqtt.client import Client, MQTTMessage

    from joulelab.instruments.http import HttpClient

HIGHEST_W = 25_000.0  # of a clamp on a 100 A circuit; a plug ends at 3.7 kW
# Components of a Shelly that measure: key of the power, of the apparent power, component and key of the energy (Wh).
SHELLY_COMPONENTS = {
    "switch": ("apower", "aprtpower", "switch", "aenergy.total"),
    "pm1": ("apower", "aprtpower", "pm1", "aenergy.total"),
    "em1": ("act_power", "aprt_power", "em1data", "total_act_energy"),
}
CONTRADICTED = ("read-failed.turned-clamp", "read-failed.zero-power")
MESSAGE_BYTES = 65_536
PACKET_BYTES = 2 * MESSAGE_BYTES  # a larger one ends the connection before it is read
KEEPALIVE_S = 15
STALE_PERIODS = 3  # without a message, after which a plug that publishes has no reading


@dataclass(frozen=True, slots=True)
class PlugReading:
    """Hold one reading: W, J, VA, power factor, V, A, NaN for values that the plug does not have.

    `steps` are the resolutions of W and J in its answer.
    """

    values: tuple[float, ...]
    steps: tuple[float, float]


class HttpPlug:
    """Query a plug over HTTP."""

    def __init__(self, client: HttpClient, kind: str, channel: int | str | None, login: Mapping[str, str]) -> None:
        """Find the component of a Shelly that measures. Raises MeterError."""
        self._client, self._kind, self._channel, self._login = client, kind, channel, login
        self._component = find_shelly_component(self._query_status(), channel) if kind == "shelly" else ""

    def _query_status(self) -> Any:
        """Return the whole status of the plug. Each query passes here."""
        if self._kind == "shelly":
            return self._client.get_json("/rpc/Shelly.GetStatus")
        return self._client.get_json("/cm", {**self._login, "cmnd": "Status 10"}, also=(401,))

    def read_plug(self) -> tuple[PlugReading, float | None]:
        """Return the reading, without an age. Raises MeterError."""
        if self._kind == "shelly":
            return parse_shelly(self._query_status(), self._component), None
        return parse_tasmota(self._query_status(), self._channel), None

    def close_connection(self) -> None:
        """End the connection."""
        self._client.close()


class PublishingTasmota:
    """Take the readings that a Tasmota publishes; it is queried once, at the start."""

    def __init__(
        self, listener: MqttListener, topic: str, channel: int | str | None, update_s: float, timeout_s: float
    ) -> None:
        self._listener, self._topic, self._channel, self._update_s = listener, topic, channel, update_s
        listener.publish_message(f"cmnd/{topic}/STATUS", "10")
        listener.wait_for_message(timeout_s)

    def read_plug(self) -> tuple[PlugReading, float | None]:
        """Return the newest reading and its age (s)."""
        payload, age_s = self._listener.get_latest()
        if payload is None or age_s > STALE_PERIODS * self._update_s:
            since = f"for {age_s:.0f} s" if payload else "yet"
            why = f"nothing of {self._topic!r} {since}; {self._listener.describe_broker()}"
            what, advice = "the plug does not publish", "check topic, and TelePeriod of the plug"
            raise ReadFailed(what, why=why, next=advice, code="read-failed.no-message")
        return parse_tasmota(parse_json(payload, "plug"), self._channel), age_s

    def close_connection(self) -> None:
        """End the connection."""
        self._listener.close_connection()


def find_shelly_component(status: Any, channel: int | str | None) -> str:
    """Return the component that measures a channel (switch:0, em1:1). Raises ReadFailed, Unavailable."""
    if not isinstance(status, dict):
        raise _refuse_answer("a status that is no object")
    found = [
        f"{kind}:{number}"
        for kind, number in (name.split(":") for name in status if name.count(":") == 1)
        if kind in SHELLY_COMPONENTS
        and isinstance(part := status[f"{kind}:{number}"], dict)
        and SHELLY_COMPONENTS[kind][0] in part
    ]
    if not found:
        why, advice = "no switch, pm1 or em1 with power", "use one with a meter"
        raise Unavailable("this Shelly measures no power", why=why, next=advice, code="unavailable.no-power")
    fitting = [name for name in found if channel is None or name == channel or name.endswith(f":{channel}")]
    if len(fitting) != 1:
        raise _refuse_channel(channel, [f'"{name}"' for name in sorted(found)], len(fitting))
    return fitting[0]


def parse_shelly(status: Any, component: str) -> PlugReading:
    """Return the reading of one component (switch:0) in an answer to Shelly.GetStatus. Raises ReadFailed."""
    found = status.get(component) if isinstance(status, dict) else None
    if not isinstance(found, dict):
        raise _refuse_answer(f"no {component}")
    if found.get("errors"):
        why = ", ".join(map(str, found["errors"]))[:80]
        raise ReadFailed("the plug reports a fault", why=why, next="look at its page", code="read-failed.fault")
    kind, _, channel = component.partition(":")
    power, apparent, counter, path = SHELLY_COMPONENTS[kind]
    total = status.get(f"{counter}:{channel}")
    for key in path.split("."):
        total = total.get(key) if isinstance(total, dict) else None
    keys = (power, apparent, "pf", "voltage", "current")
    return _make_reading([found.get(key) for key in keys], total, 3600.0)


def parse_tasmota(answer: Any, channel: int | str | None) -> PlugReading:
    """Return the reading in a status or sensor message of a Tasmota. Raises ReadFailed, Denied, Unavailable."""
    if isinstance(answer, dict) and "WARNING" in answer:
        why, advice = "it wants a user and a password", "check user and password of its web page"
        raise Denied("the plug refuses the log-in", why=why, next=advice, code="denied.login")
    found = answer.get("StatusSNS", answer) if isinstance(answer, dict) else None
    energy = found.get("ENERGY") if isinstance(found, dict) else None
    if not isinstance(energy, dict):
        if isinstance(found, dict) and "Time" in found:
            why, advice = "its status has no ENERGY", "use a plug with a meter"
            raise Unavailable("the plug measures no energy", why=why, next=advice, code="unavailable.no-power")
        raise _refuse_answer("no ENERGY")

    powers = energy.get("Power")
    count, number = len(powers) if isinstance(powers, list) else 1, int(channel or 0)
    if (count > 1 and channel is None) or number >= max(count, 1):
        raise _refuse_channel(channel, range(count), 0 if number >= count else count)

    def pick_value(key: str) -> Any:
        value = energy.get(key)
        if isinstance(value, list):  # of as many channels as there are powers, or it belongs to others
            return value[number] if number < len(value) == count else None
        return value if count == 1 or key == "Voltage" else None  # one total for several channels is no channel's

    keys = ("Power", "ApparentPower", "Factor", "Voltage", "Current")
    return _make_reading([pick_value(key) for key in keys], pick_value("Total"), 3.6e6)


def _make_reading(values: Sequence[Any], total: Any, joules: float) -> PlugReading:
    """Make a reading of W, VA, power factor, V, A and a total in units of `joules`. Raises ReadFailed."""
    if type(values[0]) in (int, float) and -HIGHEST_W <= values[0] < 0:
        advice = "turn the clamp around, or take what feeds in off this plug"
        why = f"its power is {values[0]:g} W"
        raise ReadFailed("the plug measures feed-in", why=why, next=advice, code="read-failed.turned-clamp")
    limits = (HIGHEST_W, HIGHEST_W, 1.0, 1000.0, 1000.0)
    power, *others = (_read_number(value, limit) for value, limit in zip(values, limits, strict=True))
    energy = _read_number(total, 3.6e12 / joules)
    # Power and energy are needed where the plug has them; the others are extra.
    for name, given, value in (("power", values[0], power), ("energy", total, energy)):
        if math.isnan(value) and (given is not None or name == "power"):
            raise _refuse_answer(f"{name} is {given!r}"[:60])
    if power == 0 and (drawn := find_draw({"apparent_va": others[0], "current_a": others[3]})):
        advice = "calibrate the plug, or use another"
        raise ReadFailed("the plug shows 0 W to a load", why=f"its {drawn}", next=advice, code="read-failed.zero-power")
    step_j = 3600.0 if total is None else joules * _find_step(total)
    return PlugReading((power, joules * energy, *others), (_find_step(values[0]), step_j))


def _read_number(value: Any, highest: float) -> float:
    """Return a number of 0 to `highest`, NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= highest:
        return math.nan
    return float(value)


def _find_step(value: float) -> float:
    digits = repr(float(value))
    return 10.0 ** -len(digits.partition(".")[2]) if "e" not in digits and not digits.endswith(".0") else 1.0


def _refuse_channel(channel: int | str | None, channels: Sequence[object], fitting: int) -> Unavailable:
    what = f"{fitting} channels measure power" if fitting else f"channel {channel} measures no power"
    advice = f"set channel: the plug has {', '.join(map(str, channels))}"
    return Unavailable(what, next=advice, code="unavailable.channel")


def _refuse_answer(why: str) -> ReadFailed:
    return ReadFailed("the plug gives no reading", why=why, next="it is tried again", code="read-failed.wrong-answer")


def _make_bounded_client(label: str) -> Client:
    """Return a client of paho whose memory a broker cannot fill. Raises MissingDependency.

    Plain paho takes packets of up to 256 MB, and keeps 65,535 messages that are announced as QoS 2 until the broker
    releases them. We subscribe with QoS 0: a broker that sends anything else loses the connection, and another one is
    opened later.
    """
    try:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion, MessageType, MQTTErrorCode
    except ImportError as error:
        what, advice = "paho-mqtt is not installed", "pip install 'joulelab[mqtt]'"
        raise MissingDependency(what, where=label, next=advice, code="missing-dependency.paho") from error

    class BoundedClient(Client):
        def _sock_recv(self, bufsize: int) -> bytes:
            if bufsize > PACKET_BYTES:  # paho asks for the whole rest of a packet
                raise ConnectionAbortedError("the broker sends a packet that is too long")
            return super()._sock_recv(bufsize)

        def _packet_handle(self) -> MQTTErrorCode:
            header = self._in_packet["command"]
            if header & 0xF0 == MessageType.PUBLISH and header & 0x06:
                return MQTTErrorCode.MQTT_ERR_PROTOCOL
            return super()._packet_handle()

    return BoundedClient(CallbackAPIVersion.VERSION2)


class MqttListener:
    """Hold the newest message of some topics, over a connection to a broker that comes back by itself (paho-mqtt)."""

    def __init__(
        self,
        host: str,
        port: int,
        topics: Sequence[str],
        *,
        user: str = "",
        password: str = "",
        timeout_s: float = 5.0,
        label: str = "mqtt",
    ) -> None:
        """Connect and subscribe. Raises ReadFailed, Denied, MissingDependency."""
        self._place, self._topics = f"{host}:{port}", tuple(topics)
        self._latest: tuple[bytes, int] | None = None
        self._arrived = threading.Condition()
        self._answered = threading.Event()
        self._refusal = ""
        self._client = _make_bounded_client(label)
        self._client.connect_timeout = timeout_s
        self._client.reconnect_delay_set(1, 10)
        if user:
            self._client.username_pw_set(user, password)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        try:
            self._client.connect(host, port, KEEPALIVE_S)
        except (OSError, ValueError) as error:
            why = str(getattr(error, "strerror", None) or error)
            if isinstance(error, socket.gaierror):
                why = f"the name {host} is not known"
            advice = "check address and port, and that the broker runs"
            what = f"the broker {self._place} cannot be reached"
            raise ReadFailed(what, where=label, why=why, next=advice, code="read-failed.no-broker") from error
        self._client.loop_start()
        if not self._answered.wait(timeout_s):
            self.close_connection()
            what, why = f"the broker {self._place} does not answer", f"none within {timeout_s:g} s"
            raise ReadFailed(what, where=label, why=why, next="check address", code="read-failed.no-answer")
        if self._refusal:
            self.close_connection()
            why, advice = self._refusal.lower(), "check user and password"
            raise Denied("the broker refuses the log-in", where=label, why=why, next=advice, code="denied.login")

    def publish_message(self, topic: str, payload: str) -> None:
        """Publish a message."""
        self._client.publish(topic, payload)

    def wait_for_message(self, timeout_s: float) -> None:
        """Wait for the first message, until the time is over."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._latest is not None, timeout_s)

    def get_latest(self) -> tuple[bytes | None, float]:
        """Return payload and age (s) of the newest message, None where none has come."""
        with self._arrived:
            payload, at_ns = self._latest or (None, 0)
        return payload, (monotonic_ns() - at_ns) / NS

    def describe_broker(self) -> str:
        """Return in words whether the broker is there."""
        if self._refusal:
            return f"the broker {self._place} refuses the log-in"
        return f"the broker {self._place} is {'there' if self._client.is_connected() else 'gone'}"

    def close_connection(self) -> None:
        """End the connection; twice is harmless."""
        self._client.disconnect()
        self._client.loop_stop()
        getattr(self._client, "_reset_sockets", lambda: None)()  # paho closes some only when it is collected

    def _on_connect(self, client: Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._refusal = str(reason) if reason.is_failure else ""
        if reason.is_failure:
            self._answered.set()
        else:
            client.subscribe([(topic, 0) for topic in self._topics])

    def _on_subscribe(self, *_: Any) -> None:
        self._answered.set()  # only now: the answer to an earlier query would be lost

    def _on_message(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        # A retained message is from an unknown time: it is no reading.
        if message.retain or len(message.payload) > MESSAGE_BYTES:
            return
        with self._arrived:
            self._latest = bytes(message.payload), monotonic_ns()
            self._arrived.notify_all()
