"""The convolution kernels of lookfurther.gpu.conv compared with cuDNN, and their tuning.

    python -m benchmarks.kernels [--search] [--json FILE]

Microseconds of each kernel for the 512 images of an update: the median over many calls in one CUDA
graph. cuDNN gets images as bfloat16 and does neither ReLU nor space-to-depth. `--search` tries
every block configuration of a list for each kernel; one process per core compiles them beforehand.
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


WARPS_AND_STAGES = {"num_warps": (4, 8), "num_stages": (2, 3, 4)}
CONV1_RELU_CHOICES = {"block_m": (64, 128, 256), "num_warps": (4, 8), "num_stages": (1, 2)}
CONV_RELU_CHOICES = {"block_m": (64, 128), "block_k": (64,)} | WARPS_AND_STAGES
CONV1_GRAD_WEIGHT_CHOICES = {"block_m": (32, 64, 128), "num_splits": (132, 256, 264)}
CONV1_GRAD_WEIGHT_CHOICES |= WARPS_AND_STAGES
GRAD_WEIGHT_CHOICES = {"block_m": (64, 128), "block_k": (64, 128), "num_splits": (15, 29, 33, 66)}
GRAD_WEIGHT_CHOICES |= WARPS_AND_STAGES
GRAD_INPUT_CHOICES = {"block_m": (64, 128, 256), "block_k": (32, 64, 128)}
GRAD_INPUT_CHOICES |= {"block_n": (64, 128, 256)} | WARPS_AND_STAGES


class KernelJob(NamedTuple):
    """One kernel: ours for a block configuration, cuDNN's, and the values that a search tries."""

    name: str
    run_ours: Callable[[Any], None]
    run_cudnn: Callable[[], Any]
    choices: dict[str, tuple[int, ...]]


def kernel_jobs(widths: tuple[int, ...]) -> list[KernelJob]:
    """All kernels of a torso, on random data."""
    from lookfurther.gpu import conv

    c1, c2, c3 = widths
    x = torch.randint(0, 256, (IMAGES, 4, 84, 84), dtype=torch.uint8, device="cuda")
    w = [_random_weights(c1, 64, 2), _random_weights(c2, 4 * c1, 2), _random_weights(c3, c2, 3)]
    b = [_random_tensor(c) for c in widths]
    y = conv.allocate_outputs(x, w)
    grad = [torch.randn_like(t) for t in y]
    flat = conv.allocate_gradients(w)
    # cuDNN gets the first layer's images after space-to-depth, and its gradient before.
    inputs = [_random_tensor(IMAGES, 21, 21, 64), y[0], y[1]]
    cudnn_grad = [_random_tensor(IMAGES, 20, 20, c1), grad[1], grad[2]]

    def forward(i: int) -> Callable[[], Any]:
        return lambda: conv2d(_channels_first(inputs[i]), w[i], b[i])

    def backward(i: int, *output_mask: bool) -> Callable[[], Any]:
        return lambda: torch.ops.aten.convolution_backward(
            *(_channels_first(cudnn_grad[i]), _channels_first(inputs[i]), w[i], [len(w[i])]),
            *((1, 1), (0, 0), (1, 1), False, (0, 0), 1, output_mask),
        )

    def conv1_relu(config: Any) -> None:
        conv.launch_conv1_relu(x, SCALE, w[0], b[0], y[0], config)

    def conv1_grad_weight(config: Any) -> None:
        conv.launch_conv1_grad_weight(x, SCALE, grad[0], w[0], flat[0], config)

    def conv_relu(i: int, config: Any) -> None:
        conv.launch_conv_relu(inputs[i], w[i], b[i], y[i], config)

    def conv_grad_weight(i: int, config: Any) -> None:
        conv.launch_conv_grad_weight(inputs[i], grad[i], w[i], flat[i], config)

    def conv_grad_input(i: int, config: Any) -> None:
        conv.launch_conv_grad_input(grad[i], w[i], inputs[i], grad[i - 1], config)

    weight_gradient, input_gradient = (False, True, True), (True, False, False)
    layers = {"conv2": 1, "conv3": 2}
    jobs = [KernelJob("conv1_relu", conv1_relu, forward(0), CONV1_RELU_CHOICES)]
    for name, i in layers.items():
        run_ours = partial(conv_relu, i)
        jobs.append(KernelJob(f"{name}_relu", run_ours, forward(i), CONV_RELU_CHOICES))
    run_cudnn = backward(0, *weight_gradient)
    jobs.append(
        KernelJob("conv1_grad_weight", conv1_grad_weight, run_cudnn, CONV1_GRAD_WEIGHT_CHOICES)
    )
    for name, i in layers.items():
        run_ours, run_cudnn = partial(conv_grad_weight, i), backward(i, *weight_gradient)
        jobs.append(KernelJob(f"{name}_grad_weight", run_ours, run_cudnn, GRAD_WEIGHT_CHOICES))
    for name, i in layers.items():
        run_ours, run_cudnn = partial(conv_grad_input, i), backward(i, *input_gradient)
        jobs.append(KernelJob(f"{name}_grad_input", run_ours, run_cudnn, GRAD_INPUT_CHOICES))
    return jobs


