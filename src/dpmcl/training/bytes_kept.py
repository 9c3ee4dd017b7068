"""Bytes that a method keeps from task to task besides its network: rows, notes and copies."""

from collections.abc import Mapping
from dataclasses import replace

from dpmcl.core.gradients import Work
from dpmcl.core.tree import leaves
from dpmcl.data.sampling import Draw
from dpmcl.training.setup import Setup
from dpmcl.training.state import RunState


def row_bytes(setup: Setup) -> int:
    """Return the bytes of a row of the memory: inputs and target, as the stream stores them.

    Args:
        setup: Setup of the run.
    """
    stream = setup.stream
    return int(stream.x[0].nbytes + stream.y[0].nbytes)


def rows_kept(setup: Setup, filled: Mapping[str, float]) -> float:
    """Return the rows that a replica keeps: those in its memories, or all that it may still draw.

    Args:
        setup: Setup of the run.
        filled: Number of rows in the replica's memory of each split.
    """
    kept = dict(filled)
    for draw in all_task_draws(setup):
        kept[draw.split] = float(setup.splits.named(draw.split).offset[:, -1].double().mean())
    return sum(kept.values())


def all_task_draws(setup: Setup) -> list[Draw]:
    """Return the draws from all rows of the tasks seen, for which a method keeps all these rows.

    Args:
        setup: Setup of the run.
    """
    tasks = (*setup.phases, *setup.evaluation_phases)
    draws = (draw for phases in tasks for phase in phases for draw in phase.draws.values())
    return [draw for draw in draws if draw.source in ("all", "earlier")]


def note_bytes(setup: Setup, run: RunState) -> int:
    """Return the bytes of the notes of a row of the memory.

    Args:
        setup: Setup of the run.
        run: A state of the run.
    """
    notes = run.memories["train"].notes.values()
    return sum(int(note[0, 0].nbytes) for note in notes)


def copied_bytes(run: RunState) -> int:
    """Return the bytes of `extra` and `common` in a replica's state.

    Args:
        run: A state.
    """
    state = run.replicas
    copies = leaves((state.extra, dict(state.common)))
    return sum(int(leaf[0].nbytes) for leaf in copies)


def with_bytes_kept(setup: Setup, run: RunState) -> Work:
    """Return the work of a run, with the mean number of bytes that a replica keeps at its end.

    Args:
        setup: Setup of the run.
        run: State at the end of the run.
    """
    filled = {name: float(memory.filled.double().mean()) for name, memory in run.memories.items()}
    return replace(
        run.work,
        memory_bytes=round(rows_kept(setup, filled) * row_bytes(setup)),
        notes_bytes=round(filled["train"] * note_bytes(setup, run)),
        copies_bytes=copied_bytes(run),
    )
