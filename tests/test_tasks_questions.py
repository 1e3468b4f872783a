"""Fine-tuning on questions: which files and articles are taken, what is learned, and what answers come to."""

import gzip
import json
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from limbeck import UserError
from limbeck.objectives.supervised import ENDS, STARTS
from limbeck.tasks.finetune import finetune, read_predictions
from limbeck.tasks.heads import answer_head, load_answer_head
from limbeck.tasks.question_data import QuestionData, read_questions
from limbeck.tasks.questions import QuestionAssignment
from limbeck.tasks.reading import assignment_of
from limbeck.tasks.recipe import FineTuning
from limbeck.tasks.squad import Answer, Question
from limbeck.training.loop import Loop
from limbeck.training.stage import mean_loss, outputs_of
from runs import equal, weights

SHORT = "Copper is warm and pure. The spirit of water rose early in a glass vessel"
LONG = (
    "Stone was heavy. "
    + "The river was slow and cold but clear over the island. " * 4
    + "A small flask of vapour stood at the fire"
)
ANSWERED = [
    ("What is warm?", "Copper", SHORT),  # the first token
    ("What rose early?", "spirit of water", SHORT),
    ("In what?", "glass vessel", SHORT),  # the last one
    ("What was heavy?", "Stone", LONG),
    ("What stood there?", "small flask of vapour", LONG),  # in a later window
    ("Where was it?", "the fire", LONG),
]
UNANSWERED = [("Who was green?", None, SHORT), ("Which house was large?", None, LONG)]
FIGURES = {"exact", "f1"}
NULL_FIGURES = {
    *("has_answer_exact", "has_answer_f1", "no_answer_exact", "no_answer_f1", "always_null_exact", "always_null_f1"),
    *("best_exact", "best_exact_threshold", "best_f1", "best_f1_threshold"),
}


def squad(questions, article="Stills"):
    """An article in SQuAD's JSON, of (question, answer or None, passage)."""
    passages = defaultdict(list)
    for number, (text, answer, passage) in enumerate(questions):
        answers = [] if answer is None else [{"text": answer, "answer_start": passage.index(answer)}]
        passages[passage].append(
            {"id": f"{article}-{number}", "question": text, "answers": answers} | {"is_impossible": not answers}
        )
    return {"title": article, "paragraphs": [{"context": passage, "qas": entries} for passage, entries in passages.items()]}


@pytest.fixture
def write(tmp_path):
    def write(name, *articles):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps({"data": articles}, ensure_ascii=False).encode()
        file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return file

    return write


def articles(*names):
    return [squad([("What rose early?", "spirit of water", f"{SHORT} {name}")], name) for name in names]


def of_article(questions):
    return {question.article for question in questions}


def question(text, answers, passage=SHORT, id="1"):
    return Question(id, text, passage, tuple(Answer(answer, passage.index(answer)) for answer in answers), "Stills")


def data_of(*questions):
    return QuestionData("SQuAD", questions, {"dev": questions}, "dev", ())


# A run


@pytest.fixture(params=["bert", "roberta"])
def model(request, tmp_path):
    """A tiny model of each kind and how long its windows are: BERT tells questions from passages by segments."""
    save = request.getfixturevalue(f"save_{request.param}")
    return save(tmp_path / "model", num_hidden_layers=2), {"bert": 40, "roberta": 64}[request.param]


