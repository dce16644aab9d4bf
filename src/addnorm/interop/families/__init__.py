"""Supported model families of transformers, registered by importing the modules."""
