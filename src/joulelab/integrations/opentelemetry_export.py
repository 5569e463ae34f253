"""Export energy and power by OTLP through the official exporters; the standard OTEL_* variables alone switch it on.

Metrics follow the hardware semantic conventions (1.43, status: development): `hw.energy` in J and `hw.power` in W with
`hw.id`, `hw.type`, `hw.parent` and `hw.name`; the host is an attribute of the resource. The phases of a run are spans
with their energy and its interval as attributes; TRACEPARENT links them to an open trace.

Points are made here instead of by the SDK's instruments, because an energy has the time of its readings: a counter
that begins with the workload, and at its end equals the energy of the run. Nothing here waits for a collector in the
way of the workload: exporters work in threads of their own, and the last export has FLUSH_S. The last point of a run
follows all others: it is sent when the live export under way has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from importlib import import_module
from math import isfinite
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns, read_utc_ns
from joulelab.core.errors import ConfigError, JoulelabError, MissingDependency
from joulelab.core.scope import find_family, find_parent
from joulelab.core.text import escape_unprintable
from joulelab.core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from opentelemetry.context import Context

    from joulelab.analysis.live_energy import LiveHost
    from joulelab.analysis.result import Result
    from joulelab.core.quantity import Quantity
    from joulelab.run.run_command import LiveDisplay, RunOutcome

PACKAGES = {
    "http/protobuf": ("opentelemetry.exporter.otlp.proto.http", "pip install 'joulelab[otel]'"),
    "grpc": ("opentelemetry.exporter.otlp.proto.grpc", "pip install opentelemetry-exporter-otlp-proto-grpc"),
}
# Modules that take half a second to import; loaded while the workload runs.
MODULES = (
    "opentelemetry.sdk.resources",
    "opentelemetry.sdk.metrics.export",
    "opentelemetry.sdk.trace",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "joulelab.analysis.live_energy",
)
# One level for each type of the conventions, so that a sum by type counts nothing twice. For all other families (the
# cores of a CPU, the output of a supply, an outlet, a rack) the family is the type.
HARDWARE_TYPES = {"gpu": "gpu", "cpu": "cpu", "dram": "memory", "psu": "power_supply", "node.ac": "enclosure"}
FLUSH_S = 1.5  # for the last export: a collector that does not answer delays the end by this time
USUAL_INTERVAL_S, LEAST_INTERVAL_S = 60.0, 0.2
MOST_SPANS = 2000
CHECK = "check OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS"
NOT_EXPORTED = "energy is not exported by OTLP"
MOST_OF_REASON = 160  # letters of an exporter's message
LEAST_SECRET = 4  # letters of a word of a header: shorter ones occur everywhere
ScopeKey = tuple[str, str]  # host, scope
CREDENTIALS = "_CREDENTIAL_PROVIDER"  # ends the variables by which the exporters get a session of their own


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Hold what the variables ask for: the protocol of metrics and of spans (empty: none), and the interval in s."""

    metrics: str
    traces: str
    interval_s: float = USUAL_INTERVAL_S
    is_delta: bool = False


