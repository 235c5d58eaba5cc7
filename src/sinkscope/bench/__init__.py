"""How fast it is: `sinkscope bench`."""
