"""Which folders are the classes, and what is passed over, refused or told on the way."""

import zipfile

import pytest

import dpmcl
from conftest import refused
from packed import encoded, folder, noise, tarred, zipped

PACKERS = [folder, zipped, tarred]


pytestmark = pytest.mark.usefixtures("nowhere")


def named(*names: str) -> dict[str, bytes]:
    """Images of these names. A name that ends with a slash is an empty folder's."""
    files = {name: encoded(noise(seed)) for seed, name in enumerate(names)}
    return {name: b"" if name.endswith("/") else content for name, content in files.items()}


CLASSES = {
    "one folder a class": (["cat/1.png", "dog/1.png"], 1, ("cat", "dog")),
    "at any depth": (["cat/1.png", "cat/a/b/2.png", "dog/c/3.png"], 1, ("cat", "dog")),
    "a folder around all": (["photos/cat/1.png", "photos/dog/a/2.png"], 1, ("cat", "dog")),
    "with texts beside it": (["R.txt", "a/x.md", "a/10/1.png", "a/9/2.png"], 1, ("9", "10")),
    "a single class": (["cat/1.png", "cat/2.png"], 1, ("cat",)),
    "two levels": (["a/x/1.png", "a/y/2.png", "b/x/3.png"], 2, ("a/x", "a/y", "b/x")),
    "in order of folders": (["s/a b/x/1.png", "s/a/y/2.png"], 2, ("a/y", "a b/x")),
    "a train": (["bus/1.png", "car/1.png", "train/1.png"], 1, ("bus", "car", "train")),
    "parts of a set": (["train/cat/1.png", "test/cat/1.png", "test/dog/1.png"], 1, ("cat", "dog")),
    "numbered parts": (["R.md", "train_2017/cat/1.png", "my val/cat/1.png"], 1, ("cat",)),
    "parts, two levels": (["train/a/x/1.png", "test/a/y/1.png"], 2, ("a/x", "a/y")),
    "white space": (["cat/1.JFIF", "cat /1.png"], 1, ("cat", "cat ")),
}  # fmt: skip


@pytest.mark.parametrize("layout", CLASSES)
@pytest.mark.parametrize("pack", PACKERS)
def test_classes_are_the_first_folders(pack, layout, tmp_path):
    names, levels, classes = CLASSES[layout]
    stream = dpmcl.Stream.from_images(pack(tmp_path / "set", named(*names)), levels=levels)
    assert stream.classes == classes
    assert len(stream.x) == sum(name.endswith((".png", ".JFIF")) for name in names)


def test_classes_are_those_of_torchvisions_image_folder(tmp_path):
    torchvision = pytest.importorskip("torchvision")
    names = ["cat/2023/1.png", "cat/2024/2.png", "dog/2023/3.png", "dog/loose.png", "emu/a/b/4.png"]
    source = folder(tmp_path / "set", named(*names))
    theirs = dpmcl.Stream.from_dataset(torchvision.datasets.ImageFolder(source))
    ours = dpmcl.Stream.from_images(source)
    assert ours.classes == theirs.classes
    assert ours.y.bincount().tolist() == theirs.y.bincount().tolist() == [2, 2, 1]


REFUSED = {
    "an image beside parts": (["train/1.png", "test/cat/1.png"], ["'test', 'train'", "alone"]),
    "parts and more": (["train/a/1.png", "test/a/1.png", "extra/a/1.png"], ["'test', 'train'"]),
    "an image outside": (["1.png", "cat/1.png", "dog/1.png"], ["1.png", "folder"]),
    "another suffix": (["cat/1.png", "emu/1.psd", "emu/2.psd", "emu/x"], ["'emu'", "2 .psd"]),
    "several": (["cat/1.png", "emu/", "gnu/1.psd"], ["'emu'", "it is empty"]),
    "nothing but another suffix": (["cat/1.psd", "dog/2.psd"], ["there are none", "2 .psd"]),
}  # fmt: skip


@pytest.mark.parametrize("layout", REFUSED)
@pytest.mark.parametrize("pack", PACKERS)
def test_folders_that_cannot_be_classes_are_refused_by_name(pack, layout, tmp_path):
    names, parts = REFUSED[layout]
    source = pack(tmp_path / "set", named(*names))
    refused(lambda: dpmcl.Stream.from_images(source), *parts)


@pytest.mark.parametrize("pack", PACKERS)
def test_notes_say_what_was_passed_over_and_where_names_come_from(pack, tmp_path):
    names = named(
        "s/cat/1.png", "s/dog/1.JPG", "s/cat/2.psd", "s/cat/b.txt", "s/Thumbs.db",
        "s/cat/.DS_Store", "s/cat/notes/a.txt", "__MACOSX/s/cat/1.png", "s/dog/empty/",
    )  # fmt: skip
    stream = dpmcl.Stream.from_images(pack(tmp_path / "set", names))
    assert stream.classes == ("cat", "dog")
    assert stream.notes == (
        "class names: the first folder below 's'",
        "files passed over: 2 .txt, 2 hidden, 1 .db, 1 .psd",
    )
    source = pack(tmp_path / "parts", named("test/b/1.png", "train/a/1.png", "labels/"))
    (note,) = dpmcl.Stream.from_images(source).notes
    assert note == (
        "class names: the first folder below 'test', 'train' of the source, which are pooled"
    )


def test_names_of_windows_and_of_a_zip_that_does_not_say_that_they_are_utf_8(tmp_path):
    source = zipped(tmp_path / "set", named("s\\caf\u00e9\\1.png", "s\\\u00fcber\\1.png"))
    content = source.read_bytes()
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flag in both headers
        pieces = content.split(mark)
        cleared = [p[: at - 4] + b"\0\0" + p[at - 2 :] for p in pieces[1:]]
        content = mark.join([pieces[0], *cleared])
    source.write_bytes(content)
    with zipfile.ZipFile(source) as archive:
        assert "caf\u251c\u2310" in archive.namelist()[0]  # as CP437
    assert dpmcl.Stream.from_images(source).classes == ("caf\u00e9", "\u00fcber")
