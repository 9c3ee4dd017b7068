"""MNIST, all 70,000 images, from torchvision's files."""

from dataclasses import dataclass, replace

from dpmcl.idx_files import read_idx
from dpmcl.labelled import Labelled
from dpmcl.torchvision_sets import TorchvisionSettings, read_arrays_of

# Of the unpacked files: torchvision publishes the sums of the packed ones, which repacking changes.
_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


@dataclass(frozen=True, kw_only=True)
class MNIST(TorchvisionSettings):
    """70,000 handwritten digits of 28x28 pixels (LeCun et al., 1998): ten one-class tasks.

    Training and test images are one pool, in torchvision's order (training first); every seed
    splits each class anew, as the paper does (appendix B.1). Inputs (1, 28, 28), uint8, in [0, 1]
    once in a batch.

    root: folder that holds MNIST/raw with the four IDX files, gzipped or not; None for
    $DPMCL_DATA/mnist, or else ~/.cache/dpmcl/mnist. download: fetch what is missing.
    Needs torchvision (the extra `vision`).
    """

    def read(self) -> Labelled:
        parts = read_idx("MNIST", self.folder("mnist"), self.download, _MD5)
        digits = tuple(str(d) for d in range(10))  # torchvision names them "0 - zero"
        return replace(read_arrays_of("mnist", parts), classes=digits)


plugin = MNIST
