"""`kernel`: compiles with numba, and caches the result for the next process.

numba's own cache fails in three ways, with wrong results or a crash:

  - A kernel is recompiled when its own file changes, but not when a function it calls changes in
    another file. Here the cache key covers everything that a kernel calls.
  - The names of compiled functions and structured dtypes contain a number that every process counts
    from 1. Functions of two processes can share a name, and the linker then uses the first for
    both. Here every process counts from a random number.
  - Two processes that compile at once may write to one file, and a damaged file ends every run.
    Here each kernel and signature has its own file, with a checksum.

What is compiled is kept in the user's cache folder, by the content of its source file, so that an
uninstalled package leaves nothing beside it and installations of one version share it;
NUMBA_CACHE_DIR names another folder. The first kernel that a process has to compile is announced on
stderr, since a first run waits for them; PROBELINE_QUIET=1 prevents that.
"""

import contextlib
import hashlib
import itertools
import mmap
import os
import pickle
import sys
import time
import types
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import config, njit
from numba import types as numba_types
from numba.core import caching, serialize
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic

# C calls no kernel, and Python no subkernel: wrappers take a third of the time to compile.
_KERNEL: Any = {"nogil": True, "no_cfunc_wrapper": True}
_SUBKERNEL: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles a function on its first call; it runs without the interpreter's lock (GIL)."""
    dispatcher = _any_value(njit(**_KERNEL)(function))
    with contextlib.suppress(RuntimeError):  # neither this folder nor the user's is writable
        dispatcher._cache = _Cache(function)
        return dispatcher
    _warn_once()
    return dispatcher


@cache
def _warn_once() -> None:
    print(
        "warning: compiled functions cannot be kept, and take a minute per run: set "
        "NUMBA_CACHE_DIR to a folder that can be written",
        file=sys.stderr,
    )


def subkernel(function: Callable[..., Any]) -> Any:
    """Compiles a function that only kernels call: faster, since Python needs no wrapper of it.

    A call from Python, as in tests, compiles it again, as a kernel.
    """
    dispatcher = _any_value(njit(**_SUBKERNEL)(function))
    # Without `_insert`, which makes the code known to Python.
    dispatcher.add_overload = lambda code: dispatcher.overloads.update({code.signature.args: code})
    for_python = cache(lambda: kernel(function))
    dispatcher._compile_for_args = lambda *args, **kws: for_python()._compile_for_args(*args, **kws)
    return dispatcher


def _any_value(dispatcher: Dispatcher) -> Dispatcher:
    """Lets calls with a constant, as in `f(x, 8)`, use the code for any value of that type."""
    template = dispatcher.get_call_template
    plain = numba_types.unliteral
    dispatcher.get_call_template = lambda args, kws: template(
        [plain(each) for each in args], {name: plain(each) for name, each in kws.items()}
    )
    return dispatcher


def int64_record(*names: str) -> np.dtype:
    """Returns the dtype of a record of int64 fields."""
    return np.dtype([(name, np.int64) for name in names])


def _count_from_anywhere() -> None:
    FunctionIdentity._unique_ids = itertools.count(int.from_bytes(os.urandom(6)))


_count_from_anywhere()
os.register_at_fork(after_in_child=_count_from_anywhere)


def cache_folder() -> Path:
    """Returns the folder of compiled kernels, below the user's cache folder."""
    default = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    base = os.environ.get("XDG_CACHE_HOME") or default
    return Path(base).expanduser() / "probeline" / "kernels"


@cache
def _folder_of(file: str) -> str | None:
    """Returns the folder for a module's kernels, by its content; None if it cannot be written."""
    digest = hashlib.blake2b(Path(file).read_bytes(), digest_size=8).hexdigest()
    folder = cache_folder() / f"{Path(file).parent.name}.{Path(file).stem}-{digest}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # read-only, or no home
        return None
    return str(folder) if os.access(folder, os.W_OK) else None


class _Locator(caching._CacheLocator):
    """Says to numba where the kernels of a module are kept."""

    def __init__(self, folder: str, line: int):
        self._folder, self._line = folder, line

    def get_cache_path(self) -> str:
        return self._folder

    def get_source_stamp(self) -> str:
        return self._folder  # has the digest of the source

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> "_Locator | None":
        if config.CACHE_DIR or not os.path.exists(py_file):
            return None
        folder = _folder_of(py_file)
        return cls(folder, py_func.__code__.co_firstlineno) if folder else None


class _CacheImpl(caching.CompileResultCacheImpl):
    _locator_classes = (_Locator, *caching.CompileResultCacheImpl._locator_classes)


_CHECKSUM_BYTES = 8
_ANNOUNCEMENT = "Compiling kernels, once for this version: 10 to 25 CPU-seconds …"
_SHOWN_EVERY = 10


