"""Small files that unpack to gigabytes or never end, one for each known kind.

`python -m tests.bombs FOLDER` reads the files in FOLDER/files.json in one process and prints a line
of JSON for each: the error of the reader, and the peak memory so far of this process and of the
sandbox process.
"""

from __future__ import annotations

import io
import json
import pickle
import resource
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.minari_bombs import DATASETS, PYARROW_BOMBS, ROWS, arrow_vectors, write_hdf5, write_table

CPU_SECONDS = 120  # for all files together; a file that hangs takes longer
MAX_MEMORY = 2**32  # of the address space, so that a failure here affects no other process

# Recordings: pickles


def nested_twice(first: bytes, repeat_previous: bytes, depth: int = 40) -> bytes:
    """A list of objects that each contain the previous one twice; the last has number depth - 1."""
    text = b"](" + first + b"q\0"
    for i in range(1, depth):
        text += repeat_previous % (i - 1, i - 1) + b"q%c" % i
    return text + b"e"


LIST_OPCODES, TUPLE_OPCODES = (b"]", b"](h%ch%ce"), (b")", b"h%ch%c\x86")
LAST_OPCODE = b"h%c" % 39


def recording_pickle(actions: bytes) -> bytes:
    return b"}X\x07\x00\x00\x00actions" + actions + b"s."


def shared_lists() -> bytes:
    return b"\x80\x03" + nested_twice(*LIST_OPCODES) + recording_pickle(b"](" + LAST_OPCODE + b"e")


def shared_tuples_as_key() -> bytes:
    return b"\x80\x03" + nested_twice(*TUPLE_OPCODES) + b"}" + LAST_OPCODE + b"K\x01s."


def shared_tuples_as_dtype() -> bytes:
    kind = b"cnumpy\ndtype\n" + LAST_OPCODE + b"\x85R"
    scalar = b"cnumpy.core.multiarray\nscalar\n" + kind + b"C\x0812345678\x86R."
    return b"\x80\x03" + nested_twice(*TUPLE_OPCODES) + scalar


def bytes_of_a_number() -> bytes:
    array = b"cnumpy.core.multiarray\n_reconstruct\n)R"
    return b"\x80\x03" + recording_pickle(array + b"(NNNNJ\xff\xff\xff\x7ftb")


def deep_tuples() -> bytes:
    return b"\x80\x03})" + b"\x85" * 1_000_000 + b"K\x01s."


def many_dicts() -> bytes:
    return b"\x80\x03](" + b"}" * 1_200_000 + b"e."


def name_of_many_words() -> bytes:
    return b"\x80\x03c" + b"a " * 8_000_000 + b"\nb\n."


