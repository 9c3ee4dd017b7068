"""Check that a run can use a network, by doing once what a run does with it.

A run uses h and g as pure functions of their parameters, a row and a key, for many replicas at a
time. A network that is not such a function would silently give wrong numbers, so it is refused
here: if a pass draws random numbers in evaluation, changes the network or its input, or if its
result for a row depends on the other rows (except by BatchNorm in training, which leaves absent
rows out); and if the network differs from seed to seed in more than the values of its trainable
parameters.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from dpmcl.core import keys
from dpmcl.core.generators import forked
from dpmcl.core.network_layers import (
    Parts,
    differences,
    modules_by_mode,
    name_layer_in_errors,
    named_layers,
    record_draws,
    record_layers,
    state_of,
)
from dpmcl.core.part import (
    PARTS,
    Modules,
    Network,
    Theta,
    converted,
    modes_restored,
    modules_of,
    parameters_of,
    quiet_copy,
    trainable,
    with_seeded_draws,
)
from dpmcl.core.row_check import ROWS, batches_to_compare, is_near, rows_agree
from dpmcl.core.tree import equal, leaves, named_leaves, rebuilt, tree_map
from dpmcl.exceptions import ModelError, reason

_NEAR_GRADIENT = 1e-2  # tolerance, relative to a parameter's gradient; kernels may differ
_ROUNDING = 1e-6  # tolerance, relative to the part's largest gradient, for rounding alone
_KEEP_ROWS = "keep the first dimension apart from the others (no x.squeeze() of all dimensions)"
_SEPARATE_ROWS = (
    "compute each row by itself (normalise by nn.BatchNorm with running statistics, nn.GroupNorm "
    "or nn.LayerNorm), draw nothing, and keep nothing from one pass to the next"
)
_AS_PYTORCH = (
    "change no tensor in place that is used again, and let nothing depend on the class or on the "
    "requires_grad of a parameter"
)
_UNSEEDED = (
    "What is drawn in training must follow from a seed, and {} gives other values with the same "
    "one; draw by torch, NumPy or `random`, or by nn.Dropout layers."
)


def check(
    network: Network,
    parts_from: Callable[[Modules], Parts],
    example: Tensor,
    outputs: int,
    *,
    images: bool = False,
) -> Parts:
    """Check a network, and return its parts.

    Args:
        network: Builds the two modules, with new initial weights at each call.
        parts_from: Returns the parts made from copies of two modules.
        example: Distinct rows of inputs (n, ...), in the model's type and on its device.
        outputs: Width of the prediction's output.
        images: Whether inputs are stored as uint8, which stands for x / 255.

    Raises:
        ModelError: A run cannot use the network; the message names the layer.
    """
    with name_layer_in_errors(
        {}, "The network cannot be used", "fix its `forward`, or use another network"
    ):
        builds = []
        for seed in (0, 0, 1):
            with forked(seed):
                builds.append(modules_of(network))
        check_layers(builds[0])
        if images and example.dim() == 2:
            _check_embeddings(builds[0])
        varying = _check_builds(*builds)
        parts = parts_from(builds[0])
        x = torch.cat([example] * ROWS)[: max(len(example), ROWS)]
        with forked(0):
            with torch.no_grad():
                layers = _check_passes(parts, x, outputs)
                parts = with_seeded_draws(parts, layers)
                _check_rows(parts, x[:ROWS])
                _check_weights_unchanged(parts, x)
                if layers:
                    _check_same(parts, parts, x, _UNSEEDED.format(layers[0]))
                if varying:
                    reseeded = with_seeded_draws(parts_from(builds[2]), layers)
                    _check_same(parts, reseeded, x, _seed_message(varying[0]))
            with torch.enable_grad(), _check_unchanged(parts, "in training"):
                _check_own_parameters(parts, x)
                _check_gradients(parts, builds[1], x[:ROWS])
    return parts


def made_up_inputs(rows: int, shape: Sequence[int]) -> Tensor:
    """Return random inputs to try a network with, the same in each call.

    They are in [0, 1), and in [1, 2) at every second position, so that no row of tokens has only
    token 0, which often stands for padding.

    Args:
        rows: Number of inputs.
        shape: Shape of one input.
    """
    x = keys.uniform(keys.derive(0, keys.Purpose.PROBE), (rows, *shape))
    return x + (torch.arange(shape[0]) % 2).view(-1, *[1] * (len(shape) - 1))


# ---- the state of a network ---------------------------------------------------------------------


def check_layers(modules: Sequence[nn.Module]) -> None:
    """Raise ModelError if a run cannot use a layer, parameter or buffer as its author meant it.

    Args:
        modules: The representation and the prediction, or one module that will be split into them.

    Raises:
        ModelError: A layer is compiled, a parameter or buffer is complex, or a parameter is
            uninitialised, has hooks or shares memory with another one.
    """
    for label, layer in named_layers(modules):
        compiled = isinstance(layer, torch.jit.ScriptModule) or layer._compiled_call_impl
        if compiled or type(layer).__name__ == "OptimizedModule":
            raise ModelError(
                f"A run cannot use {label}, which is compiled; leave out torch.jit and "
                "torch.compile."
            )
    names: dict[int, str] = {}
    for part, module in zip(PARTS, modules, strict=False):
        parameters = dict(module.named_parameters(part))
        for name, parameter in parameters.items():
            if isinstance(parameter, nn.UninitializedParameter):
                raise ModelError(
                    f"The values of a network must exist, and '{name}' has none yet, since its "
                    "layer is a lazy one; call the network once on an example before."
                )
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                raise ModelError(
                    f"Parameters may have no hooks, which copies lack, and '{name}' has one; "
                    "change the gradient in `forward`, by a torch.autograd.Function."
                )
        for name, tensor in [*parameters.items(), *module.named_buffers(part)]:
            if tensor.is_complex():
                raise ModelError(
                    f"Parameters and buffers must hold real numbers, and '{name}' is "
                    f"{_name(tensor.dtype)}; keep torch.view_as_real of it."
                )
        for name, parameter in parameters.items():
            first = names.setdefault(parameter.data_ptr(), name)
            if first != name and parameter.data_ptr():
                raise ModelError(
                    "Values may be shared only as one nn.Parameter within one part, and "
                    f"'{name}' has those of '{first}'; give each its own, or put both in one part, "
                    "as in network=(nn.Identity(), module)."
                )


def _check_embeddings(modules: Modules) -> None:
    """Raise ModelError if a layer is an embedding, for inputs that are vectors of uint8."""
    for label, layer in named_layers(modules):
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            raise ModelError(
                f"Inputs of uint8 stand for x / 255, as in images, and {label} takes whole "
                "numbers; give the inputs as int64."
            )


def _check_builds(first: Modules, repeated: Modules, reseeded: Modules) -> list[str]:
    """Check that builds with one seed agree, and that only theta differs with another seed.

    Returns the attributes, other than tensors, that differ from seed to seed. They may be harmless,
    as names and counters are, or change the network's results.
    """
    state, reseeded_state = state_of(first), state_of(reseeded)
    for name in differences(state, state_of(repeated)):
        if isinstance(state.get(name), Tensor):
            raise ModelError(
                f"A network built twice with one seed must be the same, and {name} differs; draw "
                "from the generators that torch.manual_seed and np.random.seed set."
            )
    theta = {
        f"the parameter '{name}' of {label}": parameter.shape
        for label, layer in named_layers(first)
        for name, parameter in layer.named_parameters(recurse=False)
        if parameter.requires_grad
    }
    if not theta:
        raise ModelError(
            "A network must have parameters to train, and all of this one are frozen; set "
            "requires_grad of those that are to learn."
        )
    attributes = []
    for name in differences(state, reseeded_state):
        if not isinstance(state.get(name), Tensor):
            attributes.append(name)
        elif name not in theta:
            raise ModelError(_seed_message(name))
        elif name not in reseeded_state or reseeded_state[name].shape != theta[name]:
            raise ModelError(_seed_message(f"the shape of {name}"))
    return attributes


def _check_same(parts: Parts, others: Parts, x: Tensor, rule: str) -> None:
    """Raise ModelError(rule) if parts differ from others at the same parameters and keys."""
    for theta in (parameters_of(parts), _perturbed(parameters_of(parts))):
        for key in _modes(x).values():  # equal keys draw equal masks
            a, b = (_forward(compared, theta, x, key) for compared in (parts, others))
            if not (is_near(b[0], a[0], a[0]) and is_near(b[1], a[1], a[1])):
                raise ModelError(rule)


def _seed_message(what: str) -> str:
    """Return the message that something other than parameter values depends on the seed."""
    return (
        f"Only the values of trainable parameters may differ from seed to seed, and {what} does; "
        "register what is drawn (nn.Parameter, nn.ModuleList), compute it in `forward`, load it "
        "from a file, fix its seed, or use another layer."
    )


@contextmanager
def _check_unchanged(parts: Parts, mode: str) -> Iterator[None]:
    """Raise ModelError if a block changes the network, in place of any error that it raises."""
    before = [state_of(modules) for modules in modules_by_mode(parts)]
    try:
        yield
    finally:
        for old, modules in zip(before, modules_by_mode(parts), strict=True):
            for name in differences(old, state_of(modules)):
                raise ModelError(_change_message(f"{name} changes {mode}"))


def _change_message(what: str) -> str:
    """Return the message that a pass changes something."""
    return (
        f"A pass may change nothing but its result, and {what}; keep values in local variables "
        "(not in attributes or by hooks), write x = x * 2 in place of x *= 2, draw in training "
        "alone (if self.training), or use another layer."
    )


# ---- passes -------------------------------------------------------------------------------------


def _forward(parts: Parts, theta: Theta, x: Tensor, key: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return features and outputs."""
    features, _ = parts["representation"].apply(theta["representation"], x, key)
    outputs, _ = parts["prediction"].apply(theta["prediction"], features, key)
    return features, outputs


