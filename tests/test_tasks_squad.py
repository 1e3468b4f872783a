"""Question answering: what is read, what windows show, what is answered, and what answers are worth."""

import gzip
import json
import random
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from limbeck.errors import CheckFailed
from limbeck.tasks.answer_scores import best_threshold, evaluate, f1, normalised, score
from limbeck.tasks.answers import Candidate, Prediction, predict
from limbeck.tasks.squad import Answer, Question, read_squad
from limbeck.tasks.windows import NULL, Windower

PASSAGE = "The spirit of water rose early. In the north a small vessel of copper was warm; its vapour was clear and pure."


def entry(question="What rose?", *answers, id="1", **more):
    return {"id": id, "question": question, "answers": [{"text": text, "answer_start": at} for text, at in answers], **more}


def squad(*entries, context=PASSAGE, title="Stills"):
    return {"version": "1.1", "data": [{"title": title, "paragraphs": [{"context": context, "qas": list(entries)}]}]}


def ask(text="What rose?", answer="water", passage=PASSAGE, answers=None, language=None):
    golds = [answer] if answers is None else answers
    return Question("1", text, passage, tuple(Answer(gold, passage.index(gold)) for gold in golds), "Stills", language)


@pytest.fixture
def write(tmp_path):
    def write(content, name="a.json", pack=bytes):
        file = tmp_path / name
        file.write_bytes(pack(content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False).encode()))
        return file

    return write


# Reading


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_questions_are_read_plain_or_packed(write, pack, name):
    file = read_squad(write(squad(entry("What rose?", ("water", 14), ("spirit of water", 4))), name, pack))
    assert file.questions == (
        Question("1", "What rose?", PASSAGE, (Answer("water", 14), Answer("spirit of water", 4)), "Stills"),
    )
    assert file.remarks == []


def test_what_the_passage_does_not_answer_is_a_question_too(write):
    plausible = [{"text": "water", "answer_start": 14}]
    file = read_squad(write(squad(entry("Who drank?", is_impossible=True, plausible_answers=plausible))))
    assert not file.questions[0].answerable
    assert file.questions[0].trainable


def test_an_answer_beside_its_offset_is_moved_to_the_one_place_where_it_is(write):
    answers = [("water", 13), ("pure.", -5), ("was", 0), ("gold", 14)]
    questions = [entry(f"{number}?", answer, id=str(number)) for number, answer in enumerate(answers)]
    file = read_squad(write(squad(*questions, entry("4?", ("gold", 0), ("water", 14), id="4"))))
    assert [question.answers[0].start for question in file.questions] == [14, PASSAGE.index("pure."), None, None, None]
    assert (file.moved, file.lost) == (2, ("2", "3", "4"))
    assert [question.trainable for question in file.questions] == [True, True, False, False, True]
    assert file.questions[4].located == Answer("water", 14)
    assert len(file.remarks) == 2
    assert "2, 3, 4" in file.remarks[1]


def test_offsets_count_characters_of_any_plane(write):
    file = read_squad(write(squad(entry("?", ("水", 2)), context="𠀀🙂水")))
    assert file.questions[0].answers == (Answer("水", 2),)


def test_questions_that_share_an_id_are_told_apart(write):
    file = read_squad(write(squad(entry("a?", ("water", 14), id="7"), entry("b?", ("water", 14), id="7"))))
    assert [question.id for question in file.questions] == ["7", "7#2"]
    assert "2 questions share an id" in file.remarks[0]


def test_a_question_that_stands_there_twice_is_refused(write, refused):
    question = entry("a?", ("water", 14), id="7")
    with refused("question 2", "'7'", "article 1, paragraph 1, question 1"):
        read_squad(write(squad(question, question)))


