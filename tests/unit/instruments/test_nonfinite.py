import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampwise.instruments.nonfinite import NonFiniteWatch
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher
from ampwise.records.nonfinite import FoundBy, NonFiniteKind
from ampwise.records.site import Phase
from known_answers import KNOWN_ANSWERS, linear, randn

LOUD = [case for case in KNOWN_ANSWERS if case.op is not None]


def watched(*, trace, steps):
    """Run ``steps`` under the instrument; what the loop raises is raised."""
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), NonFiniteWatch(bus, trace=trace) as watch:
        for step in steps:
            step()
    return watch.record()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
@pytest.mark.parametrize("case", LOUD, ids=lambda case: case.name)
def test_the_trace_names_the_module_and_the_operator(case, seed):
    training = case.make(seed)
    record = watched(trace=True, steps=[training.step] * 2)
    first = record.first
    assert (first.site.module, first.site.op, first.site.phase) == (case.module, case.op, case.phase)
    assert first.found_by is FoundBy.TRACE
    assert first.step == 0
    assert (first.vanished.op if first.vanished else None) == case.vanished
    assert all(one.num_nan == one.num_infinite == 0 for one in first.inputs)
    assert (0 in record.loss_steps) == (not case.loss_is_finite)
    if case.phase is Phase.FORWARD:
        assert first.site.file.endswith("known_answers.py")


@pytest.mark.parametrize("case", LOUD, ids=lambda case: case.name)
def test_in_fp32_only_what_precision_cannot_fix_remains(case):
    record = watched(trace=True, steps=[case.make(0).in_fp32().step] * 2)
    assert bool(record.origins) == case.fails_in_fp32


@pytest.mark.parametrize("case", LOUD, ids=lambda case: case.name)
def test_the_guard_alone_finds_what_is_not_finite_by_replay(case):
    record = watched(trace=False, steps=[case.make(0).step])
    assert record.traced_steps == ()
    if case.is_hidden:
        assert record.origins == ()  # nothing that is not finite comes out
        return
    first = record.first
    assert first.site.module == case.module
    assert first.found_by is (FoundBy.GUARD if case.phase is Phase.OPTIMIZER else FoundBy.REPLAY)
    assert first.site.op == (None if case.phase is Phase.OPTIMIZER else case.op)


def small(seed=0):
    model = nn.Sequential(linear(seed, 4, 4), nn.ReLU(), linear(seed + 1, 4, 2))
    return model, torch.optim.AdamW(model.parameters()), randn(seed, 3, 4)


def test_a_finite_gradient_of_an_infinite_loss_is_no_vanishing():
    model, optimizer, x = small()

    def step():
        with torch.autocast("cpu", torch.float16):
            hidden = model(x) * 1e8
        loss = nn.functional.cross_entropy(hidden.float(), torch.zeros(3, dtype=torch.long))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    first = watched(trace=True, steps=[step]).first
    assert (first.site.op, first.vanished) == ("aten.mul", None)


@pytest.mark.parametrize("trace", [True, False])
def test_a_healthy_loop_has_no_origin(trace):
    model, optimizer, x = small()

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    record = watched(trace=trace, steps=[step] * 3)
    assert record.origins == ()
    assert record.num_steps == 3
    assert record.loss_steps == record.gradient_steps == record.weight_steps == ()
    assert record.traced_steps == ((0, 1, 2) if trace else ())
    assert record.note is None


def test_watching_changes_no_number():
    def train(trace):
        model, optimizer, x = small()
        losses = []

        def step():
            torch.manual_seed(0)
            loss = nn.functional.dropout(model(x), 0.5).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())

        if trace is None:
            for _ in range(3):
                step()
        else:
            watched(trace=trace, steps=[step] * 3)
        return losses

    assert train(True) == train(None) == train(False)


class Root(nn.Module):
    def forward(self, x):
        return torch.sqrt(x)


class Rooted(nn.Module):
    """Zero is fine for the root, not for its gradient."""

    def __init__(self):
        super().__init__()
        self.fc, self.root = nn.Linear(2, 2, bias=False), Root()

    def forward(self, x):
        return self.root(self.fc(x))


def backward_fault():
    model = Rooted()
    with torch.no_grad():
        model.fc.weight.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        (model(torch.ones(1, 2)).sum() * 1.0).backward()
        optimizer.step()

    return model, step


