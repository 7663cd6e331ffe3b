"""Set-up, recorded in a rank and given again in a joiner: files, time, random numbers, stores, output."""
