"""Conditions in SQL that somebody typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import ParseException
from pyspark.sql import functions as F

from laneway.errors import InvalidInput
from laneway.pipeline.reasons import reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def matching(frame: DataFrame, condition: str) -> DataFrame:
    """The rows for which it holds. It is put where nothing but an expression may stand: alone, a word behind one is
    taken for its name, and a condition that ends with AND would mean something else than was meant."""
    try:
        return frame.where(F.expr(f"CASE WHEN {condition}\nTHEN true ELSE false END"))  # a comment ends with its line
    except ParseException as wrong:
        raise InvalidInput(f"{condition!r} is no condition in SQL: {reason(str(wrong))}", field="where") from wrong