@pytest.mark.parametrize("trace", [True, False])
def test_a_fault_of_backward_names_the_forward_it_belongs_to(trace):
    _, step = backward_fault()
    first = watched(trace=trace, steps=[step]).first
    assert first.site.phase is Phase.BACKWARD
    assert first.site.module == "root"
    assert first.forward_op == "aten.sqrt"
    assert first.site.op == "aten.div"
    assert first.kind is NonFiniteKind.INF
    assert first.site.where.endswith(f"test_nonfinite.py:{Root.forward.__code__.co_firstlineno + 1}")


def test_recomputation_is_not_counted_twice():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.root = Root()
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            return checkpoint(self.root, self.fc(x), use_reentrant=False)

    model = Checkpointed()
    with torch.no_grad():
        model.fc.weight.zero_()
        model.fc.bias.fill_(-1.0)

    def step():
        model(torch.ones(1, 2)).sum().backward()

    record = watched(trace=True, steps=[step])
    assert [(one.site.module, one.site.op, one.num_seen) for one in record.origins] == [("root", "aten.sqrt", 1)]


def test_masks_are_no_origin():
    model, optimizer, x = small()

    def step():
        scores = model(x)
        mask = torch.full((3, 2), float("-inf")).triu(1)
        scores = (scores + mask).masked_fill(torch.eye(3, 2) == 2, float("-inf"))
        scores.softmax(-1).square().sum().backward()
        optimizer.step()

    assert watched(trace=True, steps=[step]).origins == ()


def test_a_row_that_a_mask_left_nothing_of_is_one():
    model, optimizer, x = small()

    def step():
        model(x).masked_fill(torch.ones(3, 2) > 0, float("-inf")).softmax(-1).sum().backward()
        optimizer.step()

    first = watched(trace=True, steps=[step]).first
    assert first.site.op == "aten._softmax"
    assert first.kind is NonFiniteKind.NAN
    assert first.inputs[0].num_negative_infinite == 6
    assert first.site.phase is Phase.OTHER


@pytest.mark.parametrize(
    ("make", "op"),
    [
        (lambda x: (x.double() * 1e200).float() * 0.5, "aten._to_copy"),
        (lambda x: (x * 1e9).half() * 0.5, "aten._to_copy"),
        (lambda x: (x * 1e30) * 1e30, "aten.mul"),
        (lambda x: (x * 1e30).mul_(1e30), "aten.mul_"),
    ],
    ids=["fp64 to fp32", "fp32 to fp16", "product", "product in place"],
)
def test_operators_that_mostly_keep_numbers_finite_are_looked_at_where_they_may_not(make, op):
    model, optimizer, x = small()

    def step():
        make(model(x)).sum().backward()
        optimizer.step()

    first = watched(trace=True, steps=[step]).first
    assert (first.site.op, first.kind) == (op, NonFiniteKind.INF)


def test_input_ranges_are_told():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([300.0], dtype=torch.float16))

        def forward(self, x):
            return x * self.weight

    model = Product()
    x = torch.tensor([[-2.0, 400.0]], dtype=torch.float16)
    first = watched(trace=True, steps=[lambda: model(x).sum().backward()]).first
    assert [(one.dtype, one.minimum, one.maximum, one.shape) for one in first.inputs] == [
        ("fp16", -2.0, 400.0, (1, 2)),
        ("fp16", 300.0, 300.0, (1,)),
    ]
    assert (first.output.num_infinite, first.output.maximum, first.output.amax) == (1, -600.0, 600.0)


def test_what_was_broken_before_is_nobodys_fault():
    model, optimizer, x = small()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan

    def step():
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert watched(trace=True, steps=[step] * 2).origins == ()


