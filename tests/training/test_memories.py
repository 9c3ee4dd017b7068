"""Slots of the memories of a run."""

import pytest

from conftest import setup_of, tiny_stream
from dpmcl import plugins
from dpmcl.training.memories import empty_memories


@pytest.mark.parametrize(
    ("name", "asked", "slots"),
    [
        ("er", 5, 5),
        ("er", 1000, 108),  # all training rows, 36 a task
        ("er_ace", 1000, 1000),  # whose rows enter each time that they are drawn
    ],
)
def test_a_memory_has_the_slots_that_its_rows_can_fill(name, asked, slots):
    method = plugins.find("method", name)(updates=1, memory=asked)
    held = empty_memories(setup_of(method, tiny_stream(3)))["train"]
    assert held.position.shape == (2, slots)
