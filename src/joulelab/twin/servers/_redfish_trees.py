"""Shape the resources of a Redfish service as its makers do: standard trees, those of makers, an HGX board."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns, read_utc_ns
from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.readings import Panel

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.twin.truth import Truth

Json = dict[str, Any]
ROOT = "/redfish/v1"
SESSIONS = f"{ROOT}/SessionService/Sessions"
FANS = 6


def make_reference(path: str) -> Json:
    """Return a link."""
    return {"@odata.id": path}


class TreeBuilder:
    """Collect resources and the collections that list them."""

    def __init__(self, shown: RedfishReadings, *, expand: bool) -> None:
        self.shown = shown
        self.tree: dict[str, Callable[[], Json]] = {}
        self.lists: dict[str, list[str]] = {f"{ROOT}/Chassis": [], f"{ROOT}/Systems": [], f"{ROOT}/Managers": []}
        self._expand = expand

    def add_resource(self, path: str, body: Callable[[], Json], *, kind: str, listed: bool = False) -> str:
        """Add a resource; `listed` also adds it to its collection."""
        name = path.rsplit("/", 1)[1]
        self.tree[path] = lambda: {"@odata.id": path, "@odata.type": kind, "Id": name, "Name": name} | body()
        if listed:
            self.lists.setdefault(path.rsplit("/", 1)[0], []).append(path)
        return path

    def add_collections(self) -> None:
        """Add the collections and the root."""
        for path, members in self.lists.items():
            rows = [make_reference(member) for member in members]
            self.tree[path] = lambda path=path, rows=rows: {  # type: ignore[misc]
                "@odata.id": path,
                "Name": "Collection",
                "Members": rows,
                "Members@odata.count": len(rows),
            }
        features = {"ExpandQuery": {"Levels": True, "NoLinks": True, "ExpandAll": True, "MaxLevels": 2}}
        self.tree[ROOT] = lambda: (
            {
                "@odata.id": f"{ROOT}/",
                "RedfishVersion": "1.18.0",
                "Chassis": make_reference(f"{ROOT}/Chassis"),
                "Systems": make_reference(f"{ROOT}/Systems"),
                "SessionService": make_reference(f"{ROOT}/SessionService"),
                "Links": {"Sessions": make_reference(SESSIONS)},
            }
            | ({"ProtocolFeaturesSupported": features} if self._expand else {})
        )

    def add_sensor(
        self, chassis: str, name: str, kind: str, unit: str, point: str, read: Callable[[], Any], **more: str
    ) -> str:
        """Add a sensor to a chassis."""
        return self.add_resource(
            f"{chassis}/Sensors/{name}",
            lambda: (
                {
                    "Reading": read(),
                    "ReadingType": kind,
                    "ReadingUnits": unit,
                    "ReadingTime": self.shown.format_time(point),
                    "SensingInterval": self.shown.format_interval(),
                    "Implementation": "PhysicalSensor",
                    "Status": {"State": "Enabled", "Health": "OK"},
                }
                | more
            ),
            kind="#Sensor.v1_8_0.Sensor",
            listed=True,
        )


KWH_J = 3.6e6
VENDORS = (
    "generic", "sensors", "hgx", "dell", "dell-old", "hpe", "hpe-unmetered", "lenovo", "fujitsu", "inspur", "huawei",
    "supermicro",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RedfishFlaws(PanelFlaws):
    """Describe a BMC: the vendor of its tree, how long a session lasts, and the share of requests answered by 500."""

    base_j: float = 4.2e9
    vendor: str = "generic"
    session_s: float = 1800.0
    error_share: float = 0.0
    clock_error_s: float = 0.0  # of ReadingTime
    gpu_quantum_w: float = 0.001
    gpu_quantum_j: float = 0.001

    def __post_init__(self) -> None:
        super(RedfishFlaws, self).__post_init__()
        if self.vendor not in VENDORS:
            raise ConfigError(
                f"there is no vendor {self.vendor!r}", where="redfish", next=suggest_name(self.vendor, VENDORS)
            )


class RedfishReadings:
    """Read the points of a node as this BMC shows them."""

    def __init__(self, truth: Truth, flaws: RedfishFlaws) -> None:
        self.truth = truth
        self.flaws = flaws
        self.gpus = len(truth.node.gpus)
        self.supplies = len(truth.node.supply.cords)
        fine = replace(flaws, quantum_w=flaws.gpu_quantum_w, quantum_j=flaws.gpu_quantum_j)
        points = [p for p in truth.points if p.startswith(("psu", "gpu:")) or p in ("node.ac", "node.dc")]
        self.panels = {
            point: Panel(truth, point, fine if point.startswith("gpu") else flaws, number=300 + number)
            for number, point in enumerate(points)
        }

    def read_watts(self, *points: str) -> float:
        """Return the total power at points in W, as an integer where it is whole."""
        total = sum(self.panels[point].power_w() for point in points)
        return round(total) if float(total).is_integer() else round(total, 6)

    def read_joules(self, point: str) -> float:
        """Return the counter at a point, in J."""
        return round(self.panels[point].energy_j(), 6)

    def read_kwh(self, point: str) -> float:
        """Return the counter at a point, in kWh."""
        return round(self.panels[point].energy_j() / KWH_J, 9)

    def format_time(self, point: str) -> str:
        """Return the time of the reading at a point, in UTC with milliseconds."""
        now, utc = monotonic_ns(), read_utc_ns()
        age_ns = now - self.panels[point].find_update(now)[1]
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            microseconds=(utc - age_ns) / 1000, seconds=self.flaws.clock_error_s
        )
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def capacity_w(self, number: int) -> int:
        """Return the rated power of a supply."""
        supply = self.truth.node.supply
        return round(1.2 * supply.rated_w * supply.cords[number - 1])

    def format_interval(self) -> str:
        """Return the time between readings as an ISO 8601 duration."""
        return f"PT{self.flaws.period_s:g}S"

    def inlet_c(self) -> float:
        """Return the inlet temperature."""
        return self.truth.node.cooling.inlet_c

    def fan_percent(self) -> int:
        """Return the speed of all fans, from their power."""
        return round(100 * self.truth.node.cooling.compute_speed(self.truth.power("fans", monotonic_ns())))

    def fan_rpm(self, number: int) -> int:
        """Return a fan's speed."""
        return round(self.truth.node.cooling.compute_rpm(self.truth.power("fans", monotonic_ns()))) + 20 * number


