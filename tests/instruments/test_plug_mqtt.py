"""Tasmota plugs that publish, and the listener, over a real MQTT broker."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time

import pytest
from tests.codes import raises_code
from tests.waiting import until

from joulelab.instruments import plug
from joulelab.instruments.plug.client import MqttListener, PublishingTasmota

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
TOPIC = "tele/desk/SENSOR"
ENERGY = {"Total": 12.345, "Power": 412, "ApparentPower": 420, "Factor": 0.98, "Voltage": 230, "Current": 1.8}
SENSOR = json.dumps({"StatusSNS": {"Time": "2026-03-01T10:00:00", "ENERGY": ENERGY}})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as place:
        return place.getsockname()[1]


class Broker:
    """A real mosquitto on loopback; `start` after `stop` returns at the same port."""

    def __init__(self, directory, *, password: str = ""):
        if MOSQUITTO is None:
            pytest.skip("mosquitto is not installed: apt install mosquitto")
        self.port = free_port()
        lines = [f"listener {self.port} 127.0.0.1", "persistence false", f"allow_anonymous {str(not password).lower()}"]
        if password:
            file = directory / "passwords"
            file.write_text("")
            file.chmod(0o600)
            subprocess.run(["mosquitto_passwd", "-b", str(file), "reader", password], check=True, capture_output=True)
            lines.append(f"password_file {file}")
        self._conf = directory / "mosquitto.conf"
        self._conf.write_text("\n".join([*lines, "user root", ""]))
        self._process = None
        self.start()

    def start(self):
        command = [MOSQUITTO, "-c", str(self._conf)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._is_up)

    def _is_up(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def stop(self):
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


def listener(port: int, **more) -> MqttListener:
    return MqttListener("127.0.0.1", port, (TOPIC,), label="plug1", **{"timeout_s": 60.0} | more)


@pytest.fixture
def broker(tmp_path):
    made = Broker(tmp_path)
    yield made
    made.stop()


@pytest.mark.system
def test_the_newest_message_and_its_age(broker):
    heard, other = listener(broker.port), listener(broker.port)
    try:
        assert heard.get_latest()[0] is None
        other.publish_message(TOPIC, "first")
        heard.wait_for_message(60)
        assert heard.get_latest()[0] == b"first"
        other.publish_message(TOPIC, "second")
        until(lambda: heard.get_latest()[0] == b"second")
        before = heard.get_latest()[1]
        assert 0 <= before < heard.get_latest()[1]
        assert heard.describe_broker().endswith("there")
    finally:
        for each in (heard, other, heard):
            each.close_connection()


@pytest.mark.system
def test_a_retained_message_is_of_an_unknown_time(broker):
    other = listener(broker.port)
    other._client.publish(TOPIC, "old", retain=True, qos=1).wait_for_publish(60)
    heard = listener(broker.port)
    other.publish_message(TOPIC, "new")
    heard.wait_for_message(60)
    assert heard.get_latest()[0] == b"new", "the old one came before, and does not count"
    heard.close_connection()
    other.close_connection()


@pytest.mark.system
def test_a_broker_that_dies_and_returns(broker):
    heard = listener(broker.port)
    try:
        broker.stop()
        until(lambda: heard.describe_broker().endswith("gone"))
        broker.start()
        until(lambda: heard.describe_broker().endswith("there"))
        other = listener(broker.port)

        def again():
            other.publish_message(TOPIC, "again")
            time.sleep(0.05)
            return heard.get_latest()[0] is not None

        until(again)
        other.close_connection()
    finally:
        heard.close_connection()


@pytest.mark.system
def test_wrong_passwords_names_and_ports_are_errors(tmp_path):
    if shutil.which("mosquitto_passwd") is None:
        pytest.skip("mosquitto_passwd is not installed: apt install mosquitto")
    broker = Broker(tmp_path, password="s3cret")
    try:
        listener(broker.port, user="reader", password="s3cret").close_connection()
        with raises_code("denied.login") as caught:
            listener(broker.port, user="reader", password="wr0ng")
        assert "wr0ng" not in str(caught.value)
    finally:
        broker.stop()
    with raises_code("read-failed.no-broker"):
        listener(broker.port)
    with raises_code("read-failed.no-broker"):
        MqttListener("no-such-host.invalid", 1883, (TOPIC,))
    with socket.create_server(("127.0.0.1", 0)) as silent, raises_code("read-failed.no-answer"):
        listener(silent.getsockname()[1], timeout_s=0.2)


@pytest.mark.system
def test_a_tasmota_that_publishes(broker):
    config = {"label": "plug1", "kind": "tasmota", "via": "mqtt", "address": f"127.0.0.1:{broker.port}"}
    config |= {"topic": "desk", "timeout_s": 60.0, "update_s": 60.0}
    device = MqttListener("127.0.0.1", broker.port, ("cmnd/desk/STATUS",), timeout_s=60.0)
    # As the firmware does: it answers a query, and publishes from time to time.
    device._client.on_message = lambda client, *_: client.publish("stat/desk/STATUS10", SENSOR)
    meter = plug.open_meter(config)
    (stream,) = meter.streams()
    assert stream.channels[-1].quantity == "age"
    assert stream.channels[0].update_s == 60.0
    assert meter.read(stream)[0] == 412
    device.publish_message(TOPIC, json.dumps({"ENERGY": {"Total": 12.4, "Power": 99}}))
    row = until(lambda: (row := meter.read(stream))[0] == 99 and row, "its message")
    assert row[:2] == (99.0, pytest.approx(12.4 * 3.6e6))
    assert row[-1] >= 0
    device.close_connection()
    meter.close()


class QuietListener:
    """Stand for a listener to a plug that published something a while ago, or nothing."""

    def __init__(self):
        self.latest = (None, 0.0)
        self.published = []

    def publish_message(self, *words):
        self.published.append(words)

    def wait_for_message(self, timeout_s):
        pass

    def describe_broker(self):
        return "the broker is there"

    def get_latest(self):
        return self.latest


def test_a_tasmota_that_stops_publishing_gives_no_reading():
    quiet = QuietListener()
    source = PublishingTasmota(quiet, "desk", 0, 0.5, 5.0)
    assert quiet.published == [("cmnd/desk/STATUS", "10")]
    with raises_code("read-failed.no-message"):
        source.read_plug()
    quiet.latest = (SENSOR.encode(), 1.4)
    reading, age_s = source.read_plug()
    assert (reading.values[0], age_s) == (412, 1.4)
    quiet.latest = (SENSOR.encode(), 1.6)  # three times that it should have published
    with raises_code("read-failed.no-message"):
        source.read_plug()
