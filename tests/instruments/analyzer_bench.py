"""Serve an analyzer in the test's process, and open meters and links to it; or read one in virtual time."""

from __future__ import annotations

from tests.instruments.changing import change_flaws
from tests.waiting import until

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ReadFailed
from joulelab.instruments import analyzer
from joulelab.instruments.analyzer import client as scpi
from joulelab.instruments.analyzer.settings import read_settings
from joulelab.twin.servers._scpi import AnalyzerFlaws, Instrument

CHANNELS = [
    "power_w", "energy_j", "voltage_v", "current_a", "apparent_va", "power_factor", "frequency_hz", "age_s", "missed",
    "duplicate",
]  # fmt: skip


class Bench:
    def __init__(self, stack, served, flaws=None):
        self._stack = stack
        self.served = served
        self._flaws = flaws

    def change(self, **flaws):
        """Change flaws of the running server."""
        change_flaws(self._flaws, **flaws)

    def open(self, transport="vxi11", **config):
        entry = {k: v for k, v in self.served.entries["analyzer"].items() if k != "meter"}
        meter = analyzer.open_meter(entry | {"resource": self.served.facts[transport], "timeout_s": 60.0} | config)
        self._stack.callback(meter.close)
        return meter

    def link(self):
        link = scpi.open_link(scpi.parse_resource(self.served.facts["socket"], "test"), "test", 60.0)
        self._stack.callback(link.close)
        return link


def rows_of(meter, count):
    stream = meter.streams()[0]
    return [dict(zip(CHANNELS, meter.read(stream), strict=True)) for _ in range(count)]


def wait_for_energy(meter, above_j):
    """Read until the counter has moved."""
    return until(lambda: rows_of(meter, 1)[0]["energy_j"] > above_j, "the counter moves")


def list_warnings(meter):
    """Return the texts of the warnings since the last call, in one."""
    return "; ".join(event["what"] for event in meter.events() if event["event"] == "problem")


def now_s(truth):
    return (monotonic_ns() - truth.start_ns) / NS


class VirtualBench:
    """Read an instrument in virtual time: it passes in answers, waits and pauses, and when a test says so."""

    def __init__(self, truth, **flaws):
        self.truth = truth
        self.now_ns = truth.start_ns + NS
        self.instrument = Instrument(truth, AnalyzerFlaws(**flaws), now=lambda: self.now_ns)

    def pass_time(self, seconds):
        self.now_ns += round(seconds * NS)

    def open(self, link=None, **config):
        settings = read_settings({"resource": "GPIB0::1::INSTR", "timeout_s": 5.0} | config)
        cable = link or VirtualCable(self)
        return analyzer.Analyzer(settings, lambda: cable, now=lambda: self.now_ns, pause=self.pass_time)


class VirtualCable:
    """Be a link to the instrument of a virtual bench. An answer takes 0.4 ms, and `stall()` seconds after each unit."""

    def __init__(self, bench, *, spoil=lambda text: text):
        self._bench, self._spoil = bench, spoil
        self.stall = lambda: 0.0
        self.log = []

    def write(self, text):
        self.log.append(text)
        assert self._bench.instrument.execute_message(text) == ""

    def query(self, text):
        self.log.append(text)
        bench, answers = self._bench, []
        bench.pass_time(0.0004)
        for unit in text.split(";"):
            if unit.startswith(":COMM:WAIT") and bench.instrument.flaws.has_wait:
                wait_ns = bench.instrument._wait_ns("1")
                bench.pass_time(min(wait_ns / NS, 5.0))
                if wait_ns > 5 * NS:
                    raise ReadFailed(f"{text} failed", why="no answer")
            answers.append(bench.instrument.execute_message(unit))
            bench.pass_time(self.stall())
        answer = ";".join(filter(None, answers))
        if not answer:
            raise ReadFailed(f"{text} failed", why="no answer")
        return self._spoil(answer)

    def close(self):
        self.log.append("close")

    def abandon(self):
        self.log.append("abandon")
