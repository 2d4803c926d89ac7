"""What goes through Temporal and back: the SDK's pydantic JSON, with one memory of types for the process.

Owns the data converter of all processes. The SDK makes a payload converter for each workflow, and a
converter remembers how a type is read only for itself: each workflow would learn all its types
again, an eighth of a worker's CPU. What is written on the wire is the SDK's own.
"""

from typing import Final

from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
)

MAX_TYPES: Final = 256
"""More than the contracts have; bounded, as a type of a sandboxed module keeps the module."""
_JSON: Final = PydanticJSONPlainPayloadConverter(max_cached_type_adapters=MAX_TYPES)


class PayloadConverter(CompositePayloadConverter):
    """The SDK's converters in their order, the pydantic one for JSON."""

    def __init__(self) -> None:
        super().__init__(
            *(
                _JSON if isinstance(converter, JSONPlainPayloadConverter) else converter
                for converter in DefaultPayloadConverter.default_encoding_payload_converters
            )
        )


DATA_CONVERTER: Final = DataConverter(payload_converter_class=PayloadConverter)
"""For every client of Temporal."""
