"""The command line, one file a verb. No file here imports torch before a command needs it."""
