"""The version of the package; it is recorded in every trace and result."""

__version__ = "0.1.0"