def test_articles_without_a_title_are_numbered(write):
    content = squad(entry("a?", ("water", 14)))
    del content["data"][0]["title"]
    assert read_squad(write(content)).questions[0].article == "1"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"{", "not JSON"),
        (b"text,label\nwater,0\n", "give files in SQuAD's JSON"),
        (b'{"data": "\xff"}', "not UTF-8"),
        (b"[]", '"data"'),
        ({"data": []}, "no question"),
        ({"data": [{"title": "a"}]}, 'article 1: there is no list "paragraphs"'),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, 'article 1, paragraph 1: there is no text "context"'),
        (squad(entry(), context=" "), '"context" is empty'),
        (squad(entry("a?", ("water", 14)), {"id": "2"}), 'question 2: there is no text "question"'),
        (squad({"question": "a?", "answers": []}), 'question 1: there is no "id"'),
        (squad({"question": "a?", "id": "1"}), 'no list "answers"'),
        (squad(entry("a?")), '"is_impossible" is not true'),
        (squad(entry("a?", ("water", 14), is_impossible=True)), "yet there is an answer"),
        (squad(entry("a?", is_impossible="true")), "must be true or false"),
        (squad(entry("a?", ("", 3))), '"text" is empty'),
        (squad(entry("a?", ("water", "14"))), "whole number"),
        (squad(entry("a?", ("water", None))), "whole number"),
        (b'{"data": [{"paragraphs": [{"context": "\\ud800", "qas": []}]}]}', "surrogate"),
        (gzip.compress(b"{}" * 100)[:-9], "broken compressed file"),
    ],
)
def test_broken_files_are_refused_with_the_place(write, refused, content, named):
    file = write(content)
    with refused(file, named):
        read_squad(file)


def test_a_missing_file_is_named(tmp_path, refused):
    with refused("none.json", "cannot be read"):
        read_squad(tmp_path / "none.json")


# Windows


@pytest.fixture
def spaced_tokenizer(bpe_tokenizer):
    """A byte-level tokenizer as ModernBERT has it: the blank before a word is in its token's span, a pair is A [SEP] B."""
    backend = Tokenizer.from_str(bpe_tokenizer.backend_tokenizer.to_str())
    special = [("<s>", bpe_tokenizer.cls_token_id), ("</s>", bpe_tokenizer.sep_token_id)]
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B </s>", special)
    assert backend.encode("a water").offsets[2][0] == 1
    return PreTrainedTokenizerFast(tokenizer_object=backend, cls_token="<s>", sep_token="</s>", pad_token="<pad>")


@pytest.fixture(params=["tiny", "bpe", "spaced", "unigram"])
def tokenizer(request):
    """One of each kind: WordPiece, byte-level BPE twice, Unigram."""
    return request.getfixturevalue(f"{request.param}_tokenizer")


def shown(question, window):
    """What a window's target covers of the passage."""
    first, last = (place - window.first for place in window.target)
    return question.passage[window.spans[first, 0] : window.spans[last, 1]]


def test_windows_equal_those_of_transformers(tokenizer):
    question = ask("Which vessel of copper?")
    windows = Windower(tokenizer, max_length=32, overlap=2, max_question=24)([question])
    expected = tokenizer(
        question.text, question.passage, truncation="only_second", max_length=32, stride=2, return_overflowing_tokens=True
    )["input_ids"]
    assert len(expected) > 1
    assert [window.ids.tolist() for window in windows] == expected


@pytest.mark.parametrize(("max_length", "overlap"), [(20, 0), (20, 6), (21, 3), (64, 40), (512, 128)])
def test_every_token_is_shown_and_chosen_once(tokenizer, max_length, overlap):
    question = ask("What rose early in the north?")
    whole = Windower(tokenizer, max_length=512, overlap=0, max_question=8)([question])[0]
    windows = Windower(tokenizer, max_length=max_length, overlap=overlap, max_question=8)([question])
    chosen = np.concatenate([window.spans[window.chosen] for window in windows])
    assert sorted(map(tuple, chosen)) == sorted(map(tuple, whole.spans))
    assert all(len(window.ids) <= max_length for window in windows)
    assert all(len(window.ids) == max_length for window in windows[:-1])
    for window, following in pairwise(windows):
        tail, head = window.ids[window.first : -1], following.ids[following.first : -1]
        assert tail[len(tail) - overlap :].tolist() == head[:overlap].tolist()


