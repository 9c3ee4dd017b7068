"""Images: the same from a folder, a zip and a tar; safe; decoded once."""

import os
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from conftest import complaint, refused
from dpmcl.data.labelled import Labelled
from dpmcl.data.readers import entries, images
from dpmcl.data.readers.images import Decoding, labelled_images
from packed import PACKERS, encoded, folder, mapped_file, noise, tarred, with_header, zipped

COLOUR = Decoding(size=(4, 4), channels=3)
GREY = Decoding(size=(4, 4), channels=1)


def animals() -> dict[str, bytes]:
    """Names out of order, among files that do not count."""
    return {
        "set/dog/2.png": encoded(noise(0)),
        "set/cat/9.PNG": encoded(noise(1)),
        "set/dog/10.png": encoded(noise(2)),
        "set/ant/1.bmp": encoded(noise(3), "BMP"),
        "set/ant/readme.txt": b"not an image",
        "set/ant/.hidden.png": b"nor this",
        "__MACOSX/set/ant/1.png": b"nor this",
    }


pytestmark = pytest.mark.usefixtures("nowhere")


def line(source: Path, decoding: Decoding = COLOUR) -> str:
    return complaint(labelled_images, source, decoding)


def pixels_of(tmp_path: Path, content: bytes, decoding: Decoding) -> np.ndarray:
    """The pixels of a single image, (height, width, channels)."""
    source = folder(tmp_path / "one", {"c/1.png": content})
    return labelled_images(source, decoding).x[0].permute(1, 2, 0).numpy()


def same(first: Labelled, second: Labelled) -> bool:
    return (
        torch.equal(first.x, second.x)
        and torch.equal(first.y, second.y)
        and (first.classes, first.notes) == (second.classes, second.notes)
    )


# ---- what is read --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PACKERS)
def test_every_kind_of_source_gives_the_same_images_in_order_and_decodes_them_once(
    kind, tmp_path, decoded
):
    source = PACKERS[kind](tmp_path / "birds", animals())
    data = labelled_images(source, COLOUR)
    assert (data.name, data.kind, data.task) == ("birds", "classification", None)
    assert data.classes == ("ant", "cat", "dog")
    assert data.y.tolist() == [0, 1, 2, 2]
    assert data.x.dtype == torch.uint8
    # "10.png" comes before "2.png".
    expected = np.stack([noise(seed) for seed in (3, 1, 2, 0)]).transpose(0, 3, 1, 2)
    assert np.array_equal(data.x.numpy(), expected)
    assert len(decoded) == 4
    assert same(labelled_images(source, COLOUR, "mine"), data)
    assert len(decoded) == 4


def test_resizing_averages_when_it_shrinks(tmp_path):
    halves = np.repeat(np.repeat([[0, 200], [100, 60]], 8, 0), 8, 1)
    assert pixels_of(tmp_path, encoded(halves), Decoding(size=(1, 1), channels=1)).item() == 90


@pytest.mark.parametrize("mode", [None, "RGB", "P", "LA", "RGBA"])
def test_grey_comes_from_every_mode_and_may_be_inverted(mode, tmp_path):
    pixels = noise(0, 4, 4)
    decoded_pixels = pixels_of(
        tmp_path, encoded(pixels, mode=mode), Decoding(channels=1, invert=True)
    )
    assert np.array_equal(decoded_pixels[..., 0], 255 - pixels)


@pytest.mark.parametrize("kind", ["folder", "tar.gz"])
def test_without_a_size_images_keep_theirs_and_an_odd_one_is_named(kind, tmp_path):
    files = {f"set/{name}/1.png": encoded(noise(i, 5, 7, 3)) for i, name in enumerate("ab")}
    x = labelled_images(PACKERS[kind](tmp_path / "a", files), Decoding()).x
    expected = np.stack([noise(seed, 5, 7, 3) for seed in (0, 1)]).transpose(0, 3, 1, 2)
    assert np.array_equal(x.numpy(), expected)
    files["set/b/2.png"] = encoded(noise(1, 7, 5, 3))
    source = PACKERS[kind](tmp_path / "b", files)
    parts = ("set/a/1.png", "(3, 5, 7)", "set/b/2.png", "(3, 7, 5)", "stream.size")
    refused(lambda: labelled_images(source, Decoding()), *parts)


def test_cropping_takes_the_centre_and_needs_images_that_are_large_enough(tmp_path):
    pixels = noise(0, 8, 10, 3)
    cropped = pixels_of(tmp_path, encoded(pixels), Decoding(size=(4, 6), crop=True))
    assert np.array_equal(cropped, pixels[2:6, 2:8])
    larger = Decoding(size=(9, 9), crop=True)
    refused(lambda: pixels_of(tmp_path, encoded(pixels), larger), "9x9", "8x10")


# ---- what is refused -----------------------------------------------------------------------------


def test_sources_that_are_none(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder(tmp_path / "set", animals())
    assert len(labelled_images(Path("~/set"), COLOUR).x) == 4
    (tmp_path / "a.zip").write_bytes(b"hello")
    assert "a folder, a zip or a tar" in line(tmp_path / "a.zip")
    source = zipped(tmp_path / "b", animals())
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "pip install 'dpmcl[vision]'" in line(source)


@pytest.mark.parametrize("name", ["/etc/c/1.png", "a/../../1.png", "..\\c\\1.png", "C:\\1.png"])
@pytest.mark.parametrize("packer", [zipped, tarred])
def test_members_that_would_leave_the_archive_are_refused(name, packer, tmp_path):
    source = packer(tmp_path / "set", {"ok/1.png": encoded(noise(0)), name: encoded(noise(1))})
    before = set(tmp_path.rglob("*"))
    error = line(source)
    assert repr(name) in error
    assert "'..'" in error
    assert set(tmp_path.rglob("*")) == before


def test_links_in_an_archive_are_refused(tmp_path):
    link = zipfile.ZipInfo("cat/1.png")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "zip", "w") as packed:
        packed.writestr(link, "/etc/passwd")
    with tarfile.open(tmp_path / "tar", "w") as archive:
        member = tarfile.TarInfo("cat/1.png")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    for name in ("zip", "tar"):
        assert "'cat/1.png'" in line(tmp_path / name)


