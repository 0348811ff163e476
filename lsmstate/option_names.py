"""Misspelt options: refused with the name that was probably meant.

Python's own TypeError names the wrong option only. A signature with ``**others`` could name the
right one, and would hide the mistake from a type checker. So the names are checked around the call.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

from lsmstate.errors import InvalidArgumentError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type[Any])


def names_checked(
    groups: Mapping[str, type[Any]] | None = None, instead: Mapping[str, str] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse keyword arguments that a function does not have.

    Args:
        groups: Parameters that take a dataclass of options, and the class.
        instead: What to say of a name that the function does not have on purpose.

    Returns:
        A decorator. InvalidArgumentError of the function then names the option that was meant.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        kinds = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        parameters = signature(function).parameters.values()
        own = [one.name for one in parameters if one.kind in kinds and one.name != "self"]

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in kwargs.items():
                if name in (instead or {}):
                    raise InvalidArgumentError(f"{name}={value!r}: {(instead or {})[name]}")
                if name not in own:
                    raise InvalidArgumentError(_unknown(name, own, groups or {}))
            for name, group in (groups or {}).items():
                _check_group(name, kwargs.get(name, group()), group)
            return function(*args, **kwargs)

        return checked

    return decorated


def fields_checked(group: C) -> C:
    """Refuse unknown fields of a dataclass of options. It stands above ``@dataclass``."""
    group.__init__ = names_checked()(group.__init__)
    return group


def _unknown(name: str, own: list[str], groups: Mapping[str, type[Any]]) -> str:
    written, known = {option: option for option in own}, list(own)
    for group, kind in groups.items():
        names = [field.name for field in fields(kind)]
        known[known.index(group)] = f"{group}={kind.__name__}({', '.join(names)})"
        for field in names:
            written.setdefault(field, f"{group}={kind.__name__}({field}=...)")
    near = difflib.get_close_matches(name, written, n=1, cutoff=0.0)[0]
    return (
        f"there is no option {name!r}; did you mean {written[near]!r}? Options: {', '.join(known)}"
    )


def _check_group(name: str, value: object, group: type[Any]) -> None:
    if not isinstance(value, group):
        some = fields(group)[0].name
        raise InvalidArgumentError(
            f"{name}={value!r} is {type(value).__name__}; give {group.__name__}({some}=...)"
        )
