"""How output of the command line looks: capital headings, columns by space, no lines.

Owns that one look, and the width of standard output, so that the commands of fleetmend and of its
lab share them. What stands in a table is its command's. Imports rich, which no process in a
cluster needs: only commands import this.
"""

from typing import Final

from rich.console import Console
from rich.table import Table

UNFOLDED: Final = 10_000
"""Columns of an output that is no terminal: more than any row has, so that a row is a line."""


def open_console() -> Console:
    """Standard output: a terminal as wide as it is; a pipe or file as wide as the content."""
    console = Console(highlight=False)
    # The file and not `is_terminal`: colours that were asked for do not make a pipe narrow.
    if not console.file.isatty():
        console.width = UNFOLDED
    return console


def plain_table(*columns: str) -> Table:
    """A table without lines; give a column's heading in capitals."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        # Folded, not cut: what a terminal is too narrow for is still told.
        table.add_column(column, overflow="fold")
    return table
