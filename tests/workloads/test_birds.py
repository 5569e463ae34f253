from __future__ import annotations

import errno
import threading

import numpy as np
import pytest

from joulelab.core.errors import ConfigError
from joulelab.workloads.data import birds, images
from joulelab.workloads.data.source import FILES, MEMORY

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("torch")

pytestmark = pytest.mark.system
SMALL = birds.Sizes(classes=3, images=8, held_out=2, pixels=40, file_pixels=32)


def folder_of_birds(root, classes=("ALBATROSS", "BOBOLINK", "CARDINAL"), train=4):
    for part, count in (("train", train), ("valid", 2), ("test", 2)):
        for label, name in enumerate(classes):
            inside = root / part / name
            inside.mkdir(parents=True)
            for k in range(count):
                Image.new("RGB", (64, 64), (80 * label, 10 * k, 0)).save(inside / f"{k + 1}.jpg")
    return root


def test_a_stand_in_is_written_once_as_files_of_the_published_form(tmp_path):
    given = {"XDG_CACHE_HOME": str(tmp_path)}
    data = birds.open_birds("auto", SMALL, environ=given)
    assert (data.source.name, data.source.real, data.source.samples) == (FILES, False, 8)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [8, 6, 6]
    pixels, label = data.train[4]
    assert pixels.shape == (3, 40, 40)
    assert str(pixels.dtype) == "torch.uint8"
    assert [data.train[k][1] for k in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]
    file = next((tmp_path / "joulelab").glob("synthetic-birds*/train/class-0001/00002.jpg"))
    assert label == 1
    before = file.stat().st_mtime_ns
    # What is written there is in the form that a folder has to have.
    again = birds.open_birds(str(file.parents[2]), SMALL, environ={})
    assert again.source.name == "folder in the form of birds-450"
    assert bool((again.train[4][0] == pixels).all())
    birds.open_birds(FILES, SMALL, environ=given)
    assert file.stat().st_mtime_ns == before


def test_images_of_a_class_are_alike_and_those_of_parts_are_others():
    first, same, other = (birds.draw_bird("train", k, 3, 48).astype(float) for k in (0, 3, 1))
    colour = [image.mean((0, 1)) for image in (first, same, other)]
    assert np.abs(colour[0] - colour[1]).max() < 0.3 * np.abs(colour[0] - colour[2]).max()
    assert (first == birds.draw_bird("train", 0, 3, 48)).all()
    assert (first != birds.draw_bird("valid", 0, 3, 48)).any()


def test_in_memory_images_come_again_after_a_few():
    data = birds.open_birds(MEMORY, birds.Sizes(classes=2, images=40, held_out=1, pixels=24, file_pixels=1), environ={})
    assert (data.source.name, data.source.samples, len(data.train), len(data.test)) == (MEMORY, 40, 40, 2)
    assert bool((data.train[1][0] == data.train[1 + 2 * birds.MOST_IN_MEMORY][0]).all())
    assert data.train[17][1] == 1
    with pytest.raises(IndexError):
        data.train[40]


def test_a_folder_is_read_by_sorted_names_and_cut_to_the_same_share_of_each_class(tmp_path):
    folder = folder_of_birds(tmp_path / "birds-450", ("CARDINAL", "ALBATROSS", "BOBOLINK"))
    (folder / "train" / ".cache").mkdir()
    (folder / "train" / "ALBATROSS" / "._1.jpg").write_bytes(b"left by another system")
    data = birds.open_birds("auto", birds.Sizes(2, 6, 5, 16, 1), environ={"JOULELAB_DATA": str(tmp_path)})
    assert data.source.name == "folder in the form of birds-450"
    assert (data.source.real, data.source.samples, data.source.where) == (True, 6, str(folder))
    assert [data.train[k][1] for k in range(6)] == [0, 1, 0, 1, 0, 1]
    assert len(data.valid) == len(data.test) == 4
    pixels, _ = data.valid[0]
    assert pixels.shape == (3, 16, 16)
    assert pixels[0].float().mean() == pytest.approx(80, abs=4)  # ALBATROSS


def test_a_folder_that_is_not_in_the_form_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no folder train; name the folder that holds"):
        birds.open_birds(str(tmp_path), SMALL)
    folder = folder_of_birds(tmp_path)
    with pytest.raises(ConfigError, match=r"there are 3 classes \(69 are requested\); give classes=3"):
        birds.open_birds(str(tmp_path), birds.Sizes(69, 100, 5, 40, 32))
    for file in (folder / "test" / "BOBOLINK").iterdir():
        file.unlink()
    with pytest.raises(ConfigError, match="test/BOBOLINK: there is no image"):
        birds.open_birds(str(folder), SMALL)
    (folder / "test" / "BOBOLINK").rmdir()
    with pytest.raises(ConfigError, match="there is no folder test/BOBOLINK"):
        birds.open_birds(str(folder), SMALL)


def test_a_broken_or_missing_image_is_named(tmp_path):
    folder = folder_of_birds(tmp_path)
    data = birds.open_birds(str(folder), SMALL)
    whole, text, gone = (folder / "train" / name / "1.jpg" for name in ("ALBATROSS", "BOBOLINK", "CARDINAL"))
    whole.write_bytes(whole.read_bytes()[:400])
    text.write_text("not an image")
    gone.unlink()
    for k, (file, what) in enumerate(((whole, "cannot read"), (text, "cannot read"), (gone, "there is no such image"))):
        with pytest.raises(ConfigError, match=what) as caught:
            data.train[k]
        assert str(file) in str(caught.value)


def test_large_files_are_decoded_smaller_but_never_too_small(tmp_path):
    file = tmp_path / "x-ray.jpg"
    Image.new("L", (1024, 800), 77).save(file)
    assert images.read_image(file, "L", at_least=(240, 200)).size == (256, 200)
    assert images.read_image(file, "L", at_least=(240, 240)).size == (512, 400)
    assert images.read_image(file, "L").size == (1024, 800)
    assert images.to_tensor(images.read_image(file, "L")).shape == (1, 800, 1024)


def test_a_folder_is_made_by_one_and_whole_for_all(tmp_path):
    made, folder = [], tmp_path / "cache" / "things"
    begin = threading.Barrier(4)

    def make(part):
        made.append(part)
        (part / "file").write_text("whole")

    def ask():
        begin.wait()
        assert (images.make_once(folder, make) / "file").read_text() == "whole"

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert sorted(file.name for file in folder.parent.iterdir()) == [".things.lock", "things"]


def test_what_was_begun_and_not_finished_is_not_used(tmp_path):
    folder = tmp_path / "things"

    def fail(part):
        (part / "file").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ConfigError, match="No space left on device"):
        images.make_once(folder, fail)
    left = tmp_path / f"{images._part_prefix(folder)}killed"
    left.mkdir()
    assert images.make_once(folder, lambda part: None) == folder
    assert not left.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME"):
        images.make_once(tmp_path / "file" / "things", lambda part: None)


def test_without_locks_the_first_that_is_done_wins(tmp_path, monkeypatch):
    folder = tmp_path / "things"

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    def make(part):
        folder.mkdir()
        (folder / "file").write_text("another's")
        (part / "file").write_text("ours")

    monkeypatch.setattr(images.fcntl, "flock", no_locks)
    assert (images.make_once(folder, make) / "file").read_text() == "another's"
    assert sorted(file.name for file in tmp_path.iterdir()) == [".things.lock", "things"]
