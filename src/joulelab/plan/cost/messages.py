"""The messages of `joulelab plan cost`: from code to (status, text, next step)."""

MESSAGES: dict[str, tuple[str, str, str]] = {
    "cost.no-rates": (
        "note",
        "No price and no carbon intensity is set.",
        "Give --tariff and --intensity, or set both once: joulelab site --zone DE --price 0.30EUR",
    ),
    "cost.other-site": (
        "warning",
        "Computed at the site that is set now; another one was set when these ran: {runs}.",
        "Show a run with its own site: joulelab show RUN",
    ),
    "cost.no-price": (
        "note",
        "No price is set.",
        "Give --tariff 0.30EUR, or set it once: joulelab site --price 0.30EUR",
    ),
    "cost.no-intensity": (
        "note",
        "No carbon intensity is set.",
        "Give --intensity table:DE, or set it once: joulelab site --zone DE",
    ),
    "cost.assumed-step": (
        "warning",
        "The step from {since} to {until} ({axis}) is assumed, not measured.",
        "Measure runs at {until} to replace it.",
    ),
    "cost.side-parts": (
        "warning",
        "Only parts of the nodes were measured; the rest is not included.",
        "Add a meter of the whole node: joulelab meters",
    ),
    "cost.side-dc": (
        "warning",
        "Measured behind the power supplies; their losses are not included.",
        "Measure at the wall: joulelab meters",
    ),
    "cost.side-unknown": (
        "warning",
        "It is unknown whether the cluster's figures include losses of the power supplies.",
        "Ask the cluster which energy plugin it uses.",
    ),
    "cost.accuracy-unknown": (
        "warning",
        "The accuracy of a meter is unknown, so no interval is given.",
        "Set it in the entry of the meter in joulelab.toml, such as gain = 0.02.",
    ),
    "cost.single-run": (
        "warning",
        "With one run the scatter between runs is unknown; 5 % (k = 2) is assumed.",
        "Repeat the run three times.",
    ),
    "cost.accounted-total": (
        "warning",
        "{runs}: only the total energy is known, from the accounting of a cluster.",
        "Measure the job to know its power over time: joulelab run -- COMMAND",
    ),
    "cost.no-pue": (
        "note",
        "No PUE is set[ for {sites}]: cooling and losses of the building are not included.",
        "Add --pue 1.3.",
    ),
    "cost.rate-unsure": (
        "note",
        "The source of {rates} states no uncertainty, so the intervals do not include one.",
        "",
    ),
    "cost.spread-evenly": ("note", "The energy of jobs from the accounting is spread evenly over their time.", ""),
    "cost.flat-power": ("note", "Planned work is assumed to draw constant power.", ""),
    "cost.accounted": ("note", "The cluster's accounting covers: {covers}.", ""),
    "cost.nodes-unknown": (
        "note",
        "The number of nodes of some runs is unknown: no nameplate and no share of nodes for them.",
        "Import them with --label nodes=N.",
    ),
    "cost.no-nameplate": (
        "note",
        "The rated power of some nodes is unknown, so nameplate x time is not compared.",
        "Add --rated 10.2kW.",
    ),
    "cost.full-use": (
        "note",
        "Nodes are assumed to be busy for their whole lifetime, which gives the smallest share.",
        "Set `use = 0.8` in [nodes.NAME].",
    ),
    "cost.charges": (
        "note",
        "{job}: the sum does not include {charges}, due if its highest power adds to that of the site.",
        "",
    ),
    "cost.average": ("note", "An average intensity is not the emission that one kWh less would avoid.", ""),
    "cost.moved": ("note", "Computed as if it started at {start} with the same power.", ""),
}
