"""Options side by side, as cases vary them, put into the groups that the faces take."""

from dataclasses import fields
from typing import Any

from lsmstate.joins.options import ON_SPARK


def grouped(**options: Any) -> dict[str, Any]:
    """Keyword arguments of a face: ``time=Time(...)``, ``state=State(...)`` and ``skew=Skew(...)``
    beside the others. ``path`` stands for ``state_dir``. Unknown names are left to the face."""
    rest = dict(options)
    if "path" in rest:
        rest["state_dir"] = rest.pop("path")
    for name, group in ON_SPARK.items():
        own = {field.name: rest.pop(field.name) for field in fields(group) if field.name in rest}
        if own:
            rest[name] = group(**own)
    return rest
