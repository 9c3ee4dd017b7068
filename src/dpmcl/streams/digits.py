"""scikit-learn's handwritten digits: real, small, no download."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dpmcl.exceptions import DataError
from dpmcl.stream import Stream, StreamSettings, class_incremental


@dataclass(frozen=True, kw_only=True)
class Digits(StreamSettings):
    """1,797 handwritten digits of 8x8 pixels, bundled with scikit-learn: ten one-class tasks.

    Inputs (1, 8, 8) in [0, 1], stored as float32 (their values are sixteenths). Needs
    scikit-learn (the extra `digits`).
    """

    def build(self, seeds: Sequence[int]) -> Stream:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise DataError(
                "Stream 'digits' needs scikit-learn: pip install 'dpmcl[digits]'."
            ) from None
        pixels, labels = load_digits(return_X_y=True)
        x = torch.as_tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        y = torch.as_tensor(labels, dtype=torch.int64)
        return class_incremental("digits", x, y, [str(d) for d in range(10)], self.tasks)


plugin = Digits
