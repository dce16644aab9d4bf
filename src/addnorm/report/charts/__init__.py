"""Vega-Lite charts of rows."""
