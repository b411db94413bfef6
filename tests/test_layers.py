"""Which package may import which: a room imports only from rooms above it in `ROOMS`."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = (
    *(
        "beam_pipeline.lazy_exports",
        "beam_pipeline",
        "beam_pipeline.errors",
        "beam_pipeline.kernels",
        "beam_pipeline.byte_blocks",
    ),
    *("beam_pipeline.cli", "beam_pipeline.storage", "beam_pipeline.dataset"),
    "beam_pipeline.documents",
    *("beam_pipeline.report", "beam_pipeline.row_codec"),
    *("beam_pipeline.verify", "beam_pipeline.inspect"),
    *("beam_pipeline.simulation", "beam_pipeline.generate"),
    *("beam_pipeline.jobs", "beam_pipeline.sources", "beam_pipeline.shards"),
    *("beam_pipeline.array_record_io", "beam_pipeline.sort_each_group"),
    *("beam_pipeline.probe_rows", "beam_pipeline.main"),
    "beam_pipeline.convert",
    *("beam_pipeline.overlap.ngrams", "beam_pipeline.overlap.evaluation_sources"),
    "beam_pipeline.overlap.evaluation",
    *(
        "beam_pipeline.overlap.results",
        "beam_pipeline.overlap.job",
    ),
    *("beam_pipeline.overlap.removal", "beam_pipeline.overlap.report", "beam_pipeline.overlap"),
    *("training", "training.rows", "training.tokens", "training.batches"),
    *("training.dataset", "training.sampler", "training.padding", "training.evaluation"),
    *("training.maxtext", "training.train", "training.analyze_padding", "training.evaluate"),
    *("training.rtt_prediction", "training.inspect_context"),
    *("training.tokenizer", "training.row_source", "training.testing"),
    *("training.torch", "training.torch_dataset"),
)
# What `--context` of inspect needs of training is loaded by name, so it is no import here.
WITHOUT_BEAM = ("cli", "storage", "dataset", "report", "verify", "inspect")


def room_of(module: str) -> str:
    """Returns the room that a module belongs to: the longest name in ROOMS that begins it."""
    rooms = [room for room in ROOMS if f"{module}.".startswith(f"{room}.")]
    return max(rooms, key=len)


def imports() -> Iterator[tuple[str, str]]:
    """Yields (importing module, imported module) for every import between our modules."""
    paths = [p for name in ("beam_pipeline", "training") for p in (ROOT / name).rglob("*.py")]
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in paths}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                full = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in modules else node.module for name in full]
            else:
                continue
            yield from ((module, name) for name in names if name in modules)


def test_arrows_between_rooms_point_up_the_list() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module, imported in imports()
        if ROOMS.index(room_of(imported)) > ROOMS.index(room_of(module))
    ]
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_every_room_is_listed() -> None:
    named = {room_of(module) for pair in imports() for module in pair}
    assert "beam_pipeline" in named  # the version; nothing else lies at the top unnamed
    tops = {path.stem for path in (ROOT / "beam_pipeline").iterdir() if path.suffix in ("", ".py")}
    tops -= {"__init__", "__pycache__", "py"}
    listed = {room.split(".")[1] for room in ROOMS if room.startswith("beam_pipeline.")}
    assert tops == listed
