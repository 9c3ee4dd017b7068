"""Methods of two loops, and the ways to read the paper's description of them (appendix B.5).

An inner loop learns the new task, an outer loop retains all tasks seen. The paper's boxes, its text
and the published originals disagree about which loop is inside, and about the rows of each loop.
`reading` chooses between them.
"""

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dpmcl.core.batch import Batch
from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model, Theta
from dpmcl.core.settings import Positive, Rate
from dpmcl.core.tree import at, leaves, tree_map
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Batches, Graph, Method, Phase, State, Update
from dpmcl.optimisers._optimiser import Optimiser, build

Interpretation = Literal["box", "box-literal", "text", "nested", "original"]
Parts = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TwoLoop(Method, ABC):
    """Base of OML, CML and ANML; each defines which parts of theta change in which loop.

    reading: the phases of a task:

    - "box": n_meta updates of `meta_parts` on the memory D_PN (training rows, with those of the new
      task), then, from there, n_grad updates of `grad_parts` on the new task's training rows. This
      is the sequential form of the box, in which the n_meta updates change theta itself;
    - "box-literal": the box taken literally. n_meta updates on D_PN turn a copy of `meta_parts`
      into theta~, and theta does not change; then n_grad updates of `grad_parts` of theta on the
      new task's training rows, each with the gradient of the cost at theta~ (and at theta, for
      parts without a theta~). The box does not update theta~ in its second loop, so it stays
      unchanged until the next task makes it anew;
    - "text": n_grad updates of `grad_parts` on the new task's training rows, then n_meta updates
      of `meta_parts` on validation rows of the tasks seen;
    - "nested": n_meta outer updates. Each makes theta~ anew from theta by `inner` updates of
      `inner_parts`, each on a batch of the new task's training rows; then it makes a step of
      `outer_parts` of theta with the gradient, at theta~, of the cost on validation rows of the
      tasks seen;
    - "original": the published method on which the class is based; the class describes it.

    Validation rows are drawn from a separate reservoir with the capacity of D_P (`memory`). Those
    of the new task are offered to it before the task's first update. Other methods never train on
    them.

    order: order of the gradient in the nested and the original reading. 1 applies the gradient at
    theta~ to theta as it is; 2 takes it through the inner updates; None is 1 in the nested reading,
    and the published order in the original. inner_lr: learning rate of the updates that make theta~
    (None: lr). The first step of a fresh Adagrad is inner_lr times the gradient's sign, however
    small the gradient, so the nested reading needs a small inner_lr. n_meta, n_grad: N_meta and
    N_grad of appendix B.3 (None: half of `updates` each). The optimiser state of theta is kept for
    the whole run; that of theta~ starts anew.
    """

    stores = "before"
    counts = ("updates", "n_meta", "n_grad")

    meta_parts: ClassVar[Parts]
    grad_parts: ClassVar[Parts]
    inner_parts: ClassVar[Parts]
    outer_parts: ClassVar[Parts]
    published_order: ClassVar[Literal[1, 2]] = 2

    reading: Interpretation = "text"
    n_meta: Positive | None = None
    n_grad: Positive | None = None
    inner: Positive = 1
    inner_lr: Rate | None = None
    order: Literal[1, 2] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_meta", "n_grad"):
            if getattr(self, name) is None and self.passes is None:
                object.__setattr__(self, name, max(1, self.updates // 2))
        if self.order is None:
            published = self.published_order if self.reading == "original" else 1
            object.__setattr__(self, "order", published)

    @property
    def trains_on_validation(self) -> bool:
        return self.reading in ("text", "nested")

    @property
    def graph(self) -> Graph | None:
        if self.reading not in ("nested", "original") or self.order == 1:
            return None
        return Graph(moves=self.inner_parts, cause="order = 2", instead="order = 1")

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        n_meta = self.n_meta or self.updates_of(task)
        n_grad = self.n_grad or self.updates_of(task)
        new, past = self.new_rows(), Draw("memory", self.batch)
        if self.reading == "box":
            return [
                self._plain_phase(model, "meta", n_meta, past, parts=self.meta_parts),
                self._plain_phase(model, "grad", n_grad, new, parts=self.grad_parts),
            ]
        if self.reading == "box-literal":
            ahead = self._ahead_update(model, n_meta)
            return [
                Phase("meta", n_meta, {"batch": past}, ahead, trains=False),
                self._plain_phase(model, "grad", n_grad, new, parts=self.grad_parts),
            ]
        validation = Draw("memory", self.batch, split="validation")
        if self.reading == "text":
            return [
                self._plain_phase(model, "grad", n_grad, new, parts=self.grad_parts),
                self._plain_phase(model, "meta", n_meta, validation, parts=self.meta_parts),
            ]
        outer = self.n_meta or self.updates_of(task, self.inner)
        draws = {"new": self.new_rows(self.inner), "seen": validation}
        return [self._nested_phase(model, "nested", outer, draws)]

    def _plain_phase(
        self, model: Model, name: str, updates: int, draw: Draw, *, parts: Parts
    ) -> Phase:
        """Return a phase of updates of some parts of theta, with gradients at theta~ if it exists.

        Each update uses one batch.
        """

        def update(state: State, batches: Batches, key: Tensor) -> State:
            theta = {**state.theta, **state.extra.get("theta", {})}
            grads, J = _gradient(model, theta, batches["batch"], key[0], parts=parts)
            return self.descend(state, grads, J)

        return Phase(name, updates, {"batch": draw}, update)

    def start(self, theta: Theta, task: TaskInfo) -> State:
        state = super().start(theta, task)
        if self.reading != "box-literal":
            return state
        copied = {part: theta[part] for part in self.meta_parts}
        count = torch.zeros((), dtype=torch.int64, device=leaves(theta)[0].device)
        ahead = {"theta": copied, "optimiser": self._inner_rule.init(copied), "count": count}
        return state._replace(extra=ahead)

    @property
    def _inner_rule(self) -> Optimiser:
        """Return the optimiser that makes theta~."""
        return build(self.optimiser, self.inner_lr or self.lr)

    def _ahead_update(self, model: Model, updates: int) -> Update:
        """Return an update of theta~ on D_PN; the first of a task starts anew from theta."""
        rule = self._inner_rule

        def update(state: State, batches: Batches, key: Tensor) -> State:
            first = state.extra["count"] == 0
            theta = {part: state.theta[part] for part in self.meta_parts}
            moving, optimiser = tree_map(
                lambda anew, old: torch.where(first, anew, old),
                (theta, rule.init(theta)),
                (state.extra["theta"], state.extra["optimiser"]),
            )
            grads, J = _gradient(
                model, {**state.theta, **moving}, batches["batch"], key[0], parts=self.meta_parts
            )
            moving, optimiser = rule.step(moving, grads, optimiser, J)
            count = (state.extra["count"] + 1) % updates
            ahead = {"theta": moving, "optimiser": optimiser, "count": count}
            return state._replace(extra=ahead)

        return update

    def _adapt(
        self, model: Model, theta: Theta, batches: Batch, key: Tensor, *, rule: Optimiser
    ) -> Theta:
        """Return theta~: theta after one update of `inner_parts` on each batch of a block."""

        def J(moving: Theta, step: int) -> Tensor:
            return model.cost({**theta, **moving}, at(batches, step), key[step])

        moving = {part: theta[part] for part in self.inner_parts}
        return {**theta, **rule.descended(J, moving, len(batches.w))}

    def _outer_gradient(
        self,
        model: Model,
        theta: Theta,
        adapt: Callable[[Theta], Theta],
        batch: Batch,
        *,
        key: Tensor,
    ) -> tuple[Theta, Tensor]:
        """Return gradient and cost of a batch at theta~ = adapt(theta), for `outer_parts`."""
        if self.order == 1:
            return _gradient(model, adapt(theta), batch, key, parts=self.outer_parts)
        return _gradient(model, theta, batch, key, parts=self.outer_parts, adapt=adapt)

    def _nested_phase(
        self, model: Model, name: str, updates: int, draws: Mapping[str, Draw]
    ) -> Phase:
        """Return a phase of outer updates on the draw "seen", with inner updates on "new"."""

        def update(state: State, batches: Batches, key: Tensor) -> State:
            def adapt(theta: Theta) -> Theta:
                return self._adapt(model, theta, batches["new"], key, rule=self._inner_rule)

            seen, outer = batches["seen"], key[self.inner]
            grads, J = self._outer_gradient(model, state.theta, adapt, seen, key=outer)
            return self.descend(state, grads, J)

        return Phase(name, updates, draws, update, self.inner + 1, steps_on=("seen",))


def _gradient(
    model: Model,
    theta: Theta,
    batch: Batch,
    key: Tensor,
    *,
    parts: Parts,
    adapt: Callable[[Theta], Theta] = lambda theta: theta,
) -> tuple[Theta, Tensor]:
    """Return the gradient of the cost at adapt(theta) by some parts of theta, and this cost."""

    def cost(moving: Theta) -> Tensor:
        return model.cost(adapt({**theta, **moving}), batch, key)

    grads: Theta
    grads, J = gradient(cost)({part: theta[part] for part in parts})
    return grads, J
