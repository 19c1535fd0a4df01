"""Where a script imports torch, and where lines that need it can stand at module level."""

import ast
from collections.abc import Iterator

from ampwise.runner.placement.edits import Edits
from ampwise.runner.placement.source import Source, blocks


def torch_name(source: Source) -> str | None:
    """What the script calls torch at module level; None if it does not import it there."""
    for statement in _module_level(source.tree):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if alias.name == "torch":
                    return alias.asname or "torch"
                if alias.name.startswith("torch.") and not alias.asname:
                    return "torch"
    return None


def insert_after_imports(edits: Edits, *lines: str) -> None:
    """Put lines after the imports at the head of the module."""
    body = edits.source.tree.body
    last = _last_import(body)
    if last is not None:
        edits.insert_after(last, "", *lines)
    else:
        edits.insert_before(body[0], *lines)


def import_torch(edits: Edits) -> None:
    """Put ``import torch`` among the script's imports."""
    body = edits.source.tree.body
    imports = [one for one in body if isinstance(one, ast.Import | ast.ImportFrom)]
    plain = [one for one in imports if not (isinstance(one, ast.ImportFrom) and one.module == "__future__")]
    if plain:
        edits.insert_before(plain[0], "import torch")
    elif imports or ast.get_docstring(edits.source.tree, clean=False) is not None:
        edits.insert_after(imports[-1] if imports else body[0], "import torch")
    else:
        edits.insert_before(body[0], "import torch")


def _last_import(body: list[ast.stmt]) -> ast.stmt | None:
    """The last top-level statement that imports, before the first definition or loop."""
    last: ast.stmt | None = None
    for statement in body:
        if isinstance(
            statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.For | ast.While | ast.With
        ):
            break
        if _imports(statement):
            last = statement
    return last


def _imports(statement: ast.stmt) -> bool:
    """Whether ``statement`` imports, or tries to."""
    if isinstance(statement, ast.Try):
        return any(map(_imports, statement.body))
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _module_level(holder: ast.AST) -> Iterator[ast.stmt]:
    """Statements that run when the module does, those in ``if`` and ``try`` included."""
    for block in blocks(holder):
        for statement in block:
            yield statement
            if isinstance(statement, ast.If | ast.Try):
                yield from _module_level(statement)
