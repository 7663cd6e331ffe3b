"""What people and programs are shown: sentences, tables, live lines, JSON."""
