"""The benchmark: `sinkscope bench`."""
