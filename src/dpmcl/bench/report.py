"""The report of a benchmark: rows of numbers, their JSON, and tables to read."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dpmcl.bench import avalanche
from dpmcl.bench.measure import Timing
from dpmcl.bench.problems import Problem
from dpmcl.core.atomic import write_text
from dpmcl.exceptions import FolderError, SpecError
from dpmcl.study.environment import describe

Row = dict[str, Any]

_HINDERED = 2.0
_FACTS = ("device", "device_name", "torch", "python", "numpy", "dpmcl", "commit", "platform")


def machine(device: torch.device) -> Row:
    """Date, device, versions and commit.

    load: of the last minute, processes that wanted a core; threads: PyTorch's default now.
    """
    facts = describe("bench", (), fixed={}, device=device, engine="several", resumed=False)
    return {
        "date": facts["finished"],
        **{key: facts[key] for key in (*_FACTS, "libraries", "variables")},
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "threads": facts["threads"],
        "avalanche": avalanche.version(),
    }


def row(problem: Problem, rounds: str, timing: Timing) -> Row:
    """A contestant's facts and what was measured of it. rounds: the method it was timed beside."""
    one = timing.contestant
    return {
        "network": problem.name,
        "rounds": rounds,
        "name": one.name,
        **one.facts,
        "replicas": one.replicas,
        "threads": one.threads,
        "updates": timing.updates,
        "ms": timing.ms,
        "repeats": list(timing.repeats),
        "note": one.note(),
    }


def against_plain(rows: Sequence[Row]) -> None:
    """Adds to each row its time as a multiple of an update of the plain loops in its rounds."""
    plain = {row["kind"]: row["ms"] for row in rows}
    for row in rows:
        row["against_default"] = row["ms"] / plain["plain"]
        row["against_one_thread"] = row["ms"] / plain["plain, 1 thread"]


def verdicts(rows: Sequence[Row]) -> list[Row]:
    """By method and phase: the engine that `auto` chooses for a run, and the fastest one."""
    found = []
    for auto in (row for row in rows if row.get("auto")):
        runs = [r for r in rows if r["kind"] == "run" and r["method"] == auto["method"]]
        best = min(runs, key=lambda row: row["ms"])
        found.append(
            {
                "network": auto["network"],
                "rounds": auto["rounds"],
                "method": auto["method"],
                "replicas": auto["replicas"],
                "auto": auto["engine"],
                "auto_ms": auto["ms"],
                "fastest": best["engine"],
                "fastest_ms": best["ms"],
            }
        )
    return found


def write(report: Mapping[str, Any], path: Path) -> None:
    """Writes the report as JSON, whole or not at all."""
    write_text(path, json.dumps(report, indent=1) + "\n")


def check_place(path: Path) -> None:
    """Raises SpecError or FolderError now if the report could not be written later."""
    if path.is_dir():
        raise SpecError(f"--out must be a file, got the folder {path}; add a name, as bench.json.")
    trial = path.with_name(f".{path.name}.trial")
    try:
        write_text(trial, "")
    except FolderError as error:
        raise FolderError(str(error).replace(str(trial), str(path))) from None
    trial.unlink()


def text(report: Mapping[str, Any]) -> str:
    """The report as tables."""
    body = _study(report) if report["study"] else _networks(report)
    precision = [f"precision {report['precision']}"] if report.get("precision") else []
    return "\n".join([_heading(report["machine"]), *precision, "", *body])


def _heading(facts: Mapping[str, Any]) -> str:
    commit = f" at {facts['commit']}" if facts["commit"] else ""
    other = f"avalanche-lib {facts['avalanche']}" if facts["avalanche"] else "no avalanche-lib"
    many = f"{facts['threads']} thread{'s' * (facts['threads'] != 1)}"
    cores = "" if facts["device"] == "cpu" else f", {facts['cores']} CPU cores"  # CPUs' names say
    return (
        f"{facts['device_name']}{cores}, PyTorch's default {many}\n"
        f"dpmcl {facts['dpmcl']}{commit}, torch {facts['torch']}, python {facts['python']}, {other}"
    )


