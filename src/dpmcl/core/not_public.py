"""Names of PyTorch that are not public. They are imported here and nowhere else.

- `pyfunctorch` tells how many calls torch.func.vmap makes in one; nothing public does.
- `TorchDispatchMode` is the base class of a mode that sees every operation. FlopCounterMode, which
  is public, follows modules by hooks that torch.func.grad forbids.
- `FakeTensorMode` runs operations on shapes alone, which tells what memory their results share.
- `pytree` flattens arguments as torch.func does: lists and None included, unlike `core.tree`.
"""

from torch._functorch import pyfunctorch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["FakeTensorMode", "TorchDispatchMode", "pyfunctorch", "pytree"]
