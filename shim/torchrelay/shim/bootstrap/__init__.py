"""The way into the interpreter, into the script and into torch: what is hooked when, before the script notices.

What a hook then does belongs to the folder of its subject. Only `runtime` and what lies above it may import it.
"""
