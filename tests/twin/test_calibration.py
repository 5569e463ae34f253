"""Node files hold the numbers that their calibration gives, once and where they are repeated."""

from __future__ import annotations

import pytest
from benchmarks.calibrate_twins import AGREEMENT, FITS, Fit, NodeTable

from joulelab.twin import nodefile

ALL = {f"{node} {fit.number}": fit for node, list_fits in FITS.items() for fit in list_fits()}


@pytest.mark.parametrize("fit", ALL.values(), ids=ALL)
def test_the_model_itself_gives_the_figures_that_it_was_fitted_to(fit: Fit) -> None:
    values = [place.read() for place in fit.places]
    assert values == pytest.approx([values[0]] * len(values), rel=AGREEMENT)
    assert fit.measure() == pytest.approx(fit.target, rel=AGREEMENT)


def test_a_fit_finds_its_number_again() -> None:
    fit = ALL["gdansk-rtx6000 seconds"]
    assert fit.solve() == pytest.approx(
        NodeTable("gdansk-rtx6000").find_stages("xception-birds", ["epoch"], "seconds")[0].read(), rel=AGREEMENT
    )


def test_every_calibrated_figure_has_its_fit_and_others_follow() -> None:
    fitted = {fit.figure for fit in ALL.values()}
    follow = {
        "gdansk.time_s.260w.1", "gdansk.time_s.170w.8", "gdansk.best.gain_minus_loss.gain_pct",
        "gdansk.best.edp.gain_pct",
        "horeka.gpu_idle_w", "horeka.energy.gpu_above_idle_w", "horeka.health.gpu_above_idle_w",  # taken as printed
    }  # fmt: skip
    for name in nodefile.list_own_nodes():
        found = nodefile.find_node(name)
        assert set(found.calibrated) <= fitted | follow
        assert not set(found.calibrated) & set(found.chosen)


def test_notebooks_and_the_node_without_gpus_repeat_the_calibrated_numbers() -> None:
    green, blue = (nodefile.find_node(name).workloads for name in ("horeka-green", "horeka-blue"))
    keys = ("host_rate", "rate", "step_s", "busy", "intensity", "cpu", "memory", "seconds")

    def list_numbers(stages: tuple, on: str) -> dict[tuple[str, str], tuple[float, ...]]:  # type: ignore[type-arg]
        return {(one.name, one.part): tuple(getattr(one, key) for key in keys) for one in stages if one.on == on}

    for name in ("lstm-load", "vgg19bn-xray"):
        assert list_numbers(green[name].stages, "cpu") == list_numbers(blue[name].stages, "cpu")
        assert list_numbers(green[name].stages, "") == list_numbers(blue[name].stages, "")
        batch = {**list_numbers(green[name].stages, ""), **list_numbers(green[name].stages, "gpu")}
        book = list_numbers(green[name.split("-", maxsplit=1)[0] + "-notebook"].stages, "")
        same = set(batch) & set(book) - {("set-up", "")}
        assert len(same) >= 3
        assert {key: book[key] for key in same} == {key: batch[key] for key in same}