def test_a_token_is_chosen_where_it_stands_in_the_most_context(tiny_tokenizer):
    words = ["water", "stone", "paper", "glass", "copper", "spirit", "vapour", "still", "flask", "fire", "drop", "slow"]
    question = ask("glass", "water", " ".join(words))
    windows = Windower(tiny_tokenizer, max_length=10, overlap=4, max_question=1)([question])  # room for 6
    tokens = [[question.passage[start:end] for start, end in window.spans] for window in windows]
    assert tokens == [words[0:6], words[2:8], words[4:10], words[6:12]]
    # context of "copper" (4): 1 of 0..5, 2 of 2..7, 0 of 4..9; of "glass" (3): 2 of the first, 1 of the second
    chosen = [[question.passage[start:end] for start, end in window.spans[window.chosen]] for window in windows]
    assert chosen == [words[0:4], words[4:6], words[6:8], words[8:12]]


@pytest.mark.parametrize("answer", ["The", "spirit", "small vessel", "water rose early", "clear and pure", "pure."])
def test_targets_cover_the_answer_and_no_other_word(tokenizer, answer):
    question = ask(answer=answer)
    (window,) = Windower(tokenizer)([question])
    assert shown(question, window) == answer


def test_targets_cover_answers_in_any_script(unigram_tokenizer, bpe_tokenizer):
    passage = "Der Fluß: ﬁrst 水は青い 🙂 في القاهرة แม่น้ำ नदी"
    for tokenizer in (unigram_tokenizer, bpe_tokenizer):
        for answer in ["Fluß", "水は青い", "🙂", "القاهرة", "แม่น้ำ", "नदी"]:
            question = ask(answer=answer, passage=passage)
            (window,) = Windower(tokenizer)([question])
            assert answer in shown(question, window)
            assert len(shown(question, window)) <= len(answer) + 1  # a piece may go on into the next character


def test_targets_leave_out_what_touches_the_answer(tiny_tokenizer):
    question = ask(answer="copper", passage="glass-copper.")
    (window,) = Windower(tiny_tokenizer)([question])
    assert shown(question, window) == "copper"


def test_an_answer_within_a_word_takes_the_word(tiny_tokenizer):
    question = Question("1", "a", "some water river", (Answer("ate", 6),), "1")
    (window,) = Windower(tiny_tokenizer)([question])
    assert shown(question, window) == "water"


def test_an_answer_that_a_window_cuts_is_none_there(tiny_tokenizer):
    words = ["water", "stone", "paper", "glass", "copper", "spirit", "vapour", "still", "flask", "fire", "drop", "slow"]
    question = ask("glass", "spirit vapour", " ".join(words))
    windows = Windower(tiny_tokenizer, max_length=10, overlap=4, max_question=1)([question])
    # windows show words 0 to 5, 2 to 7, 4 to 9 and 6 to 11; the answer is words 5 and 6
    assert [window.target != (NULL, NULL) for window in windows] == [False, True, True, False]
    assert [shown(question, window) for window in windows[1:3]] == ["spirit vapour"] * 2


def test_unanswerable_questions_point_at_the_first_token(tokenizer):
    windows = Windower(tokenizer, max_length=40, overlap=5, max_question=30)([ask(answers=[])])
    assert {window.target for window in windows} == {(0, 0)}
    assert {int(window.ids[0]) for window in windows} == {tokenizer.cls_token_id}


def test_questions_are_cut_and_leave_their_room(tiny_tokenizer):
    long, short = ask("water " * 30), ask("water")
    windows = Windower(tiny_tokenizer, max_length=24, overlap=2, max_question=4)([long, short])
    assert {(window.question, window.first) for window in windows} == {(0, 6), (1, 3)}


def test_special_tokens_in_a_text_are_text(tiny_tokenizer):
    (window,) = Windower(tiny_tokenizer)([ask("[SEP]", "water", "[CLS] water [SEP]")])
    assert window.ids.tolist().count(tiny_tokenizer.sep_token_id) == 2
    assert window.ids.tolist().count(tiny_tokenizer.cls_token_id) == 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_length": 64, "max_question": 64, "overlap": 0}, ["room for 0", "a max_length of at least 68", "at most 60"]),
        (
            {"max_length": 128, "max_question": 32, "overlap": 128},
            ["room for 93", "max_length of at least 164", "at most 92"],
        ),
        (
            {"max_length": 128, "max_question": 64, "overlap": 61},
            ["room for 61", "max_question of at most 63", "at most 60"],
        ),
        ({"overlap": -1}, ["overlap is -1"]),
        ({"max_question": 0}, ["max_question 0"]),
    ],
)
def test_windows_without_room_are_refused_with_numbers_that_work(tiny_tokenizer, refused, settings, named):
    with refused(*named):
        Windower(tiny_tokenizer, **settings)


