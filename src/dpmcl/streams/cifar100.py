"""CIFAR100, all 60,000 images."""

from dataclasses import dataclass

from dpmcl.data.labelled import Labelled
from dpmcl.streams._known_files import KnownSet
from dpmcl.streams._torchvision_sets import TorchvisionSettings, torchvision_class


@dataclass(frozen=True, kw_only=True)
class CIFAR100(TorchvisionSettings):
    """60,000 colour photographs of a hundred kinds of things (Krizhevsky, 2009): 600 of each.

    Training and test images are one pool, training first; every seed splits each class anew. Inputs
    (3, 32, 32), uint8, in [0, 1] once in a batch. Classes are the fine labels, in alphabetical
    order.

    root: folder or archive that holds the files of cifar-100-python, whose MD5 sums are checked
    before they are unpickled; None for $DPMCL_DATA/cifar100, or else ~/.cache/dpmcl/cifar100.
    download: fetch what is missing. Needs torchvision (the extra `vision`).
    """

    def read(self) -> Labelled:
        return cifar("CIFAR100").read(self)


def cifar(name: str, instead: str = "") -> KnownSet:
    """Return what is known of CIFAR10 or CIFAR100: pickles, opened if their sums are right.

    Args:
        name: Of torchvision's class.
        instead: What else a user could set, for errors.
    """
    cls = torchvision_class(name)
    meta = cls.meta["filename"], cls.meta["md5"]
    sums = dict([*cls.train_list, *cls.test_list, meta])
    return KnownSet(name=name, sums=sums, folder=cls.base_folder, instead=instead)


plugin = CIFAR100
