"""Malformed inputs: every loader ends soon, with success or an error of one line, writing nothing.

A case is a folder of files, made from a fixed seed. What fails stays on disk, and the message says
how to load it again.
"""

import gzip
import io
import itertools
import json
import math
import os
import pickle
import random
import re
import shutil
import signal
import struct
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import tomli_w
import torch
from pyarrow import parquet

import dpmcl
from dpmcl import plugins, presets
from dpmcl.core.gradients import Work
from dpmcl.core.memory import Memory
from dpmcl.data.readers.arrays import read_arrays
from dpmcl.data.readers.images import Decoding, labelled_images
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DpmclError
from dpmcl.methods._method import State
from dpmcl.study.api import Request
from dpmcl.training import checkpoints as checkpoint
from dpmcl.training.checkpoints import Checkpoints, Origin, Position, Snapshot
from dpmcl.training.spec import Spec, assignment, changed, read

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and timers")

PROCESSOR, CLOCK = 3.0, 10.0  # seconds that a case may take: of work, and in all

FIFO = object()
Content = bytes | str | None | object
"""A file's bytes, the target of a link, None for a folder, or FIFO."""
Files = dict[str, Content]
Attempt = Callable[[], object]


class Loader(NamedTuple):
    """cases: names and files, given the folder that all is in. attempts: what reads a case."""

    cases: Callable[[Path], Iterator[tuple[str, Files]]]
    attempts: Callable[[Path], Iterator[Attempt]]


# ---- mutations -----------------------------------------------------------------------------------


