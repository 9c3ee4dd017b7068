"""Golden values: results of tiny float64 runs, which show a change of any number.

    python tests/golden.py             adds the values of new cases, and drops those of old ones
    python tests/golden.py "REASON"    also replaces values that moved, and keeps the reason

golden.json holds, for each case, the errors after the last task, three numbers of each part of
theta, and the reasons of all rewrites, each of which CHANGELOG.md lists under "Moves numbers".
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conftest import SHARES, model_of, moving_stream, tiny_network, tiny_run, tiny_stream
from dpmcl import plugins
from dpmcl.core.atomic import write_text
from dpmcl.data.scaling import fit_scale
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.methods._method import Method
from dpmcl.networks.mlp import MLP

FILE = Path(__file__).with_name("golden.json")
COMMAND = "python tests/golden.py"
RELATIVE, ABSOLUTE = 1e-9, 1e-12  # other BLAS libraries may round differently
SEEDS = (0, 1)
SMALL = {"updates": 6, "batch": 8, "memory": 40}  # of 108 training rows: the reservoir matters
NESTED = {"reading": "nested", "inner": 2, "inner_lr": 1e-3}
ORIGINAL = {"reading": "original", "meta_updates": 4, "trajectory": 3, "queries": 5, "rates": [0.1]}

Values = dict[str, Any]
"""errors: one for each replica and task. theta: `digest` of each part and replica."""

Cases = dict[str, Callable[[], Values]]


@dataclass(frozen=True)
class Golden:
    """Content of golden.json."""

    reasons: list[str] = field(default_factory=list)
    cases: dict[str, Values] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = FILE) -> "Golden":
        return cls(**json.loads(path.read_text("utf-8")))

    def write(self, path: Path) -> None:
        """Write one case per line, so that a diff shows which ones moved."""
        lines = [
            f"  {json.dumps(name)}: {json.dumps(self.cases[name], allow_nan=False)}"
            for name in sorted(self.cases)
        ]
        reasons = json.dumps(self.reasons, indent=2, ensure_ascii=False)
        cases = ",\n".join(lines)
        write_text(path, f'{{"reasons": {reasons},\n"cases": {{\n{cases}\n}}}}\n')


def own_methods() -> dict[str, type[Method]]:
    """The package's own methods. Installed plugins of other packages have no golden values."""
    methods = {name: plugins.find("method", name) for name in plugins.names("method")}
    return {name: cls for name, cls in methods.items() if cls.__module__.startswith("dpmcl.")}


