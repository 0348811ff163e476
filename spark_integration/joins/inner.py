"""The specs of inner joins of inputs whose keys Spark has cast."""

from lsmstate.joins.specs.multi_key import GraphSpec, KeyClass
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.spark_integration.plan.inputs import Inputs


def coerced_spec(inputs: Inputs) -> JoinSpec:
    """A JoinSpec whose keys Spark has cast to the types in which its ``=`` compares them."""
    rows = {plan.name: plan.rows for plan in inputs.plans}
    keys = {name: tuple(key.columns[name].column for key in inputs.keys) for name in rows}
    return JoinSpec(rows, keys, inputs.key_schema)


def coerced_graph(inputs: Inputs) -> GraphSpec:
    """A GraphSpec whose keys Spark has cast. Keys that had to be cast are stored beside the row."""
    classes = []
    for number, key in enumerate(inputs.keys):
        columns = {}
        for plan in inputs.plans:
            if plan.name in key.columns:
                position = plan.key_positions[plan.key.get_field_index(f"k{number}")]
                columns[plan.name] = plan.stored.names[position]
        written = {name: column.column for name, column in key.columns.items()}
        classes.append(KeyClass(columns, key.arrow, written))
    streams = {plan.name: plan.stored for plan in inputs.plans}
    return GraphSpec(streams, tuple(classes), {p.name: len(p.rows) for p in inputs.plans})


def condition_of(inputs: Inputs) -> str:
    """The equalities in one form, however they were written."""
    return " AND ".join(
        " = ".join(f"{name}.{column.column}" for name, column in key.columns.items())
        for key in inputs.keys
    )
