"""Is something wrong, and whose fault is it: exits, hangs, dead links, silent machines, suspect numbers."""
