"""Run the command line with `python -m dpmcl`."""

from dpmcl.cli import main

main()
