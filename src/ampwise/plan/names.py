"""Which operators a word means: one name for all of torch's spellings of an operator, and one for kinds of them.

Operators are named as aten packets, without ``aten::``: ``softmax``, ``scaled_dot_product_attention``.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, Final

_PREFIX: Final = re.compile(r"^(torch\.|ops\.|aten::|aten\.|nn\.|functional\.|F\.|Tensor\.)*")
_CUSTOM: Final = re.compile(r"(?!aten::)[A-Za-z_]\w*::[A-Za-z_]\w*")


@cache
def operators_meant(word: str) -> frozenset[str]:
    """The operators that a rule on ``word`` is about; none where it names no operator.

    ``softmax``, ``F.softmax``, ``nn.Softmax`` and ``special.softmax`` are one operator; ``norm`` and ``conv`` are kinds
    of several; ``mylib::op`` is an operator of the user's own, which is taken as it stands.
    """
    word = word.strip()
    if _CUSTOM.fullmatch(word):
        return frozenset((word,))
    return frozenset(kinds().get(word) or spelt(word, listed()))


def op_mistake(word: str) -> str | None:
    """What is wrong with ``word`` as the name of an operator, if anything is."""
    if operators_meant(word):
        return None
    near = nearest(word, listed())
    hint = f'; did you mean "{near}"?' if near else ""
    return (
        f"is not an operator{hint} (as torch spells it, such as softmax or F.layer_norm; one of "
        f"{', '.join(kinds())}; or namespace::name for an operator of your own)"
    )


def spelt(name: str, listed: Iterable[str]) -> tuple[str, ...]:
    """The operators that ``name`` may mean: itself, and those it is another spelling of."""
    rows = spellings()
    bare = _PREFIX.sub("", name.strip())
    asked = {_squashed(bare), _squashed(bare.partition(".")[0])}
    itself = [packet for packet in (*listed, *rows["unlisted"]) if _squashed(packet) in asked]
    others = [packet for packet, spelt in rows["operators"].items() if asked & {_squashed(one) for one in spelt}]
    return tuple(dict.fromkeys([*itself, *others]))


def nearest(name: str, listed: Iterable[str]) -> str | None:
    """The operator that is probably meant by ``name``, which is none."""
    rows = spellings()
    others = [one for spelt in rows["operators"].values() for one in spelt]
    known = [*listed, *rows["unlisted"], *others, *rows["kinds"]]
    near = get_close_matches(_PREFIX.sub("", name.strip()).lower(), known, n=1, cutoff=0.7)
    return near[0] if near else None


@cache
def spellings() -> dict[str, Any]:
    """How operators are spelt: the rows of ``spellings.toml``."""
    return read_data("spellings.toml")


def kinds() -> Mapping[str, list[str]]:
    """Words for kinds of operators, each with its operators."""
    return spellings()["kinds"]


@cache
def listed() -> tuple[str, ...]:
    """Every operator that autocast of some torch or a remedy of ampwise's treats."""
    tables = [read_data(f"lists/{name}") for name in list_files()]
    names = [name for devices in tables for policies in devices.values() for row in policies.values() for name in row]
    names += [name for row in read_data("remedies.toml")["remedy"] for name in row["operators"]]
    return tuple(sorted({name.partition(".")[0] for name in names}))


def list_files() -> list[str]:
    """The files of cast lists, one a torch version."""
    return [entry.name for entry in (files("ampwise.plan") / "lists").iterdir() if entry.name.endswith(".toml")]


def read_data(name: str) -> dict[str, Any]:
    """The TOML file of that name in the plan's own data."""
    return tomllib.loads((files("ampwise.plan") / name).read_text(encoding="utf-8"))


def _squashed(name: str) -> str:
    """``LayerNorm`` and ``layer_norm`` as ``layernorm``; ``index_put_`` keeps the mark of an operator in place."""
    in_place = "_" if name.endswith("_") and not name.endswith("__") else ""
    return name.replace("_", "").replace(".", "").lower() + in_place
