"""Row for calls of modules. Only a thread's outermost call is seen: the layers within it cost next to nothing."""

from ampwise.interpose.row import Row

MODULE_CALL = Row(
    name="torch.nn.Module.__call__",
    owner="torch.nn.modules.module:Module",
    attribute="__call__",
    why="a cast cache kept longer than a model's call misses changed weights; without one, each use casts",
    obstacle="weight_used_often",
    outermost=True,
)
