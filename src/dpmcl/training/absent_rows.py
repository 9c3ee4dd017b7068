"""Find updates whose result depends on rows of weight 0, which are absent."""

from dataclasses import replace

import torch

from dpmcl.core.tree import at, equal, leaves
from dpmcl.engine import Feed
from dpmcl.methods._method import Update
from dpmcl.training.divergence import LinAlgError
from dpmcl.training.setup import Setup
from dpmcl.training.state import RunState


def uses_absent_rows(setup: Setup, run: RunState, update: Update, feed: Feed) -> bool:
    """Return True if an update of the first replica changes with the rows that have weight 0.

    Results are compared bit by bit, so it is False on a GPU, which may repeat them to rounding, and
    for networks that draw from global generators, since the draws of a row may depend on others.

    Args:
        setup: Setup of the run.
        run: The state before the update.
        update: The update.
        feed: Batches and keys, of which the first step is taken.
    """
    drawn, train = feed.drawn, setup.splits.train
    complete = all(bool((present > 0).all()) for present in drawn.present.values())
    draws = any(part.draws for part in setup.model.parts.values())
    if complete or draws or setup.model.device.type != "cpu":
        return False
    another = train.row[0, train.offset[0, 1] - 1]  # the first task's last, not its first
    rows = {
        name: torch.where(drawn.present[name] > 0, row, another) for name, row in drawn.row.items()
    }
    feeds = (feed, replace(feed, drawn=drawn._replace(row=rows)))
    try:
        first, second = (
            update(at(run.replicas, 0), each.batches(0, 0), feed.key[0, 0]) for each in feeds
        )
    except LinAlgError:
        return False
    return not all(map(equal, leaves(first), leaves(second)))
