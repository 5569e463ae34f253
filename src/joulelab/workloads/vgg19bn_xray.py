"""Train VGG-19 with batch norm on chest X-rays: `python -m joulelab.workloads.vgg19bn_xray epochs=25`."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.errors import ConfigError
from joulelab.run.workload_registry import read_number, read_whole_number
from joulelab.workloads.training.launch import run_training
from joulelab.workloads.training.training_parameters import (
    COMMON,
    JUDGED,
    YES_NO,
    check_accuracy,
    check_amounts,
    make_preparation,
    make_training_command,
    read_choice,
)
from joulelab.workloads.training.training_task import describe_training

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.workloads.training.training_task import Task

SUMMARY = "VGG-19 with batch norm that recognises COVID-19 in chest X-rays"
STUDY = "HoreKa 2022"
NAME = "vgg19bn-xray"
PARAMETERS = {
    **COMMON,
    **JUDGED,
    "predictions": ("temporary", "the CSV file to write predictions to; temporary: deleted afterwards; no: none is"),
    "target": ("0", "accuracy (0 to 1) of the validation at which the training ends; 0: no such end"),
    "data": (
        "auto",
        "folder with train.csv, valid.csv, imgs; synthetic-memory; synthetic-files; auto: $JOULELAB_DATA, or the last",
    ),
    "workers": ("128", "processes of each rank that load data"),
    "worker_starts": ("each-epoch", "each-epoch: each epoch and validation starts its own; once: they stay"),
    "deterministic": ("yes", "yes: only algorithms that give the same result each time"),
    "epochs": ("25", "how often the data is seen; 0: only predict, with the model of load="),
    "batch": ("64", "samples in a step, of all ranks together"),
    "rate": ("0.1", "learning rate at the begin; it falls as a cosine, from epoch to epoch"),
    "momentum": ("0.9", "Nesterov's momentum of SGD"),
    "model": ("vgg", "vgg: the study's VGG-19; vit: ViT-S/16 of about as many parameters and FLOP, for a rate of 0.01"),
    "pool_stride": ("3", "from one pool to the next: 3 in the study's code, 2 in textbooks (3.9 times the FLOP)"),
    "divisor": ("1", "makes all layers this many times thinner"),
    "pixels": ("224", "width of what the model sees"),
    "preparation": ("paper", "paper: logarithm, blur, flip, turn, crop; repository: flip, turn, pad, crop"),
    "draft": ("no", "no: as the study did; yes: large JPEG files are decoded at a half or a quarter of their size"),
    "repeats": ("10", "how often each test sample is predicted; 0: only train"),
    "train_samples": ("15784", "samples of a stand-in to train on; to test it has a quarter of them at most"),
    "distinct": ("1000", "different images of a stand-in, which come again and again"),
    "file_pixels": ("1024", "width of the files of synthetic-files"),
}  # fmt: skip
PRESETS = {
    "paper": {},
    "paper-250": {"epochs": "250"},
    "smoke": {
        "data": "synthetic-files", "workers": "0", "deterministic": "no", "epochs": "2", "batch": "8", "rate": "0.01",
        "divisor": "8", "pixels": "128", "train_samples": "96", "distinct": "32", "file_pixels": "256",
        "repeats": "2", "threads": "1", "max_seconds": "15",
    },
}  # fmt: skip
# The study's images to validate and to test with; a small stand-in has fewer.
PROGRAM = describe_training(
    "train_samples", valid=("valid_samples", 1.0), predict=("test_samples", "repeats"), writes=True,
    amounts={"valid_samples": 150, "test_samples": 417},
)  # fmt: skip
NOTES = (
    "The preset paper is the training of 25 epochs of the paper's table; paper-250 is the full one.",
    "10.053 GFLOP forward for a sample, 30.10 with backward: the pools of the study's code have a stride of 3.",
    "The paper states 10.14 GFLOP; a textbook's VGG-19 (pool_stride=2) has 38.90.",
    "20,035,266 parameters; the paper's 20.4 M look like a slip.",
    "Images are prepared as in the paper: logarithm, blur; resize to 240, flip, turn, crop to 224, normalise.",
    "The study's code has no logarithm and no blur, and pads by 10 pixels before the crop: preparation=repository.",
    "Assumed: the logarithm is that of every image; half of those to train on are blurred, by up to 2 pixels.",
    "No weight decay, 128 loading processes, turns by up to 30 degrees, deterministic: all from the study's code.",
    "draft=yes decodes JPEG files at a smaller size where that is enough, which the study did not do.",
    "PyTorch's default, which the study may have used, computes in TF32 on an A100; fp32 here is fp32.",
    "The study's loaders start their processes again for each epoch and each validation: 50 times in 25 epochs.",
    "The study trained and predicted in jobs of their own: repeats=0 and save; epochs=0 and load that file.",
    "The paper reached an accuracy of 63.79 % after 250 epochs, and predicted each test sample ten times.",
    "The study's test data is not published: without test.csv, validation data is predicted (fact predicted_on).",
    "Half of a stand-in's images are positive; of the study's training images 13 % were.",
    "The ViT has 21,469,058 parameters and 9.070 GFLOP forward. It needs more images than a stand-in's to learn.",
)


def command(parameters: Mapping[str, str]) -> list[str]:
    """Return the words that start it. Raises ConfigError for a wrong value, MissingDependency."""
    return make_training_command(
        "joulelab.workloads.vgg19bn_xray", PARAMETERS, parameters, check=read, needs=("torch", "PIL")
    )


def prepare(parameters: Mapping[str, str]) -> list[str] | None:
    """Return the command that writes the stand-in's files, None without them. Raises ConfigError."""
    return make_preparation("joulelab.workloads.vgg19bn_xray", parameters, "ai-hero-health")


