"""The command line, the only reader of flags. Commands import slow modules themselves."""

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
    """Run the command line.

    An error of the package or the machine is printed as one line, and the exit status is 2. The
    status is 1 if the reader of standard output has closed it.
    """
    open_streams()
    status, line = 2, ""
    try:
        try:
            sys.path.append(str(Path.cwd()))  # so that `module:Name` finds the user's own files
            with logged_lines():
                app()
        finally:
            sys.stdout.flush()  # here, so that a failure is handled below, not at exit
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
