"""The way into the interpreter, into the script and into torch."""