def _modes(x: Tensor) -> dict[str, Tensor | None]:
    """Return the key of a training pass and of an evaluation pass, by the words for messages."""
    return {"in training": torch.tensor([1, 2], device=x.device), "in evaluation": None}


def _check_passes(parts: Parts, x: Tensor, outputs: int) -> list[str]:
    """Check that passes succeed, return tensors of the right shape and type, and change nothing.

    Returns the layers that draw from global generators in training.
    """
    theta = parameters_of(parts)
    h, g = (parts[name] for name in PARTS)
    in_training: list[str] = []
    rule = f"The network does not take inputs of shape {tuple(x.shape[1:])}"
    way_out = "set its layers' sizes by (shape, outputs); nn.Flatten makes one dimension of several"
    for mode, key in _modes(x).items():
        with (
            _check_unchanged(parts, mode),
            record_draws(parts) as drawn,
            name_layer_in_errors(parts, rule, way_out),
        ):
            inputs = x.clone()
            features, _ = h.apply(theta["representation"], inputs, key)
            _check_result("representation", features, x)
            features_before = features.clone()
            out, _ = g.apply(theta["prediction"], features, key)
            _check_result("prediction", out, x, outputs)
            if not out.isfinite().all():
                raise ModelError(
                    "The outputs must be finite before training, got "
                    f"{float(out[~out.isfinite()][0])}; scale the inputs or the initial weights."
                )
        if key is not None:
            in_training = drawn
        elif drawn:
            raise ModelError(_change_message(f"{drawn[0]} draws from a global generator {mode}"))
        pairs = (x, inputs), (features_before, features)
        for part, (before, after) in zip(PARTS, pairs, strict=True):
            if not equal(before, after):
                raise ModelError(_change_message(f"the {part} changes its input {mode}"))
    return in_training


