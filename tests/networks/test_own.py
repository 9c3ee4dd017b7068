"""A user's own modules: split where they may be, used as they are, or refused."""

import copy
import textwrap
import threading
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils.prune import l1_unstructured

import conftest
import dpmcl
from conftest import TINY_SPEC, Layer
from dpmcl import Learner, ModelError
from dpmcl.core.model import Model
from dpmcl.exceptions import DataError
from dpmcl.learner import chunks, knowledge
from dpmcl.networks.python import own_network

refused = partial(conftest.refused, error=ModelError)


def check_learned_as_by_pytorch(module, x, frozen, before=None):
    """Check three updates of a learner on 8 rows of class 1 against steps of its module."""
    one = Learner(
        module, frozen=frozen, before=before, classes=[*"abcd"], method="naive", updates=3,
        batch=8, optimiser="sgd",
    ).learn(x, ["b"] * 8)  # fmt: skip
    for name in frozen:
        module.get_submodule(name).eval().requires_grad_(False)
    step = torch.optim.SGD(module.parameters(), lr=one._config.method.lr)
    for _ in range(3):
        step.zero_grad()
        nn.functional.cross_entropy(module(x), torch.ones(8, dtype=torch.int64)).backward()
        step.step()
    expected = module(x).softmax(-1).double()
    torch.testing.assert_close(torch.tensor(one.predict_proba(x)), expected, atol=1e-6, rtol=0)


class Net(nn.Module):
    """A backbone and a head, with what stands between them and after them."""

    def __init__(self, body: nn.Module, features: int, after=None) -> None:
        super().__init__()
        self.body, self.head, self.after = body, nn.Linear(features, 4), after

    def forward(self, x):
        out = self.head(self.body(x))
        return out if self.after is None else self.after(out)


def around(function) -> nn.Module:
    """A backbone and a head, used by a function."""
    return Layer(function, body=nn.Linear(4, 6), head=nn.Linear(6, 4))


def last_state() -> nn.Module:
    """The last state of a GRU."""
    gru = nn.GRU(3, 5, batch_first=True)
    return Layer(lambda self, x: self.gru(x)[0][:, -1], gru=gru)


def embedded() -> nn.Module:
    """Whole numbers as inputs."""
    return Layer(lambda self, x: self.embedding(x.long()).flatten(1), embedding=nn.Embedding(9, 5))


def attention() -> nn.Module:
    """Attention within a row."""
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    return Layer(lambda self, x: self.attention(x, x, x)[0].mean(1), attention=attention)


def drawing(always: bool = False) -> nn.Module:
    return Layer(lambda self, x: nn.functional.dropout(x, 0.5, self.training or always))


class Scaled(nn.Module):
    """A factor that PyTorch does not store with the parameters."""

    def __init__(self, factor) -> None:
        super().__init__()
        self._factor = factor
        self.register_buffer("twice", torch.tensor(2.0 * factor), persistent=False)

    def forward(self, x):
        return x * self._factor + self.twice


def hooked(*hooks):
    layer = nn.Linear(4, 4)
    for hook in hooks:
        layer.register_forward_hook(hook)
    return layer


def images() -> nn.Module:
    norm = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten()]
    return nn.Sequential(*norm)


