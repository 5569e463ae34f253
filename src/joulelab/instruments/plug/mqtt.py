"""Listen to topics of an MQTT broker, over paho-mqtt: the last message of each, with the time of its arrival."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Denied, MeterError, MissingDependency, ReadFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paho.mqtt.client import Client, MQTTMessage

LIMIT_B = 65_536
KEEPALIVE_S = 15


class MqttListener:
    """Hold one connection, which comes back by itself; `close` ends it, and twice is harmless."""

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
        self._label, self._place, self._topics = label, f"{host}:{port}", tuple(topics)
        self._messages: dict[str, tuple[bytes, int]] = {}
        self._heard = threading.Condition()
        self._answered = threading.Event()
        self._refusal = ""
        self._client = self._made(user, password, timeout_s)
        try:
            self._client.connect(host, port, KEEPALIVE_S)
        except (OSError, ValueError) as error:
            raise self._named(error) from error
        self._client.loop_start()
        if not self._answered.wait(timeout_s) or self._refusal:
            self.close()
            raise self._refused() if self._refusal else self._silent(timeout_s)

    def ask(self, topic: str, payload: str) -> None:
        """Publish a request, without waiting for what comes of it."""
        self._client.publish(topic, payload)

    def wait(self, timeout_s: float) -> None:
        """Wait until any message has come, or the time is over."""
        with self._heard:
            self._heard.wait_for(lambda: bool(self._messages), timeout_s)

    def latest(self) -> tuple[str, bytes, float] | None:
        """Return topic, payload and age (s) of the newest message, None where none has come."""
        with self._heard:
            if not self._messages:
                return None
            topic, (payload, at_ns) = max(self._messages.items(), key=lambda item: item[1][1])
        return topic, payload, (monotonic_ns() - at_ns) / NS

    @property
    def state(self) -> str:
        """Return in words whether the broker is there."""
        if self._refusal:
            return f"the broker {self._place} refuses us"
        return f"the broker {self._place} is {'there' if self._client.is_connected() else 'gone'}"

    def close(self) -> None:
        """End the connection."""
        self._client.disconnect()
        self._client.loop_stop()
        getattr(self._client, "_reset_sockets", lambda: None)()  # paho closes some only when it is collected

    def _made(self, user: str, password: str, timeout_s: float) -> Client:
        try:
            from paho.mqtt.client import Client
            from paho.mqtt.enums import CallbackAPIVersion
        except ImportError as error:
            raise MissingDependency(
                "paho-mqtt is not installed",
                where=self._label,
                why="it speaks MQTT with the broker",
                next="pip install 'joulelab[mqtt]'",
            ) from error
        client = Client(CallbackAPIVersion.VERSION2)
        client.connect_timeout = timeout_s
        client.reconnect_delay_set(1, 10)
        if user:
            client.username_pw_set(user, password)
        client.on_connect = self._connected
        client.on_subscribe = self._subscribed
        client.on_message = self._arrived
        return client

    def _connected(self, client: Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._refusal = str(reason) if reason.is_failure else ""
        if reason.is_failure:
            self._answered.set()
        else:
            client.subscribe([(topic, 0) for topic in self._topics])

    def _subscribed(self, *_: Any) -> None:
        # Only now: an answer to a question that is asked before would go to nobody.
        self._answered.set()

    def _arrived(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        # A retained message is of an unknown time: it is no reading.
        if message.retain or len(message.payload) > LIMIT_B:
            return
        with self._heard:
            self._messages[message.topic] = bytes(message.payload), monotonic_ns()
            self._heard.notify_all()

    def _refused(self) -> Denied:
        return Denied(
            "the broker refuses us", where=self._label, why=self._refusal.lower(), next="check user and password"
        )

    def _silent(self, timeout_s: float) -> ReadFailed:
        return ReadFailed("the broker does not answer", where=self._label, why=f"{timeout_s:g} s for {self._place}")

    def _named(self, error: Exception) -> MeterError:
        if isinstance(error, socket.gaierror):
            host = self._place.rpartition(":")[0]
            return ReadFailed(
                f"the name {host} is not known", where=self._label, why="no address", next="check address"
            )
        if isinstance(error, ConnectionRefusedError):
            return ReadFailed(
                "the connection is refused",
                where=self._label,
                why=f"no broker listens at {self._place}",
                next="check the port, and that the broker runs",
            )
        why = getattr(error, "strerror", None) or type(error).__name__
        return ReadFailed("the broker cannot be reached", where=self._label, why=str(why))
