"""Know the metrics of exporters: names, units, scopes, and what stands behind them. Data, no code."""

from __future__ import annotations

from typing import Any

_DCGM = "NVIDIA states 5 % for board power; dcgm-exporter renews its values every 30 s unless told otherwise"
_DCMI = "no maker states the accuracy of a BMC's reading; 5 % taken"
_RAPL = "Intel publishes none; 5 % taken, as for RAPL read on the node itself"
_KEPLER = "RAPL behind it: 5 % taken; Kepler renews every 5 s unless told otherwise"
_SCAPHANDRE = "RAPL behind it, so processors and memory and not the node: 5 % taken"
_PDU = "1 % taken for PDUs; the value is in the MIB's raw scale, which a module of snmp_exporter may have changed"
_COUNTED = "a counter of the device, kept by the node's agent; its accuracy is what the agent states"
_AGENT = "its accuracy is what the agent states"
_INTEGRATED = "powers that the node's agent read and added up; its accuracy is what the agent states"
_CPU = "cpu"  # all sockets together: what the exporter sums

PRESETS: dict[str, list[dict[str, Any]]] = {
    "dcgm": [
        {"query": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "scope": "gpu:{gpu}", "unit": "mJ", "quantum": 1.0,
         "update_s": 30.0, "gain": 0.05, "reference": _DCGM},
        {"query": "DCGM_FI_DEV_POWER_USAGE", "scope": "gpu:{gpu}", "unit": "W", "quantum": 0.001,
         "update_s": 30.0, "window_s": 1.0, "gain": 0.05, "reference": _DCGM},
    ],
    "ipmi": [
        # Exporters up to 1.6.1 say 0 where the BMC has no DCMI power.
        {"query": "ipmi_dcmi_power_consumption_watts", "scope": "node.ac", "unit": "W", "quantum": 1.0,
         "update_s": 1.0, "window_s": 1.0, "gain": 0.05, "reference": _DCMI, "zero_is_gap": True},
    ],
    "snmp": [
        {"query": "st4OutletActivePower", "scope": "outlet:{label}.{st4OutletIndex}", "unit": "W", "quantum": 1.0,
         "window_s": 1.0, "gain": 0.01, "reference": _PDU},
        {"query": "st4OutletEnergy", "scope": "outlet:{label}.{st4OutletIndex}", "unit": "Wh", "quantum": 1.0,
         "gain": 0.01, "reference": _PDU},
        {"query": "rPDU2OutletMeteredStatusPower", "scope": "outlet:{label}.{rPDU2OutletMeteredStatusIndex}",
         "unit": "W", "quantum": 1.0, "window_s": 1.0, "gain": 0.01, "reference": _PDU},
        {"query": "rPDU2DeviceStatusPower", "scope": "rack", "unit": "W", "scale": 10.0, "quantum": 10.0,
         "window_s": 1.0, "gain": 0.01, "reference": _PDU},
    ],
    "node": [
        {"query": "node_rapl_package_joules_total", "scope": "cpu:{index}", "unit": "J", "update_s": 0.001,
         "gain": 0.05, "reference": _RAPL},
        {"query": "node_rapl_dram_joules_total", "scope": "dram:{index}", "unit": "J", "update_s": 0.001,
         "gain": 0.05, "reference": _RAPL},
        {"query": "node_rapl_core_joules_total", "scope": "core:{index}", "unit": "J", "update_s": 0.001,
         "gain": 0.05, "reference": _RAPL, "parent": "cpu:{index}"},
    ],
    "kepler": [
        {"query": 'kepler_node_cpu_joules_total{zone="package"}', "scope": _CPU, "unit": "J", "update_s": 5.0,
         "gain": 0.05, "reference": _KEPLER, "parent": "node.dc"},
        {"query": 'kepler_node_cpu_joules_total{zone="dram"}', "scope": "dram", "unit": "J", "update_s": 5.0,
         "gain": 0.05, "reference": _KEPLER, "parent": "node.dc"},
        {"query": "kepler_platform_watts", "scope": "node.ac", "unit": "W", "update_s": 5.0, "window_s": 1.0,
         "gain": 0.05, "reference": _DCMI, "zero_is_gap": True},
        # Before 0.10 a counter is split into a dynamic and an idle part.
        {"query": "sum without (mode) (kepler_node_package_joules_total)", "scope": _CPU, "unit": "J",
         "update_s": 5.0, "gain": 0.05, "reference": _KEPLER, "parent": "node.dc"},
    ],
    "scaphandre": [
        {"query": "scaph_host_energy_microjoules", "scope": _CPU, "unit": "uJ", "update_s": 2.0, "gain": 0.05,
         "reference": _SCAPHANDRE, "parent": "node.dc"},
        {"query": "scaph_host_power_microwatts", "scope": _CPU, "unit": "uW", "update_s": 2.0, "window_s": 2.0,
         "gain": 0.05, "reference": _SCAPHANDRE, "parent": "node.dc"},
    ],
    # What `joulelab agent` shows of its node: scopes, meters and devices are labels.
    "joulelab": [
        {"query": 'joulelab_energy_joules_total{source="counter"}', "scope": "{scope}", "unit": "J",
         "meter": "{meter}", "reference": _COUNTED},
        {"query": 'joulelab_energy_joules_total{source="integrated"}', "scope": "{scope}", "unit": "J",
         "meter": "{meter}", "reference": _INTEGRATED},
        {"query": "joulelab_power_watts", "scope": "{scope}", "unit": "W", "meter": "{meter}", "reference": _AGENT},
        {"query": 'joulelab_load_ratio{scope!="host"}', "scope": "{scope}", "unit": "1", "name": "load",
         "meter": "{meter}"},
        {"query": 'joulelab_load_ratio{scope="host"}', "scope": "{scope}", "unit": "1", "name": "busy",
         "meter": "{meter}"},
        {"query": "joulelab_temperature_celsius", "scope": "{scope}", "unit": "degC", "meter": "{meter}"},
        {"query": "joulelab_cap_watts", "scope": "{scope}", "unit": "W", "kind": "state", "name": "cap_enforced_w",
         "meter": "{meter}"},
    ],
}  # fmt: skip
# The presets whose series say themselves which node they are of.
HOSTS = {"joulelab": "{instance}"}
