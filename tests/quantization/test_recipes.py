"""Recipe files: the shipped ones, a user's own, and what is said of a broken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftconv.errors import UsageError
from draftconv.quantization.recipes import find_recipe, recipe_names
from draftconv.quantization.scheme import InputScheme, Scheme, WeightScheme

ALL = ("embed", "lm_head", "fc", "norms", "kv_b", "a_projections")
CHANNEL = WeightScheme("int4", "channel", "mse", "weight")
GROUP = WeightScheme("int4", "group", "mse", "weight", 128)
AWQ = WeightScheme("int4", "group", "mse", "F32", 128)
STATIC = InputScheme("fp8", "tensor", False)

FP8 = Scheme(WeightScheme("fp8", "channel", "max/448", "F32"), InputScheme("fp8", "token", True))
SHIPPED = {
    "fp8": FP8,
    "fp8-all": FP8,
    "fp8-tensor": Scheme(WeightScheme("fp8", "tensor", "max/448", "F32"), STATIC),
    "int8-all": Scheme(WeightScheme("int8", "channel", "max/127", "F32"), InputScheme("int8", "token", True)),
    "mxfp4": Scheme(WeightScheme("mxfp4", "group", "mse", "E8M0", 32), STATIC),
    "nvfp4": Scheme(WeightScheme("nvfp4", "group", "mse", "F8_E4M3", 16), InputScheme("nvfp4", "tensor", False)),
    "quark-w4a8": Scheme(WeightScheme("int4", "channel", "max/7.5", "weight")),
    "w4a16": Scheme(CHANNEL),
    "w4a16-awq": Scheme(AWQ),
    "w4a16-g128": Scheme(GROUP),
    "w4a16-g128-all": Scheme(GROUP, rounding="gptq"),
    "w4a16-g128-gptq": Scheme(GROUP, rounding="gptq"),
    "w4a16-gptq": Scheme(CHANNEL, rounding="gptq"),
    "w4a8": Scheme(CHANNEL, InputScheme("int8", "token", True)),
    "w4a8-awq": Scheme(AWQ, STATIC),
    "w4a8-fp8": Scheme(GROUP, InputScheme("fp8", "token", True)),
}

GOOD = """\
about: mine
weights:
  dtype: int4
  granularity: group
  group: 32
  scale_rule: max/7
  scale_dtype: F32
activations:
  dtype: fp8
  granularity: token
  scale: dynamic
