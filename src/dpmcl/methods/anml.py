"""ANML (appendix B.5): a second network gates the first."""

from dataclasses import dataclass
from typing import Any, Literal

from dpmcl.core.model import Gate, Model
from dpmcl.core.settings import Positive, Rate
from dpmcl.exceptions import SpecError
from dpmcl.methods._meta_trained import MetaTrained


@dataclass(frozen=True, kw_only=True)
class ANML(MetaTrained):
    """Neuromodulated meta learning, after Beaulieu et al. (2020): a gate multiplies a network.

    Source: appendix B.5; tested on the gated model. theta_1 is the neuromodulatory network ("the
    representation learning network becomes the neuromodulatory network", appendix B.2), theta_2 the
    gated one, h and g. In each reading (see `TwoLoop` for the rows that a loop sees):

    - "box": N_meta updates of theta_2 on D_PN, then N_grad of theta_1 on D_N;
    - "text": N_grad updates of theta_1 on D_N, then N_meta of theta_2 on validation rows;
    - "nested": inner updates move h and g, the gate stays; outer steps move all. As in the
      original, whose inner loop moves the whole prediction network, its convolutions too;
    - "original": ANML as Beaulieu et al. publish it (see `MetaTrained`): twenty inner steps of 0.1
      on h and g, the outer cost on the trajectory and 64 random rows, first order, on all parts.
      At the stream the prediction alone learns.

    There is no "box-literal": ANML's box has no theta~, and "box" follows it.

    gate: "features" (default), a network of h's shape whose output, through a sigmoid, multiplies
    h's before g; what the original does, and the only one of the two whose shapes agree in the
    paper's listing. "outputs": a network of the shape of h and g whose outputs multiply theirs,
    the box's words.

    The default is "box", as printed; on MNIST "box" and "text" learn alike, and neither comes near
    the paper's row, as "nested" does without an `inner_lr` (`benchmarks/README.md`).

    The parts keep their optimiser states for the run; theta~ starts with a fresh one.
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

    def __post_init__(self) -> None:
        reading: Any = self.reading
        if reading == "box-literal":
            raise SpecError(
                "reading = 'box-literal' is of OML's and CML's boxes; ANML's has no theta~, and "
                "reading = 'box' follows it to the letter."
            )
        super().__post_init__()

    def prepare(self, model: Model) -> Model:
        return model.gated(self.gate)


plugin = ANML
