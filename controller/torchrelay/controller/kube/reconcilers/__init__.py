"""Make and change objects of the cluster until they are as the jobs need them, one file a kind of object."""
