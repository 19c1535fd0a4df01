"""Row for the copies that DataParallel makes of a model for each of its devices, once a forward pass."""

from ampwise.interpose.row import Row

REPLICATE = Row(
    name="torch.nn.Module.replicate_for_data_parallel",
    owner="torch.nn.modules.module:Module",
    attribute="_replicate_for_data_parallel",
    why="a copy of a module shares its attributes, so a forward bound to the module would compute with its weights",
)
