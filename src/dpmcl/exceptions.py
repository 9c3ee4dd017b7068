"""The package's own errors: one line each, with the rule, what came and the way out.

The command line prints the line and leaves with status 2; Python users catch `DpmclError`.
"""

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Any

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+(?=>)")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 120
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxdict = 10


class DpmclError(Exception):
    """Base of every error that the package raises on purpose; its text is one line, printable."""

    def __str__(self) -> str:
        return printable(_ADDRESS.sub("", super().__str__()))


def printable(text: str) -> str:
    """Return a text with every character that a terminal would not print as its escape.

    >>> printable("two\\nlines")
    'two\\\\nlines'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(value: Any) -> str:
    """Return a value as an error message shows it: its repr on one line, cut, or else its type.

    >>> shown([1] * 1000)
    '[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ...]'
    """
    try:
        text = _SHORT.repr(value)
    except Exception:  # a number of more digits than Python prints, a repr that fails
        text = "\n"
    if "\n" in text:
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 300 else f"{text[:297]}..."


class SpecError(DpmclError, ValueError):
    """A setting breaks a rule, or names something that does not exist."""


class DataError(DpmclError, ValueError):
    """The data of a stream cannot be used as they are."""


class ModelError(DpmclError, ValueError):
    """A network cannot be used as it is."""


class FolderError(DpmclError, OSError):
    """A run folder cannot be read, written or extended."""


class DivergenceError(DpmclError, ArithmeticError):
    """A replica's numbers stopped being finite, and the run was told to stop there."""


class DeviceError(DpmclError, MemoryError):
    """The device's memory does not suffice, even for one replica at a time."""


class Stopped(DpmclError):
    """A run was asked to stop; what it had done is kept, and it can go on."""


def reason(error: BaseException, most: int = 200) -> str:
    """Why another library failed, in one line of so many characters at most.

    >>> reason(ValueError("no   digits in it."))
    'no digits in it'
    """
    return " ".join(str(error).split())[:most].rstrip(".") or type(error).__name__


def unknown(kind: str, name: Any, known: Iterable[str], hint: str) -> SpecError:
    """The error for a name that nobody has: says what came, what is close to it, where to look.

    >>> print(unknown("method", "err", ["er", "dpmcl"], "`dpmcl list` shows all."))
    No method 'err'. Did you mean 'er'? `dpmcl list` shows all.
    """
    guess = ""
    if isinstance(name, str) and len(name) < 100:
        folded = {_folded(other): other for other in known if other != name}
        close = difflib.get_close_matches(_folded(name), folded, n=1, cutoff=0.5)
        guess = f" Did you mean {shown(folded[close[0]])}?" if close else ""
    return SpecError(f"No {kind} {shown(name)}.{guess} {hint}")


def _folded(name: str) -> str:
    """A name without what is easily mistaken: case, and white space about it."""
    return name.strip().casefold()
