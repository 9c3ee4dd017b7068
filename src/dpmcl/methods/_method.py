"""The contract of a method: hyper-parameters, and the phases of a task.

A method is a frozen dataclass. Its `phases` define, for one task, the number of updates, the
batches that each update draws, and the update itself: a pure function of one replica's state and
those batches. The engine maps it over replicas. A method's file reads like the paper's box.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from numbers import Integral
from types import FunctionType
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, get_args

import torch
from torch import Tensor

from dpmcl import plugins
from dpmcl.core import memory
from dpmcl.core.batch import Batch
from dpmcl.core.cost import RowCost, check_cost
from dpmcl.core.gradients import gradient
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
from dpmcl.exceptions import ModelError, SpecError, shown, unknown
from dpmcl.optimisers._optimiser import Optimiser
from dpmcl.optimisers._optimiser import build as build_optimiser
from dpmcl.optimisers._schedule import Schedule, build_schedule
from dpmcl.optimisers.adagrad import Adagrad
from dpmcl.options._option import Option

T = TypeVar("T")


class State(NamedTuple):
    """State that one replica carries from update to update.

    Args:
        theta: Parameters by part.
        optimiser: theta's optimiser state, kept from task to task.
        extra: Further state of the method, a tree of tensors whose shapes never change.
        common: Update count of a schedule, and initial parameters for penalties. Set by the
            training loop, not by a method.
        buffers: Running statistics of the network's normalisation layers. Set by the training loop,
            once an update, not by a method.
    """

    theta: Theta
    optimiser: Any
    extra: Any
    common: Mapping[str, Any] = {}
    buffers: Buffers = {}  # noqa: RUF012


Stores = Literal["never", "before", "after"]

Batches = Mapping[str, Batch]
"""The batches of one update of one replica, by the names of their draws."""

Update = Callable[[State, Batches, Tensor], State]
"""update(state, batches, keys) -> state, for one replica. keys: int64 (phase.keys, 2)."""


@dataclass(frozen=True)
class Phase:
    """A sequence of updates of the same kind within a task.

    Args:
        name: Name of the phase, for error messages.
        updates: Number of updates.
        draws: Batches that each update draws, by name.
        update: Function that makes one update.
        keys: Number of random keys that an update needs, one for each set of dropout masks.
        remember: Name of a draw of the new task's training rows. Its rows are offered to D_P after
            each update, so that the next update can draw them; a row may be offered more than once.
            None offers no rows.
        steps_on: Names of the draws whose rows update the running statistics; empty for all draws
            of an update.
        trains: Whether the updates train the network. Updates that only measure it, or train a copy
            that looks ahead, leave the running statistics as they are, and a learning-rate schedule
            does not count them.
    """

    name: str
    updates: int
    draws: Mapping[str, Draw]
    update: Update
    keys: int = 1
    remember: str | None = None
    steps_on: Sequence[str] = ()
    trains: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.updates, Integral) or self.updates < 0:
            raise SpecError(
                f"Phase '{self.name}' makes a whole number of updates, got {shown(self.updates)}."
            )
        unknown_draws = [name for name in self.steps_on if name not in self.draws]
        if unknown_draws:
            raise SpecError(
                f"steps_on must name draws of phase '{self.name}', got {shown(unknown_draws[0])}; "
                f"its draws are: {', '.join(self.draws) or 'none'}."
            )
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
    """Inner updates through which an update differentiates; their whole graph stays in memory.

    Args:
        moves: Parts of theta that the inner updates change.
        cause: Setting that needs the graph, for messages.
        instead: Setting that needs no graph, for messages.
        fresh: Whether each sequence of inner updates starts from a new optimiser state.
    """

    moves: tuple[str, ...]
    cause: str
    instead: str
    fresh: bool = True


@dataclass(frozen=True, kw_only=True)
class Method(Settings, ABC):
    """Base class of methods. Its fields are settings of every method, set in a spec's [training].

    Args:
        optimiser: "adagrad", "sgd", "adam", "theorem", the name of another optimiser, or a table of
            a name and options, such as weight_decay.
        lr: Learning rate.
        schedule: Learning-rate schedule: "constant", "cosine", or a table of a name and options, as
            in { name = "step", every = 100, by = 0.1, over = "run" } (`optimisers._schedule`). It
            applies to the steps of theta; copies of theta that look ahead use a constant lr.
        batch: Number of rows in a batch.
        updates: N, the number of updates at each task.
        passes: Number of passes over a task's training rows, in place of `updates`: N is then
            passes * ceil(rows / batch), and the new task's rows are drawn without replacement.
        memory: Capacity of D_P, in rows. A row that enters twice counts twice.
        memory_policy: "reservoir" (uniform over all rows seen) or "resample" (favours new rows).
        reset_at_task: Whether each task starts from a new optimiser state.
        discount: gamma, the weight of each task among those seen (`dpmcl.discounts`):
            "constant" (equal weights), "exponential", "power", "window", or a table of a name and
            options.
        discount_on: What gamma changes: the "weights" of rows in a batch, whose cost is then their
            weighted mean, or the "sampling", how often a task's rows are drawn from the memory or
            from all rows seen.
        cost: Cost of a row, in place of cross entropy or squared error: "huber",
            "label_smoothing", the name of another cost, or in Python a function of outputs and
            targets that returns one number for each row (`dpmcl.costs`). The weights of rows and
            the mean over rows are unchanged.
        options: Penalties and perturbations of learning (`dpmcl.Option`), each a name or a table
            of a name and settings.
        augment: Random changes of training images, drawn anew for each batch: "shift", "flip",
            "cutout", each a name or a table of a name and settings (`data.augmentation`). Images
            are unchanged in the memory and its notes, in readings and in evaluation.
    """

    stores: ClassVar[Stores] = "never"
    """When the new task's training rows are offered to D_P: before or after the task's phases."""

    restarts: ClassVar[bool] = False
    """Whether each task starts from the initial weights."""

    counts: ClassVar[tuple[str, ...]] = ("updates",)
    """Names of the settings that are numbers of updates; a budget scales all of them."""

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
        if self.cost == "none":  # as `to_table` writes None
            object.__setattr__(self, "cost", None)
        if self.stores not in get_args(Stores):
            hint = f"There are: {', '.join(get_args(Stores))}."
            raise unknown("time to store rows, stores =", self.stores, get_args(Stores), hint)
        object.__setattr__(self, "rule", build_optimiser(self.optimiser, self.lr))
        object.__setattr__(self, "discounting", plugins.from_setting("discount", self.discount))
        object.__setattr__(self, "scheduling", build_schedule(self.schedule))
        object.__setattr__(self, "costing", _cost_of(self.cost))
        options = tuple(plugins.from_setting("option", setting) for setting in self.options)
        object.__setattr__(self, "optional", options)
        augmenting = tuple(build_augmentation(setting) for setting in self.augment)
        object.__setattr__(self, "augmenting", augmenting)

    # For a method to override

    @abstractmethod
    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        """Return the phases of a task, in order.

        Args:
            model: The model that `prepare` returned.
            task: The task that is about to be trained on.
        """

    def prepare(self, model: Model) -> Model:
        """Return the model that this method trains: `model` itself, or a model with more parts.

        Args:
            model: The network and its cost.
        """
        return model

    def remark(self, tasks: Sequence[TaskInfo]) -> str | None:
        """Return a line for a run to log once before it begins; by default None, which logs none.

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
        """Return one replica's state after a task's phases; by default `state`, unchanged.

        Args:
            state: One replica's state.
            model: The model that `prepare` returned.
            task: The task that has ended.
        """
        return state

    def notes(self, model: Model, state: State, batch: Batch) -> Notes:
        """Return notes, tensors that D_P stores with the rows offered to it; none by default.

        A batch drawn from the memory has them in `batch.notes`. The notes of rows that enter
        during a task are computed with the state before the update that drew the rows.

        Args:
            model: The model that `prepare` returned.
            state: One replica's state.
            batch: n rows.

        Returns:
            Tensors by name, each (n, ...). The notes of a row must depend on that row alone.
        """
        return {}

    def policy(self, memory_: Memory, offer: Offer, key: Tensor) -> Memory:
        """Return one replica's D_P after rows were offered to it; by default by `memory_policy`.

        An override may read the notes of the rows held and offered, rank these rows, and let
        `dpmcl.core.memory.keep` build the new memory. It is mapped over replicas by both engines.

        Args:
            memory_: D_P before the offer, with its notes.
            offer: The rows offered, with their notes.
            key: Random key, int64 (2,).
        """
        return memory.add(memory_, offer, key, self.memory_policy)

    def evaluation_phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        """Return phases that run on a copy of the state before an evaluation; none by default.

        The copy, for example a network trained anew on the memory, is discarded afterwards.

        Args:
            model: The model that `prepare` returned.
            task: The newest task.
        """
        return ()

    def evaluated(self, state: State) -> State:
        """Return the state whose model is evaluated; by default `state`.

        Args:
            state: One replica's state.
        """
        return state

    @property
    def trains_on_validation(self) -> bool:
        """Return True if updates draw validation rows, which other methods never train on.

        The run then keeps a reservoir of validation rows with the capacity of D_P, and tables
        mark the method.
        """
        return False

    @property
    def graph(self) -> Graph | None:
        """Return the inner updates through which an update differentiates; None if it does not."""
        return None

    # Helpers for the updates of a method

    def updates_of(self, task: TaskInfo, block: int = 1) -> int:
        """Return N, the number of updates at a task, from `updates` or `passes`.

        Args:
            task: The task.
            block: Number of batches of new rows that an update draws.
        """
        if self.passes is None:
            return self.updates
        return self.passes * -(-task.rows // (self.batch * block))

    def new_rows(self, block: int | None = None) -> Draw:
        """Return the draw of a batch, or a block of batches, of the new task's training rows.

        Args:
            block: Number of batches in a block; None for one batch.
        """
        return Draw("new", self.batch, block=block, replace=self.passes is None)

    def step_on(self, model: Model, draw: str) -> Update:
        """Return an update that makes one step of theta on the cost of a batch.

        Args:
            model: The model that `prepare` returned.
            draw: Name of the batch among the draws of the phase.
        """

        def update(state: State, batches: Batches, key: Tensor) -> State:
            grads, J = gradient(model.cost)(state.theta, batches[draw], key[0])
            return self.descend(state, grads, J)

        return update

    def descend(self, state: State, grads: Theta, cost: Tensor | None = None) -> State:
        """Return the state after one step of theta's optimiser.

        Args:
            state: One replica's state.
            grads: Gradients of the parts of theta that change, by part.
            cost: The cost that was differentiated, as `gradient` returns it. Some optimisers need
                it.
        """
        before = {part: state.theta[part] for part in grads}
        for option in self._penalties:
            start = {part: state.common["start"][part] for part in grads}
            grads = option.gradient(before, grads, start)
        optimiser = {part: state.optimiser[part] for part in grads}
        theta, optimiser = self.rule.step(before, grads, optimiser, cost)
        if self.scheduling is not None:
            common = state.common
            factor = self.scheduling.factor(common["update"], common["updates"])
            theta = tree_map(lambda a, b: torch.lerp(a, b, factor.to(a.dtype)), before, theta)
        return state._replace(
            theta={**state.theta, **theta}, optimiser={**state.optimiser, **optimiser}
        )

    # Called by a run

    def modelled(self, model: Model, outputs: int) -> Model:
        """Return the model that a run trains, with the method's parts and cost.

        Args:
            model: The network and its cost.
            outputs: Width of the network's output.

        Raises:
            ModelError: The cost cannot be used.
        """
        what = f"`prepare` of '{type(self).__name__}'"
        if self.costing is None:
            return returned(self.prepare(model), Model, what)
        width = outputs if model.classes is None else model.classes
        like = torch.empty(0, dtype=model.dtype, device=model.device)
        check_cost(self.costing, name_of_cost(self.cost), kind=model.kind, width=width, like=like)
        return returned(self.prepare(replace(model, row_cost=self.costing)), Model, what)

    def to_table(self) -> dict[str, Any]:
        table = super().to_table()
        return table if self.cost is None else {**table, "cost": name_of_cost(self.cost)}

    def scaled(self, factor: Fraction) -> Self | None:
        """Return the method with its numbers of updates multiplied by a factor and rounded down.

        Args:
            factor: Factor of the settings in `counts`.

        Returns:
            The method; None if one of the numbers would be below 1.
        """
        before = {name: getattr(self, name) for name in self.counts}
        after = {name: math.floor(factor * n) for name, n in before.items() if n is not None}
        return replace(self, **after) if min(after.values()) >= 1 else None

    def planned(self, model: Model, task: TaskInfo) -> tuple[Phase, ...]:
        """Return the phases of a task, with updates that a run can make.

        They keep what is not the method's to set, and with a schedule they count themselves.

        Args:
            model: The model that `prepare` returned.
            task: The task.
        """
        return self._counted(self.phases(model, task))

    def planned_evaluation(self, model: Model, task: TaskInfo) -> tuple[Phase, ...]:
        """Return the phases before an evaluation, with updates as in `planned`.

        Args:
            model: The model that `prepare` returned.
            task: The newest task.
        """
        return self._counted(self.evaluation_phases(model, task))

    def _counted(self, phases: Sequence[Phase]) -> tuple[Phase, ...]:
        """Return phases whose updates are `_completed`."""
        if not isinstance(phases, Sequence) or not all(isinstance(p, Phase) for p in phases):
            raise SpecError(
                f"The phases of '{type(self).__name__}' must be a list of dpmcl.Phase, got "
                f"{shown(phases)}; return [Phase(...)], or [] for none."
            )
        name, counts = type(self).__name__, self.scheduling is not None
        return tuple(
            replace(phase, update=_completed(phase.update, name, counts=counts and phase.trains))
            for phase in phases
        )

    def common(self, theta: Theta) -> dict[str, Any]:
        """Return `State.common` of one replica: the state of the settings that every method has.

        Args:
            theta: Initial parameters by part.
        """
        common: dict[str, Any] = {}
        if self.scheduling is not None:
            zero = torch.zeros((), dtype=torch.int64, device=leaves(theta)[0].device)
            common |= {"update": zero, "updates": zero.clone()}
        if self._penalties:
            common["start"] = theta
        return common

    @property
    def _penalties(self) -> tuple[Option, ...]:
        """Return the options that change the gradient; only they need the initial weights."""
        plain = Option.gradient
        return tuple(option for option in self.optional if type(option).gradient is not plain)

    @property
    def changes_at_task(self) -> bool:
        """Return True if `begin_task` may change a state."""
        return any((self.restarts, self.reset_at_task, self.scheduling, self.optional))

    def begin_task(self, state: State, start: State, updates: int, keys: Tensor) -> State:
        """Return one replica's state at the start of a task.

        Args:
            state: State after the last task.
            start: State before the first task, from `start`.
            updates: Number of updates that train in the task, or in the run if the schedule is over
                the run.
            keys: A random key for each option, int64 (options, 2).
        """
        common = dict(state.common)
        if self.restarts:
            state = start
        elif self.reset_at_task:
            state = state._replace(optimiser=self.rule.init(state.theta))
        if self.scheduling is not None:
            anew = self.scheduling.over == "task"
            common |= _schedule(common, updates, anew=anew)
        for option, key in zip(self.optional, keys, strict=True):
            state = state._replace(theta=option.begin_task(state.theta, key))
        return state._replace(common=common)

    def begin_evaluation(self, state: State, updates: int) -> State:
        """Return one replica's state at the start of the phases before an evaluation.

        Args:
            state: State after a task, of a method with a schedule.
            updates: Number of updates that train in these phases.
        """
        common = {**state.common, **_schedule(state.common, updates, anew=True)}
        return state._replace(common=common)


def name_of_cost(cost: Any) -> str:
    """Return the name of a cost, as a spec writes it.

    Args:
        cost: A name, or a function.
    """
    if isinstance(cost, str):
        return cost
    named = cost if hasattr(cost, "__qualname__") else type(cost)
    return f"{named.__module__}:{named.__qualname__}"


def _cost_of(cost: Any) -> RowCost | None:
    """Return the cost for the setting `cost`: a function, or the name of one."""
    if not isinstance(cost, str):
        row_cost: RowCost | None = cost
        return row_cost
    function = plugins.find("cost", cost)
    if not isinstance(function, FunctionType):  # a run compares its source
        raise SpecError(f"cost '{cost}' must be a function of outputs and targets.")
    return function


def _schedule(common: Mapping[str, Any], updates: int, *, anew: bool) -> dict[str, Tensor]:
    """Return the entries of `State.common` for a schedule over `updates`, from 0 if it is new."""
    update, total = common["update"], common["updates"]
    update = torch.zeros_like(update) if anew else update
    return {"update": update, "updates": torch.full_like(total, updates)}


def returned(value: Any, kind: type[T], what: str) -> T:
    """Return what the code of a method returned, if it is of the right type.

    Args:
        value: What was returned.
        kind: The type that it must have.
        what: Name of the code and of its method, for the message.

    Raises:
        ModelError: The value is of another type.
    """
    if not isinstance(value, kind):
        raise ModelError(f"{what} must return a {kind.__name__}, got {shown(value)}; return one.")
    return value


def _completed(update: Update, method: str, *, counts: bool) -> Update:
    """Return an update that keeps what is not the method's to set: `common` and `buffers`.

    Args:
        update: The method's update, which may return a State without them.
        method: Name of the method.
        counts: Whether it adds one to the update count of the schedule.
    """

    def completed(state: State, batches: Batches, key: Tensor) -> State:
        after = returned(update(state, batches, key), State, f"The update of '{method}'")
        common = state.common
        if counts:
            common = {**common, "update": common["update"] + 1}
        return after._replace(common=common, buffers=state.buffers)

    return completed
