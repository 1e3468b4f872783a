"""Data sets in the hub's form: the same examples as in a task's own files, from folders and from the hub's cache."""

import json
import socket
from dataclasses import replace

import pytest
from huggingface_hub import constants

from hub import answering
from limbeck.data import files
from limbeck.tasks.glue import GLUE, read_glue
from limbeck.tasks.hub import is_data_set, read_hub, read_hub_questions
from limbeck.tasks.own import read_own
from limbeck.tasks.reading import assignment_of
from limbeck.tasks.recipe import FineTuning
from limbeck.tasks.squad import read_squad
from limbeck.tasks.xnli import read_xnli

COLUMNS = {
    "cola": ("sentence",),
    "sst2": ("sentence",),
    "mrpc": ("sentence1", "sentence2"),
    "stsb": ("sentence1", "sentence2"),
    "qqp": ("question1", "question2"),
    "mnli": ("premise", "hypothesis"),
    "qnli": ("question", "sentence"),
    "rte": ("sentence1", "sentence2"),
    "wnli": ("sentence1", "sentence2"),
}
"""The columns of texts of nyu-mll/glue."""
NAMES = {name: glue.task.labels for name, glue in GLUE.items()}
"""Its classes in order, which are ours."""
SCORES = [3.8, 2.667, 0.0, 5.0, 4.938, 1.25]
SPLITS = ["train", "validation", "test"]
ASKED = [
    {
        "id": "a",
        "title": "Copper",
        "context": "Copper is red.",
        "question": "What is red?",
        "answers": [("Copper", 0), ("red", 3)],
    },
    {"id": "b", "title": "Copper", "context": "Copper is red.", "question": "What is blue?", "answers": []},
    {"id": "c", "title": "Tin", "context": "Tin, tin.", "question": "What?", "answers": [("Tin", 0), ("tin", 5), ("in", 7)]},
]


@pytest.fixture
def glue(datasets):
    """Make a task of nyu-mll/glue, whose test split tells no label; `order` tells where each of our classes is in `names`."""

    def make(task, names=(), order=(0, 1, 2), number=6):
        names = list(names or NAMES[task])
        texts = {column: [f"{column} {row}" for row in range(number)] for column in COLUMNS[task]}
        labels = SCORES if task == "stsb" else [order[row % len(names)] for row in range(number)]
        kind = datasets.Value("float32") if task == "stsb" else datasets.ClassLabel(names=names)
        features = {**{column: datasets.Value("string") for column in texts}, "label": kind, "idx": datasets.Value("int32")}
        splits = {
            split: datasets.Dataset.from_dict(
                {**texts, "label": [-1] * number if split.startswith("test") else labels, "idx": list(range(number))},
                features=datasets.Features(features),
            )
            for split in splits_of(task)
        }
        return datasets.DatasetDict(splits)

    return make


def splits_of(task):
    if task != "mnli":
        return SPLITS
    return ["train", *(f"{part}_{kind}" for part in ("validation", "test") for kind in ("matched", "mismatched"))]


def save_parquet(splits, folder):
    """As the hub's repositories have them."""
    folder.mkdir(parents=True)
    for name, split in splits.items():
        for part in range(2):
            split.shard(2, part, contiguous=True).to_parquet(folder / f"{name}-0000{part}-of-00002.parquet")


@pytest.mark.parametrize("task", COLUMNS)
@pytest.mark.parametrize("way", ["saved", "parquet", "repository"])
def test_each_task_of_glue_is_read_with_its_labels(glue, tmp_path, task, way):
    if way == "saved":
        glue(task).save_to_disk(tmp_path / GLUE[task].task.name)
    else:
        save_parquet(glue(task), tmp_path / "glue" / task if way == "repository" else tmp_path / "data")
    assert is_data_set(task, tmp_path)
    data = read_hub(task, tmp_path)
    assert data.task == GLUE[task].task
    assert list(data.splits) == [name.replace("validation", "dev") for name in splits_of(task)]
    expected = SCORES if task == "stsb" else [row % len(NAMES[task]) for row in range(6)]
    for name, split in data.splits.items():
        assert [example.label for example in split.examples] == ([None] * 6 if name.startswith("test") else expected)
        assert [example.line for example in split.examples] == [1, 2, 3, 4, 5, 6]
        for row, example in enumerate(split.examples):
            texts = [example.text] if example.second is None else [example.text, example.second]
            assert texts == [f"{column} {row}" for column in COLUMNS[task]]


