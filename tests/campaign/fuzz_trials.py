"""Offer changed answers of meters, and changed files, to everything that parses them.

Each parser returns or raises a typed error of joulelab; any other exception is a crash. That a number is right is the
subject of the fuzz tests in tests/instruments, whose samples are used here.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from joulelab.core.errors import JoulelabError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from tests.campaign.campaign_counts import CampaignCounts

ROOT = Path(__file__).parents[2]
BATCH = 300  # inputs of one trial
TOKENS = (
    *(b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"9" * 400, b"[]", b"{}", b'""', b"[" * 2000, b'{"a":' * 2000),
    *(
        b"\x00",
        b"\xff",
        b"\xed\xa0\x80",
        b"\r\n",
        b",",
        b":",
        b'"',
        b"'",
        b"=",
        b"|",
        b"#",
        b"\\u0000",
        b"\x30\x84\xff",
    ),
    *(b"18446744073709551616", b"-0", b"1_0", b"0x10", b"inf", b"1979-05-27T07:32:00Z", b"[[x]]", b"../../etc/passwd"),
)


@dataclass(frozen=True)
class FuzzTarget:
    """Name a parser, good inputs of it, and how to call it with changed ones."""

    name: str
    samples: Sequence[bytes]
    call: Callable[[bytes], object]


def change_bytes(draw: random.Random, data: bytes) -> bytes:
    """Change an input in a few places, or make noise of it."""
    if draw.random() < 0.03:
        return draw.randbytes(draw.randrange(200))
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << draw.randrange(8)
            case 1:
                del changed[at : at + draw.choice((1, 2, 8, 64))]
            case 2:
                changed[at:at] = draw.choice(TOKENS)
            case 3:
                changed[at:at] = changed[max(0, at - draw.choice((1, 4, 40))) : at]
            case 4 if draw.random() < 0.2:
                del changed[at:]
            case _:
                changed[at : at + draw.randrange(1, 6)] = draw.choice(TOKENS)
    return bytes(changed)


def list_meter_targets() -> Iterator[FuzzTarget]:
    """List the parsers of meters' answers."""
    from tests.instruments.test_analyzer_answers import UPDATE
    from tests.instruments.test_ipmi_recorded import make_record
    from tests.instruments.test_prometheus_query import GOOD
    from tests.instruments.test_slurm_client import CONFIG, NODE, OTHERS, SACCT, SSTAT
    from tests.instruments.test_snmp_client import PAIRS, PLAIN, message

    from joulelab.agent import notification
    from joulelab.instruments.analyzer import answers
    from joulelab.instruments.analyzer.accuracy import MODELS
    from joulelab.instruments.capture import parse_capture
    from joulelab.instruments.http import parse_json
    from joulelab.instruments.inference.server_metrics import read_exposition
    from joulelab.instruments.ipmi import answers as ipmi
    from joulelab.instruments.plug import client as plug
    from joulelab.instruments.prometheus.client import parse_matrix
    from joulelab.instruments.slurm import client as slurm
    from joulelab.instruments.snmp import ber

    def text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
        return lambda data: parse(data.decode("utf-8", "replace"))

    def read_snmp(data: bytes) -> object:
        found = PLAIN.open_answer(data, 77)
        return [ber.decode_oid(name) for name in found[0].names] if found else None

    def read_shelly(data: bytes) -> object:
        status = parse_json(data, "x")
        return plug.parse_shelly(status, plug.find_shelly_component(status, None))

    def read_record(data: bytes) -> object:
        sensor = ipmi.parse_record(data)
        return sensor and sensor.analog and ipmi.parse_reading(sensor, data[:3])

    answer = message(77, PAIRS)
    shelly = {"switch:0": {"apower": 41.5, "voltage": 230.1, "current": 0.2, "pf": 0.9, "aenergy": {"total": 123.4}}}
    tasmota = {"StatusSNS": {"Time": "2026-03-01T10:00:00", "ENERGY": {"Total": 12.3, "Power": [4, 5], "Factor": 0.9}}}
    metrics = '# TYPE a counter\na{x="1",y="2\\n"} 17 1700000000\nb_total 1e3\n'
    captures = [path.read_bytes() for path in sorted((ROOT / "tests" / "captures").glob("*.txt"))]
    yield FuzzTarget("JSON over HTTP", [json.dumps(GOOD).encode()], lambda data: parse_json(data, "x"))
    yield FuzzTarget("Prometheus", [json.dumps(GOOD).encode()], lambda data: parse_matrix(parse_json(data, "x"), "x"))
    yield FuzzTarget("SNMP", [answer], read_snmp)
    yield FuzzTarget("SNMP traps", [answer], notification.parse)
    yield FuzzTarget("analyzer updates", [UPDATE.encode()], text(lambda t: answers.parse_update(t, 1, "x")))
    identity = [b"YOKOGAWA,WT310E,C2QG12345V,F1.04"]
    yield FuzzTarget("analyzer identity", identity, text(lambda t: answers.parse_identity(t, tuple(MODELS), "x")))
    yield FuzzTarget("IPMI sensors", [make_record(1, "PSU1 Input Power", 10)], read_record)
    yield FuzzTarget("IPMI DCMI", [b"\xdc\x68\x01" + bytes(14) + b"\x40"], ipmi.parse_dcmi_power)
    yield FuzzTarget("Shelly", [json.dumps(shelly).encode()], read_shelly)
    yield FuzzTarget("Tasmota", [json.dumps(tasmota).encode()], lambda d: plug.parse_tasmota(parse_json(d, "x"), 1))
    yield FuzzTarget("exposition", [metrics.encode()], text(lambda t: read_exposition(t, "x")))
    yield FuzzTarget("sacct", [SACCT.encode()], text(slurm.parse_accounting))
    yield FuzzTarget("sacct, other jobs", [OTHERS.encode()], text(slurm.parse_others))
    yield FuzzTarget("sstat", [SSTAT.encode()], text(slurm.parse_live))
    yield FuzzTarget("scontrol", [NODE.encode()], text(slurm.parse_pairs))
    yield FuzzTarget("scontrol config", [CONFIG.encode()], text(slurm.parse_settings))
    yield FuzzTarget("captures", captures, text(parse_capture))


