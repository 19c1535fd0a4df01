import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwise.formats.hardware import GPUS
from ampwise.runtime.hardware.decide import MARGIN, decide, describe
from ampwise.runtime.hardware.facts import DeviceFacts, DeviceKind, Measured


def ratios(**by_format):
    return {name: Measured(ratio=ratio, size=1024) for name, ratio in by_format.items()}


def gpu(name, capability, **rest):
    return DeviceFacts(device="cuda:0", kind=DeviceKind.CUDA, name=name, capability=capability, **rest)


def cpu(*instructions, **rest):
    return DeviceFacts(device="cpu", kind=DeviceKind.CPU, name="a CPU", instructions=frozenset(instructions), **rest)


def other(name, **rest):
    return DeviceFacts(device=name.lower(), kind=DeviceKind.OTHER, name=name, **rest)


# what, facts, precision, what the reason must say
CASES = [
    (
        "a CPU that is fast in bf16",
        cpu("avx512_bf16", measured=ratios(bf16=2.6, fp16=0.01)),
        "bf16",
        ["the CPU has avx512_bf16", "run 2.60x as fast in bf16"],
    ),
    (
        "a CPU without bf16 instructions",
        cpu("avx2", measured=ratios(bf16=0.2)),
        "fp32",
        ["reports no bf16 instructions", "take 5.00x as long in bf16"],
    ),
    (
        "a CPU whose bf16 instructions are slow: the probe wins",
        cpu("avx512_bf16", measured=ratios(bf16=0.5)),
        "fp32",
        ["has avx512_bf16", "yet the measurement decides", "2.00x as long"],
    ),
    (
        "a CPU that is fast without saying why: the probe wins",
        cpu(measured=ratios(bf16=1.8)),
        "bf16",
        ["no bf16 instructions", "yet the measurement decides", "1.80x as fast"],
    ),
    (
        "a CPU where bf16 gains less than the casts cost",
        cpu("avx512_bf16", measured=ratios(bf16=1.1)),
        "fp32",
        ["1.10x as fast", "less than the 1.20x"],
    ),
    (
        "a CPU where bf16 cannot be measured",
        cpu("amx_bf16", measured=ratios(fp32=1.0), failed={"bf16": "not implemented"}),
        "fp32",
        ["bf16 could not be measured (not implemented)"],
    ),
    ("H100", gpu("NVIDIA H100", (9, 0), measured=ratios(bf16=8)), "bf16", ["compute capability 9.0", "8.00x as fast"]),
    (
        "an Ampere that measures slow: capability wins",
        gpu("NVIDIA A2", (8, 6), measured=ratios(bf16=0.8)),
        "bf16",
        ["which decides, although", "1.25x as long"],
    ),
    (
        "an Ampere where bf16 cannot be measured",
        gpu("NVIDIA A100", (8, 0), measured=ratios(fp32=1), failed={"bf16": "no kernel image"}),
        "tf32",
        ["has TF32", "no kernel image"],
    ),
    (
        "V100",
        gpu("Tesla V100", (7, 0), measured=ratios(fp16=6.0, bf16=0.5)),
        "fp16",
        ["compute capability 7.0", "none for bf16", "6.00x as fast in fp16", "with loss scaling"],
    ),
    (
        "a T4 on a bad day: capability wins",
        gpu("Tesla T4", (7, 5), measured=ratios(fp16=0.9)),
        "fp16",
        ["which decides, although", "1.11x as long"],
    ),
    ("T4 unmeasured", gpu("Tesla T4", (7, 5), failed={"fp16": "busy"}), "fp32", ["fp16 could not be measured (busy)"]),
    (
        "GTX 1660, however fast",
        gpu("NVIDIA GeForce GTX 1660 Ti", (7, 5), measured=ratios(fp16=1.9)),
        "fp32",
        ["GTX 1660 Ti", "without tensor cores", "NaN"],
    ),
    (
        "a chip of the GTX 16xx under another name, caught in the act",
        gpu("NVIDIA GeForce MX450", (7, 5), measured=ratios(fp16=1.9), wrong_conv="an fp16 convolution gave NaN"),
        "fp32",
        ["MX450", "here an fp16 convolution gave NaN"],
    ),
    (
        "a Turing nobody knows that computes wrong",
        gpu("NVIDIA Something", (7, 5), measured=ratios(fp16=3), wrong_conv="an fp16 convolution was off by 40%"),
        "fp32",
        ["off by 40%"],
    ),
    (
        "P100, fast in fp16: capability wins",
        gpu("Tesla P100", (6, 0), measured=ratios(fp16=1.9)),
        "fp32",
        ["no tensor cores", "although", "1.90x as fast in fp16"],
    ),
    ("GTX 1080", gpu("GTX 1080", (6, 1), measured=ratios(fp16=0.02)), "fp32", ["compute capability 6.1"]),
    ("unreadable", gpu("cuda:0", None), "fp32", ["compute capability of cuda:0 could not be read"]),
    ("M2", other("MPS", measured=ratios(bf16=1.5, fp16=1.6)), "bf16", ["measured on MPS", "1.50x as fast in bf16"]),
    (
        "M1",
        other("MPS", measured=ratios(bf16=0.4, fp16=1.6)),
        "fp16",
        ["1.60x as fast in fp16", "with loss scaling"],
    ),
    (
        "an accelerator that gains nothing",
        other("XPU", measured=ratios(bf16=1.0), failed={"fp16": "unsupported"}),
        "fp32",
        ["1.00x as fast in bf16", "fp16 could not be measured (unsupported)"],
    ),
    (
        "an AMD GPU by its measurement",
        DeviceFacts(device="cuda:0", kind=DeviceKind.ROCM, name="MI210", measured=ratios(bf16=5.0)),
        "bf16",
        ["measured on MI210"],
    ),
    (
        "an AMD GPU with TF32 and nothing measured",
        DeviceFacts(device="cuda:0", kind=DeviceKind.ROCM, name="MI300X", instructions=frozenset({"gfx942"})),
        "tf32",
        ["bf16 could not be measured and fp16 could not be measured"],
    ),
]


