"""The contract of an option: a change of learning that any method can have."""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dpmcl import plugins
from dpmcl.core.model import Theta
from dpmcl.core.settings import Settings
from dpmcl.exceptions import SpecError, shown


@dataclass(frozen=True, kw_only=True)
class Option(Settings, ABC):
    """A penalty on the parameters, or a perturbation of them; pure functions of one replica."""

    def gradient(self, theta: Theta, grads: Theta, start: Theta) -> Theta:
        """Return the gradient to descend on, a tree of the form of `grads`.

        Args:
            theta: The parts of the parameters that step.
            grads: The method's gradient by these parts.
            start: The same parts with which the run started.
        """
        return grads

    def begin_task(self, theta: Theta, key: Tensor) -> Theta:
        """Return the parameters with which a task begins.

        Args:
            theta: Parameters as the last task left them, or the initial ones.
            key: Random key of this seed, task and option, int64 (2,).
        """
        return theta


def build_options(settings: Sequence[str | Mapping[str, Any]]) -> tuple[Option, ...]:
    """Return the options of a setting, in order.

    Args:
        settings: Names, or tables of a name and its settings.

    Raises:
        SpecError: An option has no name, nobody has that name, or a setting breaks a rule.
    """
    options = []
    for setting in settings:
        table = {"name": setting} if isinstance(setting, str) else dict(setting)
        name = table.pop("name", None)
        if not isinstance(name, str):
            raise SpecError(f"An option needs a name, as in 'my_package:L2', got {shown(setting)}.")
        options.append(plugins.find("option", name).from_table(table, f"option '{name}'"))
    return tuple(options)
