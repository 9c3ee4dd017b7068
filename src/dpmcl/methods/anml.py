"""ANML (appendix B.5): a network whose features or outputs a second network gates."""

from dataclasses import dataclass
from typing import Literal

from dpmcl.core.model import Gate, Model
from dpmcl.core.settings import Positive, Rate
from dpmcl.methods._meta_trained import MetaTrained


@dataclass(frozen=True, kw_only=True)
class ANML(MetaTrained):
    """Neuromodulated meta learning, after Beaulieu et al. (2020): a network with a gate.

    Source: appendix B.5; tested on the gated model. theta_1 is the neuromodulatory network ("the
    representation learning network becomes the neuromodulatory network", appendix B.2), theta_2 the
    gated one, h and g. The readings (see `TwoLoop` for the rows of each loop):

    - "box": N_meta updates of theta_2 on D_PN, then N_grad of theta_1 on D_N;
    - "text": N_grad updates of theta_1 on D_N, then N_meta of theta_2 on validation rows;
    - "nested": inner updates change h and g but not the gate; outer steps change all parts. This is
      as in the original, whose inner loop changes the whole prediction network with its
      convolutions;
    - "original": ANML as published by Beaulieu et al. (see `MetaTrained`): twenty inner steps of
      0.1 on h and g; outer steps on all parts, by the cost on the trajectory and 64 random rows,
      first order. On the stream the prediction alone is trained.

    There is no "box-literal": ANML's box has no theta~, so "box" already follows it literally.

    gate: "features" (default), a network of the shape of h whose output, after a sigmoid,
    multiplies the output of h before g. The original does this, and only for this gate do the
    shapes in the paper's listing agree. "outputs": a network of the shape of h and g whose outputs
    multiply theirs, as the box words it.

    The default is "box", as printed. On MNIST "box" and "text" give similar results, which are far
    from the paper's row; "nested" without an `inner_lr` comes near it
    (`docs/reading-the-paper.md`).

    Each part keeps its optimiser state for the whole run; theta~ starts from a new one.
    """

    meta_parts = ("representation", "prediction")
    grad_parts = ("gate",)
    inner_parts = ("representation", "prediction")
    outer_parts = ("representation", "prediction", "gate")

    published_order = 1
    published_step = 0.1
    held_out = False

    reading: Literal["box", "text", "nested", "original"] = "box"
    gate: Gate = "features"
    meta_lr: Rate = 1e-3
    trajectory: Positive = 20
    queries: Positive = 64

    def prepare(self, model: Model) -> Model:
        return super().prepare(model).gated(self.gate)


plugin = ANML