def _check_result(part: str, out: Any, x: Tensor, *sizes: int) -> None:
    """Raise ModelError unless a result is a tensor of x's type with one row for each row of x.

    sizes: the other dimensions, if they are prescribed.
    """
    got = f"{_name(out.dtype)} {tuple(out.shape)}" if isinstance(out, Tensor) else ""
    right = isinstance(out, Tensor) and out.dtype == x.dtype
    if right and (out.shape if sizes else out.shape[:1]) == (len(x), *sizes):
        return
    raise ModelError(
        f"The {part} must give one tensor, {_name(x.dtype)} ({len(x)}, {[*sizes, '...'][0]}), got "
        f"{got or type(out).__name__}; keep the first dimension (batch_first=True, nn.Flatten), "
        "convert nothing, set the size of the last layer, and return the tensor alone."
    )


def _name(dtype: torch.dtype) -> str:
    """Return the name of a type as in the settings, such as "float32"."""
    return str(dtype).removeprefix("torch.")


# ---- rows ---------------------------------------------------------------------------------------


def _check_rows(parts: Parts, x: Tensor) -> None:
    """Raise ModelError if the result for a row depends on more than the row and the parameters.

    The check is made at the initial weights and at others, since an initial weight of 0 can hide
    a dependence.
    """
    parts, x = in_float64(parts, x)
    pool = torch.cat([x, 1 - 30 * x])
    alone = _row_by_row(parts, x.dtype)
    for theta in (parameters_of(alone), _perturbed(parameters_of(alone))):
        for mode, key in _modes(x).items():
            expected = _forward(alone, theta, pool[:ROWS], key)
            for company, index in batches_to_compare():
                where = f"{mode} for a row {company}"
                try:
                    results = _forward(alone, theta, pool[index], key)
                except Exception as error:
                    if index.max() >= ROWS:
                        continue  # a network need not accept made-up rows
                    rule = f"A network must take any number of rows, and fails {where}"
                    raise ModelError(f"{rule}: {reason(error)}; {_KEEP_ROWS}.") from error
                for part, a, b in zip(PARTS, expected, results, strict=True):
                    if not rows_agree(a, b, index):
                        way_out = _SEPARATE_ROWS if b.shape[:1] == index.shape else _KEEP_ROWS
                        raise ModelError(
                            "An answer may depend only on its row and the parameters, and the "
                            f"{part} gives another one {where}; {way_out}."
                        )
    rows = [_gradient(alone, theta, row, key=_modes(x)["in training"]) for row in pool[:3].split(1)]
    _check_same_gradient(
        _gradient(alone, theta, pool[:3], key=_modes(x)["in training"]),
        tree_map(lambda *grads: torch.stack(grads).sum(0), *rows),
        "A batch's gradient must be the sum of its rows' gradients",
        _SEPARATE_ROWS,
    )


