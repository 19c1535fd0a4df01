"""The notebook extension in a real IPython shell."""

import subprocess
import sys

import pytest

from ampwise._base.errors import UsageError
from ampwise.integrations.jupyter import diagnosis_html, recording_html
from ampwise.interpose.seam import intercepted
from ampwise.records.diagnosis import Diagnosis
from ampwise.records.finding import Finding, Severity
from ampwise.records.site import Phase, Site

pytestmark = pytest.mark.filterwarnings("ignore")
IPython = pytest.importorskip("IPython")
HOSTILE = "<script>alert(1)</script>\x1b[31m"
CELL = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 4){factor}).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    from IPython.core.interactiveshell import InteractiveShell

    class Quiet(InteractiveShell):
        def init_history(self):
            self.history_manager = None

    made = InteractiveShell(history_length=0)
    made.run_line_magic("load_ext", "ampwise")
    yield made
    made.run_line_magic("unload_ext", "ampwise")
    assert "doctor" not in made.magics_manager.magics["cell"]


@pytest.fixture
def shown(monkeypatch):
    import IPython.display

    pages = []
    monkeypatch.setattr(IPython.display, "display", lambda page: pages.append(page.data))
    return pages


def test_a_cell_is_diagnosed(shell, shown, tmp_path, capsys):
    save = tmp_path / "run.json"
    shell.run_cell_magic("doctor", f"--instruments usage,nonfinite --save {save}", CELL.format(factor=""))
    assert "no loss, gradient or weight was infinite or NaN in 3 steps" in shown[0]
    assert save.exists()
    assert "model" in shell.user_ns
    assert intercepted() == ()


def test_a_cell_that_raises_is_let_through_and_nothing_stays(shell, shown, capsys):
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("doctor", "--instruments usage", "1 / 0")
    assert intercepted() == ()


def test_what_it_does_not_know_is_told(shell):
    with pytest.raises(UsageError, match="it knows --instruments"):
        shell.run_cell_magic("doctor", "--steps 3", "pass")


def hostile():
    site = Site(phase=Phase.FORWARD, file=HOSTILE, line=3)
    texts = {"message": HOSTILE, "remedy": HOSTILE, "evidence": HOSTILE, "plan_rule": HOSTILE}
    finding = Finding(rule="DR101", severity=Severity.ERROR, site=site, **texts)
    return Diagnosis(findings=(finding,), reassurances=(HOSTILE,))


def test_values_are_shown_as_html_and_hostile_names_are_inert(shell, made):
    formatter = shell.display_formatter.formatters["text/html"]
    for page in (formatter(hostile()), diagnosis_html(hostile())):
        assert "<script" not in page
        assert "\x1b" not in page
        assert page.count("&lt;script&gt;") == 6
    assert "<td>" in formatter(made.normal())
    assert "<script" not in recording_html(made.normal())


def test_the_package_has_the_extension_and_leaves_torch_out():
    code = "import ampwise, sys; assert 'torch' not in sys.modules; assert callable(ampwise.load_ipython_extension)"
    subprocess.run([sys.executable, "-c", code], check=True)