def test_the_numbers_named_do_work(tiny_tokenizer):
    for settings in (
        {"max_length": 68, "max_question": 64, "overlap": 0},
        {"max_length": 128, "max_question": 32, "overlap": 92},
        {"max_length": 128, "max_question": 63, "overlap": 61},
    ):
        assert Windower(tiny_tokenizer, **settings)([ask("water " * 100)])


# Answers


def logits(windows, **marks):
    """Start and end logits that are 0 but for marks on a window's places, as start_WINDOW={place: logit}."""
    starts, ends = ([np.zeros(len(window.ids)) for window in windows] for _ in "se")
    for name, values in marks.items():
        side, window = name.split("_")
        for place, value in values.items():
            {"start": starts, "end": ends}[side][int(window)][place] = value
    return starts, ends


def oracle(windows):
    """Logits that point at the targets."""
    starts, ends = logits(windows)
    for window, start, end in zip(windows, starts, ends, strict=True):
        start[window.target[0]] = end[window.target[1]] = 9
    return starts, ends


def test_the_targets_give_the_answer_back(tokenizer):
    questions = [ask(answer=answer) for answer in ("The", "small vessel of copper", "pure.")] + [ask(answers=[])]
    windows = Windower(tokenizer, max_length=70, overlap=30, max_question=10)(questions)
    predictions = predict(questions, windows, *oracle(windows))
    assert [prediction.answer() for prediction in predictions] == ["The", "small vessel of copper", "pure.", ""]


def test_spans_are_the_best_of_all_there_are(tiny_tokenizer):
    drawn = np.random.default_rng(0)
    question = ask()
    windows = Windower(tiny_tokenizer, max_length=20, overlap=6, max_question=4)([question])
    starts, ends = ([drawn.normal(size=len(window.ids)) for window in windows] for _ in "se")
    every = [
        (start[window.first + i] + end[window.first + j], int(window.spans[i, 0]), int(window.spans[j, 1]))
        for window, start, end in zip(windows, starts, ends, strict=True)
        for i in np.flatnonzero(window.chosen)
        for j in range(i, min(i + 4, len(window.spans)))
    ]
    (prediction,) = predict([question], windows, starts, ends, candidates=7, max_answer=4)
    expected = [(pytest.approx(value), PASSAGE[start:end]) for value, start, end in sorted(every, reverse=True)[:7]]
    assert [(candidate.score, candidate.text) for candidate in prediction.candidates] == expected
    assert all(PASSAGE.startswith(candidate.text, candidate.start) for candidate in prediction.candidates)


def test_no_answer_scores_as_in_the_window_that_believes_least_in_it(tiny_tokenizer):
    question = ask()
    windows = Windower(tiny_tokenizer, max_length=20, overlap=6, max_question=4)([question])
    assert len(windows) == 4
    null = {"start_0": {NULL: 4}, "start_1": {NULL: 1}, "end_1": {NULL: 2}, "start_3": {NULL: 7}}
    place = windows[2].first + int(np.flatnonzero(windows[2].chosen)[0])
    starts, ends = logits(windows, **null, start_2={NULL: 9, place: 2}, end_2={place: 2.5})
    (prediction,) = predict([question], windows, starts, ends)
    assert prediction.null_score == 3
    assert prediction.no_answer == pytest.approx(3 - 4.5)
    assert prediction.answer() == prediction.answer(-1.5) == prediction.text != ""
    assert prediction.answer(-1.6) == ""


def test_padding_question_and_special_tokens_are_no_answers(tiny_tokenizer):
    question = ask("water stone", passage="glass copper", answer="glass")
    (window,) = Windower(tiny_tokenizer)([question])
    padded = np.full(len(window.ids) + 5, 9.0)
    padded[window.first : window.first + 2] = 0
    padded[len(window.ids) :] = np.nan
    (prediction,) = predict([question], [window], [padded], [padded])
    assert [candidate.text for candidate in prediction.candidates] == ["glass", "glass copper", "copper"]


