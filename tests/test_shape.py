"""Shapes: the published tables, the budget solver, and what is refused."""

import pytest

from depthbench.errors import UserError
from depthbench.shape import Budget, ModelShape, feed_forward_width, human, parse_count
from depthbench.suites import find_suites

# protocol.md section 2: n_layers, d_model, d_ff, backbone, total as published (rounded to millions)
PUBLISHED = {
    "400m": [
        (16, 1216, 3248, 284e6, 407e6),
        (20, 1120, 2992, 301e6, 414e6),
        (24, 1024, 2736, 302e6, 405e6),
        (28, 960, 2560, 310e6, 406e6),
        (32, 896, 2400, 309e6, 399e6),
        (42, 800, 2144, 324e6, 404e6),
        (70, 640, 1712, 345e6, 409e6),
    ],
    "backbone-300m": [
        (16, 1248, 3328, 299e6, 425e6),
        (24, 1024, 2736, 302e6, 405e6),
        (32, 896, 2400, 309e6, 399e6),
        (42, 768, 2048, 297e6, 375e6),
        (70, 608, 1632, 312e6, 373e6),
        (84, 544, 1456, 299e6, 354e6),
    ],
    "ladder-200m": [
        (24, 672, 1792, 130e6, 198e6),
        (18, 768, 2048, 127e6, 205e6),
        (12, 896, 2400, 116e6, 206e6),
    ],
    "ladder-300m": [
        (28, 800, 2144, 216e6, 296e6),
        (21, 896, 2400, 203e6, 293e6),
        (14, 1056, 2816, 187e6, 294e6),
    ],
    "ladder-500m": [
        (34, 992, 2656, 403e6, 502e6),
        (26, 1120, 2992, 392e6, 504e6),
        (17, 1344, 3584, 368e6, 504e6),
    ],
    "1.6b": [
        (28, 2048, 6144, 1.409e9, 1.615e9),
        (40, 1728, 5184, 1.433e9, 1.607e9),
        (54, 1504, 4512, 1.466e9, 1.617e9),
    ],
}


@pytest.mark.parametrize("suite", PUBLISHED)
def test_solver_returns_the_published_shapes(suite):
    (found,) = find_suites(suite)
    assert len(found.shapes) == len(PUBLISHED[suite])
    for shape, (n_layers, d_model, d_ff, backbone, total) in zip(found.shapes, PUBLISHED[suite], strict=True):
        assert (shape.n_layers, shape.d_model, shape.d_ff) == (n_layers, d_model, d_ff)
        # exact.md 11: a gain-inclusive count may differ from the rounded figure by 1M, or 1 % of the budget at 1.6B
        slack = 1e6 if found.budget.count < 1e9 else 0.01 * found.budget.count
        assert shape.backbone_parameters == pytest.approx(backbone, abs=slack)
        assert shape.total_parameters == pytest.approx(total, abs=slack)


def test_the_ladder_has_four_tiers_and_its_400m_tier_is_the_suite():
    tiers = find_suites("ladder")
    assert [tier.steps for tier in tiers] == [3800, 5700, 7600, 9500]
    assert {s.d_model for s in tiers[2].shapes} <= {s.d_model for s in find_suites("400m")[0].shapes}


@pytest.mark.parametrize("count", [2e5, 3.3e6, 4.05e8])
@pytest.mark.parametrize("match", ["total", "backbone"])
@pytest.mark.parametrize("n_layers", [1, 2, 7, 16])
def test_no_neighbouring_width_is_nearer_the_budget(count, match, n_layers):
    budget = Budget(count, match=match, n_heads=4, vocab_size=257)
    shape = budget.solve(n_layers)
    assert shape.head_dim % 2 == 0
    for other in (shape.d_model - 8, shape.d_model + 8):
        if other > 0:
            assert abs(budget.miss(shape)) <= abs(budget.miss(budget.shape_at(n_layers, other)))


def test_shape_fills_in_what_follows_from_the_rest():
    shape = ModelShape(n_layers=4, d_model=64, n_heads=4)
    assert (shape.head_dim, shape.n_kv_heads, shape.d_ff) == (16, 4, 176)
    assert shape.aspect_ratio == 16
    assert ModelShape(4, 64, 4, n_kv_heads=2).backbone_parameters == 4 * (3 * 64 * 64 + 3 * 64 * 176 + 2 * 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d_model": 66}, "not divisible by n_heads 4; try d_model 64 or 68"),
        ({"d_model": 60}, "head_dim 15 .* is odd.*divisible by 8"),
        ({"n_kv_heads": 3}, "n_kv_heads 3 does not divide n_heads 4"),
        ({"head_dim": 8}, "is not n_heads 4 × head_dim 8"),
        ({"n_layers": 0}, "n_layers must be at least 1"),
        ({"d_ff": -1}, "d_ff must be at least 1"),
        ({"context": 0}, "context must be at least 1"),
    ],
)
def test_impossible_shapes_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        ModelShape(**{"n_layers": 4, "d_model": 64, "n_heads": 4, **arguments})


def test_budget_too_small_says_what_would_help():
    with pytest.raises(UserError, match=r"too small for 32 layers.*fewer layers, fewer heads or a larger budget"):
        Budget(1e5, n_heads=16).solve(32)


@pytest.mark.parametrize(
    "arguments", [{"count": 0}, {"count": float("nan")}, {"count": 1e6, "match": "all"}, {"count": 1e6, "n_heads": 0}]
)
def test_impossible_budgets_are_refused(arguments):
    with pytest.raises(UserError):
        Budget(**arguments)


def test_unknown_suite_names_the_nearest():
    with pytest.raises(UserError, match="did you mean '400m'"):
        find_suites("400mm")


@pytest.mark.parametrize(("text", "value"), [("405M", 405e6), ("1.615B", 1.615e9), ("300k", 3e5), ("12_000", 12_000), ("2e6", 2e6)])
def test_counts_are_read_as_people_write_them(text, value):
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "many", "4.0.5M", "-3M", "nan"])
def test_unreadable_counts_are_refused(text):
    with pytest.raises(UserError, match="cannot read"):
        parse_count(text)


def test_counts_are_printed_with_three_figures():
    assert [human(n) for n in (1.409e9, 405_210_000, 12_345, 999_700, 17)] == ["1.41B", "405M", "12.3k", "1.00M", "17"]


def test_feed_forward_rule_rounds_up():
    assert [feed_forward_width(d) for d in (1216, 640, 64)] == [3248, 1712, 176]
    assert feed_forward_width(1504, "3") == 4512
    with pytest.raises(UserError, match="8/3"):
        feed_forward_width(64, "2.67")
