"""Whether a network can be used: all that a run does with it is done once, and compared.

A run takes h and g as pure functions of their parameters, a row and a key, for many replicas at a
time. What breaks that would give wrong numbers without a word, so it is refused here, by name: a
forward pass that draws, that changes the network or its input, or whose answer for a row depends
on the other rows; and a network that holds more than its parameters (frozen ones, shared ones,
buffers that differ from build to build).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import Tensor, nn

from dpmcl.exceptions import ModelError, reason
from dpmcl.generators import forked, states
from dpmcl.network_layers import Parts, failing, first_changing, told, versions, visits
from dpmcl.network_structure import check_builds, check_structure, equal, name_of
from dpmcl.part import PARTS, KeyedDropout, Modules, Network, Parameters, Theta, modules_of
from dpmcl.tree import tree_map

# Relative to the largest value of a column. In float64 rounding is far below, also where a network
# computes in float32 within; the second is for networks that cannot be computed in float64.
_NEAR, _NEAR_IN_FLOAT32 = 1e-5, 2e-4
_ROWS = 6  # at least, of a batch that is looked at row by row
_NEAR_GRADIENT = 1e-2  # relative to a parameter's gradient; kernels may differ
_UNDIFFERENTIABLE = (
    "The network cannot be differentiated by torch.func.grad",
    "leave out what torch.func does not know (torch.utils.checkpoint, changes in place)",
)
# What PyTorch itself keeps in a layer; recurrent ones look up their weights anew in each pass.
_INTERNAL = {*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"} - {"training"}


def check(
    network: Network, made: Callable[[Modules], Parts], example: Tensor, outputs: int
) -> Parts:
    """Return the parts of a network that a run can use.

    Args:
        network: Makes the two modules, with new initial weights at each call.
        made: Makes the parts of two modules; it copies them.
        example: Distinct rows of inputs (n, ...), in the model's type and on its device.
        outputs: Width of the prediction's output.

    Raises:
        ModelError: The network cannot be used; says the rule, the layer and the way out.
    """
    with told("The network cannot be used", "mend its `forward`, or use another network"):
        builds = []
        for seed in (0, 0, 1):
            with forked(seed):
                builds.append(modules_of(network))
        check_structure(builds[0])
        check_builds(builds)
        parts, others = made(builds[0]), made(builds[2])
        with forked(0), torch.no_grad():
            _check_passes(parts, example, outputs)
            _check_attributes(parts, others, example)
            _check_rows(parts, example)
        with forked(0), _unchanged(parts):
            _check_gradient(parts, builds[1], example)
            _check_use(parts, example)
    return parts


# ---- passes -------------------------------------------------------------------------------------


def _both(parts: Parts, theta: Theta, x: Tensor, key: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return features and outputs."""
    features = parts["representation"].apply(theta["representation"], x, key)
    return features, parts["prediction"].apply(theta["prediction"], features, key)


def _theta(parts: Parts) -> Theta:
    return {name: dict(part.training.named_parameters()) for name, part in parts.items()}


def _modes(x: Tensor) -> dict[str, Tensor | None]:
    """The two ways of a pass, by what a message calls them: the key of each."""
    return {"in training": torch.tensor([1, 2], device=x.device), "in evaluation": None}


def _check_passes(parts: Parts, x: Tensor, outputs: int) -> None:
    """Refuse a network whose plain passes fail, draw, change anything, or are not a function."""
    theta = _theta(parts)
    for mode, key in _modes(x).items():

        def run(key: Tensor | None = key) -> tuple[Tensor, Tensor]:
            return _both(parts, theta, x.clone(), key)

        rule = f"The network does not take inputs of shape {tuple(x.shape[1:])}"
        way = "set the sizes of its layers by the arguments of `build`"
        with told(rule, way, parts, run), _unchanged(parts, mode):
            before, given = states(), x.clone()
            features = parts["representation"].apply(theta["representation"], given, key)
            _check_features(features, x)
            taken = features.clone()
            out = parts["prediction"].apply(theta["prediction"], taken, key)
            drawn = [name for name, state in states().items() if state != before[name]]
            if not (equal(given, x) and equal(taken, features)):
                layer = first_changing(parts, run, versions)
                raise ModelError(
                    f"A layer may not change its input in place, and {layer} does; write "
                    "x = x * 2 in place of x *= 2, F.relu(x) in place of F.relu_(x)."
                )
            if drawn:
                layer = first_changing(parts, run, lambda given: states())
                raise ModelError(
                    f"A network may not draw from a global generator, and {layer} draws from "
                    f"{drawn[0]} {mode}; leave the draw out (dropout=0), or use nn.Dropout layers, "
                    "which are made reproducible."
                )
            _check_outputs(out, x, outputs)
            again = run()
        if not all(_near(b, a, a, _NEAR) for a, b in zip((features, out), again, strict=True)):
            raise ModelError(
                f"A pass must give the same for the same input, and two passes {mode} differ; draw "
                "nothing, and keep nothing from one pass to the next."
            )
    _check_dropout(parts, theta, x)


