"""Export by OTLP: what a collector receives, which variables switch it on, and that it is never in the way."""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.entry import JOULELAB
from tests.integrations.otlp_receiver import Receiver, read_attributes
from tests.report.synthetic import epochs, make_run
from tests.rows import every_row
from tests.waiting import until

from joulelab.agent.collect import Seen
from joulelab.agent.watched import list_hardware
from joulelab.analysis.live_energy import LiveFigures, LiveScope
from joulelab.analysis.live_state import LiveState
from joulelab.analysis.results_file import load_result
from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.core.quantity import Quantity
from joulelab.core.spec import Spec, Stream
from joulelab.integrations import opentelemetry_export
from joulelab.integrations.opentelemetry_export import (
    ExportSettings,
    HardwareReading,
    MetricPoints,
    PeriodicExport,
    RunExport,
    clean_reason,
    list_result_readings,
    make_resource,
    make_spans,
    open_exporter,
    read_export_settings,
)

if TYPE_CHECKING:
    from pathlib import Path

URL, HTTP = "http://127.0.0.1:4318", "http/protobuf"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@every_row(
    "environ, settings",
    [
        ({}, None),
        ({"OTEL_SERVICE_NAME": "x"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, ExportSettings(HTTP, HTTP)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_SDK_DISABLED": "True"}, None),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": URL}, ExportSettings(HTTP, "")),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, ExportSettings("", HTTP)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_METRICS_EXPORTER": "none"}, ExportSettings("", HTTP)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_TRACES_EXPORTER": "console"}, ExportSettings(HTTP, "")),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
             "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": HTTP, "OTEL_METRIC_EXPORT_INTERVAL": "5000",
             "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "DELTA"},
            ExportSettings("grpc", HTTP, 5.0, is_delta=True),
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_METRIC_EXPORT_INTERVAL": "soon"}, ExportSettings(HTTP, HTTP)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_METRIC_EXPORT_INTERVAL": "-1"}, ExportSettings(HTTP, HTTP)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_METRICS_EXPORTER": ""}, ExportSettings(HTTP, HTTP)),
    ],
)  # fmt: skip
def test_the_standard_variables_switch_it_on(environ: dict[str, str], settings: ExportSettings | None) -> None:
    assert read_export_settings(environ) == settings


def test_what_is_missing_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(MissingDependency) as missing:
        open_exporter(HTTP, "metric")
    assert missing.value.next == "pip install 'joulelab[otel]'"
    with pytest.raises(ConfigError) as wrong:
        open_exporter("http/json", "trace")
    assert wrong.value.code == "config.otlp-protocol"


def list_values(data: Any, name: str) -> list[tuple[float, int, int]]:
    (resource,) = data.resource_metrics
    (metric,) = [metric for scope in resource.scope_metrics for metric in scope.metrics if metric.name == name]
    return [(p.value, p.start_time_unix_nano, p.time_unix_nano) for p in metric.data.data_points]


@pytest.mark.parametrize("is_delta", [False, True])
def test_energies_never_fall_and_count_from_the_start(is_delta: bool) -> None:
    points = MetricPoints(100, is_delta=is_delta)
    found = []
    for at_ns, energy_j in ((200, 5.0), (300, 9.0), (400, 8.999), (500, 12.0)):
        data = points.make_metrics([HardwareReading("h", "gpu:0", None, "", energy_j, 80.0)], at_ns, lambda _host: None)
        found += list_values(data, "hw.energy")
        points.note_sent()
        assert list_values(data, "hw.power") == [(80.0, 100, at_ns)]
    whole = [(5.0, 100, 200), (9.0, 100, 300), (9.0, 100, 400), (12.0, 100, 500)]
    assert found == ([(5.0, 100, 200), (4.0, 200, 300), (0.0, 300, 400), (3.0, 400, 500)] if is_delta else whole)
    nothing = points.make_metrics(
        [HardwareReading("h", "gpu:0", None, "", None, float("nan"))], 600, lambda _host: None
    )
    assert list_values(nothing, "hw.energy") == []


class FakeExporter:
    """Stand in for an exporter: keep the energies of each export, and answer as `answers` do, then with success."""

    def __init__(self, *answers: str) -> None:
        self.sent: list[tuple[str, tuple[float, int, int]]] = []
        self.is_shut_down = False
        self._answers = list(answers)

    def export(self, data: Any) -> Any:
        answer = self._answers.pop(0) if self._answers else "SUCCESS"
        self.sent += [(answer, point) for point in list_values(data, "hw.energy")]
        return SimpleNamespace(name=answer)

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        assert timeout_millis == 0  # it is called in the way of the workload
        self.is_shut_down = True