@pytest.mark.parametrize("made", [torch.optim.AdamW, torch.optim.SGD])
def test_a_step_from_bad_data_is_nobodys_fault(made):
    model, _, x = small()
    optimizer = made(model.parameters(), lr=1e-3, weight_decay=0.1)
    data = [x, x.clone().fill_(torch.nan), x]
    given = iter(data)

    def step():
        model(next(given)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    record = watched(trace=True, steps=[step] * len(data))
    assert record.origins == ()
    assert [one.step for one in record.inputs] == [1]
    assert record.weight_steps == (1, 2)


def test_adding_to_a_mask_in_place_is_no_origin_but_to_what_is_finite_again_is():
    model, optimizer, x = small()

    def masked():
        scores = model(x).masked_fill(torch.tensor([True, False]), -math.inf)
        scores += 1.0
        scores.softmax(-1).square().mean().backward()

    def overflowing():
        held = torch.full((3, 2), math.inf)
        held += 1.0
        held.zero_()
        held += 3e38
        held += 3e38
        model(x).square().mean().backward()

    def step(part):
        part()
        optimizer.step()
        optimizer.zero_grad()

    assert watched(trace=True, steps=[lambda: step(masked)]).origins == ()
    (first,) = watched(trace=True, steps=[lambda: step(overflowing)]).origins
    assert (first.site.op, first.inputs) == ("aten.add_", ())


def test_an_alarm_that_replay_does_not_explain_has_the_next_steps_watched():
    model, optimizer, x = small()

    def step():
        (model(x).sum() * 0).log().mul(0).backward()
        optimizer.zero_grad()
        optimizer.step()

    record = watched(trace=False, steps=[step] * 3)
    assert record.replayed_steps[0] == 0
    assert 1 in record.traced_steps
    traced = [one for one in record.origins if one.found_by is FoundBy.TRACE]
    assert (traced[0].site.op, traced[0].step, traced[0].site.phase) == ("aten.log", 1, Phase.OTHER)


def test_replay_draws_the_same_numbers_and_moves_nothing():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn, self.drop, self.root = nn.BatchNorm1d(2), nn.Dropout(0.5), Root()

        def forward(self, x):
            seen.append(self.drop(x))
            return self.root(self.bn(x))

    seen, model = [], Noisy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step():
        model(randn(0, 4, 2)).sum().backward()
        optimizer.step()

    torch.manual_seed(7)
    record = watched(trace=False, steps=[step])
    after = torch.rand(1)
    assert record.replayed_steps == (0,)
    assert torch.equal(seen[0], seen[1])
    assert model.bn.num_batches_tracked == 1
    torch.manual_seed(7)
    nn.functional.dropout(randn(0, 4, 2), 0.5)
    assert torch.equal(after, torch.rand(1))


@pytest.mark.parametrize("trace", [True, False])
def test_compiled_models_are_run_uncompiled_to_be_watched(trace):
    torch.compiler.reset()  # graphs of another test's are no compilation
    model, _ = backward_fault()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        compiled(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    compiled(torch.ones(1, 2))
    record = watched(trace=trace, steps=[step])
    assert (record.first.site.module, record.first.forward_op) == ("root", "aten.sqrt")
    assert record.is_compiled


class Output:
    def __init__(self, x):
        self.logits = x


@pytest.mark.parametrize("give", [lambda x: {"a": [x, None]}, Output, lambda _: None])
@pytest.mark.parametrize("trace", [True, False])
def test_models_may_give_anything(give, trace):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            self.loss = self.fc(x).sum()
            return give(self.loss)

    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(torch.ones(1, 2))
        model.loss.backward()
        optimizer.step()

    record = watched(trace=trace, steps=[step])
    assert (record.num_steps, record.origins, record.note) == (1, (), None)


@pytest.mark.parametrize("trace", [True, False])
def test_nothing_is_left_when_the_loop_raises(trace):
    def step():
        raise RuntimeError("the script's own")

    with pytest.raises(RuntimeError, match="the script's own"):
        watched(trace=trace, steps=[step])


def test_the_cost_is_stated():
    model, optimizer, x = small()

    def step():
        model(x).sum().backward()
        optimizer.step()

    assert watched(trace=False, steps=[step]).guard_ms > 0
    assert watched(trace=True, steps=[step]).trace_ms > 0


class ZeroRoot(nn.Module):
    def forward(self, x):
        return (x * 0).abs().sqrt()


@pytest.mark.parametrize("num_steps", [1, 3])
def test_running_statistics_are_no_obstacle_to_running_a_backward_pass_again(num_steps):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), ZeroRoot(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        model(torch.ones(8, 4)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    record = watched(trace=False, steps=[step] * num_steps)
    assert record.note is None
    assert (record.first.site.module, record.first.forward_op) == ("2", "aten.sqrt")


@pytest.mark.parametrize("trace", [False, True])
def test_modules_that_have_not_seen_their_sizes_yet_are_no_obstacle(trace):
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 1))
    model.unused = nn.ModuleList([nn.LazyLinear(4), nn.LazyBatchNorm1d()])
    model.forward = lambda x: model[2](model[1](model[0](x)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        model(torch.randn(8, 4)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    record = watched(trace=trace, steps=[step] * 2)
    assert (record.num_steps, record.origins, record.buffers) == (2, (), ())
