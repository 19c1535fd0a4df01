import subprocess
import sys

import pytest

import ampwise

HEAVY = ("torch", "numpy", "pydantic", "click", "rich", "plotly", "jinja2")


def modules_after(*arguments):
    """Which heavy modules a fresh interpreter holds after running ``python -X importtime`` style arguments."""
    script = (
        "import sys, runpy\n"
        f"sys.argv = {['ampwise', *arguments]!r}\n"
        "try:\n    runpy.run_module('ampwise', run_name='__main__')\n"
        "except SystemExit as end:\n    status = end.code\n"
        f"print('HEAVY', status, *[m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    _, status, *heavy = done.stdout.strip().splitlines()[-1].split()
    return int(status), set(heavy)


def test_importing_ampwise_imports_nothing_heavy():
    code = f"import ampwise, sys; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["compare", "--help"],
        ["doctor", "--help"],
        ["estimate", "--help"],
        ["casts", "--help"],
        ["explain", "fp16"],
        ["plan", "show", "fp16-safe"],
    ],
    ids=" ".join,
)
def test_what_needs_no_torch_leaves_it_out(arguments):
    status, heavy = modules_after(*arguments)
    assert status == 0
    assert "torch" not in heavy


def test_every_public_name_is_there_and_says_what_it_is():
    for name in ampwise.__all__:
        assert getattr(ampwise, name).__doc__, name
    assert set(ampwise.__all__) <= set(dir(ampwise))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'autocats'"):
        _ = ampwise.autocats


def test_without_the_cli_extra_the_command_prints_the_pip_line():
    code = "import sys\nsys.modules['click'] = None\nfrom ampwise.__main__ import main\nsys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == "ampwise: the command line needs click; run: pip install 'ampwise[cli]'\n"


def test_completion_offers_the_public_names_and_a_misspelt_one_is_corrected():
    import ampwise

    assert dir(ampwise) == sorted(ampwise.__all__)
    with pytest.raises(AttributeError) as error:
        ampwise.Trainstep  # noqa: B018 - the access is what is tested
    assert (error.value.name, error.value.obj) == ("Trainstep", ampwise)


def test_an_error_is_named_as_users_import_it():
    import pickle
    import traceback

    error = ampwise.UsageError("no")
    assert traceback.format_exception_only(error) == ["ampwise.UsageError: no\n"]
    assert type(pickle.loads(pickle.dumps(error))) is ampwise.UsageError


def test_a_python_that_is_too_old_is_told():
    code = "import sys; sys.version_info = (3, 10, 13); sys.version = '3.10.13 (main)'; import ampwise"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.endswith("ImportError: ampwise needs Python 3.11 or newer; this is 3.10.13\n")
