"""Where loaders, samplers, generators and iterators stand, and what drawing from them has changed."""
