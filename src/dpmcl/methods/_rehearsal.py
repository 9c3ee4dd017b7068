"""Base of the methods that train on rows of the new task together with rows of the memory."""

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dpmcl.core.settings import Positive
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Method, Phase, Update


@dataclass(frozen=True, kw_only=True)
class Rehearsal(Method, ABC):
    """Base of methods that draw b_N from the new task and b_P from D_P in each update.

    Args:
        replayed: Number of rows in b_P; None for `batch`.
        enters: When the new task's rows enter D_P. "after": all of them, after the task's updates,
            as in DPMCL, so that b_P has rows of earlier tasks alone. "during": those of each b_N,
            after the update that drew it, as in a stream whose rows arrive once; b_P then has rows
            of the new task too, and a row that is drawn again is offered again.
    """

    replayed: Positive | None = None
    enters: Literal["after", "during"] = "after"

    def __post_init__(self) -> None:
        super().__post_init__()
        # With "during" the phase offers its rows (Phase.remember); nothing is left for the task.
        object.__setattr__(self, "stores", "after" if self.enters == "after" else "never")

    def rehearse(
        self, task: TaskInfo, update: Update, *, keys: int = 1, **draws: Draw
    ) -> Sequence[Phase]:
        """Return the phase of a task: N updates, each on the draws "new", b_N, and "past", b_P.

        Args:
            task: The task.
            update: Function that makes one update.
            keys: Number of random keys that an update needs.
            draws: Further draws by name; "past" replaces the draw of b_P.
        """
        past = Draw("memory", self.replayed or self.batch)
        drawn = {"new": self.new_rows(), "past": past, **draws}
        remember = "new" if self.enters == "during" else None
        updates = self.updates_of(task)
        return [Phase("train", updates, drawn, update, keys=keys, remember=remember)]
