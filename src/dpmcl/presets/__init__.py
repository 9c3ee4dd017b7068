"""Specs that come with the package, by file name; each holds what differs from the defaults."""

from importlib import resources

from dpmcl.exceptions import unknown


def names() -> list[str]:
    """Return the names of all presets, sorted."""
    files = resources.files(__name__).iterdir()
    return sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))


def text(name: str) -> str:
    """Return the TOML text of a preset.

    Args:
        name: Name of the preset, as in "digits".

    Raises:
        SpecError: No preset has that name.
    """
    if name not in names():
        raise unknown("preset", name, names(), "`dpmcl list` shows all.")
    return resources.files(__name__).joinpath(f"{name}.toml").read_text("utf-8")


def summary(name: str) -> str:
    """Return the first comment line of a preset.

    Args:
        name: Name of the preset.

    Raises:
        SpecError: No preset has that name.
    """
    return text(name).split("\n", 1)[0].lstrip("# ")
