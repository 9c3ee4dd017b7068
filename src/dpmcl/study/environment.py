"""Describe the environment of a run: versions, device, engine, commit."""

import functools
import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "MKL_CBWR",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
)
"""Environment variables that change the results of PyTorch's libraries."""


def describe(
    method: str,
    seeds: tuple[int, ...],
    *,
    device: torch.device,
    engine: str,
    resumed: bool,
) -> dict[str, Any]:
    """Return an entry of environment.json, with everything that could change the results.

    "repeats" tells how exactly the same spec repeats on the same machine: "byte for byte", or "to
    rounding" on a GPU without PyTorch's deterministic algorithms. It is also "to rounding" for
    seeds that are added to those of another version, and for jobs that resumed from a checkpoint
    of another engine, device or version; the caller sets that.

    Args:
        method: Name of the method.
        seeds: Seeds that were trained.
        device: Device that trained them.
        engine: Engine that trained them.
        resumed: Whether the job resumed from a checkpoint.
    """
    instructions = torch.backends.cpu.get_cpu_capability()
    cpu = f"{platform.machine()}, {os.cpu_count()} cores, {instructions}"
    exact = device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": method,
        "seeds": list(seeds),
        "resumed": resumed,
        "repeats": "byte for byte" if exact else "to rounding",
        "engine": engine,
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "threads": torch.get_num_threads(),
        "libraries": _libraries(),
        "variables": {k: v for k, v in sorted(os.environ.items()) if k in _VARIABLES},
        "dpmcl": importlib.metadata.version("dpmcl"),
        "commit": _commit(),
        "torch": torch.__version__,
        "numpy": importlib.metadata.version("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _libraries() -> dict[str, Any]:
    """Return the libraries that multiply matrices, and PyTorch's settings of their precision."""
    gpu = torch.cuda.is_available()
    return {
        "mkldnn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
        "cuda": torch.version.cuda if gpu else None,
        "cudnn": torch.backends.cudnn.version() if gpu else None,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


@functools.cache
def _commit() -> str | None:
    """Return the commit of the package's checkout, "+" added if it has changes; None elsewhere."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--abbrev=40"]
    try:
        done = subprocess.run([*command, "--dirty=+"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
