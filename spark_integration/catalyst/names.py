"""Names as Spark's SQL takes them."""


def quoted(name: str) -> str:
    """The name as SQL takes it, whatever it contains."""
    return "`" + name.replace("`", "``") + "`"
