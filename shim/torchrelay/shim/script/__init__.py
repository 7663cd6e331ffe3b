"""Where the script of the user and torchrelay meet: which code was rewritten, whose exception it is, what a user sees of us.

Only `adapters` and what lies above them may import it.
"""
