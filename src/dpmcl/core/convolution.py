"""Convolutions whose weight gradient is one batched matrix product.

Under vmap the convolutions of many replicas become one grouped convolution, and cuDNN computes its
weight gradient group by group, which takes half of a step on CIFAR10. Here x is unfolded and
multiplied by the output's gradient, for all replicas at once. The output and the input gradient are
computed by PyTorch.

The three functions below (output, input gradient, weight gradient) are the partial derivatives of
sum(g * conv(x, w)), which is linear in x, w and g. The derivatives of each are therefore the other
two, and no order of differentiation needs cuDNN's weight gradient.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional
from torch.nn.grad import conv2d_input

Convolutions = Literal["native", "patches"]
Pair = tuple[int, int]


def with_patches(module: nn.Module) -> nn.Module:
    """Turn the plain two-dimensional convolutions of a module into `PatchedConv2d`, in place.

    Plain layers are of nn.Conv2d itself, with one group and numbers of zeros as padding. Names and
    parameters do not change.

    Args:
        module: The module to change.

    Returns:
        The same module.
    """
    for layer in module.modules():
        plain = type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
        if plain and not isinstance(layer.padding, str):
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
        stride, padding, size = _pair(self.stride), _pair(self.padding), _pair(x.shape[2:])
        y: Tensor = _Output.apply(x, weight, _Geometry(size, kernel, stride, padding, dilation))
        return y if bias is None else y + bias[:, None, None]


class _Geometry(NamedTuple):
    """Sizes of a convolution, each as (height, width); `size` is that of the input."""

    size: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair


class _Bilinear(Function):
    """Base of functions of two tensors and a geometry that are linear in each tensor."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, _Geometry], output: Tensor) -> None:
        first, second, ctx.geometry = inputs
        ctx.save_for_backward(first, second)


class _Output(_Bilinear):
    """Output y (n, o, oh, ow) of a convolution, from x (n, c, h, w) and w (o, c, kh, kw)."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, geometry: _Geometry) -> Tensor:
        return functional.conv2d(x, w, None, *geometry[2:])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return _needed_gradients(ctx, (_Input, g, w), (_Weight, x, g))


class _Input(_Bilinear):
    """Gradient by x, from g (the gradient by y, of its shape) and w."""

    @staticmethod
    def forward(g: Tensor, w: Tensor, geometry: _Geometry) -> Tensor:
        x: Tensor = conv2d_input((len(g), w.shape[1], *geometry.size), w, g, *geometry[2:])
        return x

    @staticmethod
    def backward(ctx: Any, x: Tensor) -> Any:
        g, w = ctx.saved_tensors
        return _needed_gradients(ctx, (_Output, x, w), (_Weight, x, g))


class _Weight(_Bilinear):
    """Gradient by w, from x and g (the gradient by y, of its shape)."""

    @staticmethod
    def forward(x: Tensor, g: Tensor, geometry: _Geometry) -> Tensor:
        (height, width), kernel = geometry.padding, geometry.kernel
        patches = functional.pad(x, (width, width, height, height))
        for dim, size, stride, dilation in zip(
            (2, 3), kernel, geometry.stride, geometry.dilation, strict=True
        ):
            patches = patches.unfold(dim, dilation * (size - 1) + 1, stride)[..., ::dilation]
        gradient: Tensor = torch.einsum("nohw,nchwij->ocij", g, patches)
        return gradient

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
