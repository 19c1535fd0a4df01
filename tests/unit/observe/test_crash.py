"""What is read out of an exception: the call, its tensors, the module, the pass, and what was dropped on the way."""

import pytest
import torch

from ampwise.observe.crash import read_crash
from ampwise.records.site import Phase

HERE = "tests/unit/observe/test_crash.py"


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(4, 1)
        self.register_buffer("table", torch.ones(4, 4, dtype=torch.bfloat16))

    def forward(self, x):
        return self.out(x @ self.table)


def crash_of(action):
    with pytest.raises(Exception) as caught:  # any: what it was is read
        action()
    return read_crash(caught.value)


def names(crash):
    return {(one.name, one.dtype, one.device) for one in crash.tensors}


def test_a_product_in_a_module():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Head())
    crash = crash_of(lambda: model(torch.ones(2, 4)))
    assert (crash.site.phase, crash.site.module, crash.site.op) == (Phase.FORWARD, "1", "matmul")
    assert crash.site.where.startswith(HERE)
    assert (crash.expression, crash.module_kind) == ("x @ self.table", "Head")
    assert names(crash) == {("x", "fp32", "cpu"), ("self.table", "bf16", "cpu")}


def test_an_operator_that_a_layer_of_torchs_calls():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4).half())
    crash = crash_of(lambda: model(torch.ones(2, 4)))
    assert (crash.site.module, crash.site.op) == ("0", "linear")
    assert names(crash) >= {("input", "fp32", "cpu"), ("self.weight", "fp16", "cpu")}


def test_a_refusal_of_a_librarys_is_the_scripts_call_of_it():
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    model = torch.nn.ParameterDict({"weight": weight})
    optimizer = torch.optim.SGD(model.parameters())
    scaler = torch.amp.GradScaler("cpu")

    def action():
        owner = model  # noqa: F841 # held by a variable of the script's
        scaler.scale(weight.float().sum()).backward()
        scaler.step(optimizer)

    crash = crash_of(action)
    assert (crash.expression, crash.site.op, crash.site.phase) == ("scaler.step(optimizer)", "step", Phase.OPTIMIZER)
    assert [(one.name, one.dtype) for one in crash.low_parameters] == [("weight", "fp16")]
    assert crash.num_low_parameters == 1


def test_only_tensors_results_are_dropped():
    def action():
        x, y, model = torch.ones(2, 4), torch.ones(2, device="meta"), torch.nn.Linear(4, 2)
        x.to("meta")
        model.to("cpu")
        x = x.to("cpu")
        return torch.cat([model(x)[0], y])

    (dropped,) = crash_of(action).dropped
    assert (dropped.source, dropped.name) == ("x.to('meta')", "x")
    assert dropped.where.startswith(HERE)


def test_the_backward_pass():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x

        @staticmethod
        def backward(_, grad):
            return grad @ grad.bfloat16()

    loss = Broken.apply(torch.ones(2, 2, requires_grad=True)).sum()
    crash = crash_of(loss.backward)
    assert (crash.site.phase, crash.site.module, crash.expression) == (Phase.BACKWARD, None, "grad @ grad.bfloat16()")


def test_what_has_no_tensors():
    crash = crash_of(lambda: {}["x"])
    assert (crash.tensors, crash.site.op, crash.site.phase) == ((), None, Phase.OTHER)
    assert read_crash(ValueError("never raised")) is None


def test_a_property_is_not_run_to_find_a_tensor():
    class Odd:
        @property
        def weight(self):
            raise AssertionError("asked")

    odd = Odd()
    assert crash_of(lambda: torch.ones(2) @ odd.weight) is not None


def test_comments_among_the_lines_of_a_call_are_no_part_of_it():
    x, y = torch.ones(2, 4), torch.tensor([1, 9])

    def action():
        torch.nn.functional.nll_loss(
            x,  # of the model
            y,
        )

    crash = crash_of(action)
    assert "#" not in crash.expression
    assert names(crash) == {("input", "fp32", "cpu"), ("target", "int64", "cpu")}
    assert crash.site.op == "nll_loss_nd"


def test_the_lines_of_a_scripts_own_call_are_one():
    def action():
        torch.matmul(
            torch.ones(2, 4),  # here
            torch.ones(3),
        )

    crash = crash_of(action)
    assert (crash.expression, crash.site.op) == ("torch.matmul(torch.ones(2, 4), torch.ones(3))", "matmul")
