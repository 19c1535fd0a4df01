"""Reads and writes records as JSON files: versioned, checked strictly, whole or not at all."""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ampwise._base.errors import RecordError
from ampwise._base.files import write_atomically
from ampwise._base.text import inert_line
from ampwise._base.version import __version__
from ampwise.records.recording import VERSION, Recording

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")

_TAG = "float"
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_INT_LIMIT = 2**63
_MAX_ERRORS = 20


def to_plain(value: object) -> Any:
    """A record as JSON's own types; a float that JSON lacks becomes ``{"float": "nan"}``, ``"inf"`` or ``"-inf"``.

    Half surrogates, which a file name that is not UTF-8 brings along and UTF-8 cannot hold, are spelt out.
    """
    match value:
        case float() if not math.isfinite(value):
            return {_TAG: str(float(value))}
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case None | bool() | int() | float():
            return value
        case tuple() | list():
            return [to_plain(item) for item in value]
        case dict():
            return {str(key): to_plain(item) for key, item in value.items()}
        case _ if is_dataclass(value):
            return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            raise TypeError(f"a {type(value).__name__} has no place in a record")


def to_json(record: object) -> str:
    """The JSON text of a record, with what it is and the version of the form it is in."""
    document = {"record": type(record).__name__, "version": VERSION, **to_plain(record)}
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def from_json(text: str | bytes, kind: type[T], *, source: str = "the record") -> T:
    """The record that ``text`` holds, every field of the declared type and none unknown.

    Args:
        text: what ``to_json`` wrote.
        kind: the record's class.
        source: what errors call the text, usually its file's name.

    Raises:
        RecordError: it is no JSON, no record, another kind of record, of a newer version, or has wrong fields;
            wrong fields are listed all at once, each with its path.
    """
    document = _parse(text, source)
    _check_head(document, kind, source)
    body = {key: value for key, value in document.items() if key != "record"}
    if "version" not in {field.name for field in fields(kind)}:  # pyright: ignore[reportArgumentType]  # every kind is a dataclass
        del body["version"]
    return _validate(body, kind, source)


def load(path: str | os.PathLike[str], kind: type[T]) -> T:
    """The record in the file ``path``.

    Raises:
        RecordError: the file cannot be read, or does not hold a valid record of that kind.
    """
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise RecordError(_unreadable(path, error)) from error
    return from_json(content, kind, source=inert_line(os.fspath(path)))


def save(record: object, path: str | os.PathLike[str]) -> None:
    """Write a record to ``path``, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    write_atomically(path, to_json(record))


def load_recording(path: str | os.PathLike[str]) -> Recording:
    """The recording in the file ``path``; raises as ``load`` does."""
    return load(path, Recording)


def save_recording(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a recording to ``path``; raises as ``save`` does."""
    save(recording, path)


def _unreadable(path: str | os.PathLike[str], error: Exception) -> str:
    shown = inert_line(os.fspath(path))
    if isinstance(error, FileNotFoundError):
        commands = " or ".join(f"ampwise {name} --record {shown} train.py" for name in _RECORDING)
        return f"{shown} does not exist; record one with: {commands}"
    if isinstance(error, IsADirectoryError):
        return f"{shown} is a folder; name a record file in it"
    return f"cannot read {shown}: {getattr(error, 'strerror', None) or error}"


def _parse(text: str | bytes, source: str) -> dict[str, Any]:
    try:
        document = json.loads(
            text.decode() if isinstance(text, bytes) else text,
            object_hook=_untag,
            parse_float=_finite,
            parse_int=_bounded,
            parse_constant=_refuse_constant,
        )
    except UnicodeDecodeError as error:
        raise RecordError(f"{source} is not a record: it is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}: {error.msg}"
        raise RecordError(
            f"{source} is not valid JSON ({place}); it is cut short or damaged: record it again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{source} is not a record: {inert_line(str(error))}") from error
    if not isinstance(document, dict):
        raise RecordError(f"{source} is JSON but not an ampwise record: {_FOREIGN}")
    return document


_RECORDING: Final = ("doctor", "compare")
_FOREIGN: Final = "records are written by ampwise doctor --record and ampwise compare --record"


def _untag(pairs: dict[str, Any]) -> Any:
    tag = pairs.get(_TAG) if len(pairs) == 1 else None
    return _NON_FINITE.get(tag, pairs) if isinstance(tag, str) else pairs


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{inert_line(digits, max_length=40)} is too large for a float")
    return number


def _bounded(digits: str) -> int:
    if len(digits) > 20 or not -_INT_LIMIT <= int(digits) < _INT_LIMIT:
        raise ValueError(f"{inert_line(digits, max_length=40)} is too large for a count")
    return int(digits)


def _refuse_constant(word: str) -> None:
    raise ValueError(f'{word} is not JSON; write {{"{_TAG}": "{word.lower().removesuffix("inity")}"}}')


def _check_head(document: dict[str, Any], kind: type, source: str) -> None:
    """Refuse what is no record, another kind, or newer than this ampwise knows."""
    name, version = document.get("record"), document.get("version")
    if not isinstance(name, str) or not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise RecordError(f"{source} is JSON but not an ampwise record: {_FOREIGN}")
    if version > VERSION:
        raise RecordError(
            f"{source} is a record of version {version}; this ampwise ({__version__}) reads versions up to {VERSION}: "
            "upgrade it with: pip install --upgrade ampwise"
        )
    if name != kind.__name__:
        raise RecordError(f"{source} holds a {inert_line(name, max_length=40)}, not a {kind.__name__}")


def _validate(body: dict[str, Any], kind: type[T], source: str) -> T:
    from pydantic import ValidationError

    # pydantic takes lists for tuples and words for enums in JSON alone, so its own parser reads the checked tree again
    try:
        content = json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"{source} is not a record: it holds half a surrogate pair, which is no text") from error
    try:
        return _checker(kind).validate_json(content, strict=True)
    except ValidationError as error:
        raise RecordError(_complaint(error.errors(include_url=False), kind, source)) from error


@cache
def _checker(kind: type[T]) -> "TypeAdapter[T]":
    """What checks a record of that kind; dear to make, and always the same."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _complaint(errors: "list[ErrorDetails]", kind: type, source: str) -> str:
    lines = [f"  {_path(error['loc'])}: {_reason(error)}" for error in errors[:_MAX_ERRORS]]
    if len(errors) > _MAX_ERRORS:
        lines.append(f"  and {len(errors) - _MAX_ERRORS} more")
    count = "1 field is" if len(errors) == 1 else f"{len(errors)} fields are"
    return "\n".join([f"{source} is not a valid {kind.__name__}: {count} wrong", *lines])


def _path(location: Iterable[int | str]) -> str:
    """``runs[3].steps[0].loss``."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{inert_line(part, max_length=60)}" for part in location)
    return path.removeprefix(".")


def _reason(error: "ErrorDetails") -> str:
    match error["type"]:
        case "missing":
            return "is missing"
        case "unexpected_keyword_argument":
            return "is not a field of this version"
        case _:
            given = inert_line(json.dumps(error["input"]), max_length=60)
            return f"{error['msg'].removeprefix('Input ')}, not {given}"
