"""Test the tests: do they fail if the learning core is wrong?

Draws a fixed sample of mutants of the learning core, with more from longer functions. A mutant
changes a sign, a comparison, a bound or a number, or leaves out a statement. Runs the tests that
call the changed function, and reports how many mutants die, that is, make a test fail. Before this
it runs all tests once to find out which test calls which function (`cover.jsonl`). Both steps
resume where they were stopped. Several processes can share the sample: --part 0/2 and --part 1/2;
start the second after the first has written the cover.

    python -m benchmarks.mutants --work FOLDER [--root TREE] [--count 200] [--minutes 60]
"""

import argparse
import ast
import contextlib
import copy
import cProfile
import importlib
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

CORE = """
    methods/*.py core/memory.py core/gradients.py optimisers/*.py engine/*.py training/*.py
    metrics/*.py results/store.py results/*_file.py options/*.py study/executor.py study/worker.py
"""  # relative to src/dpmcl
NOT_CORE = {"training/spec.py"}
HEAVY = """
    torch torch._dynamo torch.fx.experimental.proxy_tensor torchvision numpy scipy.stats pandas
    pyarrow.parquet sklearn.datasets hypothesis pydantic typer rich loky safetensors.torch
    matplotlib.pyplot
"""  # imported once, before all tests; nothing of dpmcl, which the mutants change
MEMORY = 16 * 2**30  # bytes of address space, so that a mutant cannot fill the machine
LONGEST = 120  # seconds; tests that take longer without a mutant are not used
SKIP = (  # tests of other code; finding out what they call would take long
    r"tests/(data|streams|networks)/|test_(arrays|atomic|bench|class_folders|datasets|discount|docs|"
    r"dynamics|figures|fuzz|hjb|identity|image_sources|image_streams|images|imports|keys|labelled|"
    r"labels|lock|mnist|model|names|network_check|own_data|paper|precision|python_arguments|"
    r"quotations|readme|same_data|sampling|scaling|scenario|settings|sheet|signals|sine|sources|"
    r"spec|splits|stability|stream|table|tables|terms|theory_figures|torchvision_sets|tree|view|"
    r"weighing)\b"
)
WORKERS = "study/test_executor.py"
FIRST = 3  # number of test files in the first stage
BUDGET = 90  # seconds that the tests of a stage may take together without a mutant


def both_ways(pairs: str) -> dict[str, str]:
    """Return a table that maps each name of a pair to the other."""
    names = [pair.split() for pair in pairs.split(",")]
    return {a: b for both in names for a, b in (both, reversed(both))}


OPERATORS = both_ways(
    "Add Sub, Mult Div, BitAnd BitOr, Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, And Or, "
    "Continue Break, LShift RShift"
) | {"FloorDiv": "Mult", "Mod": "Add", "Pow": "Mult", "MatMult": "Mult", "BitXor": "BitAnd"}
NAMES = both_ways("min max, any all, sum mean, zeros ones, zeros_like ones_like, floor ceil")
BOUNDS = both_ways("min max")
SILENT = {"warn", "warning", "info", "debug", "unknown"}  # calls whose arguments are messages
PASSED_OVER = (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)


class Mutant(NamedTuple):
    """A change of one file; `function` is "file::qualified name", `text` the changed file."""

    function: str
    line: int
    what: str
    text: str


