"""Specs that come with the package, each complete, by file name."""

from importlib import resources

from dpmcl.exceptions import unknown


def names() -> list[str]:
    """All presets, sorted."""
    files = resources.files(__name__).iterdir()
    return sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))


def text(name: str) -> str:
    """The TOML of a preset. Raises SpecError when there is none of that name."""
    if name not in names():
        raise unknown("preset", name, names(), "`dpmcl list` shows all.")
    return resources.files(__name__).joinpath(f"{name}.toml").read_text("utf-8")


def summary(name: str) -> str:
    """The first comment line of a preset."""
    return text(name).split("\n", 1)[0].lstrip("# ")
