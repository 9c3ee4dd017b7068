"""The contract of a method: hyper-parameters, and the phases of a task.

A method is a frozen dataclass. Its `phases` say, for one task, how many updates there are, which
batches each draws, and what an update does: a pure function of one replica's state and those
batches. The engine maps it over replicas. A method's file reads like the paper's box.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from dpmcl import plugins
from dpmcl.core import memory
from dpmcl.core.batch import Batch
from dpmcl.core.cost import RowCost, check_cost, made_up
from dpmcl.core.memory import Memory, Notes, Offer, Policy
from dpmcl.core.model import Buffers, Model, Theta
from dpmcl.core.settings import Positive, Rate, Settings
from dpmcl.core.tree import leaves, tree_map
from dpmcl.data.augmentation import Augmentation
from dpmcl.data.augmentation import build as build_augmentation
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.discounts._discount import Discount
from dpmcl.discounts.constant import Constant
from dpmcl.exceptions import SpecError
from dpmcl.optimisers._optimiser import Optimiser
from dpmcl.optimisers._optimiser import build as build_optimiser
from dpmcl.optimisers._schedule import Schedule, build_schedule
from dpmcl.optimisers.adagrad import Adagrad
from dpmcl.options._option import Option


class State(NamedTuple):
    """State that one replica carries from update to update.

    Args:
        theta: Parameters by part.
        optimiser: theta's optimiser state, kept for the life of the run.
        extra: Whatever else a method keeps (a tree of tensors whose shapes never change).
        common: What settings of every method keep: a schedule's clock, an option's start. The
            training loop sets it; a method leaves it as it is.
        buffers: Running statistics of the network's normalisation layers. The training loop sets
            and moves them, once an update; a method leaves them as they are.
    """

    theta: Theta
    optimiser: Any
    extra: Any
    common: Mapping[str, Any] = {}
    buffers: Buffers = {}  # noqa: RUF012


Update = Callable[[State, Mapping[str, Batch], Tensor], State]
"""update(state, batches, keys) -> state, for one replica; keys is int64 (phase.keys, 2)."""


@dataclass(frozen=True)
class Phase:
    """A run of equal updates within a task.

    Args:
        name: What readings and errors call it.
        updates: How many.
        draws: The batches of each update, by name.
        update: The rule.
        keys: How many random keys an update needs (one for each set of dropout masks).
        remember: A draw of the new task's training rows that are offered to D_P after each update,
            so that the next can draw them; None for none. The same row may be offered again.
        steps_on: Draws by whose rows running statistics move; none for all that an update draws.
    """

    name: str
    updates: int
    draws: Mapping[str, Draw]
    update: Update
    keys: int = 1
    remember: str | None = None
    steps_on: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.remember is None:
            return
        draw = self.draws.get(self.remember)
        if draw is None or (draw.source, draw.split, draw.moved) != ("new", "train", None):
            raise SpecError(
                f"remember must name a draw of the new task's training rows, got "
                f"'{self.remember}' in phase '{self.name}', whose draws are: "
                f"{', '.join(self.draws) or 'none'}."
            )


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Inner updates through which an update differentiates; all they computed stays in memory.

    Args:
        moves: Parts of theta that they step.
        cause: The setting that asks for it.
        instead: The setting that does without.
        fresh: Whether their optimiser's state starts anew each time.
    """

    moves: tuple[str, ...]
    cause: str
    instead: str
    fresh: bool = True


