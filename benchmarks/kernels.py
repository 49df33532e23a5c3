"""The convolutions of lookfurther.gpu.conv next to cuDNN's, and the search for their blocks.

    python -m benchmarks.kernels [--search] [--json FILE]

Microseconds of each kernel for the 512 images of an update, the median of many in one CUDA graph.
cuDNN is given images as bfloat16 and neither rectifies nor folds. `--search` tries every block of a
list for each kernel, compiled beforehand by a process for every core.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice, product
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from benchmarks.measure import add_json_option, format_table
from lookfurther.system.files import write_text
from lookfurther.system.processes import count_cores, safe_import_path

IMAGES, SCALE = 512, 1 / 255
REPEATS, GRAPHS = 20, 5
NETWORK_NAMES = {(32, 64, 64): "standard", (64, 128, 128): "deeper"}


class KernelJob(NamedTuple):
    """One kernel: itself with given blocks, cuDNN's, and the blocks that a search tries."""

    name: str
    run_ours: Callable[[Any], None]
    run_cudnn: Callable[[], Any]
    choices: dict[str, tuple[int, ...]]


def kernel_jobs(widths: tuple[int, ...]) -> list[KernelJob]:
    """All kernels of a torso, on random numbers."""
    from lookfurther.gpu import conv

    c1, c2, c3 = widths
    x = torch.randint(0, 256, (IMAGES, 4, 84, 84), dtype=torch.uint8, device="cuda")
    w = [_random_weights(c1, 64, 2), _random_weights(c2, 4 * c1, 2), _random_weights(c3, c2, 3)]
    b = [_random_tensor(c) for c in widths]
    y = conv.allocate_outputs(x, w)
    g = [torch.randn_like(t) for t in y]
    rows = conv.allocate_gradients(w)
    folded, plain = _random_tensor(IMAGES, 21, 21, 64), _random_tensor(IMAGES, 20, 20, c1)
    seen, slopes = [folded, y[0], y[1]], [plain, g[1], g[2]]

    def forward(i: int) -> Callable[[], Any]:
        return lambda: conv2d(_channels_first(seen[i]), w[i], b[i])

    def backward(i: int, *wanted: bool) -> Callable[[], Any]:
        return lambda: torch.ops.aten.convolution_backward(
            *(_channels_first(slopes[i]), _channels_first(seen[i]), w[i], [len(w[i])]),
            *((1, 1), (0, 0), (1, 1), False, (0, 0), 1, wanted),
        )

    taps = {"warps": (4, 8), "stages": (2, 3, 4)}
    images = {"rows": (64, 128, 256), "inner": (32, 64, 128), "width": (64, 128, 256)} | taps
    return [
        KernelJob(
            "first",
            lambda k: conv.launch_conv1_relu(x, SCALE, w[0], b[0], y[0], k),
            forward(0),
            {"rows": (64, 128, 256), "warps": (4, 8), "stages": (1, 2)},
        ),
        *(
            KernelJob(
                f"layer_{i + 1}",
                lambda k, i=i: conv.launch_conv_relu(y[i - 1], w[i], b[i], y[i], k),
                forward(i),
                {"rows": (64, 128), "inner": (64,)} | taps,
            )
            for i in (1, 2)
        ),
        KernelJob(
            "slope_1",
            lambda k: conv.launch_conv1_grad_weight(x, SCALE, g[0], w[0], rows[0], k),
            backward(0, False, True, True),
            {"rows": (32, 64, 128), "splits": (132, 256, 264)} | taps,
        ),
        *(
            KernelJob(
                f"slope_{i + 1}",
                lambda k, i=i: conv.launch_conv_grad_weight(seen[i], g[i], w[i], rows[i], k),
                backward(i, False, True, True),
                {"rows": (64, 128), "inner": (64, 128), "splits": (15, 29, 33, 66)} | taps,
            )
            for i in (1, 2)
        ),
        *(
            KernelJob(
                f"image_{i + 1}",
                lambda k, i=i: conv.launch_conv_grad_input(g[i], w[i], y[i - 1], g[i - 1], k),
                backward(i, True, False, False),
                images,
            )
            for i in (1, 2)
        ),
    ]