def _networks(report: Mapping[str, Any]) -> list[str]:
    lines = []
    for network in report["networks"]:
        for method in network["methods"]:
            mine = {"network": network["name"], "rounds": method}
            cells = [[network["title"], "ms", "/ plain", "/ plain, 1 thread"]]
            for row in _only(report["rows"], mine):
                values = (row["ms"], row["against_default"], row["against_one_thread"])
                note = f"  ({row['note']})" if row["note"] else ""
                cells.append([row["name"], *map(_digits, values), note])
            lines += _aligned(cells)
            lines += [_sentence(one) for one in _only(report["verdicts"], mine)]
            lines.append("")
    return [
        *lines,
        *_hindered(report),
        "ms per update and replica (dpmcl: per whole iteration), medians of "
        f"{report['repeats']} interleaved timings of about {report['seconds']:g} s.",
        "engine=...: as a run has it, on a CPU with worker processes. The others are one process.",
    ]


def _hindered(report: Mapping[str, Any]) -> list[str]:
    """Says so where more threads were slower: they wait for each other, and for a core."""
    ratios = [row["against_one_thread"] for row in report["rows"] if row["kind"] == "plain"]
    if max(ratios) < _HINDERED:
        return []
    return [
        f"The plain loop took up to {_digits(max(ratios))} times as long on "
        f"{report['machine']['threads']} threads as on one: threads wait for each other, and long "
        f"where other processes want a core (load before: {report['machine']['load']})."
    ]


def _only(rows: Sequence[Row], like: Row) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in like.items())]


def _sentence(one: Row) -> str:
    return (
        f"{one['method']}, {one['replicas']} replicas: auto is {one['auto']}, "
        f"{_digits(one['auto_ms'])} ms; fastest here: {one['fastest']}, "
        f"{_digits(one['fastest_ms'])} ms."
    )


def _study(report: Mapping[str, Any]) -> list[str]:
    cells: dict[tuple[str, str], float] = {
        (cell["method"], cell["network"]): cell["seconds"] for cell in report["cells"]
    }
    methods, networks = (list(dict.fromkeys(key[k] for key in cells)) for k in (0, 1))
    table = [["table 1, estimated", *networks, "all"]]
    for method in methods:
        own = [cells[method, network] for network in networks]
        table.append([method, *map(duration, [*own, sum(own)])])
    columns = [sum(cells[method, network] for method in methods) for network in networks]
    table.append(["all", *map(duration, [*columns, sum(columns)])])
    (of_study,) = {cell["replicas"] for cell in report["cells"]}
    measured = report["replicas"][-1]
    scaled = f", scaled from {measured}" * (measured != of_study)
    chosen = ", ".join(f"{one['name']} {one['engine']}" for one in report["networks"])
    return [
        *_aligned(table),
        "",
        f"For {of_study} replicas{scaled}: what updates and evaluation take, without start-up, "
        "reading data and checkpoints.",
        f"Engines, as auto chooses: {chosen}.",
    ]


def duration(seconds: float) -> str:
    """Seconds as a short text.

    >>> duration(0.5), duration(300), duration(20000)
    ('0.5 s', '5.0 min', '5.6 h')
    """
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _digits(value: float) -> str:
    """Three digits or more.

    >>> _digits(0.01234), _digits(1.5), _digits(1234.5)
    ('0.0123', '1.50', '1234')
    """
    places = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.4f}" if value < 0.1 else f"{value:.{places}f}"


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, the first column to the left; what goes beyond the heading is a note."""
    count = len(cells[0])
    width = [max(len(line[k]) for line in cells) for k in range(count)]
    lines = []
    for line in cells:
        numbers = (line[k].rjust(width[k]) for k in range(1, count))
        lines.append("  ".join([line[0].ljust(width[0]), *numbers, *line[count:]]).rstrip())
    return lines