def walk(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield (qualified name of the function, node) for all code below `node`."""
    for field, value in ast.iter_fields(node):
        if field in ("decorator_list", "annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, PASSED_OVER):
                continue
            inside = name
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                if child.name in ("__repr__", "__str__"):
                    continue
                local = ".<locals>" if isinstance(node, ast.FunctionDef) else ""
                inside = f"{name}{local}.{child.name}" if name else child.name
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            else:
                yield name, child
            message = isinstance(child, ast.Raise) or (
                isinstance(child, ast.Call)
                and getattr(child.func, "attr", getattr(child.func, "id", "")) in SILENT
            )
            if not message:
                yield from walk(child, inside)


def changed(node: Any, **fields: Any) -> Any:
    """Return a copy of a node with other fields."""
    new = copy.copy(node)
    for field, value in fields.items():
        setattr(new, field, value)
    return new


def is_text(node: ast.AST) -> bool:
    """Return whether an expression is a string literal or an f-string."""
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def variants(node: Any) -> Iterator[Any]:
    """Yield the replacements of a node."""

    def opposite(op: ast.AST) -> Any:
        return getattr(ast, OPERATORS[type(op).__name__])()

    match node:
        case ast.BinOp() if is_text(node.left) or is_text(node.right):
            pass
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op):
            yield changed(node, op=opposite(op))
        case ast.Compare(ops=[op, *rest]):
            yield changed(node, ops=[opposite(op), *rest])
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.IfExp() | ast.If() if not isinstance(node.test, ast.Compare | ast.UnaryOp):
            yield changed(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.Continue() | ast.Break():
            yield opposite(node)
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)
        case ast.Attribute(attr=attr) if attr in NAMES:
            yield changed(node, attr=NAMES[attr])
        case ast.Name(id=name) if name in NAMES:
            yield changed(node, id=NAMES[name])
        case ast.Call(func=ast.Attribute(attr="where"), args=[condition, yes, no]):
            yield changed(node, args=[condition, no, yes])
        case ast.Call():
            for k, word in enumerate(node.keywords):
                if word.arg in BOUNDS or not is_text(word.value):
                    words = list(node.keywords)
                    new = changed(word, arg=BOUNDS[word.arg]) if word.arg in BOUNDS else None
                    words[k : k + 1] = [new] if new else []
                    yield changed(node, keywords=words)
        case ast.Raise() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
    if isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    ):
        yield ast.Pass()


def mutants_of(path: Path, source: Path) -> Iterator[tuple[str, set[int], list[Mutant]]]:
    """Yield (function, its lines, its mutants) for the functions of a file."""
    raw, file = path.read_bytes(), path.relative_to(source).as_posix()
    start = [0]
    for line in raw.splitlines(keepends=True):
        start.append(start[-1] + len(line))
    functions: dict[str, tuple[set[int], list[Mutant]]] = {}
    for name, node in walk(ast.parse(raw), ""):
        lines, mutants = functions.setdefault(f"{file}::{name}", (set(), []))
        if not isinstance(node, ast.stmt | ast.expr):
            continue
        lines.add(node.lineno)
        span = slice(
            start[node.lineno - 1] + node.col_offset,
            start[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0),
        )
        old = raw[span].decode()
        if not name and isinstance(getattr(node, "op", None), ast.BitOr):
            continue  # an alias of types
        for variant in variants(node):
            new = ast.unparse(ast.fix_missing_locations(variant))
            if isinstance(node, ast.expr):
                new = f"({new})"
            else:
                new = new.replace("\n", "\n" + " " * node.col_offset)
            mutated = (raw[: span.start] + new.encode() + raw[span.stop :]).decode()
            what = f"{old.splitlines()[0]}  ->  {new.splitlines()[0]}"
            with contextlib.suppress(SyntaxError):
                compile(mutated, file, "exec")
                mutants.append(Mutant(f"{file}::{name}", node.lineno, what, mutated))
    for function, (lines, mutants) in functions.items():
        yield function, lines, mutants


def sample(source: Path, count: int, seed: int) -> list[Mutant]:
    """Draw mutants of the core in random order, each function in proportion to its lines."""
    files = sorted({path for pattern in CORE.split() for path in source.glob(pattern)})
    files = [path for path in files if path.relative_to(source).as_posix() not in NOT_CORE]
    rows = [row for path in files for row in mutants_of(path, source) if row[2]]
    print(f"{sum(len(row[2]) for row in rows)} mutants of {len(files)} files")
    rng, drawn = random.Random(seed), list[Mutant]()
    while len(drawn) < count and any(row[2] for row in rows):
        _, _, left = rng.choices(rows, [len(lines) for _, lines, _ in rows])[0]
        if left:
            drawn.append(left.pop(rng.randrange(len(left))))
    return drawn


class Cover:
    """Pytest plugin that records which functions of the package each passing test calls."""

    def __init__(self, source: Path, out: Path) -> None:
        self.source, self.out = f"{source}/", out
        self.seen: set[str] = set()
        self.profile = cProfile.Profile(subcalls=False, builtins=False)
        self.fixtures: dict[Any, set[str]] = {}
        self.passed, self.seconds = True, 0.0

    def collect(self) -> set[str]:
        """Return the functions that were called since the last call of this method."""
        self.profile.disable()
        codes = [one.code for one in self.profile.getstats() if hasattr(one.code, "co_qualname")]
        self.profile.clear()
        return {
            f"{code.co_filename[len(self.source) :]}::{code.co_qualname}"
            for code in codes
            if code.co_filename.startswith(self.source)
        }

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        outer, self.seen = self.seen | self.collect(), set()
        self.profile.enable()
        try:
            return (yield)
        finally:
            self.fixtures[fixturedef] = self.seen | self.collect()
            self.seen = outer | self.fixtures[fixturedef]
            self.profile.enable()

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.passed &= report.passed
        self.seconds += report.duration

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        self.seen, self.passed, self.seconds = set(), True, 0.0
        signal.alarm(LONGEST)
        self.profile.enable()
        try:
            return (yield)
        finally:
            signal.alarm(0)
            self.seen |= self.collect()
            shared = [d for defs in item._fixtureinfo.name2fixturedefs.values() for d in defs]
            calls = self.seen.union(*(self.fixtures.get(d, set()) for d in shared))
            if self.passed and calls:
                row = {"test": item.nodeid, "seconds": self.seconds, "calls": sorted(calls)}
                with self.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


class Selection:
    """Pytest plugin that runs the tests of a list in its order, and records the current test."""

    def __init__(self, tests: list[dict[str, Any]], out: Path) -> None:
        self.rank = {test["test"]: k for k, test in enumerate(tests)}
        self.limit = {test["test"]: int(100 + 10 * test["seconds"]) for test in tests}
        self.out = out

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        listed = [item for item in items if item.nodeid in self.rank]
        items[:] = sorted(listed, key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_setup(self, item: Any) -> None:
        self.out.write_text(item.nodeid)
        signal.alarm(self.limit[item.nodeid])  # ends the process: a mutant that hangs is dead


def run_forked(root: Path, arguments: Iterable[str], plugin: Any, setup: Callable[[], Any]) -> int:
    """Run pytest in a child of this process, which has already made the slow imports."""
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(root)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
        sys.dont_write_bytecode = False  # so that tests are compiled once
        sys.path[:0] = [str(root / "src"), str(root / "tests")]
        setup()
        code = 3
        with contextlib.suppress(BaseException):
            code = int(pytest.main(["-q", "-p", "no:cacheprovider", *arguments], [plugin]))
        os._exit(code)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # its workers
    return os.waitstatus_to_exitcode(status)


def cover(root: Path, out: Path, skip: str) -> list[dict[str, Any]]:
    """Return a row for each passing test: its name, its seconds and the functions that it calls."""

    def raises(*_: Any) -> None:
        raise TimeoutError

    done = out.with_suffix(".files")
    covered = set(done.read_text().split()) if done.exists() else set()
    for path in sorted(root.glob("tests/**/test_*.py")):
        file = path.relative_to(root).as_posix()
        if file in covered or re.search(skip, file.removesuffix(".py")):
            continue
        began = time.monotonic()
        plugin = Cover(root / "src/dpmcl", out)
        code = run_forked(root, [file], plugin, lambda: signal.signal(signal.SIGALRM, raises))
        print(f"{file}: pytest ends with {code} after {time.monotonic() - began:.0f} s", flush=True)
        with done.open("a") as names:
            names.write(file + "\n")
    rows = {row["test"]: row for row in map(json.loads, out.read_text().splitlines())}
    return list(rows.values())


def plan(tests: list[dict[str, Any]], function: str) -> list[list[dict[str, Any]]]:
    """Return the tests that call a function, in two stages: the most specific files, then the rest.

    The most specific files are those whose tests call the fewest functions. For code outside
    functions, and for a function that no test was seen to call, all tests that call into its file
    are used, and for a file that only worker processes use, the tests of these. Tests that do not
    fit into the budget of a stage are left out, so the share of mutants that die is a lower bound.
    """
    file = function.partition("::")[0] + "::"
    chosen = [test for test in tests if function in test["calls"]]
    chosen = chosen or [t for t in tests if any(call.startswith(file) for call in t["calls"])]
    chosen = chosen or [test for test in tests if WORKERS in test["test"]]
    files: dict[str, list[dict[str, Any]]] = {}
    for test in sorted(chosen, key=lambda test: test["seconds"]):
        files.setdefault(test["test"].partition("::")[0], []).append(test)
    ranked = sorted(files.values(), key=lambda own: sum(len(t["calls"]) for t in own) / len(own))
    stages = [ranked[:FIRST], sorted(ranked[FIRST:], key=len)]
    return [affordable([test for file in stage for test in file]) for stage in stages if stage]


def affordable(tests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fastest tests that together fit into the budget of a stage, in their order."""
    quickest = sorted(tests, key=lambda test: test["seconds"])
    ends = itertools.accumulate(test["seconds"] for test in quickest)
    chosen = {t["test"] for t, end in zip(quickest, ends, strict=True) if end <= BUDGET}
    return [test for test in tests if test["test"] in chosen]


def fate(root: Path, mutant: Mutant, tests: list[dict[str, Any]], note: Path) -> str:
    """Return the test at which a mutant dies, or "" if it survives."""
    path = root / "src/dpmcl" / mutant.function.partition("::")[0]
    before = path.read_text("utf-8")
    path.write_text(mutant.text, "utf-8")
    try:
        for stage in plan(tests, mutant.function):
            files = dict.fromkeys(test["test"].partition("::")[0] for test in stage)
            note.write_text("collection")
            code = run_forked(root, ["-x", *files], Selection(stage, note), lambda: None)
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                return f"{note.read_text()} ({code})"
    finally:
        path.write_text(before, "utf-8")
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--work", type=Path, required=True, help="folder of the results")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="0/1", help="part of the sample, if the cover exists")
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="start no mutant after this time"
    )
    parser.add_argument("--skip", default=SKIP, help="pattern of tests that are not used")
    args = parser.parse_args()
    began = time.monotonic()
    args.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "tree"
        shutil.copytree(
            args.root, root, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__")
        )
        os.environ.update(PYTHONPATH=f"{root / 'src'}:{root / 'tests'}", OMP_NUM_THREADS="1")
        compiled = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(root)]
        subprocess.run([sys.executable, *compiled], check=True)
        for module in HEAVY.split():
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        drawn = sample(root / "src/dpmcl", args.count, args.seed)
        tests = cover(root, args.work / "cover.jsonl", args.skip)
        part, parts = map(int, args.part.split("/"))
        drawn = drawn[part::parts]
        results = args.work / (f"mutants-{part}.jsonl" if parts > 1 else "mutants.jsonl")
        lines = results.read_text().splitlines() if results.exists() else []
        died = sum(bool(json.loads(line)["died"]) for line in lines)
        for k, mutant in enumerate(drawn[len(lines) :], len(lines) + 1):
            if time.monotonic() - began > 60 * args.minutes:
                break
            start, test = time.monotonic(), fate(root, mutant, tests, Path(folder) / "note")
            died += bool(test)
            row = {"died": test, **mutant._asdict(), "seconds": round(time.monotonic() - start, 1)}
            del row["text"]
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                f"{died} of {k} died; {mutant.function}:{mutant.line}: {mutant.what}: "
                f"{test or 'SURVIVES'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
