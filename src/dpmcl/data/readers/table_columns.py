"""Columns of tables, read as numbers, true/false or text."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpmcl.data.labels import Labels, number_labels
from dpmcl.data.readers.number_formats import CODE, LONG, PLAIN, is_formatted, is_plain
from dpmcl.data.rounding import keeps_digits
from dpmcl.exceptions import DataError, listed

FEW_NUMBERS = 10
"""Largest number of different numbers in a text column that may be names, as in 0, 1, 2, 3+."""
HALF, MOSTLY = 0.5, 0.9
"""Shares of numbers among the different texts, and among the rows, that make a column numeric."""

_KINDS = (
    (pa.types.is_integer, "whole"),
    (pa.types.is_floating, "floats"),
    (pa.types.is_boolean, "true/false"),
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
    (pa.types.is_null, "empty"),
)


class Column:
    """A column's values and their type; every row has one.

    A text column is read as numbers or true/false if all its texts are written so. A pandas
    Categorical is replaced by its values.

    Attributes:
        name: Name of the column.
        what: Description of the column in errors.
        way_out: What the user can do instead of correcting the column, for errors.
        categorical: Whether the column was a pandas Categorical.
        written: Texts as they were written, None if the column is not text.
        values: Values, a pyarrow ChunkedArray (rows,).
        kind: "whole", "floats", "true/false" or "text".

    Raises:
        DataError: A cell is missing, or the values are of another type, such as dates.
    """

    def __init__(self, name: str, where: str, values: Any, way_out: str) -> None:
        self.name, self.what, self.way_out = name, f"Column {name!r} of {where}", way_out
        self.categorical = pa.types.is_dictionary(values.type)
        if self.categorical and str(values.type.value_type) == "string_view":  # those of polars
            values = values.cast(pa.dictionary(pa.int32(), pa.large_string()))
        self._as_given = values
        if self.categorical:
            with suppress(pa.ArrowNotImplementedError):  # pandas' intervals, rejected below
                values = values.cast(values.type.value_type)
        if pa.types.is_decimal(values.type) or str(values.type) == "string_view":
            values = values.cast(pa.large_string())
        self.written = values if _kind(values) == "text" else None
        if self.written is not None and not self.categorical:
            values = _parse_text(values)
        self.values = values
        self.kind = _kind(values)
        if not self.kind:
            way_out = "turn it into numbers" if pa.types.is_temporal(values.type) else "convert it"
            raise DataError(
                f"{self.what} must be numbers, text or true/false, got {values.type}; {way_out}, "
                "or leave the column out (of a stream by `ignore`)."
            )
        self._check_present()

    def _check_present(self) -> None:
        """Raise DataError if a cell is missing."""
        missing = pc.is_null(self.values, nan_is_null=True)
        count = pc.sum(missing).as_py()
        if count == len(self.values):
            raise DataError(
                f"{self.what} must have values, and all its cells are missing; {self.way_out}."
            )
        if count:
            raise DataError(
                f"{self.what} must have a value in every row; row "
                f"{pc.index(missing, True).as_py()} lacks one (empty, NA or NaN; {count} in all). "
                f"Fill or drop these rows, or {self.way_out}."
            )

    def numbers(self) -> NDArray[np.floating[Any]]:
        """Return the values (rows,), float32 if that keeps their digits, else float64.

        Raises:
            DataError: A value is not finite in float32, or float64 cannot tell values apart.
        """
        truth = self.kind == "true/false"
        values = (self.values.cast(pa.uint8()) if truth else self.values).to_numpy()
        with np.errstate(over="ignore"):
            bad = np.flatnonzero(~np.isfinite(values.astype(np.float32)))
        if len(bad):
            raise DataError(
                f"{self.what} must be finite numbers that float32 can hold; row {bad[0]} has "
                f"{values[bad[0]]} ({len(bad)} in all). Correct or drop these rows, or "
                f"{self.way_out}."
            )
        for dtype in (np.float32, np.float64):
            if keeps_digits(values, dtype):
                return cast("NDArray[np.floating[Any]]", values.astype(dtype))
        row = int(np.abs(values).argmax())
        raise DataError(
            f"{self.what} must be numbers that float64 can tell apart, got {values[row]} in row "
            f"{row}; subtract an offset from them, or {self.way_out}."
        )

    def categories(self, *, declared: bool = False) -> tuple[list[Any], NDArray[np.int64]]:
        """Return the different values in order, and the index of each row's value, (rows,).

        Args:
            declared: Whether to include categories of a pandas Categorical that no row has.

        Raises:
            DataError: A text has several lines, or NUL.
        """
        extra: Sequence[Any] = ()
        if declared and self.categorical:
            extra = self._as_given.unify_dictionaries().chunk(0).dictionary.to_pylist()
        return self._encoded(self.values, extra)

    def labels(self) -> Labels:
        """Return the column as labels; texts stay as they were written.

        Raises:
            DataError: Cells are not labels, or a number is written in several ways.
        """
        if self.written is None:
            return number_labels(self.values.to_numpy(), self.what)
        texts, code = self._encoded(self.written)
        _, first_rows = np.unique(code, return_index=True)
        values = self.values.take(first_rows).to_pylist()
        counts = Counter(values)
        same = [text for text, value in zip(texts, values, strict=True) if counts[value] > 1]
        if same:  # labels keep their text, so these would be different ones
            raise DataError(
                f"{self.what} must write each number in one way, got {listed(same, 4)}; correct "
                "them, or begin each with a letter."
            )
        number, classes = number_labels(texts, self.what)
        return Labels(number[code], classes)

    def check_no_numbers(self, way_out: str, few: int = 0) -> None:
        """Check that text is not formatted numbers, or plain numbers but for a few cells ("?").

        Args:
            way_out: Advice for errors, besides writing plain numbers.
            few: Largest number of different texts that may be formatted numbers.

        Raises:
            DataError: The column is such text.
        """
        if self.kind != "text" or self.categorical:
            return
        texts, code = self.categories()
        plain = np.array([is_plain(text) for text in texts])
        formatted = np.array([is_formatted(text) for text in texts])
        number = formatted | plain
        cell = None
        if len(texts) > few and formatted.any() and number.mean() > HALF:
            cell = texts[formatted.argmax()]
        elif number.sum() > FEW_NUMBERS and number[code].mean() >= MOSTLY and not plain.all():
            cell = texts[code[~plain[code]][0]]
        if cell is not None:
            raise DataError(
                f"{self.what} is mostly numbers, dates or times, but not written as plain numbers, "
                f"such as {cell!r} in row {code.tolist().index(texts.index(cell))}; write them so "
                f"(1234.5), or {way_out}."
            )

    def _encoded(
        self, values: Any, extra: Sequence[Any] = ()
    ) -> tuple[list[Any], NDArray[np.int64]]:
        """Return the different values and `extra` in order, and the index of each row's value."""
        distinct: list[Any] = sorted({*pc.unique(values).to_pylist(), *extra})
        known = pa.array(distinct, type=values.type)
        code = pc.index_in(values, value_set=known).to_numpy().astype(np.int64)
        for k, value in enumerate(distinct if _kind(values) == "text" else ()):
            if "\n" in value or "\0" in value:
                where = f"row {(code == k).argmax()}" if k in code else "its categories"
                raise DataError(
                    f"{self.what} must have its text in one line, without NUL, got {value!r:.60} "
                    f"in {where}; close the quotes, or correct the cell."
                )
        return distinct, code


