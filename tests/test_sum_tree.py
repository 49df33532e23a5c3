"""The sum tree against plain NumPy, and its torch path against its NumPy path."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookfurther.replay import sum_tree
from lookfurther.replay.sum_tree import SumTree, choose_block_width, search_rows

WIDTH = choose_block_width(1)
masses = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-12, 1e12)), min_size=1, max_size=9 * WIDTH + 5
).filter(any)
shares_of = st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=50)


def make_tree(values: list[float]) -> SumTree:
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), np.array(values))
    return tree


@given(masses, shares_of)
def test_found_item_contains_u(values: list[float], shares: list[float]):
    tree = make_tree(values)
    u = np.array(shares) * tree.total_mass
    result = tree.find_items(u)
    edges = np.concatenate([[0], np.cumsum(values)])
    slack = 1e-9 * edges[-1]  # block sums round differently from one long cumulative sum
    assert (edges[result] <= u + slack).all()
    assert (u <= edges[result + 1] + slack).all()


@given(masses, st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_item_of_mass_zero_is_never_found(values: list[float], shares: list[float]):
    tree = make_tree(values)
    u = np.array([*shares, 1.0]) * tree.total_mass
    assert (np.array(values)[tree.find_items(u)] > 0).all()


@given(st.data())
@settings(max_examples=50)
def test_sums_are_exact_after_any_updates(data: st.DataObject):
    size = data.draw(st.integers(1, WIDTH * WIDTH + 3))
    tree, oracle = SumTree(size), np.zeros(size)
    for _ in range(data.draw(st.integers(1, 5))):
        index = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
        value = data.draw(st.lists(st.floats(0, 1e9), min_size=len(index), max_size=len(index)))
        tree.set(np.array(index), np.array(value))
        oracle[index] = value
    assert np.array_equal(tree.masses.numpy(), oracle)
    assert np.array_equal(
        tree.block_sums[1:].numpy(), tree.block_masses.view(-1, tree.block_width).numpy().sum(-1)
    )
    assert np.isclose(float(tree.total_mass), oracle.sum(), rtol=1e-12)


@given(masses)
def test_rebuild_equals_setting_all_items(values: list[float]):
    tree = SumTree(len(values))
    tree.rebuild(torch.tensor(values, dtype=torch.float64))
    assert torch.equal(tree.block_masses, make_tree(values).block_masses)
    assert torch.equal(tree.block_sums, make_tree(values).block_sums)


def test_small_mass_next_to_huge_one_is_found():
    tree = make_tree([1e-6, 1e9, 1e-6])
    assert tree.find_items(np.array([5e-7])).item() == 0


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9 * WIDTH + 5).filter(any), shares_of)
def test_torch_finds_same_items_as_numpy(values: list[float], shares: list[float]):
    """The path of a GPU, on integer masses: their sums are exact in any order."""
    host, u = make_tree(values), np.array(shares) * sum(values)
    with patch.object(sum_tree, "to_native", lambda x: x):
        tree = SumTree(len(values))
        tree.set(torch.arange(len(values)), torch.tensor(values, dtype=torch.float64))
        result = tree.find_items(torch.from_numpy(u)).numpy()
    assert torch.equal(tree.block_sums, host.block_sums)
    assert np.array_equal(result, host.find_items(u))


@given(st.data())
def test_search_rows_matches_searchsorted(data: st.DataObject):
    """Rows ascend, as cumulative sums do; equal edges are items of mass 0."""
    n, width = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 20))
    steps = data.draw(st.lists(st.integers(0, 3), min_size=n * width, max_size=n * width))
    edges = np.cumsum(np.reshape(steps, (n, width)), -1).astype(np.float64) + 1
    u = np.array(data.draw(st.lists(st.integers(0, 70), min_size=n, max_size=n)), np.float64)
    result = search_rows(edges, u)
    assert np.array_equal(result, search_rows(torch.from_numpy(edges), torch.from_numpy(u)).numpy())
    pairs = zip(edges, u, strict=True)
    expected_columns = [min(np.searchsorted(e, v, "right"), np.argmax(e)) for e, v in pairs]
    assert result.tolist() == expected_columns


@pytest.mark.parametrize(("size", "expected"), [(1, 16), (100_000, 32), (4_000_000, 128)])
def test_block_width_by_size(size: int, expected: int):
    assert choose_block_width(size) == expected
