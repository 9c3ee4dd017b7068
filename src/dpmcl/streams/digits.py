"""scikit-learn's handwritten digits: real, small, no download."""

from dataclasses import dataclass

import torch

from dpmcl.data.labelled import Labelled
from dpmcl.exceptions import DataError, needed_for
from dpmcl.streams._settings import LabelledSettings


@dataclass(frozen=True, kw_only=True)
class Digits(LabelledSettings):
    """1,797 handwritten digits of 8x8 pixels, bundled with scikit-learn: ten one-class tasks.

    Inputs are (1, 8, 8) in [0, 1], stored as float32 (their values are multiples of 1/16). Needs
    scikit-learn (the extra `digits`).
    """

    def read(self) -> Labelled:
        with needed_for("Stream 'digits'", "dpmcl[digits]", DataError):
            from sklearn.datasets import load_digits
        pixels, labels = load_digits(return_X_y=True)
        x = torch.as_tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        y = torch.as_tensor(labels, dtype=torch.int64)
        return Labelled("digits", "classification", x, y, tuple(str(d) for d in range(10)))


plugin = Digits
