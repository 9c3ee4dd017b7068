"""Bytes that a method keeps from task to task besides its network: rows, notes and copies."""

from dataclasses import replace

from dpmcl.core.gradients import Work
from dpmcl.core.tree import leaves
from dpmcl.training.setup import Setup
from dpmcl.training.state import RunState


def row_bytes(setup: Setup) -> int:
    """Return the bytes of a row of the memory: inputs and target, as the stream stores them.

    Args:
        setup: Setup of the run.
    """
    stream = setup.stream
    return int(stream.x[0].nbytes + stream.y[0].nbytes)


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
        memory_bytes=round(sum(filled.values()) * row_bytes(setup)),
        notes_bytes=round(filled["train"] * note_bytes(setup, run)),
        copies_bytes=copied_bytes(run),
    )
