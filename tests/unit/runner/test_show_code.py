"""The script that ``--show-code`` prints trains as one written by hand, and differs from its own in those lines."""

import re
import subprocess
import sys

import pytest

from ampwise.runner.show_code import show_code
from shown import BF16, PRECISIONS, SCRIPTS, loop, show


def _losses(text, name):
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        namespace = {"__name__": "__main__"}
        exec(compile(text, name, "exec"), namespace)  # the scripts are ours
    finally:
        torch.set_num_threads(threads)
    return namespace["losses"]


PAIRS = [
    (path, precision)
    for path in sorted(SCRIPTS.glob("*.py"))
    for precision in PRECISIONS
    if path.with_suffix(f".{precision}.py").exists()
]


@pytest.mark.parametrize(("path", "precision"), PAIRS, ids=lambda value: getattr(value, "stem", value))
def test_the_patched_script_trains_as_the_one_written_by_hand(path, precision):
    text = path.read_text()
    shown = show(text, precision)
    ours = _losses(shown.patched, f"{path.name} patched")
    by_hand = _losses(path.with_suffix(f".{precision}.py").read_text(), path.name)
    assert len(ours) >= 3
    assert ours == by_hand
    assert ours != _losses(text, path.name), "the precision makes no difference: the test cannot fail"


def test_the_pairs_were_found():
    assert len(PAIRS) >= 14
    assert {precision for _, precision in PAIRS} == set(PRECISIONS)


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.name)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_a_diff_changes_nothing_but_what_it_shows(path, precision):
    text = path.read_text()
    shown = show(text, precision)
    assert _undo(shown.diff, shown.patched) == text
    assert (shown.diff == "") == (shown.patched == text)
    if not shown.diff:
        assert shown.notes


def _undo(diff, patched):
    """Apply a diff backwards, by its line numbers."""
    result, position = [], 0
    new = patched.splitlines(keepends=True)
    for hunk in re.split(r"^(?=@@)", diff, flags=re.MULTILINE)[1:]:
        head, *body = hunk.splitlines(keepends=True)
        start = int(re.search(r"\+(\d+)", head)[1]) - 1
        result += new[position:start]
        position = start
        for line in body:
            if line[0] in " +":
                assert new[position] == line[1:]
                position += 1
            if line[0] in " -":
                result.append(line[1:])
    return "".join(result + new[position:])


def test_a_patched_file_runs_as_a_program(tmp_path):
    text = (SCRIPTS / "trainer_class.py").read_text()
    script = tmp_path / "train.py"
    script.write_text(show(text, "bf16").patched + "\nprint(len(losses), losses[-1] < losses[0])\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "8"


def test_it_needs_no_torch():
    code = (
        "import sys; from ampwise.runner.show_code import show_code\n"
        "show_code('import torch\\nloss.backward()\\n', filename='x', precision='bf16', device_type='cpu')\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_windows_line_ends_and_no_line_end_at_the_end():
    text = loop("loss = F.mse_loss(model(x), y)", "loss.backward()", "optimizer.step()").rstrip().replace("\n", "\r\n")
    shown = show(text, "fp16")
    assert shown.patched.endswith("    scaler.step(optimizer)\r\n    scaler.update()")
    assert shown.patched.count("\n") == shown.patched.count("\r\n")


def test_text_that_is_not_ascii():
    text = loop('print("Größe: 日本"); loss = F.mse_loss(model(x), y)', "loss.backward()", "optimizer.step()")
    assert f'    print("Größe: 日本")\n    {BF16}\n        loss = F.mse_loss(model(x), y)\n' in show(text).patched


def test_a_form_feed_is_no_line_end():
    text = loop("loss = F.mse_loss(model(x), y)", "loss.backward()", "optimizer.step()") + "\f\nx = 1\n"
    assert _undo_lines(show(text)) == text


def _undo_lines(shown):
    return shown.patched.replace(f"    {BF16}\n", "").replace("        loss =", "    loss =")


def test_a_future_import_stays_first():
    text = loop("loss = F.mse_loss(model(x), y)", "loss.backward()", "optimizer.step()").replace(
        "\nimport torch\n", '"""Doc."""\nfrom __future__ import annotations\n'
    )
    head = '"""Doc."""\nfrom __future__ import annotations\nimport torch\nimport torch.nn.functional as F\n'
    assert show(text).patched.startswith(head)


def test_a_syntax_error_is_pythons_own():
    with pytest.raises(SyntaxError) as caught:
        show_code("for x in\n", filename="train.py", precision="bf16", device_type="cpu")
    assert caught.value.filename == "train.py"
