import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampwise.observe.modules import ModuleNames, ModuleStack, unwrapped


class Block(nn.Module):
    def __init__(self, act=None):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = act or nn.ReLU()

    def forward(self, x):
        return self.act(self.fc(x))


class Net(nn.Module):
    def __init__(self, block=Block):
        super().__init__()
        self.layers = nn.Sequential(block(), block())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.layers(x))


class Paths:
    """Notes the path of every call, when it begins and when it has returned."""

    def __init__(self):
        self.seen = []
        self.outputs = []

    def entered(self, call, _):
        self.seen.append(call)

    def left(self, call, _, output):
        self.outputs.append((call, output))

    @property
    def paths(self):
        return [call.name.path if call.name else None for call in self.seen]


@pytest.fixture
def paths():
    return Paths()


X = torch.ones(2, 4)


def test_paths_are_those_of_named_modules(paths):
    model = Net()
    with ModuleStack(listeners=(paths,)):
        model(X)
    assert paths.paths == [name for name, _ in model.named_modules()]
    assert [call.module for call, _ in paths.outputs][-1] is model


def test_a_loss_function_is_no_second_model(paths):
    model, criterion = Net(), nn.MSELoss()
    with ModuleStack(listeners=(paths,)):
        criterion(model(X), torch.zeros(2, 2))
    assert paths.paths[0] == ""
    assert paths.paths[-1] == "criterion"


def test_several_models_are_named_by_their_variables(paths):
    generator, critic = Net(), Net()
    with ModuleStack(listeners=(paths,)):
        generator(X)
        critic(X)
    assert paths.paths[0] == "generator"
    assert paths.paths[6] == "generator.layers.1.fc"
    assert paths.paths[9] == "critic"


def test_the_variable_is_that_of_the_outermost_frame(paths):
    def train(module):
        module(X)

    student, teacher = Net(), Net()
    with ModuleStack(listeners=(paths,)):
        train(student)
        train(teacher)
    assert {"student", "teacher"} <= set(paths.paths)


def test_a_trainers_attribute_names_a_model(paths):
    class Trainer:
        def __init__(self):
            self.actor, self.critic = Net(), Net()

        def fit(self):
            self.actor(X)
            self.critic(X)

    with ModuleStack(listeners=(paths,)):
        Trainer().fit()
    assert {"actor", "critic.head"} <= set(paths.paths)


def test_what_no_variable_holds_is_named_by_its_class(paths):
    models = [Net(), Net()]
    with ModuleStack(listeners=(paths,)):
        for one in range(2):
            models[one](X)
    assert {"Net0", "Net1.head"} <= set(paths.paths)


def test_parts_called_one_by_one_belong_to_the_module_that_holds_them(paths):
    class Lit(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = Block(), nn.Linear(4, 2)

        def training_step(self, x):
            return self.decoder(self.encoder(x))

    lit = Lit()
    with ModuleStack(listeners=(paths,)):
        lit.training_step(X)
    assert paths.paths == ["encoder", "encoder.fc", "encoder.act", "decoder"]


def test_a_model_met_part_first_is_renamed_as_a_whole():
    names = ModuleNames()
    parts = [Net()]
    part = names.name_of(parts[0].layers)
    assert part.path == ""
    names.add_root(parts[0], name="whole")
    assert part.path == "layers"
    assert names.name_of(parts[0].layers) is part
    assert names.name_of(parts[0]).path == ""


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_a_wrapper_bears_its_models_name(wrap, paths):
    net = Net()
    model = wrap(net)
    names = ModuleNames()
    assert names.name_of(model).path == ""
    assert names.name_of(net.layers[0]).path == "layers.0"
    assert unwrapped(model) is net
    other = Net()
    names.name_of(other)
    assert names.name_of(net).path == "net"


def test_replicas_are_the_module_they_were_made_of():
    model = Net()
    names = ModuleNames()
    names.name_of(model)
    replica = model.layers[0]._replicate_for_data_parallel()
    assert names.name_of(replica).path == "layers.0"


def test_a_shared_module_has_its_first_path_and_each_call_is_seen(paths):
    act = nn.Tanh()
    model = Net(lambda: Block(act))
    with ModuleStack(listeners=(paths,)):
        model(X)
    assert paths.paths.count("layers.0.act") == 2


def test_a_module_made_during_a_call_stands_for_its_caller(paths):
    class Odd(nn.Module):
        def forward(self, x):
            return nn.ReLU()(x)

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.odd = Odd()

        def forward(self, x):
            return self.odd(x)

    model = Holder()
    with ModuleStack(listeners=(paths,)):
        model(X)
    assert paths.paths == ["", "odd", "odd"]


def test_a_module_added_later_gets_its_path(paths):
    model = Net()
    with ModuleStack(listeners=(paths,)):
        model(X)
        model.layers.append(Block())
        model(X)
    assert "layers.2.fc" in paths.paths


def test_after_an_exception_the_stack_is_as_before():
    class Breaks(nn.Module):
        def forward(self, _):
            raise RuntimeError("broken")

    class Catches(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Breaks()

        def forward(self, x):
            with pytest.raises(RuntimeError):
                self.inner(x)
            found.append(stack.name.path)
            return x

    found, model, told = [], Catches(), Paths()
    with ModuleStack(listeners=(told,)) as stack:
        model(X)
        assert stack.call is None
    assert found == [""]
    assert [call.name.path for call, _ in told.outputs] == [""]


def test_an_interrupt_leaves_a_stack_that_can_be_cleared():
    class Interrupts(nn.Module):
        def forward(self, _):
            raise KeyboardInterrupt

    with ModuleStack() as stack:
        with pytest.raises(KeyboardInterrupt):
            Interrupts()(X)
        stack.clear()
        assert stack.calls == ()


def test_recomputation_is_marked(paths):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False)

    model = Checkpointed()
    with ModuleStack(listeners=(paths,)) as stack:
        model(X).sum().backward()
        assert stack.calls == ()
    recomputed = [call.is_recompute for call in paths.seen if call.name.path == "block.fc"]
    assert recomputed == [False, True]


def test_each_thread_has_its_own_stack():
    model, found = Net(), []
    with ModuleStack() as stack:

        def ask():
            found.append(stack.calls)

        def hook(*_):
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()

        handle = model.head.register_forward_hook(hook)
        model(X)
        handle.remove()
    assert found == [()]


@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiled_code_stays_whole(fullgraph, paths):
    model = Net()
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)
    with ModuleStack(listeners=(paths,)):
        compiled(X)
        assert compiled(X).shape == (2, 2)
    assert set(paths.paths) <= {""}


def test_a_stack_may_be_entered_twice_and_leaves_nothing():
    model, told = Net(), Paths()
    stack = ModuleStack(listeners=(told,))
    with stack:
        with stack:
            model(X)
        model(X)
    model(X)
    assert len(told.seen) == 2 * 9


def test_nothing_is_kept_alive():
    model = Net()
    stack = ModuleStack()
    with stack:
        model(X)
        reference = weakref.ref(model)
        del model
        gc.collect()
        assert reference() is None


def test_a_scripted_module_is_seen_as_one(paths):
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 2)))
    with ModuleStack(listeners=(paths,)):
        model(X)
    assert paths.paths == [""]
