"""The hidden scale survives a checkpoint it is not in."""

import json

import pytest
import torch
from torch import nn

from ampwise._base.errors import RecordError
from ampwise.observe.checkpoints import holds_optimizer_state
from ampwise.observe.events import EventBus
from ampwise.runner.inject import inject
from ampwise.runner.sidecar import read_sidecar, sidecar_of, write_sidecar
from ampwise.runner.spec import Lists
from ampwise.runtime.hardware.device import Choice
from ampwise.runtime.scaling.loss_scale import DynamicLossScale, StaticLossScale

FP16 = Choice(precision="fp16", reason="asked for", slow_factor=None, device="cpu")


def injecting(**options):
    return inject(choice=FP16, lists=Lists.STOCK, bus=EventBus(), **options)


def checkpoint():
    net = nn.Linear(2, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    return {"model": net.state_dict(), "optimizer": opt.state_dict(), "epoch": 3}


@pytest.mark.parametrize("as_path", [str, lambda path: path])
def test_it_is_written_beside_a_checkpoint_and_picked_up(tmp_path, as_path):
    path = tmp_path / "last.pt"
    with injecting(loss_scale=DynamicLossScale(scale=1024.0, growth_tracker=7)):
        torch.save(checkpoint(), as_path(path))
    with injecting() as injected:
        assert injected.scale == 65536.0
        torch.load(as_path(path))
        assert injected.scale == 1024.0
    assert injected.notes == [f"loss scale 1024 restored from {path}.ampwise.json"]
    assert read_sidecar(sidecar_of(path)).growth_tracker == 7


def test_a_checkpoint_without_one_restarts_and_says_so(tmp_path):
    torch.save(checkpoint(), tmp_path / "last.pt")
    with injecting() as injected:
        torch.load(tmp_path / "last.pt")
    assert injected.scale == 65536.0
    assert injected.notes == [f"loss scale restarted at 65536: there is no {tmp_path / 'last.pt'}.ampwise.json"]


@pytest.mark.parametrize(
    "content", ["", "{}", '{"version": 9, "loss_scale": {}}', '{"version": 1, "loss_scale": {"kind": "x"}}']
)
def test_a_corrupt_or_newer_one_is_not_used_and_the_script_goes_on(tmp_path, content):
    path = tmp_path / "last.pt"
    torch.save(checkpoint(), path)
    sidecar_of(path).write_text(content)
    with pytest.raises(RecordError):
        read_sidecar(sidecar_of(path))
    with injecting() as injected:
        torch.load(path)
    assert injected.scale == 65536.0
    assert injected.notes[0].startswith("loss scale restarted at 65536")


def test_nothing_is_written_beside_other_files_or_without_a_hidden_scale(tmp_path):
    with injecting():
        torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "weights.pt")
        with (tmp_path / "open.pt").open("wb") as file:
            torch.save(checkpoint(), file)
    with inject(choice=Choice(precision="bf16", reason="", slow_factor=None, device="cpu"), bus=EventBus()):
        torch.save(checkpoint(), tmp_path / "bf16.pt")
    assert not list(tmp_path.glob("*.ampwise.json"))


def test_loading_weights_only_says_nothing(tmp_path):
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "weights.pt")
    with injecting() as injected:
        torch.load(tmp_path / "weights.pt")
    assert injected.notes == []


def test_a_sidecar_that_cannot_be_written_does_not_stop_the_script(tmp_path):
    sidecar_of(tmp_path / "last.pt").mkdir()
    with injecting() as injected:
        torch.save(checkpoint(), tmp_path / "last.pt")
    assert (tmp_path / "last.pt").exists()
    assert injected.notes[0].startswith("the loss scale was not kept")


@pytest.mark.parametrize("state", [DynamicLossScale(scale=2.0**-3, num_overflows=1), StaticLossScale(scale=8.0)])
def test_what_is_written_is_read_back(tmp_path, state):
    write_sidecar(tmp_path / "a.json", state)
    assert read_sidecar(tmp_path / "a.json") == state
    assert json.loads((tmp_path / "a.json").read_text())["version"] == 1


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        ({"a": {"optimizers": [{"state": {}, "param_groups": []}]}}, True),
        ([1, ({"state": {}, "param_groups": []},)], True),
        ({"state": 1}, False),
        (torch.ones(2), False),
    ],
)
def test_what_holds_an_optimizers_state(obj, expected):
    assert holds_optimizer_state(obj) is expected
    assert holds_optimizer_state(torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1))
