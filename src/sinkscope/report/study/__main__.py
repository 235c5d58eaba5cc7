"""`python -m sinkscope.report.study FOLDER`: writes the report of a finished study again."""

from __future__ import annotations

import sys

from sinkscope.errors import plainly
from sinkscope.report.study import write_report


def main(arguments: list[str]) -> None:
    """Prints the report's path, or ends the program with one line of what is wrong."""
    if len(arguments) != 1:
        sys.exit("usage: python -m sinkscope.report.study FOLDER")
    with plainly():
        print(write_report(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
