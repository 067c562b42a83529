"""A plan as Spark Connect has it: nodes that are frozen, and become protobuf messages when they are sent.

A node has the fields of its message, by their names in the .proto files, so that one loop encodes them all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock.spark.errors import InvalidPlan

_LONGEST_TEXT = 200
_DEEPEST = 500
"""Operations within one another; each is two levels of messages, and Spark reads 1,024 levels of a plan."""
_TOO_DEEP = (
    f"the plan has more than {_DEEPEST} operations, or operators, within one another, which Spark refuses to read "
    "(with its default settings it resolves fewer than 100 operations): "
)
DEEP_CURE = (
    "keep a part of it by frame.local_checkpoint() or a temporary view, add columns by one with_columns({…}), "
    "write isin(…) for many comparisons"
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Node:
    """A relation or an expression (of the `kind` that it has in their oneof), or a message within one ("")."""

    kind: str
    fields: Mapping[str, Any]
    """None is left out; tuples are repeated fields."""

    def __repr__(self) -> str:
        return f"<{self.kind or 'part'} {', '.join(self.fields)}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Received(Node):
    """A relation that the server sent: what a command has left there."""

    message: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class PlanId:
    """The number of a relation of the same plan: a column of one frame, and not of another."""

    relation: Node


def node(kind: str, /, **fields: Any) -> Node:
    """Return a node of these fields."""
    return Node(kind, fields)


def part(expression: Node) -> Node:
    """Return an expression as the message that it has inside: a Sort has SortOrders, which are no Expressions."""
    return Node("", expression.fields)


def encode(root: Node, message: Any) -> Any:
    """Fill a message with a node, and return it. A loop, as a plan may be deeper than Python's stack."""
    relations: defaultdict[Node, list[Any]] = defaultdict(list)
    named: list[tuple[Any, str, Node]] = []
    pending: list[tuple[Node, Any, int]] = [(root, message, 0)]
    while pending:
        each, target, level = pending.pop()
        if level > _DEEPEST:
            raise InvalidPlan(_TOO_DEEP + DEEP_CURE)
        target.SetInParent()
        if target.DESCRIPTOR.name == "Relation":
            relations[each].append(target)
        if isinstance(each, Received):
            target.CopyFrom(each.message)
            continue
        body = getattr(target, each.kind) if each.kind else target
        body.SetInParent()
        for name, value in each.fields.items():
            if isinstance(value, PlanId):
                named.append((body, name, value.relation))
            elif value is not None:
                _put(body, name, value, pending, level + 1)
    _number(named, relations)
    return message


def _put(body: Any, name: str, value: Any, pending: list[tuple[Node, Any, int]], level: int) -> None:
    """Set one field; the nodes in it are filled later."""
    try:
        if isinstance(value, Node):
            pending.append((value, getattr(body, name), level))
        elif isinstance(value, tuple):
            field = getattr(body, name)
            for each in value:
                if isinstance(each, Node):
                    pending.append((each, field.add(), level))
                else:
                    field.append(each)
        elif isinstance(value, Mapping):
            field = getattr(body, name)
            for key, each in value.items():
                if isinstance(each, Node):
                    pending.append((each, field[key], level))
                else:
                    field[key] = each
        else:
            setattr(body, name, value)
    except (TypeError, ValueError) as error:  # a number out of range, text that is no Unicode
        raise InvalidPlan(f"{repr(value)[:_LONGEST_TEXT]} can't be sent as {name}: {error}") from error


def _number(named: list[tuple[Any, str, Node]], relations: Mapping[Node, list[Any]]) -> None:
    """Number the relations that columns name, and no others."""
    numbers: dict[Node, int] = {}
    for body, name, relation in named:
        if relation not in relations:
            raise InvalidPlan(
                f"column {body.unparsed_identifier!r} is of a frame that isn't part of this plan: "
                f"join that frame first, or name the column by col({body.unparsed_identifier!r})"
            )
        setattr(body, name, numbers.setdefault(relation, len(numbers)))
    for relation, number in numbers.items():
        for target in relations[relation]:
            target.common.plan_id = number


# --- what people read -----------------------------------------------------------------------


def format_expression(expression: Node, depth: int = 20) -> str:  # noqa: C901  # a case for each kind
    """Return an expression as text, its depths left out."""
    if depth == 0:
        return "…"
    fields = expression.fields

    def text(value: Any) -> str:
        return format_expression(value, depth - 1)

    match expression.kind:
        case "literal":
            ((name, value),) = fields.items()
            if name == "time":
                return str(timedelta(microseconds=value.fields["nano"] / 1000))
            return (
                "NULL" if name == "null" else repr(value) if not isinstance(value, Node) else str(value.fields["value"])
            )
        case "unresolved_attribute":
            return str(fields["unparsed_identifier"])
        case "unresolved_star":
            return str(fields["unparsed_target"] or "*")
        case "expression_string":
            return str(fields["expression"])
        case "alias":
            return f"{text(fields['expr'])} AS {', '.join(fields['name'])}"
        case "cast":
            return f"CAST({text(fields['expr'])} AS {fields['type_str']})"
        case "sort_order":
            return f"{text(fields['child'])} {'ASC' if fields['direction'] == 1 else 'DESC'}"
        case "unresolved_extract_value":
            return f"{text(fields['child'])}[{text(fields['extraction'])}]"
        case "unresolved_function":
            arguments = [text(each) for each in fields["arguments"]]
            name = fields["function_name"]
            if len(arguments) == 2 and (not name[0].isalpha() or name in ("and", "or")):
                return f"({arguments[0]} {name} {arguments[1]})"
            return f"{name}({', '.join(arguments)})"
    return expression.kind


def format_plan(plan: Node, steps: int = 12) -> str:
    """Return the last steps of a plan as text, first to last."""
    words: list[str] = []
    each: Node | None = plan
    while each is not None and len(words) < steps:
        words.append(_step(each))
        each = next((each.fields[name] for name in ("input", "left", "left_input") if name in each.fields), None)
    return " → ".join([*(["…"] if each is not None else []), *reversed(words)])


def _step(plan: Node) -> str:
    fields = plan.fields
    match plan.kind:
        case "read":
            source = fields.get("named_table") or fields["data_source"]
            name = (
                source.fields.get("unparsed_identifier") or ", ".join(source.fields["paths"]) or source.fields["format"]
            )
            return f"read {name}"
        case "sql":
            return f"sql {fields['query']!r}"
        case "filter":
            return f"filter {format_expression(fields['condition'])}"
        case "project":
            return f"select {', '.join(map(format_expression, fields['expressions']))}"
        case "aggregate":
            groups, sums = (
                ", ".join(map(format_expression, fields[f"{name}_expressions"])) for name in ("grouping", "aggregate")
            )
            return f"group by {groups}: {sums}" if groups else f"aggregate {sums}"
        case "limit" | "offset":
            return f"{plan.kind} {fields[plan.kind]}"
        case "subquery_alias":
            return f"alias {fields['alias']}"
    return plan.kind.replace("_", " ")
