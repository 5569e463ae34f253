"""Reproduce the BNL study: what a node of eight H100 draws in training, by batch, beside a burn and the nameplate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.papers import Paper, PublishedTable
from joulelab.papers.bnl_meters import PERIODS_S, costs, sentences
from joulelab.papers.bnl_pictures import LABELS, pictures_of
from joulelab.papers.bnl_runs import HOUR_S, KWH, Ran, ran
from joulelab.papers.figure_judgement import POINTS, SHARE, Figure, finding
from joulelab.papers.published import published as printed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulelab.papers.figure_judgement import Kind, Tolerance
    from joulelab.study.folder import Study

SMALL, LARGE, LLAVA, BURN = "resnet-512", "resnet-4096", "llava", "burn"
SHOWN = {**LABELS, BURN: "burn, GPUs and host", "burn-gpus": "burn, GPUs alone"}
NEAR = 0.1  # what draws within so much of the burn is called near to it
PEAKS = (
    "power changes by as much as in public runs on H100 nodes, and with 512 the twin's highest is its test after each "
    "epoch, whose batches are larger; the paper does not tell what its peaks were"
)
WHY = {
    "bnl.llava.duration_h": "by LLaVA's own time on eight A100 and a public ratio of H100 to A100; its text lengths, "
    "padding and epochs on the paper's node are not known",
    "bnl.llava.max_w": "the twin's GPUs are near their caps and its host is loaded evenly, so power rises by 4 % at "
    "most; the paper's maximum is that of its burn, which loads the host too",
    "bnl.resnet-512.max_w": PEAKS,
    "bnl.resnet-4096.max_w": PEAKS,
    "bnl.resnet-4096.duration_h": "follows from the fixed cost of a step, the test and the pause of an epoch, which "
    "the paper does not give one by one",
    "bnl.resnet-4096.energy_kwh": "its mean power: the twin's pause between epochs and its test after each draw less "
    "than the training, so that its mean lies further below its median than the paper's (30 kWh in 5 h, 4 % below "
    "6260 W); the pause is assumed",
    "bnl.energy_factor": "4 is rounded: the paper's own energies give 4.1",
    "bnl.mean_power_difference_w": "the paper says 1 kW and 900 W; its energies and durations give 1270 W",
    "bnl.burn_minus_llava_w": "the paper's own medians differ by 510 W, not 400",
}


def figures(study: Study, published: Mapping[str, Any]) -> list[Figure]:
    """Return every figure of the paper beside what the study gave."""
    found = ran(study)
    made = [
        *_runs(found, published),
        *_derived(found, published),
        *_rack(found, published),
        *_findings(found, published),
    ]
    return [replace(f, note=WHY.get(f.id, f.note)) if f.verdict == "miss" else f for f in made]


def _name(row: Mapping[str, Any]) -> str:
    """Return what a row of the paper's runs is called here."""
    if row["workload"].startswith("resnet"):
        return f"resnet-{row['batch_size']}"
    return LLAVA if row["workload"].startswith("llava") else BURN


def _runs(found: Mapping[str, Ran], published: Mapping[str, Any]) -> list[Figure]:
    """Return duration, median, maximum, energy and load of each run, as far as the paper prints them."""
    made = []
    for row in published["run"]:
        name = _name(row)
        one = found.get(name)
        kwh = None if one is None or one.energy is None else one.energy * (1 / KWH)
        # Median and duration of the small batch are calibrated, and it draws nearly the same all the time.
        kind: Kind = "identity" if name == SMALL else "predicted"
        each: list[tuple[str, str, str, float | None, Kind, float | None]] = [
            ("duration_h", "duration", "h", None if one is None else one.time_s / HOUR_S, "predicted", None),
            ("median_w", "median power", "W", None if one is None else one.median_w, "predicted", None),
            ("max_w", "maximum power", "W", None if one is None else one.max_w, "predicted", None),
            (
                "energy_kwh",
                "energy",
                "kWh",
                None if kwh is None else kwh.value,
                kind,
                None if kwh is None else kwh.expanded,
            ),
            ("gpu_load_mean_pct", "mean load of the GPUs", "%", _percent(one), "predicted", None),
        ]
        made += [
            Figure(
                id=f"bnl.{name}.{key}", label=f"{SHOWN[name]}: {label}", published=row[key], reproduced=value,
                unit=unit, kind=own, uncertainty=expanded,
            )
            for key, label, unit, value, own, expanded in each
            if key in row
        ]  # fmt: skip
    return made


