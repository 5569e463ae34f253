"""The numbers of the simulated PDU, how they are told to snmpd, and what is refused before it is started."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.servers import pdu
from joulelab.twin.servers._pdu_trees import MAKERS, PduBench
from joulelab.twin.servers.pdu import Feeder
from joulelab.twin.truth import Truth


def test_counter_wraps_and_resets(tmp_path):
    wh = (1, 3, 6, 1, 4, 1, 1718, 4, 1, 8, 3, 1, 14, 1, 1, 1)
    flaws = replace(pdu.FLAWS, base_j=36_000.0, period_s=3600)  # as it was at the start, for an hour
    with Truth.create(tmp_path / "truth", Node(), profiles={"gpu": profile.constant(0.5)}) as truth:

        def shown(**changes):
            return MAKERS["sentry4"][0](PduBench(truth, replace(flaws, **changes)))[wh]()[1]

        assert shown() == 10
        assert shown(modulus_j=28_800.0) == 2
        assert shown(reset_at_s=0.0) == 0


def test_the_feeder_speaks_as_snmpd_expects():
    feeder = Feeder({(1, 3, 2): lambda: ("integer", 7), (1, 3, 10): lambda: ("string", "x")}, "unused")
    feeder._socket.close()
    assert feeder.answer_order(["PING"]) == ["PONG"]
    assert feeder.answer_order(["get"]) is None
    assert feeder.answer_order(["get", ".1.3.2"]) == [".1.3.2", "integer", "7"]
    assert feeder.answer_order(["getnext", ".1.3.2"]) == [".1.3.10", "string", "x"], "names are in numeric order"
    assert feeder.answer_order(["getnext", ".1.3.10"]) == ["NONE"]
    assert feeder.answer_order(["get", ".1.3.3"]) == ["NONE"]
    assert feeder.answer_order(["set", ".1.3.2", "integer 8"]) == ["not-writable"]


def test_wrong_flaws_and_a_missing_snmpd_are_told(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="raritan"):
        pdu.PduFlaws(vendor="raritn")
    with pytest.raises(ConfigError):
        pdu.PduFlaws(login="v1")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with (
        Truth.create(tmp_path / "truth", Node()) as truth,
        pytest.raises(MissingDependency, match="apt install snmpd"),
        pdu.serve(truth, tmp_path, pdu.FLAWS),
    ):
        pass