KINDS = {
    "GRU": (lambda: Net(last_state(), 5), (6, 3), "looped"),
    "a linear layer": (lambda: nn.Linear(6, 4), (6,), "batched"),
    "embedding": (lambda: Net(embedded(), 10), (2,), "batched"),
    "attention": (lambda: Net(attention(), 4), (3, 4), "batched"),
    "BatchNorm and dropout": (lambda: Net(images(), 12), (1, 4, 4), "batched"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_module_is_split_and_learns(kind, log_lines):
    make, shape, engine = KINDS[kind]
    torch.manual_seed(0)
    module, x = make(), torch.rand(40, *shape) * 5
    y = [*"abcd"] * 10
    wanted = module.eval()(x).detach().softmax(-1)
    kept = copy.deepcopy(module.state_dict())
    one = Learner(module, classes=[*"abcd"], replicas=2, lr=1e-9, updates=3, optimiser="sgd")
    one.learn(x, y)
    assert one._known.setup.engine.name == engine
    assert [
        line for line in log_lines if "one after another" in line and "GRU" in line
    ] == log_lines
    assert len(log_lines) == (engine == "looped")
    if kind != "BatchNorm and dropout":  # whose running statistics have moved
        torch.testing.assert_close(
            torch.tensor(one.predict_proba(x)), wanted.double(), atol=1e-5, rtol=0
        )
    trained = Learner(module, updates=60, lr=0.1).learn(x, y)
    assert trained._known.setup.model.network()[1].out_features == 8  # room
    assert trained.evaluate(x, y) < 0.7
    if kind == "embedding":
        refused(lambda: trained.predict(x + 9), "fails on these rows: index")
    assert all(
        torch.equal(a, b) for a, b in zip(kept.values(), module.state_dict().values(), strict=True)
    )


def test_frozen_layers_stay_and_have_no_dropout(tmp_path):
    torch.manual_seed(0)
    module, x = Net(images(), 12), torch.rand(30, 1, 4, 4)
    one = Learner(module, frozen=["body"], updates=20, lr=0.1).learn(x, ["a", "b", "c"] * 10)
    assert one._known.run.replicas.theta["representation"] == {}
    assert one._known.run.replicas.buffers == {}
    held = one._known.held.x  # features, computed once
    torch.testing.assert_close(held.sort(0).values, module.eval().body(x).sort(0).values)
    before = one.predict_proba(x)
    one.save(tmp_path)
    other = Learner.load(tmp_path, model=module, frozen=["body"])
    assert (other.predict_proba(x) == before).all()
    for each in (one, other):
        each.learn(x, ["a", "b", "c"] * 10)
    assert (other.predict_proba(x) == one.predict_proba(x)).all()
    strange = Net(images(), 12)  # with other values in the layers that are not stored
    refused(lambda: Learner.load(tmp_path, model=strange, frozen=["body"]), "other values")
    refused(lambda: Learner.load(tmp_path, model=module), "same before= and frozen=")


def test_a_network_with_another_buffer_is_not_loaded(tmp_path):
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4))
    module.register_buffer("table", torch.arange(9.0))  # for inputs that no row has
    Learner(module, updates=1).learn(torch.rand(8, 4), ["a", "b"] * 4).save(tmp_path)
    Learner.load(tmp_path, model=module)
    module.table[8] += 1
    refused(lambda: Learner.load(tmp_path, model=module), "or buffers have other")


@pytest.mark.parametrize(("layer", "setting"), [(1, "p"), (2, "momentum")])
@pytest.mark.parametrize("memory", [True, False])
def test_a_network_that_trains_in_another_way_is_not_loaded(layer, setting, memory, tmp_path):
    module = nn.Sequential(
        nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4, momentum=0.5), nn.Linear(4, 4)
    )
    learner = Learner(module, updates=1).learn(torch.rand(8, 4), ["a", "b"] * 4)
    learner.save(tmp_path, memory=memory)
    Learner.load(tmp_path, model=module)
    setattr(module[layer], setting, 0.4)
    refused(lambda: Learner.load(tmp_path, model=module), "trains in another way", error=ModelError)


def test_a_frozen_layer_that_has_no_children_computes_as_in_evaluation():
    torch.manual_seed(0)
    layers = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), drawing(), nn.Linear(6, 6)]
    module, x = Net(nn.Sequential(*layers), 6), torch.rand(1, 4).repeat(8, 1)
    check_learned_as_by_pytorch(module, x, ["body.1", "body.2", "body.3"])


