"""For `-m torchtitan.train` without CUDA: torch answers for a processor from the moment that torchtitan is imported."""

import sys


class BeforeTorchtitan:
    def find_spec(self, name, path, target=None):
        if name == "torchtitan":
            sys.meta_path.remove(self)
            import titan

            titan.answer_for_processors()
        return


sys.meta_path.insert(0, BeforeTorchtitan())
