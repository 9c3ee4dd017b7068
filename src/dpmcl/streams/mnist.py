"""MNIST, all 70,000 images, from torchvision's files."""

import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from dpmcl.exceptions import DataError
from dpmcl.images import data_folder
from dpmcl.stream import Stream, StreamSettings, class_incremental

# Of the unpacked files: torchvision publishes the sums of the packed ones, which repacking changes.
_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


@dataclass(frozen=True, kw_only=True)
class MNIST(StreamSettings):
    """70,000 handwritten digits of 28x28 pixels (LeCun et al., 1998): ten one-class tasks.

    Training and test images are one pool, in torchvision's order (training first); every seed
    splits each class anew, as the paper does (appendix B.1). Inputs (1, 28, 28), uint8, in [0, 1]
    once in a batch.

    root: folder that holds MNIST/raw with the four IDX files, gzipped or not; None for
    $DPMCL_DATA/mnist, or else ~/.cache/dpmcl/mnist. download: fetch what is missing.
    Needs torchvision (the extra `vision`).
    """

    network: ClassVar[str] = "lenet"
    places: ClassVar[tuple[str, ...]] = ("root", "download")

    root: str | None = None
    download: bool = True

    def build(self, seeds: Sequence[int]) -> Stream:
        root = Path(self.root).expanduser() if self.root else data_folder("mnist")
        train, test = _load(root, self.download)
        x = torch.cat([train.data, test.data])[:, None]
        y = torch.cat([train.targets, test.targets]).to(torch.int64)
        return class_incremental("mnist", x, y, [str(d) for d in range(10)], self.tasks)


def _load(root: Path, download: bool) -> tuple[Any, Any]:
    """torchvision's two sets: from files in root, unpacked aside if they are packed; or fetched."""
    try:
        from torchvision.datasets import MNIST as Files
        from torchvision.datasets.utils import check_integrity, extract_archive
    except ImportError:
        raise DataError("Stream 'mnist' needs torchvision: pip install 'dpmcl[vision]'.") from None
    raw = root / "MNIST" / "raw"
    packed = [raw / name for name, _ in Files.resources]
    plain = [path.with_suffix("") for path in packed]
    if all(path.is_file() for path in plain):
        for path in plain:
            if not check_integrity(path, _MD5[path.name]):
                raise _altered(path, path.name)
        return Files(root, train=True), Files(root, train=False)
    if all(path.is_file() for path in packed):
        # The folder may be read-only, and what it holds is not ours to change.
        with tempfile.TemporaryDirectory() as aside:
            inner = Path(aside) / "MNIST" / "raw"
            inner.mkdir(parents=True)
            for path in packed:
                try:
                    extract_archive(path, inner, remove_finished=False)
                except (OSError, EOFError, zlib.error) as error:
                    raise DataError(
                        f"{path} cannot be unpacked ({error}); fetch it again."
                    ) from None
                if not check_integrity(inner / path.stem, _MD5[path.stem]):
                    raise _altered(path, path.stem)
            return Files(aside, train=True), Files(aside, train=False)
    names = ", ".join(path.name for path in packed)
    if not download:
        raise DataError(
            f"MNIST is not in {raw} (looked for {names}, gzipped or not); "
            "set stream.root to the folder that holds MNIST/raw, or stream.download = true."
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
        return Files(root, train=True, download=True), Files(root, train=False, download=True)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"MNIST is not in {raw} and could not be fetched ({error}); put {names} there, "
            "or set stream.root to the folder that holds MNIST/raw."
        ) from None


def _altered(path: Path, name: str) -> DataError:
    return DataError(
        f"{path} must hold the published file (MD5 {_MD5[name]}, unpacked), and does not; "
        "remove it and fetch it again."
    )


plugin = MNIST