def read(parameters: Mapping[str, str]) -> None:
    """Check what is not common to all trainings. Raises ConfigError."""
    for key in ("batch", "train_samples", "distinct"):
        read_whole_number(parameters, key, least=1, most=10**6)
    check_amounts(parameters, "epochs", "repeats")
    check_accuracy(parameters)
    for key in ("rate", "momentum"):
        read_number(parameters, key, least=0, most=1000)
    read_whole_number(parameters, "divisor", least=1, most=64)
    read_whole_number(parameters, "file_pixels", least=16, most=8192)
    read_choice(parameters, "preparation", ("paper", "repository"))
    read_choice(parameters, "draft", YES_NO)
    stride, pixels = (
        read_whole_number(parameters, "pool_stride", least=2, most=3),
        read_whole_number(parameters, "pixels", least=1, most=8192),
    )
    if read_choice(parameters, "model", ("vgg", "vit")) == "vit":
        if pixels % 16 or 64 % int(parameters["divisor"]):
            why = f"pixels is {pixels}, divisor {parameters['divisor']}"
            raise ConfigError("patches or heads do not fit", why=why, next="give a multiple of 16, and a power of 2")
        return
    least = {2: 32, 3: 122}[stride]
    if pixels < least:
        why = f"five pools of stride {stride} leave nothing of it"
        raise ConfigError(f"pixels is {pixels}", why=why, next=f"give at least {least}")


def schedule(epochs: int, steps: int) -> Any:
    """Return the share of the rate at each step: half a cosine, by whole epochs, as the study's code has it."""
    last = max(epochs, 1)
    each = max(steps // last, 1)
    return lambda step: (1 + math.cos(math.pi * min(step // each, last) / last)) / 2


def task(given: Mapping[str, str]) -> Task:
    """Describe the training."""
    import torch

    from joulelab.workloads.data import xray
    from joulelab.workloads.models.attention import VisionTransformer
    from joulelab.workloads.models.vgg import VGG19
    from joulelab.workloads.training import model_figures
    from joulelab.workloads.training.training_task import Task

    read(given)
    stride, divisor, pixels = (int(given[key]) for key in ("pool_stride", "divisor", "pixels"))
    epochs, samples, is_vgg = int(given["epochs"]), int(given["train_samples"]), given["model"] == "vgg"
    data = xray.open_xrays(
        given["data"],
        xray.Preparation(given["preparation"], pixels, given["draft"] == "yes"),
        xray.StandIn(samples, int(given["distinct"]), int(given["file_pixels"])),
    )
    tested: Literal["valid", "test"] = "test" if data.test is not None else "valid"

    def optimizer(model: torch.nn.Module, steps: int) -> tuple[torch.optim.Optimizer, object]:
        rate, momentum = float(given["rate"]), float(given["momentum"])
        found = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, nesterov=momentum > 0)
        return found, torch.optim.lr_scheduler.LambdaLR(found, schedule(epochs, steps))

    return Task(
        model=lambda: VGG19(pool_stride=stride, divisor=divisor) if is_vgg else VisionTransformer(2, pixels, divisor),
        data=data,
        loss=model_figures.compute_class_loss,
        optimizer=optimizer,
        example=model_figures.make_class_example(1, pixels, pixels),
        amounts=model_figures.count_class_samples,
        score=model_figures.score_classes,
        quality=model_figures.compute_accuracy,
        rows=model_figures.list_classes,
        columns=model_figures.COLUMNS,
        batch=int(given["batch"]),
        epochs=epochs,
        predict_on=tested,
        predict_times=int(given["repeats"]),
        facts={
            "model": given["model"],
            "pool_stride": stride,
            "divisor": divisor,
            "preparation": given["preparation"],
            "draft": given["draft"],
            "predicted_on": tested,
        },
    )


if __name__ == "__main__":
    sys.exit(run_training(NAME, PARAMETERS, task, PRESETS))
