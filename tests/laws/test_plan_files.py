"""A plan survives its file and its short form, and a damaged file never surprises its reader."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampwise._base.errors import PlanError
from ampwise.formats import FORMATS
from ampwise.plan.file import parse_plan
from ampwise.plan.plan import Lists, Plan, Rule, Updates
from ampwise.plan.presets import presets
from ampwise.plan.shorthand import parse_shorthand, to_shorthand
from ampwise.plan.writing import pinned, save_plan, to_toml, update_toml

unhurried = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])

formats = st.sampled_from(sorted(FORMATS))
some_format = st.none() | formats
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
globs = st.sampled_from(
    ["*", "layers.*.wo", "*.attn", r"re:(.*\.)?gate", 'a"b', "a.[!0-9]", "é\n\x7f\\"]
) | text.filter(lambda word: word.removeprefix("re:").strip() and not word.startswith("re:"))
operators = st.sampled_from(["softmax", "F.softmax", "norm", "@", "linear", "mylib::scan"])


@st.composite
def rules(draw):
    module, op = draw(st.none() | globs), draw(st.none() | operators)
    return Rule(
        module=module if module is not None or op is not None else "*",
        op=op,
        compute=draw(formats),
        output=draw(some_format),
        grad=draw(some_format),
        because=draw(st.none() | text),
    )


@st.composite
def plans(draw, max_rules=4):
    parameters = draw(formats)
    low = FORMATS[parameters].storage_bits < 32
    return Plan(
        default=draw(formats),
        rules=tuple(draw(st.lists(rules(), max_size=max_rules, unique_by=lambda rule: rule.selector))),
        output=draw(some_format),
        grad=draw(some_format),
        parameters=parameters,
        updates=draw(st.sampled_from(Updates)) if low else Updates.NEAREST,
        lists=draw(st.sampled_from(Lists)),
        torch=draw(st.none() | st.sampled_from(["2.13", "2.9"])),
    )


@given(plans())
@unhurried
def test_a_plan_survives_its_file(plan):
    assert parse_plan(to_toml(plan)) == plan


@pytest.mark.parametrize("name", presets())
def test_every_preset_survives_its_file(name):
    plan = presets()[name].plan
    assert parse_plan(to_toml(plan)) == plan
    assert parse_plan(to_toml(pinned(plan))) == pinned(plan)


@given(plans(max_rules=0))
@unhurried
def test_a_plan_without_rules_survives_its_short_form(plan):
    back = parse_shorthand(to_shorthand(plan))
    heads = ("default", "parameters", "output", "grad")
    assert [getattr(back, key) for key in heads] == [getattr(plan, key) for key in heads]
    assert to_shorthand(back) == to_shorthand(plan)


@given(plans(), plans())
@unhurried
def test_a_file_rewritten_holds_the_new_plan_and_rewriting_it_again_changes_nothing(old, new):
    rewritten = update_toml(to_toml(old), new)
    assert parse_plan(rewritten) == new
    assert update_toml(rewritten, new) == rewritten


@given(plans())
@unhurried
def test_the_decision_is_the_last_rule_that_holds(plan):
    for module in ("", "layers.0.wo", "enc.attn.gate"):
        for op in (None, "softmax", "layer_norm", "linear"):
            found = plan.resolve(module, op)
            without = [Plan(default=plan.default, rules=(rule,)).resolve(module, op).rule for rule in plan.rules]
            last = max((index for index, rule in enumerate(without) if rule is not None), default=None)
            assert found.index == last


WRITTEN = (
    "# why\nversion = 1\ndefault = 'fp16' # d\nlists = \"cuda\"\n\n"
    "# wo overflows\n[[rule]]\nmodule = 'layers.*.wo' # T5\ncompute = 'fp32'\n\n"
    "# and this\n[[rule]]\nop = \"softmax\"\ncompute = 'bf16'\n# end\n"
)


def test_a_file_with_comments_is_left_as_it_is_where_nothing_changed(tmp_path):
    plan = parse_plan(WRITTEN)
    assert update_toml(WRITTEN, plan) == WRITTEN
    (tmp_path / "plan.toml").write_text(WRITTEN)
    save_plan(plan, tmp_path / "plan.toml")
    assert (tmp_path / "plan.toml").read_text() == WRITTEN


def test_what_is_known_of_a_plan_takes_the_place_of_what_was_known(tmp_path):
    plan, path = parse_plan(WRITTEN), tmp_path / "plan.toml"
    path.write_text(WRITTEN)
    for facts in (("found", "verified: a\nb"), ("found again",), ()):
        save_plan(plan, path, facts=facts)
        text = path.read_text()
        assert text.endswith(WRITTEN)
        assert text.removesuffix(WRITTEN) == "".join(f"#: {fact}\n" for fact in facts).replace("a\nb", "a b")
        assert parse_plan(text) == plan


def test_comments_go_with_their_rules():
    one, two = parse_plan(WRITTEN).rules
    text = update_toml(WRITTEN, Plan(default="bf16", rules=(two, Rule(module="new", compute="fp8"))))
    assert text == (
        '# why\nversion = 1\ndefault = "bf16" # d\nlists = "cuda"\n\n'
        "# and this\n[[rule]]\nop = \"softmax\"\ncompute = 'bf16'\n# end\n\n"
        '[[rule]]\nmodule = "new"\ncompute = "fp8_e4m3"\n'
    )
    assert one.place() == "layers.*.wo"


def test_rules_that_are_written_in_another_form_are_written_anew():
    text = 'version = 1\ndefault = "fp16"\nrule = [{op = "softmax", compute = "fp32"}] # why\n'
    assert update_toml(text, parse_plan(text)) == to_toml(parse_plan(text))
    text = 'version = 1\ndefault = "fp16"\n[[rule]]\nop = "softmax"\ncompute = "fp32"\nbecause = """\n[[rule]]\n"""\n'
    assert parse_plan(update_toml(text, parse_plan(text))) == parse_plan(text)


def test_a_file_that_is_no_plan_is_replaced(tmp_path):
    path = tmp_path / "plan.toml"
    for content in (b"\xff", b"a = ", b"", b"rule = [{op = 'softmax', compute = 'fp32'}]"):
        path.write_bytes(content)
        save_plan(Plan(default="bf16"), path)
        assert parse_plan(path.read_text()) == Plan(default="bf16")


def _reads_or_refuses(content):
    try:
        plan = parse_plan(content)
    except PlanError:
        return
    assert parse_plan(to_toml(plan)) == plan


def test_a_file_cut_or_scrambled_anywhere_is_refused_or_read_as_a_plan():
    chance = random.Random(4)
    for place in range(len(WRITTEN)):
        _reads_or_refuses(WRITTEN[:place])
        _reads_or_refuses(WRITTEN[:place] + chance.choice("\"'[]=#\n\\.*x1 ") + WRITTEN[place + 1 :])


toml_values = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(["version", "include", "default", "rule", "lists", "torch", "updates", "grad"]) | text


@given(st.dictionaries(keys, toml_values, max_size=5), st.dictionaries(st.sampled_from(["module", "op"]), toml_values))
@unhurried
def test_whatever_types_a_file_holds_it_is_read_or_refused(table, rule):
    import tomlkit

    document = {"version": 1, "default": "bf16", **table, "rule": [{"compute": "fp32", **rule}]}
    _reads_or_refuses(tomlkit.dumps(document))
