"""Train Xception on birds: `python -m joulelab.workloads.xception_birds weights=FILE ranks=8`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.run.workload_registry import read_number, read_whole_number
from joulelab.workloads.training.launch import run_training
from joulelab.workloads.training.training_parameters import (
    COMMON,
    JUDGED,
    check_accuracy,
    make_preparation,
    make_training_command,
    read_choice,
)
from joulelab.workloads.training.training_task import describe_training

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.workloads.training.training_task import Task

SUMMARY = "transfer learning with Xception on 69 species of birds"
STUDY = "Gdansk 2023"
NAME = "xception-birds"
PARAMETERS = {
    **COMMON,
    **JUDGED,
    "target": (
        "0",
        "accuracy (0 to 1) of the validation at which the training ends, 0.98 in the paper's pilots; 0: none",
    ),
    "data": (
        "auto",
        "a folder with train, valid and test, synthetic-files or synthetic-memory; auto: $JOULELAB_DATA, else files",
    ),
    "workers": ("4", "processes of each rank that load data"),
    "prefetch": ("2", "batches that each of them reads ahead"),
    "epochs": ("5", "how often the data is seen; 0: only predict, with the model of load="),
    "batch_per_rank": ("32", "images of each rank in a step"),
    "rate": ("0.001", "learning rate of Adam"),
    "weights": ("random", "the base's first weights: a torch state_dict, a file of Keras's Xception, or random"),
    "base": ("trained", "trained: all is trained; frozen: only the top is"),
    "top": ("one", "one: a single layer on top of the base; 512: a layer of 512 units before it"),
    "middle": ("8", "blocks in the middle of the base"),
    "pixels": ("299", "rows and columns of an image as it is trained on"),
    "classes": ("69", "species; of a folder with more, the first by name"),
    "images": ("10000", "images to train on; of a folder with more, as many of each species as can be"),
    "held_out": ("5", "synthetic images of a species for validation, and as many for the test"),
    "file_pixels": ("224", "rows and columns of synthetic files; the published ones have 224"),
}
PRESETS = {
    "paper": {},
    "smoke": {
        "data": "synthetic-files", "threads": "1", "workers": "1", "epochs": "1", "batch_per_rank": "4",
        "rate": "0.0002", "middle": "1", "pixels": "80", "classes": "4", "images": "96", "held_out": "4",
        "file_pixels": "112", "warmup_steps": "1", "max_steps": "6", "max_seconds": "15",
    },
}  # fmt: skip
PROGRAM = describe_training(
    "images", device_batch="batch_per_rank", valid=("held_out", "classes"), predict=("held_out", "classes")
)
NOTES = (
    "The paper assumes an accuracy of 98 % after five epochs; the fact paper_accuracy states it in each run.",
    "Its pilots trained until that accuracy: target=0.98 patience=5 epochs=100 finds how many epochs that takes.",
    "No weights come with joulelab: with weights=random it is the paper's load, and not its accuracy.",
    "The paper does not state whether the base was frozen: base=trained is assumed, for its times fit that better.",
    "118 images/s on one GPU are 5.9 TFLOP/s if all is trained, a third of its peak, and 2.0 if frozen (299 pixels).",
    "The paper's top is not known: one layer (20.9 M parameters with the base) is assumed; top=512 has 21.9 M.",
    "The paper states neither batch nor optimizer nor image size: Keras's defaults (32 on each GPU, Adam at 0.001) and",
    "Xception's 299 pixels are assumed. More GPUs make fewer steps, of more images each, as is usual with Horovod.",
    "The paper used TensorFlow, Horovod and tf.data's prefetching; DDP with a loader that reads ahead stands for them.",
    "Which 69 of 450 species and which 10000 images it took is not published, so a folder is named by its form only.",
    "The stand-in has coloured stripes with noise, as JPEG files about as large as photographs are assumed to be.",
    "In memory it has 8 images of a class, again and again.",
)
PAPER_ACCURACY = 0.98
RANDOM = "random"


def command(parameters: Mapping[str, str]) -> list[str]:
    """Return the words that start it. Raises ConfigError for a wrong value."""
    return make_training_command(
        "joulelab.workloads.xception_birds", PARAMETERS, parameters, check=_read, needs=("torch", "PIL")
    )


def prepare(parameters: Mapping[str, str]) -> list[str] | None:
    """Return the command that writes the stand-in's files, None without them. Raises ConfigError."""
    return make_preparation("joulelab.workloads.xception_birds", parameters, "birds-450")


