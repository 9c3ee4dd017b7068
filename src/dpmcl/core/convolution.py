"""Convolutions whose weight gradient is one batched matrix product.

Under vmap the convolutions of many replicas become one grouped convolution, and cuDNN computes its
weight gradient group by group, which takes half of a step on CIFAR10. Here x is unfolded and
multiplied by the output's gradient, for all replicas at once. The output and the input gradient are
computed by PyTorch.

The three functions below (output, input gradient, weight gradient) are the partial derivatives of
sum(g * conv(x, w)), which is linear in x, w and g. The derivatives of each are therefore the other
two, and no order of differentiation needs cuDNN's weight gradient.
"""

from dataclasses import dataclass
from itertools import starmap
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

Convolutions = Literal["native", "patches"]
Pair = tuple[int, int]

PATCH_BYTES = 2**30
"""Most bytes for the unfolded tensors of a layer, of all replicas; more rows are split in parts."""

_SMALL = 8  # the factors of a batched product have at least this many times its result's values


def default_convolutions(device: torch.device) -> Convolutions:
    """Return how to compute convolutions; on a CPU PyTorch's own weight gradient is faster.

    Args:
        device: Device of a model.
    """
    return "patches" if device.type == "cuda" else "native"


def with_patches(module: nn.Module) -> nn.Module:
    """Turn the plain two-dimensional convolutions of a module into `PatchedConv2d`, in place.

    Plain layers are of nn.Conv2d itself, with one group and zero padding. Names and parameters do
    not change.

    Args:
        module: The module to change.

    Returns:
        The same module.
    """
    for layer in module.modules():
        if type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros":
            layer.__class__ = PatchedConv2d
    return module


