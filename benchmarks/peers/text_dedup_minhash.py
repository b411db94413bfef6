"""Peer: text-dedup's MinHash, in a separate Python environment.

    PYTHON benchmarks/peers/text_dedup_minhash.py --input_path=corpus.jsonl \\
        --evaluation=evals.jsonl --output=found.json

It removes near-duplicates within one collection, so documents and evaluation rows form one here; a
document and a row in one cluster are a pair that it found. Its options are those of its example
(5-grams, 240 permutations, Jaccard similarity 0.7, verified). The output is {"pairs": [[document,
row]], "version"}.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections import defaultdict
from importlib import metadata
from pathlib import Path

_CONFIG = """
[input]
input_type = "local_files"
file_type = "json"

[input.read_arguments]
path = "json"
data_files = {files}
split = "train"

[algorithm]
algorithm_name = "minhash"
text_column = "text"
num_perm = 240
threshold = 0.7
ngram_size = 5
hash_bits = 64
num_proc = 2
check_false_positive = true

[output]
output_dir = "output"
save_clusters = true
keep_index_column = true
keep_cluster_column = true
skip_filtering = true

[debug]
enable_profiling = false
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Finds near-duplicates with text-dedup.")
    parser.add_argument("--input_path", required=True, type=Path)
    parser.add_argument("--evaluation", required=True, type=Path)
    parser.add_argument("--output", required=True, type=Path)
    args = parser.parse_args()
    files = [str(path.absolute()) for path in (args.input_path, args.evaluation)]
    ids = [[json.loads(line)["id"] for line in open(path, "rb")] for path in files]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.toml").write_text(_CONFIG.format(files=json.dumps(files)))
        offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": folder}
        command = [sys.executable, "-m", "text_dedup.minhash"]
        subprocess.run(command, cwd=folder, env=offline, check=True)
        clusters: dict[int, int] = pickle.loads(Path(folder, "output/clusters.pickle").read_bytes())
    members = defaultdict(list)
    for index, cluster in clusters.items():
        members[cluster].append(index)
    first_row = len(ids[0])
    pairs = [
        [ids[0][document], ids[1][row - first_row]]
        for same in members.values()
        for document in same
        for row in same
        if document < first_row <= row
    ]
    result = {"pairs": sorted(pairs), "version": metadata.version("text-dedup")}
    args.output.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
