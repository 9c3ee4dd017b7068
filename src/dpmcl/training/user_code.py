"""Says where code of a user's own method or network fails, and what batching forbids."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dpmcl.core.allocation import out_of_memory
from dpmcl.core.batching import explained
from dpmcl.exceptions import DpmclError, ModelError, reason

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


@contextmanager
def located(what: str, *, batched: bool) -> Iterator[None]:
    """Raise an error that names the user's line where code in a block fails.

    Args:
        what: What runs in the block, as in "the update of er".
        batched: Whether replicas are mapped, so that batching may forbid what the code does.

    Raises:
        ModelError: Code from outside the package and PyTorch failed; the cause has the traceback.
    """
    try:
        yield
    except DpmclError:
        raise
    except Exception as error:
        line = _user_line(error)
        if line is None or out_of_memory(error):
            raise
        rule = f" {explained(error)}" if batched else " Mend it there."
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
