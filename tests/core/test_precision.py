"""Products in less than float32: what changes, what does not, and that nothing is left switched."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import dpmcl
from conftest import model_of, run_study, tiny_network, tiny_stream
from dpmcl import plugins
from dpmcl.core.batch import Batch
from dpmcl.core.model import Model, initial_weights
from dpmcl.core.precision import arithmetic
from dpmcl.core.tree import leaves, tree_map
from dpmcl.exceptions import SpecError
from dpmcl.training.spec import Spec

SPEC: dict[str, Any] = {
    "replicas": 3,
    "stream": {"name": "digits", "tasks": 3},
    "network": {"name": "mlp", "hidden": 100},
    "training": {"updates": 40, "batch": 16, "lr": 0.01},
    "methods": {"er": {}},
    "device": "cpu",
}
SMALL = {**SPEC, "replicas": 1, "training": {"updates": 2, "batch": 8}, "network": "mlp"}


def spec(base=SPEC, **changes) -> Spec:
    return Spec.parse({**base, **changes})


# --------------------------------------------------------------------------- the switches

SWITCHES = [torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn]


def switches():
    return [switch.fp32_precision for switch in SWITCHES]


@pytest.fixture(params=["ieee", "tf32"])
def before(request):
    """The switches as somebody else left them."""
    first = switches()
    for switch in SWITCHES:
        switch.fp32_precision = request.param
    yield [request.param] * 3
    for switch, value in zip(SWITCHES, first, strict=True):
        switch.fp32_precision = value


def test_blocks_of_two_threads_that_overlap_leave_the_settings_as_they_were(before):
    torch.set_default_dtype(torch.float64)
    first, second = arithmetic("tf32"), arithmetic(None)
    try:
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert switches() == ["ieee"] * 3
        second.__exit__(None, None, None)
        assert (switches(), torch.get_default_dtype()) == (before, torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("precision", [None, "tf32", "bf16"])
def test_switches_are_set_for_a_block_and_put_back(before, precision):
    with arithmetic(precision):
        assert switches() == ["tf32" if precision else "ieee"] * 3
        with arithmetic(None):
            assert switches() == ["ieee"] * 3
    assert switches() == before
    with pytest.raises(KeyError), arithmetic(precision):
        raise KeyError
    assert switches() == before


def test_products_on_a_cpu_stay_float32():
    mkldnn = torch.backends.mkldnn
    on_cpu = [mkldnn.matmul, mkldnn.conv, mkldnn.rnn]
    torch.set_float32_matmul_precision("medium")  # bfloat16 on a CPU that has it
    try:
        before = [switch.fp32_precision for switch in on_cpu]
        for precision in (None, "tf32", "bf16"):
            with arithmetic(precision):
                assert [switch.fp32_precision for switch in on_cpu] == ["ieee"] * 3
        assert before[0] == "bf16"
        assert [switch.fp32_precision for switch in on_cpu] == before
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("precision", [None, "tf32", "bf16"])
def test_a_study_trains_within_them_and_leaves_none(precision):
    first, seen = switches(), []
    changes = {"precision": precision} if precision else {}
    run_study(spec(SMALL, **changes), progress=lambda *_: seen.append(switches()))
    assert ["tf32" if precision else "ieee"] * 3 in seen
    assert switches() == first


def answers() -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(60, 4))
    learner = dpmcl.Learner(updates=3, lr=0.1).learn(x, x[:, 0] > 0)
    streams = (SMALL["stream"], {"name": "sine", "tasks": 2})
    results = [run_study(spec(SMALL, stream=stream)) for stream in streams]
    errors = [result.records["er"].test.values.ravel() for result in results]
    values = results[1].learner("er").predict(np.zeros((1, 3)))
    return np.concatenate([learner.predict_proba(x).ravel(), *errors, values.ravel()])


def test_the_callers_autocast_and_default_type_change_nothing(tmp_path):
    plain = answers()
    with torch.autocast("cpu", torch.bfloat16):
        assert np.array_equal(answers(), plain, equal_nan=True)
        dpmcl.Learner(updates=1).learn([[0.0], [1.0]], [0, 1]).export(tmp_path / "program.pt2")
        assert torch.is_autocast_enabled("cpu")

    torch.set_default_dtype(torch.float64)
    try:
        assert np.array_equal(answers(), plain, equal_nan=True)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def model(precision):
    return model_of(tiny_stream(), tiny_network, torch.float32, precision=precision)


def rounded(values):
    return torch.equal(values, values.bfloat16().float())


def test_outputs_are_float32_with_the_digits_of_bfloat16():
    stream, full, half = tiny_stream(), model(None), model("bf16")
    assert (full.precision, half.precision) == (None, "bf16")
    x = stream.x[:20].float()
    gated = half.gated("features")
    theta = gated.init(0)
    for way, of in (
        (half.predict, theta),
        (gated.predict, theta),
        (half.features, theta["representation"]),
    ):
        out = way(of, x)
        assert out.dtype == torch.float32
        assert rounded(out)
    exact = full.predict(theta, x)
    assert not rounded(exact)
    assert 0 < (half.predict(theta, x) - exact).abs().max() < 0.02 * exact.abs().max()
    assert torch.equal(model("tf32").predict(theta, x), exact)  # on a CPU


def batch_of(stream, replicas=3):
    x = torch.stack([stream.x[k::replicas][:12] for k in range(replicas)]).float()
    y = torch.stack([stream.y[k::replicas][:12] for k in range(replicas)])
    return Batch(x, y, torch.ones(y.shape), torch.zeros_like(y))


def second_order(of):
    """The gradient of the cost after a step of gradient descent."""

    def ahead(theta, batch):
        grads = torch.func.grad(of.cost)(theta, batch)
        moved = tree_map(lambda p, g: p - 0.5 * g, theta, grads)
        return of.cost(moved, batch)

    return torch.func.vmap(torch.func.grad(ahead))


def test_gradients_of_gradients_and_their_trace_are_float32_and_near():
    batch = batch_of(tiny_stream())
    full, half = model(None), model("bf16")
    theta = initial_weights(half, [0, 1, 2])
    exact, actual = second_order(full)(theta, batch), second_order(half)(theta, batch)
    traced = make_fx(second_order(half))(theta, batch)(theta, batch)
    for a, b, c in zip(leaves(exact), leaves(actual), leaves(traced), strict=True):
        assert b.dtype == torch.float32
        assert torch.equal(b, c)
        assert 0 < (a - b).abs().max() < 0.1 * a.abs().max()


def test_convolutions_by_patches_too():
    build = plugins.find("network", "lenet")(hidden=6).build
    x = torch.rand(8, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    full, half = (
        Model.build(
            lambda: build((1, 16, 16), 3),
            "classification",
            x,
            3,
            convolutions="patches",
            precision=precision,
        )
        for precision in (None, "bf16")
    )
    y = torch.arange(8) % 3
    batch = Batch(*(t[None].expand(2, *t.shape) for t in (x, y, torch.ones(8), y * 0)))
    theta = initial_weights(half, [0, 1])
    exact, actual = (torch.func.vmap(torch.func.grad(of.cost))(theta, batch) for of in (full, half))
    for a, b in zip(leaves(exact), leaves(actual), strict=True):
        assert b.dtype == torch.float32
        assert 0 < (a - b).norm() < 0.1 * a.norm()


def test_a_spec_says_it_only_where_it_is_set():
    assert "precision" not in spec().to_table()
    assert spec(precision="tf32").to_table()["precision"] == "tf32"
    with pytest.raises(SpecError, match="precision = 'bf16' needs dtype = 'float32', got 'float"):
        spec(precision="bf16", dtype="float64")
