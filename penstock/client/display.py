"""A place for what changes while the user waits: a line on a terminal, an output in a notebook."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable

from penstock.text import cut

Show = Callable[[str, str], None]
"""Shows a line on a terminal, or HTML in a notebook; both empty: nothing any more."""


def open_display(*, always: bool) -> Show | None:
    """Return how progress is shown to whoever looks; None where nobody does."""
    if "ipykernel" in sys.modules:
        from IPython import get_ipython
        from IPython.display import HTML, display

        if get_ipython() is not None:  # another library may have loaded it outside of a notebook
            output = display(HTML(""), display_id=True)
            return lambda line, page: output.update(HTML(page))
    if always or sys.stderr.isatty():
        return _show_on_terminal
    return None


def _show_on_terminal(line: str, page: str) -> None:
    """Show a line in place of the last one, on one row; what is logged next begins at its start, not at its end."""
    sys.stderr.write(f"\r\x1b[K{cut(line, shutil.get_terminal_size().columns - 1)}\r")
    sys.stderr.flush()
