"""Where the user's script and torchrelay meet: which code was rewritten, whose exception it is, what a user sees of us."""
