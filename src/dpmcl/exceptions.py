"""The package's own errors: one line each, with the rule, what came and the way out.

The command line prints the line and leaves with status 2; Python users catch `DpmclError`.
"""

import difflib
import re
from collections.abc import Iterable
from typing import Any


class DpmclError(Exception):
    """Base of every error that the package raises on purpose.

    Its text is one line, printable, without the addresses of objects that other libraries' have.
    """

    def __str__(self) -> str:
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", super().__str__())
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


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


def shown(value: Any, most: int = 60) -> str:
    """A value as an error shows it, in one line: its type where its text is long or an address.

    >>> shown("a"), shown(object())
    ("'a'", 'a value of type object')
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a user's object, or more digits than Python prints
        text = ""
    if text and " at 0x" not in text and len(text) <= 2 * most:
        return text[:most]
    plain = text and isinstance(value, str | int | float)
    return text[:most] if plain else f"a value of type {type(value).__name__}"


def unknown(kind: str, name: str, known: Iterable[str], hint: str) -> SpecError:
    """The error for a name that nobody has: says what came, what is close to it, where to look.

    >>> print(unknown("method", "err", ["er", "dpmcl"], "`dpmcl list` shows all."))
    No method 'err'. Did you mean 'er'? `dpmcl list` shows all.
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    guess = f" Did you mean '{close[0]}'?" if close else ""
    return SpecError(f"No {kind} '{name}'.{guess} {hint}")
