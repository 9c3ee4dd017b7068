"""Scenarios: rules by which labelled rows become a stream of tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import annotated_types as at
import pydantic
import torch
from torch import Tensor

from dpmcl.core import keys
from dpmcl.core.settings import NonNegative, Positive, Settings, Share
from dpmcl.data.labelled import Labelled
from dpmcl.data.labels import sorted_names
from dpmcl.data.view import View, permuted, rotated
from dpmcl.exceptions import DataError, SpecError

Name = Annotated[str, pydantic.BeforeValidator(str)]
"""A label as text. A spec may contain it in its original type, as in order = [7, 3]."""

Scenario = Literal[
    "class-incremental", "task-incremental", "domain-incremental", "instance-incremental", "given"
]


@dataclass(frozen=True, kw_only=True)
class ScenarioSettings(Settings):
    """Settings that decide how rows become tasks.

    Attributes:
        scenario: One of

            - "class-incremental": each task has `classes_per_task` new classes, and a prediction
              is one of all classes;
            - "task-incremental": the same tasks (or those of the data), but the task is known at
              test time, so a prediction is one of the classes of the row's task. Training is the
              same;
            - "domain-incremental": every task has all rows, and transforms the inputs in its own
              way (`domain`);
            - "instance-incremental": every task has new rows of the same classes; the rows are cut
              into `tasks` parts of equal size;
            - "given": the tasks of the data, from a task column or a task array;
            - None: "given" if the data have tasks, else "class-incremental".
        tasks: Number of tasks to keep from the start of the stream, None for all. For the domain-
            and instance-incremental scenarios, the number of tasks to make.
        classes_per_task: Number of classes in each task: one number for all, or one per task.
        order: Order of the classes; of the tasks in scenario "given", of the rows in scenario
            "instance-incremental". "alphabetical" (numbers by value; a data set that declares an
            order of its classes, as Fashion-MNIST or a ClassLabel column does, keeps it),
            "appearance" (by first row in the data), "shuffled" by `order_seed`, or a list of all
            names. All replicas share it.
        order_seed: Seed of the shuffled order, and of permuted domains.
        domain: "permuted" (a fixed permutation of the input's values in each task but the first) or
            "rotated" (images rotated by 0 to `rotation` degrees, in equal steps). None for
            "permuted".
        rotation: Angle of the last task in degrees; None for 180.
        blur: Share of each task's training and validation rows that arrives in its neighbours,
            half in the previous and half in the next one. Test rows stay.
        background: Number of classes, the last ones of the order, that are in no task. Methods that
            are meta-trained before the stream (reading = "original") draw their rows.
    """

    scenario: Scenario | None = None
    tasks: Positive | None = None
    classes_per_task: Positive | tuple[Positive, ...] = 1
    order: Literal["alphabetical", "appearance", "shuffled"] | tuple[Name, ...] = "alphabetical"
    order_seed: NonNegative = 0
    domain: Literal["permuted", "rotated"] | None = None
    rotation: Annotated[float, at.Gt(0), at.Le(360)] | None = None
    blur: Share = 0.0
    background: NonNegative = 0


class Plan(NamedTuple):
    """Assignment of rows to tasks, the same for all replicas; fields have the names of `Stream`'s.

    Attributes:
        row: Pool rows in order of task, int64 (1, n).
        task: Task of each entry of `row`, int64 (1, n).
        tasks: Names of the tasks.
        scenario: Description of the tasks in one line.
        view: Transformation of the inputs in each task, or None.
        within: Classes among which a prediction is chosen in each task, bool (tasks, classes); None
            for all.
        repeats: Whether a row belongs to several tasks.
        background: Pool rows of the background classes, sorted by class, int64 (m,); None if there
            are none.
    """

    row: Tensor
    task: Tensor
    tasks: tuple[str, ...]
    scenario: str
    view: View | None = None
    within: Tensor | None = None
    repeats: bool = False
    background: Tensor | None = None


def plan(data: Labelled, settings: ScenarioSettings) -> Plan:
    """Assign the rows of labelled data to the tasks of a scenario.

    Args:
        data: Labelled rows.
        settings: Settings of the scenario.

    Returns:
        The rows of each task.

    Raises:
        SpecError: The scenario does not suit the data, or does not use a setting that is set.
        DataError: A class has fewer rows than there are tasks, in scenario "instance-incremental".
    """
    scenario = settings.scenario or ("class-incremental" if data.task is None else "given")
    make_plan = {
        "given": _plan_given,
        "domain-incremental": _plan_domains,
        "instance-incremental": _plan_instances,
        "task-incremental": _plan_classes if data.task is None else _plan_given,
    }.get(scenario, _plan_classes)
    _refuse_unread(settings, scenario, by_class=make_plan is _plan_classes)
    result = make_plan(data, settings)
    if scenario == "task-incremental":
        result = result._replace(within=_task_classes(data, result))
    blur = f", {settings.blur:.0%} of the training rows arrive in neighbours" * bool(settings.blur)
    return result._replace(scenario=f"{scenario}, {result.scenario}{blur}")


def check_task_column(task: str | None, scenario: Scenario | None) -> None:
    """Check that a task column is not combined with a scenario that makes the tasks itself.

    Args:
        task: Name of the column, or None.
        scenario: Scenario in the settings, or None.

    Raises:
        SpecError: Both define the tasks.
    """
    if task is not None and scenario not in (None, "given", "task-incremental"):
        raise SpecError(
            f"task = '{task}' and scenario = '{scenario}' both say what the tasks are; "
            "leave one out."
        )


def _refuse_unread(settings: ScenarioSettings, scenario: str, by_class: bool) -> None:
    """Raise SpecError if a setting is set that the scenario does not use."""
    default = ScenarioSettings()
    domains = scenario == "domain-incremental"
    shuffled = settings.order == "shuffled"
    readable = {
        "classes_per_task": by_class,
        "order": not domains,
        "order_seed": shuffled or (domains and settings.domain != "rotated"),
        "domain": domains,
        "rotation": domains and settings.domain == "rotated",
        "background": by_class,
    }
    for name, is_read in readable.items():
        value = getattr(settings, name)
        if not is_read and value != getattr(default, name):
            raise SpecError(
                f"{name} = {value!r} has no meaning here (scenario '{scenario}', order "
                f"{settings.order!r}, domain {settings.domain!r}); leave it out."
            )


def _plan_classes(data: Labelled, settings: ScenarioSettings) -> Plan:
    """Make each task of some classes (in sections 4 and B.1 of the paper, of one class)."""
    if data.kind == "regression":
        raise SpecError(
            f"'{data.name}' is regression and has no classes to make tasks of; name a task column, "
            "set stream.scenario = 'instance-incremental' and stream.tasks, or, if the targets are "
            "classes, stream.kind = 'classification'."
        )
    order = _order(data.classes, data.y, settings, "class")
    kept = len(order) - settings.background
    if kept < 1:
        raise SpecError(
            f"background must leave classes for tasks, got {settings.background} of the "
            f"{len(order)} of '{data.name}'."
        )
    order, background = order[:kept], order[kept:]
    sizes = _sizes(len(order), settings.classes_per_task)
    tasks = _limit(len(sizes), settings, data.name)
    groups = [order[sum(sizes[:k]) : sum(sizes[: k + 1])] for k in range(tasks)]
    task_of = torch.full((len(data.classes),), tasks)
    for k, group in enumerate(groups):
        task_of[torch.tensor(group)] = k
    names = tuple(_task_name([data.classes[c] for c in group]) for group in groups)
    sizes_text = f"{sizes[0]}" if len(set(sizes)) == 1 else ", ".join(map(str, sizes[:tasks]))
    plural = "" if sizes_text == "1" else "es"
    description = f"{sizes_text} class{plural} a task, order {_order_name(settings, data.classes)}"
    result = _sorted_plan(task_of[data.y], names, description)
    if not background:
        return result
    rows = torch.argsort(data.y, stable=True)
    rows = rows[torch.isin(data.y[rows], torch.tensor(background))]
    description = f"{description}, {len(background)} background classes"
    return result._replace(scenario=description, background=rows)


def _plan_given(data: Labelled, settings: ScenarioSettings) -> Plan:
    """Use the tasks of the data."""
    if data.task is None:
        raise SpecError(
            f"scenario 'given' needs data that bring tasks, and '{data.name}' brings none; name a "
            "task column or array, or choose another scenario."
        )
    order = _order(data.tasks, data.task, settings, "task")
    tasks = _limit(len(order), settings, data.name)
    number = torch.full((len(order),), tasks)
    number[torch.tensor(order[:tasks])] = torch.arange(tasks)
    names = tuple(data.tasks[k] for k in order[:tasks])
    description = f"the data's own tasks, order {_order_name(settings, data.tasks)}"
    return _sorted_plan(number[data.task], names, description)


def _plan_instances(data: Labelled, settings: ScenarioSettings) -> Plan:
    """Cut the rows of each class into equal parts, one per task."""
    if not isinstance(settings.order, str):
        raise SpecError("order must be a word where tasks are parts of rows, got a list.")
    tasks = _task_count(settings)
    n = len(data.x)
    row = torch.arange(n)
    if settings.order == "shuffled":
        row = keys.permutation(keys.derive(settings.order_seed, keys.Purpose.ORDER), n)
    label = data.y if data.kind == "classification" else torch.zeros(n, dtype=torch.int64)
    count = torch.bincount(label)
    if int(count.min()) < tasks:
        smallest = int(count.argmin())
        which = f"class '{data.classes[smallest]}' of '{data.name}'" if data.classes else data.name
        raise DataError(
            f"Every task needs rows of every class; {which} has {int(count[smallest])} for {tasks} "
            "tasks. Take fewer tasks."
        )
    row = row[torch.argsort(label[row], stable=True)]
    rank = torch.arange(n) - (count.cumsum(0) - count)[label[row]]
    task = torch.empty(n, dtype=torch.int64)
    task[row] = rank * tasks // count[label[row]]
    order = "shuffled" if settings.order == "shuffled" else "as they come"
    names = tuple(f"part {k}" for k in range(tasks))
    return _sorted_plan(task, names, f"new rows of the same classes, {order}")


def _plan_domains(data: Labelled, settings: ScenarioSettings) -> Plan:
    """Make tasks that all have all rows, each with its own transformation of the inputs."""
    tasks = _task_count(settings)
    shape, n = data.x.shape[1:], len(data.x)
    if settings.domain != "rotated":
        view = permuted(shape, tasks, settings.order_seed)
        names = tuple(f"permutation {k}" if k else "as stored" for k in range(tasks))
        description = f"permuted inputs, seed {settings.order_seed}"
    else:
        last = settings.rotation or 180.0
        degrees = [k * last / max(1, tasks - 1) for k in range(tasks)]
        view = rotated(shape, degrees)
        names = tuple(f"{angle:.4g} degrees" for angle in degrees)
        description = f"rotated by 0 to {degrees[-1]:.4g} degrees"
    task = torch.arange(tasks).repeat_interleave(n)
    row = torch.arange(n).repeat(tasks)
    return Plan(row[None], task[None], names, description, view, repeats=True)


def _sorted_plan(task: Tensor, names: tuple[str, ...], description: str) -> Plan:
    """Return a plan with the rows in order of task.

    task: Task of every pool row, int64 (rows,); len(names) for rows that are in no task.
    """
    row = torch.argsort(task, stable=True)
    row = row[task[row] < len(names)]
    return Plan(row[None], task[row][None], names, description)


def _task_classes(data: Labelled, result: Plan) -> Tensor:
    """Return the classes of each task, bool (tasks, classes). Each must have at least two."""
    if data.kind == "regression":
        raise SpecError("scenario 'task-incremental' is for classes, got regression.")
    within = torch.zeros(len(result.tasks), len(data.classes), dtype=torch.bool)
    within[result.task, data.y[result.row]] = True
    single = (within.sum(1) < 2).nonzero()
    if len(single):
        raise SpecError(
            "scenario 'task-incremental' needs two classes or more in a task, or every answer is "
            f"right; task {int(single[0])} ('{result.tasks[int(single[0])]}') has one. Set "
            "stream.classes_per_task, or use 'class-incremental'."
        )
    return within


def _order(
    names: tuple[str, ...], numbers: Tensor, settings: ScenarioSettings, what: str
) -> list[int]:
    """Return the numbers of all classes or tasks in the order that the settings ask for.

    numbers: Class or task of each row. what: "class" or "task", for errors.
    """
    if settings.order == "alphabetical":
        return list(range(len(names)))
    if settings.order == "shuffled":
        key = keys.derive(settings.order_seed, keys.Purpose.ORDER)
        return list(keys.permutation(key, len(names)).tolist())
    if settings.order == "appearance":
        first = torch.full((len(names),), len(numbers))
        first = first.scatter_reduce(0, numbers, torch.arange(len(numbers)), "amin")
        return list(first.argsort().tolist())
    listed = list(settings.order)
    wrong = [name for name in (*listed, *names) if listed.count(name) != names.count(name)]
    if wrong:
        raise SpecError(f"order must list every {what} once, and no other; correct {wrong[0]!r}.")
    return [names.index(name) for name in listed]


def _order_name(settings: ScenarioSettings, names: Sequence[str]) -> str:
    """Return a description of the order, for the scenario's line."""
    if settings.order == "shuffled":
        return f"shuffled by seed {settings.order_seed}"
    if settings.order != "alphabetical":
        return settings.order if isinstance(settings.order, str) else "as listed"
    listed = list(names)
    if listed == sorted_names(names) != sorted(names):
        return "by number"
    orders = (sorted(names), sorted_names(names, folders=True))
    return "alphabetical" if listed in orders else "of the data set"


def _sizes(classes: int, per_task: int | tuple[int, ...]) -> list[int]:
    """Return the number of classes in each task."""
    if isinstance(per_task, int):
        per_task = (per_task,) * (classes // per_task)
    if sum(per_task) != classes:
        raise SpecError(
            f"classes_per_task must add up to the {classes} classes, got tasks of "
            f"{list(per_task)}, which makes {sum(per_task)}; give a list, and keep fewer tasks "
            "with stream.tasks."
        )
    return list(per_task)


def _limit(tasks: int, settings: ScenarioSettings, name: str) -> int:
    """Return the number of tasks that are kept of the `tasks` that there could be."""
    if settings.tasks is not None and settings.tasks > tasks:
        raise SpecError(f"tasks must be at most {tasks} for stream '{name}', got {settings.tasks}.")
    return settings.tasks or tasks


def _task_count(settings: ScenarioSettings) -> int:
    """Return the number of tasks to make."""
    if settings.tasks is None:
        raise SpecError(
            f"scenario '{settings.scenario}' makes as many tasks as it is told; set stream.tasks."
        )
    return settings.tasks


def _task_name(names: Sequence[str]) -> str:
    """Return a task's name, composed of the names of its classes."""
    if len(names) <= 4:
        return ", ".join(names)
    return f"{names[0]}, {names[1]}, ... {names[-1]} ({len(names)} classes)"
