"""CIFAR100, all 60,000 images."""

from dataclasses import dataclass

from dpmcl.data.labelled import Labelled
from dpmcl.streams._known_files import KnownSet
from dpmcl.streams._torchvision_sets import TorchvisionSettings, torchvision_class


@dataclass(frozen=True, kw_only=True)
class CIFAR100(TorchvisionSettings):
    """60,000 colour photographs of a hundred kinds of things (Krizhevsky, 2009): 600 of each.

    Training and test images form one pool, training images first, in which every seed splits each
    class again. Inputs are (3, 32, 32), uint8, divided by 255 in a batch. Classes are the fine
    labels, in alphabetical order. Needs torchvision (the extra `vision`).

    Attributes:
        root: Folder or archive with the files of cifar-100-python, whose MD5 sums are checked
            before they are unpickled; None for $DPMCL_DATA/cifar100, or else
            ~/.cache/dpmcl/cifar100.
        download: Whether to download missing files.
    """

    def read(self) -> Labelled:
        return cifar("CIFAR100").read(self)


def cifar(name: str, instead: str = "") -> KnownSet:
    """Return CIFAR10 or CIFAR100 as a known set, whose pickles are opened only if sums match.

    Args:
        name: Name of torchvision's class.
        instead: Other settings that the user could change, for errors.
    """
    cls = torchvision_class(name)
    meta = cls.meta["filename"], cls.meta["md5"]
    sums = dict([*cls.train_list, *cls.test_list, meta])
    return KnownSet(name=name, sums=sums, folder=cls.base_folder, instead=instead)


plugin = CIFAR100
