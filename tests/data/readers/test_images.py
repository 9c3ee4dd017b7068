"""Images: the same from a folder, a zip and a tar; safe; decoded once."""

import json
import os
import struct
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dpmcl.data.labelled import Labelled
from dpmcl.data.readers import entries, image_cache, images
from dpmcl.data.readers.images import Decoding, labelled_images
from dpmcl.exceptions import DataError
from packed import PACKERS, encoded, folder, noise, tarred, zipped

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


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DPMCL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    """The files that were decoded since the test began."""
    names: list[str] = []
    real = images.pixels

    def spy(image, where, decoding):
        names.append(where)
        return real(image, where, decoding)

    monkeypatch.setattr(images, "pixels", spy)
    return names


def line(source: Path, decoding: Decoding = COLOUR) -> str:
    with pytest.raises(DataError) as caught:
        labelled_images(source, decoding)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def one(tmp_path: Path, content: bytes, decoding: Decoding) -> np.ndarray:
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
    assert one(tmp_path, encoded(halves), Decoding(size=(1, 1), channels=1)).item() == 90
    content = encoded(noise(0, 9, 5, 3))
    assert one(tmp_path / "b", content, Decoding(size=(6, 3))).shape == (6, 3, 3)


def test_cropping_takes_the_centre_and_needs_images_that_are_large_enough(tmp_path):
    pixels = noise(0, 8, 10, 3)
    found = one(tmp_path, encoded(pixels), Decoding(size=(4, 6), crop=True))
    assert np.array_equal(found, pixels[2:6, 2:8])
    source = folder(tmp_path / "small", {"c/1.png": encoded(noise(0, 4, 9, 3))})
    error = line(source, Decoding(size=(5, 5), crop=True))
    assert "5x5" in error
    assert "4x9" in error


@pytest.mark.parametrize("mode", [None, "RGB", "P", "LA", "RGBA"])
def test_grey_comes_from_every_mode_and_may_be_inverted(mode, tmp_path):
    pixels = noise(0, 4, 4)
    found = one(tmp_path, encoded(pixels, mode=mode), Decoding(channels=1, invert=True))
    assert np.array_equal(found[..., 0], 255 - pixels)


@pytest.mark.parametrize("kind", PACKERS)
def test_without_a_size_images_keep_theirs_and_an_odd_one_is_named(kind, tmp_path):
    files = {f"set/{name}/1.png": encoded(noise(i, 5, 7, 3)) for i, name in enumerate("ab")}
    x = labelled_images(PACKERS[kind](tmp_path / "a", files), Decoding()).x
    expected = np.stack([noise(seed, 5, 7, 3) for seed in (0, 1)]).transpose(0, 3, 1, 2)
    assert np.array_equal(x.numpy(), expected)
    files["set/b/2.png"] = encoded(noise(1, 7, 5, 3))
    error = line(PACKERS[kind](tmp_path / "b", files), Decoding())
    for part in ("set/a/1.png", "(3, 5, 7)", "set/b/2.png", "(3, 7, 5)", "stream.size"):
        assert part in error


# ---- what is refused -----------------------------------------------------------------------------


def test_sources_that_are_none(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder(tmp_path / "set", animals())
    assert len(labelled_images(Path("~/set"), COLOUR).x) == 4
    assert str(tmp_path / "nowhere") in line(tmp_path / "nowhere")
    (tmp_path / "a.zip").write_bytes(b"hello")
    assert "a folder, a zip or a tar" in line(tmp_path / "a.zip")
    for path in ("x" * 5000, "a\0b", "~nobody-of-that-name/photos"):
        assert line(Path(path))


@pytest.mark.parametrize(
    "name", ["/etc/cat/1.png", "../cat/1.png", "a/../../1.png", "..\\c\\1.png", "C:\\c\\1.png"]
)
@pytest.mark.parametrize("packer", [zipped, tarred])
def test_members_that_would_leave_the_archive_are_refused(name, packer, tmp_path):
    source = packer(tmp_path / "set", {"ok/1.png": encoded(noise(0)), name: encoded(noise(1))})
    before = set(tmp_path.rglob("*"))
    error = line(source)
    assert repr(name) in error
    assert "'..'" in error
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, None])
def test_links_and_pipes_in_an_archive_are_refused(kind, tmp_path):
    path = tmp_path / "a"
    if kind is None:
        with zipfile.ZipFile(path, "w") as packed:
            info = zipfile.ZipInfo("cat/1.png")
            info.external_attr = 0o120777 << 16
            packed.writestr(info, "/etc/passwd")
    else:
        with tarfile.open(path, "w") as archive:
            member = tarfile.TarInfo("cat/1.png")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    assert "'cat/1.png'" in line(path)