# Chassis id, maker, model.
MAKER_NAMES = {
    "dell": ("System.Embedded.1", "Dell Inc.", "PowerEdge XE"),
    "dell-old": ("System.Embedded.1", "Dell Inc.", "PowerEdge R720"),
    "hpe": ("1", "HPE", "ProLiant XL"),
    "hpe-unmetered": ("1", "HPE", "ProLiant ML"),
    "lenovo": ("1", "Lenovo", "ThinkSystem SR"),
    "fujitsu": ("0", "FUJITSU", "PRIMERGY GX"),
    "inspur": ("1", "Inspur", "NF"),
    "huawei": ("1", "Huawei", "G"),
    "supermicro": ("1", "Supermicro", "SYS"),
}


def add_maker(vendor: str, build: TreeBuilder) -> None:
    """Add the chassis of one maker with Power and Thermal."""
    name, maker, model = MAKER_NAMES[vendor]
    chassis, system = f"{ROOT}/Chassis/{name}", f"{ROOT}/Systems/{name}"
    body = {
        "ChassisType": "RackMount",
        "Manufacturer": maker,
        "Model": model,
        "Power": make_reference(f"{chassis}/Power"),
        "Thermal": make_reference(f"{chassis}/Thermal"),
    }
    build.add_resource(chassis, lambda: body, kind="#Chassis.v1_10_0.Chassis", listed=True)
    links = {"Links": {"Chassis": [make_reference(chassis)]}}
    build.add_resource(system, lambda: links, kind="#ComputerSystem.v1_9_0.ComputerSystem", listed=True)
    kind = "#Power.1.0.1.Power" if vendor.startswith("hpe") else "#Power.v1_5_0.Power"
    build.add_resource(f"{chassis}/Power", _make_power(vendor, build, f"{chassis}/Power"), kind=kind)
    build.add_resource(f"{chassis}/Thermal", _make_thermal(build), kind="#Thermal.v1_6_0.Thermal")