class PatchedConv2d(nn.Conv2d):
    """nn.Conv2d whose weight gradient is a batched matrix product; created by `with_patches`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x (n, channels, height, width).

        Args:
            x: Images (n, channels, height, width).
        """
        if x.dim() != 4:
            return super().forward(x)
        x, weight, bias = _cast_as_autocast(x, self.weight, self.bias)
        kernel, dilation = _pair(self.kernel_size), _pair(self.dilation)
        padding = (0, 0) if isinstance(self.padding, str) else _pair(self.padding)
        if self.padding == "same":
            height, width = (d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
            padding = (height // 2, width // 2)
            if height % 2 or width % 2:
                x = functional.pad(x, (0, width % 2, 0, height % 2))
        size = _pair(x.shape[2:])
        y: Tensor = _Output.apply(
            x, weight, _Geometry(size, kernel, _pair(self.stride), padding, dilation)
        )
        return y if bias is None else y + bias[:, None, None]


@dataclass(frozen=True)
class _Geometry:
    """Sizes of a convolution, each as (height, width); `size` is that of the input."""

    size: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def reach(self) -> Pair:
        """Distance of a kernel's last row and column from its first."""
        (height, width), (down, right) = self.kernel, self.dilation
        return down * (height - 1), right * (width - 1)


class _Bilinear(Function):
    """Base of functions of two tensors and a geometry that are linear in each tensor."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, _Geometry], output: Tensor) -> None:
        first, second, ctx.geometry = inputs
        ctx.save_for_backward(first, second)


class _Output(_Bilinear):
    """Output y (n, o, ...) of a convolution, from x (n, c, h, w) and w (o, c, kh, kw)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, geometry: _Geometry) -> Tensor:
        return functional.conv2d(x, w, None, geometry.stride, geometry.padding, geometry.dilation)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return _needed_gradients(ctx, (_Input, g, w), (_Weight, x, g))


class _Input(_Bilinear):
    """Gradient by x, from g (the gradient by y, of its shape) and w."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, w: Tensor, geometry: _Geometry) -> Tensor:
        stride, padding = geometry.stride, geometry.padding
        output_padding = [
            size + 2 * pad - reach - 1 - step * (out - 1)
            for size, pad, reach, step, out in zip(
                geometry.size, padding, geometry.reach, stride, g.shape[-2:], strict=True
            )
        ]
        return functional.conv_transpose2d(
            g, w, None, stride, padding, output_padding, 1, geometry.dilation
        )

    @staticmethod
    def backward(ctx: Any, x: Tensor) -> Any:
        g, w = ctx.saved_tensors
        return _needed_gradients(ctx, (_Output, x, w), (_Weight, x, g))


class _Weight(_Bilinear):
    """Gradient by w, from x and g (the gradient by y, of its shape)."""

    @staticmethod
    def forward(x: Tensor, g: Tensor, geometry: _Geometry) -> Tensor:
        return _weight_gradient(x[None], g[None], geometry)[0]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        *tensors, geometry = inputs
        x, g = (
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(tensors, in_dims[:2], strict=True)
        )
        return _weight_gradient(x, g, geometry), 0

    @staticmethod
    def backward(ctx: Any, w: Tensor) -> Any:
        x, g = ctx.saved_tensors
        return _needed_gradients(ctx, (_Input, g, w), (_Output, x, w))


def _needed_gradients(
    ctx: Any, *derivatives: tuple[Any, Tensor, Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients by both tensors, None where not needed, and None for the geometry."""
    gradients = [
        function.apply(first, second, ctx.geometry) if needed else None
        for (function, first, second), needed in zip(
            derivatives, ctx.needs_input_grad[:2], strict=True
        )
    ]
    return (*gradients, None)


# Memory traffic for 512 rows of 3x28x28, a 5x5 kernel and 6 output channels. The patches of x are
# 75 * 24 * 24 = 43200 values a row: 4.4 GB for 50 replicas in float32, written once and read once.
# If the kernel's columns are unfolded from x and its rows from g, the two are (15 + 30) * 28 * 24
# = 30240 values, and the results 30 by 15 in place of 6 by 75, which wastes less of a tile. A copy
# of g with rows and positions side by side would cost 2 * 3456 values more, the results of one
# product for each row 2 * 450.


def _weight_gradient(x: Tensor, g: Tensor, geometry: _Geometry) -> Tensor:
    """Return the weight gradient (R, o, c, kh, kw) of x (R, n, c, h, w) and g (R, n, o, oh, ow)."""
    replicas, n, c = x.shape[:3]
    o, height, width = g.shape[2:]
    rows, columns = geometry.kernel
    of_x = (c * rows * columns + o) * height * width
    of_both = (c * columns + o * rows) * (height + geometry.reach[0]) * width
    rows_from_g = geometry.stride[0] == 1 and of_both < of_x
    values = of_both if rows_from_g else of_x

    rows_at_once = PATCH_BYTES // (replicas * values * x.element_size())
    if rows_at_once < n:
        rows_at_once = 1 << max(
            rows_at_once.bit_length() - 1, 0
        )  # a power of two has divisors for `part`
    least = -(-_SMALL * o * c * rows * columns // values)

    def part(x: Tensor, g: Tensor) -> Tensor:
        n = x.shape[1]
        rows_per_matrix = next((m for m in range(least, n) if n % m == 0), n)
        return _product(x, g, geometry, rows_from_g=rows_from_g, rows_per_matrix=rows_per_matrix)

    first, *rest = starmap(
        part, zip(x.split(rows_at_once, 1), g.split(rows_at_once, 1), strict=True)
    )
    return sum(rest, first)


def _product(
    x: Tensor, g: Tensor, geometry: _Geometry, *, rows_from_g: bool, rows_per_matrix: int
) -> Tensor:
    """Return the weight gradient by one batched product of pairs of matrices.

    There are R * n / rows_per_matrix pairs.
    rows_from_g: whether the kernel's rows are unfolded from g and only its columns from x.
    rows_per_matrix: number of rows, out of n, that one matrix holds.
    """
    (rows, columns), (step, across) = geometry.kernel, geometry.stride
    (down, right), (pad_height, pad_width) = geometry.dilation, geometry.padding
    c, o = x.shape[2], g.shape[2]
    if pad_height or pad_width:
        x = functional.pad(x, (pad_width, pad_width, pad_height, pad_height))
    x = _windows(x, 4, columns, stride=across, dilation=right)
    if rows_from_g:
        reach = geometry.reach[0]
        g = functional.pad(g, (0, 0, reach, reach))
        g = _windows(g, 3, rows, stride=1, dilation=down)[..., None, :]
        x = x[..., None]
    else:
        g, x = g[..., None, None], _windows(x, 3, rows, stride=step, dilation=down)

    def matrices(t: Tensor) -> Tensor:
        """Return (R * n / rows_per_matrix, ..., rows_per_matrix * ...): images side by side."""
        t = t.unflatten(1, (-1, rows_per_matrix)).permute(0, 1, 3, 7, 6, 2, 4, 5)
        return t.reshape(t.shape[0] * t.shape[1], t.shape[2] * t.shape[3] * t.shape[4], -1)

    products = torch.bmm(matrices(g), matrices(x).mT)
    sides = (rows, c, 1, columns) if rows_from_g else (1, c, rows, columns)
    gradient = products.view(g.shape[0], -1, o, *sides).sum(1)
    if rows_from_g:
        gradient = gradient.flip(2)  # row i of the kernel is multiplied by g from i rows above
    return gradient.transpose(2, 3).reshape(-1, o, c, rows, columns)


def _windows(x: Tensor, dim: int, kernel: int, *, stride: int, dilation: int) -> Tensor:
    """Return a view of x in windows along `dim`, with the elements of a window last."""
    return x.unfold(dim, dilation * (kernel - 1) + 1, stride)[..., ::dilation]


def _cast_as_autocast(x: Tensor, *others: Tensor | None) -> Any:
    """Cast tensors to the type that autocast uses in convolutions; it ignores custom Functions."""
    kind = x.device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return x, *others
    dtype = torch.get_autocast_dtype(kind)
    return tuple(None if t is None else t.to(dtype) for t in (x, *others))


def _pair(values: Any) -> Pair:
    """Return two integers."""
    first, second = values
    return int(first), int(second)
