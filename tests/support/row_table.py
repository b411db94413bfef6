"""A table of rows without a dataset, for what is planned from one."""

from collections.abc import Sequence

import numpy as np

from tests.support.helpers import MAPPED_IPV4
from training.rows.row_table import RowTable


def table_of(sizes: Sequence[int]) -> RowTable:
    """Returns what rows.parquet would say of IPv4 rows of so many measurements."""
    num, n = len(sizes), np.array(sizes, np.int32)
    zeros = np.zeros(num, np.int64)
    return RowTable(
        shard_begins=np.array([0, num]),
        num_bytes=n + 1000,
        n_measurements=n,
        num_ipv6=zeros.astype(np.int32),
        untimed_tokens=14 * n,
        identity=np.arange(num).astype(np.uint64),
        src_hi=np.zeros(0, np.uint64),
        src_lo=np.arange(num).astype(np.uint64) | np.uint64(MAPPED_IPV4),
        src_id=np.arange(num),
        row_index=zeros.astype(np.int32),
        first_second=zeros,
        last_second=zeros + 10**5,
    )
