"""Commands of one file each; those that need more have a folder beside this one."""
