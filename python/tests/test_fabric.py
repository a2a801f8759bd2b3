import pytest

from treecast import Fabric, TreecastError

SPECS = [
    "icpp98",
    "irregular:switches=5,ports=6,hosts=9,seed=4",
    "star:1",
    "torus:k=4,n=2",
    "torus:k=2,n=3",
    "torus:k=3,n=2,uni",
    "mesh:k=3,n=2",
    "fat-tree:k=4",
]


def test_counts_are_those_of_the_tables():
    fabric = Fabric("icpp98")
    assert (fabric.host_count, fabric.switch_count, fabric.link_count) == (32, 8, 2 * (32 + 10))
    assert (len(fabric.hosts), len(fabric.switches), len(fabric.links)) == (32, 8, 84)


def test_links_lead_from_end_to_end_and_back():
    links = Fabric("icpp98").links.to_pylist()
    for number, link in enumerate(links):
        back = links[link["reverse"]]
        assert back["reverse"] == number
        assert (back["source"], back["targetport"]) == (link["target"], link["sourceport"])
    assert all(link["reverse"] is None for link in Fabric("torus:k=3,n=1,uni").links if link["name"].startswith("s0:0"))


def test_ranks_are_those_of_fat_trees():
    assert set(Fabric("fat-tree:k=4").switches.column("rank")) == {0, 1, 2}
    assert Fabric("icpp98").switches.column("rank") == [None] * 8


@pytest.mark.parametrize("spec", SPECS)
def test_a_file_gives_the_fabric_that_wrote_it(spec, tmp_path):
    fabric = Fabric(spec)
    for name, text in [("a.toml", fabric.to_toml()), ("a.graphml", fabric.to_graphml())]:
        path = tmp_path / name
        path.write_text(text)
        read = Fabric.read(path)
        assert read == fabric and hash(read) == hash(fabric)
        assert read.source == str(path)


def test_routing_is_chosen_and_part_of_equality():
    torus = "torus:k=4,n=2"
    assert Fabric(torus) != Fabric(torus, "up-down")
    assert Fabric(torus, routing="up-down:root=3").routing == "up-down:root=3"
    assert "routing up-down" in repr(Fabric(torus, "up-down"))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Fabric("tours:k=4"), "unknown fabric 'tours': did you mean torus?"),
        (lambda: Fabric("star:4", "updown"), "unknown routing 'updown': did you mean up-down?"),
        (lambda: Fabric("star:4", "dimension-order"), "dimension-order routing does not fit this fabric: "),
    ],
)
def test_invalid_arguments_raise_one_sentence(make, sentence):
    with pytest.raises(TreecastError) as raised:
        make()
    assert str(raised.value).startswith(sentence)
    assert isinstance(raised.value, ValueError)


def test_an_invalid_file_is_named_with_its_line(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text("[[switch]]\nports = 2\n[[host]]\nswitch = 's1'\n")
    with pytest.raises(TreecastError, match=r"lab\.toml:4: there is no switch 's1'"):
        Fabric.read(path)
    with pytest.raises(FileNotFoundError, match="missing.toml"):
        Fabric.read(tmp_path / "missing.toml")
    path.write_bytes(b"\xff")
    with pytest.raises(TreecastError, match=r"lab\.toml could not be read: it is not valid UTF-8"):
        Fabric.read(path)


def test_a_fabric_does_not_change():
    with pytest.raises(AttributeError):
        Fabric("star:2").source = "other"
