"""Loading of models and example inputs that the command line names by text."""
