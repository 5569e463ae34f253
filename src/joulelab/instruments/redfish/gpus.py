"""State what a GPU board's readings are worth: the board asks each GPU for the sensor that NVML shows too."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.instruments.nvml.generations import sensor

if TYPE_CHECKING:
    from joulelab.core.spec import Spec, Stream

# Boards with a BMC by words of their model, as NVML's architecture numbers.
_ARCHITECTURES = {"H100": 9, "H200": 9, "H800": 9, "H20": 9, "GH200": 9, "A100": 7, "A800": 7}


def as_own_sensor(stream: Stream, model: str) -> Stream:
    """Return a GPU's stream with the sight and the errors of the GPU's own sensor, which it shares with NVML."""
    words = model.replace("-", " ").split()
    known = next((number for word, number in _ARCHITECTURES.items() if word in words), None)
    found = sensor(known, (8, 0) if known == 7 else None, model)
    said = f"the GPU's own sensor, as NVML shows it: {found.name} sees {found.seen:.0%} of the time; {found.why}"

    def changed(spec: Spec) -> Spec:
        if spec.kind == "state":
            return spec
        accuracy = replace(spec.accuracy, shared=f"nvml:{model}", reference=f"{spec.accuracy.reference}; {said}")
        if accuracy.source == "assumed":
            accuracy = replace(accuracy, gain=max(accuracy.gain, found.gain))
        return replace(spec, seen=found.seen, accuracy=accuracy)

    return replace(stream, channels=tuple(map(changed, stream.channels)))