def read_export_settings(environ: Mapping[str, str]) -> ExportSettings | None:
    """Return the settings of the standard variables, None if they ask for no export by OTLP."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    protocols = []
    for signal in ("METRICS", "TRACES"):
        chosen = [word.strip() for word in (environ.get(f"OTEL_{signal}_EXPORTER") or "otlp").split(",")]
        names = (f"OTEL_EXPORTER_OTLP_{signal}_", "OTEL_EXPORTER_OTLP_")
        is_wanted = "otlp" in chosen and any(environ.get(f"{name}ENDPOINT") for name in names)
        given = (environ.get(f"{name}PROTOCOL", "").strip() for name in names)
        protocols.append(next(filter(None, given), "http/protobuf") if is_wanted else "")
    if not any(protocols):
        return None
    try:
        interval_s = float(environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")) / 1000
    except ValueError:
        interval_s = USUAL_INTERVAL_S
    interval_s = max(interval_s, LEAST_INTERVAL_S) if 0 < interval_s < float("inf") else USUAL_INTERVAL_S
    preferred = environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "").strip().lower()
    return ExportSettings(protocols[0], protocols[1], interval_s, preferred == "delta")


def open_exporter(protocol: str, signal: str, timeout_s: float | None = None) -> Any:
    """Open the official exporter of a signal (`metric`, `trace`), which reads its own variables.

    Raises ConfigError, MissingDependency.
    """
    if protocol not in PACKAGES:
        then = f"set OTEL_EXPORTER_OTLP_PROTOCOL to {' or '.join(PACKAGES)}"
        raise ConfigError(f"OTLP has no protocol {protocol!r} here", next=then, code="config.otlp-protocol")
    package, then = PACKAGES[protocol]
    given: dict[str, Any] = {} if timeout_s is None else {"timeout": timeout_s}
    try:
        module = import_module(f"{package}.{signal}_exporter")
        if protocol == "http/protobuf" and not any(name.endswith(CREDENTIALS) for name in os.environ):
            given["session"] = open_session()
    except ImportError as error:
        raise MissingDependency(NOT_EXPORTED, why=f"a package is missing: {error.name}", next=then) from None
    made = module.OTLPMetricExporter if signal == "metric" else module.OTLPSpanExporter
    return made(**given)


def open_session() -> Any:
    """Open a session of `requests` in which a redirect is a failure: the exporters take one for success."""
    requests = import_module("requests")  # a package of the exporters, not one of ours

    def refuse_redirect(answer: Any, *_: Any, **__: Any) -> None:
        if 300 <= answer.status_code < 400:
            answer.close()
            to = answer.headers.get("Location", "").partition("?")[0]  # the rest may hold secrets
            raise requests.RequestException(f"HTTP {answer.status_code}, a redirect{f' to {to}' if to else ''}")

    session = requests.Session()
    session.hooks["response"].append(refuse_redirect)
    return session


@dataclass(frozen=True, slots=True)
class HardwareReading:
    """Hold energy since the start (J) and power now (W) of one scope; None or NaN where it is not known."""

    host: str
    scope: str
    parent: str | None
    model: str
    energy_j: float | None = None
    power_w: float | None = None

    @property
    def attributes(self) -> dict[str, str]:
        """Return the attributes that the conventions ask for."""
        family, parent = find_family(self.scope), find_parent(self.scope, self.parent)
        found = {"hw.id": self.scope, "hw.type": HARDWARE_TYPES.get(family, family)}
        found |= {"hw.parent": parent} if parent else {}
        return found | ({"hw.name": escape_unprintable(self.model)} if self.model else {})


class MetricPoints:
    """Make the points of metrics; an energy never falls, and is counted from the start (UTC, ns).

    A delta counts since the last export that succeeded: call `note_sent` after each.
    """

    def __init__(self, start_ns: int, *, is_delta: bool = False) -> None:
        self.made = 0
        self._start_ns, self._is_delta = start_ns, is_delta
        self._highest: dict[ScopeKey, float] = {}
        self._sent: dict[ScopeKey, tuple[float, int]] = {}
        self._unsent: dict[ScopeKey, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def make_metrics(self, readings: Iterable[HardwareReading], at_ns: int, describe: Callable[[str], Any]) -> Any:
        """Return the SDK's `MetricsData` for a time (UTC, ns); `describe` returns the resource of a host."""
        from opentelemetry.sdk.metrics.export import (
            AggregationTemporality,
            Gauge,
            Metric,
            MetricsData,
            NumberDataPoint,
            ResourceMetrics,
            ScopeMetrics,
            Sum,
        )
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        kind = AggregationTemporality.DELTA if self._is_delta else AggregationTemporality.CUMULATIVE
        hosts: dict[str, tuple[list[Any], list[Any]]] = {}
        with self._lock:
            self.made += 1
            self._unsent = {}
            for reading in readings:
                energies, powers = hosts.setdefault(reading.host, ([], []))
                if reading.energy_j is not None and isfinite(reading.energy_j):
                    value, since_ns = self._count_energy((reading.host, reading.scope), reading.energy_j, at_ns)
                    energies.append(NumberDataPoint(reading.attributes, since_ns, at_ns, value))
                if reading.power_w is not None and isfinite(reading.power_w):
                    powers.append(NumberDataPoint(reading.attributes, self._start_ns, at_ns, reading.power_w))
        found = []
        for host, (energies, powers) in hosts.items():
            metrics = [Metric("hw.energy", "Energy consumed by the component.", "J", Sum(energies, kind, True))]  # noqa: FBT003 - the SDK's order
            metrics += [Metric("hw.power", "Power of the component now.", "W", Gauge(powers))] if powers else []
            scope = ScopeMetrics(InstrumentationScope("joulelab", __version__), metrics, "")
            found.append(ResourceMetrics(describe(host), [scope], ""))
        return MetricsData(found)

    def note_sent(self) -> None:
        """Note that the points made last were received: deltas count from them on."""
        with self._lock:
            self._sent |= self._unsent
            self._unsent = {}

    def _count_energy(self, key: ScopeKey, energy_j: float, at_ns: int) -> tuple[float, int]:
        """Return the value of a counter and the time since which it counts."""
        energy_j = self._highest[key] = max(energy_j, self._highest.get(key, 0.0))
        self._unsent[key] = energy_j, at_ns
        sent_j, sent_ns = self._sent.get(key, (0.0, self._start_ns))
        return (energy_j - sent_j, sent_ns) if self._is_delta else (energy_j, self._start_ns)


