"""State the energy and CO2e of runs in the forms that others ask for: model cards, BoAmps, SCI, plain text.

Nothing is guessed: a field that a form requires and that no run contains is an error that names the option to set it.

- Hugging Face model cards: `co2_eq_emissions` (emissions in g, source, training type, location, hardware).
- BoAmps energy reports: schemas of Boavizta/BoAmps, commit 3bfefec.
- Software Carbon Intensity, ISO/IEC 21031:2024: (E x I + M) per R.
- Regulation (EU) 2024/1689 (AI Act), Annex XI, section 1, point 2: (d) the computational resources and the training
  time, (e) the known or estimated energy consumption, which may be based on the resources used if it is not known.

`joulelab plan cost --statement` is for planned work, several sites and the purchase of nodes; `joulelab cite` has the
methods in detail.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, StoreError
from joulelab.core.quantity import Quantity, add_quantities, round_interval
from joulelab.core.scope import find_family
from joulelab.core.text import SERVED_TWIN, name_one
from joulelab.core.version import __version__
from joulelab.report import format as fmt
from joulelab.report.citation import METER_NAMES, OUTSIDE, TOOL_NAMES, MethodFacts, list_counted_scopes
from joulelab.report.footprint_text import format_co2e, word_source
from joulelab.report.messages import word_check
from joulelab.report.run_summary import SHARED, choose_work_kinds, format_energy
from joulelab.store.imported import NO_HOST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.analysis.result import Check, Result
    from joulelab.site.footprint import Site

SITE_COMMAND = "joulelab site --zone DE"
METER_ERRORS = ("gain:", "offset:", "intensity:")  # the same in every run that has them
SECONDS_PER_YEAR = 365.25 * 86400
RUNS = "runs"
DEVICES = ("gpu", "cpu", "accel", "module")
DEVICE_NAMES = {"gpu": "GPU", "cpu": "CPU", "accel": "accelerator", "module": "module"}
DATA_USES = ("input", "output")
DATA_TYPES = ("tabular", "audio", "boolean", "image", "video", "object", "text", "token", "word", "other")
QUALITIES = ((0.10, "high"), (0.25, "medium"), (0.50, "low"))  # of BoAmps, by the largest relative interval
FLOP = "FLOP"
LONGEST_OVERLAP_S = 1.0  # runs that follow each other may overlap this much
AI_ACT = "EU AI Act, Annex XI, section 1, point 2"
ACCURACY_WORDS = {"datasheet": "accuracy by its data sheet", "calibrated": "calibrated", "assumed": "accuracy assumed"}


@dataclass(frozen=True, slots=True)
class Hardware:
    """Hold one kind of device that was measured: its family, its model (may be empty) and how many there are."""

    family: str
    model: str
    count: int

    @property
    def text(self) -> str:
        """Return `8 x NVIDIA H100`."""
        name = self.model or DEVICE_NAMES.get(self.family, self.family)
        return f"{self.count} x {name}"


@dataclass(frozen=True, slots=True)
class StatementFacts:
    """Hold the sums over runs: energy (J), CO2e (kg, with PUE; None without an intensity), hours, hardware, work.

    `site_energy` is the energy times the PUE of each run's site; `by_pue` has the energy of the runs with each PUE.
    `work` has the kinds that every run reported. `hosts` counts nodes, `node_s` is the time of all of them (s).
    """

    methods: MethodFacts
    results: tuple[Result, ...]
    energy: Quantity
    site_energy: Quantity
    by_pue: Mapping[float, Quantity]
    co2e_kg: Quantity | None
    sites: tuple[Site, ...]
    hardware: tuple[Hardware, ...]
    hosts: int
    node_s: float
    duration_s: float
    work: Mapping[str, float]
    is_estimate: bool

    @property
    def verb(self) -> str:
        """Return how the energy is known."""
        return "simulated" if self.methods.simulated else "estimated" if self.is_estimate else "measured"

    @property
    def shares(self) -> list[tuple[Result, Check]]:
        """Return the runs on a node that others used, too, with the check that has their part."""
        return [(r, check) for r in self.results for check in r.checks if check.code.startswith(SHARED)]


@dataclass(frozen=True, slots=True)
class StatedFields:
    """Hold what no run contains and a person states: fields of model cards and of BoAmps, and the M and R of SCI.

    `data` are `USE:TYPE` as in BoAmps; `embodied_kg` is the CO2e of making all nodes that were used.
    """

    training_type: str = ""
    location: str = ""
    stage: str = ""
    family: str = ""
    algorithm: str = ""
    model: str = ""
    data: tuple[str, ...] = ()
    infrastructure: str = ""
    embodied_kg: float | None = None
    lifetime_years: float | None = None
    per: str = ""


def gather_statement(
    results: Sequence[Result], methods: MethodFacts, metas: Sequence[Mapping[str, Any]] = ()
) -> StatementFacts:
    """Add up runs; `metas` are the contents of their `run.json`, in the same order.

    Raises StoreError for a run without an energy or without an end, because a sum would be too low, and for runs at the
    same time on the same node, because it would be too high.
    """
    for result in results:
        if result.state == "live":
            then = "wait for its end"
            raise StoreError("the run is still recording", where=result.run, next=then, code="store.still-recording")
        if result.energy is None or not result.energy.is_resolved:
            why = "no meter was read" if result.energy is None else "its energy is smaller than its interval"
            why = "files of it are missing or changed" if result.is_damaged else why
            then = f"leave it out, or look at it: joulelab show {result.run}"
            raise StoreError(
                "the run has no energy to state", where=result.run, why=why, next=then, code="store.no-energy"
            )
    if len({bool(result.twin) for result in results}) > 1:
        simulated = next(result.run for result in results if result.twin)
        what, then = "simulated and measured energies are not added", "state them apart"
        raise StoreError(what, where=simulated, why="this run is simulated", next=then, code="store.mixed-runs")
    _refuse_overlaps(results, metas)
    known = [(result, result.energy) for result in results if result.energy is not None]
    energies = [energy.tagged(result.run, keep=METER_ERRORS) for result, energy in known]
    prints = [result.footprint for result in results]
    masses = [
        one.co2e_kg.tagged(r.run, keep=METER_ERRORS)
        for r, one in zip(results, prints, strict=True)
        if one and one.co2e_kg
    ]
    sites = [result.site for result in results if result.site is not None and not result.site.is_empty]
    pues = [1.0 if result.site is None else result.site.pue for result in results]
    kinds = [kind for kind in results[0].work if all(kind in result.work for result in results)]
    scopes = [scope for result in results for scope in list_counted_scopes(result)]
    by_pue = {
        pue: add_quantities(energy for energy, own in zip(energies, pues, strict=True) if own == pue)
        for pue in dict.fromkeys(pues)
    }
    return StatementFacts(
        methods=methods,
        results=tuple(results),
        energy=add_quantities(energies),
        site_energy=add_quantities(energy * pue for pue, energy in by_pue.items()),
        by_pue=by_pue,
        co2e_kg=add_quantities(masses) if len(masses) == len(results) else None,
        sites=tuple(dict.fromkeys(sites)),
        hardware=_list_hardware(results),
        hosts=len({scope.host for scope in scopes}),
        node_s=sum(result.duration_s * len(_list_hosts(result)) for result in results),
        duration_s=sum(result.duration_s for result in results),
        work={kind: sum(result.work[kind] for result in results) for kind in kinds},
        is_estimate=any(scope.estimate for scope in scopes),
    )


def _list_hosts(result: Result) -> set[str]:
    return {scope.host for scope in list_counted_scopes(result)}


def _refuse_overlaps(results: Sequence[Result], metas: Sequence[Mapping[str, Any]]) -> None:
    """Raise StoreError if two runs measured one node at the same time; boot ids tell nodes of the same name apart."""
    spans = []
    for place, (result, meta) in enumerate(zip(results, metas or [{}] * len(results), strict=True)):
        # Virtual time is no time of a node, and an imported run that names no host can be of any node.
        if not result.start_utc or result.twin not in ("", SERVED_TWIN):
            continue
        start_s = dt.datetime.fromisoformat(result.start_utc).timestamp()
        boot, twin = (meta.get("started") or {}).get("boot_id"), (meta.get("environment") or {}).get("JOULELAB_TWIN")
        machine = f"{boot} {twin}" if boot and boot != NO_HOST else ""
        for host in _list_hosts(result) - {NO_HOST}:
            known = machine if host == result.host else ""
            spans.append((start_s, start_s + result.duration_s, place, host, known, result.run))
    spans.sort()
    for k, (_, end_s, place, host, machine, run) in enumerate(spans):
        for start_s, later_end_s, other_place, other_host, other_machine, other in spans[k + 1 :]:
            if start_s >= end_s:
                break
            overlap_s = min(end_s, later_end_s) - start_s
            is_same = machine == other_machine if machine and other_machine else host == other_host
            if is_same and place != other_place and overlap_s > LONGEST_OVERLAP_S:
                both = f"both measured {other_host} during the same {fmt.format_duration(overlap_s)}"
                raise StoreError(
                    "runs that overlap are not added",
                    where=f"{run}, {other}",
                    why=f"{both}, so its energy and time would count twice",
                    next="state them one by one, or only runs that did not overlap",
                    code="store.overlapping-runs",
                )


def _list_hardware(results: Sequence[Result]) -> tuple[Hardware, ...]:
    """Return the devices that any meter measured, each once."""
    found: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for result in results:
        for one in result.scopes:
            family = find_family(one.scope)
            # `cpu` without a number is all of them: how many there are is not known.
            if family in DEVICES and one.scope != family and "/" not in one.scope:
                found.setdefault((family, one.model), set()).add((one.host, one.scope))
    return tuple(Hardware(family, model, len(places)) for (family, model), places in found.items())


# Model cards -----------------------------------------------------------------------------------------------------


def write_model_card(facts: StatementFacts, stated: StatedFields) -> str:
    """Return the metadata block of a model card, in YAML. Raises ConfigError without a carbon intensity."""
    card = make_model_card(facts, stated)
    # A JSON text is a YAML scalar, whatever signs it has.
    lines = [f"  {name}: {_write_scalar(value)}" for name, value in card.items()]
    return "\n".join(["---", "co2_eq_emissions:", *lines, "---"]) + "\n"


def _write_scalar(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # YAML 1.1 reads a number without a point, such as 5e-05, as a text.
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text


def make_model_card(facts: StatementFacts, stated: StatedFields) -> dict[str, Any]:
    """Return the fields of `co2_eq_emissions`; those that nobody stated are left out. Raises ConfigError."""
    co2e = _require_co2e(facts)
    grams, expanded = co2e.value * 1e3, None if co2e.expanded is None else co2e.expanded * 1e3
    text = round_interval(grams, expanded)[0] if expanded else fmt.format_number(grams)
    rounded = float(text.replace(",", ""))
    card: dict[str, Any] = {"emissions": rounded, "source": _word_source(facts)}
    location = stated.location or ", ".join(dict.fromkeys(site.name for site in facts.sites if site.name))
    hardware = ", ".join(one.text for one in facts.hardware)
    named = {"training_type": stated.training_type, "geographical_location": location, "hardware_used": hardware}
    return card | {name: value for name, value in named.items() if value}


def _word_source(facts: StatementFacts) -> str:
    co2e = _require_co2e(facts)
    version = ", ".join(facts.methods.versions)
    first = f"{facts.verb} with joulelab {version}"
    if facts.methods.simulated:
        first = f"simulated ({facts.methods.simulated}), nothing was measured; joulelab {version}"
    energy = f"{format_energy(facts.energy)} by {', '.join(_list_meter_names(facts))}"
    rates = dict.fromkeys(
        word_source(site) + (f"; PUE {fmt.format_plain(site.pue)}" if site.pue != 1 else "") for site in facts.sites
    )
    rest = "; ".join(part for part in (*rates, _word_present_site(facts), *_list_limits(facts)) if part)
    return f"{first}: {energy}; {format_co2e(co2e, has_interval=True)} CO2e at {rest}"


def _list_limits(facts: StatementFacts) -> list[str]:
    """Return why the figure is not the energy of the work alone: parts without a meter, others on the node."""
    lacks, share = facts.methods.left_out, _word_shares(facts)
    return [*([f"not measured: {'; '.join(lacks)}"] if lacks else []), *([f"shared: {share}"] if share else [])]


def _word_shares(facts: StatementFacts) -> str:
    """Return the part of the runs in the energy of nodes that others used, too; empty if nobody did."""
    checks = [check for _, check in facts.shares]
    if not checks or len(facts.results) == 1:
        return "; ".join(word_check(check).text for check in checks)
    node, low, high = (fmt.format_joules(sum(c.numbers[n] for c in checks)) for n in ("node_j", "low_j", "high_j"))
    part = f"{low} to {high}"
    if all("energy_j" in check.numbers for check in checks):
        part = f"{fmt.format_joules(sum(check.numbers['energy_j'] for check in checks))} ({part})"
    used = f"others used the node too in {len(checks)} of {len(facts.results)} runs"
    return f"{used}: of the node's {node} in these, the runs: {part}"


def _word_present_site(facts: StatementFacts) -> str:
    """Return that runs recorded no site and have the one of now; empty if all recorded theirs."""
    count = sum(r.site is not None and not r.site.is_empty and not r.site.is_recorded for r in facts.results)
    runs = "the run" if len(facts.results) == 1 else f"{count} of {len(facts.results)} runs"
    return f"{runs} recorded no site, so that of now is used" if count else ""


def _list_meter_names(facts: StatementFacts) -> list[str]:
    names = {**METER_NAMES, **TOOL_NAMES}
    return list(dict.fromkeys(names.get(use.meter, use.meter.rpartition("/")[2]) for use in facts.methods.meters))


def _require_co2e(facts: StatementFacts) -> Quantity:
    if facts.co2e_kg is None:
        lacking = next(r.run for r in facts.results if r.footprint is None or r.footprint.co2e_kg is None)
        raise ConfigError(
            "the emissions are not known",
            where=lacking,
            why="no carbon intensity is set, and the run recorded none",
            next=SITE_COMMAND,
            code="config.no-intensity",
        )
    return facts.co2e_kg


# BoAmps ----------------------------------------------------------------------------------------------------------


def make_boamps_report(facts: StatementFacts, stated: StatedFields, now: str) -> dict[str, Any]:
    """Return an energy report of BoAmps; `now` is its date, `YYYY-MM-DD HH:MM:SS`. Raises ConfigError."""
    _require_boamps_fields(stated)
    algorithm = {"algorithmName": stated.algorithm, "foundationModelName": stated.model}
    task: dict[str, Any] = {
        "taskStage": stated.stage,
        "taskFamily": stated.family,
        "algorithms": [{name: value for name, value in algorithm.items() if value}],
        "dataset": [_read_data(text) for text in stated.data],
    }
    accuracy = facts.results[0].facts.get("accuracy") if len(facts.results) == 1 else None
    if isinstance(accuracy, int | float) and not isinstance(accuracy, bool) and 0 <= accuracy <= 1:
        task["measuredAccuracy"] = accuracy
    if "requests" in facts.work:
        task["nbRequest"] = facts.work["requests"]
    simulated = [f"simulated ({facts.methods.simulated}); nothing was measured"] if facts.methods.simulated else []
    if remarks := [*simulated, *_list_limits(facts)]:
        task["taskDescription"] = ". ".join(remarks)
    report: dict[str, Any] = {
        "header": {"reportDatetime": now},
        "task": task,
        "measures": [_make_measure(result) for result in facts.results],
        "infrastructure": {"infraType": stated.infrastructure, "components": _list_components(facts)},
    }
    named = [site for site in facts.sites if site.name]
    if len(named) == len(facts.sites) == 1:
        environment: dict[str, Any] = {"country": named[0].name}
        if named[0].g_per_kwh is not None:
            environment["powerSourceCarbonIntensity"] = named[0].g_per_kwh
        report["environment"] = environment
    # It is the error of the task's energy, which is not known if parts of the node lack or others used it, too.
    is_whole = all(part.startswith(OUTSIDE) for part in facts.methods.left_out) and not facts.shares
    relative = facts.energy.relative if is_whole else None
    quality = None if relative is None else next((name for most, name in QUALITIES if relative <= most), None)
    return report | ({"quality": quality} if quality else {})


def _require_boamps_fields(stated: StatedFields) -> None:
    given = {
        "taskStage": (stated.stage, "--stage training"),
        "taskFamily": (stated.family, '--family "text classification"'),
        "algorithms": (stated.algorithm or stated.model, "--algorithm transformer or --model llama3.1-8b"),
        "dataset": (stated.data, "--data input:text"),
        "infraType": (stated.infrastructure, "--infra onPremise"),
    }
    missing = {name: option for name, (value, option) in given.items() if not value}
    if missing:
        raise ConfigError(
            f"BoAmps requires {', '.join(missing)}",
            why="no run contains this, and nothing is guessed",
            next=f"add {', '.join(missing.values())}",
            code="config.missing-field",
        )


def _read_data(text: str) -> dict[str, str]:
    use, _, kind = text.partition(":")
    if use not in DATA_USES or kind not in DATA_TYPES:
        advice = f"write it as input:text; uses: {', '.join(DATA_USES)}; types: {', '.join(DATA_TYPES)}"
        raise ConfigError(f"{text!r} is no data of BoAmps", where="--data", next=advice, code="config.wrong-field")
    return {"dataUsage": use, "dataType": kind}


def _make_measure(result: Result) -> dict[str, Any]:
    energy = result.energy
    assert energy is not None
    modes = {
        family: ", ".join(dict.fromkeys(s.reading.meter for s in result.scopes if find_family(s.scope) == family))
        for family in ("cpu", "gpu")
    }
    # Six digits are more than any meter has; the interval is in the field `quality`.
    measure: dict[str, Any] = {
        "measurementMethod": "joulelab" if not result.twin else "joulelab, simulated node",
        "version": __version__,
        "cpuTrackingMode": modes["cpu"],
        "gpuTrackingMode": modes["gpu"],
        "averageUtilizationCpu": result.load.get("host.busy.mean"),
        "averageUtilizationGpu": result.gpu_load,
        "powerConsumption": float(f"{energy.kwh.value:.6g}"),
        "measurementDuration": round(result.duration_s, 3),
        "measurementDateTime": result.start_utc[:19].replace("T", " "),
    }
    return {name: value for name, value in measure.items() if value not in (None, "")}


def _list_components(facts: StatementFacts) -> list[dict[str, Any]]:
    listed = [
        {"componentType": one.family, "nbComponent": one.count, **({"componentName": one.model} if one.model else {})}
        for one in facts.hardware
    ]
    return listed or [{"componentType": "server", "nbComponent": max(facts.hosts, 1)}]


# SCI -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CarbonIntensityScore:
    """Hold the parts of SCI = (E x I + M) per R, in g CO2e per unit of work; `missing` names what is not known.

    `score` is None without I; without M it is E x I per R alone.
    """

    energy_kwh: Quantity
    operational_g: Quantity | None
    embodied_g: float | None
    unit: str
    amount: float
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def score(self) -> Quantity | None:
        """Return g CO2e per unit of work, with as many parts as are known."""
        if self.operational_g is None:
            return None
        return (self.operational_g + (self.embodied_g or 0.0)) * (1 / self.amount)


def compute_sci(facts: StatementFacts, stated: StatedFields) -> CarbonIntensityScore:
    """Return the SCI of runs with what is known. Raises ConfigError for a unit of work that no run reported."""
    kinds = choose_work_kinds(facts.work)
    unit = stated.per or (kinds[0] if kinds else RUNS)
    amounts = {**facts.work, RUNS: float(len(facts.results)), "run": float(len(facts.results))}
    if not amounts.get(unit, 0.0) > 0:
        advice = f"choose one of {', '.join([*facts.work, RUNS])}, or report it by joulelab.work({unit}=...)"
        raise ConfigError(f"no run reported {unit!r}", where="--per", next=advice, code="config.no-work")
    missing = {}
    if facts.co2e_kg is None:
        missing["I"] = SITE_COMMAND
    embodied_g = None
    if stated.embodied_kg is None or stated.lifetime_years is None:
        missing["M"] = "--embodied KG --lifetime YEARS"
    else:
        node_kg = stated.embodied_kg / max(facts.hosts, 1)
        embodied_g = node_kg * 1e3 * facts.node_s / (stated.lifetime_years * SECONDS_PER_YEAR)
    operational_g = None if facts.co2e_kg is None else facts.co2e_kg * 1e3
    kwh = facts.site_energy.kwh
    return CarbonIntensityScore(kwh, operational_g, embodied_g, name_one(unit), amounts[unit], missing)


def list_sci_facts(facts: StatementFacts, stated: StatedFields) -> list[tuple[str, str]]:
    """Return the SCI as labelled lines, the answer first."""
    found = compute_sci(facts, stated)
    lines = [("SCI", _word_score(found))]
    energy = f"{_format_kwh(facts.energy.kwh)} {facts.verb}"
    if len(facts.by_pue) > 1:
        parts = [f"{_format_kwh(part.kwh)} x PUE {fmt.format_plain(pue)}" for pue, part in facts.by_pue.items()]
        energy += f"; {' + '.join(parts)} = {_format_kwh(found.energy_kwh)}"
    elif (pue := next(iter(facts.by_pue))) != 1:
        energy += f" x PUE {fmt.format_plain(pue)} = {_format_kwh(found.energy_kwh)}"
    lines.append(("E", "; ".join([energy, *_list_limits(facts)])))
    rates = list(dict.fromkeys(word_source(site) for site in facts.sites if site.g_per_kwh is not None))
    rates += [present] if rates and (present := _word_present_site(facts)) else []
    lines.append(("I", f"annual average, location-based: {'; '.join(rates)}" if rates else f"missing: {SITE_COMMAND}"))
    if found.embodied_g is None:
        lines.append(("M", f"missing: {found.missing['M']} (CO2e of making the nodes)"))
    else:
        years, kg = fmt.format_plain(stated.lifetime_years or 0.0), fmt.format_plain(stated.embodied_kg or 0.0)
        nodes = (f" for {facts.hosts} nodes", ", times of all nodes added") if facts.hosts > 1 else ("", "")
        used = f"{kg} kg{nodes[0]} over {years} years, used for {fmt.format_duration(facts.node_s)}{nodes[1]}"
        lines.append(("M", f"{fmt.format_rough(found.embodied_g, 'g')} CO2e: {used}"))
    units = found.unit if found.amount == 1 else f"{found.unit}s"
    lines.append(("R", f"{fmt.format_amount(found.amount)} {units}"))
    return lines


def _word_score(found: CarbonIntensityScore) -> str:
    score = found.score
    if score is None:
        return "not known: the carbon intensity I is missing"
    figure = f"{fmt.format_quantity(score, 'g')} CO2e per {found.unit}"
    if "M" in found.missing:
        return f"not known: M is missing; E x I per R alone is {figure}"
    return f"{figure} (ISO/IEC 21031:2024)"


def _format_kwh(kwh: Quantity) -> str:
    return (
        f"{fmt.format_scaled(kwh, 1.0)} kWh" if kwh.known else f"{fmt.format_number(kwh.value)} kWh (accuracy unknown)"
    )


# Text ------------------------------------------------------------------------------------------------------------


def list_text_facts(facts: StatementFacts) -> list[tuple[str, str]]:
    """Return the statement as labelled lines: the answer, what was measured, what was not, and what the AI Act asks."""
    methods = facts.methods
    lines: list[tuple[str, str]] = []
    if methods.simulated:
        lines.append(("simulated", f"{methods.simulated}; nothing was measured on real hardware"))
    lines.append(("energy", f"{format_energy(facts.energy, estimate=facts.is_estimate)}, {facts.verb}"))
    lines += [("share", share)] if (share := _word_shares(facts)) else []
    lines.append(("CO2e", _word_co2e(facts)))
    count = f"{len(facts.results)} runs, " if len(facts.results) > 1 else ""
    nodes = f" on {facts.hosts} {'node' if facts.hosts == 1 else 'nodes'}" if facts.hosts else ""
    lines.append(("time", f"{count}{fmt.format_duration(facts.duration_s)}{nodes}"))
    lines += (
        [("work", ", ".join(fmt.format_work(done, kind) for kind, done in facts.work.items()))] if facts.work else []
    )
    if facts.hardware:
        lines.append(("hardware", ", ".join(one.text for one in facts.hardware)))
    lines += [("measured", text) for text in _word_meters(facts)]
    lines.append(("lacks", "; ".join((*methods.left_out, *_list_gaps(facts)))))
    return lines


def _word_co2e(facts: StatementFacts) -> str:
    if facts.co2e_kg is None:
        return f"not known: {SITE_COMMAND}"
    rates = list(dict.fromkeys(f"{word_source(site)}, PUE {fmt.format_plain(site.pue)}" for site in facts.sites))
    rates += [present] if (present := _word_present_site(facts)) else []
    return f"{format_co2e(facts.co2e_kg, has_interval=True)} ({'; '.join(rates)})"


def _word_meters(facts: StatementFacts) -> Iterator[str]:
    names = {**METER_NAMES, **TOOL_NAMES}
    for use in facts.methods.meters:
        verb = "estimated by" if use.is_estimate else "by"
        rate = f", {fmt.format_number(use.rate_hz, 2)} readings a second" if use.rate_hz >= 1 else ""
        accuracy = ACCURACY_WORDS.get(use.accuracy, f"accuracy {use.accuracy}")
        name = names.get(use.meter, use.meter.rpartition("/")[2])
        yield f"{fmt.join_scopes(use.scopes)} {verb} {name}{rate}; {accuracy}"


def _list_gaps(facts: StatementFacts) -> Iterator[str]:
    methods = facts.methods
    yield "making and disposal of the hardware"
    yield "runs other than those named (development, failed runs, tuning)"
    if 0 < methods.coverage < 0.995:
        yield f"{fmt.format_percent(1 - methods.coverage, signed=False)} of the time had no readings"
    if methods.failed:
        yield f"{methods.failed} of the commands failed; their energy is included"


def list_ai_act_facts(facts: StatementFacts) -> list[tuple[str, str, str]]:
    """Return what Annex XI of the AI Act asks about energy: the point, the question, and the answer of the runs."""
    flop = facts.work.get(FLOP)
    hardware = ", ".join(one.text for one in facts.hardware)
    compute = fmt.format_work(flop, FLOP) if flop else "not reported: joulelab.work(FLOP=...)"
    energy = format_energy(facts.energy, estimate=facts.is_estimate)
    answer = f"{'estimated' if facts.is_estimate else 'known'}: {energy}"
    if facts.methods.simulated:
        answer = f"not known: these runs are simulated ({energy})"
    parts = f"; it lacks {'; '.join(facts.methods.left_out)}" if facts.methods.left_out else ""
    parts += f"; shared: {share}" if (share := _word_shares(facts)) else ""
    return [
        ("(d)", "floating-point operations", compute),
        ("(d)", "training time", f"{fmt.format_duration(facts.duration_s)}{f' on {hardware}' if hardware else ''}"),
        ("(e)", "energy consumption", f"{answer}{parts}"),
    ]


def describe_statement(facts: StatementFacts, stated: StatedFields) -> dict[str, Any]:
    """Return everything as plain data, for JSON; what is not known is null."""
    found = compute_sci(facts, stated)
    score = found.score
    return {
        "runs": [result.run for result in facts.results],
        "known_by": facts.verb,
        "energy_kwh": _describe(facts.energy.kwh),
        "site_energy_kwh": _describe(facts.site_energy.kwh),
        "co2e_kg": _describe(facts.co2e_kg),
        "duration_s": facts.duration_s,
        "hardware": [asdict(one) for one in facts.hardware],
        "nodes": facts.hosts,
        "node_s": facts.node_s,
        "shared": [{"run": r.run, "code": c.code, **c.numbers, **c.texts} for r, c in facts.shares],
        "work": dict(facts.work),
        "sites": [site.to_json() for site in facts.sites],
        "not_measured": list(facts.methods.left_out),
        "sci": {
            "g_per_unit": _describe(score),
            "unit": found.unit,
            "amount": found.amount,
            "embodied_g": found.embodied_g,
            "missing": dict(found.missing),
        },
        "ai_act": [
            {"point": point, "asks": asks, "answer": answer} for point, asks, answer in list_ai_act_facts(facts)
        ],
    }


def _describe(quantity: Quantity | None) -> dict[str, float | None] | None:
    if quantity is None:
        return None
    return {"value": quantity.value, "expanded": quantity.expanded}
