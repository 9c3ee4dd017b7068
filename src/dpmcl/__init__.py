"""Meta-continual learning via dynamic programming.

    import dpmcl
    result = dpmcl.run("digits", methods=["er", "dpmcl"], replicas=5)
    print(result.table())

Everything here is loaded on first use, so that `import dpmcl` costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpmcl.api import load, run
    from dpmcl.batch import Batch
    from dpmcl.dynamics import DynamicsSettings
    from dpmcl.evaluation import Errors
    from dpmcl.exceptions import DataError, DpmclError, FolderError, ModelError, SpecError
    from dpmcl.gradients import gradient
    from dpmcl.labelled import Labelled
    from dpmcl.method import Method, Phase, State
    from dpmcl.model import Model
    from dpmcl.monitor import Readings
    from dpmcl.network import NetworkSettings
    from dpmcl.sampling import Draw
    from dpmcl.stream import Stream
    from dpmcl.stream_settings import LabelledSettings, StreamSettings
    from dpmcl.study import Result
    from dpmcl.theory.discount import Discount

_HOME = {
    "Batch": "batch",
    "DataError": "exceptions",
    "Discount": "theory.discount",
    "DpmclError": "exceptions",
    "Draw": "sampling",
    "DynamicsSettings": "dynamics",
    "Errors": "evaluation",
    "FolderError": "exceptions",
    "Labelled": "labelled",
    "LabelledSettings": "stream_settings",
    "Method": "method",
    "Model": "model",
    "ModelError": "exceptions",
    "NetworkSettings": "network",
    "Phase": "method",
    "Readings": "monitor",
    "Result": "study",
    "SpecError": "exceptions",
    "State": "method",
    "Stream": "stream",
    "StreamSettings": "stream_settings",
    "gradient": "gradients",
    "load": "api",
    "run": "api",
}

__all__ = [
    "Batch",
    "DataError",
    "Discount",
    "DpmclError",
    "Draw",
    "DynamicsSettings",
    "Errors",
    "FolderError",
    "Labelled",
    "LabelledSettings",
    "Method",
    "Model",
    "ModelError",
    "NetworkSettings",
    "Phase",
    "Readings",
    "Result",
    "SpecError",
    "State",
    "Stream",
    "StreamSettings",
    "gradient",
    "load",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(f"dpmcl.{_HOME[name]}"), name)
    raise AttributeError(f"module 'dpmcl' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
