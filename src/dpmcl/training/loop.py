"""Trains one method on one stream for a group of replicas (Algorithm 1's outer loop)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dpmcl.core import keys
from dpmcl.core.generators import states
from dpmcl.core.gradients import Work, counting
from dpmcl.core.tree import at
from dpmcl.engine import Feed
from dpmcl.engine.same_function import is_same
from dpmcl.exceptions import reason
from dpmcl.methods._method import Phase, State, Update, returned
from dpmcl.training.absent_rows import uses_absent_rows
from dpmcl.training.checks import check
from dpmcl.training.divergence import LinAlgError, advanced, choose_state
from dpmcl.training.memories import (
    empty_memories,
    notes_work,
    offer_task_rows,
    offer_update_rows,
    overrides,
)
from dpmcl.training.observer import Observer, Segment
from dpmcl.training.setup import Setup
from dpmcl.training.state import Position, RunState

UPDATES_AT_ONCE = 50
"""Updates in a segment: between two calls of the observers, and in one transfer to a GPU."""


def train(
    setup: Setup, observers: Sequence[Observer] = (), run: RunState | None = None
) -> RunState:
    """Train one method on a stream for a group of seeds.

    Takes the tasks in turn. Each random draw depends only on the seed, the task, the phase and the
    step, so a replica gives the same result alone or in a group.

    Args:
        setup: Method, model, stream, splits, seeds and engine; fixed for the whole run.
        observers: Called before and after each segment of updates and after each task, in order.
        run: The state from which training continues; None for `first_state`.

    Returns:
        The state after the last task. Parameters have a leading replica dimension.

    Raises:
        SpecError: As for `check`.
        ModelError: As for `check`, or the update of a user's method or network failed.
        Stopped: An observer ended the run, after a checkpoint if checkpoints are written.
        DivergenceError: A replica diverged, and an observer ended the run for it.
    """
    check(setup)
    run = run or first_state(setup)
    for observer in observers:
        run = observer.begin(setup, run)
    while run.position.task < setup.tasks:
        run = learn_task(setup, run, observers)
    return run


def first_state(setup: Setup) -> RunState:
    """Return the state before the first task.

    Args:
        setup: Setup of the run.
    """
    return RunState(Position(), setup.start, empty_memories(setup))


def learn_task(setup: Setup, run: RunState, observers: Sequence[Observer] = ()) -> RunState:
    """Train on the task at the run's position, from that position to the end of the task.

    Args:
        setup: Setup of the run.
        run: The state before the task, or in the middle of it.
        observers: Observers, as for `train`.

    Returns:
        The state after the task; its position is the next task.
    """
    task = run.position.task
    if run.position == Position(task):
        run = _begin_task(setup, run)
    for number, phase in enumerate(setup.phases[task]):
        if number >= run.position.phase:
            first = run.position.update if number == run.position.phase else 0
            run = replace(run, position=Position(task, number, first))
            run = _run_phase(setup, run, phase, observers)
    run = _end_task(setup, run)
    for observer in observers:
        run = observer.after_task(setup, run)
    return run


def after_evaluation_phases(setup: Setup, run: RunState, task: int) -> RunState:
    """Return the state of a run after the phases that its method runs before an evaluation.

    Args:
        setup: Setup of the run.
        run: The state after a task, which is not changed.
        task: Number of that task.
    """
    first, phases, method = len(setup.phases[task]), setup.evaluation_phases[task], setup.method
    updates = sum(phase.updates for phase in phases if phase.trains)
    if updates and method.scheduling is not None:
        state = setup.engine.map(
            lambda replica: method.begin_evaluation(replica, updates), run.replicas
        )
        run = replace(run, replicas=state)
    for number, phase in enumerate(phases, start=first):
        run = replace(run, position=Position(task, number))
        run = _run_phase(setup, run, phase, ())
    return run


def _begin_task(setup: Setup, run: RunState) -> RunState:
    """Return the state at the start of a task; warn if the task's rows have weight 0 in batches."""
    state, method, task = run.replicas, setup.method, run.position.task
    weighing, number = setup.weighing(task), setup.first_task + task
    if weighing is not None and weighing.on == "weights" and not weighing.gamma[number]:
        message = (
            f"the discount gives task {number} ('{setup.stream.tasks[task]}') weight 0 while it is "
            "the newest, so its rows are not learned; take by = 'age', or discount_on = 'sampling'."
        )
        setup.warn(message, once="weight")
    if method.changes_at_task:
        over_run = method.scheduling is not None and method.scheduling.over == "run"
        tasks = setup.phases if over_run else setup.phases[task : task + 1]
        updates = sum(phase.updates for phases in tasks for phase in phases if phase.trains)
        option = torch.arange(len(method.optional), device=setup.seed.device)
        key = keys.derive(setup.seed[:, None], keys.Purpose.OPTION, number, option)
        state = setup.engine.map(
            lambda state, start, key: method.begin_task(state, start, updates, key),
            state,
            setup.start,
            key,
        )
    run = replace(run, replicas=_keep_frozen(run, state))
    if method.stores == "before":
        run = _offer_task(setup, run)
    return run


def _end_task(setup: Setup, run: RunState) -> RunState:
    """Return the state after a task's phases; its position is the next task."""
    method, model, task = setup.method, setup.model, run.position.task
    if method.stores == "after":
        run = _offer_task(setup, run)
    if overrides(method, "end_of_task"):
        info = setup.task_infos[task]

        def ended(state: State) -> State:
            what = f"`end_of_task` of '{setup.method_name}'"
            after = returned(method.end_of_task(state, model, info), State, what)
            return after._replace(common=state.common, buffers=state.buffers)

        with setup.locating("`end_of_task`"):
            state = setup.engine.map(ended, run.replicas)
        work = run.work + _end_of_task_work(setup, run)
        run = replace(run, replicas=_keep_frozen(run, state), work=work)
    return replace(run, position=Position(task + 1))


