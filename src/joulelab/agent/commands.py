"""Export this node's meters to Prometheus: `joulelab agent`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.parameters import Duration, add_json_option, config_option, format_examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from joulelab.agent.collect import Collector
    from joulelab.agent.scrape_server import ScrapeServer
    from joulelab.agent.traps import TrapListener
    from joulelab.analysis.job_shares import IdleRule
    from joulelab.integrations.opentelemetry_export import HardwareReading
    from joulelab.run.config.configuration import Config
    from joulelab.run.config.meter_choice import MeterChoice

FILES = {"unit": "joulelab-agent.service", "alerts": "alerts.yml", "grafana": "grafana.json"}


class Address(click.ParamType[tuple[str, int]]):
    """Take `HOST:PORT`, `:PORT` (all addresses) or `[HOST]:PORT`."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Return host and port."""
        if isinstance(value, tuple):
            return value
        host, colon, port = str(value).rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not port.isdecimal() or int(port) > 65535:
            self.fail(f"{value!r} is not an address; write it as 127.0.0.1:9797", param, ctx)
        return "127.0.0.1" if host == "localhost" else host or "0.0.0.0", int(port)  # noqa: S104 asked for


@click.command("agent", epilog=format_examples("joulelab agent --listen :9797", "joulelab agent --print alerts"))
@click.option(
    "--listen", type=Address(), default="127.0.0.1:9797", show_default=True, help="Address for Prometheus to read."
)
@click.option("--every", type=Duration(0.05), default="1s", show_default=True, help="Time between readings.")
@click.option("--meter", "wanted", multiple=True, metavar="NAME", help="Read only this meter; repeatable.")
@click.option("--no-meter", "without", multiple=True, metavar="NAME", help="Do not read this meter; repeatable.")
@click.option("--traps", type=Address(), help="Receive SNMP traps (v1, v2c) here: 127.0.0.1:1162.")
@click.option("--slurm-node", metavar="NAME", help="Name of this node in Slurm.  [default: the short host name]")
@click.option("--no-jobs", is_flag=True, help="Do not look for Slurm jobs and containers.")
@click.option(
    "--idle-rule",
    type=click.Choice(["equal", "reserved"]),
    default="equal",
    show_default=True,
    help="Divide the idle power of CPUs and memory among jobs equally, or by reserved CPUs.",
)
@click.option("--tls-cert", type=click.Path(path_type=Path), metavar="FILE", help="Serve HTTPS with this certificate.")
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="Key of the certificate.")
@click.option(
    "--tls-clients",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Answer only clients with a certificate of these authorities.",
)
@click.option("--name", "names", multiple=True, metavar="NAME", help="Another host name of this machine; repeatable.")
@click.option("--print", "printed", type=click.Choice(list(FILES)), help="Only print a file for operators.")
@add_json_option("Print the address as JSON.")
@config_option
def command(printed: str | None, as_json: bool, config: Path | None, **given: Any) -> None:
    """Export the meters of this node to Prometheus.

    With the variables of OpenTelemetry (OTEL_EXPORTER_OTLP_ENDPOINT) also by OTLP. Runs until SIGTERM or Ctrl-C.
    """
    if printed is not None:
        click.echo(packaged(FILES[printed]).read_text(), nl=False)
        return
    with contextlib.ExitStack() as stack:
        ended = stack.enter_context(_signals())
        collector, server, traps = _start(stack, config, **given)
        _announce(collector, server, traps, as_json)
        ended.wait()
    # A vendor's call that never returns must not keep the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def packaged(name: str) -> Path:
    """Return a file for operators: of the installed package, or of the source tree."""
    inside = Path(__file__).parents[1] / "packaging" / name
    return inside if inside.exists() else Path(__file__).parents[3] / "packaging" / name


def _start(
    stack: contextlib.ExitStack,
    file: Path | None,
    *,
    listen: tuple[str, int],
    every: float,
    wanted: tuple[str, ...],
    without: tuple[str, ...],
    traps: tuple[str, int] | None,
    slurm_node: str | None,
    no_jobs: bool,
    idle_rule: IdleRule,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_clients: Path | None,
    names: tuple[str, ...],
) -> tuple[Collector, ScrapeServer, TrapListener | None]:
    """Start all parts; each ends with the stack. Raises JoulelabError."""
    if tls_cert is None and (tls_key or tls_clients):
        raise click.UsageError("--tls-key and --tls-clients need --tls-cert")
    from joulelab.agent.collect import Collector
    from joulelab.agent.metrics import Metrics
    from joulelab.agent.scrape_server import ScrapeServer
    from joulelab.agent.traps import Board, TrapListener
    from joulelab.instruments.job_use import GpuProcesses, JobUseReader

    config, chosen = _chosen(file, wanted, without)
    board = Board()
    jobs = None if no_jobs else _jobs(slurm_node)
    use = None if jobs is None else JobUseReader(GpuProcesses())
    collector = Collector(_plan(chosen, every), jobs=jobs, use=use, idle_rule=idle_rule, board=board, tell=_say)
    tls: dict[str, Any] = {"certificate": tls_cert, "key": tls_key, "clients": tls_clients}
    server = ScrapeServer(Metrics(collector, _watts(config)), *listen, names=names, **tls)
    stack.callback(server.close)
    listener = None if traps is None else stack.enter_context(TrapListener(*traps, board, _addresses(chosen)))
    stack.enter_context(collector)
    if any(name.startswith("OTEL_EXPORTER_OTLP_") for name in os.environ):
        _start_export(stack, collector)
    stack.enter_context(server)
    return collector, server, listener