def test_characters_of_several_tokens_come_whole_and_once(bpe_tokenizer):
    question = ask("a", passage="ab 🙂", answer="🙂")
    (window,) = Windower(bpe_tokenizer)([question])
    (prediction,) = predict([question], [window], *([np.zeros(len(window.ids))] for _ in "se"))
    texts = [candidate.text for candidate in prediction.candidates]
    assert "🙂" in texts
    assert len(texts) == len(set(texts))


def test_scores_that_are_not_finite_stop_it(tiny_tokenizer):
    question = ask()
    (window,) = Windower(tiny_tokenizer)([question])
    with pytest.raises(CheckFailed, match="question '1'"):
        predict([question], [window], [np.full(len(window.ids), np.nan)], [np.zeros(len(window.ids))])


# What answers are worth


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("The  Nobel-Prize, a gift!", None, "nobelprize gift"),
        ("“An” apple’s theory…", None, "“ ” apple’s theory…"),
        ("“An” apple’s theory…", "en", "apples theory"),
        ("Der Hund und die Katze", "de", "hund und katze"),
        ("Las «dos» y una", "es", "dos y"),
        ("cái bàn của tôi", "vi", "bàn tôi"),
        ("في القاهرة، مصر", "ar", "في قاهرة مصر"),
        ("2014年，北京 Olympics", "zh", "2014 年 北 京 olympics"),
        ("แม่น้ำเจ้าพระยา ๒๕", "th", "แม่น้ำเจ้าพระยา ๒๕"),
        ("नई दिल्ली।", "hi", "नई दिल्ली"),
        ("the a", "hi", "the a"),
        ("The", None, ""),
    ],
)
def test_normalisation(text, language, expected):
    assert normalised(text, language) == expected


def test_unknown_languages_are_refused(refused):
    with refused("'xx'", "ar, bn, de"):
        normalised("a", "xx")


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [("red fox", "red fox", 1), ("red fox", "fox", 2 / 3), ("fox fox", "fox red", 1 / 2), ("cat", "fox", 0), ("", "fox", 0)],
)
def test_f1_of_words(answer, gold, expected):
    for pair in ((answer, gold), (gold, answer)):
        assert [f1(*pair, empty_counts=empty_counts) for empty_counts in (False, True)] == [pytest.approx(expected)] * 2


def test_chinese_is_compared_by_characters():
    f1s = [score([ask(passage="他住在北京市。", answer="北京市", language=name)], ["在北京"]).f1[0] for name in ("zh", None)]
    assert f1s == [pytest.approx(2 / 3), 0]


def test_each_question_is_compared_by_the_rules_of_its_own_language():
    questions = [ask(passage="die Nacht", answer="die Nacht", language=name) for name in ("de", "en", None)]
    assert score(questions, ["Nacht"] * 3).exact.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("language", "gold", "answer", "exact", "overlap"),
    [
        ("ar", "القاهرة", "قاهرة", 1, 1),
        ("ar", "مدينة القاهرة", "القاهرة", 0, 2 / 3),
        ("th", "แม่น้ำ", "แม่น้ำ!", 1, 1),
        ("th", "แม่น้ำปิง", "แม่น้ำ", 0, 0),
        ("hi", "नई दिल्ली", "दिल्ली।", 0, 2 / 3),
    ],
)
def test_scripts_are_compared_by_their_rules(language, gold, answer, exact, overlap):
    scores = score([ask(passage=gold, answer=gold, language=language)], [answer])
    assert (scores.exact[0], scores.f1[0]) == (exact, pytest.approx(overlap))


def test_the_best_gold_counts():
    scores = score([ask(answers=["spirit of water", "water", "copper"])], ["the water vessel"])
    assert (scores.exact[0], scores.f1[0]) == (0, pytest.approx(2 / 3))
    assert score([ask(answers=["copper", "water"])], ["Water"]).exact[0] == 1


def test_answers_without_a_word_count_as_each_version_has_it():
    gold = Question("1", "?", "The end", (Answer("The", 0),), "1")
    assert (score([gold], [""]).exact[0], score([gold], [""]).f1[0]) == (1, 0)  # SQuAD 1.1
    both = score([gold, ask(answers=[])], ["a", "the"])  # SQuAD 2.0
    assert both.exact.tolist() == both.f1.tolist() == [1, 1]
    assert score([ask(), ask(answers=[])], ["", "water"]).f1.tolist() == [0, 0]


