"""The command line: the only reader of flags. Heavy imports happen inside the commands."""

import sys
from contextlib import suppress
from pathlib import Path

import typer

from dpmcl.cli import learner, results, run, show, study
from dpmcl.cli.options import app
from dpmcl.cli.terminal import abandon_output, logged_lines, open_streams
from dpmcl.exceptions import DpmclError

__all__ = ["app", "learner", "main", "results", "run", "show", "study"]


def main() -> None:
    """Run the command line; an error of the package's own, or of the machine, is one line.

    The status is 2 then; 1 where nobody reads the output any more.
    """
    open_streams()
    status, line = 2, ""
    try:
        try:
            sys.path.append(str(Path.cwd()))  # so that `module:Name` finds the user's own files
            with logged_lines():
                app()
        finally:
            sys.stdout.flush()  # a failure after this would be the interpreter's own affair
    except DpmclError as error:
        line = str(error)
    except BrokenPipeError:
        status = 1
    except MemoryError:
        line = "This needs more memory than there is."
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        line = f"{path}reading or writing failed ({error.strerror or error})."
    with suppress(OSError):
        typer.echo(f"dpmcl: {line}" * bool(line), err=True, nl=bool(line))
    abandon_output()
    sys.exit(status)