exclude: [embed, norms, layers.*.mlp.*]
"""


def own(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_recipe_may_use_the_names_of_the_record(tmp_path: Path) -> None:
    recorded = GOOD.replace("dtype: int4", "grid: int4").replace("dtype: fp8", "grid: fp8")
    recorded = recorded.replace("granularity: ", "per: ")
    assert recorded.count("grid: ") == recorded.count("per: ") == 2
    assert find_recipe(own(tmp_path, recorded)) == find_recipe(own(tmp_path, GOOD))


def test_a_dtype_under_both_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"weights\.grid is no key of a recipe"):
        find_recipe(own(tmp_path, GOOD.replace("  dtype: int4", "  dtype: int4\n  grid: int8")))


def test_what_is_shipped() -> None:
    assert recipe_names() == tuple(SHIPPED)
    for name, scheme in SHIPPED.items():
        recipe = find_recipe(name)
        assert (recipe.name, recipe.scheme) == (name, scheme)
        everything = name.endswith("-all")
        kept = tuple(role for role in ALL if not everything or role not in recipe.may_stay)
        assert recipe.exclude == (kept[:-1] if name in ("fp8", "fp8-all", "int8-all") else kept)
        assert recipe.may_stay == (("lm_head", "fc") if everything else ())
        assert dict(recipe.roles) == (dict.fromkeys(recipe.may_stay, FP8) if name == "w4a16-g128-all" else {})
        assert recipe.about
        assert len(recipe.about) < 110
        assert not recipe.about.endswith(".")


def test_a_recipe_of_one_s_own(tmp_path: Path) -> None:
    recipe = find_recipe(own(tmp_path, GOOD))
    assert recipe.name == "mine"
    assert recipe.scheme.weights == WeightScheme("int4", "group", "max/7", "F32", 32)
    assert recipe.scheme.inputs == InputScheme("fp8", "token", True)
    assert recipe.exclude == ("embed", "norms", "layers.*.mlp.*")


def test_the_recipe_in_the_docs(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/recipes.md").read_text(encoding="utf-8")
    recipe = find_recipe(own(tmp_path, text.partition("```yaml\n")[2].partition("```")[0]))
    assert recipe.scheme.weights == WeightScheme("int4", "group", "mse", "weight", 64)
    assert recipe.scheme.inputs == InputScheme("int8", "token", True)
    assert recipe.exclude == ("embed", "norms", "kv_b", "layers.*.self_attn.*")
    assert recipe.roles == {"lm_head": FP8, "fc": FP8}
    assert recipe.may_stay == ("lm_head", "fc")


@pytest.mark.parametrize(
    ("change", "what", "cure"),
    [
        (("weights:", "wieghts:"), "wieghts is no key of a recipe", "did you mean weights?"),
        (("  dtype: int4", "  dtpye: int4"), "weights.dtpye is no key", "did you mean dtype?"),
        (("  dtype: int4\n", ""), "weights.dtype: field required", "recipes/w4a16.yaml is an example"),
        (
            ("dtype: int4", "dtype: int3"),
            "weights.dtype: input should be 'int4', 'int8', 'fp8',",
            "recipes/w4a16.yaml is an example",
        ),
        (("max/7\n", "max/8\n"), "or 'mse', not 'max/8'", "w4a16.yaml is an example"),
        (("scale: dynamic", "scale: 3"), "activations.scale: input should be 'dynamic' or 'static', not 3", ""),
        (("group: 32", "group: '32'"), "weights.group: input should be a valid integer, not '32'", ""),
        (("  group: 32\n", ""), "granularity: group lacks the size", "add group: 128"),
        (("dtype: fp8", "dtype: int8\n  zero: 1"), "activations.zero is no key", "keys: dtype, granularity, scale"),
        (
            ("granularity: token", "granularity: tensor"),
            "no engine has fp8 per tensor, dynamic",
            "FP8 E4M3 per token, dynamic",
        ),
        (("norms", "norm"), "norm is neither a role nor the pattern", "did you mean norms?"),
        (
            ("[embed, norms, layers.*.mlp.*]", "embed"),
            "exclude: input should be a valid list, not 'embed'",
            "recipes/w4a16.yaml is an example",
        ),
        (("about: mine", "about: ''"), "about: string should have at least 1 character, not ''", ""),
        (("about: mine", "about: 3"), "about: input should be a valid string, not 3", ""),
        (("[embed, norms, layers.*.mlp.*]", "[embed, 3]"), "exclude.1: input should be a valid string, not 3", ""),
        (("exclude: [embed, norms, layers.*.mlp.*]", ""), "exclude: field required", "w4a16.yaml is an example"),
        (("exclude:", "1: x\nexclude:"), "1 is no key of a recipe", "keys: weights, activations"),
        (
            ("exclude:", "format: compressed\nexclude:"),
            "format: input should be 'compressed-pack'",
            "recipes/w4a16.yaml is an example",
        ),
        (
            (GOOD, "about: x\nweights: int4\nexclude: []"),
            "weights: 'int4' is no mapping of keys to values",
            "dtype, granularity",
        ),
        (("  group: 32\n", "  group: 0\n"), "group: 0 is no group size of INT4", "write group: 128"),
        (
            ("  granularity: group\n", "  granularity: token\n"),
            "weights.granularity: input should be 'tensor', 'channel' or 'group', not 'token'",
            "recipes/w4a16.yaml is an example",
        ),
        (
            ("  dtype: int4", "  dtype: int4\n  dtype: int8"),
            "line 4: dtype is there twice, first in line 3",
            "keep one",
        ),
        (("exclude:", "about: again\nexclude:"), "line 12: about is there twice, first in line 1", "keep one"),
        (("[embed, norms, layers.*.mlp.*]", "[embed, {a: 1, a: 2}]"), "line 12: a is there twice", "keep one"),
        (("[embed, norms, layers.*.mlp.*]", "&all [*all]"), "stands for more than 10000 values", "aliases"),
        (("about: mine", "about: a: b"), "is not YAML: line 1", "recipes/w4a16.yaml"),
        *[
            (("about: mine", f"about: !!{tagged}"), "is not YAML: it cannot be parsed", "recipes/w4a16.yaml")
            for tagged in ("timestamp soon", "bool perhaps", 'float ""', 'int ""')
        ],
        (
            (GOOD, "- a\n- b\n"),
            "no mapping",
            "keys: weights, activations, rounding, sequential, about, format, exclude, roles",
        ),
        ((GOOD, ""), "no mapping", "keys: weights"),
    ],
)
def test_a_broken_recipe_says_where(tmp_path: Path, change: tuple[str, str], what: str, cure: str) -> None:
    assert change[0] in GOOD
    path = own(tmp_path, GOOD.replace(*change))
    with pytest.raises(UsageError) as caught:
        find_recipe(path)
    assert caught.value.what.startswith(path)
    assert what in caught.value.what
    assert cure in caught.value.cure


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find_recipe(own(tmp_path, GOOD.replace("int4", "int5").replace("about", "abuot")))
    assert all(key in caught.value.what for key in ("weights.dtype", "about: field required", "abuot is no key"))


def test_names_and_paths_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no recipe is called w4a6") as caught:
        find_recipe("w4a6")
    assert caught.value.cure == "did you mean w4a16?"
    assert "quark-w4a8" in caught.value.why
    with pytest.raises(UsageError, match="its path, ending in"):
        find_recipe("zzz")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        find_recipe(str(tmp_path / "w4a16.yaml"))
    (tmp_path / "b.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read: it is not UTF-8 text"):
        find_recipe(str(tmp_path / "b.yml"))


def test_the_table_of_targets_is_no_recipe() -> None:
    with pytest.raises(UsageError, match="no recipe is called targets"):
        find_recipe("targets")


# ── roles ──────────────────────────────────────────────────────────────────────────

ROLES = """\
roles:
  lm_head:
    weights: {dtype: fp8, granularity: channel, scale_rule: max/448, scale_dtype: F32}
    activations: {dtype: fp8, granularity: token, scale: dynamic}
  fc: &other
    weights: {dtype: int8, granularity: channel, scale_rule: max/127, scale_dtype: F32}
  layers.*.mlp.*: *other
