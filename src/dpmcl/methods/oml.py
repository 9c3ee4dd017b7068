"""OML (appendix B.5): an inner loop on the new task, an outer loop on all, with one network."""

from dataclasses import dataclass

from dpmcl.methods._two_loop import TwoLoop


@dataclass(frozen=True, kw_only=True)
class OML(TwoLoop):
    """Online meta learning: every loop moves all of theta; tested on theta.

    Source: appendix B.5, algorithm "Our OML implementation" (after Finn et al., 2019). In each
    reading (see `TwoLoop` for the rows that a loop sees):

    - "box": N_meta updates of theta on D_PN, then N_grad of theta on D_N;
    - "box-literal": N_meta updates on D_PN make theta~ of a copy of theta, then N_grad of theta on
      D_N by the cost at theta~;
    - "text": N_grad updates of theta on D_N, then N_meta of theta on validation rows;
    - "nested": inner updates and outer steps both move all of theta.

    "text" is the default: on MNIST it comes nearest to the paper's row (`benchmarks/README.md`).

    All updates of theta share its one optimiser state; theta~ starts with a fresh one.
    """

    meta_parts = ("representation", "prediction")
    grad_parts = ("representation", "prediction")
    inner_parts = ("representation", "prediction")
    outer_parts = ("representation", "prediction")


plugin = OML
