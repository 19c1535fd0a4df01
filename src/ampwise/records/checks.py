"""How strictly pydantic checks every record where a file is read; says so without importing pydantic."""

from typing import Any, Final

CHECKS: Final[dict[str, Any]] = {"extra": "forbid", "strict": True}
"""Each record class names it as its ``__pydantic_config__``: no unknown field, no conversion between types."""
