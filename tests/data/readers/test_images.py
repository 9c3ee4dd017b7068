"""Images: the same from a folder, a zip and a tar; safe; decoded once."""

import io
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

from dpmcl.data.readers import image_cache, images
from dpmcl.data.readers.image_cache import Images, cache_folder
from dpmcl.data.readers.images import Decoding, labelled_images, read_images
from dpmcl.exceptions import DataError, SpecError

GREY = Decoding(size=(4, 4), channels=1)
COLOUR = Decoding(size=(4, 4), channels=3)
KEPT = {".pixels", ".safetensors"}


def png(pixels, mode=None, suffix="PNG") -> bytes:
    image = Image.fromarray(np.asarray(pixels, dtype=np.uint8))
    out = io.BytesIO()
    (image.convert(mode) if mode else image).save(out, suffix)
    return out.getvalue()


def noise(seed: int, height=4, width=4, channels=3) -> np.ndarray:
    shape = (height, width, channels) if channels == 3 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def animals() -> dict[str, bytes]:
    """Names out of order, among files that do not count."""
    return {
        "set/dog/2.png": png(noise(0)),
        "set/cat/9.PNG": png(noise(1)),
        "set/dog/10.png": png(noise(2)),
        "set/ant/1.bmp": png(noise(3), suffix="BMP"),
        "set/ant/readme.txt": b"not an image",
        "set/ant/.hidden.png": b"nor this",
        "__MACOSX/set/ant/1.png": b"nor this",
    }


