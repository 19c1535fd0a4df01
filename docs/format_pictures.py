"""Draws the number formats for the pages on mixed precision, from the rows of ``ampwise.formats``."""  # noqa: INP001 # Sphinx finds it beside conf.py

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ampwise.estimate.rules_of_thumb import Sizes, estimate_by_thumb
from ampwise.formats.scalar import round_to
from ampwise.formats.spec import FloatFormat
from ampwise.formats.table import get_format

# Of Okabe and Ito's palette, which people who see fewer colours tell apart; what a colour says stands in words too
_BLUE: Final = "#0072B2"
_ORANGE: Final = "#E69F00"
_GREEN: Final = "#009E73"
_GREY: Final = "#676767"
_WIDTH: Final = 720
_LEFT: Final = 96
_ROW: Final = 30
_SHOWN: Final = ("fp32", "tf32", "bf16", "fp16", "fp8_e5m2", "fp8_e4m3")


def write_pictures(folder: Path) -> None:
    """Write all pictures into ``folder``, where they differ from what is there."""
    for name, text in pictures().items():
        target = folder / name
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")


def pictures() -> dict[str, str]:
    """Each picture's file name and SVG."""
    return {"range.svg": _range(), "spacing.svg": _spacing(), "scales.svg": _scales(), "memory.svg": _memory()}


def _range() -> str:
    """From the smallest to the largest number of each format, by powers of two."""
    low, high = -150, 130
    rows = [get_format(name) for name in _SHOWN]
    height = 40 + _ROW * len(rows) + 58
    bars = [part for index, row in enumerate(rows) for part in _range_bar(row, 40 + index * _ROW, low, high)]
    ticks = [
        part
        for power in range(-36, 37, 12)
        for part in _tick(_at(power / math.log10(2), low, high), 34, height - 52, f"1e{power:+d}" if power else "1")
    ]
    return _svg(
        height,
        "The range of six number formats, on a line of powers of ten",
        [
            _text(_LEFT, 20, "Numbers from the smallest to the largest (each mark is 10^12 times the one before)"),
            *ticks,
            *bars,
            *_key(height - 10, [(_BLUE, "all digits (normal)"), (_ORANGE, "fewer digits (subnormal)")]),
        ],
    )


def _range_bar(row: FloatFormat, top: float, low: float, high: float) -> Iterator[str]:
    smallest, normal, largest = (
        _at(math.log2(one), low, high) for one in (row.smallest_subnormal, row.smallest_normal, row.max)
    )
    yield _text(_LEFT - 8, top + 16, row.name, anchor="end")
    yield _box(smallest, top + 4, normal - smallest, 16, _ORANGE)
    yield _box(normal, top + 4, largest - normal, 16, _BLUE)


def _spacing() -> str:
    """Every number of each format from 1 to 1.125, one line each."""
    end = 1.125
    rows = [get_format(name) for name in _SHOWN]
    height = 40 + _ROW * len(rows) + 24
    parts = [_text(_LEFT, 20, "Every number from 1 to 1.125, a line each")]
    for index, row in enumerate(rows):
        parts += _spacing_row(row, 40 + index * _ROW, end)
    for value in (1, 1.03125, 1.0625, 1.09375, 1.125):
        parts.append(_text(_at(value, 1, end), height - 8, str(value), anchor="middle"))
    return _svg(height, "The numbers of six formats between 1 and 1.125", parts)


def _spacing_row(row: FloatFormat, top: float, end: float) -> Iterator[str]:
    yield _text(_LEFT - 8, top + 16, row.name, anchor="end")
    num_steps = round((end - 1) / row.eps)
    if num_steps > 1000:  # more lines than pixels
        yield _box(_LEFT, top + 4, _at(end, 1, end) - _LEFT, 16, _BLUE)
        yield _text(_LEFT + 8, top + 16, f"{num_steps:,} steps: too close to draw", fill="white")
        return
    for step in range(max(num_steps, 0) + 1):
        yield _line(_at(1 + step * row.eps, 1, end), top + 4, top + 20, _BLUE, width=1.5)


