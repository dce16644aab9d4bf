"""TODO tabular/inspection."""
