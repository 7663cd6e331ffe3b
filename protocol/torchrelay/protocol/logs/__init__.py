"""Lines of logs, the same in every part."""
