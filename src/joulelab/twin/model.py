"""Model a node with few, named, physical parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.twin import flaws as shapes
from joulelab.twin.flaws import Flaws, draw_normal

if TYPE_CHECKING:
    from collections.abc import Mapping

Floats = npt.NDArray[np.float64]
MIB = 1 << 20
FULL_RPM = 13_000.0
COOLING_S = 5.0  # temperatures and fans follow the mean power of this time
CLOCK_POWER = 2.0  # dynamic power goes with this power of the clock: between that of a fixed voltage, 1, and 3
LEAST_CLOCK = 0.25  # assumed: a CPU's lowest clock, as a share of its highest; no cap gets it lower
_FAN_KNOTS = 26
_SPREAD = 1 << 32  # the stream of draws for the spread; those of the sensors are the GPUs' numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Describe one GPU: powers and caps in W, memory in bytes, clocks in MHz, temperatures in degrees Celsius.

    `architecture` and `brand` are NVML's numbers; `max_w` is what a full load would draw without a cap, `active_w` what
    a kernel draws that occupies next to nothing of the chip (None: no more than idle). Under a cap work takes longer by
    `t/t0 = 1 + a ((P/P0)^-k - 1)`, with a and k of `slowdown`. A cold chip leaks less: its dynamic power is lower by
    the share `cold`, which decays with `warm_up_s`.
    """

    name: str
    architecture: int
    brand: int
    compute: tuple[int, int]
    idle_w: float
    max_w: float
    min_cap_w: float
    max_cap_w: float
    default_cap_w: float
    memory_bytes: int
    sm_max_mhz: int
    memory_max_mhz: int
    multiprocessors: int
    cores: int
    pci_id: int
    sm_idle_mhz: int = 210
    memory_idle_mhz: int = 405
    bus_bits: int = 384
    pcie_generation: int = 4
    fans: int = 0
    ecc: bool = True
    mig: bool = False
    idle_c: float = 32.0
    max_c: float = 78.0
    active_w: float | None = None
    slowdown: tuple[float, float] = (0.040, 4.2)
    cold: float = 0.0
    warm_up_s: float = 120.0
    flaws: Flaws = field(default_factory=Flaws)

    def __post_init__(self) -> None:
        if not 0 <= self.idle_w < self.max_w:
            raise ConfigError(f"idle {self.idle_w} W is not below full load {self.max_w} W", where=f"GPU {self.name}")
        if not 0 < self.min_cap_w <= self.default_cap_w <= self.max_cap_w:
            raise ConfigError("caps are not in the order lowest, default, highest", where=f"GPU {self.name}")
        if not self.idle_w <= self.least_w <= self.max_w:
            raise ConfigError(f"active_w {self.active_w} W is not between idle and full load", where=f"GPU {self.name}")
        if not (min(self.slowdown) >= 0 and 0 <= self.cold < 1 and self.warm_up_s > 0):
            raise ConfigError("slowdown and cold are not negative, cold is below 1", where=f"GPU {self.name}")

    @property
    def least_w(self) -> float:
        """Return what it draws (W) while kernels run that occupy nothing."""
        return self.idle_w if self.active_w is None else self.active_w

    def draws_w(self, busy: Floats | float, occupied: Floats | float) -> Floats | float:
        """Return the power (W) of a warm chip: kernels run for a share `busy` of the time and occupy a share of it."""
        return self.idle_w + busy * (self.least_w - self.idle_w + occupied * (self.max_w - self.least_w))

    def compute_stretch(self, share: float) -> float:
        """Return by how much work takes longer at a share of the power that it wants."""
        a, k = self.slowdown
        return 1.0 if share >= 1 else 1 + a * (math.pow(share, -k) - 1)

    def clock_share(self, mhz: float | None) -> float:
        """Return the share of its dynamic power that a locked clock (MHz) leaves; None is no lock."""
        return 1.0 if mhz is None else math.pow(min(mhz / self.sm_max_mhz, 1.0), CLOCK_POWER)

    def clocked_w(self, wanted_w: float, mhz: float | None) -> float:
        """Return its power (W) at a locked clock (MHz), if it draws `wanted_w` at full clock."""
        return self.idle_w + (wanted_w - self.idle_w) * self.clock_share(mhz)

    def slow_down(self, full_w: float, cap_w: float, mhz: float | None = None) -> float:
        """Return the factor by which a cap (W) and a locked clock (MHz) prolong work that draws `full_w` without them.

        Where the clock alone holds it down, work takes as long as under a cap of the same power, but never longer than
        the clock is lower.
        """
        clocked_w = self.clocked_w(full_w, mhz)
        if cap_w < clocked_w:
            return self.compute_stretch(cap_w / full_w)
        return 1.0 if mhz is None else min(self.compute_stretch(clocked_w / full_w), max(self.sm_max_mhz / mhz, 1.0))

    def sm_mhz(self, wanted_w: Floats | float, given_w: Floats | float, busy: Floats | float) -> Floats:
        """Return the SM clock (MHz) at which it draws what a cap leaves of what it wants; at rest without a load.

        The C library has the same, and a test holds them equal; so with `celsius`.
        """
        left = np.maximum(np.subtract(given_w, self.idle_w), 0.0) / np.maximum(np.subtract(wanted_w, self.idle_w), 1e-9)
        share = np.where(np.less(given_w, wanted_w), np.minimum(left, 1.0), 1.0)
        mhz = np.maximum(self.sm_max_mhz * share ** (1 / CLOCK_POWER), self.sm_idle_mhz)
        return np.where(np.greater(busy, 0), mhz, float(self.sm_idle_mhz))

    def compute_celsius(self, mean_w: Floats | float) -> Floats:
        """Return its temperature (degrees Celsius) from its mean power over `COOLING_S`."""
        share = np.clip(np.subtract(mean_w, self.idle_w) / (self.max_w - self.idle_w), 0.0, 1.0)
        return np.asarray(self.idle_c + (self.max_c - self.idle_c) * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """Describe one CPU package in W; `core_share` of its dynamic power is that of the cores.

    `awake_w` is what it draws as soon as anything runs on it and it sleeps no more (None: no more than idle).
    """

    idle_w: float = 90.0
    max_w: float = 350.0
    awake_w: float | None = None
    core_idle_w: float = 25.0
    core_share: float = 0.85

    def draws_w(self, awake: Floats | float, load: Floats | float) -> Floats | float:
        """Return the power (W): awake for that share of the time, with that load of all cores."""
        least_w = self.idle_w if self.awake_w is None else self.awake_w
        return self.idle_w + awake * (least_w - self.idle_w) + load * (self.max_w - least_w)

    def held_w(self, cap_w: float) -> float:
        """Return the power (W) that a cap holds a package to: the cap, or that of the lowest clock if it is higher."""
        return max(cap_w, self.idle_w + math.pow(LEAST_CLOCK, CLOCK_POWER) * (self.max_w - self.idle_w))

    def slow_down(self, wanted_w: float, cap_w: float) -> float:
        """Return the factor by which a cap (W) prolongs work that draws `wanted_w` without it, by the lower clock."""
        given_w = min(wanted_w, self.held_w(cap_w))
        return 1.0 if given_w >= wanted_w else ((wanted_w - self.idle_w) / (given_w - self.idle_w)) ** (1 / CLOCK_POWER)

    def core_w(self, package_w: float) -> float:
        """Return the power (W) of the cores of a package that draws `package_w`."""
        return self.core_idle_w + self.core_share * (package_w - self.idle_w)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dram:
    """Describe the memory of one CPU package, in W."""

    idle_w: float = 14.0
    max_w: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Describe board, network and disks together, in W; they follow the load of the GPUs."""

    idle_w: float = 250.0
    max_w: float = 400.0


CoolingKind = Literal["air", "rear-door", "direct-to-chip"]
# What goes into water before air has to carry it off; how much harder it is to blow through a heat exchanger.
LIQUID: Mapping[str, float] = {"air": 0.0, "rear-door": 0.0, "direct-to-chip": 0.75}
DOOR: Mapping[str, float] = {"air": 1.0, "rear-door": 1.1, "direct-to-chip": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooling:
    """Describe the fans: power in W at rest and at full speed, and what makes them turn.

    They blow as much air as carries the heat off between `inlet_c` and `exhaust_c`; their power goes with the cube of
    that. At 25 degrees they are at full speed with `rated_heat_w` (None: with what the node draws at full load).
    """

    kind: CoolingKind = "air"
    fan_idle_w: float = 200.0
    fan_max_w: float = 1100.0
    inlet_c: float = 25.0
    exhaust_c: float = 45.0
    rated_heat_w: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.fan_idle_w <= self.fan_max_w:
            raise ConfigError("fans draw more at full speed than at rest, and never less than 0", where="cooling")
        if not self.inlet_c < self.exhaust_c or (self.rated_heat_w is not None and self.rated_heat_w <= 0):
            raise ConfigError("the exhaust is warmer than the inlet, and the rated heat above 0", where="cooling")

    def fans_w(self, heat_w: Floats, full_w: float) -> Floats:
        """Return the power of the fans (W) that carry off some heat; `full_w` is the node's own at full load."""
        reference_k = self.exhaust_c - 25.0
        air = 1 - LIQUID[self.kind]
        blown = air * heat_w / (self.rated_heat_w or full_w) * reference_k / (self.exhaust_c - self.inlet_c)
        return np.clip(self.fan_max_w * DOOR[self.kind] * blown**3, self.fan_idle_w, self.fan_max_w)

    def compute_speed(self, fans_w: float) -> float:
        """Return the speed of the fans, as a share of the full one, at which they draw some power (W)."""
        return math.cbrt(min(fans_w / self.fan_max_w, 1.0)) if self.fan_max_w else 0.0

    def compute_rpm(self, fans_w: float) -> float:
        """Return the speed of the fans (rpm) at which they draw some power (W)."""
        return FULL_RPM * self.compute_speed(fans_w)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Describe the power supplies: rated output and standby input in W, efficiency at points of load.

    Between the points the input power is linear in the output power, so that energies stay exact. `cords` are the
    shares that the supplies take, each on a cord and an outlet of its own; they sum to 1.
    """

    rated_w: float = 12_000.0
    standby_w: float = 25.0
    load: tuple[float, ...] = (0.1, 0.2, 0.5, 1.0)
    efficiency: tuple[float, ...] = (0.90, 0.94, 0.96, 0.94)
    cords: tuple[float, ...] = (0.26, 0.25, 0.25, 0.24)

    def __post_init__(self) -> None:
        if len(self.load) != len(self.efficiency) or not self.load:
            raise ConfigError("as many efficiencies as loads are needed", where="supply")
        if list(self.load) != sorted(set(self.load)) or self.load[0] <= 0:
            raise ConfigError("loads rise from above 0", where="supply")
        if not all(0 < e <= 1 for e in self.efficiency):
            raise ConfigError("an efficiency is above 0 and at most 1", where="supply")
        if not all(share > 0 for share in self.cords) or not math.isclose(sum(self.cords), 1):
            raise ConfigError("the shares of the cords are above 0 and sum to 1", where="supply")

    def list_knots(self) -> tuple[Floats, Floats]:
        """Return output and input powers (W) between which the input is linear."""
        dc = np.array([0.0, *(point * self.rated_w for point in self.load)])
        ac = np.array([self.standby_w, *(d / e for d, e in zip(dc[1:], self.efficiency, strict=True))])
        return dc, ac


H100 = Gpu(
    name="NVIDIA H100 80GB HBM3", architecture=9, brand=14, compute=(9, 0),
    idle_w=70, max_w=700, min_cap_w=200, max_cap_w=700, default_cap_w=700,
    memory_bytes=81559 * MIB, bus_bits=5120, sm_max_mhz=1980, memory_max_mhz=2619, sm_idle_mhz=345,
    memory_idle_mhz=2619, multiprocessors=132, cores=16896, pci_id=0x233010DE, pcie_generation=5, mig=True,
    flaws=shapes.HOPPER,
)  # fmt: skip
A100 = Gpu(
    name="NVIDIA A100-SXM4-80GB", architecture=7, brand=14, compute=(8, 0),
    idle_w=58, max_w=400, min_cap_w=100, max_cap_w=400, default_cap_w=400,
    memory_bytes=81920 * MIB, sm_max_mhz=1410, memory_max_mhz=1593, memory_idle_mhz=1593, bus_bits=5120,
    multiprocessors=108, cores=6912, pci_id=0x20B210DE, mig=True, flaws=shapes.GA100,
)  # fmt: skip
V100 = Gpu(
    name="Tesla V100-SXM2-32GB", architecture=5, brand=2, compute=(7, 0),
    idle_w=42, max_w=300, min_cap_w=150, max_cap_w=300, default_cap_w=300,
    slowdown=(0.060, 3.4), memory_bytes=32768 * MIB, bus_bits=4096,
    sm_max_mhz=1530, memory_max_mhz=877, sm_idle_mhz=135, memory_idle_mhz=877,
    multiprocessors=80, cores=5120, pci_id=0x1DB510DE, pcie_generation=3, flaws=shapes.VOLTA,
)  # fmt: skip
RTX6000 = Gpu(
    name="Quadro RTX 6000", architecture=6, brand=12, compute=(7, 5),
    idle_w=18, max_w=260, min_cap_w=100, max_cap_w=260, default_cap_w=260,
    slowdown=(0.035, 4.0), memory_bytes=24220 * MIB, sm_max_mhz=2100, memory_max_mhz=7001, sm_idle_mhz=300,
    multiprocessors=72, cores=4608, pci_id=0x1E3010DE, pcie_generation=3, fans=1, flaws=shapes.TURING,
)  # fmt: skip
RTX3090 = Gpu(
    name="NVIDIA GeForce RTX 3090", architecture=7, brand=5, compute=(8, 6),
    idle_w=22, max_w=350, min_cap_w=100, max_cap_w=350, default_cap_w=350,
    slowdown=(0.026, 5.2), memory_bytes=24576 * MIB, sm_max_mhz=2100, memory_max_mhz=9751,
    multiprocessors=82, cores=10496, pci_id=0x220410DE, fans=2, ecc=False, flaws=shapes.GA10X,
)  # fmt: skip
PRESETS: Mapping[str, Gpu] = {"h100": H100, "a100": A100, "v100": V100, "rtx6000": RTX6000, "rtx3090": RTX3090}


def find_gpu_model(name: str) -> Gpu:
    """Return a GPU by short name (`h100`) or full name; raise ConfigError for an unknown one."""
    key = name.lower().replace(" ", "").replace("-", "")
    for short, gpu in PRESETS.items():
        if key == short or name == gpu.name:
            return gpu
    raise ConfigError(f"there is no GPU model {name!r}", where="twin", next=suggest_name(key, PRESETS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Describe a node. `spread` is the relative standard deviation of power between equal GPUs, drawn from `seed`.

    `rated_w` is the power on its nameplate, 0 where unknown: only estimates use it, the model does not.
    """

    name: str = "twin"
    gpus: tuple[Gpu, ...] = (H100,) * 8
    packages: int = 2
    cpu: Cpu = field(default_factory=Cpu)
    dram: Dram = field(default_factory=Dram)
    host: Host = field(default_factory=Host)
    cooling: Cooling = field(default_factory=Cooling)
    supply: Supply = field(default_factory=Supply)
    psys: bool = False
    spread: float = 0.02
    seed: int = 1
    rated_w: float = 0.0

    def list_leaves(self) -> list[str]:
        """Return the names of all leaves, from GPU to host."""
        gpus = [f"gpu:{i}" for i in range(len(self.gpus))]
        packages = [f"{kind}:{j}" for j in range(self.packages) for kind in ("cpu", "core", "dram")]
        return [*gpus, *packages, "host"]

    leaves = list_leaves  # the name in papers/, which is rebuilt at the moment

    def draw_factor(self, gpu: int) -> float:
        """Return the power of one GPU relative to its model."""
        return max(0.5, 1 + self.spread * float(draw_normal(self.seed, _SPREAD, gpu)[0]))

    def get_board(self, gpu: int) -> Gpu:
        """Return one GPU as it was built: its powers with the spread, its caps as they are."""
        one, factor = self.gpus[gpu], self.draw_factor(gpu)
        active_w = None if one.active_w is None else one.active_w * factor
        return replace(one, idle_w=one.idle_w * factor, max_w=one.max_w * factor, active_w=active_w)

    def to_dc(self) -> tuple[Floats, Floats]:
        """Return powers (W) of all leaves together and of the node with its fans, linear in between."""
        full_w = sum(self.range_w(leaf)[1] for leaf in self.list_leaves() if not leaf.startswith("core"))
        heat = full_w * np.linspace(0.0, 1.25, _FAN_KNOTS)
        return heat, heat + self.cooling.fans_w(heat, full_w)

    def to_ac(self) -> tuple[Floats, Floats]:
        """Return powers (W) of the node with its fans and of its cords, linear in between."""
        return self.supply.list_knots()

    def range_w(self, leaf: str) -> tuple[float, float]:
        """Return idle and full-load power (W) of a leaf, with the spread of GPUs; raise ConfigError for no leaf."""
        kind, _, number = leaf.partition(":")
        if leaf not in self.list_leaves():
            raise ConfigError(
                f"there is no leaf {leaf!r}", where=f"node {self.name}", next=suggest_name(leaf, self.list_leaves())
            )
        if kind == "gpu":
            gpu = self.gpus[int(number)]
            factor = self.draw_factor(int(number))
            return gpu.idle_w * factor, gpu.max_w * factor
        if kind == "core":
            return self.cpu.core_idle_w, self.cpu.core_w(self.cpu.max_w)
        parts: dict[str, Cpu | Dram | Host] = {"cpu": self.cpu, "dram": self.dram, "host": self.host}
        part = parts[kind]
        return part.idle_w, part.max_w

    def draws_w(self, leaf: str, load: Floats | float, awake: Floats | float = 1.0) -> Floats | float:
        """Return the power (W) of a leaf with a load from 0 to 1, without caps. Raises ConfigError for no leaf.

        That of a GPU is the share of time that kernels run on the whole chip; a package is awake for the share `awake`.
        """
        kind, _, number = leaf.partition(":")
        idle_w, max_w = self.range_w(leaf)
        if kind == "gpu":
            return self.draw_factor(int(number)) * self.gpus[int(number)].draws_w(load, 1.0)
        if kind == "cpu":
            return self.cpu.draws_w(awake, load)
        if kind == "core":
            return idle_w + self.cpu.core_share * (self.cpu.draws_w(awake, load) - self.cpu.idle_w)
        return idle_w + load * (max_w - idle_w)

    def with_flaws(self, gpu: int | None = None, **changes: Any) -> Node:
        """Return this node with flaws changed on one GPU, or on all; raise ConfigError for an unknown flaw."""
        if unknown := set(changes) - set(Flaws.__dataclass_fields__):
            wrong = min(unknown)
            raise ConfigError(
                f"there is no flaw {wrong!r}", where="twin", next=suggest_name(wrong, Flaws.__dataclass_fields__)
            )
        for name, value in changes.items():
            signed = name in ("gain_error", "offset_w")
            if isinstance(value, float | int) and not (math.isfinite(value) and (signed or value >= 0)):
                why = "a finite number is needed" if signed else "a finite number of at least 0 is needed"
                raise ConfigError(f"{name} cannot be {value}", where="twin", why=why)
        if gpu is not None and not 0 <= gpu < len(self.gpus):
            raise ConfigError(f"there is no GPU {gpu}", where=f"node {self.name}", why=f"it has {len(self.gpus)}")
        gpus = tuple(
            replace(g, flaws=replace(g.flaws, **changes)) if gpu in {None, i} else g for i, g in enumerate(self.gpus)
        )
        return replace(self, gpus=gpus)
