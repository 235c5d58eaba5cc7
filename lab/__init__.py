"""The laboratory: what makes what sinkscope ships. Run from the repository root as `python -m lab.NAME`; not in the wheel."""
