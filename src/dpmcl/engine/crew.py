"""Worker processes that run groups of replicas, so that a CPU's cores are all at work.

A worker does with a group what this process would do with it, so results are the same bytes
wherever a group runs, and however many workers there are.
"""

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import loky
import torch
from loky import process_executor
from loky.process_executor import TerminatedWorkerError

from dpmcl.core.tree import leaves, part, tree_map
from dpmcl.data.sampling import Chunk
from dpmcl.data.stream import Stream
from dpmcl.engine.box import Box, Packed
from dpmcl.engine.contract import Engine
from dpmcl.engine.same import same
from dpmcl.exceptions import DeviceError
from dpmcl.methods._method import State, Update

Span = tuple[int, int]
"""Replicas first .. last - 1 of all: a group."""

_KEPT = 4  # phases whose updates workers remember
_IDLE_SECONDS = 120.0  # then a worker leaves; the next work starts another


def available() -> int:
    """The cores that this process may use, after affinity and a container's limit."""
    return int(loky.cpu_count())


class Crew:
    """Up to `size` workers, started when they are first wanted and ended with this object.

    make: what makes a worker's engine, called once in each.
    """

    def __init__(self, make: Callable[[], Engine], size: int) -> None:
        self.size = size
        self._make = make
        self._executor: loky.ProcessPoolExecutor | None = None
        self._started: list[Future[None]] = []
        self._work = Box()
        self._tasks: list[_Task] = []
        self.broken = size < 2

    def ready(self) -> bool:
        """Whether workers are there; the first call starts them and does not wait."""
        if self.broken:
            return False
        if self._executor is None:
            try:
                self._start()
            except (OSError, AssertionError, RuntimeError):  # processes that may not have any
                self.broken = True
                return False
        return all(future.done() for future in self._started)

    def wait(self) -> bool:
        """Starts the workers, waits until they are there, and says whether they are."""
        if self.ready() or self.broken:
            return not self.broken
        for future in self._started:
            future.result()
        return True

    def advance(
        self,
        update: Update,
        state: State,
        chunk: Chunk,
        stream: Stream,
        dtype: torch.dtype,
        spans: Sequence[Span],
    ) -> State:
        """The state after a chunk, groups side by side.

        Raises what an update raises in a worker, DeviceError when a worker dies, and
        pickle.PicklingError or TypeError for an update that cannot be sent to one.
        """
        task = self._task(update, stream, dtype)
        work = self._work.put((state, tuple(chunk)))
        self._run([(_advance, task.packed, work, span) for span in spans])
        after: State = tree_map(torch.Tensor.clone, work.open()[0])
        return after

    def map(self, function: Callable[..., Any], trees: Any, spans: Sequence[Span]) -> list[Any]:
        """The results of a function of one replica, group by group."""
        work = self._work.put((function, trees))
        return self._run([(_map, work, span) for span in spans])

    def _task(self, update: Update, stream: Stream, dtype: torch.dtype) -> "_Task":
        for place, task in enumerate(self._tasks):
            if task.stream is stream and task.dtype == dtype and same(task.update, update):
                self._tasks.append(self._tasks.pop(place))
                return task
        box = Box()
        packed = box.put((update, stream, dtype))
        self._tasks = [*self._tasks[1 - _KEPT :], _Task(update, stream, dtype, box, packed)]
        return self._tasks[-1]

    def _start(self) -> None:
        self._executor = loky.ProcessPoolExecutor(
            self.size,
            timeout=_IDLE_SECONDS,
            initializer=_begin,
            initargs=(os.getpid(), torch.get_num_threads(), self._make),
        )
        weakref.finalize(self, self._executor.shutdown, wait=False)
        self._started = [self._executor.submit(_nothing) for _ in range(self.size)]

    def _run(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        assert self._executor is not None
        futures = [self._executor.submit(*call) for call in calls]
        try:
            return [future.result() for future in futures]
        except TerminatedWorkerError as error:
            self.broken = True
            raise DeviceError(
                "A worker process was ended, most likely for want of memory; use fewer of them, as "
                "in --set workers=1."
            ) from error
        except KeyboardInterrupt:
            self._executor.shutdown(wait=False, kill_workers=True)
            self.broken = True
            raise
        except Exception:
            for future in futures:
                future.cancel()
            wait(futures)  # none may write to a box that is used anew
            raise


@dataclass(frozen=True)
class _Task:
    """What all chunks of a phase share, put where workers find it."""

    update: Update
    stream: Stream
    dtype: torch.dtype
    box: Box
    packed: Packed


class _Worker:
    """What a worker process holds on to."""

    engine: Engine
    tasks: dict[int, Any]


def _begin(parent: int, threads: int, make: Callable[[], Engine]) -> None:
    """Sets a worker up: Ctrl-C is its parent's affair, and it leaves when its parent has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # loky takes a worker that grows by 300 MB for a leak, and starts another in its place.
    process_executor._MAX_MEMORY_LEAK_SIZE = sys.maxsize
    torch.set_num_threads(threads)
    _Worker.engine, _Worker.tasks = make(), {}

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _nothing() -> None:
    """What is asked of a worker to learn that it is there."""


def _advance(task: Packed, work: Packed, span: Span) -> None:
    """A group's chunk; its new state takes the place of the old one."""
    if task.number not in _Worker.tasks:
        newest = list(_Worker.tasks.items())[1 - _KEPT :]
        _Worker.tasks = {**dict(newest), task.number: task.open()}
    update, stream, dtype = _Worker.tasks[task.number]
    first, last = span
    state, chunk = part(work.open(), *span)
    own = stream.of_replicas(first, last)
    after = _Worker.engine.advance(update, state, Chunk(*chunk), own, dtype)
    for old, new in zip(leaves(state), leaves(after), strict=True):
        old.copy_(new)


def _map(work: Packed, span: Span) -> Any:
    function, trees = work.open()
    return _Worker.engine.map(function, *part(trees, *span))