def _check_weights_unchanged(parts: Parts, x: Tensor) -> None:
    """Raise ModelError if a pass changes parameters, at weights of this size or at large ones."""
    for size in (1, 1000):
        theta = tree_map(lambda leaf, size=size: size * leaf, _perturbed(parameters_of(parts)))
        before = tree_map(torch.Tensor.clone, theta)
        for key in _modes(x).values():
            with suppress(Exception):  # a network need not accept large weights
                _forward(parts, theta, x, key)
        for part, leaves_before in before.items():
            for name in differences(leaves_before, theta[part]):
                raise ModelError(_change_message(f"'{part}.{name}' changes at some weights"))


def in_float64(parts: Parts, x: Tensor) -> tuple[Parts, Tensor]:
    """Return parts and inputs in float64, so that rounding cannot explain a difference.

    A network that fixes a type somewhere is returned as it is.

    Args:
        parts: The parts of a network.
        x: Inputs (n, ...).
    """
    wide = {name: converted(part, torch.float64) for name, part in parts.items()}
    try:
        for key in _modes(x).values():
            _forward(wide, parameters_of(wide), x.double(), key)
    except Exception:  # layers raise exceptions of many kinds
        return parts, x
    return wide, x.double()


def _row_by_row(parts: Parts, dtype: torch.dtype) -> Parts:
    """Return copies in which no row affects another in training, and layers draw nothing."""
    copies = {name: quiet_copy(part, dtype) for name, part in parts.items()}
    for label, layer in named_layers(modules_by_mode(copies)[0]):
        layer.training &= label not in parts["representation"].draws
    return copies


def _perturbed(theta: Theta) -> Theta:
    """Return weights near these, none of which is 0."""

    def perturbed(leaf: Tensor) -> Tensor:
        return leaf + (0.05 + 0.3 * leaf.square().mean().sqrt()) * torch.randn(leaf.shape).to(leaf)

    return tree_map(perturbed, theta)


# ---- gradients ----------------------------------------------------------------------------------


