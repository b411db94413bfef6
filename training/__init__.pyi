# Some arguments are of pyarrow, which has no types.
# pyright: reportUnknownVariableType=false
from training.batches.config import DataConfig as DataConfig
from training.batches.states import reshard_states as reshard_states
from training.dataset import BatchDataset as BatchDataset
from training.dataset import build_dataset as build_dataset
from training.dataset import build_probe_chunk_dataset as build_probe_chunk_dataset
from training.dataset import create_probe_training_pipeline as create_probe_training_pipeline
from training.maxtext.predictor import load_predictor as load_predictor
from training.row_source import BadRowError as BadRowError
from training.row_source import ProbeDataSource as ProbeDataSource
from training.row_source import ProbeRowDataSource as ProbeRowDataSource
from training.rtt_prediction import RttDistribution as RttDistribution
from training.rtt_prediction import predict_rtt as predict_rtt
from training.rtt_prediction import predict_rtts as predict_rtts
from training.sampler import Context as Context
from training.sampler import ProbeRowSampler as ProbeRowSampler
from training.sampler import ProbeWindowSampler as ProbeWindowSampler
from training.sampler import sample_federated_batch as sample_federated_batch
from training.testing import assert_resumes_exactly as assert_resumes_exactly
from training.tokenizer import Measurement as Measurement
from training.tokenizer import decode as decode
from training.tokenizer import encode as encode
from training.tokenizer import encode_measurement as encode_measurement
from training.torch_dataset import build_torch_dataset as build_torch_dataset

__all__: list[str]
