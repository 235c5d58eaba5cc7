"""Generating and replaying: loops, policies and recording put together."""
