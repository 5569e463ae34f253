"""A real kernel that ends in good order: its run is closed, whoever began it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.waiting import until

from joulelab.store.run_folder import RunState, list_runs, read_end, read_run_state

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("ipykernel")
manager = pytest.importorskip("jupyter_client.manager")

pytestmark = pytest.mark.system
LIMIT_S = 120


@pytest.mark.parametrize(
    "cell", ["%load_ext joulelab", "import joulelab; m = joulelab.measure('x'); m.__enter__();"], ids=["magic", "block"]
)
def test_a_kernel_that_is_shut_down_closes_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str) -> None:
    for name in ("JOULELAB_RUN", "JOULELAB_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JOULELAB_RUNS", str(tmp_path))
    kernel, client = manager.start_new_kernel(startup_timeout=LIMIT_S)
    try:
        assert client.execute_interactive(cell, timeout=LIMIT_S)["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        # Not by shutdown_kernel(), which kills a kernel that takes long on a busy machine.
        kernel.request_shutdown()
        until(lambda: not kernel.is_alive())
        kernel.cleanup_resources()
    (run,) = list_runs(tmp_path)
    assert read_run_state(run) is RunState.CLOSED
    end = read_end(run)
    assert end is not None
    assert (end["outcome"], end["exit_code"], end["restarts"]) == ("exit", 0, 0)