def test_links_to_files_are_followed_and_those_to_folders_refused(tmp_path):
    source = folder(tmp_path / "set", animals())
    (tmp_path / "elsewhere.png").write_bytes(encoded(noise(7)))
    (source / "set" / "dog" / "3.png").symlink_to(tmp_path / "elsewhere.png")
    assert len(labelled_images(source, COLOUR).x) == 5
    (source / "more").symlink_to(source / "set")
    assert str(source / "more") in line(source)


WHOLE = encoded(noise(0, 40, 40, 3))


@pytest.mark.parametrize("kind", ["folder", "zip", "tar.gz"])
@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (WHOLE[: len(WHOLE) // 2], "cannot be read"),
        (b"no image", "cannot identify"),
        (b"", "cannot identify"),
        (with_header(WHOLE, 20_000, 20_000, WHOLE[24:29]), "million pixels"),
        (bytes(3 * 2**20), "at most 1 MiB"),
    ],
)
def test_a_bad_image_is_named(content, rule, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(entries, "LARGEST", 2**20)
    source = PACKERS[kind](tmp_path / "a", {"cat/1.png": WHOLE, "dog/2.png": content})
    error = line(source)
    assert "dog/2.png" in error
    assert rule in error


def test_a_file_that_vanishes_while_files_are_read_is_named(tmp_path, monkeypatch):
    source, listed = folder(tmp_path / "set", animals()), []

    def entries_once(path):
        listed.append([e for e in entries.entries(path) if not listed or e.path.name != "2.png"])
        return listed[-1]

    monkeypatch.setattr(images, "entries", entries_once)
    assert "'set/dog/2.png'" in line(source)


@pytest.mark.parametrize("kind", [*PACKERS][1:])
def test_a_cut_archive_is_one_line(kind, tmp_path):
    files = {f"cat/{i:02}.png": encoded(noise(i, 30, 30, 3)) for i in range(40)}
    source = PACKERS[kind](tmp_path / "cut", files)
    content = source.read_bytes()
    source.write_bytes(content[: int(len(content) * 0.8)])
    assert str(source) in line(source)


def test_a_tar_without_its_end_mark_is_refused(tmp_path):
    source = tarred(tmp_path / "a", {f"cat/{i}.png": encoded(noise(i)) for i in range(4)})
    source.write_bytes(source.read_bytes()[: 2 * 1024])  # between two members
    assert "end mark" in line(source)


# ---- the cache -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_change_is_noticed(kind, tmp_path, decoded):
    source = PACKERS[kind](tmp_path / "a", animals())
    labelled_images(source, COLOUR)
    for change in ({"size": (2, 4)}, {"crop": True}, {"invert": True}, {"levels": 2}):
        labelled_images(source, Decoding(**{"size": (4, 4), "channels": 3, **change}))
    assert len(decoded) == 5 * 4
    PACKERS[kind](tmp_path / "a", {**animals(), "set/bee/1.png": encoded(noise(7))})
    assert labelled_images(source, COLOUR).classes == ("ant", "bee", "cat", "dog")
    assert len(decoded) == 5 * 4 + 5
    file = source / "set/cat/9.PNG" if kind == "folder" else source
    for _ in range(2):  # the second replacement has the size and the modification time of the first
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content)
        os.utime(file, ns=(1, 1))
        labelled_images(source, COLOUR)
    assert len(decoded) == 5 * 4 + 15


DAMAGES = [
    lambda content: content[:-9],
    lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    lambda content: content.replace(b"ant", b"bee"),
    lambda content: b"[" * 100_000,
    None,
]


@pytest.mark.parametrize("suffix", ["npy", "json"])
@pytest.mark.parametrize("change", DAMAGES)
def test_a_damaged_cache_is_decoded_anew(suffix, change, tmp_path, decoded, nowhere):
    source = zipped(tmp_path / "a", animals())
    first = labelled_images(source, COLOUR)
    (path,) = nowhere.glob(f"cache/*.{suffix}")
    content = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(content))
    assert same(labelled_images(source, COLOUR), first)
    assert len(decoded) == (8 if change is None or change(content) != content else 4)


# ---- pools that do not fit in memory -------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
def test_images_are_mapped_with_and_without_a_cache_and_changes_to_them_stay_private(
    tmp_path, monkeypatch
):
    files = {f"s/{name}/{i}.png": encoded(noise(i, 5, 6, 3)) for i in range(4) for name in "ba"}
    source = tarred(tmp_path / "set", files)
    expected = labelled_images(source, Decoding()).x.clone()
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=0))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for cached in (True, True, False):  # as it is read, and then with nowhere to write
        if not cached:
            (tmp_path / "file").write_text("in the way")
            monkeypatch.setenv("DPMCL_CACHE", str(tmp_path / "file" / "cache"))
        read = labelled_images(source, Decoding())
        assert mapped_file(read.x)
        assert torch.equal(read.x, expected)
        read.x.fill_(7)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    assert "set TMPDIR" in line(source, Decoding())