@pytest.mark.parametrize("questions", [ANSWERED, [*ANSWERED, *UNANSWERED]], ids=["v1.1", "v2.0"])
def test_a_model_learns_to_answer(model, write, tmp_path, questions):
    folder, length = model
    file = write("train.json", squad(questions))
    settings = {"max_length": length, "overlap": 8, "batch_size": 16, "learning_rate": 4e-3, "dropout": 0.0, "steps": 80}
    run = finetune(
        folder, task="squad", data=[file], dev=str(file), output=tmp_path / "run", precision="float32", quiet=True, **settings
    )
    scores, silent = run.summary["scores"]["dev"], len(questions) - len(ANSWERED)
    assert scores.keys() == (FIGURES | NULL_FIGURES if silent else FIGURES)
    assert (scores["exact"], scores["f1"]) == (1, 1)
    assert run.summary["task"]["examples"] > len(questions)  # some need several windows
    if silent:
        assert scores["no_answer_f1"] == scores["best_f1"] == 1
        assert scores["always_null_f1"] == silent / len(questions)
        assert any(f"({silent} without an answer)" in note for note in run.summary["task"]["notes"])

    predictions = read_predictions(run.path, "dev")
    expected = {f"Stills-{number}": answer or "" for number, (_, answer, _) in enumerate(questions)}
    assert {entry["id"]: entry["prediction"] for entry in predictions} == expected
    assert {tuple(entry) for entry in predictions} == {("id", "prediction", "exact", "f1", "no_answer")}
    assert json.loads((run.path / "submission" / "dev.json").read_text()) == expected

    loaded, info = AutoModelForQuestionAnswering.from_pretrained(run.student, output_loading_info=True)
    assert not any(info.values()), info
    ours = load_answer_head(run.student)
    inputs = AutoTokenizer.from_pretrained(run.student)("What is warm?", SHORT, return_tensors="pt")
    outputs = loaded.eval()(**inputs)
    torch.testing.assert_close(ours.model(**inputs).start_logits, outputs.start_logits)
    first, last = outputs.start_logits[0, 1:].argmax() + 1, outputs.end_logits[0, 1:].argmax() + 1
    assert ours.tokenizer.decode(inputs["input_ids"][0, first : last + 1]).strip().lower() == "copper"


def test_a_run_taken_up_again_equals_one_left_alone(save_bert, write, tmp_path, monkeypatch):
    file, model = write("train.json", squad([*ANSWERED, *UNANSWERED])), save_bert(tmp_path / "model", num_hidden_layers=2)
    settings = {"max_length": 40, "overlap": 8, "batch_size": 4, "steps": 6, "precision": "float32", "checkpoint_every": 3}
    train = partial(finetune, model, task="squad", data=[file], dev=str(file), quiet=True, **settings)
    alone = train(output=tmp_path / "alone")
    step = Loop._step

    def stop(loop, size):
        if loop.progress.step == 4:
            raise KeyboardInterrupt
        return step(loop, size)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", stop)
        with pytest.raises(KeyboardInterrupt):
            train(output=tmp_path / "resumed")
    resumed = train(output=tmp_path / "resumed", resume="auto")
    assert equal(weights(resumed), weights(alone))
    assert resumed.summary["scores"] == alone.summary["scores"]


def test_other_answers_are_noticed_on_resuming(save_bert, write, tmp_path, refused):
    model, file = save_bert(tmp_path / "model"), write("train.json", squad(ANSWERED))
    dev = write("dev.json", squad([("What rose early?", "spirit of water", SHORT)]))
    settings = {"max_length": 40, "overlap": 8, "batch_size": 4, "steps": 1, "precision": "float32", "quiet": True}
    train = partial(finetune, model, task="squad", data=[file], dev=str(dev), output=tmp_path / "run", **settings)
    scores = train().summary["scores"]
    assert train(resume="auto").summary["scores"] == scores
    write("dev.json", squad([("What rose early?", "water", SHORT)]))
    with refused("task has changed"):
        train(resume="auto")


# What is made of questions


@pytest.fixture
def assign(tiny_tokenizer):
    """Make questions ready for the tiny BERT's tokenizer."""
    return lambda *questions, **settings: QuestionAssignment(
        data_of(*questions), tiny_tokenizer, **{"max_length": 40, "overlap": 8, **settings}
    )


def test_padding_changes_no_loss(assign, tiny_bert, tiny_tokenizer, save_bert, tmp_path):
    from limbeck.encoders.loading import load_encoder

    assignment = assign(*(question(text, [answer] if answer else [], passage) for text, answer, passage in ANSWERED + UNANSWERED))
    model = answer_head(load_encoder(save_bert(tmp_path / "model")), seed=0).model
    source, objective = assignment.training, assignment.objective
    together = source.collate([*range(len(source))])
    assert "attention_mask" in together
    whole = objective.sums(outputs_of(model, together), together)
    single = [source.collate([row]) for row in range(len(source))]
    parts = [objective.sums(outputs_of(model, batch), batch) for batch in single]
    for term, value in whole.items():
        torch.testing.assert_close(value, sum(part[term] for part in parts), atol=1e-4, rtol=1e-5)
    assert set(together) >= {STARTS, ENDS, "token_type_ids"}
    assert mean_loss(whole, objective.counts(together), objective.weights()) > 0


