"""What could change the numbers: versions, device, engine, commit."""

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch


def describe(
    method: str, seeds: tuple[int, ...], device: torch.device, engine: str
) -> dict[str, Any]:
    """An entry of environment.json for one method's newly trained seeds."""
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": method,
        "seeds": list(seeds),
        "engine": engine,
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu(),
        "threads": torch.get_num_threads(),
        "dpmcl": importlib.metadata.version("dpmcl"),
        "commit": _commit(),
        "torch": torch.__version__,
        "numpy": importlib.metadata.version("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _cpu() -> str:
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"
    )


def _commit() -> str | None:
    """The commit of the package's own checkout, "+" appended if it was changed; None elsewhere."""
    here = Path(__file__).resolve().parent
    if not (here.parents[1] / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
