"""The commands that ask a running job, or tell it to do something."""
