"""``python -m ampwise`` and the ``ampwise`` command."""

import sys


def main() -> int:
    """Run the command line, or say how to install what it needs."""
    try:
        from ampwise.cli.main import main as command_line
    except ModuleNotFoundError as error:
        if error.name in {"click", "rich", "jinja2", "plotly"}:
            sys.stderr.write(f"ampwise: the command line needs {error.name}; run: pip install 'ampwise[cli]'\n")
            return 3
        raise
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
