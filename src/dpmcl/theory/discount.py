"""Tell which of the paper's statements about J(t) a discount satisfies (Lemma 1, Corollary 1)."""

import math
from typing import Literal, NamedTuple

from dpmcl.discounts._discount import Discount

Statement = Literal["lemma 1", "corollary 1", "neither"]


class Verdict(NamedTuple):
    """Behaviour of J(t) as t grows, for losses between eps > 0 and L.

    Attributes:
        statement: Statement of the paper that holds, or "neither".
        outcome: "converges" (provided that theta(t) does), "bounded", "diverges" or "unclear".
        line: The verdict in words, for the user.
    """

    statement: Statement
    outcome: Literal["converges", "bounded", "diverges", "unclear"]
    line: str


def verdict(discount: Discount) -> Verdict:
    """Return whether J(t) converges, stays bounded or diverges, judged by the sum of all weights.

    `docs/theory_results.md` has the derivation.

    Args:
        discount: The discount; its property `total` is not checked.

    >>> from dpmcl.discounts.power import Power
    >>> verdict(Power(p=1, by="time")).outcome
    'diverges'
    """
    head, total = f"gamma by {discount.by}", discount.total
    if total is None:
        line = (
            f"{head}: it is not known whether the weights of {type(discount).__name__} have a "
            "finite sum, without which J(t) grows without bound; if you know the sum, return it "
            "from the property `total`."
        )
        return Verdict("neither", "unclear", line)
    rises = discount.first_weights().diff()
    if math.isinf(total):
        holds: Statement = "corollary 1" if bool((rises >= 0).all()) else "neither"
        how = "corollary 1 holds" if holds == "corollary 1" else "neither statement applies"
        line = (
            f"{head} has no finite sum, and J(t) grows without bound while losses stay above some "
            f"eps > 0 ({how}); exponential, window and power with p > 1 keep it bounded."
        )
        return Verdict(holds, "diverges", line)
    bound = f"{head} sums to {total:.4g}: J(t) <= {total:.4g} L, L the largest loss of a task"
    if discount.by == "age":
        line = f"{bound}; it need not converge, since other tasks become the newest."
        return Verdict("neither", "bounded", line)
    falls = not bool((rises > 0).any())
    how = "lemma 1 holds, the oldest tasks count most" if falls else "gamma rises at times"
    line = f"{bound}, and it converges if theta(t) does; {how}."
    return Verdict("lemma 1" if falls else "neither", "converges", line)
