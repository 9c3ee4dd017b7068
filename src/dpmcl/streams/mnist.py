"""MNIST, all 70,000 images, from torchvision's files."""

from dataclasses import dataclass, replace

from dpmcl.data.labelled import Labelled
from dpmcl.streams._idx_files import read_idx
from dpmcl.streams._torchvision_sets import TorchvisionSettings, read_arrays_of


@dataclass(frozen=True, kw_only=True)
class MNIST(TorchvisionSettings):
    """70,000 handwritten digits of 28x28 pixels (LeCun et al., 1998): ten one-class tasks.

    Training and test images are one pool, in torchvision's order (training first); every seed
    splits each class anew, as the paper does (appendix B.1). Inputs (1, 28, 28), uint8, in [0, 1]
    once in a batch.

    root: folder of the four IDX files, or of MNIST/raw with them, packed or not, known by their
    content; None for $DPMCL_DATA/mnist, or else ~/.cache/dpmcl/mnist. download: fetch what is
    missing. Needs torchvision (the extra `vision`).
    """

    def read(self) -> Labelled:
        parts = read_idx("MNIST", self.folder("mnist"), self.download)
        digits = tuple(str(d) for d in range(10))  # torchvision names them "0 - zero"
        return replace(read_arrays_of("mnist", parts), classes=digits)


plugin = MNIST