def variants() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names of methods with settings that have a case besides that of the defaults."""
    yield "er", {"memory_policy": "resample"}
    yield "er", {"reset_at_task": True}
    for optimiser in [*plugins.names("optimiser"), {"name": "sgd", "momentum": 0.9}]:
        yield "er", {"optimiser": optimiser}
    theorem = {"name": "theorem", "beta": 20.0, "form": "V_theta", "drift": "features"}
    yield "er", {"optimiser": theorem, "lr": 10.0}  # lr is too large to limit the step
    for term in ("constant", "first", "exact", "off"):
        for step in ("alternating", "joint"):
            yield "dpmcl", {"third_term": term, "step": step, "zeta": 2}
    yield "dpmcl", {"buffer_state": "copied", "zeta": 2}
    yield "dpmcl", {"eta": 0.5, "third_weight": -0.1, "zeta": 2}
    for guard in ("clip", "square"):
        yield "dpmcl", {"guard": guard, "zeta": 2, "lr": 0.3}  # where the look-ahead may lose
    for fourth in ("exact", "estimated"):
        for weight in (1.0, -0.5):
            yield "dpmcl", {"fourth_term": fourth, "fourth_weight": weight, "zeta": 2}
    for name in ("er", "dpmcl"):
        for discount_on in ("weights", "sampling"):
            discount = {"name": "exponential", "rate": 0.5}
            yield name, {"discount": discount, "discount_on": discount_on}
    for name in ("oml", "cml", "anml"):
        for reading in ("box", "text"):
            yield name, {"reading": reading}
        for order in (1, 2):
            yield name, {**NESTED, "order": order}
    yield "oml", {"reading": "original", "inner": 2, "inner_lr": 1e-3}
    for pretraining in ("meta", "plain", "none"):
        yield "cml", {**ORIGINAL, "pretraining": pretraining}
        yield "anml", {**ORIGINAL, "pretraining": pretraining}
    for name in ("oml", "cml"):
        yield name, {"reading": "box-literal"}
        yield name, {"reading": "text", "memory": 9}  # of 36 validation rows
    yield "anml", {"gate": "outputs"}
    yield "joint", {"budget": "task"}
    for name in ("replay", "agem", "mir", "lor", "cls_er"):
        yield name, {"enters": "during"}
    for name in ("er_ace", "der", "derpp", "la_maml"):
        yield name, {"enters": "after"}
    for name in ("der", "derpp"):
        yield name, {"compared": "seen"}
    yield from (("la_maml", settings) for settings in ({"order": 2}, {"outer": "last"}))
    yield "ewc", {"fisher": "empirical", "anchors": "last", "decay": 0.5}
    yield "naive", {"options": ["l2_init", "shrink_perturb"]}


def cases() -> Cases:
    """Functions that run each case, by name. Settings that equal the defaults have no case."""
    methods = own_methods()
    out: Cases = {name: partial(_method, name, {}) for name in methods}
    for name, settings in variants():
        if methods[name](**settings) != methods[name]():
            case = " ".join([name, *(_text(key, value) for key, value in settings.items())])
            out[case] = partial(_method, name, settings)
    for name, stream in STREAMS.items():
        out[f"stream {name}"] = partial(_er, stream)
    out["dpmcl with BatchNorm"] = _normalised
    return out


def _text(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        value = ",".join(str(v) for v in value.values())
    return f"{key}={value}"


def _method(name: str, settings: dict[str, Any]) -> Values:
    stream = moving_stream() if "fourth_term" in settings else tiny_stream()
    if "pretraining" in settings:
        stream = _two_a_task(background=2)
        network = partial(MLP(hidden=8).build, stream.x.shape[1:], stream.outputs)
        return _values(own_methods()[name](**{**SMALL, **settings}), stream, network)
    network = partial(tiny_network, stream.outputs, dropout=0.2)
    return _values(own_methods()[name](**{**SMALL, **settings}), stream, network)


def _normalised() -> Values:
    """DPMCL with BatchNorm, which normalises b_P and b_N together, and b_N alone in step 1."""
    stream = tiny_stream()

    def network() -> tuple[nn.Module, nn.Module]:
        # A bias here would have a gradient of zero, and Adagrad steps by the sign of its rounding.
        h = nn.Sequential(nn.Linear(2, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU())
        return h, nn.Linear(8, stream.outputs)

    return _values(own_methods()["dpmcl"](**{**SMALL, "zeta": 2}), stream, network)


def _er(make: Callable[[], Stream]) -> Values:
    stream = make()
    network = partial(MLP(hidden=8).build, stream.x.shape[1:], stream.outputs)
    return _values(own_methods()["er"](**SMALL), stream, network)


def _values(
    method: Method, stream: Stream, network: Callable[[], tuple[nn.Module, nn.Module]]
) -> Values:
    stream = fit_scale(stream, split(stream, SEEDS, SHARES))
    out = tiny_run(method, SEEDS, stream=stream, model=model_of(stream, network))
    return {
        "errors": out.errors["test"].after[:, -1].tolist(),
        "theta": {
            part: [digest({k: v[r] for k, v in leaves.items()}) for r in range(len(SEEDS))]
            for part, leaves in sorted(out.theta.items())
        },
    }


def digest(parameters: Mapping[str, Tensor]) -> list[float]:
    """Sum, sum of squares, and dot product with cos 0, cos 1, ... of all parameters, by name."""
    flat = torch.cat([parameters[name].flatten() for name in sorted(parameters)])
    pattern = torch.arange(len(flat), dtype=flat.dtype).cos()
    return [float(flat.sum()), float(flat @ flat), float(flat @ pattern)]


def _points(*shape: int) -> tuple[Tensor, Tensor]:
    """Clouds around six centres, 30 rows each; float64 inputs in steps of 2^-10, and classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(6).repeat_interleave(30)
    centre = torch.rand(6, *shape, generator=generator, dtype=torch.float64)
    noise = torch.rand(len(y), *shape, generator=generator, dtype=torch.float64)
    return ((4 * centre[y] + noise) * 1024).round() / 1024, y


