"""How a table of the command line looks: capital headings, columns by space, no lines.

Owns that one look, so that the commands of fleetmend and of its lab share it. What stands in a
table is its command's. Imports rich, which no process in a cluster needs: only commands import
this.
"""

from rich.table import Table


def plain_table(*columns: str) -> Table:
    """A table without lines; give a column's heading in capitals."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        # Folded, not cut: what a terminal is too narrow for is still told.
        table.add_column(column, overflow="fold")
    return table
