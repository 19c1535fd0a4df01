"""Whatever the source, lint ends without an error; and what it fixes stays fixed."""

import ast
import copy
import json
import random
import textwrap
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampwise.lint.config import Config
from ampwise.lint.engine import check_text, fix_text, lint_file
from ampwise.lint.rule import all_rules
from ampwise.lint.text import SourceText

RULES = all_rules()
EXAMPLES = [
    textwrap.dedent(example.source).lstrip("\n") for rule in RULES for example in (*rule.info.bad, *rule.info.good)
]
WORDS = [
    *"scaler opt loss model self x None True with if else: for in while try: except: return def class lambda".split(),  # noqa: SIM905
    *"await async yield torch.cuda.amp.autocast() scaler.step(opt) scaler.update() loss.backward() 0 1e-8".split(),  # noqa: SIM905
    *'( ) [ ] { } : , . = += == -> @ * ** # \\ \' " """ f\' é ;'.split(),  # noqa: SIM905
    *("\t", "\r", "\x0c", "\n", "\n\n", ""),
]


def parses(text):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def edit_text(source, generator):
    """A source with a few lines and words moved, doubled, dropped or replaced."""
    for _ in range(generator.randint(1, 3)):
        lines = source.split("\n")
        number = generator.randrange(len(lines))
        match generator.randrange(6):
            case 0:
                lines.insert(generator.randrange(len(lines) + 1), lines[number])
            case 1:
                del lines[number]
            case 2:
                lines[number] = " " * generator.choice([0, 2, 4, 8]) + lines[number].strip()
            case 3:
                position = generator.randint(0, len(lines[number]))
                lines[number] = lines[number][:position] + generator.choice(WORDS) + lines[number][position:]
            case 4:
                words = lines[number].split(" ")
                words[generator.randrange(len(words))] = generator.choice(WORDS)
                lines[number] = " ".join(words)
            case _:
                name, new = generator.choice(WORDS), generator.choice(WORDS)
                lines = "\n".join(lines).replace(name, new, 2).split("\n")
        source = "\n".join(lines)
    return source


def graft(source, generator):
    """A source in which statements and expressions are put in the place of others; it nearly always parses."""
    tree = ast.parse(source)
    donors = list(ast.walk(ast.parse(generator.choice(EXAMPLES))))
    for _ in range(generator.randint(1, 6)):
        parent = generator.choice(list(ast.walk(tree)))
        fields = [(name, value) for name, value in ast.iter_fields(parent) if isinstance(value, (ast.expr, list))]
        if not fields:
            continue
        name, value = generator.choice(fields)
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            statements = [node for node in donors if isinstance(node, ast.stmt)]
            value[generator.randrange(len(value))] = copy.deepcopy(generator.choice(statements))
        elif isinstance(value, ast.expr) and isinstance(getattr(value, "ctx", ast.Load()), ast.Load):
            expressions = [node for node in donors if isinstance(node, ast.expr)]
            setattr(parent, name, copy.deepcopy(generator.choice(expressions)))
    try:
        return ast.unparse(ast.fix_missing_locations(tree))
    except Exception:  # noqa: BLE001 - a graft that cannot be written is none
        return source


def mutate(generator):
    """A mutated example that parses."""
    while True:
        source = generator.choice(EXAMPLES)
        change = generator.choice([edit_text, graft])
        source = change(source, generator)
        if parses(source):
            return source


def hold(source):
    """Assert the laws for one source."""
    if not parses(source):
        return
    text = SourceText(source.encode(), encoding="utf-8")
    found = check_text("a.py", text, RULES)
    assert [one for one in found if one.rule == "MP000"] == []
    if all(one.fix is None for one in found):
        return
    fixed, _, _ = fix_text("a.py", text, RULES, allow_unsafe=True)
    assert parses(fixed.text)
    again, done, _ = fix_text("a.py", fixed, RULES, allow_unsafe=True)
    assert not done
    assert again.text == fixed.text


@pytest.mark.parametrize("seed", range(8))
def test_mutated_sources(seed):
    generator = random.Random(seed)
    for _ in range(25):
        hold(mutate(generator))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_ten_thousand_mutated_sources(seed):
    generator = random.Random(seed)
    for _ in range(500):
        hold(mutate(generator))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from([*WORDS, *(line for source in EXAMPLES for line in source.split("\n"))]), max_size=12))
def test_sources_from_words(words):
    hold("\n".join(words))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200))
def test_files_of_any_bytes(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp()
    for name in ("any.py", "any.ipynb"):
        (folder / name).write_bytes(content)
        report = lint_file(str(folder / name), RULES, Config())
        assert all("\n" not in finding.message for finding in report.findings)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["cells", "source", "cell_type", "metadata", "language_info", "name"]), inner
            )
        ),
        max_leaves=8,
    )
)
def test_notebooks_of_any_json(tmp_path_factory, document):
    path = tmp_path_factory.getbasetemp() / "json.ipynb"
    path.write_text(json.dumps({"cells": document} if not isinstance(document, dict) else document))
    lint_file(str(path), RULES, Config())
