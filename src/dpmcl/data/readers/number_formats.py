"""Texts that are formatted numbers, dates or times: 5%, $5.50, 5 kg, 1,5, 31/01/2024."""

import re

PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?[iI]nf(inity)?"
"""A plainly written number."""
CODE = r"[+-]?0\d+"
"""A number with a leading zero, such as a ZIP code; read as text, so that 007 and 7 differ."""
LONG = r"[+-]?\d{19,}"
"""An integer that may have more digits than int64 and float64 hold."""

_WORD = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|usd|eur|gbp|chf|jpy"
_NUMBER = re.compile(rf"[^\w<>≤≥]*(({_WORD})[a-z]*\W*)?\d.*", re.IGNORECASE | re.DOTALL)
_GROUP = re.compile(r"\s*\d{1,3}(\+|-\d{1,3}|-[a-z]+)\s*", re.IGNORECASE)


def is_plain(text: str) -> bool:
    """Return True for a plain number or a number with a leading zero.

    Args:
        text: Cell of a table.
    """
    text = text.strip()
    if re.fullmatch(LONG, text) and not re.fullmatch(CODE, text):
        return False
    return re.fullmatch(PLAIN, text, re.ASCII) is not None  # other scripts have digits too


def is_formatted(text: str) -> bool:
    """Return True for other texts that begin with a digit, or with a month or currency and a digit.

    Signs may come first. Groups of numbers do not count: 3+, 10-20, 3-door, and texts that begin
    with < or >.

    Args:
        text: Cell of a table.

    >>> [is_formatted(text) for text in ("$5.50", "1,5", "5 kg", "31 Jan 2024", "2024-01")]
    [True, True, True, True, True]
    >>> [is_formatted(text) for text in ("7.5", "A1", "10-20", "3+", "<5")]
    [False, False, False, False, False]
    """
    if is_plain(text) or _GROUP.fullmatch(text):
        return False
    return _NUMBER.fullmatch(text) is not None