def flipped(data: bytes, rng: random.Random, most: int = 4) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, most)):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def holed(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randint(1, max(1, len(data) // 4)) :]


def stuffed(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    junk = rng.choice([b"\0", b"\xff" * 9, b'"', b"\n", b"\r", b"[[", b"\xed\xa0\x80", b"\x1b[2J"])
    return data[:start] + junk * rng.randint(1, 3) + data[start:]


def doubled(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines) + 1)
    return b"".join([*lines[:j], *[lines[i]] * rng.randint(1, 3), *lines[j:]])


MUTATIONS = {"flip": flipped, "cut": cut, "hole": holed, "stuff": stuffed, "double": doubled}


def mutants(name: str, data: bytes, each: int, kinds: str = "flip cut hole stuff double"):
    """`each` of every kind, by name."""
    for kind in kinds.split() if data else ():
        for i in range(each):
            label = f"{name} {kind} {i}"
            yield label, MUTATIONS[kind](data, random.Random(label))


# ---- specs ---------------------------------------------------------------------------------------

SMALL = """stream = "digits"
methods = ["er", "dpmcl"]
[training]
lr = 0.1
[methods.dpmcl]
zeta = 2
"""

ODD_VALUES = (
    '""', '"\\n\\r\\u2028"', '"er"', "-1", "0", "1.5", "true", "[]", "[[]]", "{}", "{a = 1}",
    "[1, 'a']", "inf", "-inf", "nan", "1e308", "9223372036854775808", "-9223372036854775809",
    "1979-05-27T07:32:00Z", "07:32:00", "9" * 400, "9" * 5000, '"' + "x" * 5000 + '"',
    "[" * 200 + "]" * 200, "0x", "'''\n'''", "1_000", '"\\u0000"', "{ = 1}", "[0.6, 0.2, nan]",
    "[0.6, 0.2]", "[1e308, 1e308, 1e308]", '["a", "a"]', "[7, 3, 7]", '"7"', '"nan"', '"1e999"',
)  # fmt: skip

ODD_SPECS: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n\t\n",
    "NUL": b"\0",
    "BOM": b"\xef\xbb\xbf" + SMALL.encode(),
    "UTF-16": SMALL.encode("utf-16"),
    "latin-1": b'stream = "\xe9"',
    "overlong": b'stream = "\xc0\x80"',
    "surrogate": b'stream = "\xed\xa0\x80"',
    "binary": bytes(range(256)),
    "arrays in arrays": b"seed = " + b"[" * 20_000 + b"]" * 20_000,
    "arrays not closed": b"seed = " + b"[" * 20_000,
    "some arrays in arrays": b'stream = "digits"\nmethods = ' + b"[" * 300 + b"]" * 300,
    "tables in tables": b"seed = " + b"{a = " * 5_000 + b"1" + b"}" * 5_000,
    "dotted": b"seed" + b".a" * 5_000 + b" = 1",
    "dotted stream": b"stream.name" + b".a" * 900 + b" = 1",
    "dotted training": b'stream="digits"\nmethods=["er"]\ntraining.lr' + b".a" * 900 + b" = 1",
    "dotted header": b"[methods.er" + b".a" * 5_000 + b"]",
    "digits of an integer": b'stream = "digits"\nmethods = ["er"]\nseed = ' + b"9" * 5_000,
    "digits of a float": b'stream="digits"\nmethods=["er"]\n[training]\nlr=1' + b"0" * 400 + b".0",
    "exponent": b'stream="digits"\nmethods=["er"]\n[training]\nlr = 1e99999999',
    "hexadecimal": b'stream="digits"\nmethods=["er"]\nseed = 0x' + b"f" * 5_000,
    "date": b'stream="digits"\nmethods=["er"]\nseed = 2024-99-99',
    "key of lines": b'"a\\nb\\u2028" = 1',
    "key without characters": b'"" = 1\nstream = "digits"\nmethods = ["er"]',
    "key with an escape": b'"\\u001b[31m" = 1',
    "method of lines": b'stream = "digits"\nmethods = ["e\\nr"]',
    "method's table of lines": b'stream = "digits"\n[methods."e\\nr"]',
    "method's setting of lines": b'stream = "digits"\n[methods.er]\n"l\\nr" = 1',
    "method's value of lines": b'stream = "digits"\nmethods."e\\nr" = 1',
    "training of lines": b'stream = "digits"\nmethods = ["er"]\n[training]\n"l\\nr" = 1',
    "evaluation of lines": b'stream = "digits"\nmethods = ["er"]\n[evaluation]\n"l\\nr" = 1',
    "optimiser of lines": b'stream="digits"\nmethods=["er"]\n[training]\noptimiser = "a\\nb"',
    "stream of lines": b'stream = "a\\nb"\nmethods = ["er"]',
    "stream of NUL": b'stream = "a\\u0000b"\nmethods = ["er"]',
    "stream of NUL at home": b'stream = "~\\u0000"\nmethods = ["er"]',
    "stream at nobody's home": b'stream = "~nobody-at-all/x.csv"\nmethods = ["er"]',
    "stream in a path of NUL": b'methods = ["er"]\n[stream]\npath = "~a\\u0000b.npz"',
    "table in a path of NUL": b'methods=["er"]\nstream={path="~a\\u0000b.csv", target="x"}',
    "images in a path of NUL": b'methods = ["er"]\nstream = "~a\\u0000b.zip"',
    "folder in a path of NUL": b'methods=["er"]\nstream={name="huggingface", path="~a\\u0000b"}',
    "stream with a long name": b'methods = ["er"]\nstream = "' + b"x" * 100_000 + b'"',
    "stream with a long path": b'methods = ["er"]\nstream = "' + b"x/" * 50_000 + b'x.csv"',
    "stream named by a number": b'methods = ["er"]\n[stream]\nname = 5',
    "stream of its own kind": b'methods = ["er"]\n[stream]\nname = "python"\ndigest = "a\\nb"',
    "stream of modules": b'methods = ["er"]\nstream = "json:loads"',
    "stream of nothing": b'methods = ["er"]\nstream = ":"',
    "stream of dots": b'methods = ["er"]\nstream = "..:.."',
    "stream up": b'methods = ["er"]\nstream = "../streams/digits"',
    "stream private": b'methods = ["er"]\nstream = "__init__"',
    "stream nested": b'methods = ["er"]\nstream = "json.decoder:JSONDecoder.decode"',
    "module of lines": b'methods = ["er"]\nstream = "a\\nb:c\\nd"',
    "module of NUL": b'methods = ["er"]\nstream = "a\\u0000b:c"',
    "network of lines": b'stream = "digits"\nmethods = ["er"]\nnetwork = "a\\nb"',
    "network of numbers": b'stream = "digits"\nmethods = ["er"]\nnetwork = 5',
    "methods of numbers": b'stream = "digits"\nmethods = [1, 2]',
    "methods of none": b'stream = "digits"\nmethods = []',
    "methods twice": b'stream = "digits"\nmethods = ["er", "er"]',
    "methods of text": b'stream = "digits"\nmethods = "er"',
    "methods of classes": b'stream = "digits"\nmethods = ["json:loads", "os:path"]',
    "tables beside no list": b'stream = "digits"\nmethods = 5\n[methods.er]\nlr = 1.0',
    "tables beside another list": b'stream = "digits"\nmethods = ["er"]\n[methods.naive]\nlr = 1.0',
    "order of everything": b'methods=["er"]\n[stream]\nname="digits"\norder=["0","1",2,3.5,[],{}]',
    "order of lines": b'methods=["er"]\n[stream]\nname="digits"\norder=["0\\n1"]',
    "classes a task": b'methods=["er"]\n[stream]\nname="digits"\nclasses_per_task=[9999999999]',
    "classes a task by the many": b'methods=["er"]\n[stream]\nname="digits"\nclasses_per_task=['
    + b"1," * 5_000 + b"]",
    "split of little": b'methods=["er"]\n[stream]\nname="digits"\nsplit=[0.9999998,1e-7,1e-7]',
    "many tables": b"".join(b"[t%d]\n" % i for i in range(999)),
    "many tables of methods": b'methods=["er"]\n'
    + b"".join(b"[methods.t%d]\n" % i for i in range(999)),
    "brackets at the start of lines": b"[ methods . " * 999,
}  # fmt: skip

ODD_SETS = (
    "", "=", "==", "a", "a=", "=a", ".=1", "a..b=1", "training.lr", "training.lr=", "training.lr==",
    "training.lr=0.1\nseed=3", "training.lr=0.1 # c", "training.lr='", 'training.lr="',
    "training=1",
    "methods=1", "methods.er=1", "methods.er.lr=[", "methods.naive.lr=1", "methods.nobody.lr=1",
    "methods.\"e\\nr\".lr=1", "stream=1", "stream.path=\0", "stream.path=~\0.csv", "stream=\udcff",
    "\udcff=1", "seed=\ud800", "seed=\x1b[31m", "seed=" + "9" * 5_000, "seed=" + "[" * 20_000,
    "seed=" + "[" * 300 + "]" * 300, ".".join("a" * 2_000) + "=1", ".".join("a" * 300) + "=1",
    "stream." + ".".join("a" * 900) + "=1", "x" * 100_000 + "=1", "\u2028=\u2028", "a\nb=1",
    "[a]=1", "[methods.er]\nlr=1", "#=1", "'a'=1", "\"\"=1", "training.\"l\\nr\"=1", "seed=\n",
    "seed=3\r",
    "stream.name=a\nb", "stream.order=a\nb", "network.name=\x00", "dtype=float32\n", "seed = 3 = 4",
)  # fmt: skip

ODD_SOURCES = (
    "", " ", ".", "..", "/", "~", "~\0", "\0", "\udcff", "\ud800", "nope.toml", "nope/nope", "a\nb",
    "a\nb.toml", "nope.csv", "a:b", ":", "a\nb:c", "x" * 5_000, "x/" * 5_000, "\u2028", "~nobody/x",
    "-",
    "//", "digits\n", "Digits", "di\0gits", "nope.npz\n", "nope\r.toml",
)  # fmt: skip


def complete(preset: str) -> str:
    """A preset's text with every setting."""
    return tomli_w.dumps(Spec.parse(read(presets.text(preset), preset)).to_table())


def spec_cases(place: Path) -> Iterator[tuple[str, Files]]:
    bases = {name: complete(name) for name in ("digits", "sine", "mnist")} | {"small": SMALL}
    for name, text in bases.items():
        for label, data in mutants(name, text.encode(), 5):
            yield label, {"spec.toml": data}
    settings = re.findall(r"^(\w+) = .*$", bases["digits"], re.MULTILINE)
    for key in dict.fromkeys(settings):
        for value in random.Random(key).sample(ODD_VALUES, 3):
            text = re.sub(rf"^{key} = .*$", lambda _, to=f"{key} = {value}": to, bases["digits"],
                          flags=re.MULTILINE)  # fmt: skip
            yield f"{key} = {value:.20}", {"spec.toml": text.encode()}
    for name, data in ODD_SPECS.items():
        yield name, {"spec.toml": data}
    for i, text in enumerate(ODD_SETS):
        yield f"--set {i}, {text:.30}", {"set.json": json.dumps([text]).encode()}
    keys = [
        "training.lr",
        "stream.split",
        "methods.dpmcl.zeta",
        "network.hidden",
        "stream",
        "methods",
    ]
    for key in keys:
        for value in random.Random(f"--set {key}").sample(ODD_VALUES, 6):
            assignments = [f"{key}={value}", "seed=3"]
            yield f"--set {key}={value:.20}", {"set.json": json.dumps(assignments).encode()}
    for i, source in enumerate(ODD_SOURCES):
        yield f"source {i}, {source:.30}", {"source.json": json.dumps(source).encode()}


def spec_attempts(folder: Path) -> Iterator[Attempt]:
    file, sets, source = (folder / name for name in ("spec.toml", "set.json", "source.json"))
    if file.exists():
        yield lambda: checked(Request(file).spec())
        yield lambda: checked(Spec.parse(read(file.read_bytes().decode("utf-8", "replace"), "it")))
        if file.stat().st_size < 300:
            yield lambda: Request(file).set(["seed=3"]).tasks(2).spec()
    if sets.exists():
        assignments = json.loads(sets.read_text())
        yield lambda: checked(Request("digits").set(assignments).spec())
        yield lambda: checked(Spec.parse(changed(read(SMALL, "it"), assignment(assignments[0]))))
    if source.exists():
        yield lambda: checked(Request(json.loads(source.read_text())).spec())


def checked(spec: Spec) -> None:
    """A spec that passes stays the same once written; its stream is built where that is little."""
    assert Spec.parse(spec.to_table()).to_table() == spec.to_table()
    stream = spec.stream
    size = math.prod(getattr(stream, name, None) or 1 for name in ("tasks", "rows", "outputs"))
    path = getattr(stream, "path", "")
    own = spec.stream_name in ("digits", "sine")
    nowhere = path and not os.path.exists(path)  # noqa: PTH110 (any text will do)
    if (own or nowhere) and size <= 10**7 and (stream.tasks or 50) <= 100:
        assert len(stream.build([0]).tasks) >= 1


# ---- archives ------------------------------------------------------------------------------------


@cache
def picture(seed: int) -> bytes:
    """A PNG of 4x4 pixels, RGB."""
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 12), dtype=np.uint8)
    return png(4, 4, b"".join(b"\0" + row.tobytes() for row in pixels))


