"""Workers give what this process would give, and say what goes wrong in them."""

import os
import signal
import threading
import time

import pytest
import torch

from conftest import tiny_run
from dpmcl import plugins
from dpmcl.core.tree import leaves
from dpmcl.data.sampling import Chunk
from dpmcl.engine import Batched, Grouped, Looped
from dpmcl.engine.box import Box
from dpmcl.engine.crew import Crew
from dpmcl.exceptions import DeviceError, ModelError
from dpmcl.methods._method import State

SEEDS = (0, 1, 2, 3, 4)


@pytest.fixture(scope="module", params=[Looped, Batched], ids=["looped", "batched"])
def crew(request):
    made = Crew(request.param, 2)
    assert made.wait()
    return made, request.param


def spread(crew, size):
    made, inner = crew
    return Grouped(inner(), size=size, crew=made, worth=0.0)


@pytest.mark.parametrize("name", ["er", "dpmcl", "oml"])
def test_workers_give_the_same_bytes(crew, name):
    rule = plugins.find("method", name)(batch=4, updates=6, memory=20)
    here, there = (
        tiny_run(rule, SEEDS, engine, tasks=2, dropout=0.2)
        for engine in (Grouped(crew[1](), size=2), spread(crew, 2))
    )
    for a, b in zip(leaves(here.theta), leaves(there.theta), strict=True):
        assert torch.equal(a, b)
    assert (here.errors["test"].after[:, 1] == there.errors["test"].after[:, 1]).all()


def test_workers_do_the_work(crew):
    pids = spread(crew, 1).map(lambda x: x * 0 + os.getpid(), torch.zeros(6, 1))
    assert os.getpid() not in pids.flatten().tolist()


def test_what_is_defined_on_the_spot_can_be_sent(crew):
    offset = torch.arange(3.0)

    class Here:
        def __call__(self, x):
            return x + offset

    found = spread(crew, 1).map(Here(), torch.zeros(2, 3))
    assert found.tolist() == [[0.0, 1.0, 2.0]] * 2


def test_an_error_of_the_package_comes_through(crew):
    def refuse(x):
        raise ModelError("No such layer.")

    with pytest.raises(ModelError, match="No such layer"):
        spread(crew, 1).map(refuse, torch.zeros(2, 3))
    assert spread(crew, 1).map(lambda x: x + 1, torch.zeros(2, 1)).sum() == 2


def test_what_cannot_be_sent_runs_here(crew):
    lock = threading.Lock()

    def guarded(x):
        with lock:
            return x + 1

    engine = spread(crew, 1)
    assert engine.map(guarded, torch.zeros(2, 1)).sum() == 2
    assert engine._crew is None


def test_running_out_of_memory_halves_the_groups(crew):
    def large(x):
        return x + torch.empty(1 << 60)

    with pytest.raises(DeviceError, match="not hold even one replica"):
        spread(crew, 2).map(large, torch.zeros(4, 1))


def an_update(state, batches, key):
    return state._replace(theta={"p": {"w": state.theta["p"]["w"] + 1}})


def a_chunk(replicas: int, steps: int) -> Chunk:
    return Chunk({}, {}, {}, torch.zeros(replicas, steps, 1, 2, dtype=torch.int64))


class Shared:
    """All of a stream that an update without batches asks for."""

    scale = None

    def of_replicas(self, first, last):
        return self


def test_a_state_that_is_given_stays_as_it_is(crew):
    state = State({"p": {"w": torch.arange(4.0)[:, None]}}, {}, {})
    after = spread(crew, 1).advance(an_update, state, a_chunk(4, 3), Shared(), torch.float32)
    assert state.theta["p"]["w"].flatten().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert after.theta["p"]["w"].flatten().tolist() == [3.0, 4.0, 5.0, 6.0]


def test_results_do_not_change_when_the_box_is_used_again(crew):
    engine = spread(crew, 1)
    state = State({"p": {"w": torch.arange(4.0)[:, None]}}, {}, {})
    first = engine.advance(an_update, state, a_chunk(4, 1), Shared(), torch.float32)
    engine.advance(an_update, first, a_chunk(4, 5), Shared(), torch.float32)
    assert first.theta["p"]["w"].flatten().tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_worker_that_is_killed_is_named():
    crew = Crew(Looped, 2)
    assert crew.wait()

    def die(x):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(DeviceError, match="worker process was ended") as caught:
        Grouped(Looped(), size=1, crew=crew, worth=0.0).map(die, torch.zeros(2, 1))
    assert "\n" not in str(caught.value)
    assert crew.broken
    again = Grouped(Looped(), size=1, crew=crew, worth=0.0)
    assert again.map(lambda x: x + 1, torch.zeros(2, 1)).sum() == 2


def test_workers_leave_with_their_crew():
    crew = Crew(Looped, 2)
    assert crew.wait()
    processes = list(crew._executor._processes.values())
    del crew
    deadline = time.monotonic() + 30
    while any(process.is_alive() for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_no_workers_are_started_for_little_work():
    crew = Crew(Looped, 2)
    Grouped(Looped(), size=1, crew=crew).map(lambda x: x, torch.zeros(4, 1))
    assert crew._executor is None


def test_a_crew_of_one_is_none():
    crew = Crew(Looped, 1)
    assert not crew.ready()
    assert crew._executor is None


def test_a_box_gives_back_what_was_put_in():
    box = Box()
    x = torch.arange(12.0).view(3, 4)
    thing = {
        "plain": x,
        "turned": x.t(),
        "spread": torch.ones(1).expand(5),
        "same": x,
        "none": torch.zeros(0, 3),
        "flag": torch.tensor([True, False]),
        "module": torch.nn.Linear(2, 1),
        "text": "words",
    }
    packed = box.put(thing)
    found = packed.open()
    for name in ("plain", "turned", "spread", "same", "none", "flag"):
        assert torch.equal(found[name], thing[name])
        assert found[name].dtype == thing[name].dtype
    assert found["turned"].stride() == x.t().stride()
    assert found["plain"].data_ptr() == found["same"].data_ptr()
    assert found["plain"].data_ptr() != x.data_ptr()
    assert torch.equal(found["module"].weight, thing["module"].weight)
    assert found["text"] == "words"


def test_a_box_grows_and_is_used_again():
    box = Box()
    small = box.put(torch.ones(10))
    large = box.put(torch.full((10_000,), 2.0))
    assert large.memory != small.memory
    assert large.open().sum() == 20_000
    again = box.put(torch.full((10,), 3.0))
    assert again.memory == large.memory
    assert again.open().sum() == 30
