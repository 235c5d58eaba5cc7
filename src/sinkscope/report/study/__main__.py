"""`python -m sinkscope.report.study FOLDER`: writes the report of a finished study again."""

from __future__ import annotations

import sys

from sinkscope.errors import InputError
from sinkscope.report.study import write_report


def main(arguments: list[str]) -> int:
    """Exit code 0, or 2 with one line of what is wrong."""
    if len(arguments) != 1:
        print("usage: python -m sinkscope.report.study FOLDER", file=sys.stderr)
        return 2
    try:
        print(write_report(arguments[0]))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
