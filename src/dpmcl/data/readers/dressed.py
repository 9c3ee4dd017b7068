"""Texts that are numbers, dates or times in another form: 5%, $5.50, 5 kg, 1,5, 31/01/2024."""

import re

PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?[iI]nf(inity)?"
"""A number as text files have it."""
CODE = r"[+-]?0\d+"
"""A number with a zero before it, as ZIP codes have: text, or 007 and 7 would be one."""
LONG = r"[+-]?\d{19,}"
"""A whole number that may have more digits than int64 and float64 hold."""

_WORD = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|usd|eur|gbp|chf|jpy"
_NUMBER = re.compile(rf"[^\w<>≤≥]*(({_WORD})[a-z]*\W*)?\d.*", re.IGNORECASE | re.DOTALL)
_GROUP = re.compile(r"\s*\d{1,3}(\+|-\d{1,3}|-[a-z]+)\s*", re.IGNORECASE)


def is_plain(text: str) -> bool:
    """Return True for a number that is read as one, or a code.

    Args:
        text: A cell of a table.
    """
    text = text.strip()
    if re.fullmatch(LONG, text) and not re.fullmatch(CODE, text):
        return False
    return re.fullmatch(PLAIN, text, re.ASCII) is not None  # other scripts have digits too


def is_dressed(text: str) -> bool:
    """Return True for any other text that begins with a digit, a month or a currency.

    Signs may stand before it. Groups of numbers are none: 3+, 10-20, 3-door, and what begins with
    < or >.

    Args:
        text: A cell of a table.

    >>> [is_dressed(text) for text in ("$5.50", "1,5", "5 kg", "31 Jan 2024", "2024-01")]
    [True, True, True, True, True]
    >>> [is_dressed(text) for text in ("7.5", "A1", "10-20", "3+", "<5")]
    [False, False, False, False, False]
    """
    if is_plain(text) or _GROUP.fullmatch(text):
        return False
    return _NUMBER.fullmatch(text) is not None