class Clock:
    """Stand in for the time and the event of an export: pauses pass at once, until `end_s`."""

    def __init__(self, end_s: float) -> None:
        self.now_s = self.cpu_s = 0.0
        self._end_s = end_s

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return self.now_s > self._end_s

    def is_set(self) -> bool:
        return self.now_s > self._end_s

    def work(self, cpu_s: float, wall_s: float) -> None:
        self.cpu_s += cpu_s
        self.now_s += wall_s


def export_with(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, exporter: FakeExporter, settings: ExportSettings, costs: Any
) -> tuple[list[float], PeriodicExport]:
    """Run the loop of an export of 100 W in virtual time; return the times of its readings."""
    times: list[float] = []

    def read() -> tuple[list[HardwareReading], int]:
        times.append(clock.now_s)
        clock.work(*costs)
        return [HardwareReading("h", "gpu:0", None, "", 100.0 * times[-1])], round(times[-1] * NS)

    monkeypatch.setattr(opentelemetry_export, "open_exporter", lambda *_: exporter)
    fake = SimpleNamespace(monotonic=lambda: clock.now_s, thread_time=lambda: clock.cpu_s)
    monkeypatch.setattr(opentelemetry_export, "time", fake)
    points = MetricPoints(0, is_delta=settings.is_delta)
    export = PeriodicExport(settings, points, read, lambda _host: None)
    monkeypatch.setattr(export, "_over", clock)
    export._export_on()
    return times, export


def test_a_delta_that_was_not_received_is_part_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = FakeExporter("SUCCESS", "FAILURE", "FAILURE")
    settings = ExportSettings(HTTP, "", 10.0, is_delta=True)
    _, export = export_with(monkeypatch, Clock(50.0), exporter, settings, (0.0, 0.0))
    assert exporter.sent == [
        ("SUCCESS", (1000.0, 0, 10 * NS)),
        ("FAILURE", (1000.0, 10 * NS, 20 * NS)),
        ("FAILURE", (2000.0, 10 * NS, 30 * NS)),
        ("SUCCESS", (3000.0, 10 * NS, 40 * NS)),
        ("SUCCESS", (1000.0, 40 * NS, 50 * NS)),
    ]
    assert export.problem


@every_row(
    ("costs", "every_s"),
    [
        ((0.06, 0.1), 1.0),  # eight GPUs
        ((0.06, 3.0), 3.06),  # a collector that answers slowly
        ((1.5, 1.5), 3.0),  # half of one core at most
    ],
)
def test_an_interval_is_kept_if_exports_can_follow(costs: tuple[float, float], every_s: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        times, _ = export_with(patch, Clock(20.0), FakeExporter(), ExportSettings(HTTP, "", 1.0), costs)
    assert [b - a for a, b in pairwise(times)] == pytest.approx([every_s] * (len(times) - 1))
    assert len(times) > 5


@pytest.mark.system
@pytest.mark.parametrize("is_delta", [False, True])
def test_the_last_export_follows_the_live_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_delta: bool) -> None:
    """A live export is under way when the command ends: its answer comes, or, for a delta, it never comes."""
    asked, answer = threading.Event(), threading.Event()
    order: list[str] = []

    class Slow(FakeExporter):
        def export(self, data: Any) -> Any:
            asked.set()
            answer.wait(300)
            order.append("live")
            return super().export(data)

    class Last(FakeExporter):
        def export(self, data: Any) -> Any:
            order.append("last")
            return super().export(data)

    slow, last = Slow(), Last()
    monkeypatch.setattr(opentelemetry_export, "open_exporter", lambda *words: last if len(words) == 3 else slow)
    monkeypatch.setattr(opentelemetry_export, "FLUSH_S", 0.1 if is_delta else 300.0)
    display: Any = SimpleNamespace(begin=lambda _run: None, end=lambda: None)
    warnings: list[str] = []
    run = make_run(tmp_path)
    export = RunExport(ExportSettings(HTTP, "", 0.001, is_delta=is_delta), display, {}, warnings.append)
    reading = HardwareReading("h", "gpu:0", None, "", 1.0)
    monkeypatch.setattr(export, "_read_live", lambda: ([reading], 7))
    export.begin(run)
    assert asked.wait(300)
    export.end()
    assert slow.is_shut_down  # it is not repeated later
    outcome: Any = SimpleNamespace(result=load_result(run))
    with export.send_result(outcome):
        if not is_delta:
            answer.set()
    if is_delta:
        until(lambda: bool(warnings), "the note")
        assert order == []  # a difference that may have been received is not sent again
        assert "no answer of the collector" in warnings[0]
        answer.set()
    else:
        assert order == ["live", "last"]
        assert warnings == []