def png(width: int, height: int, raw: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


PICTURES = [(f"{kind}/{i}.png", picture(i)) for i, kind in enumerate("aabbb")]


def zipped(members: list[tuple[str | zipfile.ZipInfo, bytes]], method=zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", method) as archive:
        warnings.simplefilter("ignore")  # of names that come twice
        for name, content in members:
            info = zipfile.ZipInfo(name) if isinstance(name, str) else name
            info.compress_type = method
            archive.writestr(info, content)
    return out.getvalue()


def tarred(
    members: list[tuple[str | tarfile.TarInfo, bytes]], mode="w", format=tarfile.GNU_FORMAT
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=format) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            if isinstance(name, str):
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if content else None)
    return out.getvalue()


def member(name: str, kind: bytes, link: str = "", **other: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    for key, value in other.items():
        setattr(info, key, value)
    return info


def zip_link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o120777 << 16
    return info


def patched(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data and len(old) == len(new)
    return data.replace(old, new)


def header_set(data: bytes, offset: int, form: str, value: int) -> bytes:
    """A zip whose headers, local and central, have a field set. offset: in the local header."""
    out = bytearray(data)
    for signature, shift in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
        at = 0
        while (at := data.find(signature, at)) >= 0:
            struct.pack_into(form, out, at + offset + shift, value)
            at += 4
    return bytes(out)


def sparse_tar(size: int) -> bytes:
    """A member of old GNU's sparse kind that has a hole of so many bytes, and no data."""
    info = member("a/0.png", tarfile.GNUTYPE_SPARSE, size=0)
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[386:398] = b"%011o\0" % min(size, 8**11 - 1)  # where the piece starts
    block[398:410] = b"%011o\0" % 0
    block[483:495] = b"%011o\0" % min(size, 8**11 - 1)  # the size with holes
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(10 * tarfile.BLOCKSIZE)


def archive_cases(place: Path) -> Iterator[tuple[str, Files]]:
    plain = zipped(PICTURES)
    packed = zipped(PICTURES, zipfile.ZIP_DEFLATED)
    tar = tarred(PICTURES)
    pax = tarred(PICTURES, format=tarfile.PAX_FORMAT)
    tgz = gzip.compress(tar, mtime=0)
    shared = {"stored.zip": (plain, 6), "packed.zip": (packed, 5), "x.tar": (tar, 6)}
    shared |= {"pax.tar": (pax, 3), "x.tgz": (tgz, 5)}
    for name, (data, each) in shared.items():
        for label, mutant in mutants(name, data, each, "flip cut hole stuff"):
            yield label, {name: mutant}
        for i in range(6):  # where names, sizes and checksums are
            label = f"{name} header {i}"
            rng = random.Random(label)
            out = bytearray(data)
            out[rng.randrange(min(512, len(out)))] = rng.randrange(256)
            out[-1 - rng.randrange(min(300, len(out)))] = rng.randrange(256)
            yield label, {name: bytes(out)}
    for suffix, mode in ((".tar.bz2", "w:bz2"), (".tar.xz", "w:xz")):
        for label, mutant in mutants(f"x{suffix}", tarred(PICTURES, mode), 3, "flip cut hole"):
            yield label, {f"x{suffix}": mutant}
    for i in range(12):
        label = f"picture {i}"
        mutant = MUTATIONS[random.Random(label).choice(["flip", "cut", "hole", "stuff"])]
        content = mutant(picture(9), random.Random(label))
        yield label, {"x.zip": zipped([*PICTURES, ("a/9.png", content)])}

    outside = str(place / "evil" / "0.png")
    names = {
        "up": "../evil.png", "up from a folder": "a/../../evil.png",
        "far up": "../" * 40 + "evil.png",
        "absolute": outside, "absolute twice": "/" + outside, "backslashes": "..\\..\\evil.png",
        "drive": "C:/evil/0.png", "drive with backslashes": "C:\\evil\\0.png", "dots": "a/./0.png",
        "only dots": "./0.png", "nothing": "/", "no name": "", "spaces": " / .png",
        "long": "x" * 5_000
        + "/0.png", "deep": "x/" * 3_000 + "0.png", "lines": "a\nb/c\nd.png",
        "escape": "\x1b[2J/0.png",
        "right to left": "\u202e/0.png", "separators": "\u2028/\x85.png", "hidden": ".a/0.png",
    }  # fmt: skip
    for name, inside in names.items():
        yield f"zip: {name}", {"x.zip": zipped([*PICTURES, (inside, picture(1))])}
        yield f"tar: {name}", {"x.tar": tarred([*PICTURES, (inside, picture(1))])}
    yield "zip: NUL", {"x.zip": patched(plain, b"a/0.png", b"a/0\0png")}
    yield "zip: not UTF-8", {"x.zip": patched(plain, b"a/0.png", b"\xff/0.png")}
    yield "tar: not UTF-8", {"x.tar": tarred([("\udcff/0.png", picture(1))])}
    yield "tar: lines not UTF-8", {"x.tar": tarred([("\udcff\n/0.png", b"\0")])}
    kinds = {
        "link": member("a/1.png", tarfile.SYMTYPE, "/etc/passwd"),
        "link of a folder": member("a", tarfile.SYMTYPE, str(place)),
        "hard link": member("a/1.png", tarfile.LNKTYPE, "a/0.png"),
        "hard link up": member("a/1.png", tarfile.LNKTYPE, "../../x"),
        "link to itself": member("a/1.png", tarfile.SYMTYPE, "1.png"),
        "device": member("a/1.png", tarfile.CHRTYPE, devmajor=1, devminor=5),
        "block device": member("a/1.png", tarfile.BLKTYPE),
        "pipe": member("a/1.png", tarfile.FIFOTYPE),
        "unknown kind": member("a/1.png", b"Z"),
        "contiguous": member("a/1.png", tarfile.CONTTYPE),
        "folder named as an image": member("a/1.png", tarfile.DIRTYPE),
    }
    for name, info in kinds.items():
        yield f"tar: {name}", {"x.tar": tarred([*PICTURES, (info, b"")])}
        yield f"tar: {name} first", {"x.tar": tarred([(info, b""), *PICTURES])}
    yield "zip: link", {"x.zip": zipped([*PICTURES, (zip_link("a/1.png"), b"/etc/passwd")])}
    yield (
        "zip: link of a folder",
        {"x.zip": zipped([(zip_link("c"), b"/"), ("c/0.png", picture(0))])},
    )
    for kind, make in (("zip", zipped), ("tar", tarred)):
        file = f"x.{kind}"
        yield f"{kind}: twice", {file: make([*PICTURES, *PICTURES])}
        yield f"{kind}: twice, other", {file: make([*PICTURES, ("a/0.png", picture(7))])}
        yield f"{kind}: a file is a folder", {file: make([*PICTURES, ("a", b"x")])}
        yield (
            f"{kind}: an image is a folder",
            {file: make([*PICTURES, ("a/0.png/1.png", picture(2))])},
        )
        yield f"{kind}: no members", {file: make([])}
        yield f"{kind}: no images", {file: make([("a/x.txt", b"x")])}
        yield f"{kind}: empty images", {file: make([("a/0.png", b"")])}
        yield f"{kind}: an archive inside", {file: make([("a/x.zip", plain), ("a/x.tar", tar)])}
        yield f"{kind}: an archive as image", {file: make([("a/0.png", plain), ("b/0.png", tar)])}
        yield f"{kind}: one size", {file: make([*PICTURES, ("a/9.png", png(3, 3, bytes(30)))])}
        for width, height in ((0, 4), (4, 0), (2**31 - 1, 1), (2**31, 2**31), (10**5, 10**5),
                              (12_000, 12_000), (9_000, 9_000)):  # fmt: skip
            huge = [*PICTURES, ("a/9.png", png(width, height, bytes(40)))]
            yield f"{kind}: {width}x{height}", {file: make(huge)}
        yield f"{kind}: many", {file: make([(f"c{i}/0.png", picture(0)) for i in range(200)])}
        yield f"{kind}: other content", {file: b"hello"}
        yield f"{kind}: empty file", {file: b""}
        yield f"{kind}: folder", {f"{file}/a/0.png": picture(0), f"{file}/b/1.png": b""}
    yield "folder: pipe", {"x/a/0.png": picture(0), "x/b/0.png": FIFO}
    yield "folder: link to nothing", {"x/a/0.png": picture(0), "x/b/0.png": "nothing"}
    yield "folder: link to a folder", {"x/a/0.png": picture(0), "x/b": "a"}
    yield "folder: a folder as image", {"x/a/0.png": picture(0), "x/a/1.png": None}
    yield "folder: nothing", {"x": None}
    yield "zip in a tar's name", {"x.tar": plain}
    yield "tar in a zip's name", {"x.zip": tar}
    yield "zip after a tar", {"x.zip": tar + plain}
    yield "tar in gzip in gzip", {"x.tgz": gzip.compress(tgz, mtime=0)}
    for name, offset, form, value in (
        ("encrypted", 6, "<H", 1), ("strong encryption", 6, "<H", 0x41), ("patch", 6, "<H", 0x20),
        ("unknown method", 8, "<H", 77), ("LZMA", 8, "<H", 14), ("bzip2", 8, "<H", 12),
        ("deflate", 8, "<H", 8), ("checksum", 14, "<I", 1), ("packed size", 18, "<I", 2**31),
        ("no size", 22, "<I", 0), ("size", 22, "<I", 2**31), ("all sizes", 22, "<I", 2**32 - 1),
        ("version", 4, "<H", 255), ("name's length", 26, "<H", 65_535), ("extra", 28, "<H", 65_535),
    ):  # fmt: skip
        yield f"zip: {name}", {"x.zip": header_set(plain, offset, form, value)}
        yield f"packed zip: {name}", {"x.zip": header_set(packed, offset, form, value)}
    bomb = zipped([("a/0.png", bytes(60 * 2**20))], zipfile.ZIP_DEFLATED)
    yield "zip: zeros", {"x.zip": bomb}
    yield "zip: more zeros than said", {"x.zip": header_set(bomb, 22, "<I", 10)}
    for size in (2**40, 2**33 - 1, 65 * 2**20, 2**20):
        yield f"tar: {size} bytes of holes", {"x.tar": sparse_tar(size)}
    for size in (10**6, 2**33 - 1, 2**60, -1):
        info = member("a/0.png", tarfile.REGTYPE, size=size)
        header = info.tobuf(tarfile.GNU_FORMAT)
        yield f"tar: says {size} bytes", {"x.tar": header + picture(0) + bytes(2_000)}
        long = member("x", tarfile.XHDTYPE, size=size).tobuf(tarfile.GNU_FORMAT) + bytes(2_000)
        later = tar[: 10 * tarfile.BLOCKSIZE] + long
        yield f"tar: a header of {size} bytes", {"x.tar": long}
        yield f"tar: a later header of {size} bytes", {"x.tar": later}
    for name, records in {
        "a size": {"size": "-5"}, "no number": {"size": "x"},
        "a path up": {"path": "../../evil.png"},
        "a time": {"mtime": "nan"}, "holes": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
        "old holes": {"GNU.sparse.map": "0,x", "GNU.sparse.size": "9"},
        "huge holes": {"GNU.sparse.map": "0,99999999999999", "GNU.sparse.size": "99999999999999"},
    }.items():  # fmt: skip
        info = member("a/0.png", tarfile.REGTYPE, size=len(picture(0)), pax_headers=records)
        said = tarred([(info, picture(0))], format=tarfile.PAX_FORMAT)
        yield f"tar: {name} in its records", {"x.tar": said}


def archive_attempts(folder: Path) -> Iterator[Attempt]:
    (path,) = folder.iterdir()
    yield lambda: labelled_images(path, Decoding())
    yield lambda: Stream.from_images(path, size=(3, 3), channels=1, levels=1).batch
    yield lambda: labelled_images(path, Decoding(first_classes=1, crop=True, size=(2, 2)))


# ---- tables and arrays ---------------------------------------------------------------------------

ROWS = "size,hue,when,kind\n" + "".join(
    f"{i / 4},{'red' if i % 3 else 'blue'},{i // 6},{'abc'[i % 3]}\n" for i in range(18)
)


def columns() -> dict[str, Any]:
    lines = [line.split(",") for line in ROWS.splitlines()[1:]]
    size, hue, when, kind = zip(*lines, strict=True)
    return {"size": [float(v) for v in size], "hue": hue, "when": [int(v) for v in when],
            "kind": kind}  # fmt: skip


def parquet_of(table: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    parquet.write_table(table if isinstance(table, pa.Table) else pa.table(table), out, **options)
    return out.getvalue()


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), allow_pickle=True)
    return out.getvalue()


def npy_header(text: str, body: bytes = bytes(64), version: bytes = b"\1\0") -> bytes:
    head = text.encode("latin-1") + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(head)) + head + body


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


ODD_TABLES: dict[str, bytes] = {
    "empty": b"", "a line": b"\n", "lines": b"\n" * 2_000, "header": b"size,hue,when,kind\n",
    "no line's end": b"size,hue,when,kind", "BOM": b"\xef\xbb\xbf" + ROWS.encode(),
    "UTF-16": ROWS.encode("utf-16"), "NUL": ROWS.replace("red", "r\0d").encode(),
    "NUL in the header": ROWS.replace("hue", "h\0e").encode(), "latin-1": ROWS.replace("red",
    "r\xe9d")
    .encode("latin-1"), "latin-1 in the header": ROWS.replace("hue", "h\xe9").encode("latin-1"),
    "Macintosh": ROWS.replace("\n", "\r").encode(), "semicolons": ROWS.replace(",", ";").encode(),
    "a column twice": ROWS.replace("hue", "size").encode(), "no name": ROWS.replace("hue",
    "").encode(),
    "names of lines": ROWS.replace("kind", '"kind"').replace("hue", '"h\nu\re\u2028"').encode(),
    "an open quote": ROWS.replace("red", '"red', 1).encode(), "quotes": b'"' * 5_000,
    "an open quote in the header": b'size,"hue,when,kind\n' + ROWS.encode(),
    "a long row": (ROWS + "1,2,3,4,5\n").encode(), "a short row": (ROWS + "1\n").encode(),
    "a missing cell": (ROWS + "NA,red,1,a\n").encode(),
    "a missing label": (ROWS + "1,red,1,\n").encode(),
    "infinity": (ROWS + "inf,red,1,a\n").encode(), "large": (ROWS + "1e400,red,1,a\n").encode(),
    "large whole": (ROWS + "9" * 400 + ",red,1,a\n").encode(),
    "1e300": (ROWS + "1e300,red,1,a\n").encode(),
    "many digits": ROWS.replace("0.25", "9" * 5_000).encode(), "a cell of lines":
    (ROWS + '1,"red\nblue",1,"a\nb"\n').encode(), "mixed": (ROWS + "x,red,1,a\n").encode(),
    "dates": ROWS.replace("red", "2024-01-01").encode(), "times": ROWS.replace("red",
    "12:00").encode(),
    "true": ROWS.replace("red", "true").replace("blue", "false").encode(), "a long cell": (ROWS
    + f"1,{'x' * 200_000},1,a\n").encode(),
    "many columns": b",".join(b"c%d" % i for i in range(3_000))
    + b",kind\n" + b"1," * 3_000 + b"a\n",
    "many kinds": ("size,kind\n" + "".join(f"{i},k{i}\n" for i in
    range(3_000))).encode(), "one column": b"kind\na\nb\n", "commas": b",,,\n,,,\n",
    "one row": b"size,when,kind\n1,1,a\n", "escapes": ROWS.replace("red", "\x1b[2J").encode(),
    "surrogates": ROWS.encode().replace(b"red", b"\xed\xa0\x80"),
    "no other target": b"size,hue\n1,2\n",
    "target of lines": b'"size\nx","kin\nd"\n1,2\n',
}  # fmt: skip


def odd_parquets() -> Iterator[tuple[str, Any]]:
    good, many = columns(), len(columns()["kind"])
    odd: dict[str, Any] = {
        "no rows": pa.table({k: pa.array([], pa.string()) for k in good}),
        "no columns": pa.table({}),
        "nulls": pa.nulls(many),
        "lists": pa.array([[1, 2]] * many),
        "structs": pa.array([{"a": 1}] * many),
        "maps": pa.array([[("a", 1)]] * many, pa.map_(pa.string(), pa.int8())),
        "bytes": pa.array([b"\xff\n"] * many),
        "decimals": pa.array([10**30] * many, pa.decimal128(38, 0)),
        "dates": pa.array([2**30] * many, pa.date32()),
        "times": pa.array([2**62] * many, pa.timestamp("ns")),
        "late times": pa.array([2**52] * many, pa.timestamp("s")),
        "durations": pa.array([1] * many, pa.duration("s")),
        "halves": pa.array([np.float16(1.5)] * many),
        "nan": pa.array([float("nan")] * many),
        "infinite": pa.array([float("inf")] * many),
        "large": pa.array([1e300] * many),
        "unsigned": pa.array([2**64 - 1] * many, pa.uint64()),
        "dictionary": pa.array(["a"] * many).dictionary_encode(),
        "text of lines": pa.array(["a\nb\u2028"] * many),
    }
    for name, values in odd.items():
        if isinstance(values, pa.Table):
            yield name, parquet_of(values)
            continue
        for column in ("hue", "kind", "when"):
            yield f"{name} as {column}", parquet_of({**good, column: values})
    yield "a name of lines", parquet_of({**good, "a\nb": good["hue"]})
    table = pa.table(good)
    twice = pa.table([table["kind"], table["kind"]], names=["kind", "kind"])
    yield "a column twice", parquet_of(twice)
    for name, about in {"no JSON": b"{", "a list": b"[]", "an index": b'{"index_columns": 5}',
                        "bytes": b"\xff", "an index of kind": b'{"index_columns": ["kind"]}',
                        "nested": b"[" * 50_000}.items():  # fmt: skip
        yield f"metadata: {name}", parquet_of(table.replace_schema_metadata({b"pandas": about}))


def odd_arrays() -> Iterator[tuple[str, Files]]:
    x, y = np.ones((6, 2), np.float32), np.array(list("aabbcc"))
    odd = {
        "0-d": np.float32(1), "no rows": np.ones((0, 2), np.float32), "no inputs": np.ones((6, 0)),
        "1-d": np.ones(6), "rows": np.ones((5, 2)), "nan": np.full((6, 2), np.nan), "inf":
        np.full((6, 2), np.inf), "complex": np.ones((6, 2), complex), "text": np.full((6, 2),
        "a\nb"),
        "bytes": np.full((6, 2), b"\xff"), "dates": np.full((6, 2), np.datetime64("2024-01-01")),
        "not a time": np.full((6, 2), np.datetime64("NaT", "s")), "records": np.ones(6, "f4,i4"),
        "void": np.zeros(6, "V8"), "no text": np.zeros(6, "U0"), "long double": np.zeros((6, 2),
        np.longdouble), "foreign": np.ones((6, 2), ">f4"), "by column": np.ones((6, 2), order="F"),
        "unsigned": np.full(6, 2**64 - 1, np.uint64), "objects": np.array([{}] * 6, object),
        "many": np.ones((6,) + (1,) * 30), "half": np.ones((6, 2), np.float16),
    }  # fmt: skip
    for name, array in odd.items():
        yield f"x of {name}", {"x.npz": npz(x=array, y=y)}
        yield f"y of {name}", {"a/x.npy": npy(x), "a/y.npy": npy(array)}
    for name, array in list(odd.items())[:6]:
        yield f"task of {name}", {"x.npz": npz(x=x, y=y, task=array)}
    heads = {
        "huge": "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 4)}",
        "overflow": f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**62}, {2**62})}}",
        "negative": "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 16)}",
        "true": "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 16)}",
        "nothing": "", "no dict": "[]", "call": "__import__('os')", "nested": "(" * 5_000,
        "minus": "-" * 9_000 + "1", "keys": "{'descr': '<f4'}", "type": "{'descr': '|O', "
        "'fortran_order': False, 'shape': (8,)}", "unknown type": "{'descr': 'x', 'fortran_order': "
        "False, 'shape': (8,)}",
        "type of 0 bytes": "{'descr': '<U0', 'fortran_order': False, 'shape': "
        "(8,)}",
        "list type": "{'descr': [('a\\n', '<f4')], 'fortran_order': False, 'shape': (16,)}",
        "long type": "{'descr': '<U999999999', 'fortran_order': False, 'shape': (16,)}",
        "shape of text": "{'descr': '<f4', 'fortran_order': False, 'shape': 'ab'}",
        "long integer": "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5_000 + ",)}",
        "no code": "{'descr': '<U4', 'fortran_order': False, 'shape': (4,)}",
    }  # fmt: skip
    for name, head in heads.items():
        body = b"\xff" * 64 if name == "no code" else bytes(64)
        yield f"x.npy: {name}", {"a/x.npy": npy_header(head, body), "a/y.npy": npy(y)}
        yield (
            f"y in npz: {name}",
            {"x.npz": zipped([("x.npy", npy(x)), ("y.npy", npy_header(head, body))])},
        )
    for version in (b"\2\0", b"\3\0", b"\xff\xff"):
        head = npy_header("{}", version=version)
        yield f"version {version!r}", {"a/x.npy": head, "a/y.npy": npy(y)}
    yield "x is a folder", {"a/x.npy/y.npy": npy(y), "a/y.npy": npy(y)}
    yield "no y", {"a/x.npy": npy(x)}
    yield "x is a link to nothing", {"a/x.npy": "nothing", "a/y.npy": npy(y)}
    yield "x is a pipe", {"a/x.npy": FIFO, "a/y.npy": npy(y)}
    yield "a table as npz", {"x.npz": ROWS.encode()}
    yield "an array as npz", {"x.npz": npy(x)}
    yield "npz: twice", {"x.npz": zipped([("x.npy", npy(x)), ("y.npy", npy(y)), ("x.npy", npy(y))])}
    yield "npz: up", {"x.npz": zipped([("../x.npy", npy(x)), ("y.npy", npy(y))])}
    yield "npz: names of lines", {"x.npz": zipped([("a\nb.npy", npy(x))])}
    for name, offset, form, value in (("encrypted", 6, "<H", 1), ("method", 8, "<H", 77), ("LZMA",
    8,
        "<H", 14), ("deflate", 8, "<H", 8), ("size", 22, "<I", 2**31), ("checksum", 14, "<I", 1),
        ("extra", 28, "<H", 65_535)):  # fmt: skip
        members = zipped([("x.npy", npy(x)), ("y.npy", npy(y))])
        yield f"npz: {name}", {"x.npz": header_set(members, offset, form, value)}


