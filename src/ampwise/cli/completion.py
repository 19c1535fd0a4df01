"""What a shell is offered after Tab: files, precisions, devices, rules; nothing here imports torch."""

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell's own completion of files."""
    del ctx, param
    return [CompletionItem(incomplete, type="file")]


def complete_precisions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """``auto`` and the presets; behind a comma the next one."""
    del ctx, param
    from ampwise.plan.presets import presets

    return _next(incomplete, ["auto", *presets()])


def complete_plans(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The presets that begin so; where none does, files."""
    from ampwise.plan.presets import presets

    names = [CompletionItem(name) for name in _next(incomplete, presets())]
    return names or complete_files(ctx, param, incomplete)


def complete_devices(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The GPUs of the table."""
    del ctx, param
    from ampwise.formats.hardware import GPUS

    return _next(incomplete, GPUS)


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """What ``explain`` explains by name: formats, operators and rules."""
    del ctx, param
    from ampwise.cli.rule_text import rule_ids
    from ampwise.formats.table import FORMATS

    return _next(incomplete, [*FORMATS, *rule_ids()])


def _next(incomplete: str, names: Iterable[str]) -> list[str]:
    """The names that go on as what was typed behind the last comma does, with what stands before it."""
    before, comma, typed = incomplete.rpartition(",")
    return [before + comma + name for name in names if name.lower().startswith(typed.lower())]
