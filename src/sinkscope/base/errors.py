"""The errors a person can act on: what was given, what was expected, what to try.

The command line prints these in one line and exits with code 2; anything else is a bug and keeps its stack trace.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SinkscopeError(Exception):
    """Base of every error that sinkscope raises on purpose.

    >>> issubclass(ss.InputError, ss.SinkscopeError), issubclass(ss.CheckpointError, ss.SinkscopeError)
    (True, True)
    """


class InputError(SinkscopeError, ValueError):
    """A value, option or combination that cannot work, with the fix in the message.

    >>> try:
    ...     ss.parse_policy("tap:1")
    ... except ss.InputError as error:
    ...     print("top" in str(error))    # the message suggests what was meant
    True
    """


class CheckpointError(SinkscopeError, ValueError):
    """A checkpoint that cannot be found or read, or that is not what it says it is.

    >>> import tempfile
    >>> try:
    ...     ss.load(tempfile.mkdtemp())
    ... except ss.CheckpointError:
    ...     print("an empty folder is no checkpoint")
    an empty folder is no checkpoint
    """


def nearest(name: str, known: Iterable[str], most: int = 3, listing: bool = False) -> str:
    """A half sentence that names the known words nearest to `name`, or all of them when none is near; listing: also all of them.

    >>> nearest("entrpy", ["entropy", "origin"])
    'did you mean entropy?'
    """
    words = sorted(known)
    lowered = {word.lower(): word for word in words}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=most, cutoff=0.5)
    guess = f"did you mean {' or '.join(lowered[word] for word in close)}?" if close else ""
    listed = f"known are {', '.join(words)}" if listing or not close else ""
    return f"{guess} {listed}".strip()
