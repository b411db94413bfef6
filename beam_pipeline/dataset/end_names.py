"""Ends with names, such as hosts or sites: the address of each, and the dataset's table of them.

A name's address is fd70:726f:6265::/48, a private network (RFC 4193), with 80 bits of the name's
BLAKE2b: the same in all datasets. `names.parquet` has a line per name, in the order of their bytes.
"""

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv6Address

import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.dataset.manifest import NAMES_NAME, NamesFile
from beam_pipeline.dataset.rows import Dataset
from beam_pipeline.errors import ProbelineError, printable
from beam_pipeline.storage.files import checksum_text, crc32c, digests_of, read_file

MAX_NAME_BYTES = 255
_PREFIX = b"\xfdprobe"  # fd70:726f:6265::/48
_HASH_BYTES = 16 - len(_PREFIX)
_SCHEMA = pa.schema([("name", pa.string()), ("address", pa.string())])


@lru_cache(1 << 17)
def address_of(name: str) -> str:
    """Returns the address of a name."""
    digest = hashlib.blake2b(name.encode(), digest_size=_HASH_BYTES).digest()
    return str(IPv6Address(_PREFIX + digest))


def is_name(text: str) -> bool:
    """Returns whether a text can be a name: printable, of 1 to MAX_NAME_BYTES bytes."""
    return text.isprintable() and 0 < len(text.encode()) <= MAX_NAME_BYTES


class Names:
    """The names of a dataset, as `names.parquet` has them."""

    def __init__(self, table: pa.Table):
        names, addresses = (table.column(name).to_pylist() for name in _SCHEMA.names)
        self._by_address = dict(zip(addresses, names, strict=True))

    @classmethod
    def read(cls, dataset: Dataset) -> "Names":
        """Reads a dataset's table; ProbelineError if it is not as the manifest says."""
        said = dataset.manifest.names
        if said is None:
            return cls(_SCHEMA.empty_table())
        data = read_file(path := dataset.file(NAMES_NAME)) or b""
        if (found := checksum_text(crc32c(data))) != said.crc32c:
            raise ProbelineError(
                f"{path} has checksum {found}, the manifest says {said.crc32c}: copy the dataset "
                "again as a whole"
            )
        return cls(pq.read_table(io.BytesIO(data), schema=_SCHEMA))

    def __len__(self) -> int:
        return len(self._by_address)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_address.values())

    def shown(self, addresses: pa.Array | Sequence[str]) -> pa.Array:
        """Returns the name of each address, or the address itself where it has none."""
        addresses = pa.array(addresses, pa.string())
        if not len(self):
            return addresses
        encoded = addresses.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        names = [self._by_address.get(address, address) for address in distinct]
        return pa.array(names, pa.string()).take(encoded.indices)


def as_file(names: Iterable[str]) -> tuple[bytes, NamesFile]:
    """Returns `names.parquet` of distinct names, and its entry in the manifest.

    Raises ProbelineError if two of them have the same address.
    """
    ordered = sorted(names, key=str.encode)
    by_address: dict[str, str] = {}
    for name in ordered:
        if (other := by_address.setdefault(address_of(name), name)) != name:
            raise ProbelineError(
                f"the names {printable(other)} and {printable(name)} have the same address: "
                "rename one of them in the input"
            )
    file = io.BytesIO()
    table = pa.table([list(by_address.values()), list(by_address)], schema=_SCHEMA)
    pq.write_table(table, file, compression="zstd")
    data = file.getvalue()
    digests = digests_of(data)
    entry = NamesFile(len(table), len(data), checksum_text(digests.crc32c), digests.sha256)
    return data, entry
