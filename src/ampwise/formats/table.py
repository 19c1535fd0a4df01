"""The formats ampwise knows, one row each."""

from collections.abc import Mapping
from types import MappingProxyType

from ampwise._base.errors import UsageError
from ampwise._base.suggest import not_one_of
from ampwise.formats.spec import FloatFormat, Specials

_ROWS = (
    FloatFormat(
        name="fp64",
        title="IEEE binary64",
        exponent_bits=11,
        mantissa_bits=52,
        bias=1023,
        specials=Specials.IEEE,
        storage_bits=64,
        aliases=("float64", "double"),
    ),
    FloatFormat(
        name="fp32",
        title="IEEE binary32",
        exponent_bits=8,
        mantissa_bits=23,
        bias=127,
        specials=Specials.IEEE,
        storage_bits=32,
        aliases=("float32", "float", "single"),
    ),
    FloatFormat(
        name="tf32",
        title="NVIDIA TensorFloat-32",
        exponent_bits=8,
        mantissa_bits=10,
        bias=127,
        specials=Specials.IEEE,
        storage_bits=32,
        aliases=("tensorfloat32", "tensorfloat-32", "xf32"),
    ),
    FloatFormat(
        name="bf16",
        title="bfloat16",
        exponent_bits=8,
        mantissa_bits=7,
        bias=127,
        specials=Specials.IEEE,
        storage_bits=16,
        aliases=("bfloat16",),
    ),
    FloatFormat(
        name="fp16",
        title="IEEE binary16",
        exponent_bits=5,
        mantissa_bits=10,
        bias=15,
        specials=Specials.IEEE,
        storage_bits=16,
        aliases=("float16", "half"),
    ),
    FloatFormat(
        name="fp8_e4m3",
        title="OCP 8-bit E4M3 (e4m3fn)",
        exponent_bits=4,
        mantissa_bits=3,
        bias=7,
        specials=Specials.NAN_ONLY,
        storage_bits=8,
        aliases=("fp8", "e4m3", "e4m3fn", "float8_e4m3fn"),
    ),
    FloatFormat(
        name="fp8_e5m2",
        title="OCP 8-bit E5M2",
        exponent_bits=5,
        mantissa_bits=2,
        bias=15,
        specials=Specials.IEEE,
        storage_bits=8,
        aliases=("e5m2", "bf8", "float8_e5m2"),
    ),
)

FORMATS: Mapping[str, FloatFormat] = MappingProxyType({row.name: row for row in _ROWS})
"""Every format by its name, widest first."""

_BY_ALIAS: Mapping[str, FloatFormat] = MappingProxyType({alias: row for row in _ROWS for alias in row.aliases})


def find_format(name: str) -> FloatFormat | None:
    """The format users mean by ``name`` (``fp16``, ``half``, ``torch.float16``), or None."""
    word = name.strip().lower().removeprefix("torch.")
    return FORMATS.get(word) or _BY_ALIAS.get(word)


def get_format(name: str) -> FloatFormat:
    """The format users mean by ``name``.

    Raises:
        UsageError: it names none; the text suggests the nearest and lists all.
    """
    word = str(name)  # a dtype of torch's is written as its name
    found = find_format(word)
    if found is None:
        raise UsageError(not_one_of(word, FORMATS, kind="format"))
    return found
