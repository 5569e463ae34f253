"""Add `--energy` to pytest: measure each test, and fail those that need significantly more energy than allowed.

pytest imports this module in every session where joulelab is installed, so it imports nothing of joulelab before
`--energy` is given; `measured_tests.py` has the rest.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pytest

MARKER = "energy(max_j=JOULES): with --energy, fail the test if it needs significantly more energy"
# The options that need --energy, with their defaults; pytest has None or False for those that were not given.
OPTIONS = {
    "energy_baseline": None,
    "energy_update": False,
    "energy_limit": "5%",
    "energy_repeats": 10,
    "energy_time": 60.0,
    "energy_top": 10,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("energy", "energy of tests (joulelab)")
    group.addoption("--energy", action="store_true", help="Measure the energy of each test, one test at a time.")
    group.addoption(
        "--energy-baseline",
        metavar="FILE",
        help="Fail tests that need significantly more energy than in this file.",
    )
    group.addoption(
        "--energy-update",
        action="store_true",
        help="Write the energies of this session to the baseline; runs each test up to 5 times.",
    )
    group.addoption("--energy-limit", metavar="PERCENT", help="Smallest rise that must not pass (default: 5%%).")
    group.addoption(
        "--energy-repeats",
        type=int,
        metavar="N",
        help="Run a test with a maximum or a baseline at most N times, until the answer is clear (default: 10).",
    )
    group.addoption(
        "--energy-time",
        type=float,
        metavar="SECONDS",
        help="Begin no further repeat of a test after this time (default: 60).",
    )
    group.addoption("--energy-top", type=int, metavar="N", help="List the N most expensive tests (default: 10).")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and measure if it is asked for."""
    config.addinivalue_line("markers", MARKER)
    if config.getoption("energy"):
        from joulelab.integrations.measured_tests import EnergySession

        config.pluginmanager.register(EnergySession(config), "joulelab-energy")
        return
    from pytest import UsageError  # noqa: PT013 - pytest itself is loaded, and this module stays light

    for name in OPTIONS:
        given = config.getoption(name)
        if given is not None and given is not False:
            raise UsageError(f"--{name.replace('_', '-')} needs --energy")