@pytest.mark.parametrize(("facts", "precision", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_precision_and_its_reason(facts, precision, words):
    decision = decide(facts)
    assert decision.precision == precision
    for word in words:
        assert word in decision.reason
    assert not decision.reason.endswith(".")


@pytest.mark.parametrize("row", [row for row in GPUS.values() if row.compute_capability], ids=lambda row: row.key)
def test_every_gpu_of_the_table_gets_what_its_tensor_cores_are_for(row):
    best = next((name for name in ("bf16", "fp16") if name in row.tensor_core_formats), "fp32")
    facts = gpu(row.name, row.compute_capability, measured=ratios(bf16=2.0, fp16=2.0))
    assert decide(facts).precision == best


def test_the_measurement_in_words():
    assert describe("bf16", Measured(ratio=2.5, size=512)) == (
        "512 x 512 matrix products run 2.50x as fast in bf16 as in fp32"
    )
    assert describe("fp16", Measured(ratio=0.01, size=256)) == (
        "256 x 256 matrix products take 100.00x as long in fp16 as in fp32"
    )


positive = st.floats(0.001, 1000)


@given(positive, st.booleans())
def test_law_a_cpu_uses_bf16_only_where_it_measured_faster(ratio, has_instructions):
    facts = cpu(*(("avx512_bf16",) if has_instructions else ()), measured=ratios(bf16=ratio))
    assert (decide(facts).precision == "bf16") == (ratio >= MARGIN)


capabilities = st.tuples(st.integers(3, 12), st.integers(0, 9))


@given(capabilities, positive, positive)
def test_law_on_cuda_the_measured_ratio_changes_nothing_but_the_words(capability, fast, slow):
    decisions = [
        decide(gpu("NVIDIA GPU", capability, measured=ratios(bf16=ratio, fp16=ratio))).precision
        for ratio in (fast, slow)
    ]
    expected = "bf16" if capability >= (8, 0) else "fp16" if capability >= (7, 0) else "fp32"
    assert decisions == [expected, expected]
