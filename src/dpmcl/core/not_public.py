"""Names of PyTorch that are not public. They are imported here and nowhere else.

- `pyfunctorch` gives the transformations of torch.func that a call is in, the number of calls that
  torch.func.vmap maps, and a block outside of them all; no public name does.
- `TorchDispatchMode` is the base class of a mode that intercepts every operation. The public
  FlopCounterMode tracks modules by hooks, which torch.func.grad forbids.
- `pytree` flattens arguments as torch.func does, including lists and None, unlike `core.tree`.
"""

from torch._functorch import pyfunctorch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode", "pyfunctorch", "pytree"]
