"""Meta-continual learning via dynamic programming.

    import dpmcl
    result = dpmcl.run("digits", methods=["er", "dpmcl"], replicas=5)
    print(result.table())

Everything here is loaded on first use, so that `import dpmcl` costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpmcl.core import keys as keys
    from dpmcl.core import tree as tree
    from dpmcl.core.batch import Batch
    from dpmcl.core.errors import Errors
    from dpmcl.core.gradients import gradient
    from dpmcl.core.model import Model
    from dpmcl.data.labelled import Labelled
    from dpmcl.data.sampling import Draw
    from dpmcl.data.stream import Stream
    from dpmcl.data.task_info import TaskInfo
    from dpmcl.discounts._discount import Discount
    from dpmcl.exceptions import DataError, DpmclError, FolderError, ModelError, SpecError
    from dpmcl.methods._method import Method, Phase, State
    from dpmcl.networks._network import NetworkSettings
    from dpmcl.optimisers._optimiser import Optimiser
    from dpmcl.options._option import Option
    from dpmcl.streams._dynamics import DynamicsSettings
    from dpmcl.streams._settings import LabelledSettings, StreamSettings
    from dpmcl.study.api import load, run
    from dpmcl.study.study import Result
    from dpmcl.theory.readings import Readings

_HOME = {
    "Batch": "core.batch",
    "DataError": "exceptions",
    "Discount": "discounts._discount",
    "DpmclError": "exceptions",
    "Draw": "data.sampling",
    "DynamicsSettings": "streams._dynamics",
    "Errors": "core.errors",
    "FolderError": "exceptions",
    "Labelled": "data.labelled",
    "LabelledSettings": "streams._settings",
    "Method": "methods._method",
    "Model": "core.model",
    "ModelError": "exceptions",
    "NetworkSettings": "networks._network",
    "Optimiser": "optimisers._optimiser",
    "Option": "options._option",
    "Phase": "methods._method",
    "Readings": "theory.readings",
    "Result": "study.study",
    "SpecError": "exceptions",
    "State": "methods._method",
    "Stream": "data.stream",
    "StreamSettings": "streams._settings",
    "TaskInfo": "data.task_info",
    "gradient": "core.gradients",
    "load": "study.api",
    "run": "study.api",
}

_MODULES = ("keys", "tree")
"""Modules of `dpmcl.core` that methods use."""

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
    "Optimiser",
    "Option",
    "Phase",
    "Readings",
    "Result",
    "SpecError",
    "State",
    "Stream",
    "StreamSettings",
    "TaskInfo",
    "gradient",
    "keys",
    "load",
    "run",
    "tree",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"dpmcl.core.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(f"dpmcl.{_HOME[name]}"), name)
    raise AttributeError(f"module 'dpmcl' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
