"""The folder of a saved learner, from which it continues with bit-identical results.

    learner.json         method, network, labels, columns, and the checksum of the other file
    state-SUM.safetensors    parameters, optimiser, memory, scales

learner.json is replaced last, atomically, so a folder always holds one complete learner. A folder
may come from an untrusted source: nothing that it names is imported.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pydantic

from dpmcl import plugins
from dpmcl.core.atomic import path_of, write_bytes, write_text
from dpmcl.core.choices import DeviceName
from dpmcl.exceptions import FolderError, SpecError, reason, shown
from dpmcl.learner.answers import computing
from dpmcl.learner.config import Config, method_of
from dpmcl.learner.knowledge import Knowledge
from dpmcl.learner.labels import LabelMap
from dpmcl.learner.network import network_of
from dpmcl.learner.packing import Packed, damaged, pack, unpack
from dpmcl.methods._method import Method

FILE = "learner.json"

_OLD = ("state-*.safetensors", ".state-*.safetensors", ".learner.*.json", "..lock.*.json")
"""Files of earlier saves, and the temporary files of those that were killed (`core.atomic`)."""


class About(pydantic.BaseModel):
    """Content of learner.json.

    Attributes:
        format: Version of the file's format.
        method, network: Name and settings. The name is missing if the user defined the method or
            the network, and a user's network has no settings either.
        arguments: The other fields of `Config`, by name.
        labels: The classes that were declared.
        state: Knowledge of the learner without its tensors; None if it has learned nothing.
        sum: SHA-256 of the file of tensors; empty if there is none.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    format: Literal[1] = 1
    method: dict[str, Any]
    network: dict[str, Any]
    arguments: dict[str, Any]
    labels: LabelMap
    state: Packed | None = None
    sum: str = pydantic.Field("", pattern="^([0-9a-f]{64})?$")

    @property
    def file(self) -> str:
        """Return the name of the file with the tensors."""
        return f"state-{self.sum[:16]}.safetensors"

    @property
    def cost_is_ours(self) -> bool:
        """Return whether the cost is one of the package, so that no function must be passed."""
        return "cost" not in self.method or plugins.is_ours("cost", self.method["cost"])


def describe(
    config: Config, known: Knowledge | None, *, memory: bool = True
) -> tuple[About, bytes]:
    """Return the content of learner.json, and the bytes of the learner's tensors.

    Args:
        config: Arguments of the learner.
        known: Knowledge of the learner; None if it has learned nothing.
        memory: Whether to include the rows of its memory and those held out.
    """
    name = plugins.name_of("method", type(config.method))
    excluded = ("method", "network", "labels", "device")
    state, content = None, b""
    if known is not None:
        with computing():
            state, content = pack(known, memory=memory)
    about = About(
        method={**({"name": name} if name else {}), **config.method.to_table()},
        network=dict(config.network.table),
        arguments={key: v for key, v in config.to_table().items() if key not in excluded},
        labels=config.labels,
        state=state,
        sum=hashlib.sha256(content).hexdigest() if content else "",
    )
    return about, content


def restore(
    where: Any,
    about: About,
    content: bytes,
    *,
    model: Any = None,
    method: type[Method] | None = None,
    cost: Callable[..., Any] | None = None,
    before: str | None = None,
    frozen: Sequence[str] = (),
    device: DeviceName = "auto",
) -> tuple[Config, Knowledge | None]:
    """Return the arguments and the knowledge of a saved learner.

    Args:
        where: Folder of the learner, for messages.
        about: Content of learner.json.
        content: The bytes of its tensors.
        model, method, cost: As for `Learner.load`.
        before, frozen, device: As for `Learner`.

    Raises:
        FolderError: The folder is damaged.
        SpecError: A model, a method or a cost must be passed.
        ModelError: The network is not the one that was saved.
    """
    if model is None and not plugins.is_ours("network", about.network.get("name")):
        raise SpecError(
            "The network of this learner is not one of the package; bring it, as in "
            "Learner.load(path, model=...)."
        )
    table = {
        **about.arguments,
        "method": _method(about, method, cost),
        "labels": about.labels,
        "device": device,
        "network": network_of(about.network if model is None else model, before, frozen),
    }
    config = Config.from_table(table, f"{where}:")
    if about.state is None:
        return config, None
    with computing():
        return config, unpack(where, about.state, content, config)


