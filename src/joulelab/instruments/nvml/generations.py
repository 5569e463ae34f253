"""Describe NVIDIA's power sensors per generation: update period, share of time that they see, errors.

Measured by Yang, Adamek and Armour (SC24, arXiv 2312.02741) on over 70 boards; sensors that they did not measure are
marked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from joulelab.core.spec import Accuracy, Spec

STUDY = "arXiv 2312.02741 (SC24)"
NVML_DOCS = "NVML documentation of nvmlDeviceGetPowerUsage"
# At idle, recorded boards read low beside a meter by more than under load: an A100 by 1 W more than its gain explains,
# an RTX A5000 by 3 W, an RTX 3090 by 1 W. No more boards of other generations were recorded at idle, except a 4090.
USUAL_OFFSET_W = 5.0
_COUNTER = "not published whether the counter integrates between the sensor's windows: taken to see as little"


@dataclass(frozen=True, slots=True)
class Sensor:
    """Describe a power sensor: periods in s, `gain` a relative half-width, `offset_w` one in W.

    `plain_is_average`: plain power usage is an average over 1 s here.
    """

    name: str
    update_s: float
    window_s: float
    gain: float
    why: str
    plain_is_average: bool = False
    offset_w: float = USUAL_OFFSET_W

    @property
    def seen(self) -> float:
        """Return the share of time that the sensor sees."""
        return min(1.0, round(self.window_s / self.update_s, 6))


# By NVML's architecture numbers. The gain covers what the study measured, and is never below the 5 % that NVML's
# documentation states for Fermi and Kepler, the only generations for which it states any.
_BY_ARCHITECTURE = {
    2: Sensor("Kepler", 0.1, 0.1, 0.09, f"{NVML_DOCS}: 5 %, but -8.9 % measured on a K80; low-pass rise, {STUDY}"),
    3: Sensor("Maxwell", 0.1, 0.1, 0.09, f"low-pass rise over 15-100 ms, {STUDY}; gain taken from Kepler"),
    4: Sensor("Pascal", 0.02, 0.01, 0.05, f"within 0.5 % on P100 and 1080 Ti, {STUDY}; 5 % kept, as documented before"),
    5: Sensor("Volta", 0.02, 0.01, 0.05, f"window of {STUDY}; not compared with a meter, 5 % as documented before"),
    6: Sensor("Turing", 0.1, 0.1, 0.11, f"-6.2 % (2080 Ti) to +10.9 % (2060 Super) measured, {STUDY}"),
    7: Sensor("Ampere", 0.1, 0.1, 0.065, f"-0.1 to -6.1 % measured on 3090, 3070 Ti, A5000, {STUDY}"),
    8: Sensor("Ada", 0.1, 0.1, 0.05, f"-4.3 % and an offset of -22 W measured on a 4090, {STUDY}", offset_w=25.0),
    9: Sensor("Hopper", 0.1, 0.025, 0.06, f"window of {STUDY}; gain taken from GA100, whose sensor is alike"),
}
_GA100 = Sensor("GA100", 0.1, 0.025, 0.06, f"-5.5 % measured on an A100, {STUDY}")
_UNMEASURED = Sensor("unmeasured", 0.1, 0.025, 0.11, "", plain_is_average=True)
# Single boards that differ from their generation.
_WINDOW_BY_NAME = (("Quadro RTX 8000", 0.02), ("Quadro RTX 6000", 0.02), ("RTX A5000", 0.08), ("RTX 3090", 0.08))
_GA100_NAMES = ("A100", "A800", "A30", "CMP 170HX")


def find_sensor(architecture: int | None, capability: tuple[int, int] | None, name: str, driver: str = "") -> Sensor:
    """Return the power sensor of a GPU by NVML's architecture number, CUDA capability, name and driver version."""
    words = name.replace("-", " ").split()
    if architecture == 7 and (capability == (8, 0) or (capability is None and any(w in words for w in _GA100_NAMES))):
        return _GA100
    found = _BY_ARCHITECTURE.get(architecture or 0)
    if found is None:
        return replace(_UNMEASURED, why=f"this generation is not in {STUDY}: taken to see as little as Hopper")
    for part, window_s in _WINDOW_BY_NAME:
        if part in name:
            why = f"{found.why}; {window_s * 1000:.0f} ms window measured on boards of this kind"
            found = replace(found, window_s=window_s, why=why)
    # Ampere and later average plain power over 1 s, except that driver 530 gave 100 ms before Hopper.
    average = architecture == 9 or (architecture in (7, 8) and not driver.startswith("530."))
    return replace(found, plain_is_average=average)


def power_specs(found: Sensor, model: str, limits: tuple[float, float] | None) -> tuple[Spec, Spec, Spec]:
    """Return the channels energy_j, power_instant_w, power_average_w of a GPU; limits in W."""
    window, update = found.window_s * 1000, found.update_s * 1000
    text = f"{found.name}: sees {found.seen:.0%} of the time ({window:.0f} of {update:.0f} ms); {found.why}"
    # Counts of 1 mJ and 1 mW.
    accuracy = Accuracy("assumed", found.gain, found.offset_w, 0.001, f"nvml:{model}", text)
    counter = accuracy if found.seen == 1 else replace(accuracy, reference=f"{text}; {_COUNTER}")
    energy = Spec("energy_j", "energy", "J", "counter", 0.1, None, found.seen, limits=limits, accuracy=counter)
    instant = Spec("power_instant_w", "power", "W", "power", found.update_s, found.window_s, found.seen)
    average = Spec("power_average_w", "power", "W", "power", 0.1, 1.0, found.seen)
    powers = [replace(power, limits=limits, accuracy=accuracy) for power in (instant, average)]
    return energy, powers[0], powers[1]
