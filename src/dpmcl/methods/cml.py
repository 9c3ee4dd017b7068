"""CML (appendix B.5): OML with a representation network that one loop leaves alone."""

from dataclasses import dataclass

from dpmcl.methods._meta_trained import MetaTrained


@dataclass(frozen=True, kw_only=True)
class CML(MetaTrained):
    """Meta continual learning, after the OML of Javed and White (2019): one loop moves g alone.

    Source: appendix B.5, "Our CML Implementation"; tested on (theta_1, theta_2). g, of theta_2, is
    the prediction network. In each reading (see `TwoLoop` for the rows that a loop sees):

    - "box": N_meta updates of theta_2 on D_PN, then N_grad of theta_1 and theta_2 on D_N;
    - "box-literal": N_meta updates on D_PN make theta~_2 of a copy of theta_2, then N_grad of
      theta_1 and theta_2 on D_N by the cost at theta_1 and theta~_2;
    - "text": N_grad updates of theta_1 and theta_2 on D_N, then N_meta of theta_2 on validation
      rows;
    - "nested": inner updates move theta_2; outer steps move both, as in the original;
    - "original": OML as Javed and White publish it (see `MetaTrained`): inner steps of 0.03 on the
      prediction, the outer cost on further rows of the trajectory's class, second order. They take
      trajectories of one to three classes; here of one.

    "text" mixes the text's loops with the box's parts. It is the default since it came nearest to
    the paper's row on MNIST, with three seeds (CME 0.659; here 0.605 with "text", 0.900 with "box":
    `benchmarks/README.md`).

    theta_1 and theta_2 keep their optimiser states for the run; theta~ starts with a fresh one.
    """

    meta_parts = ("prediction",)
    grad_parts = ("representation", "prediction")
    inner_parts = ("prediction",)
    outer_parts = ("representation", "prediction")
    held_out = True
    published_step = 0.03


plugin = CML
