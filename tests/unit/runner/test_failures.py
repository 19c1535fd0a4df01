import pytest
import torch

from ampwise._base.errors import CannotRunError
from ampwise.records.run import RunEnd
from ampwise.runner import failures
from ampwise.runner.failures import describe, end_of, missing_cuda, own_place, strip_own_frames, user_place


def raised(text, *, filename="/home/user/train.py"):
    try:
        exec(compile(text, filename, "exec"), {})
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def frames(error):
    tb, found = error.__traceback__, []
    while tb is not None:
        found.append(tb.tb_frame.f_code.co_filename)
        tb = tb.tb_next
    return found


def through_ampwise(body, outer="f()"):
    """User code that calls ampwise's, which calls ``body``."""
    namespace = {}
    own = f"{failures._OWN}/interpose/made_up.py"
    exec(compile(f"def inner():\n    {body}\n", "/home/user/layer.py", "exec"), namespace)
    exec(compile("def f():\n    inner()\n", own, "exec"), namespace)
    try:
        exec(compile(outer, "/home/user/train.py", "exec"), namespace)
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def test_own_frames_go_wherever_they_stand():
    error = through_ampwise("1 / 0")
    assert len(frames(error)) == 4
    strip_own_frames(error)
    assert frames(error) == [__file__, "/home/user/train.py", "/home/user/layer.py"]


def test_own_frames_go_from_causes_too():
    error = through_ampwise("1 / 0", outer="try:\n    f()\nexcept ZeroDivisionError as e:\n    raise ValueError from e")
    strip_own_frames(error)
    assert frames(error.__cause__) == ["/home/user/train.py", "/home/user/layer.py"]


def test_exceptions_in_a_ring_are_stripped_once():
    error = raised("1 / 0")
    other = raised("1 / 0")
    error.__context__, other.__context__ = other, error
    strip_own_frames(error)


def test_a_fault_of_ampwises_own_is_known_by_its_place(tmp_path, monkeypatch):
    own = tmp_path / "own.py"
    own.write_text("def f():\n    1 / 0\ndef g(proceed):\n    return proceed('x')\n")
    namespace = {}
    exec(compile(own.read_text(), str(own), "exec"), namespace)
    monkeypatch.setattr(failures, "_OWN", str(tmp_path))
    with pytest.raises(ZeroDivisionError) as caught:
        namespace["f"]()
    assert own_place(caught.value) == f"{own}:2"
    with pytest.raises(ValueError, match="invalid") as caught:
        namespace["g"](int)
    assert own_place(caught.value) is None


def test_the_users_place_is_the_deepest_line_of_the_users():
    assert user_place(raised("import json\n\njson.loads('{')")) == "/home/user/train.py:3"
    assert user_place(raised("import torch\ntorch.ones(2) @ torch.ones(3)")) == "/home/user/train.py:2"
    assert user_place(raised("x = (\n")) == "/home/user/train.py:1"
    assert user_place(ValueError()) is None


def test_a_failure_is_inert_text():
    failure = describe(raised("raise ValueError('a\\x1b[31mb')"))
    assert (failure.kind, failure.message, failure.where) == ("ValueError", "ab", "/home/user/train.py:1")


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (MemoryError(), RunEnd.OUT_OF_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), RunEnd.OUT_OF_MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), RunEnd.OUT_OF_MEMORY),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), RunEnd.FAILED),
        (ValueError("out of memory is a word"), RunEnd.FAILED),
        (CannotRunError("no"), RunEnd.FAILED),
    ],
)
def test_out_of_memory_is_told_from_other_failures(error, end):
    assert end_of(error) is end


def test_memory_asked_for_in_earnest():
    error = raised("import torch\ntorch.empty(2**60)")
    assert end_of(error) is RunEnd.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("torch.ones(2).cuda()", "asks for CUDA"),
        ("torch.zeros(2, device='cuda')", "asks for CUDA"),
        ("torch.nn.Linear(2, 2).to('cuda')", "asks for CUDA"),
        ("torch.cuda.current_device()", "asks for CUDA"),
    ],
)
def test_cuda_that_is_missing_is_named_with_its_line(code, words):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    sentence = missing_cuda(raised(f"import torch\n{code}"))
    assert sentence.startswith(f"/home/user/train.py:2 {words}")
    assert "torch.cuda.is_available()" in sentence
    assert describe(raised(f"import torch\n{code}")).message == sentence


def test_weights_saved_on_cuda_are_told_apart():
    text = (
        "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you are running"
    )
    assert 'map_location="cpu"' in missing_cuda(RuntimeError(text))


def test_where_cuda_is_there_it_is_not_missing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert missing_cuda(RuntimeError("No CUDA GPUs are available")) is None
    assert missing_cuda(RuntimeError("another")) is None
