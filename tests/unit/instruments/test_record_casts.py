import torch

import ampwise
from ampwise.observe.events import BUS
from ampwise.observe.loop import LoopWatcher


def train(model, optimizer, num_steps):
    for _ in range(num_steps):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(2, 4)).float().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_loop_of_ones_own_is_recorded_from_the_first_step():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampwise.record_casts() as casts:
        train(model, optimizer, 2)
    train(model, optimizer, 1)
    record = casts.record
    assert record.steps == (0, 1)
    products = [call for call in record.calls if call.site.op == "aten.addmm"]
    assert [(call.dtype, call.count) for call in products] == [("bf16", 2)]


def test_within_a_loop_that_is_watched_already_no_step_counts_twice():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with LoopWatcher(BUS, has_optimizer=True), ampwise.record_casts() as casts:
        train(model, optimizer, 2)
    assert casts.record.steps == (0, 1)


def test_train_steps_are_steps():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = ampwise.TrainStep(optimizer, precision="bf16")
    with ampwise.record_casts() as casts:
        for _ in range(2):
            with step.autocast():
                loss = model(torch.ones(2, 4)).float().sum()
            step(loss)
    assert casts.record.steps == (0, 1)
    assert {call.dtype for call in casts.record.calls if call.site.op == "aten.addmm"} == {"bf16"}