def folder(place: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return place


def zipped(place: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(place, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return place


def tarred(place: Path, files: dict[str, bytes], mode="w:gz") -> Path:
    with tarfile.open(place, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return place


PACKERS = {
    "folder": folder,
    "zip": zipped,
    "tar": lambda place, files: tarred(place, files, "w"),
    "tar.gz": tarred,
    "tar.bz2": lambda place, files: tarred(place, files, "w:bz2"),
    "tar.xz": lambda place, files: tarred(place, files, "w:xz"),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DPMCL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    """The files that were decoded since the test began."""
    names = []
    real = images._pixels

    def spy(file, decoding):
        names.append(file.path.as_posix())
        return real(file, decoding)

    monkeypatch.setattr(images, "_pixels", spy)
    return names


def line(source: Path, decoding: Decoding = COLOUR) -> str:
    with pytest.raises(DataError) as caught:
        read_images(source, decoding)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def one(tmp_path: Path, content: bytes, decoding: Decoding, name="c/1.png") -> torch.Tensor:
    return read_images(folder(tmp_path / "one", {name: content}), decoding).x[0]


def suffixes(folder: Path) -> list[str]:
    """Of all files in a folder, hidden ones too."""
    return sorted(path.suffix for path in folder.iterdir())


def anew(source: Path, decoding: Decoding = COLOUR) -> Images:
    """The images, decoded into a cache of their own."""
    return read_images(source, decoding, source.parent / "another cache")


def same(first: Images, second: Images) -> bool:
    return (
        torch.equal(first.x, second.x)
        and torch.equal(first.y, second.y)
        and first.classes == second.classes
    )


# ---- what is read --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PACKERS)
def test_every_kind_of_source_gives_the_same_images_in_order(kind, tmp_path):
    found = read_images(PACKERS[kind](tmp_path / f"set.{kind}", animals()), COLOUR)
    assert found.classes == ("ant", "cat", "dog")
    assert found.y.tolist() == [0, 1, 2, 2]
    assert found.x.dtype == torch.uint8
    # "10.png" comes before "2.png".
    expected = np.stack([noise(seed) for seed in (3, 1, 2, 0)]).transpose(0, 3, 1, 2)
    assert np.array_equal(found.x.numpy(), expected)


@pytest.mark.parametrize("kind", PACKERS)
def test_only_the_first_classes_are_decoded(kind, tmp_path, decoded):
    source = PACKERS[kind](tmp_path / f"set.{kind}", animals())
    found = read_images(source, Decoding(size=(4, 4), channels=3, first_classes=2))
    assert found.classes == ("ant", "cat")
    assert found.y.tolist() == [0, 1]
    assert sorted(decoded) == ["set/ant/1.bmp", "set/cat/9.PNG"]


def test_more_classes_than_there_are_is_an_error(tmp_path):
    source = zipped(tmp_path / "a.zip", animals())
    error = line(source, Decoding(size=(4, 4), channels=3, first_classes=4))
    assert "first 4 classes" in error
    assert "holds 3" in error


def test_a_class_name_may_have_two_levels_and_sorts_folder_by_folder(tmp_path):
    # As plain text "a b/x" comes before "a/y", as paths it comes after.
    files = {f"s/{name}/1.png": png(noise(0)) for name in ("a b/x", "a/y", "a/x")}
    found = read_images(
        zipped(tmp_path / "a.zip", files), Decoding(size=(4, 4), channels=1, levels=2)
    )
    assert found.classes == ("a/x", "a/y", "a b/x")
    assert found.y.tolist() == [0, 1, 2]


def test_an_image_outside_of_a_class_folder_is_an_error(tmp_path):
    source = zipped(tmp_path / "a.zip", {"1.png": png(noise(0))})
    assert "'1.png'" in line(source)
    source = zipped(tmp_path / "b.zip", {"cat/1.png": png(noise(0))})
    assert "2 folders" in line(source, Decoding(size=(4, 4), channels=1, levels=2))


def test_grey_comes_from_every_mode(tmp_path):
    pixels = noise(0, channels=1)
    for number, mode in enumerate((None, "RGB", "P", "LA", "RGBA")):
        assert np.array_equal(one(tmp_path / str(number), png(pixels, mode), GREY)[0], pixels)
    ink = np.array([[0, 255, 255, 0]] * 4)
    assert np.array_equal(one(tmp_path / "bits", png(ink, "1"), GREY)[0], ink)


def test_colour_comes_from_every_mode(tmp_path):
    pixels = noise(0)
    assert np.array_equal(
        one(tmp_path / "rgba", png(pixels, "RGBA"), COLOUR).permute(1, 2, 0), pixels
    )
    grey = noise(1, channels=1)
    found = one(tmp_path / "grey", png(grey), COLOUR)
    assert all(np.array_equal(channel, grey) for channel in found)
    few = np.array([[[255, 0, 0], [0, 0, 255]] * 2] * 4)
    image = Image.fromarray(few.astype(np.uint8)).convert("P", palette=Image.Palette.ADAPTIVE)
    content = io.BytesIO()
    image.save(content, "PNG")
    assert np.array_equal(
        one(tmp_path / "palette", content.getvalue(), COLOUR).permute(1, 2, 0), few
    )


def test_more_than_eight_bits_are_refused_and_not_clipped(tmp_path):
    content = io.BytesIO()
    Image.fromarray(np.full((4, 4), 1000, dtype=np.uint16)).save(content, "PNG")
    source = folder(tmp_path / "deep", {"c/1.png": content.getvalue()})
    assert "8 bits" in line(source, GREY)


def test_resizing_averages_when_it_shrinks(tmp_path):
    halves = np.repeat(np.repeat([[0, 200], [100, 60]], 8, 0), 8, 1)
    assert one(tmp_path, png(halves), Decoding(size=(1, 1), channels=1)).item() == 90
    shape = one(tmp_path / "b", png(noise(0, 9, 5)), Decoding(size=(6, 3), channels=3)).shape
    assert shape == (3, 6, 3)


def test_cropping_takes_the_centre(tmp_path):
    pixels = noise(0, 8, 10)
    found = one(tmp_path, png(pixels), Decoding(size=(4, 6), channels=3, crop=True))
    assert np.array_equal(found.permute(1, 2, 0), pixels[2:6, 2:8])


def test_cropping_needs_images_that_are_large_enough(tmp_path):
    source = folder(tmp_path / "small", {"c/1.png": png(noise(0, 4, 9))})
    error = line(source, Decoding(size=(5, 5), channels=3, crop=True))
    assert "5x5" in error
    assert "4x9" in error


def test_inversion(tmp_path):
    pixels = noise(0, channels=1)
    found = one(tmp_path, png(pixels), Decoding(size=(4, 4), channels=1, invert=True))
    assert np.array_equal(found[0], 255 - pixels)


def test_without_a_size_images_keep_theirs(tmp_path):
    files = {f"set/{name}/1.png": png(noise(i, 5, 7)) for i, name in enumerate("ab")}
    found = read_images(zipped(tmp_path / "a.zip", files), Decoding())
    expected = np.stack([noise(seed, 5, 7) for seed in (0, 1)]).transpose(0, 3, 1, 2)
    assert np.array_equal(found.x.numpy(), expected)


@pytest.mark.parametrize("kind", PACKERS)
def test_without_a_size_the_odd_image_is_named(kind, tmp_path):
    files = {"a/1.png": png(noise(0, 5, 7)), "a/2.png": png(noise(1, 7, 5))}
    error = line(PACKERS[kind](tmp_path / f"set.{kind}", files), Decoding())
    assert "a/1.png" in error
    assert "a/2.png" in error
    assert "is 7x5" in error
    assert "is 5x7" in error
    assert "stream.size" in error


@pytest.mark.parametrize("mode", ["L", "1", "LA"])
def test_without_channels_images_stay_grey_where_all_are(mode, tmp_path):
    files = {"a/1.png": png(noise(0, channels=1)), "b/1.png": png(noise(1, channels=1), mode)}
    found = read_images(zipped(tmp_path / "a.zip", files), Decoding())
    assert found.x.shape == (2, 1, 4, 4)
    assert np.array_equal(found.x[0, 0], noise(0, channels=1))


@pytest.mark.parametrize("colour_first", [False, True])
def test_without_channels_one_image_in_colour_makes_all_rgb(colour_first, tmp_path):
    grey, colour = noise(0, channels=1), noise(1)
    first, second = (colour, grey) if colour_first else (grey, colour)
    files = {"a/1.png": png(first), "b/1.png": png(second)}
    found = read_images(zipped(tmp_path / "a.zip", files), Decoding())
    assert found.x.shape == (2, 3, 4, 4)
    row = int(colour_first)
    assert all(np.array_equal(channel, grey) for channel in found.x[row])
    assert np.array_equal(found.x[1 - row].permute(1, 2, 0), colour)


@pytest.mark.parametrize(("name", "title"), [(None, "birds"), ("mine", "mine")])
@pytest.mark.parametrize("kind", PACKERS)
def test_as_labelled_data(kind, name, title, tmp_path):
    source = PACKERS[kind](tmp_path / ("birds" if kind == "folder" else f"birds.{kind}"), animals())
    data = labelled_images(source, COLOUR, name)
    assert data.name == title
    assert data.kind == "classification"
    assert data.classes == ("ant", "cat", "dog")
    assert data.y.tolist() == [0, 1, 2, 2]
    assert data.x.dtype == torch.uint8
    assert data.x.shape == (4, 3, 4, 4)
    assert data.task is None


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"size": (0, 4)}, "size\\[0\\] must be greater than or equal to 1, got 0"),
        ({"size": (4,)}, "size must be longer, got \\[4\\]"),
        ({"size": (4, 4, 3)}, "size must .*at most 2 items"),
        ({"size": 28}, "size must be a list, got 28"),
        ({"size": (4.5, 4)}, "size\\[0\\] must be a valid integer"),
        ({"size": "28"}, "size must be a list, got '28'"),
        ({"invert": "perhaps"}, "invert must be"),
        ({"crop": True}, "crop needs a size"),
        ({"channels": 2}, "channels must be 1 or 3, got 2"),
        ({"channels": "3"}, "channels must be"),
        ({"levels": 0}, "levels must be greater than or equal to 1, got 0"),
    ],
)
def test_settings_that_cannot_be(settings, rule):
    with pytest.raises(SpecError, match=rule) as caught:
        Decoding(**settings)
    assert "\n" not in str(caught.value)


def test_a_missing_source_says_where_it_looked(tmp_path):
    assert str(tmp_path / "nowhere") in line(tmp_path / "nowhere")


def test_a_file_that_is_no_archive(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"hello")
    assert "a folder, a zip or a tar" in line(tmp_path / "a.zip")


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("first", [None, 1])
def test_a_source_without_images(kind, first, tmp_path):
    source = PACKERS[kind](tmp_path / f"set.{kind}", {"a/b.txt": b"text"})
    assert "none (bmp," in line(source, Decoding(size=(4, 4), channels=3, first_classes=first))


@pytest.mark.parametrize(
    "name", ["/etc/cat/1.png", "../cat/1.png", "a/../../1.png", "..\\c\\1.png"]
)
@pytest.mark.parametrize("packer", [zipped, tarred])
def test_members_that_would_leave_the_archive_are_refused(name, packer, tmp_path):
    source = packer(tmp_path / "set", {"ok/1.png": png(noise(0)), name: png(noise(1))})
    error = line(source)
    assert repr(name) in error
    assert "'..'" in error


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_pipes_in_a_tar_are_refused(kind, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("cat/1.png")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    assert "'cat/1.png'" in line(tmp_path / "a.tar")


def test_links_in_a_zip_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        info = zipfile.ZipInfo("cat/1.png")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    assert "'cat/1.png'" in line(tmp_path / "a.zip")


def test_links_to_folders_are_refused_and_not_passed_over(tmp_path):
    source = folder(tmp_path / "set", animals())
    (source / "more").symlink_to(source / "set")
    assert str(source / "more") in line(source)


@pytest.mark.parametrize("kind", PACKERS)
def test_a_huge_file_is_refused_before_it_is_read(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "LARGEST", 2**20)
    source = PACKERS[kind](tmp_path / f"a.{kind}", {"cat/1.png": bytes(3 * 2**20)})
    assert "at most 1 MiB" in line(source)
    assert "has 3" in line(source)
    assert "cat/1.png" in line(source)


@pytest.mark.parametrize("kind", PACKERS)
def test_a_truncated_image_is_named(kind, tmp_path):
    whole = png(noise(0, 40, 40))
    files = {"cat/1.png": whole, "dog/2.png": whole[: len(whole) // 2]}
    error = line(PACKERS[kind](tmp_path / f"a.{kind}", files))
    assert "dog/2.png" in error
    assert "whole image" in error


def claiming(height: int, width: int) -> bytes:
    """A PNG of a few bytes that says it has this size."""
    content = bytearray(png(noise(0)))
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


@pytest.mark.parametrize("side", [12_000, 30_000])  # Pillow's warning, and Pillow's error
@pytest.mark.parametrize("decoding", [COLOUR, Decoding()])
def test_an_image_that_unpacks_to_gigabytes_is_refused(side, decoding, tmp_path):
    files = {"cat/1.png": png(noise(0)), "cat/2.png": claiming(side, side)}
    error = line(zipped(tmp_path / "a.zip", files), decoding)
    assert "'cat/2.png'" in error
    assert "million pixels" in error


def test_a_file_of_another_kind_under_an_images_name_is_not_tried(tmp_path):
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n"
    assert "cat/1.png" in line(folder(tmp_path / "a", {"cat/1.png": eps}))


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.bz2", "tar.xz"])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_truncated_tar_is_an_error(kind, share, tmp_path):
    files = {f"cat/{i:02}.png": png(noise(i, 30, 30)) for i in range(40)}
    source = PACKERS[kind](tmp_path / f"a.{kind}", files)
    content = source.read_bytes()
    source.write_bytes(content[: int(len(content) * share)])
    assert str(source) in line(source)


def test_a_tar_cut_between_two_members_is_an_error(tmp_path):
    files = {f"cat/{i}.png": png(noise(i)) for i in range(4)}
    source = PACKERS["tar"](tmp_path / "a.tar", files)
    assert all(len(content) < 512 for content in files.values())
    source.write_bytes(source.read_bytes()[: 2 * 1024])
    assert "end mark" in line(source)


def test_a_changed_member_of_a_zip_is_named(tmp_path):
    source = zipped(tmp_path / "a.zip", {"cat/1.png": png(noise(0))})
    content = bytearray(source.read_bytes())
    content[60] ^= 255
    source.write_bytes(content)
    assert "'cat/1.png'" in line(source)


def test_without_pillow_the_error_says_what_to_install(tmp_path, monkeypatch):
    source = zipped(tmp_path / "a.zip", animals())
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "pip install 'dpmcl[vision]'" in line(source)


# ---- the cache -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PACKERS)
def test_the_second_reading_decodes_nothing(kind, tmp_path, decoded, cache):
    source = PACKERS[kind](tmp_path / f"a.{kind}", animals())
    first = read_images(source, COLOUR)
    assert len(decoded) == 4
    assert suffixes(cache) == sorted(KEPT)
    assert same(first, read_images(source, COLOUR))
    assert len(decoded) == 4


@pytest.mark.parametrize("kind", ["folder", "zip", "tar.gz"])
def test_a_change_is_noticed(kind, tmp_path, decoded):
    source = PACKERS[kind](tmp_path / f"a.{kind}", animals())
    read_images(source, COLOUR)
    PACKERS[kind](source, {**animals(), "set/bee/1.png": png(noise(7))})
    assert read_images(source, COLOUR).classes == ("ant", "bee", "cat", "dog")
    assert len(decoded) == 9


@pytest.mark.parametrize("name", ["", "set/cat/9.PNG"])
def test_another_time_is_enough(name, tmp_path, decoded):
    kind = folder if name else zipped
    source = kind(tmp_path / "a", animals())
    read_images(source, COLOUR)
    os.utime(source / name if name else source, ns=(1, 1))
    read_images(source, COLOUR)
    assert len(decoded) == 8


def test_every_setting_of_the_decoding_counts(tmp_path, cache):
    source = zipped(tmp_path / "a.zip", animals())
    changes = [
        {}, {"size": (2, 4)}, {"size": (4, 2)}, {"channels": 1}, {"crop": True}, {"invert": True},
        {"levels": 2}, {"first_classes": 2},
    ]  # fmt: skip
    for change in changes:
        read_images(source, Decoding(**{"size": (4, 4), "channels": 3, **change}))
    assert len(list(cache.glob("*.safetensors"))) == len(changes)
    assert len(list(cache.glob("*.pixels"))) == len(changes)


def test_two_folders_with_the_same_names_are_not_confused(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        source = folder(tmp_path / name, {"c/1.bmp": png(noise(seed), suffix="BMP")})
        os.utime(source / "c" / "1.bmp", ns=(1, 1))
    first, second = (read_images(tmp_path / name, COLOUR) for name in "ab")
    assert not torch.equal(first.x, second.x)


DAMAGES = {
    "cut": lambda content: content[:-9],
    "longer": lambda content: content + b"x",
    "empty": lambda content: b"",
    "text": lambda content: b"x" * 99,
    "a bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "gone": None,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", sorted(KEPT))
def test_a_damaged_cache_is_decoded_anew(suffix, damage, tmp_path, decoded, cache):
    source = zipped(tmp_path / "a.zip", animals())
    read_images(source, COLOUR)
    (path,) = cache.glob(f"*{suffix}")
    content = path.read_bytes()
    path.unlink()
    if (change := DAMAGES[damage]) is not None:
        path.write_bytes(change(content))
    found = read_images(source, COLOUR)
    assert len(decoded) == 8
    assert same(found, anew(source))
    assert len(decoded) == 12
    read_images(source, COLOUR)
    assert len(decoded) == 12


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {"shape": "[4, 3, 4, 4]", "classes": "[]", "sum": "0"},
        {"shape": "[2, 6, 4, 4]", "classes": '["ant"]', "sum": "0"},
        {"shape": "[-4, -3, 4, 4]", "classes": "[]", "sum": "0"},
        {"shape": "192", "classes": "[]", "sum": "0"},
        {"shape": "{", "classes": "[]", "sum": "0"},
    ],
)
def test_a_cache_that_speaks_of_other_pixels_is_decoded_anew(metadata, tmp_path, decoded, cache):
    source = zipped(tmp_path / "a.zip", animals())
    first = read_images(source, COLOUR)
    (path,) = cache.glob("*.safetensors")
    image_cache.save_file({"y": first.y}, path, metadata)
    assert same(read_images(source, COLOUR), first)
    assert len(decoded) == 8
    image_cache.save_file({"x": first.y}, path)
    assert same(read_images(source, COLOUR), first)
    assert len(decoded) == 12


def test_labels_of_another_cache_do_not_count(tmp_path, decoded, cache):
    source = zipped(tmp_path / "a.zip", animals())
    first = read_images(source, COLOUR)
    (path,) = cache.glob("*.safetensors")
    with image_cache.safe_open(path, "pt") as file:
        about = file.metadata()
    image_cache.save_file({"y": first.y.flip(0)}, path, about)
    assert read_images(source, COLOUR).y.tolist() == [0, 1, 2, 2]
    renamed = about["classes"].replace("ant", "bee")
    image_cache.save_file({"y": first.y}, path, {**about, "classes": renamed})
    assert read_images(source, COLOUR).classes == ("ant", "cat", "dog")
    assert len(decoded) == 12


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("written", [0, 50])
def test_a_half_written_cache_does_not_count(written, error, tmp_path, cache, decoded, monkeypatch):
    """Interrupted while the pixels, or the labels after them, are written."""
    source = zipped(tmp_path / "a.zip", animals())

    def cut(tensors, path, about):
        Path(path).write_bytes(b"half"[:written])
        raise error

    def cut_parts(self, rows, shape):
        yield np.zeros(written, np.uint8)
        raise error

    for owner, name, stub in (
        (image_cache, "save_file", cut),
        (image_cache.Spool, "_parts", cut_parts),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, stub)
            with pytest.raises(error):
                read_images(source, COLOUR)
        assert suffixes(cache) == []
    assert same(read_images(source, COLOUR), anew(source))
    assert len(decoded) == 16


def test_a_cache_that_cannot_be_written_only_means_none(tmp_path, decoded):
    source = zipped(tmp_path / "a.zip", animals())
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        found = read_images(source, COLOUR, tmp_path / "file" / "cache")
        assert same(found, anew(source))
    assert len(decoded) == 12
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("in_memory", [0, 64 * 2**20])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_full_disk_only_means_no_cache(mixed, in_memory, tmp_path, cache, decoded, monkeypatch):
    files = animals()
    if mixed:
        files["set/dog/2.png"] = png(noise(0, channels=1))
    source = zipped(tmp_path / "a.zip", files)
    expected = anew(source, Decoding())

    def full(tensors, path, about):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(image_cache, "save_file", full)
    monkeypatch.setattr(image_cache, "IN_MEMORY", in_memory)
    for _ in range(2):
        assert same(read_images(source, Decoding()), expected)
    assert len(decoded) == 12
    assert suffixes(cache) == []


def test_the_cache_may_be_named(tmp_path, cache):
    read_images(zipped(tmp_path / "a.zip", animals()), COLOUR, tmp_path / "mine")
    assert suffixes(tmp_path / "mine") == sorted(KEPT)
    assert not cache.exists()


def test_a_folder_that_may_not_be_listed_is_one_line(tmp_path, monkeypatch):
    source = folder(tmp_path / "set", animals())
    real = os.scandir

    def refuse(path):
        if str(path).endswith("cat"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert "Permission denied" in line(source)


# ---- pools that do not fit in memory -------------------------------------------------------------


def is_mapped(tensor: torch.Tensor) -> bool:
    """Whether its memory belongs to a file, as the kernel tells it."""
    at = tensor.data_ptr()
    for entry in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in entry.split()[0].split("-"))
        if start <= at < end:
            return entry.split()[4] != "0"  # the file's inode
    return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")


@needs_proc
def test_what_the_cache_gives_is_mapped_and_changes_to_it_stay_private(tmp_path, cache):
    source = zipped(tmp_path / "a.zip", animals())
    for _ in range(2):  # as it is written, then as it is read
        found = read_images(source, COLOUR)
        assert is_mapped(found.x)
        (path,) = cache.glob("*.pixels")
        before = path.read_bytes()
        assert found.x.numpy().tobytes() == before
        found.x.fill_(7)
        assert path.read_bytes() == before
    assert same(read_images(source, COLOUR), anew(source))


@needs_proc
@pytest.mark.parametrize("kind", ["folder", "zip", "tar.gz"])
@pytest.mark.parametrize("decoding", [COLOUR, Decoding()])
def test_a_pool_beyond_memory_goes_to_disk_and_is_equal(
    kind, decoding, tmp_path, cache, monkeypatch
):
    """Also without a cache, where the only file is one without a name."""
    files = {f"s/{name}/{i}.png": png(noise(i, 5, 6)) for i in range(4) for name in "ba"}
    if decoding.channels is None:
        files["s/a/2.png"] = png(noise(9, 5, 6, channels=1))
    source = PACKERS[kind](tmp_path / f"set.{kind}", files)
    expected = anew(source, decoding)
    made = []
    real = image_cache._on_disk

    def spy(place, content):
        made.append(real(place, content))
        return made[-1]

    monkeypatch.setattr(image_cache, "_on_disk", spy)
    monkeypatch.setattr(image_cache, "IN_MEMORY", 200)
    monkeypatch.setattr(image_cache, "_BYTES_AT_ONCE", 100)
    found = read_images(source, decoding)
    assert made
    assert not any(isinstance(file, io.BytesIO) for file in made)
    assert same(found, expected)
    assert suffixes(cache) == sorted(KEPT)
    (tmp_path / "file").write_text("in the way")
    found = read_images(source, decoding, tmp_path / "file" / "cache")
    assert is_mapped(found.x)
    assert same(found, expected)


def test_where_nothing_can_be_written_the_pool_stays_in_memory(tmp_path, monkeypatch):
    source = zipped(tmp_path / "a.zip", animals())
    expected = anew(source)

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(image_cache, "IN_MEMORY", 10)
    monkeypatch.setattr(image_cache.tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(image_cache, "atomic", refuse)
    assert same(read_images(source, COLOUR), expected)


def test_a_disk_that_fills_while_images_are_decoded_is_one_line(tmp_path, monkeypatch):
    class Full(io.RawIOBase):
        def write(self, data):
            raise OSError(28, "No space left on device")

    source = zipped(tmp_path / "a.zip", animals())
    monkeypatch.setattr(image_cache, "IN_MEMORY", 10)
    monkeypatch.setattr(image_cache, "_on_disk", lambda place, content: Full())
    error = line(source)
    assert "room on disk" in error
    assert "No space left" in error
    assert "DPMCL_CACHE" in error


def test_the_folder_of_the_cache(tmp_path, monkeypatch):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("DPMCL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "dpmcl" / "decoded"