def _check_features(features: Any, x: Tensor) -> None:
    rule = "The representation must give one tensor of floats with a row for each input"
    if not isinstance(features, Tensor):
        raise ModelError(f"{rule}, got {type(features).__name__}; return the tensor alone.")
    if not features.is_floating_point():
        raise ModelError(
            f"{rule}, got {name_of(features.dtype)}; convert them within the prediction."
        )
    if features.dim() == 0 or features.shape[0] != x.shape[0]:
        raise ModelError(
            f"{rule}, got the shape {tuple(features.shape)} for {x.shape[0]} inputs; keep the "
            "first dimension (batch_first=True, nn.Flatten)."
        )


def _check_outputs(out: Any, x: Tensor, outputs: int) -> None:
    if not isinstance(out, Tensor):
        raise ModelError(
            f"The prediction must give one tensor, got {type(out).__name__}; return the tensor "
            "alone."
        )
    if out.shape != (x.shape[0], outputs):
        raise ModelError(
            f"The prediction network must give {outputs} outputs a row, got the shape "
            f"{tuple(out.shape[1:])}; set the size of its last layer."
        )
    if out.dtype != x.dtype:
        raise ModelError(
            f"The outputs must be {name_of(x.dtype)} like the inputs, got {name_of(out.dtype)}; "
            "convert nothing in `forward`, or set `dtype` to what the network computes in."
        )
    if not out.isfinite().all():
        raise ModelError(
            "The outputs must be finite before training, got "
            f"{float(out[~out.isfinite()][0])}; scale the inputs or the initial weights."
        )


def _check_dropout(parts: Parts, theta: Theta, x: Tensor) -> None:
    for part, forms in parts.items():
        for name, layer in forms.evaluation.named_modules(prefix=part):
            if isinstance(layer, KeyedDropout) and layer.training:
                raise ModelError(
                    f"An evaluation may not drop anything, and {name}: Dropout stays on; leave "
                    "its mode to `train` and `eval`."
                )
    left, _ = visits(parts, lambda: _both(parts, theta, x, _modes(x)["in training"]))
    calls = Counter(visit.layer for visit in left if visit.layer.endswith(": KeyedDropout"))
    for layer, count in calls.items():
        if count > 1:
            raise ModelError(
                f"A dropout layer may be called once a pass, or its masks would repeat, and "
                f"{layer.replace('KeyedDropout', 'Dropout')} is called {count} times; use one "
                "nn.Dropout a place."
            )


# ---- rows ---------------------------------------------------------------------------------------


def _quiet(parts: Parts, dtype: torch.dtype, device: torch.device | None = None) -> Parts:
    """Return copies in another type, whose dropout drops nothing: masks differ from row to row."""

    def quiet(module: nn.Module) -> nn.Module:
        copied = deepcopy(module).to(device=device, dtype=dtype)
        for layer in copied.modules():
            if isinstance(layer, KeyedDropout):
                layer.p = 0.0
        return copied

    return {
        name: replace(part, training=quiet(part.training), evaluation=quiet(part.evaluation))
        for name, part in parts.items()
    }


