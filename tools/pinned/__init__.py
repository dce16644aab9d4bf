"""Sections of tests/pins.json and the checksums of `python tools/pins.py --bits`."""
