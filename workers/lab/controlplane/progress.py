"""Telling a person on the terminal what a start is doing.

Owns how announcements and build progress look: a live line on a terminal, otherwise a plain line
every few seconds. Writes to standard error, so that --json output stays clean. Decides nothing.
"""

import time
from typing import Final

from rich.console import Console

from workers.lab.controlplane.build import BuildProgress, BuildStage

PLAIN_PAUSE_S: Final = 10.0


def announce_on_terminal(line: str) -> None:
    """Write one line."""
    Console(stderr=True, highlight=False).print(line, markup=False, soft_wrap=True)


class BuildDisplay:
    """Shows the progress of one build; call it with each step."""

    def __init__(self, console: Console | None = None) -> None:
        """Show on `console`, by default standard error."""
        self._console = console
        self._shown_at = 0.0
        self._shown_stage: BuildStage | None = None
        self._is_line_open = False

    def __call__(self, progress: BuildProgress) -> None:
        """Show one step, or leave it out if the last one is still fresh."""
        console = self._console or Console(stderr=True, highlight=False)
        if progress.note:
            self._close_line(console)
            console.print(progress.note, markup=False, soft_wrap=True)
        is_news = progress.stage is not self._shown_stage
        pause_s = 0.5 if console.is_terminal else PLAIN_PAUSE_S
        if not is_news and time.monotonic() - self._shown_at < pause_s:
            return
        self._shown_at, self._shown_stage = time.monotonic(), progress.stage
        if console.is_terminal:
            # Redraws its own line: works in any terminal, and leaves no thread behind.
            console.print(f"\r{line_of(progress)}   ", markup=False, end="", soft_wrap=True)
            self._is_line_open = True
            if progress.stage is BuildStage.DONE:
                self._close_line(console)
        else:
            console.print(line_of(progress), markup=False, soft_wrap=True)

    def _close_line(self, console: Console) -> None:
        if self._is_line_open:
            console.print()
            self._is_line_open = False


def line_of(progress: BuildProgress) -> str:
    """One step as a line of text."""
    minutes, seconds = divmod(int(progress.elapsed_s), 60)
    line = f"[{minutes:02d}:{seconds:02d}] {progress.stage.value}"
    if progress.total:
        part = progress.done / progress.total
        line += f" {progress.done} of {progress.total} packages ({part:.0%})"
        if progress.stage is BuildStage.COMPILING and part > 0.97:
            line += ", linking the programs"
    elif progress.done:
        line += f" ({progress.done} so far)"
    return line


build_on_terminal: Final = BuildDisplay()