def test_features_kept_learn_what_rows_would(monkeypatch):
    torch.manual_seed(0)
    module, x, shares = Net(images(), 12), torch.rand(30, 1, 4, 4), []
    for body in (knowledge.with_body, lambda config, form, x: form):
        monkeypatch.setattr(chunks, "with_body", body)
        one = Learner(module, frozen=["body"], updates=20, lr=0.1).learn(x[:20], ["a", "b"] * 10)
        shares.append(one.learn(x, ["a", "b", "c"] * 10).predict_proba(x))
        assert (one._known.form.body is None) == (len(shares) == 2)
    torch.testing.assert_close(*map(torch.tensor, shares), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "layer", [nn.Dropout(), drawing(), Scaled(2.0), hooked(lambda own, _, out: out + own.training)]
)
def test_rows_are_kept_if_a_layer_behind_the_frozen_ones_computes_otherwise_in_training(layer):
    module = Net(nn.Sequential(nn.Linear(4, 4), layer), 4)
    for frozen, is_constant in (["body.0"], isinstance(layer, Scaled)), (["body"], True):
        one = Learner(module, frozen=frozen, updates=1).learn(torch.rand(8, 4), ["a", "b"] * 4)
        assert (one._known.form.body is not None) == is_constant


def test_rows_behind_a_frozen_body_keep_their_digits():
    module, x = Net(nn.Linear(2, 3), 3), 1.7e9 + torch.rand(20, 2).double()
    learner = Learner(module, frozen=["body"])
    refused(lambda: learner.learn(x, [*"ab"] * 10), "cannot tell apart", error=DataError)


def test_dpmcl_learns_a_head_behind_a_frozen_body():
    module, x = Net(images(), 12), torch.rand(30, 1, 4, 4)
    one = Learner(module, method="dpmcl", zeta=1, frozen=["body"], updates=5)
    before = one.learn(x[:10], ["a", "b"] * 5).predict_proba(x)
    assert (one.learn(x, ["a", "b"] * 15).predict_proba(x) != before).any()


@pytest.mark.parametrize("frozen", [[], ["0"]])
def test_an_embedding_of_bytes_is_refused(frozen):
    x = torch.randint(0, 9, (20, 4), dtype=torch.uint8)  # divided by 255 they would all be token 0
    y = torch.arange(20) % 3
    network = nn.Sequential(embedded(), nn.Linear(20, 3))
    stream = dpmcl.Stream.from_arrays(x, y)
    settings = {"training.updates": 1, "training.batch": 4}

    def run():
        return dpmcl.run(stream, network=network, methods=["er"], settings=settings)

    learner = Learner(network, frozen=frozen, classes=[0, 1, 2], updates=1)
    for use in (run, lambda: learner.learn(x, y)):
        refused(use, "0.embedding: Embedding takes whole numbers", "int64")
    learner.learn(x.long(), y)


@pytest.mark.parametrize("scale", [None, False])
def test_a_warning_tells_that_what_an_embedding_takes_is_scaled(scale, log_lines):
    codes = {name: torch.tensor([1, 1, 2, 3] * 5).numpy() for name in "abcd"}
    network = nn.Sequential(embedded(), nn.Linear(20, 3))
    Learner(network, scale=scale, updates=1).learn(codes, ["x", "y"] * 10)
    told = ["0.embedding: Embedding takes whole numbers" in line for line in log_lines]
    assert told == [True] * (scale is None)


@pytest.mark.parametrize(
    ("last", "cost", "told"),
    [
        (nn.Softmax(-1), None, True),
        (nn.Softmax(-1), lambda p, y: (p - torch.eye(3)[y]).square().sum(-1), False),
        (nn.LogSoftmax(-1), None, False),
        (nn.Sigmoid(), None, False),
    ],
)
def test_a_warning_tells_that_outputs_are_probabilities(last, cost, told, log_lines):
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    network = nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 3), last)
    Learner(network, classes=[0, 1, 2], cost=cost, updates=1).learn(x, y)
    assert ["outputs are probabilities" in line for line in log_lines] == [True] * told


