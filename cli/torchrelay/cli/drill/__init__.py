"""`torchrelay drill`: faults in a training script that nobody here wrote, and whether it computes the same with them.

As a library: `undisturbed.look` runs a script with torchrun and torchrelay, `practice.strike` strikes it with faults.
"""
