"""Texts that are numbers, dates or times in another dress: 5%, $5.50, 5 kg, 1,5, 31/01/2024."""

import re
from collections.abc import Sequence

PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?[iI]nf(inity)?"
"""A number as text files have it."""
CODE = r"[+-]?0\d+"
"""A number with a zero before it, as ZIP codes have: text, or 007 and 7 would be one."""

_MOSTLY = 0.5  # of the different texts
_LONGEST = 18  # digits that int64 always holds
# A currency may stand before, a sign or a unit behind. No + < >, which make classes of numbers (3+,
# <5), and no -, as in 3-door and 10-20.
_BEFORE = r"[^\w\s+<>≤≥]{0,2}\s?((USD|EUR|GBP|CHF|JPY)\s?)?[+-]?"
_DIGITS = r"\d+([.,:/'\u2019_\s]\d+)*\.?(e[+-]?\d+)?"
_UNIT = r"(?!(st|nd|rd|th)\b)[µ°]?[^\W\d_][^\W\d_./²³]{0,7}(/[a-z]{1,3})?[²³]?"
_NUMBER = re.compile(rf"\s*{_BEFORE}{_DIGITS}\s?([^\w\s+<>-]{{1,2}}|{_UNIT})?\)?\s*", re.IGNORECASE)
_CLOCK = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?(z|\s?[ap]m|\s?[+-]\d{2}:?\d{2})?"
_MONTH = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_MOMENT = re.compile(
    rf"\s*(\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}([t\s]{_CLOCK})?|{_CLOCK}"
    r"|\d{4}-(0[1-9]|1[0-2]|w\d{1,2}(-\d)?)"
    rf"|\d{{1,2}}[-\s./]*{_MONTH}[-\s.,/]*\d{{2,4}}|{_MONTH}[-\s.,/]*\d{{1,2}}[-\s.,/]+\d{{4}}"
    r"|\d+\s?h(rs?)?\s?\d+(\s?m(ins?)?)?"  # 1h 30m
    r"|0x[0-9a-f]+)\s*",  # no moment, but its letters are no unit either
    re.IGNORECASE,
)


def decoration(text: str) -> str | None:
    """Return what makes a text more than a plain number, None if it is no number at all.

    Args:
        text: A cell of a table.

    >>> decoration("7.5"), decoration("$5.50"), decoration("1,5"), decoration("5 kg")
    ('', '$', ',', ' ')
    >>> decoration("3-door"), decoration("A1"), decoration("10-20"), decoration("3+")
    (None, None, None, None)
    """
    if re.fullmatch(rf"\s*({PLAIN})\s*", text, re.ASCII):  # other scripts have digits too
        whole = text.strip().lstrip("+-")
        return "..." if len(whole) > _LONGEST and whole.isdigit() and whole[0] != "0" else ""
    if _MOMENT.fullmatch(text):
        return "/"
    if not _NUMBER.fullmatch(text):
        return None
    if re.search(r"\d\s[^\W\d_]", text):
        return " "  # 5 kg and 500 g are numbers without doubt, 5A and 5B perhaps not
    return re.sub(r"[\d.,'\u2019_\s+-]", "", text) or ","


def dressed(texts: Sequence[str]) -> str | None:
    """Return the first text in another dress, if most of the texts are numbers in some dress.

    A unit of letters without a space must be that of three texts, and several must not all be
    capitals: 1A, 1B and 2A are no numbers, and neither are 4K, 8K and HD.

    Args:
        texts: The different cells of a column.

    >>> dressed(["5%", "10%"]), dressed(["1A", "1B", "2A"])
    ('5%', None)
    """
    marks = [decoration(text) for text in texts]
    odd = [text for text, mark in zip(texts, marks, strict=True) if mark]
    if not odd or sum(mark is not None for mark in marks) <= _MOSTLY * len(texts):
        return None
    numbers = [mark for mark in marks if mark is not None]
    units = set(numbers)
    lettered = any(letter.isalpha() for mark in units for letter in mark)
    seats = len(units) > 1 and all(len(mark) == 1 and mark.isupper() for mark in units - {""})
    return None if lettered and (seats or 3 * len(units) > len(numbers)) else odd[0]