def _gradient(parts: Parts, theta: Theta, x: Tensor, *, key: Tensor | None) -> Theta:
    """Return the gradient of a cost by theta, taken by torch.func as in a run."""
    way_out = (
        "leave out what torch.func does not know (torch.utils.checkpoint, packed sequences, "
        "changes in place, torch.autograd.grad, for which there is torch.func.grad)"
    )
    with name_layer_in_errors(
        parts, "The network cannot be differentiated by torch.func.grad", way_out
    ):
        grads: Theta = torch.func.grad(
            lambda theta: scalar_cost(_forward(parts, theta, x, key)[1])
        )(theta)
    for name, grad in named_leaves(grads, "").items():
        if grad.layout != torch.strided:
            raise ModelError(
                f"Gradients must be dense, and that of '{name[1:]}' is not; leave out sparse=True."
            )
    return grads


def _check_own_parameters(parts: Parts, x: Tensor) -> None:
    """Raise ModelError if a layer uses parameters that are not registered in the network.

    The registered ones require no gradient here.
    """
    with record_layers(parts, []) as results:
        for key in _modes(x).values():
            _forward(parts, parameters_of(parts), x, key)
    for label, out in results:
        if isinstance(out, Tensor) and out.requires_grad:
            raise ModelError(
                "A network may train only its registered parameters, and "
                f"{label} uses others; make them attributes of their module (no lambda, list or "
                "hook that holds them), or call requires_grad_(False) on them. Gradients that "
                "`forward` itself takes must be those of torch.func."
            )


def _check_gradients(parts: Parts, modules: Modules, x: Tensor) -> None:
    """Raise ModelError if outputs or gradient of the parts differ from the original modules'.

    Autograd differentiates the modules, torch.func the parts. Layers or closures that hold
    parameters, hooks, and in-place activations can make the two differ.
    """
    named = zip(PARTS, modules, strict=True)
    theta: Any = {part: trainable(module) for part, module in named}
    parameters = leaves(theta)
    like = parameters[0] if parameters else x
    with modes_restored(modules):
        for _, layer in named_layers(modules):
            layer.training = False
        try:
            outputs = modules[1](modules[0](x.to(like)))
            # With this 0, autograd accepts outputs that have no gradient.
            cost = scalar_cost(outputs) + torch.zeros((), requires_grad=True)
            grads = torch.autograd.grad(cost, parameters, allow_unused=True)
        except Exception:  # it fits only the run's type, or changes a leaf in place
            return
    expected = rebuilt(theta, grads)
    for part, part_grads in expected.items():
        if part_grads and all(grad is None for grad in part_grads.values()):
            raise ModelError(
                f"A part must be trainable, and no parameter of the {part} gets a gradient; leave "
                "out .detach(), .item() and torch.no_grad() in `forward`, or freeze the part "
                "(requires_grad_(False))."
            )
    copies = {name: quiet_copy(part, like.dtype, like.device) for name, part in parts.items()}
    theta = tree_map(torch.Tensor.detach, theta)
    _, copied = _forward(copies, theta, x.to(like), None)
    if not is_near(copied, outputs, outputs):
        raise ModelError(
            f"A run must find the outputs that PyTorch finds, and they differ; {_AS_PYTORCH}."
        )
    _check_same_gradient(
        _gradient(copies, theta, x.to(like), key=None),
        expected,
        "A run must find the gradient that PyTorch finds",
        _AS_PYTORCH,
    )


def scalar_cost(outputs: Tensor) -> Tensor:
    """Return the sum of all outputs, with a different weight for each, to differentiate a network.

    Args:
        outputs: Outputs of a network (n, ...).
    """
    weights = torch.arange(1, outputs[0].numel() + 1, device=outputs.device)
    return (outputs.flatten(1) * weights.to(outputs.dtype).cos()).sum()


def _check_same_gradient(grads: Theta, expected: Theta, rule: str, way_out: str) -> None:
    """Raise ModelError if gradients differ; gradients that are not finite pass."""
    for part, part_grads in expected.items():
        sizes = [float(grad.norm()) for grad in part_grads.values() if grad is not None]
        rounding = _ROUNDING * max(filter(math.isfinite, sizes), default=0.0)
        for name, grad in part_grads.items():
            grad = torch.zeros_like(grads[part][name]) if grad is None else grad
            difference = (grads[part][name] - grad).norm()
            if difference > _NEAR_GRADIENT * grad.norm() + rounding:
                raise ModelError(f"{rule}, and that of '{part}.{name}' differs; {way_out}.")