def table_cases(place: Path) -> Iterator[tuple[str, Files]]:
    text = ROWS.encode()
    for label, data in mutants("x.csv", text, 6):
        yield label, {"x.csv": data}
    for label, data in mutants("x.tsv", text.replace(b",", b"\t"), 3):
        yield label, {"x.tsv": data}
    packed = gzip.compress(text, mtime=0)
    for label, data in mutants("x.csv.gz", packed, 4, "flip cut hole stuff"):
        yield label, {"x.csv.gz": data}
    for compression, version in (("snappy", "2.6"), ("none", "1.0"), ("zstd", "2.6")):
        file = parquet_of(columns(), compression=compression, version=version)
        for label, data in mutants(f"{compression}.parquet", file, 5, "flip cut hole stuff"):
            yield label, {"x.parquet": data}
    for name, data in ODD_TABLES.items():
        yield f"csv: {name}", {"x.csv": data}
        if len(data) < 2_000:
            yield f"gzip: {name}", {"x.csv.gz": gzip.compress(data, mtime=0)}
    for name, data in odd_parquets():
        yield f"parquet: {name}", {"x.parquet": data}
    yield "csv: folder", {"x.csv/y.csv": text}
    yield "csv: pipe", {"x.csv": FIFO}
    yield "csv: link to nothing", {"x.csv": "nothing"}
    yield "gzip: not packed", {"x.csv.gz": text}
    yield "gzip: zeros", {"x.csv.gz": gzip.compress(bytes(2**24), mtime=0)}
    yield "gzip: twice", {"x.csv.gz": gzip.compress(packed, mtime=0)}
    yield "parquet: text", {"x.parquet": text}
    yield "parquet: empty", {"x.parquet": b""}
    yield "parquet: only marks", {"x.parquet": b"PAR1\xff\xff\xff\x7fPAR1"}
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array(list("aabbcc"))
    out = io.BytesIO()
    np.savez_compressed(out, x=x, y=y)
    for name, data in {"x.npz": npz(x=x, y=y), "packed.npz": out.getvalue()}.items():
        for label, mutant in mutants(name, data, 4, "flip cut hole stuff"):
            yield label, {"x.npz": mutant}
    for label, mutant in mutants("x.npy", npy(x), 4, "flip cut hole stuff"):
        yield label, {"a/x.npy": mutant, "a/y.npy": npy(y)}
    for label, mutant in mutants("y.npy", npy(y), 4, "flip cut hole stuff"):
        yield label, {"a/x.npy": npy(x), "a/y.npy": mutant}
    yield from odd_arrays()


