"""Tests of weights that processes share."""
