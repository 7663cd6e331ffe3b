"""Set-up, recorded in a rank and given again in a joiner: files, time, random numbers, stores, output.

Only `saves` and `replicas`, and what lies above them, may import it.
"""
