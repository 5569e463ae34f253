"""Build the resources that a BMC of some maker serves: addresses, each with a function that gives its JSON now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.twin.servers import _redfish_makers as makers
from joulelab.twin.servers._redfish_build import FANS, ROOT, Builder, Json, ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.twin.servers._redfish_shown import Shown


def tree(vendor: str, shown: Shown) -> dict[str, Callable[[], Json]]:
    """Return the resources of one maker's service."""
    build = Builder(shown, expand=vendor in ("generic", "hgx", "hpe"))
    if vendor in ("generic", "hgx"):
        if vendor == "generic":
            modern(build)
        board(build)
    elif vendor == "sensors":
        only_sensors(build)
    else:
        makers.add(vendor, build)
    build.finish()
    return build.tree


def modern(build: Builder) -> None:
    """Add a node of today: EnvironmentMetrics over Sensors, PowerSubsystem, ThermalSubsystem."""
    shown, chassis, system = build.shown, f"{ROOT}/Chassis/Tray_A", f"{ROOT}/Systems/Host_A"
    watts = build.sensor(chassis, "Input_Power", "Power", "W", "node.ac", lambda: shown.watts("node.ac"))
    energy = build.sensor(chassis, "Input_Energy", "EnergykWh", "kW.h", "node.ac", lambda: shown.kwh("node.ac"))
    inlet = build.sensor(chassis, "Inlet_Temp", "Temperature", "Cel", "node.ac", shown.inlet_c)
    build.add(
        chassis,
        lambda: {
            "ChassisType": "RackMount",
            "Manufacturer": "Example",
            "Model": "Twin 8U",
            "EnvironmentMetrics": ref(f"{chassis}/EnvironmentMetrics"),
            "Sensors": ref(f"{chassis}/Sensors"),
            "PowerSubsystem": ref(f"{chassis}/PowerSubsystem"),
            "ThermalSubsystem": ref(f"{chassis}/ThermalSubsystem"),
        },
        kind="#Chassis.v1_25_0.Chassis",
        listed=True,
    )
    build.add(
        f"{chassis}/EnvironmentMetrics",
        lambda: {
            "PowerWatts": {"DataSourceUri": watts, "Reading": shown.watts("node.ac")},
            "EnergykWh": {"DataSourceUri": energy, "Reading": shown.kwh("node.ac")},
            "TemperatureCelsius": {"DataSourceUri": inlet, "Reading": shown.inlet_c()},
        },
        kind="#EnvironmentMetrics.v1_3_0.EnvironmentMetrics",
    )
    links = {"Links": {"Chassis": [ref(chassis)]}, "PowerState": "On"}
    build.add(system, lambda: links, kind="#ComputerSystem.v1_22_0.ComputerSystem", listed=True)
    _subsystems(build, chassis)


def _subsystems(build: Builder, chassis: str) -> None:
    shown, power, cooling = build.shown, f"{chassis}/PowerSubsystem", f"{chassis}/ThermalSubsystem"
    rows = {"PowerSupplies": ref(f"{power}/PowerSupplies")}
    build.add(power, lambda: rows, kind="#PowerSubsystem.v1_1_0.PowerSubsystem")
    for number in range(1, shown.supplies + 1):
        _supply(build, f"{power}/PowerSupplies/PSU_{number}", number)
    empty = {"Status": {"State": "Absent"}}
    build.add(f"{power}/PowerSupplies/Bay_9", lambda: empty, kind="#PowerSupply.v1_5_0.PowerSupply", listed=True)
    parts = {"ThermalMetrics": ref(f"{cooling}/ThermalMetrics"), "Fans": ref(f"{cooling}/Fans")}
    build.add(cooling, lambda: parts, kind="#ThermalSubsystem.v1_3_0.ThermalSubsystem")
    build.add(
        f"{cooling}/ThermalMetrics",
        lambda: {"TemperatureSummaryCelsius": {"Intake": {"Reading": shown.inlet_c()}}},
        kind="#ThermalMetrics.v1_3_0.ThermalMetrics",
    )
    for number in range(1, FANS + 1):
        build.add(
            f"{cooling}/Fans/Fan_{number}",
            lambda number=number: {  # type: ignore[misc]
                "SpeedPercent": {"Reading": shown.fan_percent(), "SpeedRPM": shown.fan_rpm(number)},
                "Status": {"State": "Enabled"},
            },
            kind="#Fan.v1_5_0.Fan",
            listed=True,
        )