def list_file_targets(folder: Path) -> Iterator[FuzzTarget]:
    """List the readers of files: of run folders, state, configuration, studies and plans; and of requests to capd."""
    from tests.hostile.folders import make_run
    from tests.plan.when.run_plans import RUN, make_plan

    from joulelab.control.protocol import LineBuffer, parse_request, read_request_id
    from joulelab.control.state import CapJournal, StateFolder
    from joulelab.instruments.file import open_archive
    from joulelab.plan.plan_file import read_plan_file
    from joulelab.plan.when.when_plan import WhenPlan
    from joulelab.run.config.configuration import load_config, load_site
    from joulelab.store.documents import decode_json, read_document, read_lines
    from joulelab.store.journal import read_header
    from joulelab.store.manifest import read_manifest
    from joulelab.store.run_folder import read_end, read_meta
    from joulelab.study.study_file import read_study

    run = make_run(folder / "runs", sealed=True)
    raw = make_run(folder / "raw", sealed=False)
    environ = {"JOULELAB_STATE": str(folder / "state"), "HOME": str(folder)}
    state = StateFolder(environ)
    state.path.mkdir(parents=True)
    journal = CapJournal("GPU-0", "gpu:0", "power", {"cap_w": 300.0}, {"cap_w": 350.0}, [{"cap_w": 200.0}])
    state.write_journal(journal)

    def file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
        path = folder / "changed" / name
        path.parent.mkdir(exist_ok=True)

        def call(data: bytes) -> object:
            path.write_bytes(data)
            return read(path)

        return call

    def read_cap_journal(path: Path) -> object:
        state.get_journal_path("GPU-0").write_bytes(path.read_bytes())
        return state.read_journal("GPU-0")

    def read_requests(data: bytes) -> None:
        buffer = LineBuffer()
        buffer.add_bytes(data + b"\n")
        while (line := buffer.pop_line()) is not None:
            read_request_id(line)
            parse_request(line)

    def read_plan(data: bytes) -> object:
        try:
            content = decode_json(data)
        except ValueError:  # the command says so
            return None
        return WhenPlan.from_json(content)

    def read_csv(path: Path) -> object:
        with_units = {"path": str(path), "time": {"column": "t", "format": "iso"}, "streams": []}
        return open_archive(with_units)

    set_caps = {"id": 1, "do": "set", "caps": [{"device": "gpu:0", "value": 170.0}], "who": {"command": "x"}}
    config = b'[meters.bmc]\nmeter = "redfish"\naddress = "10.0.0.5"\n[run]\nperiod = "1s"\n[site]\nzone = "DE"\n'
    table = b"t,power [W]\n2024-05-01T12:34:56.789Z,123.4\n2024-05-01T12:34:57Z,[N/A]\n"
    plan = json.dumps(make_plan(1.7e9, ((RUN, 150.0, 60.0, 1.0),)).to_json()).encode()
    parent = folder / "changed"
    yield FuzzTarget("run.json", [(run / "run.json").read_bytes()], file("run.json", lambda p: read_meta(p.parent)))
    yield FuzzTarget("end.json", [(run / "end.json").read_bytes()], file("end.json", lambda p: read_end(p.parent)))
    manifest = (run / "manifest.json").read_bytes()
    yield FuzzTarget("manifest.json", [manifest], file("manifest.json", lambda p: read_manifest(p.parent)))
    yield FuzzTarget("documents", [manifest], file("any.json", lambda p: read_document(str(p))))
    marks = next(run.glob("*/marks/*")).read_bytes()
    yield FuzzTarget("marks", [marks], file("marks.jsonl", read_lines))
    header = next(raw.glob("*/*.journal")).read_bytes()[:4000]
    yield FuzzTarget("journals", [header], file("x.fast.0.journal", read_header))
    cap_journal = state.get_journal_path("GPU-0").read_bytes()
    yield FuzzTarget("cap journals", [cap_journal], file("cap.json", read_cap_journal))
    yield FuzzTarget("requests to capd", [json.dumps(set_caps).encode()], read_requests)
    yield FuzzTarget("joulelab.toml", [config], file("a.toml", lambda p: load_config(environ, "h", named=p, cwd="/")))
    yield FuzzTarget("[site]", [config], file("b.toml", lambda p: load_site(environ, named=p, cwd="/")))
    studies = [path.read_bytes() for path in sorted((ROOT / "studies").glob("*.toml"))]
    yield FuzzTarget("studies", studies, file("study.toml", read_study))
    plans = [path.read_bytes() for path in sorted((ROOT / "examples" / "plans").glob("*.toml"))]
    yield FuzzTarget("plan files", plans, file("plan.toml", read_plan_file))
    yield FuzzTarget("saved plans", [plan], read_plan)
    yield FuzzTarget("tables of power", [table], file("power.csv", read_csv))
    assert parent.is_dir()


class FuzzTrials:
    """Offer batches of changed inputs, to one parser in each trial."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "fuzz"

    def __enter__(self) -> Self:
        self._folder.mkdir()
        self._targets = [*list_meter_targets(), *list_file_targets(self._folder)]
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def run_trial(self, draw: random.Random, counts: CampaignCounts) -> None:
        """Offer one batch."""
        target = draw.choice(self._targets)
        for _ in range(BATCH):
            data = change_bytes(draw, draw.choice(target.samples))
            problem = try_input(target, data)
            counts.fuzzed[target.name] += 1
            if problem:
                counts.crashes += 1
                counts.problems.append(f"{target.name}: {problem} for {data[:80]!r}")
                return


def try_input(target: FuzzTarget, data: bytes) -> str:
    """Return what a parser raised beside errors of joulelab, "" if nothing."""
    accepted: tuple[type[Any], ...] = (JoulelabError, OSError) if target.name == "marks" else (JoulelabError,)
    try:
        target.call(data)
    except accepted:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""
