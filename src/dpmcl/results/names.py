"""Display of users' names in tables, figures and the command line."""

from dpmcl.exceptions import printable


def displayed(name: str) -> str:
    """Return a name made printable; in quotes if it is empty or begins or ends with blanks.

    Args:
        name: Any text.

    >>> print(displayed("a"), displayed(" a"), displayed(""), displayed("a\\nb"))
    a ' a' '' a\\nb
    """
    text = printable(name)
    return text if text and text == text.strip() else f"'{text}'"