def make_resource(host: str, attributes: Mapping[str, Any]) -> Any:
    """Return a resource with our attributes, those of the host, and OTEL_RESOURCE_ATTRIBUTES, which wins."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    uname = os.uname()
    own = {"service.name": "joulelab", "service.version": __version__, "host.name": host, "os.type": "linux"}
    own |= {"host.arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(uname.machine, uname.machine)}
    return Resource.create({**own, **attributes}).merge(OTELResourceDetector().detect())


class _ExporterLog(logging.Handler):
    """Keep the last message of the exporters instead of printing it between the lines of the workload."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reason = ""

    def __enter__(self) -> _ExporterLog:
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("opentelemetry").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.reason = clean_reason(record.getMessage(), os.environ)


def word_failure(error: Exception) -> str:
    """Return the text of an error; that of another library without secrets."""
    if isinstance(error, JoulelabError):
        return str(error)
    return clean_reason(str(error) or type(error).__name__, os.environ)


def clean_reason(text: str, environ: Mapping[str, str]) -> str:
    """Return an exporter's message without the secrets of headers and addresses, and not too long."""
    from urllib.parse import unquote

    from joulelab.store.redact import HIDDEN, clean_text

    for name in ("", "METRICS_", "TRACES_"):
        for header in environ.get(f"OTEL_EXPORTER_OTLP_{name}HEADERS", "").split(","):
            # Messages quote a wrong header, with its line ends escaped: so its words are hidden, not the whole.
            for word in unquote(header.partition("=")[2] or header).split():
                text = text.replace(word, HIDDEN) if len(word) >= LEAST_SECRET else text
    text = escape_unprintable(clean_text(text))
    return text if len(text) <= MOST_OF_REASON else f"{text[:MOST_OF_REASON]}..."


