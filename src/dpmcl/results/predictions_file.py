"""predictions.safetensors: the predictions of every method that stores them.

The file has a tensor for each method and split, named as in "test/er", with a leading replica
dimension. Its metadata hold the seeds of each method as JSON.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pydantic
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dpmcl.core.atomic import atomic
from dpmcl.exceptions import reason
from dpmcl.results.record import Record

FILE = "predictions.safetensors"
_SEEDS = pydantic.TypeAdapter(dict[str, list[int]])


def save(folder: Path, records: Mapping[str, Record]) -> None:
    """Write the predictions of all records. There is no file if no record has predictions.

    Args:
        folder: The run folder.
        records: Results by method.
    """
    with_predictions = {
        method: record for method, record in records.items() if record.predictions is not None
    }
    arrays = {
        f"{name}/{method}": np.ascontiguousarray(values)
        for method, record in sorted(with_predictions.items())
        for name, values in sorted((record.predictions or {}).items())
    }
    if arrays:
        seeds = {method: record.test.seeds for method, record in sorted(with_predictions.items())}
        with atomic(folder / FILE) as temporary:
            save_file(arrays, temporary, {"seeds": json.dumps(seeds)})


def read(path: Path, seeds: Mapping[str, tuple[int, ...]]) -> dict[str, dict[str, np.ndarray]]:
    """Return the predictions by method and name.

    Args:
        path: The file. If it does not exist, there are no predictions.
        seeds: Seeds that have results, by method. A method is left out if one of its seeds has no
            predictions.

    Raises:
        ValueError, KeyError, TypeError: The file does not have the expected form.
    """
    if not path.exists():
        return {}
    out: dict[str, dict[str, np.ndarray]] = {}
    try:
        with safe_open(path, "numpy") as file:
            stored = _SEEDS.validate_json((file.metadata() or {})["seeds"])
            for key in file.keys():  # noqa: SIM118
                name, _, method = key.partition("/")
                if method not in seeds or not set(seeds[method]) <= set(stored[method]):
                    continue
                values = file.get_tensor(key)
                if values.dtype.kind not in "iuf" or values.shape[:1] != (len(stored[method]),):
                    raise ValueError(f"{FILE} has no row of numbers for each seed of '{method}'")
                rows = [stored[method].index(seed) for seed in seeds[method]]
                out.setdefault(method, {})[name] = values[rows]
    except (SafetensorError, pydantic.ValidationError) as error:
        raise ValueError(f"{FILE} cannot be read: {reason(error)}") from None
    return out