def test_links_to_files_are_followed_and_those_to_folders_refused(tmp_path):
    source = folder(tmp_path / "set", animals())
    (tmp_path / "elsewhere.png").write_bytes(encoded(noise(7)))
    (source / "set" / "dog" / "3.png").symlink_to(tmp_path / "elsewhere.png")
    (tmp_path / "link").symlink_to(source)
    for path in (source, tmp_path / "link"):
        assert len(labelled_images(path, COLOUR).x) == 5
    (source / "set" / "dog" / "4.png").symlink_to(tmp_path / "gone.png")
    assert "4.png" in line(source)
    (source / "set" / "dog" / "4.png").unlink()
    (source / "more").symlink_to(source / "set")
    assert str(source / "more") in line(source)


def test_a_folder_that_may_not_be_listed_is_one_line(tmp_path, monkeypatch):
    source = folder(tmp_path / "set", animals())
    real = os.scandir

    def refuse(path):
        if str(path).endswith("cat"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert "Permission denied" in line(source)


def claiming(width: int, height: int) -> bytes:
    """A PNG whose header says that it has so many pixels."""
    content = encoded(noise(0))
    header = b"IHDR" + struct.pack(">II", width, height) + content[24:29]
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


WHOLE = encoded(noise(0, 40, 40, 3))


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (WHOLE[: len(WHOLE) // 2], "cannot be decoded"),
        (b"no image", "cannot identify"),
        (b"", "0 bytes"),
        (claiming(20_000, 20_000), "million pixels"),
        (bytes(3 * 2**20), "at most 1 MiB"),
    ],
)
def test_a_bad_image_is_named(content, rule, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(entries, "LARGEST", 2**20)
    source = PACKERS[kind](tmp_path / "a", {"cat/1.png": WHOLE, "dog/2.png": content})
    error = line(source)
    assert "dog/2.png" in error
    assert rule in error


def test_damaged_archives_are_one_line(tmp_path):
    files = {f"cat/{i:02}.png": encoded(noise(i, 30, 30, 3)) for i in range(40)}
    for kind in ("tar", "tar.gz", "tar.bz2", "tar.xz", "zip"):
        source = PACKERS[kind](tmp_path / "cut", files)
        content = source.read_bytes()
        source.write_bytes(content[: int(len(content) * 0.8)])
        assert str(source) in line(source)
    source = tarred(tmp_path / "a", {f"cat/{i}.png": encoded(noise(i)) for i in range(4)})
    source.write_bytes(source.read_bytes()[: 2 * 1024])  # between two members
    assert "end mark" in line(source)
    source = zipped(tmp_path / "a", {"cat/1.png": encoded(noise(0))})
    content = bytearray(source.read_bytes())
    content[60] ^= 255
    source.write_bytes(content)
    assert "'cat/1.png'" in line(source)


def test_without_pillow_the_error_says_what_to_install(tmp_path, monkeypatch):
    source = zipped(tmp_path / "a", animals())
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "pip install 'dpmcl[vision]'" in line(source)


def test_avif_and_heic_are_read_where_pillow_can_and_refused_by_name_elsewhere(
    tmp_path, monkeypatch
):
    Image.init()
    assert "HEIF" not in Image.OPEN
    files = {"cat/1.png": encoded(noise(0)), "dog/1.heic": b"\0\0\0\x18ftypheic" + bytes(40)}
    error = line(folder(tmp_path / "a", files))
    assert "dog/1.heic" in error
    assert "convert it" in error
    if "AVIF" in Image.SAVE:
        content = encoded(np.full((16, 16, 3), 90), "AVIF")
        files = {"cat/1.png": encoded(noise(0)), "dog/1.avif": content}
        source = folder(tmp_path / "b", files)
        found = labelled_images(source, Decoding(size=(16, 16))).x[1].int()
        assert int((found - 90).abs().max()) < 5
        monkeypatch.delitem(Image.OPEN, "AVIF")
        assert "dog/1.avif" in line(source)


# ---- the cache -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "zip", "tar.gz"])
def test_a_change_is_noticed(kind, tmp_path, decoded):
    source = PACKERS[kind](tmp_path / "a", animals())
    labelled_images(source, COLOUR)
    PACKERS[kind](tmp_path / "a", {**animals(), "set/bee/1.png": encoded(noise(7))})
    assert labelled_images(source, COLOUR).classes == ("ant", "bee", "cat", "dog")
    assert len(decoded) == 9
    os.utime(source / "set/cat/9.PNG" if kind == "folder" else source, ns=(1, 1))
    labelled_images(source, COLOUR)
    assert len(decoded) == 14
    if kind == "folder":
        (source / "set" / "emu").mkdir()
        assert "'set/emu'" in line(source)


def test_every_setting_of_the_decoding_counts(tmp_path, cache):
    source = zipped(tmp_path / "a", animals())
    changes = [
        {}, {"size": (2, 4)}, {"size": (4, 2)}, {"channels": 1}, {"crop": True}, {"invert": True},
        {"levels": 2}, {"innermost": True},
    ]  # fmt: skip
    for change in changes:
        labelled_images(source, Decoding(**{"size": (4, 4), "channels": 3, **change}))
    assert len(list(cache.glob("*.npy"))) == len(list(cache.glob("*.json"))) == len(changes)


DAMAGES = {
    "cut": lambda content: content[:-9],
    "longer": lambda content: content + b"x",
    "empty": lambda content: b"",
    "text": lambda content: b"x" * 99,
    "a bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "a bit of the header": lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:],
    "nesting": lambda content: b"[" * 100_000,
    "gone": None,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", ["npy", "json"])
def test_a_damaged_cache_is_decoded_anew(suffix, damage, tmp_path, decoded, cache):
    source = zipped(tmp_path / "a", animals())
    first = labelled_images(source, COLOUR)
    expected = first.x.clone()
    (path,) = cache.glob(f"*.{suffix}")
    content = path.read_bytes()
    path.unlink()
    if (change := DAMAGES[damage]) is not None:
        path.write_bytes(change(content))
    again = labelled_images(source, COLOUR)
    assert len(decoded) == (4 if change and suffix == "npy" and damage == "longer" else 8)
    assert torch.equal(again.x, expected)
    assert (again.classes, again.notes) == (first.classes, first.notes)


@pytest.mark.parametrize("entry", ["y", "classes", "notes", "sum"])
def test_labels_and_names_of_another_cache_do_not_count(entry, tmp_path, decoded, cache):
    source = zipped(tmp_path / "a", animals())
    first = labelled_images(source, COLOUR)
    (path,) = cache.glob("*.json")
    about = json.loads(path.read_text())
    changed = {"y": [0, 1, 1, 2], "classes": ["bee", "cat", "dog"], "notes": [], "sum": 0}
    path.write_text(json.dumps({**about, entry: changed[entry]}))
    assert same(labelled_images(source, COLOUR), first)
    assert len(decoded) == 8


def test_a_full_disk_or_a_folder_that_cannot_be_written_only_means_no_cache(
    tmp_path, cache, decoded, monkeypatch
):
    source = zipped(tmp_path / "a", animals())
    expected = labelled_images(source, COLOUR)

    def full(path, array):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(image_cache.np, "save", full)
        patch.setenv("DPMCL_CACHE", str(tmp_path / "second"))
        for _ in range(2):
            assert same(labelled_images(source, COLOUR), expected)
    assert len(decoded) == 12
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DPMCL_CACHE", str(tmp_path / "file" / "cache"))
    assert same(labelled_images(source, COLOUR), expected)


def test_the_folder_of_the_cache(tmp_path, monkeypatch):
    assert image_cache.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("DPMCL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert image_cache.cache_folder() == tmp_path / ".cache" / "dpmcl" / "decoded"


# ---- pools that do not fit in memory -------------------------------------------------------------


def is_mapped(tensor: torch.Tensor) -> bool:
    """Whether its memory belongs to a file, as the kernel tells it."""
    at = tensor.data_ptr()
    for entry in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in entry.split()[0].split("-"))
        if start <= at < end:
            return entry.split()[4] != "0"  # the file's inode
    return False


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
def test_images_are_mapped_with_and_without_a_cache_and_changes_to_them_stay_private(
    tmp_path, cache, monkeypatch
):
    files = {f"s/{name}/{i}.png": encoded(noise(i, 5, 6, 3)) for i in range(4) for name in "ba"}
    files["s/a/2.png"] = encoded(noise(9, 5, 6))  # so that grey becomes RGB on the way
    source = tarred(tmp_path / "set", files)
    expected = labelled_images(source, Decoding()).x.clone()
    for _ in range(2):  # as it is written, then as it is read
        found = labelled_images(source, Decoding())
        assert is_mapped(found.x)
        assert torch.equal(found.x, expected)
        found.x.fill_(7)
    real = np.load

    def as_beyond_memory(path, mmap_mode, **options):
        if mmap_mode == "c":
            raise OSError(12, "Cannot allocate memory")
        return real(path, mmap_mode, **options)

    with monkeypatch.context() as patch:
        patch.setattr(np, "load", as_beyond_memory)
        found = labelled_images(source, Decoding())
        assert is_mapped(found.x)
        assert torch.equal(found.x, expected)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Full", (), {"available": 0}))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DPMCL_CACHE", str(tmp_path / "file" / "cache"))
    found = labelled_images(source, Decoding())
    assert is_mapped(found.x)
    assert torch.equal(found.x, expected)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    assert "set TMPDIR" in line(source, Decoding())