def predicted(text, no_answer):
    return Prediction((Candidate(text, 0, 1.0),), 1.0 + no_answer)


def test_the_figures_of_squad_2_by_hand():
    questions = [ask(answer="water"), ask(answer="small vessel"), ask(answers=[]), ask(answers=[])]
    predictions = [predicted("water", -2), predicted("a vessel", 1), predicted("copper", -1), predicted("warm", 3)]
    result = evaluate(questions, predictions)
    # answered at 0: "water" (right), nothing for the second, "copper" (wrong), nothing for the last (right)
    assert result == pytest.approx(
        {
            "exact": 50,
            "f1": 50,
            "questions": 4,
            "has_answer_exact": 50,
            "has_answer_f1": 50,
            "has_answer_questions": 2,
            "no_answer_exact": 50,
            "no_answer_f1": 50,
            "no_answer_questions": 2,
            "best_exact": 75,  # only the first is answered
            "best_exact_threshold": -2,
            "best_f1": 75,  # answering the second as well gains 2/3 and has lost 1 on the way
            "best_f1_threshold": -2,
            "always_null_exact": 50,
            "always_null_f1": 50,
        }
    )
    assert evaluate(questions, predictions, threshold=1)["has_answer_f1"] == pytest.approx(100 * (1 + 2 / 3) / 2)


def test_the_figures_of_squad_1_ignore_no_answer():
    assert evaluate([ask(), ask()], [predicted("water", 9), predicted("vapour", -9)]) == {"exact": 50, "f1": 50, "questions": 2}


def test_the_best_threshold_is_the_best_of_all():
    drawn = np.random.default_rng(0)
    for size in [1, 2, 5, 30] * 20:
        answerable = drawn.random(size) < 0.5
        spoken = drawn.random(size) < 0.9
        scores = np.where(answerable & spoken, drawn.random(size).round(1), 0)
        no_answer = drawn.integers(-3, 4, size).astype(float)  # many are equal
        threshold, best = best_threshold(scores, no_answer, answerable, spoken)
        means = []
        for level in [-4, *no_answer, threshold]:
            said = (no_answer <= level) & spoken
            means.append(np.where(answerable, scores * said, ~said).mean())
        assert [max(means), means[-1]] == [pytest.approx(best)] * 2


def test_never_answering_may_be_best():
    threshold, best = best_threshold(np.zeros(3), np.array([-5.0, 0.0, 2.0]), np.array([True, False, False]), np.ones(3, bool))
    assert best == pytest.approx(2 / 3)
    assert threshold < -5


# Real files


@pytest.mark.parametrize(
    ("name", "language", "questions", "exact"),
    [
        ("dev-v2.0.json", None, 6078, 100),
        ("mlqa/dev-context-zh-question-zh.json", "zh", 504, 98),
        ("mlqa/dev-context-en-question-en.json", "en", 1148, 99),
        ("tydiqa_goldp/tydiqa.goldp.en.train.json.gz", None, 3696, 98),
    ],
)
def test_targets_of_real_questions_score_what_the_golds_score(real_data, minilm, name, language, questions, exact):
    from transformers import AutoTokenizer

    file = read_squad(real_data / "squad" / name, language)
    assert (len(file.questions), file.moved, file.lost) == (questions, 0, ())
    sample = random.Random(0).sample(file.questions, 300)
    windows = Windower(AutoTokenizer.from_pretrained(minilm))(sample)
    result = evaluate(sample, predict(sample, windows, *oracle(windows), max_answer=100))
    assert result["exact"] >= exact


def test_always_null_scores_the_share_of_unanswerable_questions(real_data):
    questions = read_squad(real_data / "squad" / "dev-v2.0.json").questions
    result = evaluate(questions, [Prediction((), 0.0)] * len(questions))
    assert result["exact"] == result["always_null_f1"] == result["best_f1"] == pytest.approx(100 * 3168 / 6078)


@pytest.mark.parametrize("language", ["ar", "de", "es", "hi", "vi", "zh"])
def test_golds_score_100_in_every_language(real_data, language):
    file = real_data / "squad" / "mlqa" / f"dev-context-{language}-question-{language}.json"
    questions = read_squad(file, language).questions
    predictions = [predicted(question.answers[0].text, 0) for question in questions]
    assert evaluate(questions, predictions)["exact"] == 100
