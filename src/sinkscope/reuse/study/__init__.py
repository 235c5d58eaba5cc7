"""What a study shows of approximate steps: above `sinkscope.report`, and reached through `sinkscope.study.plugged` alone."""
