"""The contract of a method: hyper-parameters, and the phases of a task.

A method is a frozen dataclass. Its `phases` say, for one task, how many updates there are, which
batches each draws, and what an update does: a pure function of one replica's state and those
batches. The engine maps it over replicas. A method's file reads like the paper's box.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from dpmcl.core import optim
from dpmcl.core.batch import Batch
from dpmcl.core.memory import Policy
from dpmcl.core.model import Buffers, Model, Theta
from dpmcl.core.optim import Optimiser
from dpmcl.core.settings import Positive, Rate, Settings
from dpmcl.data.sampling import Draw
from dpmcl.discounts._discount import Discount
from dpmcl.discounts._discount import build as build_discount
from dpmcl.discounts.constant import Constant


class State(NamedTuple):
    """What one replica carries from update to update.

    theta: parameters by part. optimiser: theta's optimiser state, kept for the life of the run.
    extra: whatever else a method keeps (a tree of tensors whose shapes never change).
    buffers: running statistics of the network's normalisation layers. The training loop sets and
    moves them, once an update; a method leaves them as they are.
    """

    theta: Theta
    optimiser: Any
    extra: Any
    buffers: Buffers = {}  # noqa: RUF012


Update = Callable[[State, Mapping[str, Batch], Tensor], State]
"""update(state, batches, keys) -> state, for one replica; keys is int64 (phase.keys, 2)."""


@dataclass(frozen=True)
class Phase:
    """A run of equal updates within a task.

    updates: how many. draws: the batches of each update, by name. update: the rule.
    keys: how many random keys an update needs (one for each set of dropout masks).
    steps_on: the draws by whose rows running statistics move; none for all that an update draws.
    """

    name: str
    updates: int
    draws: Mapping[str, Draw]
    update: Update
    keys: int = 1
    steps_on: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Inner updates through which an update differentiates; all they computed stays in memory.

    updates: how many. rows: of the batch that each one takes. moves: the parts of theta that they
    step. runs: the parts that they evaluate. cause: the setting that asks for it. fewer: the
    setting of `updates`. instead: the setting that does without. fresh: whether their optimiser's
    state starts anew each time.
    """

    updates: int
    rows: int
    moves: tuple[str, ...]
    runs: tuple[str, ...]
    cause: str
    fewer: str
    instead: str
    fresh: bool = True


@dataclass(frozen=True, kw_only=True)
class Method(Settings, ABC):
    """Settings that every method has; a spec's [training] sets them for all.

    optimiser: "adagrad", "sgd", "adam", or a table of a name and options. lr: learning rate.
    batch: rows a batch. updates: N, updates a task. memory: the length of D_P, in rows.
    memory_policy: "reservoir" (uniform over all rows seen) or "resample" (favours new rows).
    reset_at_task: whether the optimiser's state starts anew at each task.
    discount: gamma, what each task weighs among those seen (`dpmcl.discounts`): "constant"
    (all alike), "exponential", "power", "window", or a table of a name and options.
    discount_on: whether gamma is the "weights" of rows in a batch (a batch's cost is their weighted
    mean), or says how often a task's rows are drawn from the memory, or from all seen ("sampling").
    """

    stores: ClassVar[Literal["never", "before", "after"]] = "never"
    """When the new task's training rows are offered to D_P: before its phases, or after them."""

    restarts: ClassVar[bool] = False
    """Whether each task starts from the initial weights again."""

    optimiser: str | dict[str, Any] = "adagrad"
    lr: Rate = 1e-2
    batch: Positive = 32
    updates: Positive = 300
    memory: Positive = 20000
    memory_policy: Policy = "reservoir"
    reset_at_task: bool = False
    discount: str | dict[str, Any] = "constant"
    discount_on: Literal["weights", "sampling"] = "weights"
    rule: Optimiser = field(init=False, repr=False, compare=False, default=optim.Adagrad())
    discounting: Discount = field(init=False, repr=False, compare=False, default=Constant())

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rule", optim.build(self.optimiser, self.lr))
        object.__setattr__(self, "discounting", build_discount(self.discount))

    @classmethod
    def own_names(cls) -> list[str]:
        """The settings that this method has beyond those of every method."""
        return [key for key in cls.names() if key not in Method.names()]

    @abstractmethod
    def phases(self, model: Model, task: int) -> Sequence[Phase]:
        """The phases of task number `task` (from 0), in order."""

    def prepare(self, model: Model) -> Model:
        """The model that this method trains: the one given, or one with more parts."""
        return model

    @property
    def trains_on_validation(self) -> bool:
        """Return True if updates draw validation rows; other methods never see them, a table says.

        The run then keeps a reservoir of them, as long as D_P.
        """
        return False

    @property
    def graph(self) -> Graph | None:
        """The inner updates through which an update differentiates, or None if it does not."""
        return None

    def start(self, theta: Theta) -> State:
        """One replica's state before the first task."""
        return State(theta, self.rule.init(theta), {})

    def descend(self, state: State, grads: Theta, cost: Tensor | None = None) -> State:
        """One step of theta's optimiser, on the parts of theta that `grads` has.

        cost: what the gradient is of, as `gradient` gives it; a rule may want it (`optim.Theorem`).
        """
        theta, optimiser = self.rule.step(
            {part: state.theta[part] for part in grads},
            grads,
            {part: state.optimiser[part] for part in grads},
            cost,
        )
        return state._replace(
            theta={**state.theta, **theta}, optimiser={**state.optimiser, **optimiser}
        )
