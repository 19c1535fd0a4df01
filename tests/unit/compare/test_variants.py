import pytest

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.compare.variants import FP32, Variant, parse_variants


def test_names_are_kept_as_written_and_aliases_resolved():
    assert parse_variants("fp32, auto ,half+compile") == (
        FP32,
        Variant(name="auto", precision="auto"),
        Variant(name="half+compile", precision="fp16", compile=True),
    )


def test_only_plain_fp32_is_the_reference():
    plain, compiled, auto = parse_variants("float32,fp32+compile,auto")
    assert (plain.is_fp32, compiled.is_fp32, auto.is_fp32) == (True, False, False)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("fp32,bf61", ['"bf61" is not a precision; did you mean "bf16"?', "auto"]),
        ("bf61,fp61", ['"bf61"', '"fp61"']),
        ("fp32+compil", ['"compil" is not a known addition; did you mean "compile"?']),
        ("", ["a name is missing"]),
        ("fp32,,auto", ["a name is missing", "fp32,auto"]),
        ("bf16,bf16", ["bf16; name each variant once", "--repeat"]),
        ("fp16,half", ["fp16 and half are the same"]),
    ],
)
def test_a_mistake_is_named_with_what_to_do(text, parts):
    with pytest.raises(UsageError) as refused:
        parse_variants(text)
    assert str(refused.value).startswith("--precision: ")
    for part in parts:
        assert part in str(refused.value)


def test_a_format_without_autocast_cannot_run():
    with pytest.raises(CannotRunError, match="fp8_e4m3"):
        parse_variants("fp32,fp8_e4m3")


def test_a_precision_with_and_without_compile_are_two_variants():
    assert len(parse_variants("bf16,bf16+compile")) == 2


def test_a_plan_is_a_variant(tmp_path):
    path = tmp_path / "Plan.toml"
    path.write_text('version = 1\ndefault = "fp16"\n[[rule]]\nmodule = "wo"\ncompute = "fp32"\n')
    plain, planned, compiled, preset = parse_variants(f"fp16,{path},{path}+compile,t5")
    assert plain.plan is None
    assert (planned.precision, planned.compile, planned.plan.rules[0].module) == ("fp16", False, "wo")
    assert compiled.compile
    assert preset.plan.rules
    assert not preset.is_fp32
    with pytest.raises(UsageError, match=r"nope\.toml does not exist"):
        parse_variants("fp32,nope.toml")


def test_what_is_emulated_stands_behind_the_precisions_and_is_named_so():
    assert parse_variants("fp32,fp16", emulate="half, fp8+compile") == (
        FP32,
        Variant(name="fp16", precision="fp16"),
        Variant(name="emulated fp16", precision="fp16", emulate="fp16"),
        Variant(name="emulated fp8_e4m3+compile", precision="fp8_e4m3", compile=True, emulate="fp8_e4m3"),
    )


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("int8", '--emulate: "int8" is an integer format'),
        ("fp32", "--emulate: fp32 needs no emulation"),
        ("fp16+fast", '"fast" is not a known addition'),
        ("fp16,,tf32", "write them with commas between, as in fp16,fp8"),
        ("fp16,half", "--emulate: emulated fp16; name each variant once"),
    ],
)
def test_a_mistake_in_what_is_emulated_is_named(text, part):
    with pytest.raises(UsageError) as refused:
        parse_variants("fp32", emulate=text)
    assert part in str(refused.value)


def test_mistakes_of_both_options_are_told_at_once():
    with pytest.raises(UsageError, match=r'--precision: "bf61".*; --emulate: "fp17"'):
        parse_variants("bf61", emulate="fp17")
