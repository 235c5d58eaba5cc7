"""What the instrument computed on 2026-11-18, as files: moves and rewrites must not change it (see behaviour.py)."""
