import pytest

from ampwise.plan.patterns import covers, is_match


@pytest.mark.parametrize(
    ("pattern", "module", "root", "fits"),
    [
        ("layers.*.wo", "layers.0.wo", "", True),
        ("layers.*.wo", "layers.0.ff.wo", "", True),
        ("layers.*.wo", "layers.0.wo", "model", True),
        ("model.layers.*.wo", "layers.0.wo", "model", True),
        ("model.layers.*.wo", "layers.0.wo", "", False),
        ("layers.*.wo", "layers.0.wo.down", "", False),
        ("*.attn", "attn", "", True),
        ("*.attn", "block.0.attn", "", True),
        ("*.attn", "selfattn", "", False),
        ("*.attn*", "attn_norm", "", True),
        ("*attn", "selfattn", "", True),
        ("gen*", "", "generator", True),
        ("layers.[01].wo", "layers.1.wo", "", True),
        ("layers.[01].wo", "layers.2.wo", "", False),
        ("layers.0.wo", "layersX0Xwo", "", False),
        (r"re:layers\.\d+\.wo", "layers.12.wo", "", True),
        (r"re:layers\.\d+\.wo", "layers.a.wo", "", False),
        (r"re:wo", "layers.0.wo", "", False),
        (r"re:model\.layers.*", "layers.0", "model", True),
        ("Layers.*", "layers.0", "", False),
        ("*", "", "", True),
    ],
)
def test_a_pattern_fits_the_whole_path_with_the_roots_name_or_without(pattern, module, root, fits):
    assert is_match(pattern, module, root=root) is fits


@pytest.mark.parametrize(
    ("pattern", "module", "root", "holds"),
    [
        ("vae", "vae.decoder.conv", "", True),
        ("vae", "vae2.conv", "", False),
        ("generator", "layers.0", "generator", True),
        ("generator", "layers.0", "critic", False),
        ("re:vae", "vae.decoder", "", True),
    ],
)
def test_a_pattern_covers_what_is_inside(pattern, module, root, holds):
    assert covers(pattern, module, root=root) is holds
