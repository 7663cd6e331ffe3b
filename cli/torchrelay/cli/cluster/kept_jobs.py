"""`kubectl torchrelay history --kept`: the jobs that the dashboard of a cluster lists, also the newest that are over."""

from __future__ import annotations

import json
import sys

from rich.text import Text

from torchrelay.cli.cluster.api import Cluster
from torchrelay.cli.cluster.port_forward import ask_dashboard
from torchrelay.cli.display import narrate
from torchrelay.cli.display.fitting_table import table_of
from torchrelay.cli.display.teller import make_console


async def show_kept(cluster: Cluster, job: str | None, context: str, as_json: bool) -> int:
    """List jobs of all namespaces, or those called `job`, NAME or NAMESPACE/NAME. Raises UserError like `show_dashboard`.

    `cluster`: with torchrelay's own namespace.
    """
    cards = await ask_dashboard(cluster, "/api/runs", context)
    found = [card for card in cards if job is None or job in (card["job"], card["job"].rpartition("/")[2])]
    if as_json:
        for card in found:
            print(json.dumps(card), flush=True)
        return 0
    console = make_console(sys.stdout)
    if not found:
        console.print("nothing is kept of any job" if job is None else f"nothing is kept of a job {job}")
        return 0
    table = table_of("job", "began", "ranks", "steps", "goodput", "protection", "what became of it")
    for card in found:
        began = card["when"].removeprefix("began ") if card["over"] else "trains"
        end = Text(card["headline"])
        table.add_row(
            card["job"], began, str(card["ranks"]), str(card["steps"]), card["goodput"], card["protection"], end
        )
    console.print(table)
    make_console(sys.stderr).print(narrate.hint("kubectl torchrelay dashboard"))
    return 0
