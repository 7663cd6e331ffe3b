"""Write the messages of relay.proto from the dataclasses of `protocol.messages`, which are their one definition.

The numbers of fields are those that relay.proto has. A new field gets the number after the largest one of its message. The
number of a field that is gone is reserved there, so that no other field is ever given it.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchrelay.protocol import messages
from torchrelay.protocol.transport.wire import field_types, member_name

BEGIN = "// Made by `make proto` from the dataclasses of protocol/messages, which say what fields mean. Edit those.\n"
"""The line in relay.proto below which nothing is written by hand."""
_SCALARS: Mapping[Any, str] = {int: "int64", float: "double", str: "string", bytes: "bytes", bool: "bool"}
_UNIONS = {union: name for name, union in vars(messages).items() if isinstance(union, types.UnionType)}
_FIELD = re.compile(r"^ +[\w<>, ]+ (\w+) = (\d+);$")


@dataclass
class Numbers:
    """The numbers of one message: by field, and those that no field may have any more."""

    of_fields: dict[str, int] = field(default_factory=dict)
    reserved: set[int] = field(default_factory=set)

    def renewed(self, names: list[str]) -> Numbers:
        """Return the numbers for fields of these names."""
        last = max((*self.of_fields.values(), *self.reserved), default=0)
        made: dict[str, int] = {}
        for name in names:
            if name in self.of_fields:
                made[name] = self.of_fields[name]
            else:
                last += 1
                made[name] = last
        gone = {number for name, number in self.of_fields.items() if name not in made}
        return Numbers(made, self.reserved | gone)


def with_messages(proto: str) -> str:
    """Return the text of relay.proto with its messages made anew. Raises ValueError for a file without `BEGIN`."""
    head, line, below = proto.partition(BEGIN)
    if not line:
        raise ValueError("relay.proto has no line that says where its messages begin")
    known = _numbers(below)
    written = list(known)
    classes = {c.__name__: c for c in _classes()}
    in_fields = {hint for c in classes.values() for hint in field_types(c).values() if hint in _UNIONS}
    travelling = [u for u, name in _UNIONS.items() if u in in_fields or re.search(rf"\b{name}\b", head)]
    wanted = {**classes, **{_UNIONS[union]: union for union in travelling}}
    order = [name for name in written if name in wanted] + [name for name in wanted if name not in known]
    return head + BEGIN + "".join(f"\n{_message(name, wanted[name], known.get(name, Numbers()))}" for name in order)


def _classes() -> Iterator[type]:
    for value in vars(messages).values():
        if isinstance(value, type) and dataclasses.is_dataclass(value):
            yield value


def _numbers(text: str) -> dict[str, Numbers]:
    """Return the numbers of each message, in the order of the file."""
    found: dict[str, Numbers] = {}
    now = Numbers()
    for line in text.splitlines():
        if line.startswith("message "):
            now = found[line.split()[1]] = Numbers()
        elif line.strip().startswith("reserved "):
            now.reserved |= {int(number) for number in re.findall(r"\d+", line)}
        elif (there := _FIELD.match(line)) is not None:
            now.of_fields[there[1]] = int(there[2])
    return found


def _message(name: str, definition: Any, numbers: Numbers) -> str:
    if isinstance(definition, types.UnionType):
        fields = {member_name(c.__name__): c.__name__ for c in typing.get_args(definition)}
    else:
        fields = {field: _type_name(hint) for field, hint in field_types(definition).items()}
    renewed = numbers.renewed([*fields])
    lines = [f"{kind} {field} = {renewed.of_fields[field]};" for field, kind in fields.items()]
    if isinstance(definition, types.UnionType):
        lines = ["oneof kind {", *(f"  {line}" for line in lines), "}"]
    if renewed.reserved:
        lines.append(f"reserved {', '.join(map(str, sorted(renewed.reserved)))};")
    return (
        f"message {name} {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n" if lines else f"message {name} {{}}\n"
    )


def _type_name(hint: Any) -> str:
    if hint in _SCALARS:
        return _SCALARS[hint]
    if hint in _UNIONS:
        return _UNIONS[hint]
    if dataclasses.is_dataclass(hint):
        return hint.__name__
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is dict:
        return f"map<{_type_name(arguments[0])}, {_type_name(arguments[1])}>"
    if typing.get_origin(hint) is tuple and arguments[1:] == (...,):
        return f"repeated {_type_name(arguments[0])}"
    raise ValueError(f"protocol buffers have nothing like {hint}")
