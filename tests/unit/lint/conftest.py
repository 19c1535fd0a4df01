import textwrap

import pytest

from ampwise.lint.source import SourceFile
from ampwise.lint.text import SourceText


@pytest.fixture
def parse():
    """Make a SourceFile of a piece of text."""

    def make(source, **options):
        return SourceFile("train.py", SourceText(textwrap.dedent(source).lstrip("\n").encode()), **options)

    return make
