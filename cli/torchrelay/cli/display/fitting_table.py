"""Tables that are read on any terminal: where there is too little room, no word is cut off, and rows become lines."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

GAP = 2
WIDE = 10_000
"""Of a file or pipe, which has no width."""
WORDS = ("why", "reason", "end", "cleared", "what became of it", "last migration")
"""Columns that may be broken into several lines."""
LAST_AT_LEAST = 30
"""So wide is the last column at least, if it is one of words. With less it would be a tower of single words."""
INDENT = 4


class FittingTable(Table):
    """A table. On a narrow terminal its last column goes below each row. On a still narrower one each row is said in lines."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.is_terminal:
            options = options.update(width=WIDE)
        names = [str(column.header) for column in self.columns]
        widths = [max(cell_len(_text(cell).plain) for cell in (c.header, *c.cells)) for c in self.columns]
        gap = self.padding[1]
        fixed = sum(widths[:-1]) + gap * (len(widths) - 1)
        last = min(widths[-1], LAST_AT_LEAST) if names[-1] in WORDS else widths[-1]
        if fixed + last <= options.max_width:
            yield from super().__rich_console__(console, options)
        elif names[-1] in WORDS and fixed <= options.max_width:
            yield from self._with_words_below(widths)
        else:
            yield from self._as_lines(names)

    def _rows(self) -> list[list[Text]]:
        return [[_text(cell) for cell in row] for row in zip(*(c.cells for c in self.columns))]

    def _with_words_below(self, widths: list[int]) -> RenderResult:
        yield self._line([_text(c.header) for c in self.columns[:-1]], widths, "bold")
        for *cells, words in self._rows():
            yield self._line(cells, widths)
            if words.plain:
                yield _indented(words)

    def _line(self, cells: list[Text], widths: list[int], style: str = "") -> Text:
        told = Text(style=style, no_wrap=True)
        for cell, width, column in zip(cells, widths, self.columns):
            room = " " * (width - cell_len(cell.plain))
            told.append_text(Text(room) + cell if column.justify == "right" else cell + Text(room))
            told.append(" " * self.padding[1])
        told.rstrip()
        return told

    def _as_lines(self, names: list[str]) -> RenderResult:
        for first, *others in self._rows():
            known = [(name, cell) for name, cell in zip(names[1:], others) if cell.plain not in ("", "-")]
            short = [Text(f"{name} ") + cell for name, cell in known if name not in WORDS]
            yield Text(": ").join((first, Text(", ").join(short))) if short else first
            for name, cell in known:
                if name in WORDS:
                    yield _indented(cell)


def table_of(*names: str, right: tuple[str, ...] = (), gap: int = GAP) -> Table:
    """Return a table without rows. `right`: columns of numbers."""
    table = FittingTable(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name not in WORDS)
    return table


def _text(cell: object) -> Text:
    return cell.copy() if isinstance(cell, Text) else Text(str(cell))


def _indented(words: Text) -> Padding:
    return Padding(words, (0, 0, 0, INDENT), expand=False)