def write(path: Any, about: About, content: bytes) -> Path:
    """Write a learner to a folder atomically, while the caller holds the folder's lock.

    Args:
        path: The folder. A learner in it is replaced.
        about, content: As returned by `describe`.

    Returns:
        The folder.

    Raises:
        FolderError: The folder cannot be written.
    """
    folder = path_of(path)
    if content:
        write_bytes(folder / about.file, content)
    write_text(folder / FILE, about.model_dump_json(indent=1) + "\n")
    for old in (path for pattern in _OLD for path in folder.glob(pattern)):
        if not content or old.name != about.file:
            with suppress(OSError):
                old.unlink()
    return folder


def read(path: Any, *, tries: int = 3) -> tuple[Path, About, bytes]:
    """Read the folder of a learner.

    Args:
        path: The folder.
        tries: Number of tries if another process saves the learner while it is read.

    Returns:
        The folder, the content of its learner.json, and the bytes of the tensors.

    Raises:
        FolderError: The folder holds no learner, or is damaged.
    """
    folder = path_of(path)
    if not (folder / FILE).is_file():
        raise FolderError(f"{folder} holds no learner ({FILE} is missing); learner.save makes one.")
    try:
        about = About.model_validate_json((folder / FILE).read_bytes())
        content = b"" if about.state is None else (folder / about.file).read_bytes()
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:60]
        raise damaged(folder, f"{FILE}, {where}: {first['msg']}") from None
    except (OSError, RecursionError) as error:
        if isinstance(error, FileNotFoundError) and tries > 1:
            return read(path, tries=tries - 1)
        raise damaged(folder, reason(error)) from None
    if content and hashlib.sha256(content).hexdigest() != about.sum:
        raise damaged(folder, f"the sum of {about.file} does not fit")
    return folder, about, content


def _method(
    about: About, method_class: type[Method] | None, cost: Callable[..., Any] | None
) -> Method:
    """Return the method of a saved learner, or raise SpecError if it names code of a user."""
    settings = dict(about.method)
    if about.cost_is_ours != (cost is None):
        raise SpecError(
            "The cost of this learner is one of the package; leave out cost=."
            if cost is not None
            else "The cost of this learner is not one of the package, and nothing that a folder "
            "names is imported; bring it, as in Learner.load(path, cost=mine)."
        )
    settings |= {} if cost is None else {"cost": cost}
    name = settings.pop("name", None)
    if method_class is not None:
        _check_class(method_class, name)
        return method_class.from_table(settings, f"Method {method_class.__name__}:")
    if not plugins.is_ours("method", name):
        raise SpecError(
            "The method of this learner is not one of the package, and nothing that a folder names "
            "is imported; bring its class, as in Learner.load(path, method=Mine)."
        )
    parts = {"optimiser": [settings.get("optimiser")], "discount": [settings.get("discount")]}
    parts["option"] = list(settings.get("options") or ())
    for kind, entries in parts.items():
        for entry in entries:
            plugin = entry.get("name") if isinstance(entry, Mapping) else entry
            if plugin is not None and not plugins.is_ours(kind, plugin):
                raise SpecError(
                    f"The {kind} of this learner is not one of the package, and nothing that a "
                    "folder names is imported; bring the method with it."
                )
    return method_of(name, settings)


def _check_class(method_class: Any, name: str | None) -> None:
    """Raise SpecError unless it is the class of a saved method; the name is None for a user's."""
    if not (isinstance(method_class, type) and issubclass(method_class, Method)):
        raise SpecError(
            f"method must be the method's class, got {shown(method_class)}; its settings are in "
            "the folder, as in Learner.load(path, method=Mine)."
        )
    if plugins.name_of("method", method_class) != name:
        saved = shown(name) if name else "not one of the package"
        raise SpecError(
            f"The method of this learner is {saved}, got {method_class.__name__}; bring the class "
            "that was saved, or leave out method=."
        )