def _make_power(vendor: str, build: TreeBuilder, path: str) -> Callable[[], Json]:
    shown = build.shown

    def make_control(place: int, name: str, watts: float | None, **more: Any) -> Json:
        return {
            "@odata.id": f"{path}#/PowerControl/{place}",
            "MemberId": str(place),
            "Name": name,
            "PowerConsumedWatts": watts,
        } | more

    def make_body() -> Json:
        watts = shown.read_watts("node.ac")
        match vendor:
            case "hpe":
                return {"PowerConsumedWatts": watts, "PowerControl": [make_control(0, "", watts)]}
            case "hpe-unmetered":
                return {"PowerConsumedWatts": 0, "PowerControl": [make_control(0, "", 0)]}
            case "lenovo":
                return {
                    "PowerControl": [
                        make_control(0, "CPU Sub-system Power", round(0.1 * watts)),
                        make_control(1, "Memory Sub-system Power", round(0.05 * watts)),
                        make_control(2, "Server Power Control", watts, Status={"State": "Enabled"}),
                    ]
                }
            case "fujitsu":
                total = {"ChassisPowerConsumption": {"CurrentPowerConsumptionW": watts}}
                return {"PowerControl": [make_control(0, "Power Control", None)], "Oem": {"ts_fujitsu": total}}
            case "inspur" | "huawei":
                return {"PowerControl": [], "Oem": {"Public": {"TotalPower": watts}}}
            case _:  # Dell: no Status in it
                limit = {"LimitInWatts": 12000}
                return {"PowerControl": [make_control(0, "System Power Control", watts, PowerLimit=limit)]}

    return lambda: make_body() | {"PowerSupplies": _list_supplies(vendor, build, path)}


def _list_supplies(vendor: str, build: TreeBuilder, path: str) -> list[Json]:
    shown, rows = build.shown, []
    for number in range(1, shown.supplies + 1):
        ac, dc = shown.read_watts(f"psu:{number}"), shown.read_watts(f"psu.dc:{number}")
        row: Json = {
            "@odata.id": f"{path}#/PowerSupplies/{number - 1}",
            "MemberId": str(number - 1),
            "Name": f"PS{number} Status",
            "PowerCapacityWatts": shown.capacity_w(number),
            "LineInputVoltage": 230,
        }
        match vendor:
            case "dell-old":  # the rating where the reading should be
                row |= {"PowerInputWatts": round(1.2 * shown.capacity_w(number)), "LastPowerOutputWatts": None}
            case "hpe-unmetered":
                row |= {"PowerInputWatts": 0, "LastPowerOutputWatts": 0}
            case "hpe":
                row |= {"LastPowerOutputWatts": dc, "Status": {"State": "Enabled"}}
            case "huawei":
                row |= {"Oem": {"Huawei": {"PowerInputWatts": ac, "PowerOutputWatts": dc}}}
            case _:
                row |= {"PowerInputWatts": ac, "PowerOutputWatts": dc}
        rows.append(row)
    if vendor == "lenovo":
        rows.append({"MemberId": "9", "Name": "PSU9", "Status": {"State": "Absent"}})
    return rows


def _make_thermal(build: TreeBuilder) -> Callable[[], Json]:
    shown = build.shown
    return lambda: {
        "Temperatures": [
            {"MemberId": "0", "Name": "CPU1 Temp", "PhysicalContext": "CPU", "ReadingCelsius": 61},
            {"MemberId": "1", "Name": "Inlet Temp", "PhysicalContext": "Intake", "ReadingCelsius": shown.inlet_c()},
        ],
        "Fans": [
            {"MemberId": str(n), "Name": f"Fan{n}", "Reading": shown.fan_rpm(n), "ReadingUnits": "RPM"}
            for n in range(1, FANS + 1)
        ],
    }


def build_tree(vendor: str, shown: RedfishReadings) -> dict[str, Callable[[], Json]]:
    """Return the resources of one maker's service."""
    build = TreeBuilder(shown, expand=vendor in ("generic", "hgx", "hpe"))
    if vendor in ("generic", "hgx"):
        if vendor == "generic":
            add_standard(build)
        add_board(build)
    elif vendor == "sensors":
        add_sensors(build)
    else:
        add_maker(vendor, build)
    build.add_collections()
    return build.tree


