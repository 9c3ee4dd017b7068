"""The published forms of two-loop methods, which are meta-trained before the stream."""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from dpmcl.core import keys
from dpmcl.core.batch import join, weighted_mean
from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model, Parameters, Theta
from dpmcl.core.settings import Positive, Rate
from dpmcl.core.tree import at, leaves, stack, tree_map
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.exceptions import SpecError
from dpmcl.methods._method import Batches, Graph, Phase, State, Update
from dpmcl.methods._two_loop import Parts, TwoLoop
from dpmcl.optimisers._optimiser import Optimiser, build
from dpmcl.optimisers.sgd import SGD

_ROWS_AT_ONCE = 512  # training rows in each batch on which rates are compared


@dataclass(frozen=True, kw_only=True)
class MetaTrained(TwoLoop, ABC):
    """Adds reading = "original" to CML and ANML: meta-training on classes that are in no task.

    Before the first task there are `meta_updates` outer steps. Each draws a trajectory, which has
    `trajectory` rows of one random background class, sets the head's row of that class to new
    random weights, and makes theta~ by one plain gradient step of `inner_parts` on each row, with
    rate `inner_lr` (None: the published rate). Adam then makes a step of `outer_parts` with rate
    `meta_lr`, by the gradient at theta~ of the mean cost over `queries` random background rows
    joined with further rows of the trajectory's class (`held_out`) or with the trajectory itself.
    With order = 2 the gradient goes through the inner steps; with order = 1 it is applied as it is.

    On the stream the head starts from new random weights, and the prediction alone is trained, by
    plain gradient steps on the new rows: in the publications one row at a time, once
    (training.batch = 1, training.passes = 1). A copy of the prediction is trained with each of the
    `rates`; before an evaluation the copy with the highest accuracy on all training rows seen is
    chosen. Nothing is drawn from the memory.

    pretraining: "meta" as above; "plain" trains all parts with Adam on batches of the background
    instead; "none" does neither and trains all parts on the stream, from scratch.
    """

    held_out: ClassVar[bool]
    published_step: ClassVar[float]

    pretraining: Literal["meta", "plain", "none"] = "meta"
    meta_updates: Positive = 2000
    meta_lr: Rate = 1e-4
    trajectory: Positive = 5
    queries: Positive = 15
    rates: tuple[Rate, ...] = (0.001, 0.003, 0.01, 0.03)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rates:
            raise SpecError("rates must name a learning rate at least.")
        if self.reading == "original" and (self.options or self.scheduling is not None):
            raise SpecError(
                "reading = 'original' takes steps of its own, which neither options nor a schedule "
                "change; give this method options = [] and schedule = 'constant'."
            )

    @property
    def trains_on_validation(self) -> bool:
        return self.reading != "original" and super().trains_on_validation

    @property
    def graph(self) -> Graph | None:
        if self.reading != "original":
            return super().graph
        if self.order == 1 or self.pretraining != "meta":
            return None
        return Graph(moves=self.inner_parts, cause="order = 2", instead="order = 1", fresh=False)

    def prepare(self, model: Model) -> Model:
        if self.reading == "original" and model.kind == "regression":
            raise SpecError(
                "reading = 'original' learns classes, and chooses among rates by their accuracy, "
                "and a regression has neither; use another reading."
            )
        return model

    def start(self, theta: Theta, task: TaskInfo) -> State:
        if self.reading != "original":
            return super().start(theta, task)
        moving = tuple(theta) if self.pretraining == "none" else ("prediction",)
        copies = [{part: theta[part] for part in moving} for _ in self.rates]
        right = torch.zeros(len(self.rates), dtype=torch.int64, device=leaves(theta)[0].device)
        extra = {"meta": self._outer.init(theta), "online": stack(copies), "right": right}
        return super().start(theta, task)._replace(extra=extra)

    @property
    def _outer(self) -> Optimiser:
        """Return the optimiser of the outer steps."""
        return build("adam", self.meta_lr)

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        if self.reading != "original":
            return super().phases(model, task)
        online = Phase(
            "online", self.updates_of(task), {"new": self.new_rows()}, self._learn(model)
        )
        if task.number or self.pretraining == "none":
            return [online]
        rows = self.trajectory * (1 + self.held_out)
        if self.pretraining == "plain":
            draws = {"batch": Draw("background", self.queries + self.trajectory)}
            update = self._pretrain(model, task.outputs)
            return [Phase("background", self.meta_updates, draws, update), online]
        draws = {
            "class": Draw("background", 1, block=rows, of_one="class"),
            "random": Draw("background", self.queries),
        }
        update = self._meta(model, task.outputs)
        n_keys = self.trajectory + 2  # one for each inner step, the outer cost and the head's row
        phase = Phase("background", self.meta_updates, draws, update, n_keys, steps_on=("random",))
        return [phase, online]

    def evaluation_phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        if self.reading != "original" or len(self.rates) == 1:
            return super().evaluation_phases(model, task)
        draws = {"seen": Draw("all", _ROWS_AT_ONCE, replace=False, once=True)}
        updates = -(-task.rows_seen // _ROWS_AT_ONCE)
        return [Phase("rates", updates, draws, self._compare(model), trains=False)]

    def evaluated(self, state: State) -> State:
        if self.reading != "original":
            return super().evaluated(state)
        best = state.extra["right"].argmax(keepdim=True)
        online: Theta = tree_map(lambda leaf: leaf.index_select(0, best)[0], state.extra["online"])
        return state._replace(theta={**state.theta, **online})

    def _pretrain(self, model: Model, outputs: int) -> Update:
        """Return an update of all parts on a batch of the background."""

        def update(state: State, batches: Batches, key: Tensor) -> State:
            grads, _ = gradient(model.cost)(state.theta, batches["batch"], key[0])
            return self._outer_step(state, grads, outputs)

        return update

    def _meta(self, model: Model, outputs: int) -> Update:
        """Return an update that makes an outer step of the meta-training."""
        rule, steps = SGD(lr=self.inner_lr or self.published_step), self.trajectory

        def update(state: State, batches: Batches, key: Tensor) -> State:
            rows = batches["class"]
            trajectory = tree_map(lambda leaf: leaf[:steps], rows)
            of_class = tree_map(lambda leaf: leaf[steps:], rows) if self.held_out else trajectory
            query = join(batches["random"], tree_map(lambda leaf: leaf.flatten(0, 1), of_class))

            def adapt(theta: Theta) -> Theta:
                """Return theta~, from theta with a new row of the head."""
                label, head_key = trajectory.y[0, 0], key[steps + 1]
                theta = {
                    **theta,
                    "prediction": _with_new_row(theta["prediction"], label, outputs, head_key),
                }
                return self._adapt(model, theta, trajectory, key, rule=rule)

            grads, _ = self._outer_gradient(model, state.theta, adapt, query, key=key[steps])
            return self._outer_step(state, grads, outputs)

        return update

    def _outer_step(self, state: State, grads: Theta, outputs: int) -> State:
        """Return the state after an outer step, from which the copies for the stream start."""
        before = {part: state.theta[part] for part in grads}
        optimiser = {part: state.extra["meta"][part] for part in grads}
        after, optimiser = self._outer.step(before, grads, optimiser)
        theta = {**state.theta, **after}
        new_head = state.extra["online"]["prediction"]
        names = head_names(theta["prediction"], outputs)
        prediction = {
            name: leaf if name in names else theta["prediction"][name].expand_as(leaf)
            for name, leaf in new_head.items()
        }
        extra = {
            **state.extra,
            "meta": {**state.extra["meta"], **optimiser},
            "online": {**state.extra["online"], "prediction": prediction},
        }
        return state._replace(theta=theta, extra=extra)

    def _learn(self, model: Model) -> Update:
        """Return an update of all copies that are trained on the stream, each with its rate."""

        def update(state: State, batches: Batches, key: Tensor) -> State:
            new, copies = batches["new"], []
            fixed = "representation" not in state.extra["online"]
            features = model.seen(state.theta, new.x, key[0], w=new.w) if fixed else None

            def cost(online: Theta) -> Tensor:
                theta = {**state.theta, **online}
                if features is None:
                    return model.cost(theta, new, key[0])
                outputs = model.answer(theta, features, new.x, key[0], w=new.w)
                return weighted_mean(model.losses(outputs, new.y), new.w)

            for number, rate in enumerate(self.rates):
                online = at(state.extra["online"], number)
                grads, _ = gradient(cost)(online)
                copies.append(tree_map(lambda a, g, rate=rate: a - rate * g, online, grads))
            return state._replace(extra={**state.extra, "online": stack(copies)})

        return update

    def _compare(self, model: Model) -> Update:
        """Return an update that counts the correct predictions of every copy."""

        def update(state: State, batches: Batches, key: Tensor) -> State:
            seen, right = batches["seen"], []
            model_now = model.holding(state.buffers)
            for number in range(len(self.rates)):
                theta = {**state.theta, **at(state.extra["online"], number)}
                answers = model_now.predict(theta, seen.x).argmax(-1)
                right.append(((answers == seen.y) & (seen.w > 0)).sum())
            counted = state.extra["right"] + torch.stack(right)
            return state._replace(extra={**state.extra, "right": counted})

        return update


def head_names(prediction: Mapping[str, Any], outputs: int) -> Parts:
    """Return the names of the last linear layer's parameters: its weight and, if any, its bias.

    Args:
        prediction: Parameters of the prediction network.
        outputs: Width of the network's output.

    Raises:
        SpecError: The network has no linear layer of that width.

    >>> head_names({"0.weight": torch.zeros(7, 5), "2.weight": torch.zeros(3, 7)}, outputs=3)
    ('2.weight',)
    """
    weights = [
        name
        for name, leaf in prediction.items()
        if name.endswith("weight") and leaf.dim() == 2 and len(leaf) == outputs
    ]
    if not weights:
        raise SpecError(
            "reading = 'original' sets the head's row of a class anew, and the prediction network "
            f"has no linear layer of {outputs} outputs; give it one at its end."
        )
    last = weights[-1]
    bias = f"{last.removesuffix('weight')}bias"
    return (last, bias) if bias in prediction else (last,)


def _with_new_row(prediction: Parameters, label: Tensor, outputs: int, key: Tensor) -> Parameters:
    """Return the parameters of a prediction network with new random head weights for one class.

    The weights are uniform within 1 / sqrt(inputs), as in nn.Linear.
    """
    names = head_names(prediction, outputs)
    bound = prediction[names[0]].shape[1] ** -0.5
    chosen = torch.arange(outputs, device=label.device) == label
    out = dict(prediction)
    for lane, name in enumerate(names):
        leaf = prediction[name]
        fresh = (2 * keys.uniform(key, leaf.shape[1:] or (1,), lane) - 1).to(leaf.dtype) * bound
        mask = chosen[:, None] if leaf.dim() == 2 else chosen
        out[name] = torch.where(mask, fresh, leaf)
    return out