def table_attempts(folder: Path) -> Iterator[Attempt]:
    (path,) = folder.iterdir()
    if path.suffix == ".npz" or path.name == "a":
        yield lambda: read_arrays(path)
        yield lambda: example(plugins.find("stream", "arrays")(path=str(path)).build([0]))
        yield lambda: read_arrays(path, kind="regression")
        yield lambda: Request(path).spec().stream.build([0])
    else:
        yield lambda: example(Stream.from_table(path, target="kind"))
        yield lambda: example(Stream.from_table(path, target="kind", task="when", ignore=["hue"]))
        yield lambda: example(
            Stream.from_table(path, target="size", kind="regression", task="when")
        )
        yield lambda: Request(path).set(["stream.target=kind"]).spec().stream.build([0])


def example(stream: Stream) -> None:
    assert 1 <= len(stream.example(torch.float32)) <= 6


# ---- run folders ---------------------------------------------------------------------------------


@cache
def run_files() -> dict[str, bytes]:
    """A run folder, small and real."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "run"
        dpmcl.run("digits", methods=["er"], replicas=1, tasks=2, out=out,
                  settings={"training.updates": 3})  # fmt: skip
        files = sorted(path for path in out.rglob("*") if path.is_file())
        return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


ODD_JSON = {
    "null": "null", "number": "5", "text": '"x"', "list": "[]", "table": "{}",
    "not a number": "NaN",
    "large number": "1e999", "digits": "9" * 5_000, "nested": "[" * 50_000 + "]" * 50_000,
    "nested tables": '{"a":' * 50_000 + "1" + "}" * 50_000, "surrogate": '"\\ud800"',
    "two": "{} {}",
    "NUL": "\0", "UTF-16": "\ufeff{}", "comma": '{"a": 1,}', "key twice": '{"a": 1, "a": 2}',
}  # fmt: skip

ODD_STREAMS = {
    "name": [5, None, "a\nb", "$\\x$", ["x"], {}, "\ud800"],
    "kind": ["regression", "other", 5, None, []],
    "tasks": [[], ["0"], ["0", "1", "2"], "01", 5, None, [0, 1], [None, None], [[], {}], {"0": 1},
              ["$x$", "$\\nope{$"], ["a\nb", "\x1b"], ["\ud800", "1"], ["x"] * 100_000],
    "classes": [[], 5, None, "0123456789", [1, 2], [[], {}], {"a": 1}],
    "scenario": [5, None, [], "a\nb"],
    "digest": [5, None, []],
}  # fmt: skip


def odd_errors() -> Iterator[tuple[str, Any]]:
    table = parquet.read_table(io.BytesIO(run_files()["errors.parquet"]))
    rows, names = table.num_rows, table.column_names

    def put(column: str, values: Any) -> bytes:
        return parquet_of(table.set_column(names.index(column), column, pa.array(values)))

    numbers = {"-9": -9, "-1": -1, "99": 99, "2^62": 2**62, "-2^63": -(2**63)}
    for column in ("after", "task", "seed", "examples"):
        for name, value in numbers.items():
            yield f"{column} of {name}", put(column, [value] * rows)
        yield f"{column} of text", put(column, ["0"] * rows)
        yield f"{column} of halves", put(column, [0.5] * rows)
        yield f"{column} of none", put(column, [None] + [0] * (rows - 1))
    for name, value in {"nan": float("nan"), "inf": float("inf"), "-5": -5.0, "text": "x",
    "list": [1],
                        "none": None}.items():  # fmt: skip
        yield f"error of {name}", put("error", [value] * rows)
        yield f"one error of {name}", put("error", [value if i == 1 else None for i in range(rows)])
    for column in ("method", "split"):
        for name, value in {"number": 5, "none": None, "lines": "a\nb", "list": ["x"],
        "bytes": b"\xff",
                            "nothing": ""}.items():  # fmt: skip
            yield f"{column} of {name}", put(column, [value] * rows)
        yield f"{column} of some", put(column, [None, *["test"] * (rows - 1)])
    for column in names:
        yield f"no {column}", parquet_of(table.drop_columns([column]))
    yield "no rows", parquet_of(table.slice(0, 0))
    yield "one row", parquet_of(table.slice(0, 1))
    yield "rows twice", parquet_of(pa.concat_tables([table, table]))
    yield "columns twice", parquet_of(pa.table([*table.columns, table["seed"]], [*names, "seed"]))
    yield "many seeds", parquet_of(pa.concat_tables([
        table.set_column(1, "seed", pa.array([s] * rows)) for s in range(60)]))  # fmt: skip


def run_cases(place: Path) -> Iterator[tuple[str, Files]]:
    files = run_files()
    for name, data in files.items():
        small = data if len(data) < 10_000 else data[:5_000]
        for label, mutant in mutants(name, small, 2):
            yield label, {**files, name: mutant}
        yield f"{name} empty", {**files, name: b""}
        yield f"{name} is a folder", {**files, name: None}
        yield f"{name} is missing", {k: v for k, v in files.items() if k != name}
        yield f"{name} is a link to nothing", {**files, name: "nothing"}
        yield f"{name} is a link to itself", {**files, name: Path(name).name}
        yield f"{name} is a pipe", {**files, name: FIFO}
        yield f"{name} is not UTF-8", {**files, name: b"\xff" + data}
    for name in ("stream.json", "work.json"):
        for label, text in ODD_JSON.items():
            yield f"{name}: {label}", {**files, name: text.encode("utf-8", "surrogatepass")}
    stream = json.loads(files["stream.json"])
    for key, values in ODD_STREAMS.items():
        for i, value in enumerate(values):
            text = json.dumps({**stream, key: value})
            yield f"stream.json: {key} {i}", {**files, "stream.json": text.encode()}
        less = {k: v for k, v in stream.items() if k != key}
        yield f"stream.json: no {key}", {**files, "stream.json": json.dumps(less).encode()}
    work = json.loads(files["work.json"])["er"]["0"]
    odd: list[Any] = [
        {"er": 5}, {"er": []}, {"er": {"x": work}}, {"er": {"0": 5}}, {"er": {"0": {}}}, {"er": {}},
        {"er": {"0": {**work, "more": 1}}}, {"er": {"9" * 5_000: work}}, {"other": {"0": work}},
        *({"er": {"0": dict.fromkeys(work, v)}} for v in (None, "x", [], {}, float("nan"), 1e308,
        -1,
                                                          10**400, True, float("inf"))),
    ]  # fmt: skip
    for i, value in enumerate(odd):
        yield f"work.json: {i}", {**files, "work.json": json.dumps(value).encode()}
    for name, text in ODD_SPECS.items():
        yield f"spec.toml: {name}", {**files, "spec.toml": text}
    for name, data in odd_errors():
        yield f"errors.parquet: {name}", {**files, "errors.parquet": data}


def run_attempts(folder: Path) -> Iterator[Attempt]:
    yield lambda: shown(dpmcl.load(folder))


def shown(result: Any) -> None:
    for style in ("text", "json", "csv", "markdown", "latex"):
        assert isinstance(result.table(style), str)
    result.rows_by_task()
    result.plot()


# ---- checkpoints ---------------------------------------------------------------------------------


@cache
def snapshot() -> Snapshot:
    """A run of two replicas and two tasks, in the middle of the second."""
    theta = {"prediction": {"weight": torch.arange(6.0).view(2, 3)}}
    state = State(theta, {"prediction": {"weight": {"sum": torch.ones(2, 3)}}}, {})
    held = Memory(torch.zeros(2, 4, dtype=torch.int64), torch.tensor([2, 2]), torch.tensor([3, 3]))
    values = np.full((2, 3, 2), np.nan)
    values[:, :2, 0] = 0.5
    return Snapshot(Position(1, 0, 50), state, held, {"test": values}, Work(9, 99))


@cache
def checkpoint_files() -> Files:
    """A run folder with two checkpoints of `er`."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "spec.toml").write_text("")
        keep = Checkpoints(folder, "er", lambda _: None)
        for _ in range(2):
            keep.save(snapshot(), Origin("er", (0, 1), "data", "batched", "cpu"))
        return {
            str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()
        }