def _supply(build: Builder, path: str, number: int) -> None:
    shown, ac, dc = build.shown, f"psu:{number}", f"psu.dc:{number}"
    body = {
        "PowerCapacityWatts": shown.capacity_w(number),
        "Metrics": ref(f"{path}/Metrics"),
        "Status": {"State": "Enabled"},
    }
    build.add(path, lambda: body, kind="#PowerSupply.v1_5_0.PowerSupply", listed=True)
    build.add(
        f"{path}/Metrics",
        lambda: {
            "InputPowerWatts": {"Reading": shown.watts(ac)},
            "OutputPowerWatts": {"Reading": shown.watts(dc)},
            "InputVoltage": {"Reading": 230.0},
            "InputCurrentAmps": {"Reading": round(shown.watts(ac) / 230.0, 2)},
            "EnergykWh": {"Reading": shown.kwh(ac)},
        },
        kind="#PowerSupplyMetrics.v1_1_0.PowerSupplyMetrics",
    )


def board(build: Builder) -> None:
    """Add a board of GPUs, as a BMC of its own shows it, or one that takes it in."""
    shown = build.shown
    base, system = f"{ROOT}/Chassis/HGX_Chassis_0", f"{ROOT}/Systems/HGX_Baseboard_0"
    gpus = [f"gpu:{index}" for index in range(shown.gpus)]
    body = {"ChassisType": "Component", "Manufacturer": "NVIDIA", "Sensors": ref(f"{base}/Sensors")}
    build.add(base, lambda: body, kind="#Chassis.v1_22_0.Chassis", listed=True)
    total = "HGX_Chassis_0_Total"
    build.sensor(base, f"{total}GPU_Power_0", "Power", "W", "gpu:0", lambda: round(shown.watts(*gpus), 3))
    build.sensor(base, f"{total}HSC_Power_0", "Power", "W", "gpu:0", lambda: round(1.08 * shown.watts(*gpus), 3))
    links = {"Chassis": [ref(base)]}
    processors = {"Processors": ref(f"{system}/Processors"), "SystemType": "Physical", "Links": links}
    build.add(system, lambda: processors, kind="#ComputerSystem.v1_20_0.ComputerSystem", listed=True)
    for index in range(shown.gpus):
        _gpu(build, system, index)


def _gpu(build: Builder, system: str, index: int) -> None:
    shown, point = build.shown, f"gpu:{index}"
    name = f"HGX_GPU_SXM_{index + 1}"
    chassis, processor = f"{ROOT}/Chassis/{name}", f"{system}/Processors/GPU_SXM_{index + 1}"
    card = {"ChassisType": "Module", "Manufacturer": "NVIDIA", "Sensors": ref(f"{chassis}/Sensors")}
    build.add(chassis, lambda: card, kind="#Chassis.v1_22_0.Chassis", listed=True)
    build.sensor(chassis, f"{name}_DRAM_0_Power_0", "Power", "W", point, lambda: round(0.1 * shown.watts(point), 3))
    watts = build.sensor(chassis, f"{name}_Power_0", "Power", "W", point, lambda: shown.watts(point))
    energy = build.sensor(chassis, f"{name}_Energy_0", "EnergyJoules", "J", point, lambda: shown.joules(point))
    build.add(
        processor,
        lambda: {
            "ProcessorType": "GPU",
            "Model": shown.truth.node.gpus[index].name,
            "UUID": shown.truth.uuid(index),
            "EnvironmentMetrics": ref(f"{processor}/EnvironmentMetrics"),
        },
        kind="#Processor.v1_20_0.Processor",
        listed=True,
    )
    build.add(
        f"{processor}/EnvironmentMetrics",
        lambda: {
            "PowerWatts": {"DataSourceUri": watts, "Reading": shown.watts(point)},
            "EnergyJoules": {"DataSourceUri": energy, "Reading": shown.joules(point)},
        },
        kind="#EnvironmentMetrics.v1_3_0.EnvironmentMetrics",
    )


def only_sensors(build: Builder) -> None:
    """Add a chassis that has sensors and nothing else, asked one by one, on two pages."""
    shown, chassis, system = build.shown, f"{ROOT}/Chassis/chassis", f"{ROOT}/Systems/system"
    build.sensor(chassis, "cpu0_power", "Power", "W", "node.ac", lambda: 91)
    build.sensor(chassis, "power_total_limit", "Power", "W", "node.ac", lambda: 12000)
    whole = {"PhysicalContext": "Chassis"}
    build.sensor(chassis, "total_power", "Power", "W", "node.ac", lambda: shown.watts("node.ac"), **whole)
    links = {"Links": {"Chassis": [ref(chassis)]}}
    build.add(system, lambda: links, kind="#ComputerSystem.v1_16_0.ComputerSystem", listed=True)
    body = {"ChassisType": "RackMount", "Model": "Sensors", "Sensors": ref(f"{chassis}/Sensors")}
    build.add(chassis, lambda: body, kind="#Chassis.v1_14_0.Chassis", listed=True)
    paths = build.lists.pop(f"{chassis}/Sensors")
    onward = f"{chassis}/Sensors?$skip=2"
    first = {"Members": [ref(path) for path in paths[:2]], "Members@odata.nextLink": onward}
    second = {"Members": [ref(path) for path in paths[2:]]}
    build.tree[f"{chassis}/Sensors"] = lambda: first
    build.tree[onward] = lambda: second
