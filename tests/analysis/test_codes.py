"""All codes of checks, study notes and errors of this package."""

from __future__ import annotations

import re

from tests.codes import list_error_codes, list_given_codes, list_strings

CHECKS = """
accounting.no-energy accounting.no-job accounting.no-meter accounting.no-step accounting.not-covered
accounting.other-side accounting.other-time accounting.unknown-nodes accuracy
codecarbon.cell codecarbon.constant codecarbon.duplicate codecarbon.falls codecarbon.impossible codecarbon.intensities
codecarbon.intensity codecarbon.low-intensity codecarbon.no-duration codecarbon.no-energy codecarbon.order
codecarbon.overlap codecarbon.power codecarbon.pue codecarbon.rate codecarbon.stage codecarbon.sum codecarbon.unit
codecarbon.zero-power
calibration.driver calibration.load calibration.not-used calibration.old calibration.temperature calibration.unusable
cap.changed cap.differs cap.keeper-died cap.left cap.not-restored cap.overridden cap.released cap.vanished
cap-not-enforced clock-stepped clocks cords counter-frozen counter-reset counter-wrap
damaged disk does-not-add-up.power does-not-add-up.sum does-not-follow ending.killed ending.live
ending.not-recorded estimate estimate.imported gaps hidden-gpus
idle-drifted idle-gpus impossible impossible-power.negative impossible-power.outlier impossible-power.too-high
impossible-power.wrong-unit included.overhead included.pue in-step.meter in-step.steps interval
joined-apart joined-failed joined-other-command keeper
late limit.lost limit.no-phase limit.reached limit.unseen limit.unwatched meters-disagree
mlperf.absent mlperf.analyzer mlperf.changed mlperf.channels mlperf.clocks mlperf.duration mlperf.gaps
mlperf.log-clock mlperf.mean mlperf.no-controller mlperf.no-window mlperf.order mlperf.product mlperf.range
mlperf.ranging mlperf.rate mlperf.samples mlperf.session mlperf.stuck mlperf.summary mlperf.too-few
mlperf.unchanged mlperf.uncertainty mlperf.unreadable mlperf.validity mlperf.window
not-read not-read.covered not-recorded.no-readings not-recorded.no-record not-verifiable open-phases other-processes
other-processes.server
paused power-meter quality
recorder.died recorder.stuck recorder-lost.counted recorder-lost.energy-missing shared-node
shared-node.accounted shared-node.elsewhere silent-meter
slow-refresh source stuck-meter supply-efficiency
throttled.hardware-slowdown throttled.hardware-thermal throttled.power-brake throttled.power-cap
throttled.software-thermal too-many-kinds too-many-phases too-short unseen
"""
NOTES = """
accuracy-unknown cells-missing different-data different-data.pair eds-is-half energy-missing estimates meters-differ
no-meter no-results
no-runs-here not-capped odd-runs one-run-each one-run.pooled one-run.unknown pooled.all pooled.lines pooled.rest
quality-missed quality-missed.all quality-unknown quality-unreported
reference-missing reference-not-capped reference-unused unseen warm-up warnings wide-cells
work.asked-for work.differs work.kinds-differ work.lacking work.none work.whole
"""
ERRORS = """
config.goal-k config.goal-limit config.goal-percent config.goal-quality config.goal-quality-limit config.goal-slowdown
config.goal-unknown config.unknown-cell
store.unusable
"""


def test_codes_of_checks_stay():
    # Some are chosen before the call: they have a dot, and are no file or scope.
    chosen = {s for s in list_strings("analysis") if re.fullmatch(r"[a-z-]+\.[a-z-]+", s)}
    names = {code.partition(".")[0] for code in CHECKS.split()}
    found = {s for s in chosen if s.partition(".")[0] in names} | list_given_codes("analysis", "Check")
    assert sorted(found) == sorted(CHECKS.split())


def test_codes_of_errors_stay():
    chosen = {s for s in list_strings("analysis") if re.fullmatch(r"config\.[a-z-]+", s)}
    assert sorted(list_error_codes("analysis") | chosen) == sorted(ERRORS.split())


def test_codes_of_notes_stay():
    chosen = {s for s in list_strings("analysis") if re.fullmatch(r"(one-run|work)\.[a-z-]+", s)}
    assert sorted(list_given_codes("analysis", "Note") | chosen) == sorted(NOTES.split())