def _percent(one: Ran | None) -> float | None:
    return None if one is None or one.load is None else 100 * one.load


def _derived(found: Mapping[str, Ran], published: Mapping[str, Any]) -> list[Figure]:
    """Return what the paper says of its runs: it follows from their powers, energies and durations."""
    most, rated = _most(found), float(published["rated_w"])
    small, large = found.get(SMALL), found.get(LARGE)
    first, second = _kwh(small), _kwh(large)
    below = None if most is None else 100 * (1 - most / rated)
    factor = first / second if first and second else None
    return [
        _figure("headline_max_w", "highest power of all runs", published, most, "W"),
        _figure("max_below_nameplate_pct", "highest power below the nameplate", published, below, "%", POINTS),
        _figure("energy_factor_batch", "energy of batch 512 over 4096", published, factor, "", name="energy_factor"),
        _figure("energy_difference_kwh", "energy of batch 512 above 4096", published, _minus(first, second), "kWh"),
        _figure(
            "mean_power_difference_w", "mean power of batch 4096 above 512", published,
            _minus(_mean(large), _mean(small)), "W",
        ),
        _figure(
            "burn_minus_llama_median_w", "median power of the burn above LLaVA", published,
            _minus(_median(found, BURN), _median(found, LLAVA)), "W", name="burn_minus_llava_w",
        ),
    ]  # fmt: skip


def _figure(
    key: str,
    label: str,
    published: Mapping[str, Any],
    value: float | None,
    unit: str,
    tolerance: Tolerance = SHARE,
    *,
    name: str = "",
) -> Figure:
    return Figure(
        id=f"bnl.{name or key}", label=label, published=published[key], reproduced=value, unit=unit,
        tolerance=tolerance, kind="identity",
    )  # fmt: skip


def _rack(found: Mapping[str, Ran], published: Mapping[str, Any]) -> list[Figure]:
    """Return the rack: what six nodes at the highest power leave of its supply, beside the margin it was made for."""
    most, supply_w = _most(found), float(published["rack_supply_w"])
    nodes = int(published["rack_nodes"])
    designed = 1 - nodes * float(published["rated_w"]) / supply_w
    left = None if most is None else 1 - (nodes + 1) * most / supply_w
    label = f"margin of the rack with {nodes + 1} nodes at the highest power"
    said = "" if left is None else f"{100 * left:.1f} % are left, {100 * designed:.1f} % by design with {nodes}"
    return [
        _figure("rack_margin_published", label, published, left, "", name="rack.margin"),
        finding("bnl.finding.rack", published["rack_conclusion"], None if left is None else left >= designed, said),
    ]


def _findings(found: Mapping[str, Ran], published: Mapping[str, Any]) -> list[Figure]:
    small, large, llava, burn = (_median(found, name) for name in (SMALL, LARGE, LLAVA, BURN))
    first, second, most = _kwh(found.get(SMALL)), _kwh(found.get(LARGE)), _most(found)
    rated = float(published["rated_w"])
    batch = None if None in (small, large, first, second) else large > small and second < first  # type: ignore[operator]
    order = [small, large, llava, burn]
    known = [w for w in order if w is not None]
    whole = len(known) == len(order)
    near = None if llava is None or burn is None else 0 <= burn - llava <= NEAR * burn
    return [
        finding("bnl.finding.batch", "a larger batch draws more power, and takes less energy for the same training",
                batch, "" if batch is None else f"{large:.0f} and {small:.0f} W, {second:.1f} and {first:.1f} kWh"),
        finding("bnl.finding.nameplate", "no run comes near the nameplate, not even a burn of GPUs and host",
                None if most is None else most < (1 - NEAR) * rated, "" if most is None else f"{most:.0f} W"),
        finding("bnl.finding.burn", "training a large model draws nearly what a burn does", near,
                "" if near is None else f"{llava:.0f} and {burn:.0f} W"),
        finding("bnl.finding.order", "power rises from the small batch over the large one and LLaVA to the burn",
                known == sorted(set(known)) if whole else None, ", ".join(f"{w:.0f} W" for w in known)),
    ]  # fmt: skip


def _most(found: Mapping[str, Ran]) -> float | None:
    """Return the highest power of all runs (W), once the burn is among them."""
    known = [one.max_w for one in found.values() if one.max_w is not None]
    return max(known) if known and BURN in found else None