"""


def test_roles_have_schemes_of_their_own(tmp_path: Path) -> None:
    found = find_recipe(own(tmp_path, GOOD.replace(", layers.*.mlp.*", "") + ROLES))
    int8 = Scheme(WeightScheme("int8", "channel", "max/127", "F32"))
    assert found.roles == {"lm_head": SHIPPED["fp8"], "fc": int8, "layers.*.mlp.*": int8}
    assert list(found.roles) == ["lm_head", "fc", "layers.*.mlp.*"]  # the first that names a weight counts
    assert (found.of("lm_head"), found.of("kv_b")) == (SHIPPED["fp8"], found.scheme)
    assert found.numbers.startswith(f"{found.scheme}; lm_head: weights FP8 E4M3 per channel, max/448")


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ("  lm_head:", "  head:", "roles: head is neither a role nor the pattern of a tensor name"),
        (
            "{dtype: fp8, granularity: channel",
            "{dtype: fp9, granularity: channel",
            "roles.lm_head.weights.dtype: input",
        ),
        ("max/448", "max/7", "roles: lm_head: scale_rule: FP8 E4M3 weights know no max/7"),
        ("    weights: {dtype: fp8", "    weight: {dtype: fp8", "weight is no key"),
        ("  lm_head:", "  embed:", "embed is excluded, and has a scheme among roles"),
    ],
)
def test_a_broken_role_says_where(was: str, now: str, says: str, tmp_path: Path) -> None:
    text = GOOD.replace(", layers.*.mlp.*", "") + ROLES
    assert text.count(was) >= 1
    with pytest.raises(UsageError) as caught:
        find_recipe(own(tmp_path, text.replace(was, now, 1)))
    assert says in caught.value.what
