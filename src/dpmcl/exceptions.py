"""The package's errors: one line each, with the rule, what came instead, and the way out.

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
    """Base of every error that the package raises on purpose; its text is one printable line."""

    def __str__(self) -> str:
        return printable(_ADDRESS.sub("", super().__str__()))


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
    """A run was asked to stop; what it has done is kept, and the next call continues it."""


def printable(text: str) -> str:
    """Return a text with each character that a terminal would not print replaced by its escape.

    Args:
        text: Any text.

    >>> printable("two\\nlines")
    'two\\\\nlines'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(value: Any) -> str:
    """Return a value as an error message shows it: its repr on one line, cut, or else its type.

    Args:
        value: Any object, also one whose repr fails.

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


def listed(names: Iterable[Any], most: int = 30) -> str:
    """Return names in one line, as an error lists them.

    Args:
        names: Any names.
        most: How many are shown.

    >>> listed(["size", "hue", "kind"], most=2)
    "'size', 'hue' and 1 more"
    """
    texts = [repr(name) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return (", ".join(texts[:most]) or "nothing") + more


def reason(error: BaseException, most: int = 200) -> str:
    """Return why another library failed, on one line.

    Args:
        error: What that library raised.
        most: Characters at most.

    >>> reason(ValueError("no   digits in it."))
    'no digits in it'
    """
    return " ".join(str(error).split())[:most].rstrip(".") or type(error).__name__


def unknown(kind: str, name: Any, known: Iterable[str], hint: str) -> SpecError:
    """Return the error for a name that does not exist, with a name that is close to it.

    Args:
        kind: What the name is of, as in "method".
        name: What came instead of a known name.
        known: Names that exist.
        hint: Where all names are listed; ends the message.

    >>> print(unknown("method", "err", ["er", "dpmcl"], "`dpmcl list` shows all."))
    No method 'err'. Did you mean 'er'? `dpmcl list` shows all.
    """
    guess = ""
    if isinstance(name, str) and len(name) < 100:
        folded = {other.strip().casefold(): other for other in known if other != name}
        close = difflib.get_close_matches(name.strip().casefold(), folded, n=1, cutoff=0.5)
        guess = f" Did you mean {shown(folded[close[0]])}?" if close else ""
    return SpecError(f"No {kind} {shown(name)}.{guess} {hint}")
