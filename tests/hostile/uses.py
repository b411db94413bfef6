"""The uses of the campaign: products of programs, faults and places, with lists in uses.json."""

import bz2
import errno
import gzip
import json
import lzma
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile.campaign import Use
from tests.support.helpers import measurements_table

LISTS: dict[str, Any] = json.loads((Path(__file__).parent / "uses.json").read_text())
PROGRAMS: dict[str, list[str]] = LISTS["programs"]
OURS = {"append": "rows", "cache": "cache"}
READERS = ("verify", "inspect", "page", "export", "padding", "loader", "again", "append")
SHARED = "on a cold morning in march the old lighthouse keeper climbed two hundred narrow steps"
ONE = "--direct_num_workers=1"
_NO_TRAINING = """
import training.train
training.train._train = lambda arguments, config: 0
sys.argv[:2] = ["training.train"]
sys.exit(training.train.main())
"""


def make_fixtures(folder: Path) -> None:
    """Writes inputs, a finished output of each job, and files that are not Probeline's."""
    from beam_pipeline.main import main as rows
    from beam_pipeline.overlap.__main__ import main as overlap

    for name in ("keep/sub", "docs", "eval"):
        (folder / name).mkdir(parents=True)
    for name in ("keep/a", "keep/sub/b"):
        (folder / name).write_text("not Probeline's")
    (folder / "keep/link").symlink_to("a")
    words = np.random.default_rng(3).integers(0, 999, (60, 40))
    texts = [
        " ".join(map(str, line)) + f" {SHARED} " * (n % 9 == 0) for n, line in enumerate(words)
    ]
    lines = "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts))
    (folder / "docs/a.jsonl").write_text(lines)
    (folder / "docs/b.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    pq.write_table(pa.table({"text": texts}), folder / "docs/c.parquet")
    (folder / "eval/e.jsonl").write_text(json.dumps({"id": 1, "text": SHARED}) + "\n")
    for seed, name in enumerate(("rows", "foreign")):
        source = folder / ("m.parquet", "more.parquet")[seed]
        pq.write_table(measurements_table(900, seed=seed, num_probes=8), source)
        flags = [f"--input={source}", f"--output={folder}/{name}", "--num_shards=2", ONE]
        assert rows([*flags, "--train_ratio=0.7"]) == 0
    flags = [f"--input_path={folder}/docs", f"--decontaminate_source={folder}/eval"]
    flags += [f"--output_path={folder}/result", "--ngram_length=5", "--processes=1", ONE]
    assert overlap(flags) == 0


def _use(area: str, program: str, name: str, **more: Any) -> Use:
    more.setdefault("ours", OURS.get(program, "out"))
    return Use(area, f"{program}: {name}", more.pop("command", None) or PROGRAMS[program], **more)


def _damages(other: Path) -> dict[str, Callable[[Path], Any]]:
    """Returns ways to damage a file; `other` takes its place in one."""

    def changed(change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
        return lambda path: path.write_bytes(change(path.read_bytes()))

    def instead(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
        return lambda path: (path.unlink(), make(path))

    return {
        "gone": lambda path: path.unlink(),
        "empty": changed(lambda data: b""),
        "half": changed(lambda data: data[: len(data) // 2]),
        "other": changed(
            lambda data: bytes([byte ^ (at % 97 == 5) for at, byte in enumerate(data)])
        ),
        "longer": changed(lambda data: data + bytes(100)),
        "zeros": changed(lambda data: bytes(len(data))),
        "text": changed(lambda data: b"hello\n" * 9),
        "a folder": instead(lambda path: path.mkdir()),
        "a pipe": instead(os.mkfifo),
        "a link to itself": instead(lambda path: path.symlink_to(path.name)),
        "a link to nothing": instead(lambda path: path.symlink_to("nothing")),
        "a link to /dev/zero": instead(lambda path: path.symlink_to("/dev/zero")),
        "foreign": lambda path: shutil.copyfile(other, path),
    }


def dataset_files() -> Iterator[Use]:
    """Each file of a dataset damaged, before each program that reads it."""
    parts = ["manifest.json", "_SUCCESS", "train/rows.parquet", "croissant.json", "README.md"]
    parts.append("train/train_shard_00000-of-00002.arrayrecord")
    for program, part, name in product(READERS, parts, _damages(Path())):

        def damage(box: Path, part: str = part, name: str = name) -> None:
            _damages(box / "foreign" / part)[name](box / "rows" / part)

        whole = program in ("export", "loader")
        yield _use("dataset files", program, f"{part} {name}", damage=damage, whole=whole)


def edited() -> Iterator[Use]:
    """Manifests edited by hand, with a checksum that hides it."""
    values = [None, -1, 2**70, 1e308, "", "x" * 5000, [], {}, [[]] * 99, "../../keep/a"]
    keys = ("format_version", "counts", "splits", "options", "generations", "dead_letter_files")
    changes: dict[str, Callable[[dict[str, Any]], str]] = {
        f"{key} is {str(value)[:9]}": lambda found, key=key, value=value: json.dumps(
            {**found, key: value}
        )
        for key, value in product(keys, values)
    }
    for text in ("[" * 100_000, '{"a": 1e400}', "\ufeff{}", '{"a": NaN}', "[]", "{}{}"):
        changes[text[:9]] = lambda found, text=text: text
    for program, (name, change) in product(
        ("verify", "inspect", "export", "loader", "append"), changes.items()
    ):
        yield _use("edited", program, name, damage=lambda box, change=change: _edit(box, change))


def _edit(box: Path, change: Callable[[dict[str, Any]], str]) -> None:
    from beam_pipeline.dataset.manifest import success_stamp

    data = change(json.loads((box / "rows/manifest.json").read_text())).encode()
    (box / "rows/manifest.json").write_bytes(data)
    (box / "rows/_SUCCESS").write_bytes(success_stamp(data))


def caches() -> Iterator[Use]:
    """Column caches damaged, and filled by two at once."""
    for pattern, name in product(("columns", "shard_*.json", "*.lock"), _damages(Path())):

        def damage(box: Path, pattern: str = pattern, name: str = name) -> None:
            from training.dataset import DataConfig, build_dataset

            files, cache = f"{box}/rows/train", f"{box}/cache"
            config = DataConfig(files=files, cache_dir=cache, batch_size=4, crop_size=256)
            next(iter(build_dataset(config)))
            for path in list((box / "cache").glob(f"*/{pattern}")):
                _damages(box / "m.parquet")[name](path)

        yield _use("caches", "cache", f"{pattern} {name}", damage=damage, whole=True)
    for gap in (0, 0.03, 0.1, 0.3):
        shell = f'"$@" >/dev/null & sleep {gap}; "$@"; code=$?; wait; exit $code'
        yield _use("caches", "cache", f"two, {gap} s apart", shell=shell, whole=True)


def paths() -> Iterator[Use]:
    """Odd paths for every flag that takes one."""
    deep = {"4096": "{box}/" + "d" * 200 + ("/" + "e" * 200) * 20, "256": "{box}/" + "n" * 256}
    for (program, at, flag), (name, path) in product(
        LISTS["places"], {**LISTS["paths"], **deep}.items()
    ):
        command = list(PROGRAMS[program])
        given = json.dumps(path) if flag.endswith('="') else path
        *flags, last = flag.rstrip('"').split(" ")
        command[at : at + 1] = [*flags, last + (given or "")]
        yield _use("paths", program, flag + name, damage=_odd_places, command=command, ours="*")


def _odd_places(box: Path) -> None:
    (box / "loop").symlink_to("loop")
    (box / "dangling").symlink_to("keep/new/file")
    os.mkfifo(box / "pipe")


def machine() -> Iterator[Use]:
    """Limits, rights, streams, signals, clocks and variables."""
    limits: dict[str, dict[str, Any]] = LISTS["machine"]
    for program, (name, given) in product(PROGRAMS, limits.items()):
        settings = {**given}
        rights = settings.pop("rights", [0o777, 0o666])

        def damage(box: Path, rights: list[int] = rights) -> None:
            for above, folders, names in os.walk(box):
                for path in (Path(above, name) for name in (*folders, *names)):
                    if path.name not in ("tmp", "cwd", "home") and not path.is_symlink():
                        path.chmod(rights[not path.is_dir()])
            box.chmod(rights[0] | 0o555)

        yield _use("machine", program, name, damage=damage, **settings)


def network() -> Iterator[Use]:
    """Calls of the file system that fail, are slow or do a part; see faulty_io.c."""
    calls: list[tuple[str, int, int]] = LISTS["network"]
    for program, (call, number, at) in product(PROGRAMS, calls):
        named: dict[int, str] = {**errno.errorcode, 0: "slow", -1: "short"}
        name = named[number]
        setting = f"os.environ['HOSTILE_IO'] = '{call} {number} {at} {{box}}/'"
        stuck = call in ("open", "unlink", "rmdir") and number > 0
        yield _use("network", program, f"{call} {name} from {at}", prelude=setting, stuck=stuck)


def together() -> Iterator[Use]:
    """Two runs on one output; what a run reads or writes removed meanwhile."""
    gone = {"output": "{box}/out", "input": "{box}/docs {box}/rows {box}/m.parquet {box}/result"}
    for program, after in product(PROGRAMS, (0, 0.1, 0.3)):
        two = f'"$@" & sleep {after}; "$@"; code=$?; wait; exit $code'
        yield _use("together", program, f"two, {after} s apart", shell=two)
        for name, path in gone.items():
            shell = f'"$@" & sleep {after}; rm -rf {path}; wait $!'
            yield _use("together", program, f"{name} gone after {after} s", shell=shell, ours="*")


def names() -> Iterator[Use]:
    """Names of folders, ends, sets and files in pages."""
    for text in LISTS["names"]:
        name, shown = text.replace("/", "∕"), repr(text[:20])
        place = "{box}/" + name

        def moved(box: Path, name: str = name) -> None:
            (box / "rows").rename(box / name)

        def evaluated(box: Path, text: str = text, name: str = name) -> None:
            (box / "eval/e.jsonl").write_text(json.dumps({"id": text, "text": f"{text} {SHARED}"}))
            (box / "eval").rename(box / name)

        for program in ("page", "inspect", "export", "padding"):
            command = _replaced(program, {"{box}/rows": place, ".parquet": ".csv"})
            more = {"command": command, "damage": moved, "check": _check_pages}
            yield _use("names", program, f"folder {shown}", **more)
        command = _replaced("overlap", {"{box}/eval": place})
        more = {"command": command, "damage": evaluated, "check": _check_pages}
        yield _use("names", "overlap", f"set {shown}", **more)
        command = [PROGRAMS["report"][0], "{box}/result", "--html={box}/out/" + name]
        yield _use("names", "report", f"file {shown}", command=command, check=_check_pages)


def _replaced(program: str, texts: dict[str, str]) -> list[str]:
    """Returns the command of a program with other texts."""
    command = PROGRAMS[program]
    for old, new in texts.items():
        command = [each.replace(old, new) for each in command]
    return command


def _check_pages(box: Path) -> str:
    pages = [path.read_text(errors="replace") for path in (box / "out").rglob("*.html")]
    is_raw = any(raw in page for page in pages for raw in ("<script>alert", "<img src=x"))
    return "page with raw HTML" if is_raw else ""


def bombs() -> Iterator[Use]:
    """Small files of much, with the memory that they take."""
    fillers = {"line": b"a", "blank": b"\n", "brackets": b"[", "digits": b"9", "zeros": b"\0"}
    packs: dict[str, Callable[[bytes], Any]] = {
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "xz": lzma.compress,
        "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    }
    places = [("rows", "m.json"), ("convert", "docs/d.jsonl")]
    places += [("overlap", "docs/d.jsonl"), ("overlap", "eval/d.jsonl")]
    for kind, end, (program, place) in product(fillers, packs, places):

        def damage(box: Path, kind: str = kind, end: str = end, place: str = place) -> None:
            data = packs[end](fillers[kind] * (8 << 20))
            (box / f"{place}.{end}").write_bytes(data * 20)

        command = _replaced(program, {"m.parquet": f"m.json.{end}", "*.jsonl": f"d.jsonl.{end}"})
        more = {"command": command, "damage": damage, "max_mb": 1500}
        yield _use("bombs", program, f"{kind} {end} in {place}", **more)


def keys() -> Iterator[Use]:
    """Values of key=value for training; what is accepted does not train."""
    known = {"network_train_files": "{box}/rows/train", "base_output_directory": "{box}/out"}
    known |= {"run_name": "r", "steps": "1"}
    more = {"prelude": _NO_TRAINING, "training": True, "ours": "*"}
    for key, value in product(LISTS["keys"], LISTS["values"]):
        given = (f"{name}={each}" for name, each in {**known, key: value}.items())
        command = ["training.train", "tiny", *given]
        yield _use("keys", "train", f"{key}={value[:20]!r}", command=command, **more)


def flags() -> Iterator[Use]:
    """Flags of Dataflow and of Beam."""
    cloud = {"runner": "DataflowRunner", "project": "p", "region": "r"}
    cloud |= {"temp_location": "gs://b/t", "setup_file": "./setup.py"}
    for number, (flag, value) in enumerate(product(LISTS["flags"], LISTS["flag_values"])):
        program = ("rows", "convert", "overlap", "remove")[number % 4]
        given = {**(cloud if number % 3 == 0 else {}), flag: value}
        command = [each for each in PROGRAMS[program] if each != ONE]
        command += [f"--{name}={each}" for name, each in given.items()]
        yield _use("flags", program, f"{flag}={value!r}", command=command, ours="*")


_ALL = (dataset_files, edited, caches, paths, machine, network, together, names, bombs, keys, flags)
AREAS: dict[str, Callable[[], Iterator[Use]]] = {each.__name__: each for each in _ALL}
