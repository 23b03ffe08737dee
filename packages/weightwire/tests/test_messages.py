import pytest
from weightwire.errors import ManifestError
from weightwire.messages import ITEM_BYTES, Manifest, TensorMeta, TransferStats


@pytest.mark.parametrize(("dtype", "size"), sorted(ITEM_BYTES.items()))
def test_a_tensor_knows_its_size_on_the_wire(dtype, size):
    assert TensorMeta("w", dtype, (3, 5)).nbytes == 15 * size


def test_a_scalar_has_one_element_and_an_empty_tensor_none():
    assert TensorMeta("s", "float32", ()).nbytes == 4
    assert TensorMeta("e", "float32", (0, 7)).nbytes == 0


def test_a_dtype_that_can_not_be_sent_is_named():
    with pytest.raises(ManifestError, match="'complex64' can't be sent"):
        _ = TensorMeta("w", "complex64", (1,)).nbytes


BASE = Manifest((TensorMeta("a", "float32", (2,)), TensorMeta("b", "float32", (3,))), ((0, 2),))


@pytest.mark.parametrize(
    "other",
    [
        Manifest((TensorMeta("b", "float32", (3,)), TensorMeta("a", "float32", (2,))), ((0, 2),)),
        Manifest((TensorMeta("a", "bfloat16", (2,)), TensorMeta("b", "float32", (3,))), ((0, 2),)),
        Manifest((TensorMeta("a", "float32", (2, 1)), TensorMeta("b", "float32", (3,))), ((0, 2),)),
        Manifest((TensorMeta("a", "float32", (2,)),), ((0, 1),)),
    ],
)
def test_order_dtype_shape_and_number_change_the_digest(other):
    assert other.digest != BASE.digest


def test_how_tensors_are_gathered_does_not_change_the_digest():
    assert Manifest(BASE.tensors, ((0, 1), (1, 2))).digest == BASE.digest


def test_sizes_add_up_and_the_largest_is_known():
    assert (BASE.nbytes, BASE.largest, Manifest((), ()).largest) == (20, 12, 0)


def test_stats_add_up_field_by_field():
    total = TransferStats(nbytes=1, collectives=2, gather=0.5) + TransferStats(nbytes=3, wire=1.0)

    assert total == TransferStats(nbytes=4, collectives=2, gather=0.5, wire=1.0)
