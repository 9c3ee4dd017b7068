"""Malformed inputs: every loader ends soon, with success or an error of one line, writing nothing.

Each kind of input has valid files, which Hypothesis damages, and a table of invalid ones. Loaders
are called through public functions. Failure messages name the case.
"""

import gzip
import io
import itertools
import json
import math
import os
import pickle
import shutil
import signal
import tarfile
import tempfile
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import dpmcl
from dpmcl import presets
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DpmclError
from dpmcl.study.api import Request
from dpmcl.training.spec import Spec
from packed import encoded, noise

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and timers")

PROCESSOR, CLOCK = 3.0, 10.0  # limits of a case, in seconds: processor time and wall time

FIFO = object()
Files = dict[str, Any]
"""Files by name: bytes, the target of a link as text, None for a folder, or FIFO."""
Attempt = Callable[[], object]


# ---- specs ---------------------------------------------------------------------------------------

VALUES = (
    "5", "-1", "1.5", "nan", "inf", "true", '""', '"a\\nb"', '"a\\u0000b"', '"~a\\u0000b.csv"',
    '"~nobody-at-all/x.zip"', '"json:loads"', '"a\\nb:c"', '":"', '"../streams/digits"',
    '"__init__"', f'"{"x" * 100_000}"', f'"{"x/" * 50_000}x.csv"', "[]", "[1, 'a']", "[[1], {}]",
    "{}", "{a = 1}", "{name = 5}", '{path = "~a\\u0000b.npz"}', "9" * 5_000, "1e999",
    "0x" + "f" * 99, "2024-99-99", "1979-05-27T07:32:00Z", "[" * 300 + "]" * 300,
    "[" * 20_000, "{a = " * 900,
)  # fmt: skip
SETTINGS = (
    'stream = {}\nmethods = ["er"]', 'stream = "digits"\nmethods = {}',
    'stream = "digits"\nmethods = ["er"]\nnetwork = {}', 'stream = "digits"\nmethods.er = {}',
    'methods = ["er"]\n[stream]\nname = "digits"\norder = {}',
    'methods = ["er"]\n[stream]\nname = "digits"\nclasses_per_task = {}',
    'methods = ["er"]\n[stream]\nname = "digits"\nsplit = {}',
    'stream = "digits"\nmethods = ["er"]\nseed = {}',
    'stream = "digits"\nmethods = ["er"]\n[training]\nlr = {}',
    'stream = "digits"\nmethods = ["er"]\n[training]\noptimiser = {}',
    'stream = "digits"\n[methods."e\\nr"]\nlr = {}', '"a\\n\\u001b[31m" = {}',
)  # fmt: skip
SPECS = {
    "empty": b"", "NUL": b"\0", "BOM": b"\xef\xbb\xbfseed = 1",
    "UTF-16": "seed = 1".encode("utf-16"), "surrogate": b'stream = "\xed\xa0\x80"',
    "all": bytes(range(256)),
    "dotted": b"seed" + b".a" * 5_000 + b" = 1", "a header": b"[methods.er" + b".a" * 5_000 + b"]",
    "tables beside no list": b'stream = "digits"\nmethods = 5\n[methods.er]\nlr = 1.0',
    "tables beside another": b'stream = "digits"\nmethods = ["er"]\n[methods.naive]\nlr = 1.0',
    "tables": b"".join(b"[t%d]\n" % i for i in range(999)), "brackets": b"[ methods . " * 999,
}  # fmt: skip
ASSIGNMENTS = (
    "", "=", "a=", "=a", "a..b=1", "training.lr==", "training.lr=0.1\nseed=3", 'training.lr="',
    "methods.er.lr=[", "stream.path=~\0.csv", "stream=\udcff", "\udcff=1", "seed=\x1b[31m",
    "seed=" + "9" * 5_000, "seed=" + "[" * 20_000, "stream." + ".".join("a" * 900) + "=1",
    "x" * 100_000 + "=1", "\u2028=\u2028", "[a]=1", "#=1", "dtype=float32\n",
)  # fmt: skip
SOURCES = (
    "", " ", ".", "~", "\0", "\udcff", "nope.toml", "nope/nope", "a\nb.toml", ":", "a\nb:c",
    "x" * 5_000, "x/" * 5_000, "\u2028", "~nobody/x", "-", "digits\n", "Digits",
)  # fmt: skip