def _median(found: Mapping[str, Ran], name: str) -> float | None:
    return found[name].median_w if name in found else None


def _kwh(one: Ran | None) -> float | None:
    return None if one is None or one.energy is None else one.energy.value / KWH


def _mean(one: Ran | None) -> float | None:
    return None if one is None else one.mean_w


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def tables(study: Study) -> list[PublishedTable]:
    """Return the paper's table 1, and what other periods of reading would have given."""
    found, rated = ran(study), float(printed("bnl")["rated_w"])
    heads = ("run", "batch", "duration, h", "median, W", "maximum, W", "energy, kWh", "maximum of nameplate, %")
    rows = tuple(_row(one, rated) for one in found.values())
    records = tuple(_record(one, rated) for one in found.values())
    note = f"Power once a minute, and energy made of it, with the PDU's own gain; nameplate {rated / 1000:g} kW."
    made = [
        PublishedTable("summary", "Table 1: batch, duration, power and energy of each run", heads, rows, note, records)
    ]
    return [*(made if rows else []), *_sampling(study)]


def _row(one: Ran, rated_w: float) -> tuple[str, ...]:
    kwh = _kwh(one)
    return (
        SHOWN.get(one.name, one.name),
        "-" if one.batch is None else str(one.batch),
        f"{one.time_s / HOUR_S:.2f}",
        "-" if one.median_w is None else f"{one.median_w:.0f}",
        "-" if one.max_w is None else f"{one.max_w:.0f}",
        "-" if kwh is None else f"{kwh:.1f}",
        "-" if one.max_w is None else f"{100 * one.max_w / rated_w:.1f}",
    )


def _record(one: Ran, rated_w: float) -> dict[str, Any]:
    return {
        "run": one.name,
        "batch": one.batch,
        "time_s": one.time_s,
        "median_w": one.median_w,
        "max_w": one.max_w,
        "mean_w": one.mean_w,
        "energy_j": None if one.energy is None else one.energy.value,
        "energy_expanded_j": None if one.energy is None else one.energy.expanded,
        "gpu_load": one.load,
        "max_of_nameplate": None if one.max_w is None else one.max_w / rated_w,
    }


def _sampling(study: Study) -> list[PublishedTable]:
    found = costs(study)
    if not found:
        return []
    rows = tuple(
        (SHOWN.get(c.name, c.name), str(c.period_s), f"{100 * c.energy:.3f}", f"{100 * c.worst:.3f}",
         f"{c.median_w:+.1f}", f"{c.max_w:+.0f}")
        for c in found
    )  # fmt: skip
    records = tuple(
        {"run": c.name, "period_s": c.period_s, "energy_error": c.energy, "worst": c.worst,
         "median_off_w": c.median_w, "max_off_w": c.max_w, "max_each_second_w": c.most_w,
         "gain_error": c.gain}
        for c in found
    )  # fmt: skip
    heads = ("run", "read every, s", "energy off, %", "at worst, %", "median off, W", "maximum off, W")
    note = (
        "Energy by lines between readings, against the model's own integral; powers against those of every second. "
        f"Over where readings fall. Powers are with the PDU's own gain ({100 * found[0].gain:+.2f} %), energies not."
    )
    title = f"What reading every {', '.join(map(str, PERIODS_S[:-1]))} or {PERIODS_S[-1]} s gets wrong"
    return [PublishedTable("sampling", title, heads, rows, note, records)]


def meters(study: Study) -> list[str]:
    """Say what one reading a minute costs."""
    return sentences(costs(study))


def pictures(study: Study, folder: Path) -> list[Path]:
    """Write the paper's two figures; return the files. Raises MissingDependency."""
    burn_w = _median(ran(study), BURN)
    return pictures_of(study, folder, rated_w=float(printed("bnl")["rated_w"]), burn_w=burn_w)


PAPER = Paper(
    name="bnl",
    title="Empirical Measurements of AI Training Power Demand on a GPU-Accelerated Node (BNL, 2024)",
    file="bnl.toml",
    twins={"local": "bnl-h100"},
    figures=figures,
    pictures=pictures,
    tables=tables,
    meters=meters,
    hardware="do not expect the paper's ResNet-152 figures on H100s: the 4.4 s that each step waits are calibrated "
    "in the twin, and the workload does not have them; joulelab workload info resnet152-cifar10 lists options that "
    "could explain a part of them",
)
