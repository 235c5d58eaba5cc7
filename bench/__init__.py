"""The benchmark suite, run from a checkout: `python -m bench`."""