def _kind(values: Any) -> str:
    """Return the kind of a column by its pyarrow type; "" for other types."""
    return next((kind for is_a, kind in _KINDS if is_a(values.type)), "")


def _parse_text(values: Any) -> Any:
    """Return a text column as integers, floats or true/false if all texts are written so."""
    sample = {*pc.unique(values.slice(0, 9)).to_pylist()}  # first, because all may take long
    for words in (("true", "false"), ("True", "False"), ("TRUE", "FALSE")):
        if sample <= {*words, None} and {*pc.unique(values).to_pylist()} <= {*words, None}:
            return pc.equal(values, words[0])
    plain = pc.utf8_trim_whitespace(values)
    if not _all_match(plain, PLAIN) or _any_match(plain, CODE):
        return values
    plain = pc.replace_substring_regex(plain, r"^\+", "")  # pyarrow reads no + in integers
    with suppress(pa.ArrowInvalid):
        return plain.cast(pa.int64())
    return values if _any_match(plain, LONG) else plain.cast(pa.float64())


def _all_match(texts: Any, pattern: str) -> bool:
    """Return True if every text that is not missing matches a pattern."""
    return bool(pc.all(pc.match_substring_regex(texts, f"^({pattern})$")).as_py())


def _any_match(texts: Any, pattern: str) -> bool:
    """Return True if any text matches a pattern."""
    return bool(pc.any(pc.match_substring_regex(texts, f"^({pattern})$")).as_py())