def _check_attributes(parts: Parts, others: Parts, x: Tensor) -> None:
    """Refuse what is neither parameter nor buffer, and differs in others, built under another seed.

    Equal keys draw equal masks in both.
    """
    theta = _theta(parts)
    for key in _modes(x).values():
        first, other = (_both(made, theta, x, key) for made in (parts, others))
        if all(_near(b, a, a, _NEAR) for a, b in zip(first, other, strict=True)):
            continue
        changed = [
            name for name in _differences(_state(parts), _state(others)) if "attribute" in name
        ]
        what = changed[0] if changed else "a value that no attribute holds"
        raise ModelError(
            f"All that a network draws when it is built must be its parameters, and {what} differs "
            "from seed to seed; register it (nn.Parameter, nn.ModuleList), or fix its seed."
        )


class _Company(NamedTuple):
    """A batch with rows of the example in it.

    at: where in the batch. rows: which of the example. must: whether all its rows are the
    example's, and the network has to take them.
    """

    says: str
    x: Tensor
    at: Tensor
    rows: Tensor
    must: bool = True


def _companies(x: Tensor) -> Iterator[_Company]:
    n, half = x.shape[0], x.shape[0] // 2
    every = torch.arange(n, device=x.device)
    yield _Company("in another order", x.roll(1, 0), every, every.roll(1))
    for row in (0, n - 1):
        yield _Company("alone", x[row : row + 1], every[:1], every[row : row + 1])
    yield _Company(f"in a batch of {3 * n} rows", torch.cat([x, x, x]), every, every)
    for before, other in ((False, x.flip(0)), (True, 3 * x + 1), (False, -30 * x), (True, 0 * x)):
        halves, at = [x[:half], other[half:]], every[:half]
        if before:
            halves, at = [other[:half], x[half:]], every[half:]
        yield _Company("beside other rows", torch.cat(halves), at, at, must=False)


