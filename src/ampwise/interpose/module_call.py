"""Row for calls of modules. Only a thread's outermost call is seen: the layers within it cost next to nothing."""

from ampwise.interpose.row import Row

MODULE_CALL = Row(
    name="torch.nn.Module.__call__",
    owner="torch.nn.modules.module:Module",
    attribute="__call__",
    why="the cast cache may live no longer than a model's call: weights changed outside an optimizer would not be seen",
    obstacle="stale_cache",
    outermost=True,
)
