"""The commands, by what they are about.

What they do is imported when they are called: a refused command line has not loaded gRPC.
"""
