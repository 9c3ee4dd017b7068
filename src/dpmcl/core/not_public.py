"""Names of PyTorch that are not public. They are imported here and nowhere else.

- `pyfunctorch` gives the number of calls that torch.func.vmap maps; no public name does.
- `TorchDispatchMode` is the base class of a mode that intercepts every operation. The public
  FlopCounterMode tracks modules by hooks, which torch.func.grad forbids.
- `FakeTensorMode` runs operations on shapes without data, which shows the results' shared memory.
- `pytree` flattens arguments as torch.func does, including lists and None, unlike `core.tree`.
"""

from torch._functorch import pyfunctorch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["FakeTensorMode", "TorchDispatchMode", "pyfunctorch", "pytree"]
