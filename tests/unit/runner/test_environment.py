import torch

from ampwise.runner.environment import describe_environment
from ampwise.runner.spec import Malloc


def test_it_names_what_figures_depend_on():
    environment = describe_environment(device="cpu", malloc=Malloc.SYSTEM, environ={})
    assert (environment.device, environment.allocator) == ("cpu", "system")
    assert environment.torch == torch.__version__
    assert environment.num_threads == torch.get_num_threads()
    assert environment.device_name
    assert environment.python.count(".") == 2


def test_a_users_own_allocator_is_named():
    environment = describe_environment(device="cpu", malloc=Malloc.AUTO, environ={"MALLOC_ARENA_MAX": "1"})
    assert environment.allocator == "the user's own (MALLOC_ARENA_MAX)"