def described(change: Callable[[dict[str, Any]], object]) -> bytes:
    """A checkpoint whose sum fits, and whose description is not ours."""
    content = max(d for d in checkpoint_files().values() if isinstance(d, bytes))
    length = struct.unpack("<Q", content[:8])[0]
    meta = json.loads(content[8 : 8 + length])["__metadata__"]
    about = json.loads(meta["about"])
    change(about)
    text = json.dumps(about)
    tensors = safetensors.torch.load(content)
    return safetensors.torch.save(tensors, {"about": text, "sum": checkpoint._sum(text, tensors)})


def checkpoint_cases(place: Path) -> Iterator[tuple[str, Files]]:
    rng = random.Random(5)
    whole = checkpoint_files()
    first, last = sorted(name for name in whole if name.endswith(".safetensors"))
    content = whole[last]
    assert isinstance(content, bytes)
    yield "whole", whole
    for i in range(60):
        yield f"flipped {i}", {**whole, last: flipped(content, rng)}
        cut = content[: rng.randrange(len(content))]
        yield f"cut {i}", {**whole, last: cut, first: cut[: i * 7]}
    for i, data in enumerate((b"", b"\0" * 8, b"\xff" * 9, b"{}", content + b"more", content * 2)):
        yield f"other {i}", {**whole, last: data, first: data}
    for name, thing in {"folder": None, "pipe": FIFO}.items():
        yield name, {**whole, last: thing}
    odd: list[Any] = [None, "x", [], {}, -1, 1e300, 2**70, True, [1], [0, 0, -1], ["a", "b", "c"]]
    for key in ("format", "origin", "position", "work", "diverged"):
        for i, value in enumerate(odd):
            data = described(lambda about, k=key, v=value: about.update({k: v}))
            yield f"{key} {i}", {**whole, last: data}
    for key in ("method", "seeds", "digest", "engine", "device", "torch", "more"):
        for i, value in enumerate(odd):
            data = described(lambda about, k=key, v=value: about["origin"].update({k: v}))
            yield f"origin.{key} {i}", {**whole, last: data}
    for i, value in enumerate(([9, 0, 0], [3, 0, 0], [2**62, 0, 0])):
        data = described(lambda about, v=value: about.update(position=v))
        yield f"beyond {i}", {**whole, last: data}


