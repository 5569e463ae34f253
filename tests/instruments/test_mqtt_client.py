from __future__ import annotations

import shutil
import socket
import subprocess
import time

import pytest
from tests.waiting import until

from joulelab.core.errors import Denied, ReadFailed
from joulelab.instruments.plug.mqtt import MqttListener

pytestmark = pytest.mark.system

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
TOPIC = "tele/desk/SENSOR"


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


def test_hears_the_newest_message_and_how_old_it_is(broker):
    heard, other = listener(broker.port), listener(broker.port)
    try:
        assert heard.latest() is None
        other.ask(TOPIC, "first")
        heard.wait(60)
        assert heard.latest()[:2] == (TOPIC, b"first")
        other.ask(TOPIC, "second")
        until(lambda: heard.latest()[1] == b"second")
        before = heard.latest()[2]
        assert 0 <= before < heard.latest()[2]
        assert heard.state.endswith("there")
    finally:
        for each in (heard, other, heard):
            each.close()


def test_a_retained_message_is_of_an_unknown_time(broker):
    other = listener(broker.port)
    other._client.publish(TOPIC, "old", retain=True, qos=1).wait_for_publish(60)
    heard = listener(broker.port)
    other.ask(TOPIC, "new")
    heard.wait(60)
    assert heard.latest()[1] == b"new", "the old one came before, and does not count"
    heard.close()
    other.close()


def test_a_broker_that_dies_and_returns(broker):
    heard = listener(broker.port)
    try:
        broker.stop()
        until(lambda: heard.state.endswith("gone"))
        broker.start()
        until(lambda: heard.state.endswith("there"))
        other = listener(broker.port)

        def again():
            other.ask(TOPIC, "again")
            time.sleep(0.05)
            return heard.latest() is not None

        until(again)
        other.close()
    finally:
        heard.close()


def test_wrong_password_nobody_there_and_no_such_name(tmp_path):
    if shutil.which("mosquitto_passwd") is None:
        pytest.skip("mosquitto_passwd is not installed: apt install mosquitto")
    broker = Broker(tmp_path, password="s3cret")
    try:
        listener(broker.port, user="reader", password="s3cret").close()
        with pytest.raises(Denied, match="refuses us") as caught:
            listener(broker.port, user="reader", password="wr0ng")
        assert "wr0ng" not in str(caught.value)
    finally:
        broker.stop()
    with pytest.raises(ReadFailed, match="refused"):
        listener(broker.port)
    with pytest.raises(ReadFailed, match="not known"):
        MqttListener("no-such-host.invalid", 1883, (TOPIC,))
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ReadFailed, match="does not answer"):
        listener(silent.getsockname()[1], timeout_s=0.2)
