"""Training data from probe rows: sampled, tokenised and packed on the fly, for MaxText.

Start reading at `dataset`; `tokenizer` defines the tokens. The public names are exported here and
loaded on first use.
"""

from beam_pipeline.lazy_exports import exporting

__getattr__, __dir__, __all__ = exporting(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "batches.config": "DataConfig",
        "batches.states": "reshard_states",
        "dataset": "BatchDataset build_dataset build_probe_chunk_dataset "
        "create_probe_training_pipeline",
        "maxtext.predictor": "load_predictor",
        "row_source": "BadRowError ProbeDataSource ProbeRowDataSource",
        "rtt_prediction": "RttDistribution predict_rtt predict_rtts",
        "sampler": "Context ProbeRowSampler ProbeWindowSampler sample_federated_batch",
        "testing": "assert_resumes_exactly",
        "tokenizer": "Measurement decode encode encode_measurement",
        "torch_dataset": "build_torch_dataset",
    },
)
