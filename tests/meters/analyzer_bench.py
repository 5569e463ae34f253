"""Serve an analyzer in the test's process, and open meters and links to it."""

from __future__ import annotations

import time

from joulelab.meters import analyzer
from joulelab.transports import scpi

CHANNELS = [
    "power_w", "energy_j", "voltage_v", "current_a", "apparent_va", "power_factor", "frequency_hz", "age_s", "missed",
    "duplicate",
]  # fmt: skip


class Bench:
    def __init__(self, stack, served):
        self._stack = stack
        self.served = served

    def open(self, transport="vxi11", **config):
        entry = {k: v for k, v in self.served.entries["analyzer"].items() if k != "meter"}
        meter = analyzer.open_meter(entry | {"resource": self.served.facts[transport], "timeout_s": 5.0} | config)
        self._stack.callback(meter.close)
        return meter

    def link(self):
        link = scpi.open_link(scpi.parse_resource(self.served.facts["socket"], "test"), "test", 5.0)
        self._stack.callback(link.close)
        return link


def rows_of(meter, count):
    stream = meter.streams()[0]
    return [dict(zip(CHANNELS, meter.read(stream), strict=True)) for _ in range(count)]


def told(meter):
    return {event["what"]: event for event in meter.events()}


def now_s(truth):
    return (time.monotonic_ns() - truth.start_ns) / 1e9