class PeriodicExport:
    """Export what `read` returns, readings and their time (UTC, ns), each interval in a thread of its own.

    `problem` is the reason of the first failure; `tell` gets the first failure of each outage.
    """

    def __init__(
        self,
        settings: ExportSettings,
        points: MetricPoints,
        read: Callable[[], tuple[Sequence[HardwareReading], int] | None],
        describe: Callable[[str], Any],
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.problem = ""
        self._settings, self._points, self._read, self._describe = settings, points, read, describe
        self._tell = tell
        self._is_failing = self._is_last_wanted = False
        self._exporter: Any = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._export_on, name="joulelab-otlp", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        if self._settings.metrics:
            self._thread.start()

    def stop(self) -> None:
        """Begin no further export, and repeat none that fails; does not wait for one that is under way."""
        if self._over.is_set():
            return
        self._over.set()
        if self._exporter is not None:
            with contextlib.suppress(Exception):  # nothing here may reach the workload
                self._exporter.shutdown(timeout_millis=0)

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait for the export under way after `stop`; return whether it has ended."""
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Export a last time, within FLUSH_S: for a source that has no other end."""
        self._is_last_wanted = True
        self.stop()
        if self._settings.metrics and self._thread.is_alive():
            self._thread.join(FLUSH_S)

    def _export_on(self) -> None:
        pause_s = interval_s = self._settings.interval_s
        try:
            with _ExporterLog() as log:
                while not self._over.wait(pause_s):
                    began_s, cpu_s = time.monotonic(), time.thread_time()
                    if self._exporter is None:  # opened late: to import it takes half a second
                        self._exporter = open_exporter(self._settings.metrics, "metric")
                    self._export(self._exporter, log)
                    # The interval is kept if exports take less time; else half of one core is the most that they use.
                    pause_s = max(interval_s - (time.monotonic() - began_s), time.thread_time() - cpu_s)
                if self._is_last_wanted:
                    last = open_exporter(self._settings.metrics, "metric", FLUSH_S)
                    self._export(last, log, is_last=True)
        except Exception as error:  # noqa: BLE001 - nothing here may reach the workload
            self._note_failure(word_failure(error))

    def _export(self, exporter: Any, log: _ExporterLog, *, is_last: bool = False) -> None:
        found = self._read()
        if found is None or not found[0] or (self._over.is_set() and not is_last):
            return
        log.reason = ""
        try:
            is_sent = exporter.export(self._points.make_metrics(*found, self._describe)).name == "SUCCESS"
        except Exception as error:  # noqa: BLE001 - the next export may succeed
            is_sent, log.reason = False, word_failure(error)
        if is_sent:
            self._is_failing = False
            self._points.note_sent()
        elif is_last or not self._over.is_set():  # one that was cut short at the end is part of the last export
            self._note_failure(log.reason or "the collector refused it")

    def _note_failure(self, reason: str) -> None:
        self.problem = self.problem or reason
        if self._tell is not None and not self._is_failing:
            self._tell(f"OTLP: {reason}")
        self._is_failing = True


class RunExport:
    """Export a run of `joulelab run`: live figures beside its display, then its result and its phases.

    It is a display itself: `begin`, `set_aside` and `end` pass on to the one that is given.
    """

    needs = MODULES

    def __init__(
        self,
        settings: ExportSettings,
        display: LiveDisplay,
        environ: Mapping[str, str],
        warn: Callable[[str], None],
    ) -> None:
        self._settings, self._display, self._environ, self._warn = settings, display, environ, warn
        self._start_ns = monotonic_ns()
        self._to_utc_ns = read_utc_ns() - monotonic_ns()
        self._points = MetricPoints(self._start_ns + self._to_utc_ns, is_delta=settings.is_delta)
        self._run: Path | None = None
        self._host: LiveHost | None = None
        self._attributes: dict[str, Any] = {}
        self._periodic: PeriodicExport | None = None
        self._result: Result | None = None
        self._problem = ""

    def begin(self, run: Path) -> None:
        """Begin, just after the start of the workload."""
        self._display.begin(run)
        self._run, self._start_ns = run, monotonic_ns()
        self._points = MetricPoints(self._start_ns + self._to_utc_ns, is_delta=self._settings.is_delta)
        self._periodic = PeriodicExport(self._settings, self._points, self._read_live, self._describe)
        self._periodic.start()

    def set_aside(self) -> AbstractContextManager[None]:
        """Leave the terminal as it was found, in a block."""
        return self._display.set_aside()

    def end(self) -> None:
        """End the live export and the display; does not wait."""
        if self._periodic is not None:
            self._periodic.stop()
        self._display.end()

    @contextlib.contextmanager
    def send_result(self, outcome: RunOutcome) -> Iterator[None]:
        """Export the energy of a run and its phases while a block prints them; at its end wait FLUSH_S at most."""
        self._result = outcome.result
        thread = threading.Thread(target=self._send, name="joulelab-otlp-last", daemon=True)
        if self._result is not None:
            thread.start()
        try:
            yield
        finally:
            if self._result is not None:
                thread.join(FLUSH_S)
            self._report(is_late=thread.is_alive())

    def _report(self, *, is_late: bool) -> None:
        """Print one note if something was not exported."""
        problem = f"no answer of the collector within {FLUSH_S:g} s; {CHECK}" if is_late else self._problem
        if problem:
            self._warn(problem if problem.startswith(NOT_EXPORTED) else f"{NOT_EXPORTED} ({problem})")
        elif self._periodic is not None and self._periodic.problem:
            self._warn(f"not all points were exported by OTLP while it ran ({self._periodic.problem})")

    def _read_live(self) -> tuple[list[HardwareReading], int] | None:
        from joulelab.analysis.live_energy import LiveHost
        from joulelab.store.run_folder import find_host_dir, read_meta

        assert self._run is not None
        if self._host is None:
            self._host = LiveHost(find_host_dir(self._run, str(read_meta(self._run)["host"])), self._start_ns)
        figures = self._host.read()
        if figures is None:
            return None
        readings = [
            HardwareReading(s.host, s.scope, s.parent, s.model, s.energy.value, figures.scope_w.get(s.scope))
            for s in figures.scopes
            if not s.is_silent  # a counter does not rise without readings
        ]
        return readings, figures.at_ns + self._to_utc_ns

    def _send(self) -> None:
        result, settings = self._result, self._settings
        assert result is not None
        try:
            with _ExporterLog() as log:
                sent, is_unanswered = [], False
                readings = list_result_readings(result, with_power=not self._points.made)
                if self._periodic is not None and not self._periodic.wait_until_idle(FLUSH_S / 2):
                    is_unanswered = settings.is_delta  # a difference that may have been received is not sent twice
                if settings.metrics and readings and not is_unanswered:
                    exporter = open_exporter(settings.metrics, "metric", FLUSH_S)
                    at_ns = result.end_ns + self._to_utc_ns
                    sent.append(exporter.export(self._points.make_metrics(readings, at_ns, self._describe)))
                if settings.traces:
                    spans = make_spans(result, self._to_utc_ns, self._describe(result.host), self._environ)
                    if spans:  # none, if the sampler takes none
                        sent.append(open_exporter(settings.traces, "trace", FLUSH_S).export(spans))
                if any(each.name != "SUCCESS" for each in sent):
                    self._problem = f"{log.reason or 'the collector refused it'}; {CHECK}"
                elif is_unanswered:
                    self._problem = f"no answer of the collector within {FLUSH_S / 2:g} s; {CHECK}"
        except Exception as error:  # noqa: BLE001 - the workload has run, whatever happens here
            self._problem = word_failure(error)

    def _describe(self, host: str) -> Any:
        if not self._attributes and self._run is not None:
            self._attributes = describe_workload(self._run)
        return make_resource(host, self._attributes)


def describe_workload(run: Path) -> dict[str, Any]:
    """Return the attributes of the process that a run recorded, with its command without secrets."""
    import json

    from joulelab.store.run_folder import find_host_dir, read_meta

    meta = read_meta(run)
    command = [escape_unprintable(str(word)) for word in meta.get("command") or ()]
    found: dict[str, Any] = {"service.instance.id": run.name, "joulelab.run.id": run.name}
    if command:
        name = command[0].rpartition("/")[2]
        found |= {"process.command": command[0], "process.command_args": command, "process.executable.name": name}
    for key, attribute in (("user", "process.owner"), ("name", "joulelab.run.name")):
        found |= {attribute: str(meta[key])} if meta.get(key) else {}
    events = find_host_dir(run, str(meta["host"])) / "events.run.jsonl"
    for line in events.read_text(encoding="utf-8", errors="replace").splitlines() if events.is_file() else ():
        with contextlib.suppress(ValueError):  # a line that is just being written
            event = json.loads(line)
            found |= {"process.pid": int(event["pid"])} if event.get("event") == "workload" else {}
    return found


def list_result_readings(result: Result, *, with_power: bool) -> list[HardwareReading]:
    """Return the energy of each scope of a run, and its mean power if no power was exported while it ran."""
    return [
        HardwareReading(s.host, s.scope, s.parent, s.model, s.energy.value, s.mean_w.value if with_power else None)
        for s in result.scopes
        if find_family(s.scope) != "job"
    ]


def make_spans(result: Result, to_utc_ns: int, resource: Any, environ: Mapping[str, str]) -> list[Any]:
    """Return a span for the run and one for each phase, the steps left out; TRACEPARENT is their parent."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.trace import Status, StatusCode, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {key: environ[key.upper()] for key in ("traceparent", "tracestate") if environ.get(key.upper())}
    outside = TraceContextTextMapPropagator().extract(carrier)
    provider, memory = TracerProvider(resource=resource, shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("joulelab", __version__)
    start_ns = result.start_ns + to_utc_ns
    whole = tracer.start_span("joulelab run", outside, start_time=start_ns)
    whole.set_attributes(describe_energy(result.energy, result.duration_s, result.work))
    whole.set_attribute("joulelab.run.id", result.run)
    if result.exit_code is not None:
        whole.set_attribute("process.exit.code", result.exit_code)
    if result.signal is not None or result.exit_code:
        ending = f"signal {result.signal}" if result.signal is not None else f"exit {result.exit_code}"
        whole.set_status(Status(StatusCode.ERROR, ending))
    around: dict[int | None, Context] = {None: set_span_in_context(whole, outside)}
    phases = sorted((p for p in result.phases if p.last is None), key=lambda p: (p.depth, p.start_s))
    for phase in phases[:MOST_SPANS]:
        begin_ns = start_ns + round(phase.start_s * NS)
        title = escape_unprintable(phase.title)
        span = tracer.start_span(title, around.get(phase.parent, around[None]), start_time=begin_ns)
        span.set_attributes(describe_energy(phase.energy.get("measured"), phase.duration_s, phase.work))
        span.end(begin_ns + round(phase.duration_s * NS))
        around[phase.number] = set_span_in_context(span, outside)
    if len(phases) > MOST_SPANS:
        whole.set_attribute("joulelab.phases_left_out", len(phases) - MOST_SPANS)
    whole.end(result.end_ns + to_utc_ns)
    return list(memory.get_finished_spans())


def describe_energy(energy: Quantity | None, seconds: float, work: Mapping[str, float]) -> dict[str, Any]:
    """Return energy (J), the ends of its interval, mean power (W) and work as attributes of a span."""
    found: dict[str, Any] = {f"joulelab.work.{escape_unprintable(kind)}": amount for kind, amount in work.items()}
    if energy is None or not isfinite(energy.value):
        return found
    found["joulelab.energy"] = energy.value
    if energy.expanded is not None:
        low, high = max(energy.value - energy.expanded, 0.0), energy.value + energy.expanded
        found |= {"joulelab.energy.low": low, "joulelab.energy.high": high}
    return found | ({"joulelab.power.mean": energy.value / seconds} if seconds > 0 else {})
