"""Trains one method on one stream for a group of replicas (Algorithm 1's outer loop)."""

from collections.abc import Sequence
from dataclasses import replace

from dpmcl.core.gradients import Work, counting
from dpmcl.core.tree import at as of_replica
from dpmcl.engine import Feed, check_fit
from dpmcl.methods._method import Phase
from dpmcl.training.divergence import choose_state
from dpmcl.training.observer import Chunk, Observer
from dpmcl.training.setup import Setup
from dpmcl.training.state import Position, RunState

UPDATES_AT_ONCE = 50
"""Updates of a chunk: between two looks of the observers, and of one transfer to a GPU."""


def train(
    setup: Setup, observers: Sequence[Observer] = (), run: RunState | None = None
) -> RunState:
    """Train one method on a stream for a group of seeds.

    Takes the tasks in turn. Each random draw depends only on the seed, the task, the phase and the
    step, so a replica gives the same result alone or in a group.

    Args:
        setup: Method, model, stream, splits, seeds and engine; fixed for the whole run.
        observers: Called before and after each chunk of updates and after each task, in order.
        run: The state from which training goes on, None for the first.

    Returns:
        The state after the last task. Parameters have a leading replica dimension.

    Raises:
        ModelError: The network has no second derivatives, or too little memory for those that the
            method needs.
        Stopped: An observer asked to stop; what had been done is kept where checkpoints are.
        DivergenceError: A replica diverged, and is to end the run.
    """
    check_fit(setup.method, setup.model, setup.stream, setup.engine.at_once(len(setup.seeds)))
    run = run or first_state(setup)
    for observer in observers:
        run = observer.begin(setup, run)
    while run.position.task < setup.tasks:
        run = learn_task(setup, run, observers)
    for observer in observers:
        observer.end(setup, run)
    return run


def first_state(setup: Setup) -> RunState:
    """Return the state before the first task."""
    return RunState(Position(), setup.start, setup.empty_memories())


def learn_task(setup: Setup, run: RunState, observers: Sequence[Observer] = ()) -> RunState:
    """Learn the task at the run's position, from where it stands to its end.

    Args:
        setup: What stays the same.
        run: The state before the task, or in the middle of it.
        observers: As for `train`.

    Returns:
        The state after the task; its position is the next task.
    """
    task = run.position.task
    if run.position == Position(task):
        run = _begun(setup, run)
    for number, phase in enumerate(setup.phases(task)):
        if number >= run.position.phase:
            first = run.position.update if number == run.position.phase else 0
            run = replace(run, position=Position(task, number, first))
            run = _through(setup, run, phase, observers)
    if setup.method.stores == "after":
        run = replace(run, memories=setup.remember(run.memories, task))
    run = replace(run, position=Position(task + 1))
    for observer in observers:
        run = observer.after_task(setup, run)
    return run


def _begun(setup: Setup, run: RunState) -> RunState:
    """Return the state with which a task begins."""
    state, method = run.replicas, setup.method
    if method.restarts:
        state = setup.start
    elif method.reset_at_task:
        state = state._replace(optimiser=setup.engine.map(method.rule.init, state.theta))
    if run.diverged:
        state = choose_state(run.alive, state, run.replicas)
    memories = run.memories
    if method.stores == "before":
        memories = setup.remember(memories, run.position.task)
    return replace(run, replicas=state, memories=memories)


def _through(setup: Setup, run: RunState, phase: Phase, observers: Sequence[Observer]) -> RunState:
    """Run the updates of a phase from the run's position to its end."""
    if run.position.update == 0:
        run = replace(run, work=run.work + _work(setup, run, phase))
    while run.position.update < phase.updates:
        begin = run.position.update
        stop = min(begin - begin % UPDATES_AT_ONCE + UPDATES_AT_ONCE, phase.updates)
        for observer in observers:
            stop = observer.stop(setup, run.position, stop)
            run = observer.before_chunk(setup, run)
        feed = setup.feed(run.memories, phase, run.position, stop)
        chunk = Chunk(run, phase, feed)
        state = setup.engine.advance(setup.update(phase), run.replicas, feed)
        if run.diverged:
            state = choose_state(run.alive, state, run.replicas)
        run = replace(run, replicas=state, position=run.position._replace(update=stop))
        for observer in observers:
            run = observer.after_chunk(setup, run, chunk)
    return run


def _work(setup: Setup, run: RunState, phase: Phase) -> Work:
    """Return the work of a phase, counted by running its first update once, on one replica."""
    feed: Feed = setup.feed(run.memories, phase, run.position, 1)
    with counting() as one:
        setup.update(phase)(of_replica(run.replicas, 0), feed.batches(0, 0), feed.key[0, 0])
    return one.times(phase.updates)
