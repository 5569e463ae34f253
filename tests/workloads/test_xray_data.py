"""Chest X-rays: the published folder, how images are made ready, the stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from joulelab.core.errors import ConfigError
from joulelab.workloads.data import xray
from joulelab.workloads.data.xray import LOGARITHM, Preparation, StandIn, open_xrays, prepare_image

pytestmark = pytest.mark.system

SMALL = Preparation(pixels=32)


def grey(width: int = 64, height: int = 48) -> Any:
    return Image.fromarray(np.add.outer(np.arange(height) * 2, np.arange(width) * 2).astype(np.uint8))


def folder_of(path: Path, **parts: str) -> Path:
    """Write a folder in the published form: for each part a + for each positive image, a - for each negative one."""
    (path / "imgs").mkdir(parents=True)
    for part, labels in parts.items():
        rows = ["image,label"]
        for number, label in enumerate(labels):
            grey().save(path / "imgs" / f"{part}{number}.png")
            rows.append(f"{part}{number}.png,{'positive' if label == '+' else 'negative'}")
        (path / f"{part}.csv").write_text("\n".join(rows) + "\n")
    return path


def test_the_logarithm_keeps_black_and_white_and_lifts_what_is_dark() -> None:
    assert (LOGARITHM[0], LOGARITHM[255]) == (0, 255)
    assert LOGARITHM[15] == 128  # log(16) is half of log(256)
    assert list(LOGARITHM) == sorted(LOGARITHM)
    image = Image.new("L", (8, 8), 15)
    assert prepare_image(image, Preparation(pixels=8), changed=False).getpixel((3, 3)) == 128
    assert prepare_image(image, Preparation("repository", 8), changed=False).getpixel((3, 3)) == 15


def test_images_to_test_are_resized_and_those_to_train_on_changed_by_the_seed() -> None:
    assert (SMALL.resized, Preparation().resized) == (34, 240)
    still = [np.asarray(prepare_image(grey(), SMALL, changed=False)) for _ in range(2)]
    assert still[0].shape == (32, 32)
    assert (still[0] == still[1]).all()
    for way in xray.PREPARATIONS:
        torch.manual_seed(1)
        made = [np.asarray(prepare_image(grey(), Preparation(way, 32), changed=True)) for _ in range(8)]
        torch.manual_seed(1)
        again = np.asarray(prepare_image(grey(), Preparation(way, 32), changed=True))
        assert all(one.shape == (32, 32) for one in made)
        assert (made[0] == again).all()
        assert not (made[0] == made[1]).all()


def test_an_image_becomes_numbers_about_zero() -> None:
    numbers = xray.normalise_image(Image.new("L", (4, 4), 255))
    assert numbers.shape == (1, 4, 4)
    assert float(numbers[0, 0, 0]) == pytest.approx((1 - 0.8180) / 0.1748)


def test_a_folder_is_read_with_its_labels_and_named_by_what_it_is(tmp_path: Path) -> None:
    folder_of(tmp_path / "ai-hero-health", train="+--", valid="-+")
    data = open_xrays("auto", SMALL, StandIn(), environ={"JOULELAB_DATA": str(tmp_path)})
    assert (data.source.name, data.source.real) == ("folder in the form of ai-hero-health", True)
    assert (data.source.samples, len(data.valid), data.test) == (3, 2, None)
    assert [label for _, label in data.train] == [1, 0, 0]
    assert data.valid[0][0].shape == (1, 32, 32)
    counts = {
        part: [(Path(str(k)), int(k >= none)) for k in range(none + some)] for part, (none, some) in xray.KNOWN.items()
    }
    assert xray.has_study_counts(counts)
    assert not xray.has_study_counts({**counts, "valid": counts["test"]})
    once_more = {part: [(Path(), label) for _, label in rows] for part, rows in counts.items()}
    assert not xray.has_study_counts(once_more)  # one image, again and again
    assert xray.name_data(xray.PUBLISHED, counts=True) == "ai-hero-health (by its counts)"


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("image,label\nb.png,positive\n", "train.csv:2: there is no image 'b.png'; put it into"),
        ("image,label\ntrain0.png,maybe\n", r"train.csv:2: this is not an X-ray \(the label is 'maybe'\)"),
        ("image\ntrain0.png\n", "the label is ''"),
        ("image,label\n", "there is no X-ray in it"),
        ("\udcff\udcfei\0", r"train.csv: the X-rays cannot be read \(it is no text in UTF-8: byte 0xff\)"),
        (f"image,label\n{'a' * 200_000},positive\n", r"train.csv: the X-rays cannot be read \(field larger than"),
    ],
)
def test_what_is_wrong_in_a_folder_is_told_before_anything_is_trained(tmp_path: Path, table: str, why: str) -> None:
    folder = folder_of(tmp_path / "a", train="+", valid="+")
    (folder / "train.csv").write_text(table, errors="surrogateescape")
    with pytest.raises(ConfigError, match=why):
        open_xrays(str(folder), SMALL, StandIn())


def test_a_folder_without_images_or_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"imgs: the X-rays cannot be read \(No such file"):
        open_xrays(str(tmp_path), SMALL, StandIn())
    (tmp_path / "imgs").mkdir()
    with pytest.raises(ConfigError, match=r"train.csv: the X-rays cannot be read"):
        open_xrays(str(tmp_path), SMALL, StandIn())


def test_a_stand_in_of_files_is_written_once_and_comes_again_and_again(tmp_path: Path) -> None:
    environ, stand_in = {"XDG_CACHE_HOME": str(tmp_path)}, StandIn(samples=24, distinct=4, file_pixels=96)
    data = open_xrays("auto", SMALL, stand_in, environ=environ)
    assert (data.source.name, data.source.real, data.source.samples) == ("synthetic-files", False, 24)
    files = sorted(Path(data.source.where, "imgs").iterdir())
    assert len(files) == 3 * 4
    with Image.open(files[0]) as image:
        assert (image.format, image.size) == ("JPEG", (96, 96))
    assert [label for _, label in data.train.labelled] == [0, 1, 0, 1] * 6
    torch.manual_seed(0)
    assert data.train[9][0].shape == (1, 32, 32)
    assert torch.equal(data.valid[0][0], data.valid[4][0])
    kept = [file.stat().st_mtime_ns for file in files]
    whole = open_xrays("synthetic-files", Preparation(pixels=32, draft=False), stand_in, environ=environ)
    assert [file.stat().st_mtime_ns for file in files] == kept
    assert torch.allclose(whole.test[1][0], data.test[1][0], atol=0.5)


def test_a_stand_in_in_memory_has_the_same_numbers_each_time() -> None:
    data = open_xrays("synthetic-memory", SMALL, StandIn(samples=1000, distinct=6))
    assert (data.source.name, data.source.samples) == ("synthetic-memory", 1000)
    assert [len(data.train), len(data.valid), len(data.test)] == [1000, 150, 250]
    assert [StandIn().count(part) for part in xray.PARTS] == [15784, 150, 417]
    (image, label), (again, same) = data.train[1], data.train[7]
    assert (label, same) == (1, 1)
    assert torch.equal(image, again)
    assert not torch.equal(image, data.valid[1][0])
    with pytest.raises(IndexError):
        data.train[1000]
