"""How the updates of ER, OML and DPMCL without its third term relate ("Connection to MAML, OML").

One update of each by gradient descent, from the same weights, on the same b_N and b_P, of equal
sizes. g_N and g_P are the gradients of J_N and J_P, H_N and H_P their Hessians, a the step. The
paper (section 3.1 and 3.2) says that without the third and the fourth term its update is the
first-order one of MAML and OML. On numbers:

    DPMCL joint             theta - a (g_N + g_P)(theta)                      is ER's step of 2 a
    DPMCL alternating       theta' - a g_P(theta'), theta' = theta - a g_N    is OML's "text"
    OML "nested", order 1   theta - a g_P(theta')                             lacks - a g_N(theta)
    OML "nested", order 2   theta - a (1 - a H_N) g_P(theta')                 differs by a^2 H_N g_P

"""

import torch
from torch import nn

from conftest import model_of, tiny_stream, tiny_task
from dpmcl.core.batch import Batch, join
from dpmcl.core.tree import norm, tree_map
from dpmcl.methods.dpmcl import DPMCL
from dpmcl.methods.er import ER
from dpmcl.methods.oml import OML

KEYS = torch.zeros(8, 2, dtype=torch.int64)
A = 0.05


def _network() -> tuple[nn.Module, nn.Module]:
    """Smooth: Hessians have a say."""
    h = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh())
    return h, nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


def _rows(tasks: list[int], seed: int) -> Batch:
    stream = tiny_stream()
    rows = torch.cat([(stream.task[0] == k).nonzero()[:, 0] for k in tasks])
    pick = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:10]
    row = stream.row[0, rows[pick]]
    present = torch.ones(10, dtype=torch.bool)
    return stream.batch(row, present, stream.task[0, rows[pick]], torch.float64)


MODEL, TASK = model_of(tiny_stream(), _network), tiny_task(2)
THETA = MODEL.init(3)
B_N, B_P = _rows([2], 0), _rows([0, 1], 1)


def updated(method, batches):
    """theta after one update of each of a method's phases; batches: one dict a phase."""
    state = method.start(THETA, TASK)
    for phase, phase_batches in zip(method.phases(MODEL, TASK), batches, strict=True):
        assert phase.updates == 1
        assert phase.draws.keys() == phase_batches.keys()
        state = phase.update(state, phase_batches, KEYS)
    return state.theta


def er(a):
    return updated(ER(optimiser="sgd", lr=a, updates=1), [{"replay": join(B_P, B_N)}])


def dpmcl(a, step, third_term="off", **settings):
    method = DPMCL(optimiser="sgd", lr=a, kappa=1, step=step, third_term=third_term, **settings)
    return updated(method, [{"new": B_N, "past": B_P}])


def oml_text(a):
    method = OML(optimiser="sgd", lr=a, reading="text", n_grad=1, n_meta=1)
    return updated(method, [{"batch": B_N}, {"batch": B_P}])


def oml_nested(a, order):
    method = OML(optimiser="sgd", lr=a, reading="nested", n_meta=1, inner=1, order=order)
    block = tree_map(lambda leaf: leaf[None], B_N)
    return updated(method, [{"new": block, "seen": B_P}])


def gradient(batch, theta=THETA):
    return torch.func.grad(lambda t: MODEL.cost(t, batch))(theta)


def hessian_times(batch, tangent, theta=THETA):
    return torch.func.jvp(lambda t: gradient(batch, t), (theta,), (tangent,))[1]


def plus(*terms):
    """A sum of trees, each with its factor."""
    factors, trees = zip(*terms, strict=True)
    return tree_map(lambda *leaf: sum(f * x for f, x in zip(factors, leaf, strict=True)), *trees)


def difference(first, second):
    return plus((1, first), (-1, second))


def same(first, second, within=1e-12):
    assert norm(difference(first, second)) <= within * max(1.0, norm(second))
    assert norm(difference(first, THETA)) > 1e-3  # and it is no step of nothing


def test_dpmcl_joint_without_the_third_term_is_er_at_twice_the_step():
    """J_PN of equal halves is (J_N + J_P) / 2, so ER's step of 2 a is one on J_N + J_P."""
    same(dpmcl(A, "joint"), er(2 * A))
    same(er(2 * A), plus((1, THETA), (-A, gradient(B_N)), (-A, gradient(B_P))))
    assert norm(difference(dpmcl(A, "joint"), er(A))) > 1e-3


def test_dpmcl_alternating_without_the_third_term_is_a_step_on_j_n_then_one_on_j_p():
    """Which is OML's "text" reading, n_grad = n_meta = 1, given the same rows."""
    first = plus((1, THETA), (-A, gradient(B_N)))
    expected = plus((1, first), (-A, gradient(B_P, first)))
    same(dpmcl(A, "alternating"), expected)
    same(oml_text(A), expected)


def test_nested_oml_of_order_1_takes_the_gradient_of_j_p_ahead_and_applies_it_here():
    """theta - a g_P(theta - a g_N(theta)): it lacks the step on J_N that "alternating" takes."""
    ahead = plus((1, THETA), (-A, gradient(B_N)))
    same(oml_nested(A, 1), plus((1, THETA), (-A, gradient(B_P, ahead))))
    lacking = difference(dpmcl(A, "alternating"), oml_nested(A, 1))
    assert norm(difference(lacking, plus((-A, gradient(B_N))))) < 1e-12
    assert norm(lacking) > 1e-2


def test_order_2_differs_from_order_1_by_a_hessian_term():
    """By a^2 H_N g_P(theta~), exactly for one inner step."""
    ahead = plus((1, THETA), (-A, gradient(B_N)))
    exact = plus((A**2, hessian_times(B_N, gradient(B_P, ahead))))
    assert norm(difference(difference(oml_nested(A, 2), oml_nested(A, 1)), exact)) < 1e-12
    assert norm(exact) > 1e-5
