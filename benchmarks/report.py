"""The report of a benchmark: a description of the machine, rows of results, and tables."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Timing

Row = dict[str, Any]


def machine(device: torch.device) -> Row:
    """Return date, device, versions, commit, and the mean load of the last minute (processes)."""
    cpu = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "threads": torch.get_num_threads(),
        "dpmcl": importlib.metadata.version("dpmcl"),
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def commit() -> str | None:
    """Return the commit of this checkout, with "-dirty" if it was changed; None without git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def rows(network: str, method: str, timings: Sequence[Timing]) -> list[Row]:
    """Return a row for each contestant, with its time as a multiple of the plain loops' times."""
    plain = {timing.contestant.facts.get("kind"): timing.ms for timing in timings}
    return [
        {
            "network": network,
            "method": method,
            "name": timing.contestant.name,
            **timing.contestant.facts,
            "replicas": timing.contestant.replicas,
            "threads": timing.contestant.threads,
            "updates": timing.updates,
            "ms": timing.ms,
            "repeats": list(timing.repeats),
            "against_default": timing.ms / plain["plain"],
            "against_one_thread": timing.ms / plain["plain, 1 thread"],
        }
        for timing in timings
    ]


def text(title: str, rows: Sequence[Row]) -> str:
    """Return the rows of one network and method as a plain-text table."""
    lines = [f"{title:<36} {'ms':>8} {'/ plain':>10} {'/ plain, 1 thread':>18}"]
    for row in rows:
        ms, default, single = row["ms"], row["against_default"], row["against_one_thread"]
        lines.append(f"{row['name']:<36} {ms:>8.3g} {default:>10.3g} {single:>18.3g}")
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Return seconds as a short text.

    >>> duration(0.5), duration(300), duration(20000)
    ('0.5 s', '5.0 min', '5.6 h')
    """
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