def test_what_outputs_come_to_by_hand(assign):
    asked = [question("What is warm?", ["Copper"]), question("In what?", ["glass vessel"]), question("Who?", [])]
    assignment = assign(*[Question(str(n), q.text, q.passage, q.answers, q.article) for n, q in enumerate(asked)])
    rows = [assignment.source("dev").collate([row])["token_type_ids"][0].argmax().item() for row in range(3)]
    # words: 0 Copper, 1 is, 2 warm, 3 and, 4 pure, 5 ., 6 The, 7 spirit, 8 of, 9 water, ..., 13 a, 14 glass, 15 vessel
    marks = [
        {"start": {0: 5.0}, "end": {0: 4.0}},
        {"start": {9: 2.0, 15: 6.0}, "end": {15: 3.0}},
        {"start": {7: 1.0}, "end": {9: 2.0}},
    ]
    null = [2.0, 10.0, 2.5]
    outputs = []
    for first, mark, nothing in zip(rows, marks, null, strict=True):
        logits = np.zeros((2, 60), dtype=np.float32)  # padded beyond the window
        logits[:, 50:] = 99
        logits[0, 0] = nothing
        for side, values in enumerate(mark.values()):
            for place, value in values.items():
                logits[side, first + place] = value
        outputs.append(logits)
    judged = assignment.judge("dev", outputs)
    # spans: "Copper" 9, "vessel" 9, "spirit of water" 3; no answer: 2, 10, 2.5; so the second is not answered
    assert judged.predictions == [
        {"id": "0", "prediction": "Copper", "exact": 1.0, "f1": 1.0, "no_answer": -7.0},
        {"id": "1", "prediction": "", "exact": 0.0, "f1": 0.0, "no_answer": 1.0},
        {"id": "2", "prediction": "spirit of water", "exact": 0.0, "f1": 0.0, "no_answer": -0.5},
    ]
    assert judged.scores == pytest.approx(
        {
            "exact": 1 / 3,
            "f1": 1 / 3,
            "has_answer_exact": 1 / 2,
            "has_answer_f1": 1 / 2,
            "no_answer_exact": 0,
            "no_answer_f1": 0,
            "best_exact": 2 / 3,  # only the first is answered
            "best_exact_threshold": -7,
            "best_f1": 2 / 3,
            "best_f1_threshold": -7,
            "always_null_exact": 1 / 3,
            "always_null_f1": 1 / 3,
        }
    )
    compared = assignment.compared("dev", judged.predictions)
    assert compared.metric == assignment.metric == "f1"
    assert compared.weighted(compared.predictions[None], compared.labels, np.ones((1, 3))) == pytest.approx(judged.scores["f1"])


def test_questions_are_drawn_with_their_share_of_unanswerable_ones(assign):
    questions = [question(f"{'water ' * number}?", ["water"] if number % 4 else [], id=str(number)) for number in range(24)]
    assignment = assign(*questions, limit=8, max_length=64)
    drawn = {tuple(ids) for ids in assignment.training.collate([*range(8)])["input_ids"].tolist()}
    assert len(assignment.training) == len(drawn) == 8
    assert (assignment.training.collate([*range(8)])[STARTS] == 0).sum() == 2
    assert "8 questions (2 without an answer) in 8 windows" in assignment.notes[-1]


def test_questions_leave_room_for_the_passage(assign):
    # 40 tokens, 3 of them special, 8 shared: the question gets half of the rest at most
    rows = assign(question("water " * 50, ["Copper"])).training
    assert {int(rows.collate([row])["token_type_ids"][0].argmax()) for row in range(len(rows))} == {1 + 14 + 1}


