"""CIFAR100, all 60,000 images."""

from dataclasses import dataclass

from dpmcl.data.labelled import Labelled
from dpmcl.streams._cifar_files import read_cifar
from dpmcl.streams._torchvision_sets import TorchvisionSettings, read_arrays_of


@dataclass(frozen=True, kw_only=True)
class CIFAR100(TorchvisionSettings):
    """60,000 colour photographs of a hundred kinds of things (Krizhevsky, 2009): 600 of each.

    Training and test images are one pool, training first; every seed splits each class anew. Inputs
    (3, 32, 32), uint8, in [0, 1] once in a batch. Classes are the fine labels, in alphabetical
    order.

    root: folder that holds cifar-100-python, its files, or an archive of them, whose MD5 sums are
    checked before they are unpickled; None for $DPMCL_DATA/cifar100, or else
    ~/.cache/dpmcl/cifar100. download: fetch what is missing. Needs torchvision (the extra
    `vision`).
    """

    def read(self) -> Labelled:
        parts = read_cifar("CIFAR100", self.folder("cifar100"), self.download)
        return read_arrays_of("cifar100", parts)


plugin = CIFAR100
