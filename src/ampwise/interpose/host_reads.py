"""Rows for what brings a tensor's numbers to the host without an operator that could be watched, and for waits."""

from ampwise.interpose.row import Row

TO_CPU = Row(
    name="torch.Tensor.cpu",
    owner="torch:Tensor",
    attribute="cpu",
    why="a copy to the host waits for a GPU; of a tensor that is on the CPU already no operator runs to be seen",
)
TO = Row(
    name="torch.Tensor.to",
    owner="torch:Tensor",
    attribute="to",
    why='`.to("cpu")` waits for a GPU as `.cpu()` does',
)
TO_LIST = Row(
    name="torch.Tensor.tolist",
    owner="torch:Tensor",
    attribute="tolist",
    why="a list of a tensor's numbers waits for a GPU; on a CPU no operator runs to be seen",
)
REPR = Row(
    name="torch.Tensor.__repr__",
    owner="torch:Tensor",
    attribute="__repr__",
    why="printing a tensor waits for a GPU several times, with every watcher of operators switched off",
)
SYNCHRONIZE = Row(
    name="torch.cuda.synchronize",
    owner="torch.cuda",
    attribute="synchronize",
    why="it waits for the device, and is no operator",
)
SHOW_WARNING = Row(
    name="warnings.showwarning",
    owner="warnings",
    attribute="showwarning",
    why="CUDA's sync debug mode tells of a wait by a warning, which is not for the script's reader",
)
EMPTY_CACHE = Row(
    name="torch.cuda.empty_cache",
    owner="torch.cuda",
    attribute="empty_cache",
    why="memory handed back in the loop must be asked for again, which waits for the device each time",
)