class Compilation:
    """Counts the kernels that this process and those forked from it compile, and says so."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 16)  # two int64: kernels, the time of the first in ns

    @property
    def count(self) -> int:
        """The kernels so far."""
        return memoryview(self._shared).cast("q")[0]

    def begin(self) -> None:
        """Counts a kernel that is about to be compiled; announces the first and every tenth."""
        shared = memoryview(self._shared).cast("q")
        shared[0] += 1
        shared[1] = shared[1] or time.monotonic_ns()
        if os.environ.get("PROBELINE_QUIET") != "1" and (shared[0] - 1) % _SHOWN_EVERY == 0:
            seconds = (time.monotonic_ns() - shared[1]) / 1e9
            text = f"{shared[0] - 1} kernels are compiled: {seconds:.0f} s …"
            with contextlib.suppress(OSError, ValueError):
                # In place of a line that a display of progress has drawn.
                clear = "\r\x1b[2K" if sys.stderr.isatty() else ""
                shown = _ANNOUNCEMENT if shared[0] == 1 else text
                print(f"{clear}{shown}", file=sys.stderr, flush=True)


compilation = Compilation()


class _Files:
    """The files of a kernel, one for each signature: a checksum, then what numba pickles."""

    def __init__(self, base: str):
        self._base = base

    def _path(self, key: tuple[Any, ...]) -> str:
        return f"{self._base}.{_checksum(repr(key).encode()).hex()}.kernel"

    def load(self, key: tuple[Any, ...]) -> Any:
        """Returns what was saved; None if it is not there or damaged, as after a power cut."""
        with contextlib.suppress(OSError), open(self._path(key), "rb") as file:
            checksum, data = file.read(_CHECKSUM_BYTES), file.read()
            return pickle.loads(data) if checksum == _checksum(data) else None

    def save(self, key: tuple[Any, ...], value: Any) -> None:
        data = serialize.dumps(value)
        temporary = f"{self._base}.{uuid.uuid4().hex}.tmp"
        try:
            Path(temporary).write_bytes(_checksum(data) + data)
            os.replace(temporary, self._path(key))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES).digest()


class _Cache(FunctionCache):
    _impl_class = _CacheImpl

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        self._cache_file = _Files(f"{self.cache_path}/{self._impl.filename_base}")

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        key = super()._index_key(sig, codegen)
        return (*key, digest_of(self._py_func), numba.__version__)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)
        if found is None:
            compilation.begin()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError:  # a full disk, or another user
            _warn_once()


def digest_of(function: Callable[..., Any]) -> str:
    """Returns a digest of a function's code and constants, and of all compiled code it calls."""
    digest = hashlib.blake2b(digest_size=16)
    seen: set[Callable[..., Any]] = set()
    todo = [function]
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        for code in _codes(current.__code__):
            digest.update(code.co_code)
            digest.update(repr([value for value in code.co_consts if _is_plain(value)]).encode())
            for name, value in _globals_of(current, code):
                if isinstance(value, Dispatcher):
                    todo.append(value.py_func)
                elif isinstance(value, _Intrinsic):
                    todo.append(value._defn)
                elif isinstance(value, np.ndarray):
                    digest.update(f"{name}={value.dtype}{value.shape};".encode())
                    digest.update(value.tobytes())
                elif isinstance(value, type) and issubclass(value, tuple):
                    digest.update(f"{name}={getattr(value, '_fields', ())};".encode())
                elif _is_plain(value):
                    digest.update(f"{name}={value!r};".encode())
    return digest.hexdigest()


def _globals_of(function: Callable[..., Any], code: types.CodeType) -> Iterator[tuple[str, object]]:
    """Yields the globals and attributes of modules to which a function's code may refer."""
    namespaces = [function.__globals__]
    for name in code.co_names:
        if isinstance(value := function.__globals__.get(name), types.ModuleType):
            namespaces.append(vars(value))
    for name in code.co_names:
        for namespace in namespaces:
            if name in namespace:
                yield name, namespace[name]


def _codes(code: types.CodeType) -> list[types.CodeType]:
    """Returns the code of a function and of the functions inside it."""
    inner = [value for value in code.co_consts if isinstance(value, types.CodeType)]
    return [code, *(part for each in inner for part in _codes(each))]


def _is_plain(value: object) -> bool:
    """Returns whether `repr` describes a value completely."""
    if isinstance(value, tuple):
        return all(_is_plain(part) for part in value)
    return isinstance(value, (int, float, str, bytes, np.generic, np.dtype))


@kernel
def _nothing():
    return


def load() -> None:
    """Loads numba's runtime, which takes 0.2 CPU-seconds, by calling an empty kernel."""
    _nothing()
