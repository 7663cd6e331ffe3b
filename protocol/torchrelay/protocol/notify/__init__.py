"""Messages to a webhook about what a person wants to hear of a job: which, their words, how they go out.

For the command of a run, and for the controller of a cluster.
"""
