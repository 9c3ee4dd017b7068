"""Meta-continual learning via dynamic programming.

    import dpmcl
    result = dpmcl.run("digits", methods=["er", "dpmcl"], replicas=5)
    print(result.table())

Every name is imported on first use, so that `import dpmcl` is fast.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpmcl import testing as testing
    from dpmcl.core import keys as keys
    from dpmcl.core import tree as tree
    from dpmcl.core.batch import Batch as Batch
    from dpmcl.core.errors import Errors as Errors
    from dpmcl.core.gradients import gradient as gradient
    from dpmcl.core.model import Model as Model
    from dpmcl.data.labelled import Labelled as Labelled
    from dpmcl.data.sampling import Draw as Draw
    from dpmcl.data.stream import Stream as Stream
    from dpmcl.data.task_info import TaskInfo as TaskInfo
    from dpmcl.discounts._discount import Discount as Discount
    from dpmcl.exceptions import DataError as DataError
    from dpmcl.exceptions import DpmclError as DpmclError
    from dpmcl.exceptions import FolderError as FolderError
    from dpmcl.exceptions import ModelError as ModelError
    from dpmcl.exceptions import SpecError as SpecError
    from dpmcl.learner.estimators import ContinualClassifier as ContinualClassifier
    from dpmcl.learner.estimators import ContinualRegressor as ContinualRegressor
    from dpmcl.learner.learner import Learner as Learner
    from dpmcl.methods._method import Method as Method
    from dpmcl.methods._method import Phase as Phase
    from dpmcl.methods._method import State as State
    from dpmcl.networks._network import NetworkSettings as NetworkSettings
    from dpmcl.optimisers._optimiser import Optimiser as Optimiser
    from dpmcl.options._option import Option as Option
    from dpmcl.streams._dynamics import DynamicsSettings as DynamicsSettings
    from dpmcl.streams._settings import LabelledSettings as LabelledSettings
    from dpmcl.streams._settings import StreamSettings as StreamSettings
    from dpmcl.study.api import load as load
    from dpmcl.study.api import run as run
    from dpmcl.study.result import Result as Result
    from dpmcl.theory.readings import Readings as Readings

_NAMES = {
    "core": ("keys", "tree"),  # modules
    "core.batch": ("Batch",),
    "core.errors": ("Errors",),
    "core.gradients": ("gradient",),
    "core.model": ("Model",),
    "data.labelled": ("Labelled",),
    "data.sampling": ("Draw",),
    "data.stream": ("Stream",),
    "data.task_info": ("TaskInfo",),
    "discounts._discount": ("Discount",),
    "exceptions": ("DataError", "DpmclError", "FolderError", "ModelError", "SpecError"),
    "learner.estimators": ("ContinualClassifier", "ContinualRegressor"),
    "learner.learner": ("Learner",),
    "methods._method": ("Method", "Phase", "State"),
    "networks._network": ("NetworkSettings",),
    "optimisers._optimiser": ("Optimiser",),
    "options._option": ("Option",),
    "streams._dynamics": ("DynamicsSettings",),
    "streams._settings": ("LabelledSettings", "StreamSettings"),
    "study.api": ("load", "run"),
    "study.result": ("Result",),
    "theory.readings": ("Readings",),
}
"""Public names, by the module that defines them."""

_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*_HOME, "testing"]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__version__":
        from importlib.metadata import version

        return version("dpmcl")
    if name == "testing":
        return importlib.import_module("dpmcl.testing")
    if name not in _HOME:
        raise AttributeError(f"module 'dpmcl' has no attribute '{name}'")
    if name in _NAMES["core"]:
        return importlib.import_module(f"dpmcl.core.{name}")
    return getattr(importlib.import_module(f"dpmcl.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