def test_modules_that_cannot_be_used_are_refused():
    def build(module, shape=(4,), **settings):
        network, x = own_network(module, **settings), torch.rand(6, *shape)
        return lambda: Model.build(lambda: network.build(shape, 4), "classification", x, 4)

    body = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    refused(build(Net(body, 6, nn.Softmax(-1))), "'head'", "before=")
    refused(build(nn.Conv2d(3, 4, 3), (3, 4, 4)), "no linear layer")
    refused(build(Net(body, 6, Answer())), "one tensor, (rows, outputs), got a dict")
    refused(build(Net(body, 6), before="body"), "not its last step")
    refused(build(Net(body, 6), before="heap"), "Did you mean 'head'")
    refused(build(Net(body, 6), frozen=["bdy"]), "Did you mean 'body'")
    frozen = ["body", "head"]
    refused(build(Net(body, 6), frozen=frozen), "Everything is frozen")
    refused(build(Net(body, 6), (5,)), "does not take inputs of shape (5,)")
    embedded = nn.Sequential(nn.Embedding(9, 5), nn.Flatten(), nn.Linear(20, 4))
    refused(build(embedded), "give an embedding x.long()")
    noisy = nn.Sequential(nn.Linear(6, 4), drawing(always=True))
    refused(build((body, noisy)), "prediction.1: Layer draws", "evaluation")
    refused(lambda: own_network(3), "a module, two modules")
    built = build(lambda shape, outputs: 3, frozen=["body"])
    refused(built, "a module, two modules", "got 3")
    only_head = "the rest of it uses that layer ('Identity' object has no attribute 'weight')"
    refused(build(around(lambda net, x: net.head(net.body(x.to(net.head.weight))))), only_head)
    later = around(lambda net, x: net.head(net.body(x)).mul_(2 if net.training else 1))
    refused(build(later), "'head'", "its last step in training")
    lazy = nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.Linear(6, 4))
    for module, why in ((lazy, "0.weight' has none yet"), (torch.compile(lazy), "is compiled")):
        refused(lambda module=module: own_network(module), why)
        refused(build(lambda shape, outputs, own=module: own), why)


def test_what_cannot_be_copied_is_refused():
    locked, hooked, pruned = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    locked.lock = threading.Lock()
    hooked.weight.register_hook(lambda gradient: 5 * gradient)
    l1_unstructured(pruned, "weight", 0.5)  # a weight is then a result of two others
    for module, why in (
        (locked, "cannot pickle '_thread.lock'"),
        (hooked, "'representation.0.we"),
        (pruned, "results of earlier passes"),
    ):
        network = nn.Sequential(module, nn.Linear(4, 4))
        refused(lambda network=network: own_network(network), why)


class Answer(nn.Module):
    """Names its result, as many models of other libraries do."""

    def forward(self, x):
        return {"logits": x}


class Cosine(nn.Linear):
    """A linear layer that is none."""

    def forward(self, x):
        return nn.functional.linear(x, nn.functional.normalize(self.weight, dim=1))


class Gated(nn.Module):
    """A prediction whose last linear layer is a gate of its outputs."""

    def __init__(self):
        super().__init__()
        self.out, self.gate = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, features):
        return self.out(features) * self.gate(features)


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    return module


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), Cosine(4, 4)), {}),
        (lambda: nn.Sequential(nn.Linear(4, 4), hooked(lambda _, __, out: 2 * out)), {}),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)), {}),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), {"frozen": "1"}),
        (lambda: (nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1))), {}),
        (lambda: (nn.Linear(4, 4), Gated()), {}),
        (tied, {}),
    ],
)
def test_a_last_layer_that_is_more_than_its_width_is_not_replaced(make, settings):
    network = own_network(make(), **settings)
    refused(lambda: network.build((4,), 8), "A plain nn.Linear replaces")
    if make is not tied:
        assert repr(network.build((4,), 4)[1]) == repr(make()[-1])


@pytest.mark.parametrize(
    ("frozen", "before"), [(["1.1"], None), (["1"], None), (["1.1"], "1"), (["1"], "1")]
)
def test_the_layer_before_which_a_module_is_split_can_be_frozen(frozen, before):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4)))
    check_learned_as_by_pytorch(module, torch.rand(1, 4).repeat(8, 1), frozen, before)


