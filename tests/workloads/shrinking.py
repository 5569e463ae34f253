"""List what tests may change of a paper's workload so that it runs on this machine: size, steps, samples, device.

All else is as the study or the preset says: epochs, batch, optimizer, loading processes, preparation of the data,
predictions, saving. `SHRUNKEN` is the only place where a test of `paper` presets and study cells changes a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from joulelab.run.workload_registry import find_workload, get_presets, merge_parameters, read_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZE: Final = {
    "depths", "width", "divisor", "pixels", "file_pixels", "middle", "model", "units", "text", "size", "memory",
    "tasks", "host_memory",
}  # fmt: skip
STEPS: Final = {"max_steps", "max_seconds", "warmup_steps", "seconds"}
SAMPLES: Final = {"train_samples", "test_samples", "distinct", "images", "held_out", "samples", "countries", "hours"}
DEVICE: Final = {"device", "processes"}
ALLOWED: Final = SIZE | STEPS | SAMPLES | DEVICE

_TRAINING: Final = {"device": "cpu", "max_steps": "1", "warmup_steps": "0"}
_LOAD: Final = {"countries": "1", "hours": "400", "units": "8"}
_XRAY: Final = {"train_samples": "64", "distinct": "8", "file_pixels": "128", "pixels": "122", "divisor": "64"}
SHRUNKEN: Final = {
    "burn": {"device": "cpu", "processes": "1", "seconds": "1", "size": "128", "memory": "1MB"},
    "llava15-13b": {**_TRAINING, "model": "tiny", "samples": "128", "text": "8"},
    "lstm-load": {**_TRAINING, **_LOAD},
    "lstm-notebook": {"device": "cpu", "max_seconds": "0.001", **_LOAD},
    "resnet152-cifar10": {
        **_TRAINING, "depths": "1,1,1,1", "width": "4", "train_samples": "4096", "test_samples": "256",
    },
    "vgg19bn-notebook": {"device": "cpu", "max_seconds": "0.001", **_XRAY},
    "vgg19bn-xray": {**_TRAINING, **_XRAY},
    "xception-birds": {
        **_TRAINING, "images": "69", "held_out": "1", "pixels": "71", "file_pixels": "71", "middle": "0",
    },
}  # fmt: skip
# `make test` cannot wait until 128 loading processes have started, three times; `make test-all` starts them all.
FEWER_LOADERS: Final = {"vgg19bn-notebook": {"workers": "2"}, "vgg19bn-xray": {"workers": "2"}}
# Where the host is loaded too, by as little as stress-ng can.
HOST: Final = {"tasks": "1", "host_memory": "0.001"}


def shrink_words(words: Sequence[str], *, has_fewer_loaders: bool = False) -> list[str]:
    """Return the words of a workload, its preset put in, with what `SHRUNKEN` changes; all parameters are there."""
    name, module = words[0], find_workload(words[0])
    given = merge_parameters(name, module.PARAMETERS, read_pairs(words[1:], where=name), get_presets(module))
    more = HOST if given.get("host", "no") != "no" else {}
    more = {**more, **(FEWER_LOADERS.get(name, {}) if has_fewer_loaders else {})}
    return [name, *(f"{key}={value}" for key, value in {**given, **SHRUNKEN[name], **more}.items())]
