"""CML (appendix B.5): OML with a representation network that only one of the loops changes."""

from dataclasses import dataclass

from dpmcl.methods._meta_trained import MetaTrained


@dataclass(frozen=True, kw_only=True)
class CML(MetaTrained):
    """Meta continual learning, after the OML of Javed and White (2019): one loop changes g alone.

    Source: appendix B.5, "Our CML Implementation"; tested on (theta_1, theta_2). g, with parameters
    theta_2, is the prediction network. The readings (see `TwoLoop` for the rows of each loop):

    - "box": N_meta updates of theta_2 on D_PN, then N_grad of theta_1 and theta_2 on D_N;
    - "box-literal": N_meta updates of a copy of theta_2 on D_PN give theta~_2, then N_grad of
      theta_1 and theta_2 on D_N with the gradient of the cost at theta_1 and theta~_2;
    - "text": N_grad updates of theta_1 and theta_2 on D_N, then N_meta of theta_2 on validation
      rows;
    - "nested": inner updates change theta_2; outer steps change both, as in the original;
    - "original": OML as published by Javed and White (see `MetaTrained`): inner steps of 0.03 on
      the prediction, the outer cost on further rows of the trajectory's class, second order. Their
      trajectories have one to three classes; here they have one.

    "text" combines the text's loops with the box's parts. It is the default because it came nearest
    to the paper's row on MNIST, with three seeds (CME 0.659 in the paper; here 0.605 with "text"
    and 0.900 with "box": `docs/reading-the-paper.md`).

    theta_1 and theta_2 keep their optimiser states for the whole run; theta~ starts from a new one.
    """

    meta_parts = ("prediction",)
    grad_parts = ("representation", "prediction")
    inner_parts = ("prediction",)
    outer_parts = ("representation", "prediction")
    held_out = True
    published_step = 0.03


plugin = CML
