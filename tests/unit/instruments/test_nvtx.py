import pytest
import torch
from torch import nn

from ampwise._base.errors import CannotRunError
from ampwise.instruments.nvtx import NvtxMarks, nsys_command
from ampwise.observe.events import BackwardEnded, BackwardStarted, EventBus, StepOutcome, StepStarted


class FakeNvtx:
    """Keeps what it was told, as text: ranges nest, steps do not."""

    def __init__(self):
        self.said, self.open, self.started = [], [], {}

    def range_push(self, msg):
        self.open.append(msg)
        self.said.append(f"+{msg}")
        return len(self.open) - 1

    def range_pop(self):
        self.said.append(f"-{self.open.pop()}")
        return len(self.open)

    def range_start(self, msg):
        self.started[len(self.started)] = msg
        self.said.append(f"[{msg}")
        return len(self.started) - 1

    def range_end(self, range_id):
        self.said.append(f"{self.started[range_id]}]")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.breaks = False

    def forward(self, x):
        if self.breaks:
            raise ValueError("broken")
        return self.fc(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        try:
            return self.block(x)
        except ValueError:
            return x


@pytest.fixture
def marked():
    bus, nvtx, net = EventBus(), FakeNvtx(), Net()
    marks = NvtxMarks(bus, nvtx=nvtx)
    marks._stack.names.add_root(net, name="net")
    return bus, nvtx, net, marks


def step(bus, net):
    net(torch.zeros(1, 2))
    bus.publish(BackwardStarted(roots=()))
    bus.publish(BackwardEnded(roots=()))
    bus.publish(StepStarted(optimizer=None))
    bus.publish(StepOutcome(optimizer=None))


def test_a_step_holds_its_modules_its_backward_and_its_optimizer(marked):
    bus, nvtx, net, marks = marked
    with marks:
        step(bus, net)
    assert nvtx.said[2:] == [
        "[step 0",
        *("+model", "+block", "+block.fc", "-block.fc", "-block", "-model"),
        *("+backward", "-backward", "+optimizer", "-optimizer"),
        *("step 0]", "[step 1", "step 1]"),
    ]


def test_a_cast_lies_in_its_module_and_in_its_backward_pass(marked):
    bus, nvtx, net, marks = marked
    with marks:
        with torch.autocast("cpu", torch.bfloat16):
            loss = net.block.fc(torch.zeros(1, 2)).sum()
        bus.publish(BackwardStarted(roots=()))
        loss.backward()
        bus.publish(BackwardEnded(roots=()))
        torch.zeros(2).long().float()  # no floating-point number before it
    forward = [f"{sign}cast fp32 to bf16" for _ in range(3) for sign in "+-"]
    assert nvtx.said[3:11] == ["+block.fc", *forward, "-block.fc"]
    backward = nvtx.said[nvtx.said.index("+backward") : nvtx.said.index("-backward")]
    assert backward.count("+cast bf16 to fp32") == 2
    assert not any("cast" in text for text in nvtx.said[nvtx.said.index("-backward") :])
    assert nvtx.open == []


def test_a_module_that_raised_leaves_no_range_open(marked):
    bus, nvtx, net, marks = marked
    net.block.breaks = True
    with marks:
        step(bus, net)
        net.block.breaks = False
        step(bus, net)
    assert nvtx.open == []
    said = nvtx.said[2:]
    assert said[:6] == ["[step 0", "+model", "+block", "-block", "-model", "+backward"]


def test_checkpointing_calls_modules_within_the_backward_pass(marked):
    bus, nvtx, net, marks = marked
    with marks:
        bus.publish(BackwardStarted(roots=()))
        net.block(torch.zeros(1, 2))
        bus.publish(BackwardEnded(roots=()))
    said = " ".join(nvtx.said)
    assert "+backward +block +block.fc -block.fc -block -backward" in said


def test_an_exception_that_leaves_the_script_leaves_no_range(marked):
    bus, nvtx, _, marks = marked

    def script():
        with marks:
            bus.publish(BackwardStarted(roots=()))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        script()
    assert nvtx.open == []
    assert nvtx.said[-1] == "step 0]"


def test_nothing_is_marked_after_the_end(marked):
    bus, nvtx, net, marks = marked
    with marks:
        pass
    before = len(nvtx.said)
    step(bus, net)
    assert len(nvtx.said) == before


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has NVTX")
def test_a_torch_without_nvtx_is_refused():
    with pytest.raises(CannotRunError, match="built without NVTX"), NvtxMarks(EventBus()):
        pass


def test_the_command_can_be_typed():
    assert nsys_command(("my train.py", "--lr", "1")) == (
        "nsys profile --trace=cuda,nvtx --output=profile ampwise run --nvtx 'my train.py' --lr 1"
    )
