"""All faults by name, and how their options are read.

Owns the table of faults, its lines for people, and the checks of `key=value` options. A fault is
added by writing its class in one of the modules imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from workers.lab.faults import boot, device, gpu, instruments, kubelet
from workers.lab.faults.fault import Fault

_MODULES: Final = (gpu, device, instruments, boot, kubelet)
"""In the order in which people read the table."""


class BadFault(Exception):
    """An unknown fault or option, or a value out of range; the message says what is allowed."""


@dataclass(frozen=True)
class FaultOption:
    """One option as shown to people."""

    key: str
    default: str
    description: str


@dataclass(frozen=True)
class FaultLine:
    """One fault as shown to people."""

    name: str
    description: str
    needs_full: bool
    options: tuple[FaultOption, ...]


def fault_classes() -> Mapping[str, type[Fault]]:
    """Every named fault."""
    return {
        value.name: value
        for module in _MODULES
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Fault) and value.name
    }


def describe_faults() -> tuple[FaultLine, ...]:
    """The table of `fleetmend lab faults`."""
    return tuple(_line(cls) for cls in fault_classes().values())


def split_options(words: Iterable[str]) -> dict[str, str]:
    """`key=value` words as a mapping.

    Raises:
        BadFault: a word without '=', or a key given twice.
    """
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise BadFault(f"option {word[:80]!r}: write it as key=value")
        if key in options:
            raise BadFault(f"option {key!r} is given twice: give it once")
        options[key] = value
    return options


def make_fault(name: str, options: Mapping[str, str]) -> Fault:
    """The fault of that name with these options.

    Raises:
        BadFault: no such fault or option, or a value that does not fit.
    """
    classes = fault_classes()
    cls = classes.get(name)
    if cls is None:
        raise BadFault(f"no fault {name[:80]!r}; known: {', '.join(classes)}")
    # Python callers can't write a dash in a keyword: same_machine is same-machine.
    options = {key.replace("_", "-"): value for key, value in options.items()}
    keys = [option.key for option in _options(cls)]
    for key in options:
        if key not in keys:
            raise BadFault(f"fault {name} has no option {key[:80]!r}; known: {', '.join(keys)}")
    try:
        return cls.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        given = str(first.get("input"))[:80]
        raise BadFault(f"fault {name}, option {key}={given}: {first['msg']}") from error


def _line(cls: type[Fault]) -> FaultLine:
    text = (cls.__doc__ or "").strip().splitlines()[0]
    return FaultLine(cls.name, text, cls.needs_full, _options(cls))


def _options(cls: type[Fault]) -> tuple[FaultOption, ...]:
    if cls.is_event:
        # What is over at once has no duration.
        fields = {name: f for name, f in cls.model_fields.items() if name != "for_s"}
    else:
        fields = dict(cls.model_fields)
    return tuple(
        FaultOption(
            key=field.alias or name,
            default="" if field.default is None else str(field.default).lower(),
            description=field.description or "",
        )
        for name, field in fields.items()
    )
