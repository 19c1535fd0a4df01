import gc
import subprocess
import sys
import weakref

import torch

from ampwise.observe.frames import Line, user_frames, user_line, variables_of


def test_the_line_is_the_users_behind_torchs_own_frames():
    found = []
    layer = torch.nn.Linear(2, 2)
    handle = layer.register_forward_hook(lambda *_: found.append(user_line(2)))
    layer(torch.zeros(1, 2))  # the line
    handle.remove()
    expected = user_line().line - 2
    assert (found[0].file, found[0].line) == (__file__, expected)


def test_depth_passes_over_the_callers_own_frames():
    def helper():
        return user_line(2)

    assert helper().line == user_line().line


def test_a_file_is_shown_relative_to_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Line(str(tmp_path / "src" / "train.py"), 3).shown_file == "src/train.py"
    assert Line("/elsewhere/train.py", 3).shown_file == "/elsewhere/train.py"
    assert Line("<stdin>", 3).shown_file == "<stdin>"


def test_installed_packages_are_taken_only_where_all_is_installed(tmp_path):
    script = (
        "import sysconfig, sys, types\n"
        "from ampwise.observe.frames import user_line\n"
        "path = sysconfig.get_paths()['purelib'] + '/pkg/train.py'\n"
        "exec(compile('found = user_line()', path, 'exec'))\n"
        "print(found.file == path, found.line)\n"
    )
    typed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert typed.stdout.split() == ["True", "1"]
    (tmp_path / "train.py").write_text(script)
    file = subprocess.run([sys.executable, tmp_path / "train.py"], capture_output=True, text=True, check=True)
    assert file.stdout.split() == ["False", "4"]


def test_reading_variables_keeps_nothing_alive():
    class Batch:
        pass

    def train():
        batch = Batch()
        reference = weakref.ref(batch)
        assert variables_of(sys._getframe())["batch"] is batch
        del batch
        gc.collect()
        return reference()

    assert train() is None


def test_a_copy_that_the_user_holds_is_left_alone():
    def train():
        rate = 0.1
        settings = locals()
        variables_of(sys._getframe())
        return settings, rate

    assert train()[0]["rate"] == 0.1


def test_a_modules_variables_are_its_own():
    names = {"variables_of": variables_of, "sys": sys}
    exec("x = 1\nfound = variables_of(sys._getframe())", names)
    assert names["found"]["x"] == 1
    assert names["x"] == 1


def test_the_innermost_frame_comes_first():
    assert user_frames()[0].f_code.co_name == "test_the_innermost_frame_comes_first"
