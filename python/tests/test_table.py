import pandas
import polars
import pyarrow
import pytest

from treecast import Fabric, Group, plan, simulate


@pytest.fixture(scope="module")
def edges():
    fabric = Fabric("torus:k=4,n=2")
    return plan(fabric, Group(fabric), "u-torus").edges


@pytest.fixture(scope="module")
def deliveries():
    fabric = Fabric("icpp98")
    return simulate(fabric, plan(fabric, Group(fabric), "tree-worm")).deliveries


def test_a_table_iterates_over_its_rows(deliveries):
    assert len(deliveries) == deliveries.num_rows == 31
    assert deliveries.column_names == ["member", "host", "cycle"]
    assert list(deliveries) == deliveries.to_pylist()
    assert deliveries.to_pylist()[0] == {"member": 1, "host": 1, "cycle": deliveries.column("cycle")[0]}
    assert repr(deliveries) == "<Table of 31 rows: member, host, cycle>"
    with pytest.raises(KeyError, match="unknown column 'cycles': known are member, host, cycle"):
        deliveries.column("cycles")


def test_pyarrow_polars_and_pandas_have_the_same_rows(edges, deliveries):
    for table in [edges, deliveries, Fabric("icpp98").links, Fabric("torus:k=3,n=1,uni").links]:
        rows = table.to_pylist()
        assert pyarrow.table(table).to_pylist() == rows
        assert polars.DataFrame(table).to_dicts() == rows
        frame = pandas.DataFrame.from_arrow(table)
        assert list(frame.columns) == table.column_names and len(frame) == len(rows)


def test_types_are_stated_beforehand(edges):
    schema = pyarrow.schema(edges)
    assert schema == pyarrow.table(edges).schema
    assert schema.field("sender").type == pyarrow.uint32()
    assert schema.field("route").type == pyarrow.list_(pyarrow.string())


def addresses(array):
    return [buffer.address for buffer in array.buffers() if buffer is not None]


def test_nothing_is_copied(deliveries, edges):
    for table in [deliveries, edges]:
        first, second, frame = pyarrow.table(table), pyarrow.table(table), polars.DataFrame(table)
        for name in table.column_names:
            (mine,), (again,) = first[name].chunks, second[name].chunks
            assert addresses(mine) == addresses(again) != []
            # polars has another layout for texts, but shares the memory of numbers.
            if pyarrow.types.is_integer(mine.type):
                assert addresses(frame[name].to_arrow()) == addresses(mine)


def test_columns_outlive_the_table():
    fabric = Fabric("star:50")
    column = pyarrow.table(simulate(fabric, plan(fabric, Group(fabric), "binomial")).deliveries)["member"]
    assert column.to_pylist() == list(range(1, 50))


def test_an_unused_capsule_is_freed(deliveries):
    rows = deliveries.to_pylist()
    for _ in range(3):
        deliveries.__arrow_c_stream__()
        deliveries.__arrow_c_schema__()
    assert deliveries.to_pylist() == rows
