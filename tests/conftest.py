"""Start all tests alike: who ignores signals for us (nohup, a background job), or has state, must not matter."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from joulelab.twins.serve import TwinServer

__all__ = ["pytest_collection_modifyitems", "pytest_runtest_protocol"]  # pytest calls them

# A busy machine makes single examples slow; the time limit of each test stands.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Two workers on two cores: a pool of threads for each small matrix makes both slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The state of instruments is kept away from that of whoever runs the tests.
os.environ.setdefault("XDG_STATE_HOME", tempfile.mkdtemp(prefix="joulelab-tests-state-"))

for number in (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGCHLD,
    signal.SIGUSR1,
    signal.SIGUSR2,
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


# Files that take longest are started first, so that at the end no worker is left alone with one.
FIRST = (
    "workloads/test_smoke.py",
    "cli/test_tune.py",
    "cli/test_study.py",
    "study/test_slurm_cluster.py",
    "cli/test_cap.py",
    "cli/test_reproduce.py",
    "docs/test_demo.py",
    "study/test_virtual.py",
    "report/papers/test_bnl.py",
    "study/test_slurm_cycle.py",
    "study/test_sweeping.py",
    "meters/test_slurm_cluster.py",
    "meters/test_snmp.py",
    "workloads/test_notebook.py",
    "meters/test_ipmi.py",
    "contracts/test_meters.py",
    "supervisor/test_run.py",
    "cli/test_sweep.py",
    "cli/test_run.py",
    "study/test_accounting_cluster.py",
    "control/test_client.py",
    "integrations/test_huggingface.py",
    "contracts/test_executors.py",
    "supervisor/test_nodes_cluster.py",
    "cli/test_study_kills.py",
    "cli/test_run_outcome.py",
    "analysis/test_wall.py",
    "meters/test_analyzer_faults.py",
    "recorder/test_process.py",
    "supervisor/test_outcome.py",
    "control/test_capd.py",
    "cli/test_entries.py",
    "workloads/test_training.py",
    "meters/test_redfish.py",
    "study/tuning/test_search.py",
    "report/test_figures.py",
    "integrations/test_keras.py",
    "meters/test_modbus.py",
    "integrations/test_lightning.py",
    "supervisor/test_nodes.py",
    "supervisor/test_node.py",
    "control/test_client_ends.py",
    "workloads/test_resnet.py",
    "twins/test_job.py",
    "workloads/test_llava.py",
    "workloads/test_lstm_load.py",
    "meters/test_analyzer.py",
    "cli/test_cap_kills.py",
    "docs/test_docs.py",
    "cli/test_group.py",
    "supervisor/test_signals.py",
    "integrations/test_wandb.py",
    "twins/test_nvml.py",
    "supervisor/test_measure.py",
    "integrations/test_tracking.py",
    "meters/test_prometheus.py",
    "control/setters/test_nvml.py",
    "study/tuning/test_replay.py",
    "control/test_kills.py",
    "analysis/test_issue_figures.py",
    "store/test_query.py",
    "twins/test_prometheus_server.py",
    "analysis/test_campaign.py",
    "meters/test_plug.py",
    "integrations/test_jupyter.py",
)

# Processes that tests start are traced only where these do: tracing about doubles what each needs. Control lives in
# processes; what else runs in one is run by tests of its own layer too. The tests themselves are always traced.
TRACED = ("tests/control/", "tests/core/", "tests/recorder/test_owner.py", "tests/recorder/test_process.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {f"tests/{name}": n for n, name in enumerate(FIRST)}
    # In its file the test that waits for Slurm's time limit comes last: the job it needs has then long been running.
    items.sort(key=lambda i: (rank.get(i.nodeid.partition("::")[0], len(FIRST)), i.name == "test_time_limit"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Leave processes untraced that a test marked `no_cover`, or not TRACED, starts."""
    untraced = not item.nodeid.startswith(TRACED) or item.get_closest_marker("no_cover") is not None
    kept = os.environ.pop("COVERAGE_PROCESS_CONFIG", None) if untraced else None
    try:
        return (yield)
    finally:
        if kept is not None:
            os.environ["COVERAGE_PROCESS_CONFIG"] = kept


@pytest.fixture
def twin() -> Iterator[Callable[..., TwinServer]]:
    """Serve a simulated node, or skip where no C compiler is found."""
    from joulelab.twins.serve import TwinServer

    with contextlib.ExitStack() as stack:

        def start(*arguments: Any, **options: Any) -> TwinServer:
            server = stack.enter_context(TwinServer(*arguments, **options))
            if server.missing is not None:
                pytest.skip(str(server.missing))
            return server

        yield start
