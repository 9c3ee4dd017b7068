"""Errors in the code of a user's method or network: where it fails, and what batching forbids."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dpmcl.core.allocation import is_out_of_memory
from dpmcl.exceptions import DpmclError, ModelError, reason

_RULES = {
    "control flow": "a branch on a tensor's value (use torch.where)",
    ".item()": "a tensor's value as a Python number (.item(), float)",
    "num_classes": "one_hot without a number of classes",
    "random operation": "a draw from PyTorch's generators (use nn.Dropout or dpmcl.keys)",
    "inplace": "a change in place of a tensor that replicas share (write x = x + y)",
    "dynamic shape": "a result whose shape depends on values (nonzero, x[mask])",
    "generate_vmap_rule": "an autograd.Function without generate_vmap_rule = True",
    "data pointer": ".numpy() and .tolist()",
}
"""What batching forbids, by words of PyTorch's error message."""

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


def batching_advice(error: BaseException) -> str:
    """Return one sentence on what batching forbids, to add to an error in a user's code.

    Args:
        error: Error that a network or an update raised under the batched engine. If its message is
            one of PyTorch's on batching, the sentence names what the code did; otherwise it lists
            all that is forbidden.

    >>> batching_advice(RuntimeError("vmap: It looks like you're calling .item() on a Tensor."))
    "Batching forbids a tensor's value as a Python number (.item(), float); leave it out, or use \
engine = 'looped' (--engine looped)."
    """
    broken = [rule for words, rule in _RULES.items() if words in str(error)] or list(
        _RULES.values()
    )
    return (
        f"Batching forbids {', '.join(broken)}; leave it out, or use engine = 'looped' "
        "(--engine looped)."
    )


@contextmanager
def locating_errors(what: str, *, batched: bool) -> Iterator[None]:
    """Raise an error that names the line of the user's code that fails in a block.

    Args:
        what: Name of what the block runs, as in "the update of er".
        batched: Whether replicas are batched; a RuntimeError then adds what batching forbids.

    Raises:
        ModelError: Code outside of the package and PyTorch failed; the cause has the traceback.
    """
    try:
        yield
    except DpmclError:
        raise
    except Exception as error:
        line = _user_line(error)
        if line is None or is_out_of_memory(error):
            raise
        by_vmap = batched and isinstance(error, RuntimeError)
        rule = f" {batching_advice(error)}" if by_vmap else " Mend it there."
        raise ModelError(
            f"{what} fails at {line}: {type(error).__name__}: {reason(error)}.{rule}"
        ) from error


def _user_line(error: BaseException) -> str | None:
    """Return the last line outside of the package and PyTorch that an error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [i for i, frame in enumerate(frames) if frame.filename.startswith(_LIBRARIES)]
    if not inside:
        return None
    later = [f for f in frames[inside[0] :] if not f.filename.startswith((*_LIBRARIES, "<"))]
    return f"{later[-1].filename}, line {later[-1].lineno}" if later else None
