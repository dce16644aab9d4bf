"""Readers of text files and tables: lines, paragraphs and columns as streams of records."""
