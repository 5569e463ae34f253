"""Serve the old Power and Thermal resources as makers are known to: each with its own omissions and additions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.twin.servers._redfish_build import FANS, ROOT, Builder, Json, ref

if TYPE_CHECKING:
    from collections.abc import Callable

# Chassis id, maker, model.
NAMES = {
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


def add(vendor: str, build: Builder) -> None:
    """Add the chassis of one maker with Power and Thermal."""
    name, maker, model = NAMES[vendor]
    chassis, system = f"{ROOT}/Chassis/{name}", f"{ROOT}/Systems/{name}"
    body = {
        "ChassisType": "RackMount",
        "Manufacturer": maker,
        "Model": model,
        "Power": ref(f"{chassis}/Power"),
        "Thermal": ref(f"{chassis}/Thermal"),
    }
    build.add(chassis, lambda: body, kind="#Chassis.v1_10_0.Chassis", listed=True)
    links = {"Links": {"Chassis": [ref(chassis)]}}
    build.add(system, lambda: links, kind="#ComputerSystem.v1_9_0.ComputerSystem", listed=True)
    kind = "#Power.1.0.1.Power" if vendor.startswith("hpe") else "#Power.v1_5_0.Power"
    build.add(f"{chassis}/Power", _power(vendor, build, f"{chassis}/Power"), kind=kind)
    build.add(f"{chassis}/Thermal", _thermal(build), kind="#Thermal.v1_6_0.Thermal")


def _power(vendor: str, build: Builder, path: str) -> Callable[[], Json]:
    shown = build.shown

    def control(place: int, name: str, watts: float | None, **more: Any) -> Json:
        return {
            "@odata.id": f"{path}#/PowerControl/{place}",
            "MemberId": str(place),
            "Name": name,
            "PowerConsumedWatts": watts,
        } | more

    def whole() -> Json:
        watts = shown.watts("node.ac")
        match vendor:
            case "hpe":
                return {"PowerConsumedWatts": watts, "PowerControl": [control(0, "", watts)]}
            case "hpe-unmetered":
                return {"PowerConsumedWatts": 0, "PowerControl": [control(0, "", 0)]}
            case "lenovo":
                return {
                    "PowerControl": [
                        control(0, "CPU Sub-system Power", round(0.1 * watts)),
                        control(1, "Memory Sub-system Power", round(0.05 * watts)),
                        control(2, "Server Power Control", watts, Status={"State": "Enabled"}),
                    ]
                }
            case "fujitsu":
                total = {"ChassisPowerConsumption": {"CurrentPowerConsumptionW": watts}}
                return {"PowerControl": [control(0, "Power Control", None)], "Oem": {"ts_fujitsu": total}}
            case "inspur" | "huawei":
                return {"PowerControl": [], "Oem": {"Public": {"TotalPower": watts}}}
            case _:  # Dell: no Status in it
                limit = {"LimitInWatts": 12000}
                return {"PowerControl": [control(0, "System Power Control", watts, PowerLimit=limit)]}

    return lambda: whole() | {"PowerSupplies": _supplies(vendor, build, path)}


def _supplies(vendor: str, build: Builder, path: str) -> list[Json]:
    shown, rows = build.shown, []
    for number in range(1, shown.supplies + 1):
        ac, dc = shown.watts(f"psu:{number}"), shown.watts(f"psu.dc:{number}")
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


def _thermal(build: Builder) -> Callable[[], Json]:
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
