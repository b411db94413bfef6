"""Messages: the elements exchanged between stages of a pipeline, as MessagePack arrays.

Equal messages have equal bytes, and a stage receives the type that was sent:

  class Segment(Message, frozen=True):
      seq: int
      is_last: bool
"""

import functools
from typing import Any, Self

import msgspec
from apache_beam import coders

_encoder = msgspec.msgpack.Encoder()


class Message(msgspec.Struct, array_like=True, frozen=True, order=True):
    """Base class of messages; defining a subclass registers its coder with Beam."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        coders.registry.register_coder(cls, MessageCoder)

    def encode(self) -> bytes:
        return _encoder.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverts `encode`."""
        return _decoder(cls).decode(data)


class MessageCoder(coders.Coder):
    """Beam's coder of one kind of message."""

    def __init__(self, kind: type[Message]):
        self._kind = kind

    def encode(self, value: Message) -> bytes:
        return _encoder.encode(value)

    def decode(self, encoded: bytes) -> Message:
        return _decoder(self._kind).decode(encoded)

    def is_deterministic(self) -> bool:
        return True

    @classmethod
    def from_type_hint(cls, typehint: Any, registry: Any) -> "MessageCoder":
        return cls(typehint)

    def to_type_hint(self) -> type[Message]:
        return self._kind


@functools.cache
def _decoder(kind: type[Message]) -> msgspec.msgpack.Decoder:
    return msgspec.msgpack.Decoder(kind)
