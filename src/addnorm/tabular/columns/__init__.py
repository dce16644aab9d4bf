"""Columns of a table: type inference, parsing, and encoding as model features."""
