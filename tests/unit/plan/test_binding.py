import pytest

from ampwise.plan.binding import gathered, has_place, idle_in_words, misfits
from ampwise.plan.plan import Plan, Rule
from ampwise.plan.presets import presets

MODEL = {"": ["", "layers", "layers.0", "layers.0.wi", "layers.0.wo", "layers.1", "layers.1.wo", "head"]}
GAN = {"generator": ["", "conv"], "critic": ["", "conv", "fc"]}


def plan(*rules):
    return Plan(default="fp16", rules=rules)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("layers.*.w0", 'rules[0].module: "layers.*.w0" matches no module; did you mean "layers.*.wo"?'),
        ("*.wwo", 'rules[0].module: "*.wwo" matches no module; did you mean "*.wo"?'),
        ("re:haed", 'rules[0].module: "re:haed" matches no module; did you mean "head"?'),
        ("xylophone", 'rules[0].module: "xylophone" matches no module'),
    ],
)
def test_a_rule_that_matches_no_module_names_the_nearest(module, said):
    assert misfits(plan(Rule(module=module, compute="fp32")), MODEL) == (said,)


def test_a_root_is_matched_by_its_name():
    assert misfits(plan(Rule(module="critic.*", compute="fp32"), Rule(module="generator", compute="bf16")), GAN) == ()
    (said,) = misfits(plan(Rule(module="crittic", compute="fp32")), GAN)
    assert said.endswith('did you mean "critic"?')


def test_a_rule_that_is_overruled_everywhere_names_those_that_overrule_it():
    wo = Rule(module="layers.*.wo", compute="fp32")
    (said,) = misfits(plan(wo, Rule(module="layers", compute="bf16")), MODEL)
    assert said == "rules[0]: layers.*.wo never decides: rules[1] (layers) below it holds there"
    parts = [Rule(module="layers.0", compute="bf16"), Rule(module="layers.1", compute="bf16")]
    (said,) = misfits(plan(wo, *parts), MODEL)
    assert said == (
        "rules[0]: layers.*.wo never decides: rules[1] (layers.0) and rules[2] (layers.1) below it hold there"
    )
    assert misfits(plan(wo, parts[0]), MODEL) == ()


def test_a_rule_that_is_overruled_by_the_same_formats_has_lost_nothing():
    wo = Rule(module="layers.*.wo", compute="fp32")
    assert misfits(plan(wo, Rule(module="layers", compute="fp32")), MODEL) == ()
    assert misfits(plan(Rule(op="rms_norm", compute="fp32"), Rule(op="norm", compute="fp32")), MODEL) == ()
    softmax = Rule(op="softmax", module="layers.*", compute="bf16")  # which the lists have in fp32 in that region
    (said,) = misfits(plan(softmax, Rule(module="layers", compute="bf16")), MODEL)
    assert "never decides" in said


def test_what_a_preset_has_for_other_models_is_no_misfit_and_said_in_one_line():
    safe = presets()["fp16-safe"].plan
    assert misfits(safe, MODEL) == ()
    assert idle_in_words(safe, MODEL) == (
        '"*rotary*", "*.router", "*.gate", "*norm*", "*.vae": a preset has these rules for other models'
    )
    assert idle_in_words(plan(Rule(module="xylophone", compute="fp32")), MODEL) is None
    assert has_place(safe, MODEL)
    assert not has_place(presets()["moe"].plan, MODEL)
    assert has_place(plan(), MODEL)


def test_rules_that_resemble_nothing_share_a_sentence():
    rules = [Rule(module=name, compute="fp32") for name in ("xylophone", "layers.*.w0", "zither")]
    near, rest = gathered(misfits(plan(*rules), MODEL), MODEL[""])
    assert near.endswith('did you mean "layers.*.wo"?')
    assert rest == 'rules on "xylophone", "zither": no module is called so (the model\'s begin with layers, head)'


def test_operators_count_in_what_decides():
    softmax, norm = Rule(op="softmax", compute="fp32"), Rule(op="norm", compute="fp32")
    assert misfits(plan(softmax, Rule(module="head", compute="bf16")), MODEL) == ()
    assert misfits(plan(softmax, norm), MODEL, operators=["softmax", "layer_norm"]) == ()
    (said,) = misfits(plan(softmax, norm), MODEL, operators=["softmax", "linear"])
    assert said == 'rules[1].op: "norm" is called nowhere in the model'


def test_every_misfit_is_named_at_once():
    rules = (
        Rule(module="a", compute="fp32"),
        Rule(module="layers.0", compute="fp32"),
        Rule(module="b", compute="fp32"),
    )
    assert [text[:8] for text in misfits(plan(*rules), MODEL)] == ["rules[0]", "rules[2]"]


@pytest.mark.parametrize("path", ["layers.0.wo", "layers.0.ff.wo"])
def test_a_misspelt_last_word_is_found_below_numbers(path):
    plan = Plan(default="fp16", rules=(Rule(module="layers.*.w0", compute="fp32"),))
    parents = ["", "layers", "layers.0", "layers.1", path.rpartition(".")[0]]
    (text,) = misfits(plan, {"": [*parents, path, path.replace("0", "1", 1)]})
    assert "layers.*" in text.partition("did you mean")[2]
    assert ".wo" in text.partition("did you mean")[2]