def _random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def _random_weights(o: int, c: int, k: int) -> Tensor:
    return (_random_tensor(o, c, k, k) / (c * k * k) ** 0.5).to(memory_format=torch.channels_last)


def _channels_first(x: Tensor) -> Tensor:
    """The same image with the axes in torch's order."""
    return x.permute(0, 3, 1, 2)


def measure_microseconds(function: Callable[[], Any]) -> float:
    """Time per call, of many calls in one graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(REPEATS):
            function()
    microseconds = []
    for _ in range(GRAPHS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in (0, 1))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        microseconds.append(1000 * start.elapsed_time(end) / REPEATS)
    return statistics.median(microseconds[1:])


def candidate_blocks(job: KernelJob) -> Iterator[Any]:
    """Every block configuration that a search tries."""
    from lookfurther.gpu.conv import BlockConfig

    for values in product(*job.choices.values()):
        yield BlockConfig(**dict(zip(job.choices, values, strict=True)))


def search_blocks(job: KernelJob) -> list[tuple[float, Any]]:
    """Microseconds and configuration of each candidate, the fastest first."""
    usable = [config for config in candidate_blocks(job) if can_run(job, config)]
    timed = [(measure_microseconds(partial(job.run_ours, config)), config) for config in usable]
    return sorted(timed, key=lambda pair: pair[0])


def can_run(job: KernelJob, config: Any) -> bool:
    """Whether the sizes fit, and the GPU has enough shared memory."""
    try:
        job.run_ours(config)
    except AssertionError:
        return False
    except Exception as error:  # Triton raises errors of several modules
        if "out of resource" not in str(error):
            raise
        return False
    return True


def compile_share(share: int, of: int) -> None:
    """Compile every `of`-th candidate into the cache that all processes share."""
    for widths in NETWORK_NAMES:
        jobs = kernel_jobs(widths)
        candidates = ((job, config) for job in jobs for config in candidate_blocks(job))
        for job, config in islice(candidates, share, None, of):
            can_run(job, config)


def measure(searching: bool) -> dict[str, Any]:
    """Microseconds of each kernel, ours and cuDNN's, and the best candidates of a search."""
    from lookfurther.gpu.conv import BLOCK_CONFIGS

    torch.backends.cudnn.benchmark = True
    figures: dict[str, Any] = {}
    for widths, name in NETWORK_NAMES.items():
        for job in kernel_jobs(widths):
            config = BLOCK_CONFIGS[widths][job.name]
            ours = measure_microseconds(partial(job.run_ours, config))
            theirs = measure_microseconds(job.run_cudnn)
            figures[f"{name} {job.name}"] = {"ours": ours, "cudnn": theirs}
            if searching:
                best = [(us, config._asdict()) for us, config in search_blocks(job)[:3]]
                figures[f"{name} {job.name}"]["best"] = best
                print(name, job.name, f"{ours:.1f}", best, flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--search", action="store_true")
    add_json_option(parser)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU found; tests/test_gpu_kernels.py checks the kernels without one")
    if options.search:
        with (
            safe_import_path(),
            ProcessPoolExecutor(count_cores(), mp_context=get_context("spawn")) as pool,
        ):
            list(pool.map(compile_share, range(count_cores()), [count_cores()] * count_cores()))
    figures = measure(options.search)
    rows = [[name, f["ours"], f["cudnn"], f["cudnn"] / f["ours"]] for name, f in figures.items()]
    print(format_table(["", "ours, us", "cuDNN, us", "cuDNN / ours"], rows))
    if options.json:
        machine = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
        write_text(options.json, json.dumps(machine | {"kernels": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