def _start_export(stack: contextlib.ExitStack, collector: Collector) -> None:
    """Export by OTLP, too, if the standard variables ask for it."""
    from joulelab.agent.watched import list_hardware
    from joulelab.core.clock import monotonic_ns, read_utc_ns
    from joulelab.integrations.opentelemetry_export import (
        MetricPoints,
        PeriodicExport,
        make_resource,
        read_export_settings,
    )
    from joulelab.run.run_options import get_host_name

    settings = read_export_settings(os.environ)
    if settings is None:
        return
    host, chosen = get_host_name(), dict[str, str]()
    about = {"service.name": "joulelab-agent", "process.pid": os.getpid(), "process.executable.name": "joulelab"}

    def read_hardware() -> tuple[list[HardwareReading], int]:
        seen = collector.seen()
        return list_hardware(seen, host, chosen), seen.now_ns + read_utc_ns() - monotonic_ns()

    points = MetricPoints(read_utc_ns(), is_delta=settings.is_delta)
    export = PeriodicExport(settings, points, read_hardware, lambda name: make_resource(name, about), _say)
    stack.callback(export.finish)
    export.start()


def _chosen(file: Path | None, wanted: tuple[str, ...], without: tuple[str, ...]) -> tuple[Config, MeterChoice]:
    from joulelab.run.config.configuration import load_config
    from joulelab.run.config.meter_choice import choose_meters
    from joulelab.run.run_options import get_host_name

    config = load_config(os.environ, get_host_name(), named=file)
    chosen = choose_meters(config, os.environ, wanted, without)
    for warning in (*map(str, chosen.lost), *config.warnings, *chosen.warnings):
        _say(warning)
    return config, chosen


def _plan(chosen: MeterChoice, every_s: float) -> Any:
    from joulelab.recorder.plan import Plan
    from joulelab.run.run_options import get_host_name, read_offers

    offers = {k: v for k, v in read_offers(os.environ).items() if k == "rapl.root"}
    slow_s = max(5 * every_s, 1.0)
    return Plan(
        Path(), get_host_name(), os.getpid(), meters=chosen.meters, also=chosen.also, period_s=every_s,
        slow_period_s=slow_s, offers=offers,
    )  # fmt: skip


def _watts(config: Config) -> dict[str, dict[str, float]]:
    node = {f"joulelab_{key.removesuffix('_w')}_watts": {"node.ac": watts} for key, watts in config.node.items()}
    return node | {"joulelab_supply_watts": config.supply}


def _jobs(node: str | None) -> Any:
    from joulelab.agent.slurm_jobs import Groups, Jobs, Queue

    return Jobs(Groups(), Queue(node or os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]))


def _addresses(chosen: MeterChoice) -> dict[str, str]:
    """Return the configured PDUs by their addresses, so that a trap names the entry and not a number."""
    import socket

    found: dict[str, str] = {}
    for entry in (e for e in chosen.entries if e.meter == "snmp"):
        given = str(entry.settings.get("address", ""))
        host = given.rpartition("://")[2].partition("/")[0]
        host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        with contextlib.suppress(OSError, UnicodeError):
            if host:
                for one in socket.getaddrinfo(host, None):
                    found.setdefault(str(one[4][0]), entry.name)
    return found


def _announce(collector: Collector, server: ScrapeServer, traps: TrapListener | None, as_json: bool) -> None:
    from joulelab.core.text import is_loopback

    host, port = server.address
    shown = f"[{host}]" if ":" in host else host
    url = f"{server.scheme}://{shown}:{port}/metrics"
    if as_json:
        facts = {"url": url, "pid": os.getpid(), "traps": None if traps is None else list(traps.address)}
        click.echo(json.dumps(facts))
    else:
        click.echo(f"joulelab agent: {url} ({len(collector.kept)} meters are tried)")
        if traps is not None:
            click.echo(f"joulelab agent: SNMP traps on {traps.address[0]}:{traps.address[1]}")
    sys.stdout.flush()
    if not is_loopback(host):
        how = "" if server.scheme == "https" else ", unencrypted"
        _say(f"everybody who can reach {shown}:{port} can read power, load and the names of jobs and users{how}")


def _say(line: str) -> None:
    # Who reads the log may be gone.
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"joulelab agent: {line}", err=True)


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    ended = threading.Event()
    note: Callable[..., None] = lambda *_: ended.set()  # noqa: E731
    found = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield ended
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)