def test_windows_that_share_too_much_are_refused_by_what_can_be_set(assign, refused):
    with refused("a max_length of at least 45", "an overlap of at most 35"):
        assign(question("What?", ["Copper"]), overlap=40)


def test_repeated_ids_are_not_submitted(assign, tmp_path):
    assignment = assign(question("What?", ["Copper"]), question("What is warm?", ["Copper"]))
    outputs = [np.zeros((2, 40), dtype=np.float32)] * 2
    assert assignment.submit(tmp_path, "dev", assignment.judge("dev", outputs)) is None
    assert not [*tmp_path.iterdir()]


# Which questions


def test_articles_are_held_out_whole_by_their_names_alone(write):
    names = [f"article {number}" for number in range(30)]
    data = read_questions("squad", [write("a.json", *articles(*names))], dev=0.3)
    held = of_article(data.splits["dev"])
    assert len(held) == 9
    assert of_article(data.train) == {*names} - held
    turned = read_questions("squad", [write("b.json", *reversed(articles(*names)))], dev=0.3)
    assert of_article(turned.splits["dev"]) == held
    # Two articles with the same passage are as one.
    several = squad([("What?", "Copper", SHORT), ("Where?", "Stone", LONG)], "twin"), squad([("Why?", "Copper", SHORT)], "other")
    for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        kept = of_article(read_questions("squad", [write("c.json", *several, *articles(*names))], dev=share).splits["dev"])
        assert len(kept & {"twin", "other"}) != 1


def translated(language, names):
    """Articles as MLQA has them: another title and text in each language, the same ids."""
    made = []
    for name in names:
        article = squad([("What rose early?", "spirit of water", f"{language} {name} {SHORT}")], name)
        made.append({**article, "title": f"{language} {name}"})
    return made


def test_translations_of_an_article_are_on_one_side(write):
    names = [str(number) for number in range(20)]
    for language in ("de", "en", "zh"):
        folder = write(f"mlqa/dev-context-{language}-question-{language}.json", *translated(language, names)).parent
    data = read_questions("mlqa", [folder], dev=0.25, languages=["de", "zh"], train_languages=["en"])
    assert [*data.splits] == ["dev", "dev-de", "dev-zh"]
    assert data.selecting == "dev"
    assert data.splits["dev"] == (*data.splits["dev-de"], *data.splits["dev-zh"])
    held = {question.id for question in data.splits["dev-de"]}
    assert len(held) == 5
    assert {question.id for question in data.splits["dev-zh"]} == held
    assert len(data.train) == 15
    assert not held & {question.id for question in data.train}
    assert {question.article[:2] for question in data.train} == {"en"}
    assert {question.language for question in data.splits["dev"]} == {"de", "zh"}