@pytest.mark.parametrize(
    ("names", "order"),
    [(("contradiction", "entailment", "neutral"), (1, 2, 0)), (("Neutral", "Contradictory", "ENTAILMENT"), (2, 0, 1))],
)
def test_classes_are_told_apart_by_name_and_not_by_number(glue, tmp_path, names, order):
    glue("mnli", names, order).save_to_disk(tmp_path)
    assert read_hub("mnli", tmp_path).targets("dev_matched").tolist() == [0, 1, 2, 0, 1, 2]


def test_the_same_examples_as_in_a_tasks_own_files(glue, tmp_path):
    splits = glue("stsb")
    splits.save_to_disk(tmp_path / "hub")
    rows = [["sentence1", "sentence2", "score"]]
    rows += [[row["sentence1"], row["sentence2"], str(score)] for row, score in zip(splits["train"], SCORES, strict=True)]
    (tmp_path / "train.tsv").write_text("\n".join("\t".join(row) for row in rows))
    ours, own = read_hub("stsb", tmp_path / "hub").split("train"), read_glue("stsb", tmp_path).split("train")
    assert [(example.text, example.second, example.label) for example in ours.examples] == [
        (example.text, example.second, example.label) for example in own.examples
    ]


def test_what_does_not_fit_is_refused(glue, datasets, tmp_path, refused):
    def saved(features=None, **columns):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        datasets.DatasetDict(validation=datasets.Dataset.from_dict(columns, features=features)).save_to_disk(folder)
        return folder

    with refused("validation", "row 1", "'1' is none of", "not_entailment"):
        read_hub("rte", saved(sentence1=["a"], sentence2=["b"], label=[1]))  # a number without a name could be either
    with refused("row 2", "'maybe' is none of", "not_entailment"):
        read_hub("rte", saved(sentence1=["a", "c"], sentence2=["b", "d"], label=["entailment", "maybe"]))
    with refused("row 1", "is none of"):
        read_hub("rte", saved(sentence1=["a"], sentence2=["b"], label=[None]))
    with refused("no column 'sentence1'", "premise, label"):
        read_hub("rte", saved(premise=["a"], label=["entailment"]))
    with refused("'sentence'", "is no text"):
        read_hub("cola", saved(sentence=[3], label=["acceptable"]))
    with refused("neither a name nor a number"):
        read_hub("cola", saved(sentence=["a"], label=[["acceptable"]]))
    folder = tmp_path / "odd"
    datasets.DatasetDict(odd=glue("rte")["train"]).save_to_disk(folder)
    with refused(folder, "no split of RTE", "not odd"):
        read_hub("rte", folder)
    (tmp_path / "empty").mkdir()
    assert not is_data_set("rte", tmp_path / "empty")
    with refused("empty", "no split of RTE", "not nothing"):
        read_hub("rte", tmp_path / "empty")
    with refused("did you mean rte"):
        read_hub("rtee", folder)


def test_digits_mean_what_they_do_in_the_tasks_own_files(datasets, tmp_path):
    columns = {"sentence": ["good", "bad"], "label": [1, 0]}
    datasets.DatasetDict(validation=datasets.Dataset.from_dict(columns)).save_to_disk(tmp_path)
    assert read_hub("sst2", tmp_path).targets("dev").tolist() == [1, 0]


# XNLI