def test_a_scope_without_readings_has_no_live_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)
    scopes = tuple(LiveScope("h", f"gpu:{k}", None, "", Quantity(5.0), is_silent=k == 1) for k in range(2))
    figures = LiveFigures(0, 9, {}, scopes=scopes, scope_w={"gpu:0": 3.0, "gpu:1": float("nan")})
    display: Any = None
    export = RunExport(ExportSettings(HTTP, ""), display, {}, lambda _text: None)
    monkeypatch.setattr(export, "_run", run)
    monkeypatch.setattr(export, "_host", SimpleNamespace(read=lambda: figures))
    found = export._read_live()
    assert found is not None
    assert [(reading.scope, reading.energy_j, reading.power_w) for reading in found[0]] == [("gpu:0", 5.0, 3.0)]


def test_attributes_follow_the_conventions_and_those_of_the_user_win(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [HardwareReading("h", *each).attributes for each in (("gpu:1", None, "H100"), ("rack", None, ""))]
    assert found == [
        {"hw.id": "gpu:1", "hw.type": "gpu", "hw.parent": "node.dc", "hw.name": "H100"},
        {"hw.id": "rack", "hw.type": "rack"},
    ]
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,host.name=other")
    made = make_resource("node1", {"process.pid": 7}).attributes
    assert (made["service.name"], made["host.name"], made["process.pid"]) == ("joulelab", "other", 7)
    assert made["deployment.environment"] == "test"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "training")
    assert make_resource("node1", {}).attributes["service.name"] == "training"


def test_a_sum_by_type_counts_nothing_twice() -> None:
    scopes = ("gpu:0", "cpu:0", "core:0", "uncore:0", "dram:0", "psu:1", "psu.dc:1", "node.dc", "node.ac", "rack")
    types = [HardwareReading("h", scope, None, "").attributes["hw.type"] for scope in scopes]
    assert len(set(types)) == len(scopes)
    assert {"gpu", "cpu", "memory", "power_supply", "enclosure"} < set(types)


