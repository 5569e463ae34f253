"""Model how a workload gets on: its stages, what they ask of GPUs, CPUs and memory, and how long they take.

A stage's time has four parts: `seconds` as such, samples that the host handles one after another, a fixed cost of each
step, and samples that the devices share. Only the last is shorter on more GPUs, and longer under caps and locked clocks
of the devices; a cap of the CPUs prolongs what the host handles, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping  # noqa: TC003 - node files are converted by these types
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.study.program import NAMING, Each, Number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.twin.model import Node

MOST_S: Final = 1e9  # 30 years
MOST: Final = 1e15  # of any other number
MOST_PIECES: Final = 1_000_000  # stretches of constant power in a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Describe a stretch of a workload; numbers may name its parameters (`"epochs"`).

    `name` is the phase that the real workload marks, empty where there is none; `part` distinguishes its stages;
    `each` is `run` for once, `epoch` for every epoch; `on` restricts it to runs on the GPUs or on the CPUs, `when` to
    those where a parameter is above 0 (`"host_memory"`), or is not (`"!host_memory"`). Times in s, rates in samples/s
    of one device (GPU, or all CPUs), saturated and without a cap. `busy` is the share of time that kernels run on the
    GPUs in use, `intensity` how much of the chip they occupy with large batches, `half_batch` the samples of a step on
    each GPU with which it is half of that. A step has `batch` samples of all devices, or `device_batch` of each. `cpu`
    and `memory` are loads from 0 to 1. `flutter` is the relative standard deviation of dynamic power around its mean,
    each `flutter_s` (s) anew.
    """

    name: str = ""
    part: str = ""
    each: Each = "run"
    on: Literal["", "gpu", "cpu"] = ""
    when: str = ""
    seconds: Number = 0.0
    samples: Number = 0.0
    copies: Number = 1.0
    host_rate: float = 0.0
    rate: float = 0.0
    batch: Number = 0.0
    device_batch: Number = 0.0
    step_s: float = 0.0
    busy: float = 0.0
    intensity: float = 0.0
    half_batch: float = 0.0
    awake: float = 1.0
    cpu: float = 0.0
    memory: float = 0.0
    flutter: float = 0.0
    flutter_s: float = 20.0

    def __post_init__(self) -> None:
        numbers = {f.name: getattr(self, f.name) for f in fields(self)}
        wrong = next((key for key, n in numbers.items() if isinstance(n, float | int) and not 0 <= n < math.inf), None)
        if wrong is not None:
            what = f"{wrong} is {numbers[wrong]:g}, negative or not finite"
            raise ConfigError(what, where=f"stage {self.name!r}")
        if max(self.busy, self.intensity, self.awake, self.cpu, self.memory) > 1 or self.flutter_s <= 0:
            raise ConfigError("loads lie between 0 and 1, flutter_s above 0", where=f"stage {self.name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadModel:
    """Describe a workload: its stages in order, how often an epoch comes, and the scatter between runs.

    `parameters` are those of the real workload where a study gives no others. `time_scatter` and `power_scatter`
    are relative standard deviations, drawn once for a run.
    """

    stages: tuple[Stage, ...]
    epochs: Number = "epochs"
    parameters: Mapping[str, float] = field(default_factory=dict)
    time_scatter: float = 0.0
    power_scatter: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """Hold a stage as it will be: its time (s), what its devices do, the samples done; `epoch` counts from 1."""

    stage: Stage
    epoch: int | None
    seconds: float
    busy: float
    occupied: float
    samples: float


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Hold what a run is given: parameters, GPUs (none: it runs on the CPUs), and what holds them down.

    `caps` (W) and `clocks` (MHz) are by GPU, where there are any; `cpu_caps` (W) by package.
    """

    parameters: Mapping[str, float]
    gpus: tuple[int, ...] = ()
    caps: Mapping[int, float] = field(default_factory=dict)
    clocks: Mapping[int, float] = field(default_factory=dict)
    cpu_caps: Mapping[int, float] = field(default_factory=dict)


def check_run(seconds: float, pieces: float, where: str) -> None:
    """Refuse a run that takes too long (s), or has too many pieces. Raises ConfigError."""
    if not seconds <= MOST_S:
        raise ConfigError(
            f"the run would take {seconds:,.0f} s", where=where, why=f"at most {MOST_S:,.0f} s can be laid out"
        )
    if not pieces <= MOST_PIECES:
        why = f"at most {MOST_PIECES:,} can be laid out"
        then = "fewer epochs, or a longer flutter_s of its stages"
        raise ConfigError(f"the run would have {pieces:,.0f} pieces", where=where, why=why, next=then)


def list_steps(node: Node, model: WorkloadModel, ask: RunRequest) -> list[Step]:
    """Return every stage of a run in order, without scatter. Raises ConfigError for a parameter that is not known."""
    known = {**model.parameters, **ask.parameters}
    device = "gpu" if ask.gpus else "cpu"
    there = [stage for stage in model.stages if stage.on in ("", device) and _is_active(stage, known)]
    chosen = [_resolve_stage(stage, known) for stage in there]
    epochs = round(_read_number(model.epochs, known, "epochs"))
    check_run(0.0, epochs * max(sum(stage.each == "epoch" for stage in chosen), 1), f"{epochs} epochs")
    within = [k for k, stage in enumerate(chosen) if stage.each == "epoch"]
    first, last = (within[0], within[-1] + 1) if within else (len(chosen), len(chosen))
    order: list[tuple[Stage, int | None]] = [(stage, None) for stage in chosen[:first]]
    order += [(stage, n) for n in range(1, epochs + 1) for stage in chosen[first:last]]
    order += [(stage, None) for stage in chosen[last:]]
    each = {id(stage): make_step(node, stage, ask) for stage in chosen}
    longest = max(each.values(), key=lambda step: step.seconds, default=None)
    if longest is not None:
        check_run(longest.seconds, 0.0, f"stage {longest.stage.name!r}")
    made = [replace(each[id(stage)], epoch=n) for stage, n in order]
    return [step for step in made if step.seconds > 0]


def make_step(node: Node, stage: Stage, ask: RunRequest) -> Step:
    """Return what a stage whose numbers are known comes to."""
    samples = float(stage.samples) * float(stage.copies)
    count = max(len(ask.gpus), 1)
    batch = float(stage.batch) or float(stage.device_batch) * count
    each = batch / count
    occupied = stage.intensity * (each / (each + stage.half_batch) if each and stage.half_batch else 1.0)
    seconds = float(stage.seconds)
    if samples and stage.host_rate:
        seconds += samples / stage.host_rate * slow_cpus(node, stage, ask)
    if samples and batch:
        count_of = samples / batch
        seconds += (math.ceil(count_of) if count_of < MOST else count_of) * stage.step_s
    if samples and stage.rate:
        slower = slow_gpus(node, stage.busy, occupied, ask) if ask.gpus else slow_cpus(node, stage, ask)
        seconds += samples / (stage.rate * count) * slower
    done = samples if stage.rate else 0.0  # what the host alone handles is done by another stage
    return Step(stage, None, seconds, stage.busy if ask.gpus else 0.0, occupied if ask.gpus else 0.0, done)


def slow_gpus(node: Node, busy: float, occupied: float, ask: RunRequest) -> float:
    """Return how many times as long work on the GPUs takes under caps and locked clocks: the slowest GPU counts."""
    worst = 1.0
    for gpu in ask.gpus:
        one = node.get_board(gpu)
        full_w = min(float(one.draws_w(busy, occupied)), one.default_cap_w)
        worst = max(worst, one.slow_down(full_w, ask.caps.get(gpu, one.default_cap_w), ask.clocks.get(gpu)))
    return worst


def slow_cpus(node: Node, stage: Stage, ask: RunRequest) -> float:
    """Return how many times as long work on the CPUs takes under their caps: the slowest package counts."""
    wanted_w = float(node.cpu.draws_w(stage.awake, stage.cpu))
    return max((node.cpu.slow_down(wanted_w, cap_w) for cap_w in ask.cpu_caps.values()), default=1.0)


def _is_active(stage: Stage, known: Mapping[str, float]) -> bool:
    name = stage.when.removeprefix("!")
    return not name or (_read_number(name, known, stage.name) > 0) != stage.when.startswith("!")


def _resolve_stage(stage: Stage, known: Mapping[str, float]) -> Stage:
    numbers: dict[str, Any] = {key: _read_number(getattr(stage, key), known, stage.name) for key in NAMING}
    return replace(stage, **numbers)


def _read_number(value: Number, known: Mapping[str, Any], where: str) -> float:
    if not isinstance(value, str):
        return float(value)
    try:
        number = float(known[value])
    except (KeyError, TypeError, ValueError):
        listed: Sequence[str] = sorted(known)
        raise ConfigError(
            f"the workload has no number {value!r}", where=f"stage {where!r}", next=f"parameters: {', '.join(listed)}"
        ) from None
    if not 0 <= number <= MOST:
        raise ConfigError(f"{value} is {number:g}, not from 0 to {MOST:g}", where=f"stage {where!r}")
    return number


def list_used_names(model: WorkloadModel) -> set[str]:
    """Return the parameters that a model's time and power depend on."""
    named = [getattr(stage, key) for stage in model.stages for key in NAMING]
    found = {text for text in named if isinstance(text, str)} | {stage.when.removeprefix("!") for stage in model.stages}
    if isinstance(model.epochs, str) and any(stage.each == "epoch" for stage in model.stages):
        found.add(model.epochs)
    return found - {""}


def check_names(model: WorkloadModel, names: Iterable[str], where: str) -> None:
    """Refuse parameters that a model does not have, with the nearest that it has. Raises ConfigError."""
    known = list_used_names(model) | set(model.parameters)
    wrong = next((name for name in names if name not in known), None)
    if wrong is not None:
        then = suggest_name(wrong, known) if known else 'give numbers of its stages a name, as in samples = "images"'
        raise ConfigError(f"the model of the workload has no parameter {wrong!r}", where=where, next=then)