@pytest.fixture
def xnli(datasets):
    """Make XNLI in one language or in all of these."""

    def make(*languages, number=6):
        def said(what, row):
            texts = {language: f"{what} {row} {language}" for language in languages}
            return texts if len(languages) > 1 else texts[languages[0]]

        several = len(languages) > 1
        features = datasets.Features(
            premise=datasets.Translation(languages=list(languages)) if several else datasets.Value("string"),
            hypothesis=datasets.TranslationVariableLanguages(languages=list(languages)) if several else datasets.Value("string"),
            label=datasets.ClassLabel(names=["entailment", "neutral", "contradiction"]),
        )
        columns = {
            "premise": [said("p", row // 3) for row in range(number)],
            "hypothesis": [said("h", row) for row in range(number)],
            "label": [row % 3 for row in range(number)],
        }
        return datasets.DatasetDict({split: datasets.Dataset.from_dict(columns, features=features) for split in SPLITS})

    return make


@pytest.mark.parametrize("way", ["each", "all"])
def test_xnli_is_read_as_from_its_own_files(xnli, tmp_path, way):
    own = tmp_path / "own"
    own.mkdir()
    names = ("entailment", "neutral", "contradiction")
    for language in ("de", "sw"):
        lines = [f"p {row // 3} {language}\th {row} {language}\t{names[row % 3]}" for row in range(6)]
        (own / f"dev-{language}.tsv").write_text("\n".join(lines))
        if way == "each":
            xnli(language).save_to_disk(tmp_path / "hub" / language)
    if way == "all":
        xnli("de", "sw", "fr").save_to_disk(tmp_path / "hub")
    data, expected = read_hub("xnli", tmp_path / "hub", ["de", "sw"]), read_xnli(own, ["de", "sw"])
    for split in ("dev", "dev-de", "dev-sw"):
        assert data.split(split).examples == expected.split(split).examples
    assert [example.group for example in data.split("train-de").examples] == list("012345")
    assert set(data.splits) == {"dev", *(f"{part}-{language}" for part in ("train", "dev", "test") for language in ("de", "sw"))}


def test_a_language_that_is_not_there_is_refused(xnli, tmp_path, refused):
    xnli("de", "sw").save_to_disk(tmp_path / "all")
    with refused("not there in fr"):
        read_hub("xnli", tmp_path / "all", ["fr"])
    xnli("de").save_to_disk(tmp_path / "unnamed")
    with refused("one language only", "facebook/xnli:de"):
        read_hub("xnli", tmp_path / "unnamed")
    assert set(read_hub("xnli", tmp_path / "unnamed", ["de"]).splits) == {"dev", "train-de", "dev-de", "test-de"}
    with refused("nothing of XNLI in fr"):
        xnli("de").save_to_disk(tmp_path / "each" / "de")
        read_hub("xnli", tmp_path / "each", ["de", "fr"])
    with refused("no language 'xx'"):
        read_hub("xnli", tmp_path / "all", ["xx"])


# Questions


@pytest.fixture
def squad(datasets):
    def make(rows):
        features = datasets.Features(
            {name: datasets.Value("string") for name in ("id", "title", "context", "question")},
            answers=datasets.Sequence({"text": datasets.Value("string"), "answer_start": datasets.Value("int32")}),
        )
        keys = ("text", "answer_start")
        made = [{**row, "answers": {key: [pair[n] for pair in row["answers"]] for n, key in enumerate(keys)}} for row in rows]
        return datasets.Dataset.from_list(made, features=features)

    return make


def test_questions_are_those_of_squads_own_file(squad, datasets, tmp_path):
    datasets.DatasetDict(train=squad(ASKED[:1]), validation=squad(ASKED)).save_to_disk(tmp_path / "hub")
    articles = [
        {
            "title": row["title"],
            "paragraphs": [
                {
                    "context": row["context"],
                    "qas": [
                        {
                            "id": row["id"],
                            "question": row["question"],
                            "answers": [{"text": text, "answer_start": start} for text, start in row["answers"]],
                            "is_impossible": not row["answers"],
                        }
                    ],
                }
            ],
        }
        for row in ASKED
    ]
    (tmp_path / "dev.json").write_text(json.dumps({"data": articles}))
    read = read_hub_questions(tmp_path / "hub")
    assert read["dev"] == read_squad(tmp_path / "dev.json")
    assert read["dev"].moved == 1
    assert len(read["train"].questions) == 1


def test_questions_of_a_data_set_are_a_task(squad, datasets, tmp_path, make_tokenizer, refused):
    datasets.DatasetDict(train=squad(ASKED[:2]), validation=squad(ASKED)).save_to_disk(tmp_path / "hub")
    recipe = FineTuning(model="-", task="squad", data=[str(tmp_path / "hub")])
    assignment = assignment_of(recipe, make_tokenizer())
    assert (assignment.selecting, len(assignment.training), len(assignment.source("dev"))) == ("dev", 2, 3)
    with refused("hub", "no dev"):
        assignment_of(replace(recipe, dev="0.5"), make_tokenizer())
    datasets.DatasetDict(train=squad(ASKED)).save_to_disk(tmp_path / "alone")
    with refused("alone", "no split dev", "train"):
        assignment_of(replace(recipe, data=[str(tmp_path / "alone")]), make_tokenizer())


def test_broken_questions_are_refused_by_row(squad, datasets, tmp_path, refused):
    for change, named in (({"id": ""}, '"id"'), ({"context": " "}, '"context" is empty'), ({"question": None}, '"question"')):
        folder = tmp_path / named.strip('"')
        datasets.DatasetDict(validation=squad([ASKED[0], {**ASKED[1], **change}])).save_to_disk(folder)
        with refused("row 2", named):
            read_hub_questions(folder)
    datasets.DatasetDict(validation=squad(ASKED).remove_columns("title")).save_to_disk(tmp_path / "untitled")
    with refused("no column 'title'", "context"):
        read_hub_questions(tmp_path / "untitled")
    with refused("nowhere", "check the folder"):
        read_hub_questions(tmp_path / "nowhere")


# The user's own


def test_the_columns_of_a_data_set_make_a_task(datasets, tmp_path, refused):
    features = datasets.Features(
        text=datasets.Value("string"),
        mood=datasets.ClassLabel(names=["sad", "glad"]),
        tags=datasets.Sequence(datasets.ClassLabel(names=["red", "blue"])),
    )
    columns = {"text": [f"text {row}" for row in range(40)], "mood": [0, 1] * 20, "tags": [[0, 1], [], [1], [0]] * 10}
    made = datasets.Dataset.from_dict(columns, features=features)
    splits = datasets.DatasetDict(train=made, validation=made.select(range(4)), test=made.select(range(2)))
    splits.save_to_disk(tmp_path / "saved")
    save_parquet(splits, tmp_path / "parquet" / "data")
    for folder in (tmp_path / "saved", tmp_path / "parquet"):
        data = read_own(folder, ["text"], "mood")
        assert (data.task.labels, len(data.split("train")), len(data.split("dev"))) == (("glad", "sad"), 40, 4)
        assert data.targets("dev").tolist() == [1, 0, 1, 0]
        assert read_own(folder, ["text"], "tags").targets("dev").tolist() == [[1, 1], [0, 0], [1, 0], [0, 1]]
        assert len(read_own(folder, ["text"], "mood", dev=0.25).split("dev")) == 10
        assert len(read_own(folder, ["text"], "mood", dev=tmp_path / "saved").split("dev")) == 4
    made.save_to_disk(tmp_path / "single")
    assert len(read_own(tmp_path / "single", ["text"], "mood").split("dev")) == 4
    with refused("saved", "'words'", "text, mood, tags"):
        read_own(tmp_path / "saved", ["words"], "mood")
    with refused("no data set", "name the file"):
        read_own(tmp_path, ["text"], "mood")
    splits.pop("train")
    splits.save_to_disk(tmp_path / "untrained")
    with refused("untrained", "for train", "test, dev"):
        read_own(tmp_path / "untrained", ["text"], "mood")


# The hub


@pytest.fixture
def repository(glue, datasets, tmp_path):
    """A folder as the hub's repository of GLUE, which stands in for its name: both go through `load_dataset`."""
    card = ["---", "configs:"]
    for task in ("rte", "mnli"):
        save_parquet(glue(task), tmp_path / "hub" / task)
        card += [f"- config_name: {task}", "  data_files:"]
        card += [line for split in splits_of(task) for line in (f"  - split: {split}", f"    path: {task}/{split}-*")]
    (tmp_path / "hub" / "README.md").write_text("\n".join([*card, "---"]))
    return f"datasets:{tmp_path / 'hub'}"


def test_the_configuration_follows_from_the_task(repository, refused):
    assert is_data_set("rte", repository)
    for task in ("rte", "mnli"):
        data = read_hub(task, repository)
        assert data.targets(data.task.dev).tolist() == [row % len(NAMES[task]) for row in range(6)]
    assert list(read_hub("RTE", f"{repository}:rte:validation").splits) == ["dev"]
    with refused("hub:cola", "'cola' not found", "NAME[:CONFIGURATION[:SPLIT]]"):
        read_hub("cola", repository)
    data = read_own(f"{repository}:rte", ["sentence1", "sentence2"], "label")
    assert (data.task.labels, len(data.split("dev"))) == (("entailment", "not_entailment"), 6)
    named = read_own(f"{repository}:rte", ["sentence1", "sentence2"], "label", dev=f"{repository}:rte:train")
    assert str(named.split("dev").path).endswith("hub:rte:train/train")


@pytest.fixture
def hub(datasets, monkeypatch, tmp_path):
    """Let the hub's address be one on this machine, with nothing fetched before."""

    def use(endpoint):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    return use


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (403, "GatedRepo", "data set of that name is gated"),
        (404, "RepoNotFound", "no data set of that name"),
        (503, "", "reached"),
    ],
)
def test_a_hub_that_does_not_give_the_data_set_says_what_to_do(hub, refused, status, code, remedy):
    with answering(status, code) as endpoint:
        hub(endpoint)
        with refused("'owner/data:rte'", remedy):
            read_hub("rte", "datasets:owner/data")


def test_a_hub_that_never_answers_is_asked_once(hub, datasets, monkeypatch, refused):
    monkeypatch.setattr(files, "HUB_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with refused("'owner/data:rte'", "cannot be reached"):
            read_hub("rte", "datasets:owner/data")
        silent.setblocking(False)
        silent.accept()
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert not datasets.config.HF_HUB_OFFLINE


def test_without_leave_to_fetch_nothing_is_fetched(datasets, refused):
    with refused("'owner/data:rte'", "HF_HUB_OFFLINE"):
        read_hub("rte", "datasets:owner/data")
