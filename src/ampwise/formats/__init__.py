"""Number formats as rows of data, and exact arithmetic over them; no torch."""

from ampwise.formats.spec import FloatFormat
from ampwise.formats.table import FORMATS, find_format, get_format

__all__ = ["FORMATS", "FloatFormat", "find_format", "get_format"]
