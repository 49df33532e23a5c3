"""The sum tree against plain NumPy."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookfurther.sumtree import WIDTH, SumTree

masses = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-12, 1e12)), min_size=1, max_size=3 * WIDTH + 5
).filter(any)


def tree_of(values: list[float]) -> SumTree:
    tree = SumTree(len(values))
    tree.set(torch.arange(len(values)), torch.tensor(values, dtype=torch.float64))
    return tree


@given(masses, st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=50))
def test_find_lands_on_the_item_whose_stretch_holds_u(values: list[float], shares: list[float]):
    tree = tree_of(values)
    u = torch.tensor(shares, dtype=torch.float64) * tree.total
    found = tree.find(u).numpy()
    edges = np.concatenate([[0], np.cumsum(values)])
    slack = 1e-9 * edges[-1]  # block sums round differently from one long cumulative sum
    assert (edges[found] <= u.numpy() + slack).all()
    assert (u.numpy() <= edges[found + 1] + slack).all()


@given(masses, st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_an_item_of_mass_zero_is_never_found(values: list[float], shares: list[float]):
    tree = tree_of(values)
    u = torch.tensor([*shares, 1.0], dtype=torch.float64) * tree.total
    assert (np.array(values)[tree.find(u).numpy()] > 0).all()


@given(st.data())
@settings(max_examples=50)
def test_any_order_of_updates_leaves_exact_sums(data: st.DataObject):
    size = data.draw(st.integers(1, WIDTH * WIDTH + 3))
    tree, oracle = SumTree(size), np.zeros(size)
    for _ in range(data.draw(st.integers(1, 5))):
        index = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
        value = data.draw(st.lists(st.floats(0, 1e9), min_size=len(index), max_size=len(index)))
        tree.set(torch.tensor(index), torch.tensor(value, dtype=torch.float64))
        oracle[index] = value
    assert np.array_equal(tree.mass.numpy(), oracle)
    assert torch.equal(tree.sums, tree.blocks.sum(-1))
    assert np.isclose(float(tree.total), oracle.sum(), rtol=1e-12)


@given(masses)
def test_rebuild_equals_setting_every_item(values: list[float]):
    tree = SumTree(len(values))
    tree.rebuild(torch.tensor(values, dtype=torch.float64))
    assert torch.equal(tree.blocks, tree_of(values).blocks)
    assert torch.equal(tree.sums, tree_of(values).sums)


def test_small_masses_beside_huge_ones_are_still_found():
    tree = tree_of([1e-6, 1e9, 1e-6])
    assert tree.find(torch.tensor([5e-7], dtype=torch.float64)).item() == 0
