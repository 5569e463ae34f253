"""Store the result of a run beside it: `results.json` restores the same Result, `head.json` is the part for lists.

Both are valid while the versions below and the fingerprint of the run's files match, and can be deleted. Raise
RESULT_VERSION when a field of Result or ResultHead changes. Raise ANALYSIS_VERSION when the analysis gives another
number, or when a check is added or changed: otherwise results that are stored already do not show it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import types
import typing
import zlib
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import msgspec

from joulelab.analysis.marked_phases import list_figure_kinds
from joulelab.analysis.result import Check, Fact, Result, make_plain
from joulelab.core.errors import JoulelabError
from joulelab.core.text import finite_or_none
from joulelab.core.version import __version__
from joulelab.site.footprint import Footprint, Site, choose_site, compute_from_interval
from joulelab.store.documents import LARGEST_DOCUMENT, decode_json
from joulelab.store.manifest import compute_fingerprint
from joulelab.store.run_folder import RunState, read_run_state
from joulelab.store.safe_files import is_own, read_regular, replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RESULT_VERSION, ANALYSIS_VERSION = 7, 16
RESULT_FILE, HEAD_FILE = "results.json", "head.json"
WRONG_CHECKS = ("damaged", "impossible power")  # failed checks after which lists show no energy
BLANK = "0" * 41  # stands for `inputs` while the checksum of a file is computed
Row = dict[str, Any]
T = TypeVar("T")


class EnergyJson(TypedDict):
    """Hold an energy (J) as `--json` prints it."""

    value: float | None
    expanded: float | None
    bound: float | None
    known: bool
    budget: dict[str, float | None]
    expanded_if_seen: float | None


@dataclass(frozen=True, slots=True)
class ResultHead:
    """Hold the part of a result that lists and queries over thousands of runs need.

    `energy` is the energy of everything measured as `--json` prints it, `failed_check` is a check after which lists
    show no energy. `gpu_load` is the mean load (share of one) of the GPUs that did something. `site` is the one that
    the run recorded. `work` holds the kinds of work that the energy may be divided by, `warnings` the names of the
    checks that are not ok. `energies` and `phases` are rows of the views of `joulelab query`.
    """

    name: str | None
    start_utc: str
    duration_s: float
    energy: EnergyJson | None
    state: str
    outcome: str
    exit_code: int | None
    signal: int | None
    command: list[str]
    labels: dict[str, str]
    facts: dict[str, Fact | None]
    twin: str
    estimate: bool
    gpu_load: float | None = None
    failed_check: Check | None = None
    site: Site | None = None
    work: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    energies: list[Row] = field(default_factory=list)
    phases: list[Row] = field(default_factory=list)

    @property
    def footprint(self) -> Footprint | None:
        """Return kWh, cost and CO2e of everything measured, None where there is no energy."""
        if self.energy is None or self.energy["value"] is None:
            return None
        return compute_from_interval(self.energy["value"], self.energy["expanded"], self.site)

    def with_site(self, site: Site | None) -> ResultHead:
        """Return the head at its site, or at the one that is set now if the run recorded none."""
        return dataclasses.replace(self, site=choose_site(self.site, site))

    def to_json(self) -> Row:
        """Return the plain values that lists show."""
        left_out = ("failed_check", "energies", "phases", "site")
        plain = {key: getattr(self, key) for key in self.__dataclass_fields__ if key not in left_out}
        footprint = None if self.footprint is None else self.footprint.to_json()
        return plain | {"site": None if self.site is None else self.site.to_json(), "footprint": footprint}

    def list_fact_rows(self) -> list[Row]:
        """Return the facts as rows of a view: as text, and finite numbers also as numbers."""
        return [
            {
                "fact": name,
                "value": "nan" if value is None else str(value),
                "number": None if value is None or isinstance(value, (str, bool)) else float(value),
            }
            for name, value in self.facts.items()
        ]


class _Versions(msgspec.Struct):
    """Hold the versions and the fingerprint that decide whether a stored result is valid."""

    result_version: int = 0
    analysis_version: int = 0
    inputs: str = ""


class _StoredResult(_Versions, kw_only=True):
    result: Result
    joulelab: str = __version__


class _StoredHead(_Versions, kw_only=True):
    head: ResultHead


Stored = TypeVar("Stored", bound=_Versions)


def read_result(run: Path) -> Result | None:
    """Return the stored result of a run, None if there is none or the run has changed since."""
    found = _read_stored(run, RESULT_FILE, _StoredResult)
    return None if found is None else found.result


def read_head(run: Path) -> ResultHead | None:
    """Return the stored head of a run, None if there is none or the run has changed since."""
    found = _read_stored(run, HEAD_FILE, _StoredHead)
    return None if found is None else found.head


def load_result(run: Path) -> Result:
    """Return the result of a run: stored, or analysed and stored. Raises JoulelabError."""
    stored = read_result(run)
    if stored is not None:
        return stored
    result, inputs = analyse_ended(run)
    write_result(run, result, inputs)
    return result


def load_head(run: Path) -> ResultHead:
    """Return the head of a run: stored, or made from its result and stored. Raises JoulelabError."""
    stored = read_head(run)
    if stored is not None:
        return stored
    inputs = read_inputs(run)  # before the result is read: a file that changes from here on makes the head invalid
    result = read_result(run)
    if result is None:
        return write_result(run, *analyse_ended(run))
    head = make_head(result)
    with contextlib.suppress(OSError):
        if inputs and is_own(run.stat()):
            _write_stored(run, HEAD_FILE, _StoredHead(head=head), inputs)
    return head


def analyse_ended(run: Path) -> tuple[Result, str]:
    """Seal an ended run and analyse it; also return the fingerprint of its files before that. Raises JoulelabError."""
    from joulelab.analysis.analyse import analyse_run
    from joulelab.store.run_reader import open_run

    while True:
        seal_ended(run)
        inputs = read_inputs(run)
        with open_run(run) as opened:
            result = analyse_run(opened)
        if inputs or not read_inputs(run):  # else it ended meanwhile, and the result may lack a part of it
            return result, inputs


def read_inputs(run: Path) -> str:
    """Return the fingerprint of a run; empty for a live run, whose result is not stored."""
    with contextlib.suppress(JoulelabError, OSError):
        if read_run_state(run) is not RunState.LIVE:
            return compute_fingerprint(run)
    return ""


def seal_ended(run: Path) -> None:
    """Seal a run that has ended, if it is not sealed yet and the store can be written."""
    if read_run_state(run) is RunState.LIVE or not any(run.glob("*/*.journal")):
        return
    from joulelab.store.seal import seal_run

    with contextlib.suppress(JoulelabError, OSError):
        seal_run(run)


def write_result(run: Path, result: Result, before: str | None = None) -> ResultHead:
    """Store a result and its head, and return the head; errors are ignored, as the run can be analysed again.

    `before` is the value of `read_inputs` before the analysis: the result of a run that was live then, or has changed
    since, is not stored. None: the caller closed the run before the analysis. Nothing is stored while the run is live,
    nor in the folder of another user, who could plant links there.
    """
    head = make_head(result)
    with contextlib.suppress(JoulelabError, OSError):
        inputs = read_inputs(run)
        if inputs and before in (None, inputs) and is_own(run.stat()):
            _write_stored(run, RESULT_FILE, _StoredResult(result=result), inputs)
            _write_stored(run, HEAD_FILE, _StoredHead(head=head), inputs)
    return head


def make_head(result: Result) -> ResultHead:
    """Return the part of a result that lists and queries need."""
    whole = result.group("measured")
    failed = [check for check in result.checks if check.status == "failed"]
    wrong = next((check for name in WRONG_CHECKS for check in failed if check.name == name), None)
    return ResultHead(
        name=result.name,
        start_utc=result.start_utc,
        duration_s=result.duration_s,
        energy=make_plain(result.energy),
        state=result.state,
        outcome=result.outcome,
        exit_code=result.exit_code,
        signal=result.signal,
        command=result.command,
        labels=result.labels,
        facts=make_plain(result.facts),
        twin=result.twin,
        estimate=whole is not None and whole.estimate,
        gpu_load=result.gpu_load,
        failed_check=wrong,
        site=result.site,
        work={kind: float(result.work[kind]) for kind in list_figure_kinds(result.work) if result.work[kind] > 0},
        warnings=list(dict.fromkeys(check.name for check in result.checks if check.status in ("failed", "warning"))),
        energies=_list_energy_rows(result),
        phases=_list_phase_rows(result),
    )


def list_query_rows(run: Path, site: Site | None = None) -> Mapping[str, list[Row]]:
    """Return the rows that a run adds to the views of `joulelab query`; none if the run cannot be analysed.

    A run that is damaged has a row of `damaged` with its problem. `site` is that of runs that recorded none.
    """
    try:
        head = load_head(run).with_site(site)
    except Exception as error:  # noqa: BLE001 one run that cannot be analysed must not hide the others
        return {"damaged": [{"problem": str(error)}]}
    damaged = [{"problem": str(head.failed_check)}] if head.failed_check is not None else []
    views = {"energies": head.energies, "phases": head.phases, "facts": head.list_fact_rows(), "damaged": damaged}
    return views | {"runs": [{"gpu_load": head.gpu_load, **_describe_footprint(head)}]}


def _describe_footprint(head: ResultHead) -> Row:
    """Return kWh, cost and CO2e as columns, with the carbon intensity that they are from; none of a damaged run."""
    footprint = head.footprint if head.failed_check is None else None
    if footprint is None:
        return {}
    row: Row = {"energy_kwh": footprint.kwh.value, "uncertainty_kwh": footprint.kwh.expanded}
    site = footprint.site
    if site is None:
        return _clean_row(row)
    if footprint.cost is not None:
        row |= {"cost": footprint.cost.value, "currency": site.currency}
    if footprint.co2e_kg is not None:
        row |= {"co2e_kg": footprint.co2e_kg.value, "intensity_g_per_kwh": site.g_per_kwh, "intensity_year": site.year}
        row |= {"intensity_zone": site.zone, "intensity_source": site.source}
    return _clean_row(row | {"pue": site.pue})


def _list_energy_rows(result: Result) -> list[Row]:
    """Return a row for each scope whose power is possible; the `counted` rows add up to everything measured."""
    whole = result.group("measured")
    counted = set(whole.scopes) if whole else set()
    impossible = _find_impossible(result)
    loads = {(load.host, load.scope): load.mean for load in result.gpu_loads}
    rows = [
        {
            "host": s.host,
            "scope": s.scope,
            "meter": s.reading.meter,
            "channel": s.reading.channel,
            "energy_j": s.energy.value,
            "uncertainty_j": s.energy.expanded,
            "mean_w": s.mean_w.value,
            "median_w": s.statistics.median if s.statistics else None,
            "max_w": s.statistics.maximum if s.statistics else None,
            "net_j": s.net.value if s.net else None,
            "accuracy": s.reading.accuracy,
            "estimate": s.reading.estimate,
            "counted": s.scope in counted,
            "device": s.device,
            "model": s.model,
            "load": loads.get((s.host, s.scope)),
        }
        for s in result.scopes
        if impossible.isdisjoint((s.scope, f"{s.host}/{s.scope}"))
    ]
    return [_clean_row(row) for row in rows]


def _find_impossible(result: Result) -> set[str]:
    """Return the scopes with an impossible power, named as in checks: with the host if there are several hosts."""
    return {c.scope for c in result.checks if (c.name, c.status) == ("impossible power", "failed")}


def _list_phase_rows(result: Result) -> list[Row]:
    rows, impossible = [], _find_impossible(result)
    for phase in result.phases:
        energy = None if impossible else result.phase_energy(phase)
        row = {
            "phase": phase.name,
            "n": phase.n,
            "start_s": phase.start_s,
            "duration_s": phase.duration_s,
            "energy_j": energy.value if energy else None,
            "uncertainty_j": energy.expanded if energy else None,
            "depth": phase.depth,
            "last": phase.last,
            "gpu_load": phase.gpu_load,
            **{f"work_{name}": amount for name, amount in phase.work.items()},
        }
        rows.append(_clean_row(row))
    return rows


def _clean_row(row: Row) -> Row:
    return {key: finite_or_none(value) if isinstance(value, float) else value for key, value in row.items()}


def _read_stored(run: Path, file: str, kind: type[Stored]) -> Stored | None:
    with contextlib.suppress(OSError, ValueError, RecursionError, msgspec.MsgspecError):
        text = read_regular(f"{run}/{file}", LARGEST_DOCUMENT)
        found = _decode_stored(text, kind)
        valid = (found.result_version, found.analysis_version) == (RESULT_VERSION, ANALYSIS_VERSION)
        # `inputs` holds a checksum of the file itself (with a blank in its place), which shows damage.
        blank = text.replace(found.inputs.encode(), BLANK.encode(), 1)
        return found if valid and found.inputs == _mark_inputs(compute_fingerprint(run), blank) else None
    return None


def _write_stored(run: Path, file: str, stored: _Versions, inputs: str) -> None:
    stored.result_version, stored.analysis_version, stored.inputs = RESULT_VERSION, ANALYSIS_VERSION, BLANK
    try:
        text = msgspec.json.encode(stored, enc_hook=_encode_number)
    except UnicodeEncodeError:  # a command line that is not UTF-8
        text = json.dumps(msgspec.to_builtins(stored, enc_hook=_encode_number)).encode()
    # Not synced, which would take longer than all the rest: a file torn by a power loss is made again.
    text = text.replace(BLANK.encode(), _mark_inputs(inputs, text).encode(), 1)
    replace_file(run / file, text, sync=False)


def _mark_inputs(inputs: str, blank: bytes) -> str:
    return f"{inputs}-{zlib.crc32(blank):08x}"


def _encode_number(value: Any) -> Any:
    """Turn a number of numpy into one of Python; raise NotImplementedError for other objects."""
    if isinstance(value, Real):
        return float(value)
    raise NotImplementedError


def _decode_stored(text: bytes, kind: type[T]) -> T:
    """Decode a stored document. Raises MsgspecError, ValueError, RecursionError."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError):
        return msgspec.convert(_restore_nan(decode_json(text), kind), kind)


def _restore_nan(data: Any, kind: Any) -> Any:
    """Replace null by NaN in decoded JSON where the type is a number and nothing else."""
    arguments = typing.get_args(kind)
    if data is None:
        return math.nan if kind is float or (float in arguments and type(None) not in arguments) else None
    if isinstance(data, dict):
        if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
            hints = typing.get_type_hints(kind)
            return {key: _restore_nan(value, hints.get(key)) for key, value in data.items()}
        if isinstance(kind, types.UnionType):
            return _restore_nan(data, next((one for one in arguments if one is not type(None)), None))
        return {key: _restore_nan(value, arguments[1] if arguments else None) for key, value in data.items()}
    if isinstance(data, list):
        return [_restore_nan(value, arguments[0] if arguments else None) for value in data]
    return data
