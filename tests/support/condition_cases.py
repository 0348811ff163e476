"""Random conditions of two rows, which joins of types beyond inner may have beside their keys."""

SIGNS = ["=", "<>", "<", "<=", ">", ">="]


def random_condition(rng, numbers, texts=(), depth=2):
    """SQL text over columns of small numbers, and of texts a and b; each may be null. No equality
    of columns, which would be a key."""
    kind = rng.choice(["and", "or", "not", *["leaf"] * 4]) if depth else "leaf"
    if kind == "not":
        return f"NOT ({random_condition(rng, numbers, texts, depth - 1)})"
    if kind != "leaf":
        parts = (
            random_condition(rng, numbers, texts, depth - 1) for _ in range(rng.choice([2, 2, 3]))
        )
        return "(" + f" {kind.upper()} ".join(parts) + ")"
    column = rng.choice([*numbers, *texts])
    alike = numbers if column in numbers else texts
    constants = ["-1", "1", "2", "5", "2147483648"] if column in numbers else ["'a'", "'b'", "''"]
    other = rng.choice([*alike, rng.choice(constants)])
    if rng.random() < 0.15:
        column, other = other, column
    is_not = rng.choice(["", " NOT"])
    sign = rng.choice(SIGNS[1:] if "." in column and "." in other else SIGNS)
    leaves = [f"{column} {sign} {other}"] * 4
    if "." in column:
        leaves += [
            f"{column} IS{is_not} NULL",
            f"{column}{is_not} BETWEEN {rng.choice(constants)} AND {other}",
            f"{column}{is_not} IN ({', '.join(rng.sample(constants, 2))})",
        ]
    return rng.choice(leaves)