def spec_cases(root: Path) -> Iterator[tuple[str, Files]]:
    for setting, value in itertools.product(SETTINGS, VALUES):
        text = setting.replace("{}", value, 1)
        yield f"{setting[-30:]!r} {value:.20}", {"spec.toml": text.encode()}
    for name, text in SPECS.items():
        yield name, {"spec.toml": text}
    for kind, texts in (("set", ASSIGNMENTS), ("source", SOURCES)):
        for i, text in enumerate(texts):
            yield f"{kind} {i}, {text:.30}", {f"{kind}.json": json.dumps(text).encode()}


def spec_attempts(folder: Path) -> Iterator[Attempt]:
    (path,) = folder.iterdir()
    if path.suffix == ".toml":
        yield lambda: check_spec(Request(path).spec())
        yield lambda: Request(path).set(["seed=3"]).update(tasks=2).spec()
    elif path.name == "set.json":
        yield lambda: check_spec(Request("digits").set([json.loads(path.read_text())]).spec())
    else:
        yield lambda: check_spec(Request(json.loads(path.read_text())).spec())


def check_spec(spec: Spec) -> None:
    """Check that a valid spec survives a round trip; build its stream if that is little work."""
    assert Spec.parse(spec.to_table()).to_table() == spec.to_table()
    stream = spec.stream
    size = math.prod(getattr(stream, name, None) or 1 for name in ("tasks", "rows", "outputs"))
    path = getattr(stream, "path", "")
    nowhere = path and not os.path.exists(path)  # noqa: PTH110 (any text will do)
    small = size <= 10**7 and (stream.tasks or 50) <= 100
    if small and (nowhere or spec.stream_name in ("digits", "sine")):
        assert len(stream.build([0]).tasks) >= 1


# ---- archives ------------------------------------------------------------------------------------


PICTURES: list[tuple[Any, bytes]] = [
    (f"{kind}/{i}.png", encoded(noise(i))) for i, kind in enumerate("aabbb")
]


