import pytest

from depthbench.errors import UserError
from depthbench.verdict.tables import one_table, tables
from synthetic import diverged, row, study

TIERS = ((198, 205, 206), (296, 293, 294), (399, 405, 407), (502, 504, 504))  # published totals of the ladder, in millions
BACKBONES = ((130, 127, 116), (216, 203, 187), (309, 302, 284), (403, 392, 368))
LAYERS = ((24, 18, 12), (28, 21, 14), (32, 24, 16), (34, 26, 17))


def refusal(rows):
    with pytest.raises(UserError) as caught:
        tables(rows, "runs/quick")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def sized(n_layers, total, backbone, **changes):
    return row(shape=(n_layers, total), total_parameters=total, backbone_parameters=backbone, design_parameters=0, **changes)


def test_one_recipe_is_one_table_with_a_title():
    (table,) = tables(study()[::-1], "here")
    assert len(table.rows) == 9 and table.rows[0].design == "preln" and table.notes == ()
    assert table.title == "400 updates · 0.819M tokens · 0.703M total parameters"


def test_recipes_and_training_data_make_tables_of_their_own():
    rows = [*study(), *study(recipe_hash="b" * 64, steps=800), row(data_fingerprint="f" * 64)]
    found = tables(rows, "here")
    assert [len(table.rows) for table in found] == [9, 1, 9]
    assert found[-1].title.startswith("800 updates") and len({table.title for table in found}) == 3


def test_titles_that_read_the_same_say_what_differs():
    other = [*study(recipe_hash="b" * 64), *study(data_fingerprint="f" * 64)]
    titles = [table.title.split(" · ")[3:] for table in tables([*study(), *other], "here")]
    assert titles == [["recipe bbbbbb", "data dddddd"], ["recipe cccccc", "data dddddd"], ["recipe cccccc", "data ffffff"]]


def test_a_title_says_the_updates_of_the_recipe_not_of_a_run_that_diverged():
    (table,) = tables([diverged(steps=7, tokens=70), row("hc")], "here")
    assert table.title.startswith("400 updates · 0.819M tokens")


def test_a_ladder_of_equal_updates_is_a_table_for_each_tier():
    rows = [
        sized(n_layers, total * 10**6, backbone * 10**6)
        for layers, totals, backbones in zip(LAYERS, TIERS, BACKBONES, strict=True)
        for n_layers, total, backbone in zip(layers, totals, backbones, strict=True)
    ]
    found = tables(rows, "here")
    assert [sorted(r.n_layers for r in table.rows) for table in found] == [sorted(layers) for layers in LAYERS]
    assert [table.notes for table in found] == [()] * 4


def test_a_budget_of_backbones_stays_together_whatever_the_embedding_adds():
    totals, backbones = (425, 405, 399, 375, 373, 354), (299, 302, 309, 297, 312, 299)
    rows = [sized(n_layers, *sizes) for n_layers, *sizes in zip((16, 24, 32, 42, 70, 84), totals, backbones, strict=True)]
    (table,) = tables(rows, "here")
    assert table.notes == ()


def test_shapes_without_a_budget_stay_together_and_it_is_said():
    (table,) = tables([sized(1, 100, 50), sized(2, 150, 100), sized(4, 250, 200)], "here")
    assert "not of one budget" in table.notes[0]


def test_other_code_shares_a_table_and_it_is_said():
    (table,) = tables([*study(), row("moda", code_hash="f" * 64)], "here")
    assert "different code" in table.notes[0] and "ffffffffffff (1 of 10 runs)" in table.notes[0]


def test_several_feed_forward_widths_of_one_design_are_said():
    (table,) = tables([row("moda"), row("moda", d_ff=380)], "here")
    assert "several d_ff" in table.notes[0]
    (table,) = tables([row(), row("moda", d_ff=380)], "here")
    assert table.notes == ()


def test_no_rows_are_refused_with_the_place():
    assert refusal([]).startswith("no finished results in runs/quick")


def test_different_validation_sets_are_refused_by_run_even_in_different_tables():
    message = refusal([row(run="one"), row("hc", validation_sha256="b" * 64, recipe_hash="b" * 64, run="two")])
    assert "aaaaaaaaaaaa: one" in message and "bbbbbbbbbbbb: two" in message


def test_many_runs_on_another_validation_set_are_counted():
    others = [row("hc", shape, validation_sha256="b" * 64) for shape in ((2, 160), (6, 96), (16, 56), (24, 48))]
    assert "and 1 more" in refusal([row(), *others])


def test_a_cell_that_is_there_twice_does_not_pass_for_two_seeds():
    message = refusal([row(run="first"), row(run="second", code_hash="f" * 64)])
    assert "first" in message and "second" in message


def test_one_list_of_several_recipes_keeps_them_apart():
    rows = one_table([*study(), *study(recipe_hash="b" * 64, steps=2)], "here")
    assert {r.design for r in rows} >= {"hc@400-steps-cccc", "hc@2-steps-bbbb"}
    assert [r.design for r in one_table(study(), "here")][:1] == ["preln"]
