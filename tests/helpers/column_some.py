"""Some of the cases of `column_cases`, each of which takes the interpreter a while.

python -m tests.helpers.column_some cpu|cuda CASE …        prints one JSON line: case → error, limit, …
"""

from __future__ import annotations

import json
import sys

from tests.helpers.column_cases import CASES, RAW, measured, measured_raw

if __name__ == "__main__":
    device, *names = sys.argv[1:]
    found = {case.name: measured(case, device) for case in CASES if case.name in names}
    found |= {case.name: measured_raw(case, device) for case in RAW if case.name in names}
    print(json.dumps(found))
