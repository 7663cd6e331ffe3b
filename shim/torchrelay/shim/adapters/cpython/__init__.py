"""Running code of CPython: frames, generators, iterators, built-in functions, threads; files and the environment."""
