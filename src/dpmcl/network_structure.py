"""What a run cannot take of a network, as far as its layers and parameters show it.

Frozen and shared parameters, statistics over a batch, sizes not known yet, and a construction that
does not follow the seed.
"""

from typing import Any

import torch
from torch import Tensor, nn

from dpmcl.exceptions import ModelError
from dpmcl.part import PARTS, Modules


def check_structure(modules: Modules) -> None:
    """Refuse layers and parameters that a run would not take as they are meant."""
    known: list[tuple[str, str, int, int]] = []
    for part, module in zip(PARTS, modules, strict=True):
        for name, layer in module.named_modules(prefix=part):
            _check_layer(f"{name}: {type(layer).__name__}", layer)
        for name, buffer in module.named_buffers(prefix=part):
            if buffer.is_complex():
                raise ModelError(
                    f"Buffers must hold real numbers, and '{name}' is {name_of(buffer.dtype)}; "
                    "keep torch.view_as_real of it."
                )
        for name, parameter in module.named_parameters(prefix=part):
            _check_parameter(name, parameter)
            begin, end = _memory(parameter)
            for owner, first, low, high in known:
                if begin < high and low < end and owner != part:
                    raise ModelError(
                        f"Representation and prediction may not share parameters, and '{name}' is "
                        f"'{first}'; give each part its own."
                    )
                if begin < high and low < end:
                    raise ModelError(
                        f"Parameters '{first}' and '{name}' are two over the same memory; use one "
                        "nn.Parameter in both places."
                    )
            known.append((part, name, begin, end))


def _memory(tensor: Tensor) -> tuple[int, int]:
    """Return where a tensor's values begin and end."""
    begin = tensor.data_ptr()
    if not (begin and tensor.numel()):
        return 0, 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


def _check_layer(name: str, layer: nn.Module) -> None:
    norms = nn.modules.batchnorm
    if isinstance(layer, torch.jit.ScriptModule) or type(layer).__name__ == "OptimizedModule":
        raise ModelError(
            f"A network may not be compiled, and {name} is; leave out torch.jit and torch.compile."
        )
    tensors = [*layer._parameters.values(), *layer._buffers.values()]
    if any(nn.parameter.is_lazy(tensor) for tensor in tensors if tensor is not None):
        raise ModelError(
            f"All sizes of a network must be known, and those of {name} are not; initialise it "
            "with its sizes (nn.Linear in place of nn.LazyLinear)."
        )
    if isinstance(layer, norms._BatchNorm):
        raise ModelError(
            f"A network may not normalise over its batch, since a row's answer would depend on the "
            f"other rows, and {name} does; use nn.GroupNorm or nn.LayerNorm."
        )
    hooks = layer._forward_pre_hooks.values()
    spectral = nn.utils.parametrizations._SpectralNorm
    if isinstance(layer, spectral) or any(type(h).__name__ == "SpectralNorm" for h in hooks):
        raise ModelError(
            f"A network may not change in a forward pass, and the spectral norm in {name} does; "
            "use torch.nn.utils.parametrizations.weight_norm."
        )
    if isinstance(layer, norms._NormBase) and layer.track_running_stats:
        raise ModelError(
            f"A network may not keep running statistics, and {name} does; use nn.GroupNorm or "
            "nn.LayerNorm, or leave out track_running_stats."
        )
    for attribute, value in vars(layer).items():
        if isinstance(value, Tensor) and value.grad_fn is not None:
            raise ModelError(
                f"{name} keeps '{attribute}', computed from its parameters before the run, where "
                "the run would not find it; compute it in `forward`, or use "
                "torch.nn.utils.parametrizations."
            )


def _check_parameter(name: str, parameter: nn.Parameter) -> None:
    if not parameter.is_floating_point():
        raise ModelError(
            f"Parameters must be floats, and '{name}' is {name_of(parameter.dtype)}; use a "
            "parameter of real numbers, or a buffer."
        )
    if not parameter.requires_grad:
        raise ModelError(
            f"Frozen parameters are not supported yet, and '{name}' has requires_grad = False; "
            "leave requires_grad as it is to train it, or keep the values in a buffer "
            "(register_buffer), the same for every seed."
        )
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise ModelError(
            f"Hooks on a parameter's gradient are not called in a run, and '{name}' has one; "
            "leave it out."
        )


def check_builds(builds: list[Modules]) -> None:
    """Refuse a network whose construction does not follow the seed, or draws its buffers."""
    first, again, other = (_tensors(modules) for modules in builds)
    for found in (again, other):
        if _shapes(first) != _shapes(found):
            odd = dict(set(_shapes(first).items()) ^ set(_shapes(found).items()))
            raise ModelError(
                f"A network must have the same parameters each time it is built, and '{min(odd)}' "
                "differs; let `build` depend on its arguments alone."
            )
    for name, value in first.items():
        if not equal(value, again[name]):
            raise ModelError(
                f"A network built twice with one seed must be the same, and '{name}' differs; draw "
                "from the generators that torch.manual_seed and np.random.seed set."
            )
        if not isinstance(value, nn.Parameter) and not equal(value, other[name]):
            raise ModelError(
                f"Buffers are not kept for each seed yet, and '{name}' differs from build to "
                "build; draw it from a generator of its own with a fixed seed, or make it a "
                "parameter."
            )


def _tensors(modules: Modules) -> dict[str, Tensor]:
    """Return all parameters and buffers, also those that no state_dict has."""
    return {
        name: tensor
        for part, module in zip(PARTS, modules, strict=True)
        for named in (module.named_parameters, module.named_buffers)
        for name, tensor in named(prefix=part)
    }


def _shapes(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def equal(a: Any, b: Any) -> bool:
    """Return a == b; for tensors, True for the same type, shape and values, NaN included."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return type(a) is type(b) and bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a type as the settings have it: "float32"."""
    return str(dtype).removeprefix("torch.")