@dataclass(frozen=True, kw_only=True)
class Method(Settings, ABC):
    """Settings that every method has; a spec's [training] sets them for all.

    Args:
        optimiser: "adagrad", "sgd", "adam", "theorem", another's name, or a table of a name and
            options (weight_decay among them).
        lr: Learning rate.
        schedule: How lr changes: "constant", "cosine", or a table of a name and options, as in
            { name = "step", every = 100, by = 0.1, over = "run" } (`optimisers._schedule`). It is
            that of theta's steps; copies of theta that look ahead step by lr as it is.
        batch: Rows a batch.
        updates: N, updates a task.
        passes: Whole passes over a task's training rows in place of `updates`: N is then
            passes * ceil(rows / batch), and the new task's rows are drawn without replacement.
        memory: Length of D_P, in rows.
        memory_policy: "reservoir" (uniform over all rows seen) or "resample" (favours new rows).
        reset_at_task: Whether the optimiser's state starts anew at each task.
        discount: gamma, what each task weighs among those seen (`dpmcl.discounts`):
            "constant" (all alike), "exponential", "power", "window", or a table of a name and
            options.
        discount_on: Whether gamma is the "weights" of rows in a batch (a batch's cost is their
            weighted mean), or says how often a task's rows are drawn from the memory, or from all
            seen ("sampling").
        cost: The cost of a row in place of cross entropy or squared error: "huber",
            "label_smoothing", another's name, or in Python a function of outputs and targets that
            returns one number a row (`dpmcl.costs`). Weights and means over rows stay the run's.
        options: Penalties and perturbations of learning (`dpmcl.Option`), each a name or a table
            of a name and settings.
        augment: Random changes of training images, anew in each draw: "shift", "flip", "cutout",
            each a name or a table of a name and settings (`data.augmentation`). Rows are kept,
            noted, watched and evaluated as they are.
    """

    stores: ClassVar[Literal["never", "before", "after"]] = "never"
    """When the new task's training rows are offered to D_P: before its phases, or after them."""

    restarts: ClassVar[bool] = False
    """Whether each task starts from the initial weights again."""

    counts: ClassVar[tuple[str, ...]] = ("updates",)
    """Settings that are numbers of updates, all of which a budget scales."""

    optimiser: str | dict[str, Any] = "adagrad"
    lr: Rate = 1e-2
    schedule: str | dict[str, Any] = "constant"
    batch: Positive = 32
    updates: Positive = 300
    passes: Positive | None = None
    memory: Positive = 20000
    memory_policy: Policy = "reservoir"
    reset_at_task: bool = False
    discount: str | dict[str, Any] = "constant"
    discount_on: Literal["weights", "sampling"] = "weights"
    cost: str | Callable[..., Any] | None = None
    options: tuple[str | dict[str, Any], ...] = ()
    augment: tuple[str | dict[str, Any], ...] = ()
    rule: Optimiser = field(init=False, repr=False, compare=False, default=Adagrad())
    discounting: Discount = field(init=False, repr=False, compare=False, default=Constant())
    scheduling: Schedule | None = field(init=False, repr=False, compare=False, default=None)
    optional: tuple[Option, ...] = field(init=False, repr=False, compare=False, default=())
    costing: RowCost | None = field(init=False, repr=False, compare=False, default=None)
    augmenting: tuple[Augmentation, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rule", build_optimiser(self.optimiser, self.lr))
        object.__setattr__(self, "discounting", plugins.from_setting("discount", self.discount))
        object.__setattr__(self, "scheduling", build_schedule(self.schedule))
        object.__setattr__(self, "costing", _cost_of(self.cost))
        options = tuple(plugins.from_setting("option", setting) for setting in self.options)
        object.__setattr__(self, "optional", options)
        augmenting = tuple(build_augmentation(setting) for setting in self.augment)
        object.__setattr__(self, "augmenting", augmenting)

    # What a method says

    @abstractmethod
    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        """Return the phases of a task, in order.

        Args:
            model: As `prepare` returned it.
            task: The task that is about to be trained on.
        """

    def prepare(self, model: Model) -> Model:
        """Return the model that this method trains: the one given, or one with more parts.

        Args:
            model: The network and its cost.
        """
        return model

    def remark(self, tasks: Sequence[TaskInfo]) -> str | None:
        """Return what a run says once before it begins; nothing by default.

        Args:
            tasks: All tasks of the stream.
        """
        return None

    def start(self, theta: Theta, task: TaskInfo) -> State:
        """Return one replica's state before the first task.

        Args:
            theta: Initial parameters by part.
            task: The first task.
        """
        return State(theta, self.rule.init(theta), {})

    def end_of_task(self, state: State, model: Model, task: TaskInfo) -> State:
        """Return one replica's state once a task's phases are over; the same by default.

        Args:
            state: One replica's state.
            model: As `prepare` returned it.
            task: The task that has ended.
        """
        return state

    def notes(self, model: Model, state: State, batch: Batch) -> Notes:
        """Return what is kept with rows when they are offered to D_P; nothing by default.

        Draws from the memory bring it back in `batch.notes`. Rows that enter during a task are
        noted with the state from before the update that drew them.

        Args:
            model: As `prepare` returned it.
            state: One replica's state.
            batch: n rows.

        Returns:
            Tensors by name, each (n, ...); a row's own depend on that row alone.
        """
        return {}

    def policy(self, memory_: Memory, offer: Offer, key: Tensor) -> Memory:
        """Return one replica's D_P after rows were offered to it; `memory_policy` by default.

        A method's own may read the notes of both (`memory.keep` does the rest).

        Args:
            memory_: D_P before, with its notes.
            offer: The rows and their notes.
            key: Random key, int64 (2,).
        """
        return memory.add(memory_, offer, key, self.memory_policy)

    def evaluation_phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        """Return phases that run on a copy of the state before evaluation; none by default.

        The copy is thrown away after it: a network trained anew on the memory, say.

        Args:
            model: As `prepare` returned it.
            task: The newest task.
        """
        return ()

    def evaluated(self, state: State) -> State:
        """Return the state whose model is evaluated; by default the state itself.

        Args:
            state: One replica's state.
        """
        return state

    @property
    def trains_on_validation(self) -> bool:
        """Return True if updates draw validation rows; other methods never see them, a table says.

        The run then keeps a reservoir of them, as long as D_P.
        """
        return False

    @property
    def graph(self) -> Graph | None:
        """Return the inner updates through which an update differentiates; None if it does not."""
        return None

    # What a method may use

    def updates_of(self, task: TaskInfo, block: int = 1) -> int:
        """Return N of a task: `updates`, or those of `passes` over its training rows.

        Args:
            task: The task.
            block: Batches of new rows that an update draws.
        """
        if self.passes is None:
            return self.updates
        return self.passes * -(-task.rows // (self.batch * block))

    def new_rows(self, block: int | None = None) -> Draw:
        """Return the draw of a batch, or a block of batches, of the new task's training rows.

        Args:
            block: Batches of a block; None for one batch.
        """
        return Draw("new", self.batch, block=block, replace=self.passes is None)

    def descend(self, state: State, grads: Theta, cost: Tensor | None = None) -> State:
        """Return the state after one step of theta's optimiser.

        Args:
            state: One replica's state.
            grads: The gradient, by the parts of theta that step.
            cost: What the gradient is of, as `gradient` returns it; a rule may want it.
        """
        before = {part: state.theta[part] for part in grads}
        for option in self.optional:
            start = {part: state.common["start"][part] for part in grads}
            grads = option.gradient(before, grads, start)
        optimiser = {part: state.optimiser[part] for part in grads}
        theta, optimiser = self.rule.step(before, grads, optimiser, cost)
        if self.scheduling is not None:
            clock = state.common
            factor = self.scheduling.factor(clock["update"], clock["updates"])
            theta = tree_map(lambda a, b: torch.lerp(a, b, factor.to(a.dtype)), before, theta)
        return state._replace(
            theta={**state.theta, **theta}, optimiser={**state.optimiser, **optimiser}
        )

    # What a run calls

    def modelled(self, model: Model, outputs: int) -> Model:
        """Return the model that a run trains: with the method's parts and cost.

        Args:
            model: The network and its cost.
            outputs: Width of the network's output.

        Raises:
            ModelError: The cost cannot be used.
        """
        if self.costing is None:
            return self.prepare(model)
        some = made_up(model.kind, outputs if model.classes is None else model.classes, model.dtype)
        check_cost(self.costing, name_of_cost(self.cost), *(t.to(model.device) for t in some))
        return self.prepare(replace(model, row_cost=self.costing))

    def to_table(self) -> dict[str, Any]:
        table = super().to_table()
        return table if self.cost is None else {**table, "cost": name_of_cost(self.cost)}

    def scaled(self, factor: float) -> Self | None:
        """Return the method with so many times its updates, rounded down.

        Args:
            factor: What `counts` are multiplied by.

        Returns:
            The method; None where a count would be below one.
        """
        before = {name: getattr(self, name) for name in self.counts}
        after = {name: math.floor(factor * n) for name, n in before.items() if n is not None}
        return replace(self, **after) if min(after.values()) >= 1 else None

    def planned(self, model: Model, task: TaskInfo) -> tuple[Phase, ...]:
        """Return the phases of a task as a run makes them: under a schedule they count updates.

        Args:
            model: As `prepare` returned it.
            task: The task.
        """
        phases = tuple(self.phases(model, task))
        if self.scheduling is None:
            return phases
        return tuple(replace(phase, update=_counted(phase.update)) for phase in phases)

    def common(self, theta: Theta) -> dict[str, Any]:
        """Return what settings of every method keep beside one replica's state.

        Args:
            theta: Initial parameters by part.
        """
        common: dict[str, Any] = {}
        if self.scheduling is not None:
            zero = torch.zeros((), dtype=torch.int64, device=leaves(theta)[0].device)
            common |= {"update": zero, "updates": zero.clone()}
        if self.optional:
            common["start"] = theta
        return common

    @property
    def changes_at_task(self) -> bool:
        """Return True if `begin_task` may change a state."""
        return any((self.restarts, self.reset_at_task, self.scheduling, self.optional))

    def begin_task(self, state: State, start: State, updates: int, keys: Tensor) -> State:
        """Return one replica's state with which a task begins.

        Args:
            state: As the last task left it.
            start: As `start` made it.
            updates: All updates of the task, or of the run where the schedule is over the run.
            keys: A random key for each option, int64 (options, 2).
        """
        common = dict(state.common)
        if self.restarts:
            state = start
        elif self.reset_at_task:
            state = state._replace(optimiser=self.rule.init(state.theta))
        if self.scheduling is not None:
            if self.scheduling.over == "task":
                common["update"] = torch.zeros_like(common["update"])
            common["updates"] = torch.full_like(common["updates"], updates)
        for option, key in zip(self.optional, keys, strict=True):
            state = state._replace(theta=option.begin_task(state.theta, key))
        return state._replace(common=common)


def name_of_cost(cost: Any) -> str:
    """Return the name of a cost, as a spec writes it.

    Args:
        cost: A name, or a function.
    """
    if isinstance(cost, str):
        return cost
    like = cost if hasattr(cost, "__qualname__") else type(cost)
    return f"{like.__module__}:{like.__qualname__}"


def _cost_of(cost: Any) -> RowCost | None:
    """Return the cost that a setting names."""
    if not isinstance(cost, str):
        row_cost: RowCost | None = cost
        return row_cost
    named = plugins.find("cost", cost)
    if not isinstance(named, FunctionType):  # whose source a run can compare
        raise SpecError(f"cost '{cost}' must be a function of outputs and targets.")
    return named


def _counted(update: Update) -> Update:
    """Return an update that moves the schedule's clock by one."""

    def counted(state: State, batches: Mapping[str, Batch], key: Tensor) -> State:
        after = update(state, batches, key)
        common = {**state.common, "update": state.common["update"] + 1}
        return after._replace(common=common)

    return counted
