"""The messages of `joulelab calibrate`: why steps do not give a calibration: code -> (status, text, next step)."""

# ruff: noqa: E501  one line is one text: easy to find and to edit

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str, str]] = {
    "too-few-steps": (
        "failed",
        "{steps:step} are too few; {needed} are needed",
        "Repeat each level more often: --repeat 4",
    ),
    "slow-reference": (
        "failed",
        "the reference has a new value every {update_s:s}, too slow for steps of {step_s:s}",
        "Give steps whose steady part lasts at least {needed_s:s}: --step, or take a faster reference",
    ),
    "small-range": (
        "failed",
        "{scope}: its readings changed by only {range_w:W} of {high_w:W}, too little to show a gain",
        "Load it more, or give a command that does: --command",
    ),
    "move-together": (
        "failed",
        "{scope} always change together, so that their gains cannot be separated",
        "Load them at different times: calibrate both with one command, --device gpu:0-1",
    ),
    "does-not-follow": (
        "failed",
        "the reference does not follow {scope}: it seems to measure something else",
        "Check which cords or outlets it measures: joulelab meters",
    ),
    "poor-fit": (
        "failed",
        "the fit differs from the reference by {residual_w:W} (rms), {share:%} of its range of {range_w:W}: readings of the reference seem to mix several steps, or loads change within steps",
        "Take steps of twice the length: --step, and stop all other programs; or take a faster reference",
    ),
    "unlikely-gain": (
        "failed",
        "{scope}: a gain of {gain} is unlikely: the reference may measure only a part of the node, or another one",
        "Check which cords or outlets it measures: joulelab meters",
    ),
    "far-gain": (
        "failed",
        "{scope}: its gain would change by {change:%}, but boards of this kind are within ± {assumed:%}: something else in the node seems to follow the load",
        "Fix the fans, stop other programs and repeat; if you are sure of the result: --accept-far",
    ),
    "far-offset": (
        "failed",
        "{scope}: its offset would be {offset_w:W}, but boards of this kind are within ± {assumed_w:W}: the node without devices seems to be in another state",
        "Record --zero again on the same node and meter; if you are sure of the result: --accept-far",
    ),
    "far-offset.sum": (
        "failed",
        "{scope}: the sum of their offsets would be {offset_w:W}, but that of boards of this kind is within ± {assumed_w:W}: the node without devices seems to be in another state",
        "Record --zero again on the same node and meter; if you are sure of the result: --accept-far",
    ),
    "no-better.supply": (
        "failed",
        "{scope}: the result would be ± {expanded:%}, hardly better than the assumed ± {assumed:%}: the efficiency of the supplies is not known well enough",
        "Name their class and rated power, or the efficiencies of their test report: --supply titanium:12000",
    ),
    "no-better.reference": (
        "failed",
        "{scope}: the result would be ± {expanded:%}, hardly better than the assumed ± {assumed:%}, because of the errors of the reference",
        "Take a better reference, or a smaller range of it: joulelab meters",
    ),
    "no-better.rest-of-the-node": (
        "failed",
        "{scope}: the result would be ± {expanded:%}, hardly better than the assumed ± {assumed:%}, because the rest of the node is not steady",
        "Set the fans to a fixed speed and give --fixed-fans; stop all other programs",
    ),
    "no-better.readings": (
        "failed",
        "{scope}: the result would be ± {expanded:%}, hardly better than the assumed ± {assumed:%}, because the readings scatter",
        "Take longer steps and more of them: --step 60s --repeat 5",
    ),
    "no-better.offset": (
        "failed",
        "{scope}: the result would be ± {expanded:%}, hardly better than the assumed ± {assumed:%}: its offset cannot be seen at the wall",
        "Measure the idle node without the device, and name that run: --zero RUN",
    ),
    "no-better.sensor": (
        "failed",
        "{scope}: the result would be ± {expanded:%}, hardly better than the assumed ± {assumed:%}, because its sensor is not straight or drifts",
        "Take more levels: --repeat 5",
    ),
}
