"""`python -m dpmcl` is the command line."""

from dpmcl.cli import main

main()