def zipped(members: list[tuple[Any, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", method) as archive:
        warnings.simplefilter("ignore")  # warnings of duplicate names
        for name, content in members:
            info = zipfile.ZipInfo(name) if isinstance(name, str) else name
            info.compress_type = method
            archive.writestr(info, content)
    return out.getvalue()


def tarred(
    members: list[tuple[Any, bytes]], mode: Any = "w", form: int = tarfile.GNU_FORMAT
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=form) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


ZIP, TAR = zipped(PICTURES), tarred(PICTURES)
ARCHIVES: list[Files] = [
    {"stored.zip": ZIP}, {"packed.zip": zipped(PICTURES, zipfile.ZIP_DEFLATED)}, {"x.tar": TAR},
    {"pax.tar": tarred(PICTURES, form=tarfile.PAX_FORMAT)}, {"x.tgz": gzip.compress(TAR, mtime=0)},
    {"x.tar.bz2": tarred(PICTURES, "w:bz2")}, {"x.tar.xz": tarred(PICTURES, "w:xz")},
    {"x/a/0.png": encoded(noise(0)), "x/b/1.png": encoded(noise(1))},
]  # fmt: skip
MEMBERS = (
    "/", "x" * 5_000 + "/0.png", "x/" * 3_000 + "0.png", "a\nb/c\nd.png", "\x1b[2J/0.png",
    ".a/0.png", "a", "a/0.png", "a/0.png/1.png",
)  # fmt: skip


def archive_cases(root: Path) -> Iterator[tuple[str, Files]]:
    """Members with paths outside the archive are tested in test_images.py."""
    for kind, make in (("zip", zipped), ("tar", tarred)):
        members: dict[str, list[tuple[Any, bytes]]] = {
            "none": [], "no images": [("a/x.txt", b"x")], "empty": [("a/0.png", b"")],
            "archives": [("a/x.zip", ZIP), ("a/0.png", TAR)], "twice": [*PICTURES, *PICTURES],
            **{name[:50]: [*PICTURES, (name, encoded(noise(1)))] for name in MEMBERS},
        }  # fmt: skip
        for name, content in members.items():
            yield f"{kind}: {name}", {f"x.{kind}": make(content)}
        for content in (b"", b"hello", TAR, ZIP, TAR + ZIP, gzip.compress(gzip.compress(TAR))):
            yield f"{kind}: {content[:9]!r} {len(content)}", {f"x.{kind}": content}
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"Z"):
        info = tarfile.TarInfo("a/1.png")
        info.type, info.linkname = kind, "/etc/passwd"
        yield f"tar: kind {kind!r}", {"x.tar": tarred([*PICTURES, (info, b"")])}
    for name, other in (("pipe", FIFO), ("link", "nothing"), ("folder", None)):
        yield f"folder: {name}", {"x/a/0.png": encoded(noise(0)), "x/b/0.png": other}
    yield "folder: nothing", {"x": None}
    bomb = zipped([("a/0.png", bytes(60 * 2**20))], zipfile.ZIP_DEFLATED)
    yield "zip: zeros", {"x.zip": bomb}


def archive_attempts(folder: Path) -> Iterator[Attempt]:
    path = next(folder.iterdir())
    yield lambda: Stream.from_images(path)
    yield lambda: Stream.from_images(path, size=(3, 3), channels=1, crop=True)


# ---- tables and arrays ---------------------------------------------------------------------------

ROWS = "size,hue,when,kind\n" + "".join(
    f"{i / 4},{'red' if i % 3 else 'blue'},{i // 6},{'abc'[i % 3]}\n" for i in range(18)
)
COLUMNS: dict[str, Any] = {
    "size": [i / 4 for i in range(18)],
    "hue": ["red" if i % 3 else "blue" for i in range(18)],
    "when": [i // 6 for i in range(18)],
    "kind": ["abc"[i % 3] for i in range(18)],
}
X, Y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array(list("aabbcc"))


def parquet_of(table: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    parquet.write_table(table if isinstance(table, pa.Table) else pa.table(table), out, **options)
    return out.getvalue()


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), allow_pickle=True)
    return out.getvalue()


def npz(**arrays: Any) -> bytes:
    return zipped([(f"{name}.npy", npy(array)) for name, array in arrays.items()])


PACKED_ROWS = gzip.compress(ROWS.encode(), mtime=0)
TABLES: list[Files] = [
    {"x.csv": ROWS.encode()}, {"x.tsv": ROWS.replace(",", "\t").encode()},
    {"x.csv.gz": PACKED_ROWS}, {"x.parquet": parquet_of(COLUMNS)},
    {"x.parquet": parquet_of(COLUMNS, compression="none", version="1.0")},
    {"x.npz": npz(x=X, y=Y)}, {"a/x.npy": npy(X), "a/y.npy": npy(Y)},
]  # fmt: skip
TEXTS: dict[str, str] = {
    "empty": "", "lines": "\n" * 2_000, "header": "size,hue,when,kind\n", "commas": ",,,\n,,,\n",
    "NUL": ROWS.replace("red", "r\0d"), "semicolons": ROWS.replace(",", ";"),
    "a column twice": ROWS.replace("hue", "size"), "no name": ROWS.replace("hue", ""),
    "names of lines": ROWS.replace("hue", '"h\nu\re\u2028"'), "quotes": '"' * 5_000,
    "a long row": ROWS + "1,2,3,4,5\n", "a missing cell": ROWS + "NA,red,1,a\n",
    "a missing label": ROWS + "1,red,1,\n", "infinity": ROWS + "inf,red,1,a\n",
    "digits": ROWS.replace("0.25", "9" * 5_000), "dates": ROWS.replace("red", "2024-01-01"),
    "a long cell": f"{ROWS}1,{'x' * 200_000},1,a\n", "one row": "size,when,kind\n1,1,a\n",
    "many kinds": "size,kind\n" + "".join(f"{i},k{i}\n" for i in range(3_000)),
    "escapes": ROWS.replace("red", "\x1b[2J"), "no target": "size,hue\n1,2\n",
}  # fmt: skip
PARQUETS: dict[str, Any] = {
    "nulls": pa.nulls(18), "lists": [[1, 2]] * 18, "structs": [{"a": 1}] * 18,
    "bytes": [b"\xff\n"] * 18, "decimals": pa.array([10**30] * 18, pa.decimal128(38, 0)),
    "times": pa.array([2**52] * 18, pa.timestamp("s")), "nan": [float("nan")] * 18,
    "large": [1e300] * 18, "unsigned": pa.array([2**64 - 1] * 18, pa.uint64()),
    "dictionary": pa.array(["a"] * 18).dictionary_encode(), "lines": ["a\nb\u2028"] * 18,
}  # fmt: skip


ARRAYS: dict[str, Any] = {
    "0-d": np.float32(1), "no rows": np.ones((0, 2), np.float32), "no inputs": np.ones((6, 0)),
    "rows": np.ones((5, 2)), "nan": np.full((6, 2), np.nan), "complex": np.ones((6, 2), complex),
    "not a time": np.full((6, 2), np.datetime64("NaT", "s")), "records": np.ones(6, "f4,i4"),
    "void": np.zeros(6, "V8"), "foreign": np.ones((6, 2), ">f4"),
    "objects": np.array([{}] * 6, object), "unsigned": np.full(6, 2**64 - 1, np.uint64),
}  # fmt: skip


def table_cases(root: Path) -> Iterator[tuple[str, Files]]:
    """Headers of arrays are tested in test_arrays.py."""
    for name, text in TEXTS.items():
        yield f"csv: {name}", {"x.csv": text.encode()}
    for code in ("utf-16", "latin-1"):
        yield f"csv: {code}", {"x.csv": ROWS.replace("red", "r\xe9d").encode(code)}
    for (name, values), column in itertools.product(PARQUETS.items(), ("hue", "kind", "when")):
        changed = parquet_of({**COLUMNS, column: values})
        yield f"parquet: {name} as {column}", {"x.parquet": changed}
    table = pa.table(COLUMNS)
    odd: dict[str, Any] = {
        "no rows": table.slice(0, 0), "no columns": pa.table({}),
        "a column twice": pa.table([table["kind"], table["kind"]], names=["kind", "kind"]),
        **{f"metadata {i}": table.replace_schema_metadata({b"pandas": about}) for i, about in
           enumerate((b"{", b'{"index_columns": 5}', b"[" * 50_000))},
    }  # fmt: skip
    for name, values in odd.items():
        yield f"parquet: {name}", {"x.parquet": parquet_of(values)}
    others = (b"", b"PAR1\xff\xff\xff\x7fPAR1", ROWS.encode(), PACKED_ROWS, npy(X), FIFO, "none",
              gzip.compress(bytes(2**24)))  # fmt: skip
    for suffix, (i, content) in itertools.product(
        (".csv", ".csv.gz", ".parquet", ".npz"), enumerate(others)
    ):
        yield f"{suffix}: other {i}", {f"x{suffix}": content}
    for name, array in ARRAYS.items():
        yield f"x of {name}", {"x.npz": npz(x=array, y=Y)}
        yield f"y of {name}", {"a/x.npy": npy(X), "a/y.npy": npy(array)}
        yield f"task of {name}", {"x.npz": npz(x=X, y=Y, task=array)}


def table_attempts(folder: Path) -> Iterator[Attempt]:
    path = next(folder.iterdir())
    if path.suffix == ".npz" or path.name == "a":
        yield lambda: example(Request(path).spec().stream.build([0]))
    else:
        yield lambda: example(Stream.from_table(path, target="kind", task="when", ignore=["hue"]))
        yield lambda: example(
            Stream.from_table(path, target="size", kind="regression", task="when")
        )
        yield lambda: Request(path).set(["stream.target=kind"]).spec().stream.build([0])


def example(stream: Stream) -> None:
    assert 1 <= len(stream.example(torch.float32)) <= 6


# ---- run folders ---------------------------------------------------------------------------------


def files_of(folder: Path) -> Files:
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@cache
def run_files() -> Files:
    """Files of a small, real run folder."""
    with tempfile.TemporaryDirectory() as name:
        few = {"training.updates": 3, "network.hidden": 4}
        dpmcl.run("digits", methods=["er"], replicas=1, tasks=2, out=name, settings=few)
        return files_of(Path(name))


JSON = ("null", "5", '"x"', "[]", "{}", "NaN", "1e999", "9" * 5_000, "[" * 50_000, '{"a":' * 50_000,
        '"\\ud800"', "{} {}", "\0", "\ufeff{}", '{"a": 1,}')  # fmt: skip
ENTRIES: tuple[Any, ...] = (
    5, None, -1, True, 1e308, 10**400, float("nan"), "x", "a\nb", "$\\x$", "\ud800", [], {}, ["x"],
    [0, 1], [None], [[], {}], {"0": 1}, ["$x$", "\x1b"], ["\ud800", "1"], ["x"] * 100_000,
)  # fmt: skip
CELLS: tuple[Any, ...] = (-9, -1, 99, 2**62, -(2**63), 0.5, float("nan"), float("inf"), "0", "a\nb",
                          "", None, [1], b"\xff")  # fmt: skip


def run_cases(root: Path) -> Iterator[tuple[str, Files]]:
    files = run_files()
    for name, data in files.items():
        for i, other in enumerate((b"", None, "nothing", Path(name).name, FIFO, b"\xff" + data)):
            yield f"{name}: other {i}", {**files, name: other}
        yield f"{name}: missing", {k: v for k, v in files.items() if k != name}
    for name, text in itertools.product(("stream.json", "work.json", "divergence.json"), JSON):
        yield f"{name}: {text:.20}", {**files, name: text.encode("utf-8", "surrogatepass")}
    stream, work = (json.loads(files[f"{name}.json"]) for name in ("stream", "work"))
    for i, value in enumerate(ENTRIES):
        for key in stream:
            yield f"stream.{key} {i}", with_json(files, "stream.json", {**stream, key: value})
        spent = dict.fromkeys(work["er"]["0"], value)
        for j, entry in enumerate((value, {"0": value}, {"0": spent}, {str(value): {}})):
            yield f"work {j} {i}", with_json(files, "work.json", {"er": entry})
    for name, text in SPECS.items():
        yield f"spec.toml: {name}", {**files, "spec.toml": text}
    table = parquet.read_table(io.BytesIO(files["errors.parquet"]))
    for column, value in itertools.product(table.column_names, CELLS):
        values = pa.array([value] * table.num_rows)
        changed = table.set_column(table.column_names.index(column), column, values)
        yield f"{column} of {value!r}", {**files, "errors.parquet": parquet_of(changed)}
    for i, other in enumerate((
        table.slice(0, 0), table.slice(0, 1), pa.concat_tables([table, table]),
        *(table.drop_columns([column]) for column in table.column_names),
        pa.table([*table.columns, table["seed"]], [*table.column_names, "seed"]),
    )):  # fmt: skip
        yield f"errors.parquet: {i}", {**files, "errors.parquet": parquet_of(other)}


def with_json(files: Files, name: str, content: Any) -> Files:
    return {**files, name: json.dumps(content).encode()}


def run_attempts(folder: Path) -> Iterator[Attempt]:
    def show_all() -> None:
        result = dpmcl.load(folder)
        for style in ("text", "json", "csv", "markdown", "latex"):
            assert isinstance(result.table(style), str)
        result.rows_by_task()
        result.plot()

    yield show_all


# ---- the tests -----------------------------------------------------------------------------------

# For each kind of file: a function of the test folder that yields invalid cases, a function that
# yields attempts to read a case, and a function that returns valid cases, to be damaged.
LOADERS: dict[str, tuple[Callable[[Path], Iterator[tuple[str, Files]]], Any, Callable[[], Any]]] = {
    "specs": (spec_cases, spec_attempts, lambda: [
        {"x.toml": presets.text(name).encode()} for name in ("digits", "sine", "mnist")]),
    "archives": (archive_cases, archive_attempts, lambda: ARCHIVES),
    "tables": (table_cases, table_attempts, lambda: TABLES),
    "runs": (run_cases, run_attempts, lambda: [run_files()]),
}  # fmt: skip


class Late(BaseException):
    """Raised after the time limit. It is no Exception, so that no loader catches it."""


def raise_late(number: int, frame: object) -> None:
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
            path.write_bytes(content)


def entries_below(root: Path) -> set[tuple[str, int, int]]:
    """Everything in the test folder except the cache, and the names beside the folder."""
    out = {(name, 0, 0) for name in os.listdir(root.parent)}  # noqa: PTH208
    for top, folders, names in os.walk(root):
        if Path(top) == root:
            folders.remove("cache")
        for name in [*folders, *names]:
            info = Path(top, name).lstat()
            out.add((str(Path(top, name)), info.st_size, info.st_mtime_ns))
    return out


def complaint(attempt: Attempt) -> str:
    """A text about what is wrong with the end of an attempt; empty if nothing is."""
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
        if len(text.splitlines()) != 1 or text != text.encode("utf-8", "replace").decode():
            return f"{type(error).__name__} that is no printable line: {text[:300]!r}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # Rust's PanicException is no Exception
        steps = traceback.extract_tb(error.__traceback__)
        frames = [s for s in steps if "dpmcl" in s.filename] or steps
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        return f"{type(error).__name__} by {where}: {' '.join(str(error).split())[:200]}"
    return ""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with all places to which a loader could write."""
    for name, variable in {"cache": "DPMCL_CACHE", "home": "HOME", "temporary": "TMPDIR"}.items():
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    handlers = {s: signal.signal(s, raise_late) for s in (signal.SIGALRM, signal.SIGPROF)}
    yield tmp_path
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module", autouse=True)
def import_first() -> None:
    """Import first what loaders import on first use, which would count as a case's time."""
    import matplotlib.figure  # noqa: F401
    import scipy.ndimage  # noqa: F401
    import sklearn.datasets  # noqa: F401

    PIL.Image.init()
    run_files()


def problem(root: Path, files: Files, attempts: Callable[[Path], Iterator[Attempt]]) -> str:
    """A text about what is wrong with the loaders of a case; empty if nothing is."""
    folder = root / "cases" / "case"
    write(folder, files)
    before = entries_below(root)
    problems = [text for attempt in attempts(folder) if (text := complaint(attempt))]
    if changed := sorted({path for path, *_ in before ^ entries_below(root)}):
        problems.append(f"changed {changed[:3]}")
    shutil.rmtree(root / "cases")
    return "; ".join(problems)


@pytest.mark.parametrize("kind", LOADERS)
def test_odd_inputs_end_in_success_or_one_line(kind, root):
    cases, attempts, _ = LOADERS[kind]
    problems = {name: problem(root, files, attempts) for name, files in cases(root)}
    assert len(problems) > 40
    wrong = [f"{name!r}: {text}" for name, text in problems.items() if text]
    assert not wrong, f"{len(wrong)} of {kind} failed:\n" + "\n".join(wrong)


@st.composite
def damaged(draw: Any, files: Files) -> Files:
    """Files, one of which has a flipped bit, an early end, a gap, junk or a repeated part."""
    name = draw(st.sampled_from([name for name, data in files.items() if data]))
    data = files[name]
    start = draw(st.integers(0, len(data) - 1) | st.integers(0, min(600, len(data)) - 1))
    length = draw(st.integers(1, 1 + len(data) // 4))
    junk = st.sampled_from(
        [b"\0", b"\xff" * 9, b'"', b"\n", b"\r", b"[[", b"\xed\xa0\x80", b"\x1b[2J"]
    )
    flipped = bytes([data[start] ^ 1 << draw(st.integers(0, 7))])
    middle = draw(st.sampled_from([flipped, b"", data[start : start + length] * 2]) | junk)
    rest = data[start + draw(st.sampled_from([0, 1, length, len(data)])) :]
    return {**files, name: data[:start] + middle + rest}


@pytest.mark.parametrize("kind", LOADERS)
@hypothesis.settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@given(data=st.data())
def test_damaged_inputs_end_in_success_or_one_line(kind, root, data):
    _, attempts, whole = LOADERS[kind]
    files = data.draw(st.sampled_from(whole()).flatmap(damaged))
    assert problem(root, files, attempts) == ""


# ---- pickles -------------------------------------------------------------------------------------


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def hostile_files(marker: Path) -> dict[str, bytes]:
    """Files of several libraries' formats that would run code if they were unpickled."""
    payload = Payload(marker)
    saved, objects = io.BytesIO(), np.array([payload] * 4, dtype=object)
    torch.save({"representation.0.weight": payload}, saved)
    kind = pa.field("x", pa.int64(), metadata={
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(payload),
    })  # fmt: skip
    extension = pa.table([pa.array([1, 2, 3, 4]), pa.array(list("aabb"))],
                         schema=pa.schema([kind, pa.field("kind", pa.string())]))  # fmt: skip
    return {
        "pickle": pickle.dumps(payload),
        "torch": saved.getvalue(),
        "npy": npy(objects),
        "npz": npz(x=objects, y=objects),
        "parquet": parquet_of(extension),
    }


def test_nothing_is_unpickled(root):
    marker = root / "ran"
    pickle.loads(hostile_files(marker)["pickle"])
    assert marker.exists()  # the payload would run
    marker.rmdir()
    for name, data in hostile_files(marker).items():
        tables: list[Files] = [{f"x{suffix}": data} for suffix in (".parquet", ".csv", ".npz")]
        tables += [{"a/x.npy": data, "a/y.npy": npy(Y)}, {"a/x.npy": npy(X), "a/y.npy": data}]
        tables += [{"x.npz": zipped([("x.npy", data), ("y.npy", npy(Y))])}]
        images: list[Files] = [{"x.zip": data}, {"x.zip": zipped([("a/0.png", data)])}]
        runs: list[Files] = [{**run_files(), part: data} for part in run_files()]
        cases = {"tables": tables, "archives": images, "runs": runs, "specs": [{"x.toml": data}]}
        for kind, files in ((kind, files) for kind, group in cases.items() for files in group):
            assert problem(root, files, LOADERS[kind][1]) == "", (name, list(files))
            assert not marker.exists(), (name, list(files))


def test_the_cache_of_images_is_not_unpickled(root):
    marker, archive = root / "ran", root / "x.zip"
    archive.write_bytes(ZIP)
    expected = Stream.from_images(archive).x.clone()
    cached = [path for path in (root / "cache").rglob("*") if path.is_file()]
    assert cached
    for data in hostile_files(marker).values():
        for path in cached:
            path.write_bytes(data)
        assert torch.equal(Stream.from_images(archive).x, expected)
        assert not marker.exists()