def checkpoint_attempts(folder: Path) -> Iterator[Attempt]:
    def loaded() -> None:
        said: list[str] = []
        keep = Checkpoints(folder, "er", said.append)
        keep.origin()
        found = keep.load(snapshot())
        assert found is None or found.position.task <= 2
        assert all("\n" not in line for line in said)

    yield loaded


# One entry adds a kind of file: `cases(place)` yields names and files, `attempts(folder)` loads
# them.
LOADERS = {
    "specs": Loader(spec_cases, spec_attempts),
    "archives": Loader(archive_cases, archive_attempts),
    "tables": Loader(table_cases, table_attempts),
    "runs": Loader(run_cases, run_attempts),
    "checkpoints": Loader(checkpoint_cases, checkpoint_attempts),
}


# ---- the tests -----------------------------------------------------------------------------------


class Late(BaseException):
    """Not an Exception, so that no loader takes it for one of its own."""


def late(number: int, frame: object) -> None:
    raise Late("more than its time")


def write(folder: Path, files: Files) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir()
        elif content is FIFO:
            os.mkfifo(path)
        elif isinstance(content, str):
            path.symlink_to(content)
        else:
            assert isinstance(content, bytes)
            path.write_bytes(content)


def listed(place: Path) -> set[tuple[str, int, int]]:
    """All that is in the tests' folder but the cache, and the names beside it."""
    out = {(name, 0, 0) for name in os.listdir(place.parent)}  # noqa: PTH208
    for top, folders, names in os.walk(place):
        if Path(top) == place:
            folders.remove("cache")
        for name in [*folders, *names]:
            info = Path(top, name).lstat()
            out.add((str(Path(top, name)), info.st_size, info.st_mtime_ns))
    return out