@pytest.mark.parametrize(
    ("task", "names", "splits"),
    [
        ("squad", ["train-v1.1.json", "train-v2.0.json.gz", "dev-v1.1.json", "dev-v2.0.json"], {"dev": "dev-v2.0.json"}),
        ("squad", ["train-v1.1.json", "dev-v1.1.json", "dev-v2.0.json"], {"dev": "dev-v1.1.json"}),
        (
            "tydiqa",
            ["tydiqa.goldp.en.train.json.gz", "tydiqa.goldp.ko.train.json", "tydiqa.goldp.fi.dev.json"],
            {"dev-fi": "tydiqa.goldp.fi.dev.json"},
        ),
        (
            "tydiqa",
            ["tydiqa.goldp.en.train.json", "tydiqa.goldp.en.dev.json", "tydiqa.goldp.ko.dev.json"],
            {"dev-en": "tydiqa.goldp.en.dev.json", "dev-ko": "tydiqa.goldp.ko.dev.json"},
        ),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_folder_brings_its_own_dev_files(write, tmp_path, task, names, splits, nested):
    for name in names:
        write(f"{task}/{name}", *articles(name))
    data = read_questions(task, [tmp_path if nested else tmp_path / task], train_languages=["en"])
    assert of_article(data.train) == {names[1] if names[1].startswith("train-v2") else names[0]}
    assert data.selecting == next(iter(data.splits))
    single = {name: questions for name, questions in data.splits.items() if len(splits) == 1 or name != "dev"}
    assert {name: of_article(questions) for name, questions in single.items()} == {name: {file} for name, file in splits.items()}


def test_every_file_of_a_folder_is_evaluated(write, tmp_path):
    train = write("train.json", *articles("train"))
    for name in ("dev-context-de-question-de.json", "dev-context-de-question-en.json", "test-context-de-question-de.json"):
        write(f"mlqa/{name}", *articles(name))
    data = read_questions("mlqa", [train], dev=tmp_path / "mlqa")
    assert [*data.splits] == ["dev", "dev-de", "dev-de-en", "test-de"]
    assert data.splits["dev"] == (*data.splits["dev-de"], *data.splits["dev-de-en"])  # the test file selects nothing
    assert {question.language for question in data.splits["dev-de-en"]} == {"de"}
    assert [*read_questions("mlqa", [train], dev=tmp_path / "mlqa", languages=["de"]).splits] == ["dev", "dev-de", "test-de"]
    for name in ("a.json", "b.json"):
        write(f"own/{name}", *articles(name))
    own = read_questions("squad", [train], dev=tmp_path / "own")
    assert [*own.splits] == ["dev", "dev-a", "dev-b"]
    assert {question.language for question in own.splits["dev"]} == {None}


def test_questions_whose_answer_is_nowhere_are_told_and_left_out(write, assign):
    article = squad(ANSWERED)
    article["paragraphs"][0]["qas"][0]["answers"] = [{"text": "gold", "answer_start": 3}]
    file = write("a.json", article)
    data = read_questions("squad", [file], dev=file)
    assert len(data.train) == len(data.splits["dev"]) - 1
    assert any("a.json: 1 answers are not in their passage" in note for note in data.notes)
    assert any("1 questions are not trained on" in note for note in data.notes)


def test_questions_on_both_sides_are_told(write):
    train, other = write("train.json", *articles("a", "b", "c")), write("dev.json", *articles("d", "b"))
    (note,) = read_questions("squad", [train], dev=other).notes
    assert note.startswith("1 of 2 questions to evaluate on are trained on")
    assert not read_questions("squad", [train], dev=0.4).notes


def test_what_is_missing_is_named(write, tmp_path, refused):
    train, folder = write("train.json", *articles("one")), write("mlqa/dev-context-de-question-de.json", *articles("two")).parent
    with refused(train, "nothing to evaluate SQuAD on", "give dev a file"):
        read_questions("squad", [train])
    with refused(folder, "no file to train on", "give dev a share"):
        read_questions("mlqa", [folder])
    with refused(folder, "no file of SQuAD such as train-v2.0.json"):
        read_questions("squad", [folder], dev=train)
    with refused(folder, "no such file in fr; there are de"):
        read_questions("mlqa", [train], dev=folder, languages=["fr"])
    with refused(train, "1 articles are too few"):
        read_questions("squad", [train], dev=0.5)
    with refused("none.json", "cannot be read"):
        read_questions("squad", [train], dev=tmp_path / "none.json")
    write("mlqa/dev.de.json.gz", *articles("three"))
    with refused("dev.de.json.gz", "would all be the split dev-de"):
        read_questions("mlqa", [train], dev=folder)


@pytest.mark.parametrize("task", ["squad", "SQuAD", "xquad"])
def test_a_recipe_names_such_tasks(write, tiny_tokenizer, task, refused):
    train, dev = write("train.json", *articles("one")), write("xquad.de.json", *articles("two"))
    recipe = FineTuning(model="x", task=task, data=[str(train)], dev=str(dev))
    assignment = assignment_of(recipe, tiny_tokenizer)
    assert isinstance(assignment, QuestionAssignment)
    assert assignment.splits == ("dev-de",)
    with refused("no split named test", "dev-de"):
        assignment_of(FineTuning(model="x", task=task, data=[str(train)], dev=str(dev), splits=["test"]), tiny_tokenizer)
    with pytest.raises(UserError, match="squad"):
        assignment_of(FineTuning(model="x", task="sqad", data=[str(train)]), tiny_tokenizer)
