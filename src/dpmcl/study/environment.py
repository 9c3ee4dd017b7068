"""What could change the numbers: versions, device, engine, commit."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
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
"""Of the environment, what makes PyTorch's libraries compute otherwise."""


def describe(
    method: str,
    seeds: tuple[int, ...],
    fixed: Mapping[str, int | None],
    device: torch.device,
    engine: str,
    resumed: bool,
) -> dict[str, Any]:
    """An entry of environment.json for one method's newly trained seeds: all that moves numbers.

    fixed: seeds that replicas share (of the split, the initial weights, the order), None where each
    has its own. resumed: whether it went on from
    a checkpoint. "repeats" says what the same spec gives again on the same machine: the same bytes,
    or on a GPU without PyTorch's deterministic algorithms the same to rounding.
    """
    exact = device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": method,
        "seeds": list(seeds),
        **fixed,
        "resumed": resumed,
        "repeats": "byte for byte" if exact else "to rounding",
        "engine": engine,
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu(),
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
    """What multiplies matrices, and with which shortcuts."""
    return {
        "mkl": torch.backends.mkl.is_available(),
        "mkldnn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _cpu() -> str:
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"
    )


def _commit() -> str | None:
    """The commit of the package's own checkout, "+" appended if it was changed; None elsewhere."""
    here = Path(__file__).resolve().parent
    if not (here.parents[2] / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