def _check_rows(parts: Parts, x: Tensor) -> None:
    """Refuse a network whose answer for a row depends on the other rows of its batch.

    Tried at the initial weights, and at others, since what is multiplied by a 0 there is not seen.
    """
    own, tolerance = x.dtype, _NEAR
    x = torch.cat([x] * -(-_ROWS // len(x)))  # some data have few rows that differ
    x, parts = x.double(), _quiet(parts, torch.float64)
    try:
        _both(parts, _theta(parts), x, None)
    except Exception:  # it mixes types, and is computed in its own
        x, parts, tolerance = x.to(own), _quiet(parts, own), _NEAR_IN_FLOAT32
    for theta in (_theta(parts), _moved(_theta(parts))):
        for mode, key in _modes(x).items():
            run = partial(_both, parts, theta, key=key)
            alone = run(x)
            for company in _companies(x):
                try:
                    found = run(company.x)
                except Exception as error:
                    if not company.must:  # rows of our own making, which it need not take
                        continue
                    raise ModelError(
                        f"A network must take rows in any number, and this one fails {mode} for "
                        f"rows {company.says}{failing(parts, partial(run, company.x))}: "
                        f"{reason(error)}; keep the first dimension apart from the others."
                    ) from error
                if all(
                    b.shape[:1] == company.x.shape[:1]
                    and _near(b[company.at], a[company.rows], a, tolerance)
                    for a, b in zip(alone, found, strict=True)
                ):
                    continue
                layer = _mixing(parts, run, x, company, tolerance)
                raise ModelError(
                    f"A row's answer may not depend on the other rows, and {layer} gives another "
                    f"one {mode} for a row {company.says}; compute each row by itself (normalise "
                    "by nn.GroupNorm or nn.LayerNorm)."
                )
    _check_row_gradients(parts, theta, x[:3])


def _check_row_gradients(parts: Parts, theta: Theta, x: Tensor) -> None:
    """Refuse a network in which the gradient of a sum over rows is not the sum of their gradients.

    Then a row without weight, which stands for an absent one, would change the others' gradients.
    """
    key = _modes(x)["in training"]

    def cost(theta: Theta, x: Tensor) -> Tensor:
        outputs = _both(parts, theta, x, key)[1]
        return (outputs * _weights(outputs[:1])).sum()

    with told(*_UNDIFFERENTIABLE, parts, lambda: torch.func.grad(cost)(theta, x)):
        whole = torch.func.grad(cost)(theta, x)
        each = [torch.func.grad(cost)(theta, row[None]) for row in x]
    for part in PARTS:
        for name, grad in whole[part].items():
            if not _alike(grad, torch.stack([one[part][name] for one in each]).sum(0)):
                raise ModelError(
                    "A row's gradient may not depend on the other rows, and that of "
                    f"'{part}.{name}' does; compute each row by itself."
                )


def _moved(theta: Theta) -> Theta:
    """Return other weights near these, none of them 0."""
    generator = torch.Generator().manual_seed(0)

    def moved(leaf: Tensor) -> Tensor:
        noise = torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype).to(leaf.device)
        return leaf + noise * (0.05 + 0.3 * leaf.square().mean().sqrt())

    found: Theta = tree_map(moved, theta)
    return found


def _mixing(
    parts: Parts, run: Callable[[Tensor], Any], x: Tensor, company: _Company, tolerance: float
) -> str:
    """Return the first layer whose answer for a row depends on the others."""
    by_themselves, _ = visits(parts, lambda: run(x))
    mixed, _ = visits(parts, lambda: run(company.x))
    for a, b in zip(by_themselves, mixed, strict=False):
        if not isinstance(a.out, Tensor) or a.out.shape[:1] != x.shape[:1]:
            continue
        if b.out.shape[:1] != company.x.shape[:1]:
            return a.layer
        if not _near(b.out[company.at], a.out[company.rows], a.out, tolerance):
            return a.layer
    return "the network"


# ---- gradients ----------------------------------------------------------------------------------


def _check_gradient(parts: Parts, modules: Modules, x: Tensor) -> None:
    """Refuse a network that is not, as a function of its parameters, what its modules compute.

    The modules are run as PyTorch runs them, and compared with the copies: layers and closures that
    hold on to parameters, hooks, and activations in place can make a difference.
    """
    owned = dict(zip(PARTS, modules, strict=True))
    named = {
        (part, name): parameter
        for part, module in owned.items()
        for name, parameter in module.named_parameters()
    }
    like = next(iter(named.values()), torch.zeros(()))
    same = (x.device, x.dtype) == (like.device, like.dtype)
    ours = parts if same else _quiet(parts, like.dtype, like.device)
    x = x.to(device=like.device, dtype=like.dtype)
    try:
        with _evaluating(modules):
            grads: Sequence[Tensor | None]
            out = modules[1](modules[0](x.clone()))
            if out.requires_grad:
                grads = torch.autograd.grad(_sum(out), list(named.values()), allow_unused=True)
            else:
                grads = [None] * len(named)
    except Exception:  # its types suit the run's alone, or it works in place on a leaf
        return
    own = dict(zip(named, grads, strict=True))
    for part in PARTS:
        found = [grad for (owner, _), grad in own.items() if owner == part]
        if found and all(grad is None for grad in found):
            raise ModelError(
                f"A part must be trainable, and no parameter of the {part} gets a gradient; leave "
                "out .detach(), .item() and torch.no_grad() in `forward`."
            )
    theta: Theta = {
        part: {name: p.detach() for (owner, name), p in named.items() if owner == part}
        for part in PARTS
    }
    with told(*_UNDIFFERENTIABLE):
        taken = torch.func.grad(lambda theta: _sum(_both(ours, theta, x.clone(), None)[1]))(theta)
    with torch.no_grad():
        copied = _both(ours, theta, x.clone(), None)[1]
    if not _near(copied, out.detach(), out.detach(), _NEAR_GRADIENT):
        raise ModelError(
            "A copy of the network must compute what the network does, and gives other outputs; "
            "change no tensor in place that is used again (inplace=True)."
        )
    for (part, name), expected in own.items():
        grad = taken[part][name]
        expected = torch.zeros_like(grad) if expected is None else expected
        if not _alike(grad, expected):
            raise ModelError(
                f"A run must find the gradient that PyTorch finds, and that of '{part}.{name}' "
                "differs; use parameters as attributes of their module (no lambda, list or hook "
                "that holds them)."
            )


def _check_use(parts: Parts, x: Tensor) -> None:
    """Refuse a network that cannot be used as DPMCL does: features once, then g several times."""
    theta = tree_map(torch.Tensor.detach, _theta(parts))
    h, g = (parts[name] for name in PARTS)
    key = _modes(x)["in training"]

    def twice(theta_2: Parameters, features: Tensor) -> Tensor:
        return _sum(g.apply(theta_2, features, key)) + _sum(g.apply(theta_2, features, key))

    def whole(theta: Theta) -> Tensor:
        return _sum(_both(parts, theta, x, key)[1])

    run = partial(torch.func.grad(whole), theta)
    with told(*_UNDIFFERENTIABLE, parts, run):
        once = run()
        features, pull_back = torch.func.vjp(  # type: ignore[misc]
            lambda theta_1: h.apply(theta_1, x, key), theta["representation"]
        )
        by_2, by_features = torch.func.grad(twice, argnums=(0, 1))(theta["prediction"], features)
        (by_1,) = pull_back(by_features)
    for part, grads in zip(PARTS, (by_1, by_2), strict=True):
        for name, grad in grads.items():
            if not _alike(grad, 2 * once[part][name]):
                raise ModelError(
                    "A network must give the same when its features are used twice, and the "
                    f"gradient of '{part}.{name}' differs; keep nothing from one pass to the next."
                )


def _sum(outputs: Tensor) -> Tensor:
    """A cost of outputs, in which each has a weight of its own."""
    return (outputs * _weights(outputs)).sum()


def _weights(like: Tensor) -> Tensor:
    numbers = torch.arange(1, like.numel() + 1, device=like.device)
    return numbers.to(like.dtype).cos().view(like.shape)


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two gradients are equal but for rounding; what is not finite is left to training."""
    gap = (a - b).norm()
    return not bool(gap > _NEAR_GRADIENT * b.norm() + 1e-6)


@contextmanager
def _evaluating(modules: Modules) -> Iterator[None]:
    """Has a user's own modules evaluate, then puts each layer's mode back."""
    modes = {layer: layer.training for module in modules for layer in module.modules()}
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for layer, mode in modes.items():
            layer.training = mode


# ---- what a network holds -----------------------------------------------------------------------


def _state(parts: Parts) -> dict[str, Any]:
    """Return all that a network holds, by what a message calls it; values are copies."""
    found: dict[str, Any] = {}
    for part, forms in parts.items():
        for mode, form in (("", forms.training), (" ", forms.evaluation)):
            for name, layer in form.named_modules(prefix=part):
                label = f"{name}: {type(layer).__name__}"
                found[f"the layer {label}{mode}"] = True
                for attribute, value in vars(layer).items():
                    if attribute not in _INTERNAL:
                        found[f"the attribute '{attribute}' of {label}{mode}"] = _copied(value)
                for kind in ("parameter", "buffer"):
                    for own, value in getattr(layer, f"_{kind}s").items():
                        found[f"the {kind} '{own}' of {label}{mode}"] = _copied(value)
    return found


def _copied(value: Any) -> Any:
    """A value that tells later whether this one has changed."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Generator):
        return value.get_state()
    try:
        return cloudpickle.dumps(value)
    except Exception:  # a file, a lock: only which one it is can be told
        return id(value)


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        name.rstrip()
        for name in {**before, **after}
        if not equal(before.get(name), after.get(name))
    ]


@contextmanager
def _unchanged(parts: Parts, mode: str = "in training") -> Iterator[None]:
    """Refuse a network that a block has changed, before what else went wrong in it."""
    before = _state(parts)
    try:
        yield
    finally:
        changed = _differences(before, _state(parts))
        if changed:
            raise ModelError(
                f"A forward pass may not change the network, and {changed[0]} changes {mode}; "
                "compute it anew in each pass, in a local variable, or before training."
            )


def _near(a: Tensor, b: Tensor, like: Tensor, tolerance: float) -> bool:
    """Whether rows are equal but for rounding, measured by the largest value of each column."""
    if a.shape != b.shape:
        return False
    if not a.numel():
        return True
    size = like.abs().nan_to_num(0.0, 0.0, 0.0)
    scale = size.amax(0) + 0.01 * size.amax()
    known = a.isfinite() & b.isfinite()
    near = (a - b).abs() <= tolerance * scale
    return bool((near | ~known).all()) and equal(a.isfinite(), b.isfinite())
