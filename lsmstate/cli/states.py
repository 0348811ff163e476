"""What commands share that show one state after another, as JSON lines or on the terminal.

A state that cannot be read does not hide the others. It is named, and the exit status is 1.
"""

import json as json_text
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from lsmstate.lsm.compaction_picker import BOTTOM_LEVEL
from lsmstate.tools.inspection import State, Unreadable, each_state

#: Exit status when something is damaged.
DAMAGED = 1

_MOST_KEY_CHARACTERS: Final = 60

Described = dict[str, Any]

JsonStates = Annotated[bool, typer.Option("--json", help="Print one JSON object per state.")]


def show_states(
    directory: str,
    pointer: str | None,
    describe: Callable[[State], Described],
    show: Callable[[Described], None],
    *,
    as_json: bool,
) -> None:
    """Show each state, or print its JSON; raise typer.Exit if there is damage."""
    has_damage = False
    for state in each_state(directory, pointer):
        if isinstance(state, Unreadable):
            found = {"directory": state.directory, "damaged": [asdict(state.damage)]}
        else:
            found = describe(state)
        has_damage |= bool(found["damaged"])
        if as_json:
            typer.echo(json_text.dumps(found))
            continue
        if isinstance(state, State):
            show(found)
        _print_beside(found)
    if has_damage:
        raise typer.Exit(DAMAGED)


def _print_beside(found: Described) -> None:
    if found.get("logged_writes"):
        typer.echo(logged_line(found["logged_writes"]))
    for damage in found["damaged"]:
        typer.echo(damage_line(damage["file"] or found["directory"], damage["what"]))
    for name in found.get("unsealed", ()):
        typer.echo(unsealed_line(name))


def level_name(level: int) -> str:
    """Name a level as tables show it; JSON has the number."""
    return "bottom" if level == BOTTOM_LEVEL else str(level)


def key_text(decoded: dict[str, Any] | None, stored: str) -> str:
    """Show a stored key as stream and values, or in hex if it does not decode."""
    if decoded is None:
        return _cut(stored)
    values = ", ".join(
        json_text.dumps(each, ensure_ascii=False) for each in decoded["key"].values()
    )
    retracted = " retracted" if decoded["retracted"] else ""
    return f"{decoded['stream']}{retracted} ({_cut(values)})"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_KEY_CHARACTERS else text[:_MOST_KEY_CHARACTERS] + "..."


def damage_line(name: str, what: str) -> str:
    """Return the line by which every command reports damage."""
    return f"DAMAGED {name}: {what}"


def logged_line(writes: int) -> str:
    """Return the line about acknowledged writes that the shown state does not hold."""
    what = "1 logged write is" if writes == 1 else f"{writes:,} logged writes are"
    return (
        f"note: {what} not shown: only the write-ahead log has them until the store commits "
        "(`lsmstate compact` does so)"
    )


def unsealed_line(name: str) -> str:
    """Return the line about a file that its writer has not finished."""
    return f"note: {name} was never finished and is ignored"