def add_standard(build: TreeBuilder) -> None:
    """Add a modern node: EnvironmentMetrics over Sensors, PowerSubsystem, ThermalSubsystem."""
    shown, chassis, system = build.shown, f"{ROOT}/Chassis/Tray_A", f"{ROOT}/Systems/Host_A"
    watts = build.add_sensor(chassis, "Input_Power", "Power", "W", "node.ac", lambda: shown.read_watts("node.ac"))
    energy = build.add_sensor(
        chassis, "Input_Energy", "EnergykWh", "kW.h", "node.ac", lambda: shown.read_kwh("node.ac")
    )
    inlet = build.add_sensor(chassis, "Inlet_Temp", "Temperature", "Cel", "node.ac", shown.inlet_c)
    build.add_resource(
        chassis,
        lambda: {
            "ChassisType": "RackMount",
            "Manufacturer": "Example",
            "Model": "Twin 8U",
            "EnvironmentMetrics": make_reference(f"{chassis}/EnvironmentMetrics"),
            "Sensors": make_reference(f"{chassis}/Sensors"),
            "PowerSubsystem": make_reference(f"{chassis}/PowerSubsystem"),
            "ThermalSubsystem": make_reference(f"{chassis}/ThermalSubsystem"),
        },
        kind="#Chassis.v1_25_0.Chassis",
        listed=True,
    )
    build.add_resource(
        f"{chassis}/EnvironmentMetrics",
        lambda: {
            "PowerWatts": {"DataSourceUri": watts, "Reading": shown.read_watts("node.ac")},
            "EnergykWh": {"DataSourceUri": energy, "Reading": shown.read_kwh("node.ac")},
            "TemperatureCelsius": {"DataSourceUri": inlet, "Reading": shown.inlet_c()},
        },
        kind="#EnvironmentMetrics.v1_3_0.EnvironmentMetrics",
    )
    links = {"Links": {"Chassis": [make_reference(chassis)]}, "PowerState": "On"}
    build.add_resource(system, lambda: links, kind="#ComputerSystem.v1_22_0.ComputerSystem", listed=True)
    _add_subsystems(build, chassis)


def _add_subsystems(build: TreeBuilder, chassis: str) -> None:
    shown, power, cooling = build.shown, f"{chassis}/PowerSubsystem", f"{chassis}/ThermalSubsystem"
    rows = {"PowerSupplies": make_reference(f"{power}/PowerSupplies")}
    build.add_resource(power, lambda: rows, kind="#PowerSubsystem.v1_1_0.PowerSubsystem")
    for number in range(1, shown.supplies + 1):
        _add_supply(build, f"{power}/PowerSupplies/PSU_{number}", number)
    empty = {"Status": {"State": "Absent"}}
    build.add_resource(
        f"{power}/PowerSupplies/Bay_9", lambda: empty, kind="#PowerSupply.v1_5_0.PowerSupply", listed=True
    )
    parts = {"ThermalMetrics": make_reference(f"{cooling}/ThermalMetrics"), "Fans": make_reference(f"{cooling}/Fans")}
    build.add_resource(cooling, lambda: parts, kind="#ThermalSubsystem.v1_3_0.ThermalSubsystem")
    build.add_resource(
        f"{cooling}/ThermalMetrics",
        lambda: {"TemperatureSummaryCelsius": {"Intake": {"Reading": shown.inlet_c()}}},
        kind="#ThermalMetrics.v1_3_0.ThermalMetrics",
    )
    for number in range(1, FANS + 1):
        build.add_resource(
            f"{cooling}/Fans/Fan_{number}",
            lambda number=number: {  # type: ignore[misc]
                "SpeedPercent": {"Reading": shown.fan_percent(), "SpeedRPM": shown.fan_rpm(number)},
                "Status": {"State": "Enabled"},
            },
            kind="#Fan.v1_5_0.Fan",
            listed=True,
        )


def _add_supply(build: TreeBuilder, path: str, number: int) -> None:
    shown, ac, dc = build.shown, f"psu:{number}", f"psu.dc:{number}"
    body = {
        "PowerCapacityWatts": shown.capacity_w(number),
        "Metrics": make_reference(f"{path}/Metrics"),
        "Status": {"State": "Enabled"},
    }
    build.add_resource(path, lambda: body, kind="#PowerSupply.v1_5_0.PowerSupply", listed=True)
    build.add_resource(
        f"{path}/Metrics",
        lambda: {
            "InputPowerWatts": {"Reading": shown.read_watts(ac)},
            "OutputPowerWatts": {"Reading": shown.read_watts(dc)},
            "InputVoltage": {"Reading": 230.0},
            "InputCurrentAmps": {"Reading": round(shown.read_watts(ac) / 230.0, 2)},
            "EnergykWh": {"Reading": shown.read_kwh(ac)},
        },
        kind="#PowerSupplyMetrics.v1_1_0.PowerSupplyMetrics",
    )


