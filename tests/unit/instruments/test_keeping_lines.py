import pytest

from ampwise.instruments.keeping_lines import keeping_line
from ampwise.observe.frames import Line

SOURCE = """
total = 0
losses = []
old = model(x)
for x in data:
    total += loss
    losses.append(loss)
    mean = mean * 0.9 + loss
    table[step] = loss
    optimizer.step()
for x in data:
    total += loss
"""


@pytest.mark.parametrize(
    ("name", "at", "expected"),
    [
        ("total", 10, 12),
        ("total", 7, 6),
        ("losses", 10, 7),
        ("mean", 10, 8),
        ("table", 10, 9),
        ("old", 10, 4),
        ("unheard_of", 10, 10),
    ],
)
def test_the_nearest_line_that_keeps_is_found(tmp_path, name, at, expected):
    script = tmp_path / "train.py"
    script.write_text(SOURCE)
    assert keeping_line(Line(str(script), at), name) == Line(str(script), expected)


@pytest.mark.parametrize("text", ["for for", None])
def test_where_the_source_does_not_tell_the_frames_line_is_kept(tmp_path, text):
    script = tmp_path / "broken.py"
    if text is not None:
        script.write_text(text)
    line = Line(str(script), 3)
    assert keeping_line(line, "total") == line
