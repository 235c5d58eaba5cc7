"""What the command line does, one file per command; `cli.py` holds only the options."""
