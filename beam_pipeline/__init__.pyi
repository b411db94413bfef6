from beam_pipeline.array_record_io import ReadAllFromArrayRecord as ReadAllFromArrayRecord
from beam_pipeline.array_record_io import ReadFromArrayRecord as ReadFromArrayRecord
from beam_pipeline.array_record_io import WriteToArrayRecord as WriteToArrayRecord
from beam_pipeline.dataset.manifest import Manifest as Manifest
from beam_pipeline.dataset.row_codec import ProbeRow as ProbeRow
from beam_pipeline.dataset.row_codec import decode_record as decode_record
from beam_pipeline.dataset.rows import Dataset as Dataset
from beam_pipeline.dataset.rows import Rows as Rows
from beam_pipeline.dataset.rows import open_dataset as open_dataset
from beam_pipeline.errors import ProbelineError as ProbelineError
from beam_pipeline.errors import UsageError as UsageError
from beam_pipeline.overlap import DeconConfig as DeconConfig
from beam_pipeline.overlap import NGramConfig as NGramConfig
from beam_pipeline.overlap import run_train_test_overlap as run_train_test_overlap
from beam_pipeline.sort_each_group import SortEachGroup as SortEachGroup
from beam_pipeline.sort_each_group import SortedGroup as SortedGroup

__version__: str
__all__: list[str]