def complaint(attempt: Attempt) -> str:
    """What is wrong with how an attempt ended; nothing where all is well."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            signal.setitimer(signal.ITIMER_PROF, PROCESSOR)
            signal.setitimer(signal.ITIMER_REAL, CLOCK)
            try:
                attempt()
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
    except DpmclError as error:
        text = str(error)
        if len(text.splitlines()) != 1:
            return f"{type(error).__name__} of {len(text.splitlines())} lines: {text[:300]!r}"
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return f"{type(error).__name__} that cannot be printed: {text[:300]!r}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # PanicException of Rust's is no Exception
        steps = traceback.extract_tb(error.__traceback__)
        own = [s for s in steps if "dpmcl" in s.filename] or steps
        where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        return f"{type(error).__name__} by {where}: {' '.join(str(error).split())[:200]}"
    return ""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that has all that a loader could write to."""
    for name, variable in {"cache": "DPMCL_CACHE", "home": "HOME", "temporary": "TMPDIR"}.items():
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    handlers = {s: signal.signal(s, late) for s in (signal.SIGALRM, signal.SIGPROF)}
    yield tmp_path
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """What is imported on first use would count as a case's time."""
    import matplotlib.figure
    import PIL.Image
    import scipy.ndimage
    import sklearn.datasets

    modules = (matplotlib.figure, PIL.Image, scipy.ndimage, sklearn.datasets)
    assert all(module.__name__ in sys.modules for module in modules)
    PIL.Image.init()


def test_there_are_enough_cases(tmp_path):
    """And each has a name of its own, so that one can be found."""
    names = [
        f"{kind}: {name}" for kind, loader in LOADERS.items() for name, _ in loader.cases(tmp_path)
    ]
    assert len(names) >= 800
    assert len(set(names)) == len(names)


def test_cases_are_the_same_every_time(tmp_path):
    """All but those of run folders, which say when they were made."""
    for kind in ("specs", "archives", "tables"):
        first, second = (list(LOADERS[kind].cases(tmp_path)) for _ in range(2))
        assert first == second


def failures(kind: str, loader: Loader, place: Path) -> list[str]:
    """What is wrong with a loader, a text for each case that fails."""
    out = []
    for number, (name, files) in enumerate(loader.cases(place)):
        folder = place / "cases" / f"{number}"
        write(folder, files)
        before, found = listed(place), []
        for i, attempt in enumerate(loader.attempts(folder)):
            if wrong := complaint(attempt):
                found.append(f"attempt {i}: {wrong}")
        if changed := sorted({path for path, *_ in before ^ listed(place)}):
            found.append(f"changed {changed[:3]}")
        if found:
            kept = place / f"failed-{number}"
            shutil.move(folder, kept)
            again = f"[f() for f in test_fuzz.LOADERS[{kind!r}].attempts(Path({str(kept)!r}))]"
            out.append(f"{name!r}: {'; '.join(found)}\n    again, in tests/: {again}")
        shutil.rmtree(place / "cases")
    return out


@pytest.mark.parametrize("kind", LOADERS)
def test_malformed_inputs_end_in_success_or_one_line(kind, place):
    problems = failures(kind, LOADERS[kind], place)
    assert not problems, f"{len(problems)} of {kind} failed:\n" + "\n".join(problems)


def fails(error: BaseException) -> Attempt:
    def attempt() -> None:
        raise error

    return attempt


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda: None, ""),
        (fails(DpmclError("one line")), ""),
        (fails(DpmclError("")), "0 lines"),
        (fails(OSError("gone")), "OSError"),
        (fails(SystemExit(2)), "SystemExit"),
        (lambda: warnings.warn("odd", stacklevel=1), "UserWarning"),
        (lambda: time.sleep(5), "Late"),
        (lambda: sum(1 for _ in itertools.count()), "Late"),
    ],
)
def test_what_a_failure_is(attempt, said, place, monkeypatch):
    monkeypatch.setitem(globals(), "PROCESSOR", 0.2)
    monkeypatch.setitem(globals(), "CLOCK", 0.5)
    found = complaint(attempt)
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize("where", ["here/x", "home/x", "temporary/x", "cases/0/x", "x", "../x"])
def test_a_file_that_a_loader_writes_is_found(where, place):
    path = place / where
    loader = Loader(
        lambda place: iter([("a case", {"x.csv": b""})]),
        lambda folder: iter([lambda: path.write_text("x")]),
    )
    try:
        (problem,) = failures("specs", loader, place)
    finally:
        path.unlink(missing_ok=True)
    assert "'a case': changed" in problem


class Payload:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def hostile(ran: Path) -> dict[str, bytes]:
    """Files that would run code if they were unpickled, each as some library would do it."""
    evil = Payload(ran)
    saved, objects = io.BytesIO(), np.array([evil] * 4, dtype=object)
    torch.save({"representation.0.weight": evil}, saved)
    kind = pa.field("x", pa.int64(), metadata={
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(evil),
    })  # fmt: skip
    extension = pa.table([pa.array([1, 2, 3, 4]), pa.array(list("aabb"))],
                         schema=pa.schema([kind, pa.field("kind", pa.string())]))  # fmt: skip
    return {
        "pickle": pickle.dumps(evil),
        "torch": saved.getvalue(),
        "npy": npy(objects),
        "npz": npz(x=objects, y=objects),
        "parquet": parquet_of(extension),
    }


def test_the_payload_would_run(place):
    ran = place / "ran"
    pickle.loads(hostile(ran)["pickle"])
    assert ran.exists()
    ran.rmdir()
    np.load(io.BytesIO(hostile(ran)["npy"]), allow_pickle=True)
    assert ran.exists()


def test_nothing_is_unpickled(place):
    ran = place / "ran"
    y = npy(np.array(list("aabb")))
    refused = 0
    for name, data in hostile(ran).items():
        tables = {
            f"{name}{suffix}": {f"x{suffix}": data} for suffix in (".parquet", ".csv", ".npz")
        }
        tables[f"{name}.csv.gz"] = {"x.csv.gz": gzip.compress(data, mtime=0)}
        tables[f"{name}.npy"] = {"a/x.npy": data, "a/y.npy": y}
        tables[f"{name}.npy as y"] = {"a/x.npy": npy(np.ones((4, 2))), "a/y.npy": data}
        tables[f"{name} in npz"] = {"x.npz": zipped([("x.npy", data), ("y.npy", y)])}
        cases = [(LOADERS["tables"], files) for files in tables.values()]
        images = ({"x.zip": data}, {"x.tar": data}, {"x.zip": zipped([("a/0.png", data)])})
        cases += [(LOADERS["archives"], files) for files in images]
        cases += [(LOADERS["runs"], {**run_files(), part: data}) for part in run_files()]
        cases += [(LOADERS["specs"], {"spec.toml": data})]
        for number, (loader, files) in enumerate(cases):
            folder = place / "cases" / f"{name}-{number}"
            write(folder, files)
            for attempt in loader.attempts(folder):
                assert complaint(attempt) == "", (name, list(files))
                try:
                    attempt()
                except DpmclError:
                    refused += 1
                assert not ran.exists(), (name, list(files))
    assert refused > 50


def test_the_cache_of_images_is_not_unpickled(place):
    ran, archive = place / "ran", place / "x.zip"
    archive.write_bytes(zipped(PICTURES))
    expected = labelled_images(archive, Decoding()).x.clone()
    kept = [path for path in (place / "cache").rglob("*") if path.is_file()]
    assert {path.suffix for path in kept} == {".pixels", ".safetensors"}
    for data in hostile(ran).values():
        for path in kept:
            path.write_bytes(data)
        assert torch.equal(labelled_images(archive, Decoding()).x, expected)
        assert not ran.exists()