def _columns() -> dict[str, Any]:
    x, y = _points(4)
    table: dict[str, Any] = {f"c{k}": (x[:, k] * 10**k).tolist() for k in range(3)}
    table["colour"] = [("blue", "red", "green")[int(v)] for v in x[:, 3] % 3]
    return {**table, "kind": [f"k{c}" for c in y.tolist()], "part": (y // 2).tolist()}


def _two_a_task(**scenario: Any) -> Stream:
    return Stream.from_arrays(*_points(6), classes_per_task=2, **scenario)


def _domains(domain: str, *shape: int) -> Stream:
    scenario = "domain-incremental"
    return Stream.from_arrays(*_points(*shape), scenario=scenario, domain=domain, tasks=3)


STREAMS: dict[str, Callable[[], Stream]] = {
    "plain": _two_a_task,
    "blur": partial(_two_a_task, blur=0.3),
    "shuffled": partial(_two_a_task, order="shuffled"),
    "task-incremental": partial(_two_a_task, scenario="task-incremental"),
    "instance-incremental": lambda: Stream.from_arrays(
        *_points(6), scenario="instance-incremental", tasks=3
    ),
    "permuted": partial(_domains, "permuted", 6),
    "rotated": partial(_domains, "rotated", 1, 4, 4),
    "bytes": lambda: Stream.from_arrays(
        (_points(6)[0] * 50).to(torch.uint8), _points(6)[1], classes_per_task=2
    ),
    "scaled table": lambda: Stream.from_table(_columns(), target="kind", task="part"),
    "scaled regression": lambda: Stream.from_table(
        _columns(), target="c2", task="part", kind="regression", ignore=["kind"]
    ),
    "sine": lambda: plugins.find("stream", "sine")(tasks=3, rows=30, outputs=4).build(SEEDS),
}
"""Streams that differ in how batches are made or errors are measured."""


def moved(name: str, stored: Values, new: Values) -> str | None:
    """A text about the first value of a case that differs by more than rounding, or None."""
    before, after = dict(_flatten(stored)), dict(_flatten(new))
    if before.keys() != after.keys():
        key = sorted(before.keys() ^ after.keys())[0]
        return f"{name}: {key} is in {'golden.json' if key in before else 'the new run'} alone"
    for path, value in before.items():
        if not math.isclose(value, after[path], rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            return f"{name}: {path} was {value!r} and is {after[path]!r}"
    return None


def advice(moves: Sequence[str]) -> str:
    """Return a text about what to do if values have moved."""
    return (
        "Golden values moved:\n  " + "\n  ".join(moves) + "\n"
        f'If that is meant, run `{COMMAND} "REASON"`, and list REASON in CHANGELOG.md under '
        '"### Moves numbers". If it is not, the last change has a bug.'
    )


def _flatten(values: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(values, Mapping | list):
        pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
        for key, value in pairs:
            yield from _flatten(value, f"{path}[{key}]" if path else str(key))
    else:
        yield path, values


def rewritten(golden: Golden, new: dict[str, Values], reason: str) -> Golden:
    """Return golden values for the cases of a new run; those equal to rounding stay the same.

    Raises ValueError if other values moved and the reason is empty.
    """
    stored = {name: golden.cases[name] for name in new if name in golden.cases}
    moves = {name: moved(name, values, new[name]) for name, values in stored.items()}
    moves = {name: move for name, move in moves.items() if move}
    if moves and not reason:
        raise ValueError(advice(list(moves.values())))
    cases = {**new, **{name: v for name, v in stored.items() if name not in moves}}
    return Golden([*golden.reasons, *([reason] if moves else [])], cases)


if __name__ == "__main__":
    torch.set_num_threads(1)
    new = {name: run() for name, run in cases().items()}
    rewritten(Golden.read(), new, " ".join(" ".join(sys.argv[1:]).split())).write(FILE)
