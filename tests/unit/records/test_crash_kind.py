"""torch's own messages, as its operators raised them, and those of other crashes."""

from dataclasses import replace

import pytest

from ampwise.records.crash_kind import CrashKind, crash_kind, may_be_numeric
from ampwise.records.run import Failure

MESSAGES = {
    CrashKind.DTYPES: """
expected m1 and m2 to have the same dtype, but got: float != c10::BFloat16
self and mat2 must have the same dtype, but got Float and BFloat16
expected scalar type Float but found Half
Input type (c10::Half) and bias type (float) should be the same
Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same
Index put requires the source and destination dtypes match, got Float for the destination and BFloat16 for the source.
index_add_(): self (Float) and source (BFloat16) must have the same scalar type
scatter(): Expected self.dtype to be equal to src.dtype
masked_scatter: expected self and source to have same dtypes but gotFloat and BFloat16
expected dtype float for `end` but got dtype c10::BFloat16
Expected both inputs to be Half, Float or Double tensors but got Float and BFloat16
mixed dtype (CPU): expect parameter to have scalar type of Float
RNN input dtype (torch.bfloat16) does not match weight dtype (torch.float32).
Float did not match BFloat16
Found dtype Float but expected BFloat16
""",
    CrashKind.NO_KERNEL: """
"cholesky_cpu" not implemented for 'Half'
linalg.inv: Low precision dtypes not supported. Got BFloat16
""",
    CrashKind.TOO_LARGE: """
value cannot be converted to type c10::Half without overflow
value cannot be converted to type at::Half without overflow
""",
    CrashKind.DEVICES: """
Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!
Tensor on device meta is not on the expected device cpu!
""",
    CrashKind.HALF_GRADIENTS: """
Attempting to unscale FP16 gradients.
"_amp_foreach_non_finite_check_and_unscale_cuda" not implemented for 'BFloat16'
""",
    CrashKind.SCALER_ORDER: """
unscale_() has already been called on this optimizer since the last update().
step() has already been called since the last update().
No inf checks were recorded for this optimizer.
Attempted step but _scale is None.  This may indicate your script did not use scaler.scale(loss or outputs)
""",
    CrashKind.UNSAFE_BCE: "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.",
    CrashKind.BAD_PARAM: "cuDNN error: CUDNN_STATUS_BAD_PARAM",
    CrashKind.OUT_OF_MEMORY: """
CUDA out of memory. Tried to allocate 2.00 GiB.
[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.
""",
    CrashKind.OTHER: """
mat1 and mat2 shapes cannot be multiplied (4x8 and 4x8)
Expected tensor for argument #1 'indices' to have one of the following scalar types: Long; but got torch.FloatTensor
expected scalar type Long but found Float
Found dtype Double but expected Float
loss is nan, stopping training
""",
}
CASES = [(kind, line) for kind, text in MESSAGES.items() for line in text.strip().splitlines()]


@pytest.mark.parametrize(("kind", "message"), CASES)
def test_a_message_tells_its_kind(kind, message):
    failure = Failure(kind="RuntimeError", message=message)
    assert crash_kind(failure) is kind
    assert may_be_numeric(failure) is (kind is CrashKind.OTHER)


@pytest.mark.parametrize("name", ["SyntaxError", "ModuleNotFoundError", "FileNotFoundError"])
def test_some_classes_say_that_the_script_cannot_run(name):
    assert crash_kind(Failure(kind=name, message="half of the dtypes")) is CrashKind.NOT_STARTED


def test_what_ampwise_itself_raised_is_its_own_fault_unless_torch_says_why():
    place = "ampwise/runner/session.py:9"
    ours = Failure(kind="TypeError", message="unexpected keyword argument", own_place=place)
    assert crash_kind(ours) is CrashKind.OWN
    assert crash_kind(replace(ours, own_place=None)) is CrashKind.OTHER
    memory = Failure(kind="RuntimeError", message="CUDA out of memory", own_place=place)
    assert crash_kind(memory) is CrashKind.OUT_OF_MEMORY
