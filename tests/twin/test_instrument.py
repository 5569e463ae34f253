"""A panel of a served twin shows what virtual time reads of the same point, reading by reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from joulelab.twin import power_curves, profile, readings
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.model import H100, Node
from joulelab.twin.readings import Panel
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NS = 10**9
START = 50 * NS
NODE = Node(gpus=(H100, H100), packages=1, seed=3)
FLAWS = (
    PanelFlaws(),
    PanelFlaws(period_s=0.0, window_s=0.0, quantum_w=0.1, quantum_j=1.0),
    PanelFlaws(period_s=0.7, window_s=0.3, phase_s=0.11, gain_error=-0.02, offset_w=4.0, noise_w=9.0, quantum_w=0.25),
    PanelFlaws(period_s=0.5, quantum_j=7.0, modulus_j=2_000.0, base_j=123.0, reset_at_s=4.2, gain_error=0.01),
    PanelFlaws(drop_share=0.3, silent_at_s=2.0, silent_for_s=1.5, garble_at_s=6.0, garble_for_s=0.7),
)


@pytest.fixture
def truth(tmp_path: Path) -> Iterator[Truth]:
    profiles = {"gpu": profile.ramp(4), "cpu": profile.square(0.7, 0.4)}
    made = Truth.create(tmp_path / "truth", NODE, start_ns=START, profiles=profiles)
    made.energy("node.ac", START, START + 10 * NS)
    yield made
    made.close()


@pytest.mark.parametrize("flaws", FLAWS)
@pytest.mark.parametrize("point", ["node.ac", "gpu:1", "outlet:2"])
def test_all_readings_at_once_are_those_of_the_panel(truth: Truth, flaws: PanelFlaws, point: str) -> None:
    panel = Panel(truth, point, flaws, number=5)
    t_ns = START + np.sort(np.random.default_rng(1).integers(0, 9 * NS, 40))
    part, of = power_curves.find_share(NODE, point)
    source = (part, truth._list_parts(of)[0])
    watts = readings.read_panel_w(source, flaws, t_ns, start_ns=START, seed=NODE.seed, number=5)
    joules = readings.read_panel_j(source, flaws, t_ns, start_ns=START)
    fine = readings.find_answered(flaws, t_ns, start_ns=START)
    assert watts.tolist() == pytest.approx([panel.power_w(int(t)) for t in t_ns], rel=1e-9)
    assert joules.tolist() == pytest.approx([panel.energy_j(int(t)) for t in t_ns], rel=1e-9)
    assert fine.tolist() == [not (panel.is_silent(int(t)) or panel.is_garbled(int(t))) for t in t_ns]