def checkpoint_pickle(count: int, ram_offset: int) -> bytes:
    """The same emulator state, with its RAM at `ram_offset`, at each of the first frames."""
    state = bytes(ram_offset) + b"M6532" + np.array([128] + [0] * 128, "<i4").tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\n)R(NNNNB" + struct.pack("<I", len(state))
    numbers = b"".join(b"J" + struct.pack("<i", i) for i in range(1, count + 1))
    return (
        b"\x80\x03}(X\x07\x00\x00\x00actions](" + b"K\0" * count + b"e"
        b"X\x14\x00\x00\x00checkpoint_action_nr](" + numbers + b"e"
        b"X\x0b\x00\x00\x00checkpoints](" + array + state + b"tbq\0" + b"h\0" * (count - 1) + b"eu."
    )


def many_checkpoints() -> bytes:
    """Each may become RAM writes: 50 million in total."""
    return checkpoint_pickle(400_000, 0)


def large_checkpoint() -> bytes:
    return checkpoint_pickle(5_000, 2**23)


PICKLES: dict[str, Callable[[], bytes]] = {
    f.__name__: f
    for f in (
        shared_lists,
        shared_tuples_as_key,
        shared_tuples_as_dtype,
        bytes_of_a_number,
        deep_tuples,
        many_dicts,
        name_of_many_words,
        many_checkpoints,
        large_checkpoint,
    )
}

# Action sequences: archives


def npy_header(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    file = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def deflated_zeros(head: bytes, megabytes: int) -> bytes:
    """A raw deflate stream of `head` and zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    one = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + one * megabytes + packer.flush()


def zip_archive(*members: tuple[str, bytes, int], times: int = 1) -> bytes:
    """A zip file of deflated members: name, packed bytes, claimed size. The CRCs are wrong.

    Its directory lists each member `times` times.
    """
    body, directory = b"", b""
    for name, packed, claimed in members:
        sizes = struct.pack("<IIIHH", 0, len(packed), claimed, len(name), 0)
        head = struct.pack("<HHHHH", 20, 0, 8, 0, 0) + sizes
        directory += b"PK\1\2" + struct.pack("<H", 20) + head
        directory += struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + name.encode()
        body += b"PK\3\4" + head + name.encode() + packed
    directory *= times
    end = struct.pack("<HHHHIIH", 0, 0, 1, 1, len(directory), len(body), 0)
    return body + directory + b"PK\5\6" + end


def member_larger_than_it_says() -> bytes:
    packed = deflated_zeros(b"", 2000)
    return zip_archive(*((f"{name}.npy", packed, 100) for name in ("rom", "ale_actions", "score")))


def member_packed_as_bzip2() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_BZIP2) as packed:
        for name in ("rom", "ale_actions", "score"):
            packed.writestr(f"{name}.npy", bytes(10 * 2**20))
    return file.getvalue()


def sound_sequence(**arrays: Any) -> bytes:
    file = io.BytesIO()
    given = {"rom": "pong", "ale_actions": np.zeros(9, np.uint8), "score": 0} | arrays
    np.savez_compressed(file, **given)
    return file.getvalue()


def sequence_of_days() -> bytes:
    frames = 15 * 2**20
    return sound_sequence(ale_actions=np.zeros(frames, np.uint8), rewards=np.zeros(frames, bool))


def millions_of_writes() -> bytes:
    return sound_sequence(ram_writes=np.zeros((10_000_000, 3), np.int8))


def large_directory() -> bytes:
    return zip_archive(("rom.npy", b"", 0), times=200_000)


ARCHIVES: dict[str, Callable[[], bytes]] = {
    f.__name__: f
    for f in (
        member_larger_than_it_says,
        member_packed_as_bzip2,
        sequence_of_days,
        millions_of_writes,
        large_directory,
    )
}


def write_bombs(folder: Path) -> dict[str, Path]:
    """Write all files, by name; tables only if pyarrow is installed.

    Datasets come first: the sandbox process begins with the peak memory of its parent.
    """
    from importlib.util import find_spec

    files = {}
    for name, build in DATASETS.items():
        if name not in PYARROW_BOMBS or find_spec("pyarrow"):
            files[name] = folder / name
            build(files[name])
    for kind, makers in (("demo", PICKLES), ("npz", ARCHIVES)):
        for name, make in makers.items():
            files[name] = folder / name / f"Pong.{kind}"
            files[name].parent.mkdir()
            files[name].write_bytes(make())
    return files


def write_sound_files(folder: Path) -> list[Path]:
    """Write sound files of every kind. The memory for reading them is the baseline."""
    files = [folder / "Pong.demo", folder / "one.npz", write_hdf5(folder / "hdf5")]
    files[0].write_bytes(pickle.dumps({"actions": ["up"]}, protocol=3))
    files[1].write_bytes(sound_sequence(rom="no_such_game"))
    from importlib.util import find_spec

    if find_spec("pyarrow"):
        files += [
            write_table(folder / form, form, arrow_vectors(ROWS)) for form in ("parquet", "arrow")
        ]
    return files


def main(folder: Path) -> None:
    from lookfurther.demos.importers import import_demos
    from lookfurther.demos.sandbox import SANDBOX
    from lookfurther.errors import LookFurtherError

    def read_all(files: dict[str, Path]) -> None:
        for name, path in files.items():
            message = ""
            try:
                import_demos(path, force=True)
            except LookFurtherError as error:
                message = str(error)
            SANDBOX.stop()  # so that the system reports its memory
            peaks = [
                resource.getrusage(who).ru_maxrss
                for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
            ]
            print(json.dumps([name, message, *peaks]), flush=True)

    for resource_type, limit in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, MAX_MEMORY),
    ):
        resource.setrlimit(resource_type, (limit, resource.getrlimit(resource_type)[1]))
    files = json.loads((folder / "files.json").read_text())
    read_all({f"sound {i}": Path(path) for i, path in enumerate(files["sound"])})
    read_all({name: Path(path) for name, path in files["bombs"].items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
