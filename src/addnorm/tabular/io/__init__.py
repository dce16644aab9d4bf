"""Saved estimators: files and their schema."""