def _read(parameters: Mapping[str, str]) -> dict[str, int]:
    """Check what is not common to all trainings; return the whole numbers. Raises ConfigError."""
    read_number(parameters, "rate", least=0, most=1000)
    check_accuracy(parameters)
    read_choice(parameters, "base", ("trained", "frozen"))
    read_choice(parameters, "top", ("one", "512"))
    bounds = {
        "prefetch": (1, 1000), "epochs": (0, 10**6), "batch_per_rank": (1, 10**6), "middle": (0, 1000),
        "pixels": (71, 10_000), "classes": (2, 100_000), "images": (1, 10**8), "held_out": (1, 10**6),
        "file_pixels": (16, 10_000),
    }  # fmt: skip
    return {key: read_whole_number(parameters, key, least=least, most=most) for key, (least, most) in bounds.items()}


def task(given: Mapping[str, str]) -> Task:
    """Describe the training."""
    import torch

    from joulelab.workloads.data import birds
    from joulelab.workloads.training import model_figures
    from joulelab.workloads.training.training_task import Task

    sizes = _read(given)
    pixels, classes = sizes["pixels"], sizes["classes"]
    return Task(
        model=lambda: _model(given, sizes),
        data=birds.open_birds(
            given["data"],
            birds.Sizes(classes, sizes["images"], sizes["held_out"], pixels, sizes["file_pixels"]),
        ),
        loss=lambda model, batch: model_figures.compute_class_loss(model, _scaled(batch)),
        optimizer=lambda model, _: (_adam(model, float(given["rate"])), None),
        example=model_figures.make_class_example(3, pixels, pixels, dtype=torch.uint8),
        amounts=model_figures.count_class_samples,
        forward=lambda model, batch: model(_scaled(batch)[0]),
        score=model_figures.score_classes,
        quality=model_figures.compute_accuracy,
        rows=model_figures.list_classes,
        columns=model_figures.COLUMNS,
        # As with Horovod, whose users give each GPU its batch: more GPUs make fewer steps, of more images each.
        batch=sizes["batch_per_rank"] * int(os.environ.get("WORLD_SIZE", "1")),
        epochs=sizes["epochs"],
        prefetch=sizes["prefetch"],
        facts={
            **{key: given[key] for key in ("weights", "base", "top")},
            **{key: sizes[key] for key in ("middle", "pixels", "classes")},
            "paper_accuracy": PAPER_ACCURACY,
        },
    )


def _model(given: Mapping[str, str], sizes: Mapping[str, int]) -> Any:
    from joulelab.workloads.models.xception import Xception, load_weights

    frozen = given["base"] == "frozen"
    model = Xception(sizes["classes"], middle=sizes["middle"], top=given["top"], frozen=frozen)
    if given["weights"] != RANDOM and not next(model.parameters()).is_meta:
        load_weights(model, Path(given["weights"]).expanduser())
    return model


def _adam(model: Any, rate: float) -> Any:
    """Return Adam as Keras has it, over what is trained."""
    import torch

    return torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=rate, eps=1e-7)


def _scaled(batch: Any) -> tuple[Any, Any]:
    """Return a batch of images in bytes as the model takes them: -1 to 1."""
    return batch[0].float() / 127.5 - 1, batch[1]


if __name__ == "__main__":
    sys.exit(run_training(NAME, PARAMETERS, task, PRESETS))
