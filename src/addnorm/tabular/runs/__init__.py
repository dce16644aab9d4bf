"""Run folders of searches and of fits in parts."""
