"""Tables of README.md and pages of docs/catalogue, written by `python tools/docs.py`."""
