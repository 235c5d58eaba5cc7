"""`python -m sinkscope`: the command line, for a shell that does not find `sinkscope`."""

from sinkscope.cli import main

main()
