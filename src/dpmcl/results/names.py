"""Names of users, as tables, figures and lines of the command line show them."""

from dpmcl.exceptions import printable


def displayed(name: str) -> str:
    """Return a name as people see it: printable, in quotes if it is empty or has blanks at an end.

    Args:
        name: Any text.

    >>> print(displayed("a"), displayed(" a"), displayed(""), displayed("a\\nb"))
    a ' a' '' a\\nb
    """
    text = printable(name)
    return text if text and text == text.strip() else f"'{text}'"