def add_board(build: TreeBuilder) -> None:
    """Add a board of GPUs, as its own BMC or the node's BMC shows it."""
    shown = build.shown
    base, system = f"{ROOT}/Chassis/HGX_Chassis_0", f"{ROOT}/Systems/HGX_Baseboard_0"
    gpus = [f"gpu:{index}" for index in range(shown.gpus)]
    body = {"ChassisType": "Component", "Manufacturer": "NVIDIA", "Sensors": make_reference(f"{base}/Sensors")}
    build.add_resource(base, lambda: body, kind="#Chassis.v1_22_0.Chassis", listed=True)
    total = "HGX_Chassis_0_Total"
    build.add_sensor(base, f"{total}GPU_Power_0", "Power", "W", "gpu:0", lambda: round(shown.read_watts(*gpus), 3))
    build.add_sensor(
        base, f"{total}HSC_Power_0", "Power", "W", "gpu:0", lambda: round(1.08 * shown.read_watts(*gpus), 3)
    )
    links = {"Chassis": [make_reference(base)]}
    processors = {"Processors": make_reference(f"{system}/Processors"), "SystemType": "Physical", "Links": links}
    build.add_resource(system, lambda: processors, kind="#ComputerSystem.v1_20_0.ComputerSystem", listed=True)
    for index in range(shown.gpus):
        _add_gpu(build, system, index)


def _add_gpu(build: TreeBuilder, system: str, index: int) -> None:
    shown, point = build.shown, f"gpu:{index}"
    name = f"HGX_GPU_SXM_{index + 1}"
    chassis, processor = f"{ROOT}/Chassis/{name}", f"{system}/Processors/GPU_SXM_{index + 1}"
    card = {"ChassisType": "Module", "Manufacturer": "NVIDIA", "Sensors": make_reference(f"{chassis}/Sensors")}
    build.add_resource(chassis, lambda: card, kind="#Chassis.v1_22_0.Chassis", listed=True)
    build.add_sensor(
        chassis, f"{name}_DRAM_0_Power_0", "Power", "W", point, lambda: round(0.1 * shown.read_watts(point), 3)
    )
    watts = build.add_sensor(chassis, f"{name}_Power_0", "Power", "W", point, lambda: shown.read_watts(point))
    energy = build.add_sensor(chassis, f"{name}_Energy_0", "EnergyJoules", "J", point, lambda: shown.read_joules(point))
    build.add_resource(
        processor,
        lambda: {
            "ProcessorType": "GPU",
            "Model": shown.truth.node.gpus[index].name,
            "UUID": shown.truth.uuid(index),
            "EnvironmentMetrics": make_reference(f"{processor}/EnvironmentMetrics"),
        },
        kind="#Processor.v1_20_0.Processor",
        listed=True,
    )
    build.add_resource(
        f"{processor}/EnvironmentMetrics",
        lambda: {
            "PowerWatts": {"DataSourceUri": watts, "Reading": shown.read_watts(point)},
            "EnergyJoules": {"DataSourceUri": energy, "Reading": shown.read_joules(point)},
        },
        kind="#EnvironmentMetrics.v1_3_0.EnvironmentMetrics",
    )


def add_sensors(build: TreeBuilder) -> None:
    """Add a chassis that has only sensors, listed on two pages without expansion."""
    shown, chassis, system = build.shown, f"{ROOT}/Chassis/chassis", f"{ROOT}/Systems/system"
    build.add_sensor(chassis, "cpu0_power", "Power", "W", "node.ac", lambda: 91)
    build.add_sensor(chassis, "power_total_limit", "Power", "W", "node.ac", lambda: 12000)
    whole = {"PhysicalContext": "Chassis"}
    build.add_sensor(chassis, "total_power", "Power", "W", "node.ac", lambda: shown.read_watts("node.ac"), **whole)
    links = {"Links": {"Chassis": [make_reference(chassis)]}}
    build.add_resource(system, lambda: links, kind="#ComputerSystem.v1_16_0.ComputerSystem", listed=True)
    body = {"ChassisType": "RackMount", "Model": "Sensors", "Sensors": make_reference(f"{chassis}/Sensors")}
    build.add_resource(chassis, lambda: body, kind="#Chassis.v1_14_0.Chassis", listed=True)
    paths = build.lists.pop(f"{chassis}/Sensors")
    onward = f"{chassis}/Sensors?$skip=2"
    first = {"Members": [make_reference(path) for path in paths[:2]], "Members@odata.nextLink": onward}
    second = {"Members": [make_reference(path) for path in paths[2:]]}
    build.tree[f"{chassis}/Sensors"] = lambda: first
    build.tree[onward] = lambda: second
