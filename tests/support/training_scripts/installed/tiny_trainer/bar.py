"""A progress bar, whose printer is a function that another one has returned."""


class Bar:
    def __init__(self, stream):
        self.tell = self.printer(stream)

    @staticmethod
    def printer(stream):
        longest = [0]

        def write(text):
            stream.write(text)

        def tell(text):
            longest[0] = max(longest[0], len(text))
            write(text.ljust(longest[0]) + "\n")
            return longest[0]

        return tell