def _random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def _random_weights(o: int, c: int, k: int) -> Tensor:
    return (_random_tensor(o, c, k, k) / (c * k * k) ** 0.5).to(memory_format=torch.channels_last)


def _channels_first(x: Tensor) -> Tensor:
    """As torch names the axes."""
    return x.permute(0, 3, 1, 2)


def measure_microseconds(work: Callable[[], Any]) -> float:
    """One call of many in a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(REPEATS):
            work()
    found = []
    for _ in range(GRAPHS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in (0, 1))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(1000 * start.elapsed_time(end) / REPEATS)
    return statistics.median(found[1:])


def candidate_blocks(job: KernelJob) -> Iterator[Any]:
    """Every block of a job's choices."""
    from lookfurther.gpu.conv import BlockConfig

    for values in product(*job.choices.values()):
        yield BlockConfig(**dict(zip(job.choices, values, strict=True)))


def search_blocks(job: KernelJob) -> list[tuple[float, Any]]:
    """What each candidate takes, the fastest first."""
    able = [blocks for blocks in candidate_blocks(job) if can_run(job, blocks)]
    found = [
        (measure_microseconds(lambda blocks=blocks: job.run_ours(blocks)), blocks)
        for blocks in able
    ]
    return sorted(found, key=lambda pair: pair[0])


def can_run(job: KernelJob, blocks: Any) -> bool:
    """Whether the sizes are such, and the GPU has the room."""
    try:
        job.run_ours(blocks)
    except AssertionError:
        return False
    except Exception as error:  # Triton's own, of several modules
        if "out of resource" not in str(error):
            raise
        return False
    return True


def compile_share(share: int, of: int) -> None:
    """Have every so-maniest candidate compiled, into the cache that all processes have."""
    for widths in NETWORK_NAMES:
        every = ((job, blocks) for job in kernel_jobs(widths) for blocks in candidate_blocks(job))
        for job, blocks in islice(every, share, None, of):
            can_run(job, blocks)


def measure(searching: bool) -> dict[str, Any]:
    """Microseconds of each kernel, ours and cuDNN's, and what a search found."""
    from lookfurther.gpu.conv import BLOCK_CONFIGS

    torch.backends.cudnn.benchmark = True
    found: dict[str, Any] = {}
    for widths, name in NETWORK_NAMES.items():
        for job in kernel_jobs(widths):
            blocks = BLOCK_CONFIGS[widths][job.name]
            ours = measure_microseconds(partial(job.run_ours, blocks))
            theirs = measure_microseconds(job.run_cudnn)
            found[f"{name} {job.name}"] = {"ours": ours, "cudnn": theirs}
            if searching:
                best = [(spent, b._asdict()) for spent, b in search_blocks(job)[:3]]
                found[f"{name} {job.name}"]["best"] = best
                print(name, job.name, f"{ours:.1f}", best, flush=True)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--search", action="store_true")
    add_json_option(options)
    asked = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit(
            "there is no GPU here: tests/test_gpu_kernels.py checks the kernels without"
        )
    if asked.search:
        with (
            safe_import_path(),
            ProcessPoolExecutor(count_cores(), mp_context=get_context("spawn")) as pool,
        ):
            list(pool.map(compile_share, range(count_cores()), [count_cores()] * count_cores()))
    found = measure(asked.search)
    rows = [[name, f["ours"], f["cudnn"], f["cudnn"] / f["ours"]] for name, f in found.items()]
    print(format_table(["", "ours, us", "cuDNN, us", "faster by"], rows))
    if asked.json:
        figures = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
        write_text(asked.json, json.dumps(figures | {"kernels": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