def _scales() -> str:
    """Where the gradient 1e-8 comes to lie in fp16 under several loss scales."""
    fp16, low, high = get_format("fp16"), -34, 20
    gone, normal = math.log2(fp16.underflow_threshold), math.log2(fp16.smallest_normal)
    infinite = math.log2(fp16.overflow_threshold)
    zones = [
        (low, gone, _GREY, "becomes 0"),
        (gone, normal, _ORANGE, "fewer digits"),
        (normal, infinite, _BLUE, "all digits"),
        (infinite, high, _GREY, "inf"),
    ]
    parts = [_text(_LEFT, 20, "The gradient 1e-8, times a loss scale, in fp16")]
    for left, right, colour, label in zones:
        start, stop = _at(left, low, high), _at(right, low, high)
        parts.append(_box(start, 34, stop - start, 20, colour))
        parts.append(_text((start + stop) / 2, 48, label, anchor="middle", fill=_ink(colour)))
    places = [(scale, _at(math.log2(1e-8 * scale), low, high)) for scale in (1, 8, 256, 1024, 65536)]
    parts += [_line(x, 54, 78 + index * 24, _GREY, width=1) for index, (_, x) in enumerate(places)]
    for index, (scale, x) in enumerate(places):
        parts += _scaled(scale, x, 68 + index * 24, fp16)
    return _svg(196, "Loss scales move the gradient 1e-8 into the numbers that fp16 has", parts)


def _scaled(scale: int, x: float, top: float, fp16: FloatFormat) -> Iterator[str]:
    words = f"{round_to(1e-8 * scale, fp16):.4g}"
    yield _text(_LEFT - 8, top + 14, f"x {scale}", anchor="end")
    yield f'<circle cx="{x:.1f}" cy="{top + 10:.1f}" r="5" fill="black"/>'
    yield _box(x + 8, top + 2, 7 * len(words) + 4, 16, "white")
    yield _text(x + 10, top + 14, words)


def _memory() -> str:
    """The four parts of a training's memory, in fp32 and under autocast."""
    sizes = Sizes(num_params=130_000_000, activation_bytes=2 * 2**30)
    colours = {"parameters": _BLUE, "gradients": _ORANGE, "optimizer state": _GREEN, "activations": _GREY}
    largest = estimate_by_thumb(sizes).allocated_bytes
    parts = [_text(_LEFT, 20, "130 million parameters, Adam, 2 GiB of activations in fp32")]
    for index, precision in enumerate(("fp32", "bf16")):
        left, top = float(_LEFT), 34 + index * 34
        parts.append(_text(_LEFT - 8, top + 18, f"{precision}", anchor="end"))
        estimate = estimate_by_thumb(sizes, precision=precision)
        for part, colour in zip(estimate.categories, colours.values(), strict=True):
            width = (_WIDTH - _LEFT - 24) * part.bytes / largest
            parts.append(_box(left, top, width - 2, 26, colour))
            label = f"{part.bytes / 2**30:.2f}"
            parts.append(_text(left + width / 2, top + 18, label, anchor="middle", fill=_ink(colour)))
            left += width
    parts += _key(122, [(colour, name) for name, colour in colours.items()])
    return _svg(132, "Memory of a training step in GiB, part by part: mixed precision halves the activations", parts)


def _at(value: float, low: float, high: float) -> float:
    """Where ``value`` lies across the picture."""
    return _LEFT + (_WIDTH - _LEFT - 24) * (value - low) / (high - low)


def _ink(colour: str) -> str:
    return "black" if colour in {_ORANGE, _GREEN} else "white"


def _key(y: float, entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    x = _LEFT
    for colour, words in entries:
        yield _box(x, y - 11, 14, 14, colour)
        yield _text(x + 20, y, words)
        x += 40 + 7 * len(words)


def _tick(x: float, top: float, bottom: float, words: str) -> Iterator[str]:
    yield _line(x, top, bottom, "#dddddd", width=1)
    yield _text(x, bottom + 16, words, anchor="middle")


def _box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>'


def _line(x: float, top: float, bottom: float, colour: str, *, width: float) -> str:
    return f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="{colour}" stroke-width="{width:g}"/>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", fill: str = "black") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{words}</text>'


def _svg(height: float, title: str, parts: Iterable[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}" '
        f'height="{height:g}" font-family="sans-serif" font-size="12" role="img">'
    )
    paper = f'<rect width="{_WIDTH}" height="{height:g}" fill="white"/>'
    return "\n".join([head, f"<title>{title}</title>", paper, *parts, "</svg>"]) + "\n"
