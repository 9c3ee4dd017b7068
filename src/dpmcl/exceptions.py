"""The package's errors. A message is one line: the rule, what came instead, and the way out.

The command line prints the line and exits with status 2; Python users catch `DpmclError`.
"""

import difflib
import re
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+(?=>)")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 120
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxdict = 10


class DpmclError(Exception):
    """Base class of the errors that the package raises; the message is one printable line."""

    def __str__(self) -> str:
        return printable(_ADDRESS.sub("", super().__str__()))


class SpecError(DpmclError, ValueError):
    """A setting breaks a rule, or names something that does not exist."""


class DataError(DpmclError, ValueError):
    """The data of a stream cannot be used."""


class ModelError(DpmclError, ValueError):
    """A network cannot be used."""


class FolderError(DpmclError, OSError):
    """A run folder cannot be read, written or extended."""


class DivergenceError(DpmclError, ArithmeticError):
    """A replica diverged, and the spec asks to stop the run then."""


class DeviceError(DpmclError, MemoryError):
    """The device's memory is too small, even for one replica at a time."""


class Stopped(DpmclError):
    """A run was asked to stop. Its work is kept, and the next call resumes it."""

    def __init__(self, message: str = "The run was stopped; what it had done is kept.") -> None:
        super().__init__(message)


@contextmanager
def needed_for(purpose: str, package: str, error: type[DpmclError] = DpmclError) -> Iterator[None]:
    """Raise an error that says what to install if an import in a block fails.

    Args:
        purpose: What needs the package, for the message.
        package: The package to install, with its extra.
        error: Type of the error.

    >>> with needed_for("A picture", "dpmcl[plot]"):
    ...     import no_such_module
    Traceback (most recent call last):
    dpmcl.exceptions.DpmclError: A picture needs no_such_module: pip install 'dpmcl[plot]'.
    """
    try:
        yield
    except ImportError as missing:
        raise error(f"{purpose} needs {missing.name}: pip install '{package}'.") from None


def printable(text: str) -> str:
    """Return a text with its unprintable characters replaced by escapes.

    Args:
        text: Any text.

    >>> printable("two\\nlines")
    'two\\\\nlines'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(value: Any) -> str:
    """Return the text of a value in an error message: its shortened repr, or else its type.

    Args:
        value: Any object, even one whose repr fails.

    >>> shown([1] * 1000)
    '[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ...]'
    """
    try:
        text = _SHORT.repr(value)
    except Exception:  # the repr fails, as that of a number with too many digits
        text = "\n"
    if "\n" in text:
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 300 else f"{text[:297]}..."


def listed(names: Iterable[Any], most: int = 30) -> str:
    """Return a list of names for an error message, on one line.

    Args:
        names: Any names.
        most: Largest number of names to show.

    >>> listed(["size", "hue", "kind"], most=2)
    "'size', 'hue' and 1 more"
    """
    texts = [repr(name) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return (", ".join(texts[:most]) or "nothing") + more


def reason(error: BaseException, most: int = 200) -> str:
    """Return the message of another library's error, on one line.

    Args:
        error: The error.
        most: Largest number of characters.

    >>> reason(ValueError("no   digits in it."))
    'no digits in it'
    """
    return " ".join(str(error).split())[:most].rstrip(".") or type(error).__name__


def unknown(kind: str, name: Any, known: Iterable[str], hint: str) -> SpecError:
    """Return the error for a name that does not exist, with a similar name that does.

    Args:
        kind: Kind of the name, as in "method".
        name: The unknown name.
        known: Names that exist.
        hint: End of the message: where all names are listed.

    >>> print(unknown("method", "err", ["er", "dpmcl"], "`dpmcl list` shows all."))
    No method 'err'. Did you mean 'er'? `dpmcl list` shows all.
    """
    guess = ""
    if isinstance(name, str) and len(name) < 100:
        folded = {other.strip().casefold(): other for other in known if other != name}
        close = difflib.get_close_matches(name.strip().casefold(), folded, n=1, cutoff=0.5)
        guess = f" Did you mean {shown(folded[close[0]])}?" if close else ""
    return SpecError(f"No {kind} {shown(name)}.{guess} {hint}")