def test_reasons_of_exporters_show_no_secrets() -> None:
    environ = {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=k1234,authorization=Bearer%20abcd99%0aX"}
    found = clean_reason("bad value 'Bearer abcd99\\nX' of ftp://me:word1@127.0.0.1:1/v1/traces, k1234", environ)
    assert not any(secret in found for secret in ("abcd99", "word1", "k1234"))
    assert "127.0.0.1:1/v1/traces" in found
    assert clean_reason("code: 401, reason: Unauthorized", environ) == "code: 401, reason: Unauthorized"
    assert "lonely5" not in clean_reason("wrong: lonely5", {"OTEL_EXPORTER_OTLP_METRICS_HEADERS": "lonely5"})


@pytest.mark.system
def test_a_redirect_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A collector behind a login page: the exporters themselves take this answer for success."""
    requests = importlib.import_module("requests")
    asked: list[str] = []

    def redirect(_adapter: Any, request: Any, **_: Any) -> Any:
        asked.append(request.url)
        answer = requests.Response()
        answer.status_code, answer.url, answer.request = 302, request.url, request
        answer.raw = io.BytesIO()
        answer.headers["Location"] = "https://login.example/sso?state=secret1"
        return answer

    monkeypatch.setattr("requests.adapters.HTTPAdapter.send", redirect)
    monkeypatch.setattr(opentelemetry_export, "FLUSH_S", 300.0)  # a busy machine
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", URL)
    warnings: list[str] = []
    outcome: Any = SimpleNamespace(result=load_result(make_run(tmp_path)))
    display: Any = None
    with RunExport(ExportSettings(HTTP, HTTP), display, {}, warnings.append).send_result(outcome):
        pass
    assert asked == [f"{URL}/v1/metrics", f"{URL}/v1/traces"]
    (text,) = warnings
    assert "HTTP 302, a redirect to https://login.example/sso; check OTEL_EXPORTER_OTLP_ENDPOINT" in text


def test_phases_are_spans_inside_an_open_trace(tmp_path: Path) -> None:
    result = load_result(make_run(tmp_path, marks=epochs(2, 4.0), end={"exit_code": 3}))
    environ = {"TRACEPARENT": f"00-{TRACE}-{PARENT}-01"}
    spans = {span.name: span for span in make_spans(result, 1000, make_resource("node1", {}), environ)}
    whole, first = spans["joulelab run"], spans["epoch 1"]
    assert list(spans) == ["train", "epoch 1", "epoch 2", "joulelab run"]
    phase = next(phase for phase in result.phases if phase.title == "epoch 1")
    assert f"{whole.context.trace_id:032x}" == TRACE
    assert f"{whole.parent.span_id:016x}" == PARENT
    assert spans["train"].parent.span_id == whole.context.span_id
    assert first.parent.span_id == spans["train"].context.span_id
    assert (whole.start_time, whole.end_time) == (result.start_ns + 1000, result.end_ns + 1000)
    assert whole.status.description == "exit 3"
    assert result.energy is not None
    assert result.energy.expanded is not None
    assert whole.attributes["joulelab.energy"] == result.energy.value
    assert whole.attributes["joulelab.energy.high"] == result.energy.value + result.energy.expanded
    assert first.attributes["joulelab.energy"] == phase.energy["measured"].value
    assert first.attributes["joulelab.work.samples"] == phase.work["samples"]
    assert first.end_time - first.start_time == round(phase.duration_s * NS)
    readings = {r.scope: r for r in list_result_readings(result, with_power=True)}
    assert readings["gpu:0"].energy_j == result.scopes[0].energy.value
    assert readings["gpu:0"].power_w == pytest.approx(300.0, rel=0.01)


def test_the_agent_keeps_to_one_meter_of_a_scope() -> None:
    state = LiveState("h")
    watts = Spec("power_w", "power", "W", "power", 0.1)
    guessed = Spec("power_w", "power", "W", "power", 0.1, estimate=True)
    counted = Spec("energy_j", "energy", "J", "counter", 0.1)
    kinds = {"a guess": guessed, "plug": watts, "nvml": counted}
    streams = {m: state.add_stream(m, Stream("s", "t", "gpu:0", 1.0, (spec,), model=m)) for m, spec in kinds.items()}
    job = state.add_stream("slurm", Stream("j", "t", "job", 1.0, (counted,)))
    chosen: dict[str, str] = {}

    def read(second: int, *meters: str) -> list[tuple[str, str, float | None]]:
        for meter in meters:
            streams[meter].add(second * NS, second * NS, [100.0 * (second if meter == "nvml" else 1)])
        job.add(second * NS, second * NS, [5.0 * second])
        seen = Seen(second * NS, list(state.streams.values()), [], [])
        return [(r.scope, r.model, r.energy_j) for r in list_hardware(seen, "h", chosen)]

    assert read(1, "a guess") == [("gpu:0", "a guess", 0.0)]  # the others were never read
    chosen.clear()
    assert read(2, "a guess", "plug", "nvml") == [("gpu:0", "nvml", 0.0)]
    assert read(3, "a guess", "plug") == [("gpu:0", "nvml", 0.0)]
    assert read(4, "nvml") == [("gpu:0", "nvml", 200.0)]


METER = """
from joulelab.core.spec import Accuracy, Spec, Stream
class Steady:
    def streams(self):
        accuracy = Accuracy(gain=0.01, source="datasheet")
        channel = Spec("power_w", "power", "W", "power", update_s=0.05, accuracy=accuracy)
        return [Stream(f"gpu:{k}", "power", f"gpu:{k}", 0.05, (channel,), model="Steady") for k in range(2)]
    def read(self, stream): return (1000.0,)
    def close(self): pass
def open_meter(config): return Steady()
"""
# Two phases; the first lasts until points of the live run were received.
WORK = """
import joulelab, pathlib, sys, time
with joulelab.phase("first"):
    while not pathlib.Path("go").exists(): time.sleep(0.02)
with joulelab.phase("second"):
    time.sleep(0.2)
sys.exit(3)
"""


def make_environ(url: str, **more: str) -> dict[str, str]:
    return {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_METRIC_EXPORT_INTERVAL": "300", **more}


@pytest.mark.system
def test_a_collector_gets_the_energy_of_a_run_and_its_phases(tmp_path: Path) -> None:
    (tmp_path / "steady.py").write_text(METER)
    (tmp_path / "work.py").write_text(WORK)
    with Receiver() as receiver:
        environ = make_environ(
            receiver.url, TRACEPARENT=f"00-{TRACE}-{PARENT}-01", OTEL_EXPORTER_OTLP_HEADERS="api-key=secret"
        )
        words = ["run", "--meter", str(tmp_path / "steady.py"), "--runs", "runs", "--", sys.executable, "work.py"]
        process = subprocess.Popen([*JOULELAB, *words], cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True)
        until(lambda: len(receiver.list_points("hw.energy")) >= 4, "points of the live run")
        (tmp_path / "go").touch()
        _, told = process.communicate(timeout=300)
    assert process.returncode == 3
    assert "OTLP" not in told
    (run,) = (tmp_path / "runs").iterdir()
    result = load_result(run)
    for number in range(2):
        scope = f"gpu:{number}"
        points = [p for at, p in receiver.list_points("hw.energy") if at["hw.id"] == scope]
        values = [point.as_double for point in points]
        assert values == sorted(values)
        assert len(values) >= 3
        assert values[-1] == pytest.approx(result.scopes[number].energy.value, rel=1e-9)
        assert len({point.start_time_unix_nano for point in points}) == 1
        assert points[-1].time_unix_nano - points[-1].start_time_unix_nano == pytest.approx(
            result.end_ns - result.start_ns, abs=5e8
        )
    attributes, power = receiver.list_points("hw.power")[0]
    assert attributes == {"hw.id": "gpu:0", "hw.type": "gpu", "hw.parent": "node.dc", "hw.name": "Steady"}
    assert power.as_double == pytest.approx(1000.0)
    about = read_attributes(receiver.metrics[-1].resource_metrics[0].resource.attributes)
    assert about["host.name"] == result.host
    assert about["service.name"] == "joulelab"
    assert about["process.command_args"] == [sys.executable, "work.py"]
    assert about["process.pid"] > 0
    assert about["joulelab.run.id"] == run.name
    assert receiver.headers[0]["api-key"] == "secret"
    spans = receiver.list_spans()
    assert set(spans) == {"joulelab run", "first", "second"}
    assert all(span.trace_id.hex() == TRACE for span in spans.values())
    assert spans["joulelab run"].parent_span_id.hex() == PARENT
    energy = read_attributes(spans["second"].attributes)
    assert 0 < energy["joulelab.energy.low"] < energy["joulelab.energy"] < energy["joulelab.energy.high"]


@pytest.mark.system
def test_a_collector_that_is_gone_or_silent_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "steady.py").write_text(METER)
    words = ["run", "--meter", str(tmp_path / "steady.py"), "--runs", "runs", "--", "sh", "-c", "sleep 0.3; exit 5"]

    def run(url: str) -> str:
        done = subprocess.run(
            [*JOULELAB, *words], cwd=tmp_path, env=make_environ(url), capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 5
        assert "energy " in done.stderr
        return done.stderr

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        told = run(f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert told.count("by OTLP") == 1
    assert "Traceback" not in told
    with Receiver(answers=False) as silent:
        told = run(silent.url)
        assert silent.asked.is_set()
    assert "energy is not exported by OTLP (no answer of the collector within 1.5 s; check OTEL_EXPORTER_" in " ".join(
        told.split()
    )


@pytest.mark.system
def test_the_agent_exports_the_same(tmp_path: Path) -> None:
    (tmp_path / "steady.py").write_text(METER)
    with Receiver() as receiver:
        words = ["agent", "--listen", "127.0.0.1:0", "--meter", str(tmp_path / "steady.py"), "--no-jobs", "--every"]
        agent = subprocess.Popen(
            [*JOULELAB, *words, "100ms", "--json"], cwd=tmp_path, env=make_environ(receiver.url),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            until(lambda: len(receiver.list_points("hw.energy")) >= 6, "points of the agent")
        finally:
            agent.send_signal(signal.SIGTERM)
            out, told = agent.communicate(timeout=60)
    assert agent.returncode == 0
    assert json.loads(out)["pid"] == agent.pid
    assert "OTLP" not in told
    points = [point.as_double for at, point in receiver.list_points("hw.energy") if at["hw.id"] == "gpu:1"]
    assert points == sorted(points)
    assert points[-1] > points[0] >= 0
    about = read_attributes(receiver.metrics[0].resource_metrics[0].resource.attributes)
    assert about["service.name"] == "joulelab-agent"