def _offer_task(setup: Setup, run: RunState) -> RunState:
    """Return the state after the rows of the current task were offered to the memories."""
    task = run.position.task
    work = run.work + notes_work(setup, run, setup.task_infos[task].rows)
    return replace(run, memories=offer_task_rows(setup, run, task), work=work)


def _run_phase(
    setup: Setup, run: RunState, phase: Phase, observers: Sequence[Observer]
) -> RunState:
    """Run the updates of a phase from the run's position to its end."""
    update = setup.update(phase)
    if run.position.update == 0:
        phase_work = _update_work(setup, run, phase).times(phase.updates)
        run = replace(run, work=run.work + phase_work)
    while (first := run.position.update) < phase.updates:
        stop = min(first - first % UPDATES_AT_ONCE + UPDATES_AT_ONCE, phase.updates)
        if phase.remember is not None:
            stop = first + 1  # the next update may draw rows that this one offers to D_P
        for observer in observers:
            stop = observer.stop(setup, run.position, stop)
            run = observer.before_segment(setup, run)
        feed = setup.feed(run.memories, phase, run.position, stop)
        segment = Segment(run, phase, feed)
        with setup.locating("The update"):
            state = advanced(setup, update, run.replicas, feed)
        run = replace(
            run,
            replicas=_keep_frozen(run, state),
            memories=offer_update_rows(setup, run, phase, feed.drawn),
            position=run.position._replace(update=stop),
        )
        for observer in observers:
            run = observer.after_segment(setup, run, segment)
    return run


def _keep_frozen(run: RunState, state: State) -> State:
    """Return `state` for the replicas alive, and the state of the run for those frozen."""
    return choose_state(run.alive, state, run.replicas) if run.diverged else state


def planned_work(setup: Setup) -> Work:
    """Return the work of a run for one replica, without training.

    Work depends on shapes alone, so all tasks are counted in the state before the first one. From
    the second task on, phases of the same name, draws and update are counted once.

    Args:
        setup: Setup of the run.
    """
    run = _begin_task(setup, first_state(setup))
    work, counted = Work(), dict[tuple[Any, ...], tuple[Update, Work]]()
    for task, info in enumerate(setup.task_infos):
        run = replace(run, position=Position(task))
        if setup.method.stores != "never":
            work += notes_work(setup, run, info.rows)
        work += _end_of_task_work(setup, run)
        phases = (*setup.phases[task], *setup.evaluation_phases[task])
        for number, phase in enumerate(phases):
            kind = (task == 0, number, phase.name, *phase.draws.items(), phase.remember)
            if kind not in counted or not is_same(counted[kind][0], phase.update):
                run = replace(run, position=Position(task, number))
                counted[kind] = phase.update, _update_work(setup, run, phase)
            work += counted[kind][1].times(phase.updates)
    return work


def _end_of_task_work(setup: Setup, run: RunState) -> Work:
    """Return the work of the method's `end_of_task`, counted by running it on one replica."""
    info = setup.task_infos[run.position.task]
    with counting() as work, setup.locating("`end_of_task`", mapped=False):
        setup.method.end_of_task(at(run.replicas, 0), setup.model, info)
    return work


def _update_work(setup: Setup, run: RunState, phase: Phase) -> Work:
    """Return the work of an update, counted by running a phase's first once, on one replica."""
    feed = setup.feed(run.memories, phase, run.position, 1)
    is_first_task = setup.first_task + run.position.task == 0
    before = states()
    with setup.locating("The update", mapped=False):
        work = _counted(setup, run, phase, feed)
    if states() != before:
        message = (
            f"The update of '{setup.method_name}' draws from a global random generator, so no "
            "replica can be run again as it was; draw by its keys (dpmcl.keys)."
        )
        setup.warn(message, once="draws")
    elif is_first_task and uses_absent_rows(setup, run, setup.update(phase), feed):
        message = (
            f"phase '{phase.name}' uses rows of weight 0, which are absent, as those of a memory "
            "that is still empty; weight the cost of each row by batch.w (model.cost and "
            "weighted_mean do), and give model.predict w=batch.w."
        )
        setup.warn(message, once="absent")
    if work.rows_backpropagated and not work.gradient_evaluations:
        message = (
            f"phase '{phase.name}' takes gradients that are not counted; take them through "
            "dpmcl.gradient."
        )
        setup.warn(message, once="uncounted")
    ahead = [name for name, draw in phase.draws.items() if draw.moved == "exact"]
    work.rows_ahead = sum(feed.drawn.row[name][0, 0].numel() for name in ahead)
    offered = feed.drawn.row[phase.remember][0, 0].numel() if phase.remember else 0
    return work + notes_work(setup, run, offered)


def _counted(setup: Setup, run: RunState, phase: Phase, feed: Feed) -> Work:
    """Return the work of an update of the first replica for which its linear algebra succeeds."""
    update = setup.update(phase)
    for replica in range(len(setup.seeds)):
        arguments = at(run.replicas, replica), feed.batches(0, replica), feed.key[replica, 0]
        try:
            with counting() as work:
                update(*arguments)
        except LinAlgError as error:
            failure = error
        else:
            return work
    message = (
        f"linear algebra fails in the first update of phase '{phase.name}', as of a memory that is "
        f"still empty: {reason(failure)}; its work is counted up to there."
    )
    setup.warn(message, once="work of algebra")
    return work
