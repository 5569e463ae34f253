"""The messages of `joulelab plan` about cooling: from code to (status, text, next step)."""

MESSAGES: dict[str, tuple[str, str, str]] = {
    "cooling.full-speed": (
        "warning",
        "{coolings}: fans at full speed (!) do not carry off the highest heat, and GPUs would slow down.",
        "Choose a lower inlet, or cap the GPUs.",
    ),
    "cooling.beyond-seen": (
        "warning",
        "{coolings}: the fans would need more than {factor} times the measured power (~), which they may not reach.",
        "Give their power at full speed: --fan-max 900W.",
    ),
    "cooling.class": (
        "warning",
        "An inlet of {inlet} °C is outside of ASHRAE class A1 (15 to 32 °C).",
        "Check that your equipment allows it (A2: 10 to 35, A3: 5 to 40, A4: 5 to 45 °C).",
    ),
    "cooling.full-load": (
        "note",
        "The node is assumed to be at full load, because no run is named.",
        "Name one: joulelab plan cooling RUN",
    ),
    "cooling.model-inlet": (
        "note",
        "The present inlet temperature of {inlet} °C comes from the model, because none was measured.",
        "Give yours: --inlet-now 22.",
    ),
    "cooling.outside": (
        "note",
        "Pumps, chillers and doors outside of the node are not included.",
        "Compare their energy by PUE: joulelab plan cost RUN --pue 1.3",
    ),
    "cooling.assumed": (
        "note",
        (
            "The ± includes assumed ranges ([model's fan power ± {fan_power:%}, ]exhaust ± 5 °C, heat into water 75 ± "
            "10 %, door 0 to 20 %, exponent 2.5 to 3), never compared with a node whose cooling was changed."
        ),
        "Before you decide, record the fans at two inlet temperatures; these are read here: joulelab meters",
    ),
    "cooling.leakage": ("note", "Cooler chips leak less, which is not included.", ""),
}