def test_one_of_two_modules_can_be_frozen():
    torch.manual_seed(0)
    pair = nn.Linear(4, 6), nn.Linear(6, 4)
    settings = {"classes": [*"abcd"], "updates": 1}
    for frozen, other in (("representation", "prediction"), ("prediction", "representation")):
        one = Learner(pair, frozen=[frozen], **settings).learn(torch.rand(8, 4), ["a", "b"] * 4)
        theta = one._known.run.replicas.theta
        assert theta[frozen] == {}
        assert len(theta[other]) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: nn.MultiheadAttention(4, 1), lambda: nn.MultiheadAttention(4, 2)),
        (lambda: nn.AvgPool2d(3), lambda: nn.AvgPool2d(3, count_include_pad=False)),
        (lambda: Scaled(1.0), lambda: Scaled(2.0)),
        (hooked, lambda: hooked(lambda _, __, out: 2 * out)),
        (lambda: nn.Linear(4, 4), lambda: nn.Linear(4, 4).requires_grad_(False)),
        (
            lambda: torch.fx.symbolic_trace(around(lambda net, x: net.head(net.body(x)))),
            lambda: torch.fx.symbolic_trace(around(lambda net, x: net.body(x))),
        ),
    ],
)
def test_networks_with_equal_parameters_are_told_apart(one, other):
    def digest(build):
        torch.manual_seed(0)
        return own_network(build()).digest

    assert digest(one) == digest(one) != digest(other)


def test_equal_networks_have_one_fingerprint():
    """Lists of tensors, sets, and code of scripts have other pickles in another process."""

    def build(kinds, function):
        class Unit:
            """A class of a script; each definition has a number of its own."""

            times = function

        torch.manual_seed(0)
        net = nn.Linear(4, 4)
        net.waves, net.kinds = [torch.arange(3.0), torch.eye(3).to_sparse()], kinds
        net.unit = Unit()
        return net

    assert [*{0, 8}] != [*{8, 0}]
    nets = (
        lambda: build({0, 8}, lambda x: 2 * x),
        lambda: build({8, 0}, lambda x: 2 * x),
        lambda: build({0, 9}, lambda x: 2 * x),
        lambda: build({0, 8}, lambda x: 3 * x),
    )
    digests = [own_network(net()).digest for net in nets]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_a_script_that_moved_has_the_same_fingerprint():
    source = """
    class Kind:
        {line}
        def width(self): return {width}

    def make(shape, outputs): return Kind().width()
    """

    def digest(path, line, width):
        code = textwrap.dedent(source).format(line=f"__firstlineno__ = {line}", width=width)
        namespace = {"__name__": "__main__", "__file__": path}  # as Python 3.13 runs a script
        exec(compile("\n" * line + code, path, "exec"), namespace)
        return own_network(namespace["make"]).digest

    assert digest("a/net.py", 1, 3) == digest("b/net.py", 7, 3) != digest("a/net.py", 1, 4)


def test_a_run_takes_modules_and_knows_them_again(tmp_path):
    spec = {key: value for key, value in TINY_SPEC.items() if key != "network"}
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))
    first = dpmcl.run(spec, network=module, out=tmp_path)
    assert first.spec["network"]["name"] == "python"
    more = dpmcl.run(spec, network=module, out=tmp_path, replicas=2)
    assert more.errors["er"].seeds == (0, 1)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))
    with pytest.raises(dpmcl.FolderError, match=r"network\.digest"):
        dpmcl.run(spec, network=other, out=tmp_path)
    with pytest.raises(ModelError, match=r"network=\.\.\."):
        dpmcl.run(tmp_path, replicas=3)
    shapes = []

    def build(shape, outputs):
        shapes.append((shape, outputs))
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), nn.Linear(3, outputs)

    dpmcl.run(spec, network=build)
    assert {*shapes} == {((1, 8, 8), 10)}
