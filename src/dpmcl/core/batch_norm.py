"""BatchNorm whose training statistics leave absent rows out."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dpmcl.exceptions import ModelError

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

if TYPE_CHECKING:
    _Base = nn.BatchNorm1d
else:
    _Base = nn.Module


class MaskedBatchNorm(_Base):
    """Base of the three classes below; `mask_batch_norm` turns PyTorch's layers into them.

    With all rows present it computes the same as PyTorch's layer. Rows whose weight `w` is 0 do not
    enter the mean and the variance, and their output is the layer's bias, so it is finite whatever
    their input. The running statistics are updated only if a pass is given them, by PyTorch's rule
    (momentum, unbiased variance). If fewer than two values of a channel are present, they do not
    change; PyTorch's layer raises an exception then.
    """

    w: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Return x (n, channels, ...), normalised over its rows in training.

        Args:
            x: Inputs (n, channels, ...).
        """
        if not self.training:
            return super().forward(x)
        w = x.new_ones(len(x)) if self.w is None else self.w
        self._check(x, w)
        values = x.float() if x.dtype.itemsize < 4 else x
        dims = [0, *range(2, x.dim())]
        channels = [1, -1, *[1] * (x.dim() - 2)]
        present = (w > 0).view(-1, *[1] * (x.dim() - 1))
        zero = values.new_zeros(())

        count = present.sum().to(values.dtype) * x[0, 0].numel()
        values = torch.where(present, values, zero)
        mean = values.sum(dims, keepdim=True) / count.clamp(min=1)
        centred = torch.where(present, values - mean, zero)
        variance = centred.square().sum(dims, keepdim=True) / count.clamp(min=1)
        out = centred * (variance + self.eps).rsqrt()
        if self.weight is not None:
            out = out * self.weight.view(channels)
        if self.bias is not None:
            out = out + self.bias.view(channels)
        if self.running_mean is not None:
            self._update_statistics(mean.flatten(), variance.flatten(), count)
        return out.to(x.dtype)

    def _update_statistics(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Replace the running statistics by those after this pass."""
        assert self.num_batches_tracked is not None
        enough = count > 1
        tracked = self.num_batches_tracked + enough.to(torch.int64)
        share: Tensor | float | None = self.momentum
        if share is None:
            share = 1 / tracked.clamp(min=1).to(mean.dtype)
        unbiased = variance * (count / (count - 1).clamp(min=1))

        def updated(before: Tensor | None, now: Tensor) -> Tensor:
            assert before is not None
            after = ((1 - share) * before + share * now.detach()).to(before.dtype)
            return torch.where(enough, after, before)

        self.running_mean = updated(self.running_mean, mean)
        self.running_var = updated(self.running_var, unbiased)
        self.num_batches_tracked = tracked

    def _check(self, x: Tensor, w: Tensor) -> None:
        """Raise ModelError if the rows of x are not those of w, or a channel has a single value."""
        if len(w) != len(x):
            raise ModelError(
                f"BatchNorm must get the rows of the batch as its first dimension, {len(w)}, got "
                f"{len(x)}; keep each row's values together behind it, or use nn.GroupNorm."
            )
        if x[:, 0].numel() < 2:
            raise ModelError(
                "BatchNorm needs two values of each channel in training, got a batch of one row; "
                "use batch = 2 or more, with a method that does not train row by row, or "
                "nn.GroupNorm."
            )


class MaskedBatchNorm1d(MaskedBatchNorm, nn.BatchNorm1d):
    """nn.BatchNorm1d that leaves absent rows out."""


class MaskedBatchNorm2d(MaskedBatchNorm, nn.BatchNorm2d):
    """nn.BatchNorm2d that leaves absent rows out."""


class MaskedBatchNorm3d(MaskedBatchNorm, nn.BatchNorm3d):
    """nn.BatchNorm3d that leaves absent rows out."""


MASKED: dict[type[nn.Module], type[MaskedBatchNorm]] = {
    nn.BatchNorm1d: MaskedBatchNorm1d,
    nn.BatchNorm2d: MaskedBatchNorm2d,
    nn.BatchNorm3d: MaskedBatchNorm3d,
}
"""Our class for each of PyTorch's. Other classes (subclasses, nn.SyncBatchNorm) are not replaced,
and `core.network_check` refuses them if they mix rows."""


def mask_batch_norm(module: nn.Module) -> nn.Module:
    """Turn the BatchNorm layers of a module in training mode into ours, in place.

    A layer that overrides `train` to stay in evaluation mode is not changed, nor is one without
    running statistics.

    Args:
        module: The module to change.

    Returns:
        The same module.
    """
    for layer in module.modules():
        if type(layer) in MASKED and layer.training and layer.track_running_stats:
            layer.__class__ = MASKED[type(layer)]
            layer.register_buffer("w", None, persistent=False)
    return module


def take_statistics(module: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics of our layers by name, and replace them by None in the module.

    Args:
        module: A module that `mask_batch_norm` has returned.
    """
    statistics = {}
    for prefix, layer in module.named_modules():
        if isinstance(layer, MaskedBatchNorm):
            for name in STATISTICS:
                statistics[f"{prefix}.{name}" if prefix else name] = layer.get_buffer(name)
                layer.register_buffer(name, None)
    return statistics
