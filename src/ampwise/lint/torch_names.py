"""torch's names that kinds are told from, and the names that people give to their variables."""

import re
from typing import Final

SCALERS: Final = frozenset({
    "torch.amp.GradScaler",
    "torch.cuda.amp.GradScaler",
    "torch.cpu.amp.GradScaler",
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
})  # fmt: skip
AUTOCASTS: Final = frozenset({
    "torch.autocast",
    "torch.amp.autocast",
    "torch.cuda.amp.autocast",
    "torch.cpu.amp.autocast",
})  # fmt: skip
NO_GRADS: Final = frozenset({"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad"})
HALVES: Final = frozenset({"torch.float16", "torch.half", "torch.HalfTensor", "torch.cuda.HalfTensor"})

MODULE_METHODS: Final = frozenset("to cuda cpu half float double bfloat16 train eval requires_grad_ apply".split())
"""Methods that return their module."""
TO_NUMBER: Final = frozenset("item tolist numpy size dim numel nelement stride get_device data_ptr keys".split())
"""Methods of a tensor that return no tensor."""
NUMBER_ATTRIBUTES: Final = frozenset("shape dtype device ndim itemsize requires_grad is_cuda layout names".split())
SAME_DEVICE: Final = frozenset("data grad T mT H real imag values indices logits loss".split())
"""Attributes of a tensor, or of a model's output, that are tensors on the same device."""
CREATORS: Final = frozenset(
    "tensor as_tensor from_numpy randn rand zeros ones full empty arange linspace eye randint randperm normal Tensor "
    "FloatTensor LongTensor HalfTensor BoolTensor ByteTensor tril_indices hann_window".split()
)
"""Functions of torch that make a tensor from nothing, on the CPU unless told otherwise."""
PYTHON: Final = frozenset(
    "int float bool str len range round hash id type isinstance issubclass repr format sorted list dict set tuple abs "
    "enumerate zip open print input getattr hasattr any all".split()
)
"""Built-in functions that return no tensor."""
CONTAINERS: Final = frozenset(
    "list dict set tuple collections.defaultdict collections.deque collections.Counter".split()
)
WRAPPERS: Final = frozenset(
    "torch.compile torch.jit.script torch.nn.DataParallel torch.nn.parallel.DataParallel copy.deepcopy "
    "torch.nn.parallel.DistributedDataParallel torch.distributed.fsdp.FullyShardedDataParallel "
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm".split()
)
"""Functions that return their first argument, wrapped."""

LOSS_CLASS: Final = re.compile(r"\w*Loss$")
PLAIN_DTYPE: Final = re.compile(r"torch\.(b?float\d*|double|int\d*|long|bool|uint8)")
SCALER_WORD: Final = re.compile(r"(grad_?|loss_?|amp_?)?scaler(_\w+)?")
OPTIMIZER_WORD: Final = re.compile(r"(\w+_)?(optimi[sz]er|optim|opt)(_?[a-zA-Z0-9]+)?")
SCHEDULER_WORD: Final = re.compile(r"(\w+_)?(lr_?)?sched(uler?)?s?([A-Z]\w*|\d*)(_\w+)?")
LOADER_WORD: Final = re.compile(r"(\w+_)?(data_?)?(loader|dataloader)(_\w+)?|\w+loader")
LOSS_FUNCTION_WORD: Final = re.compile(r"criterion(_\w+)?|(\w+_)?(loss_fn|loss_func|loss_function)|\w+_criterion")
MODULE_WORD: Final = re.compile(
    r"(?!(get|load|build|create|make|init|setup|set|prepare|save|wrap|define|compile|convert|new|clone|resume)_)"
    r"(\w+_)?(model|net|network|backbone|encoder|decoder|generator|discriminator)(_\w+)?|net[DG]"
)
COUNT_WORD: Final = re.compile(r"(\w+_)?(steps|batches|epochs|iters|iterations|world_size|batch_size|accum)")
LOSS_WORD: Final = re.compile(
    r"(?!\w*_(scale|scaler|mode|type|weights?|w|fn|func|name|names|keys?|coe?f\w*|dict|list|log|logger|meter|history|hist|"
    r"avg|str|config|cfg|alpha|ratio|lambda|interval|freq|file|path|kwargs|args|every|reduction)$)"
    r"(?!(\w+_)?(best|lowest|min|prev|previous|val|valid|validation|test)_)"
    r"((\w+_)?loss(es)?(_\w+)?|loss_?[A-Z]\w*|err[DG])"
)
