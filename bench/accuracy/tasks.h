/* tasks.h - synthetic long prompts with questions, their grader, and an interval for the
   grades. C99 or C++, no allocation, no global state: the accuracy program, the tests and
   train.py (through ctypes) all use this one.

       // 8192 positions hold the body and any one query
       tasks_config c = tasks_default(8192, TASKS_EVALUATION);
       tasks_error  e;
       int32_t     *body    = malloc((size_t)c.length * sizeof *body);
       tasks_query *queries = malloc((size_t)tasks_query_count(&c) * sizeof *queries);
       if (tasks_make(&c, seed, body, queries, &e)) puts(e.text);
       // prefill the body once; then for each query: append its prompt, generate at most
       // tasks_limit() tokens or up to TASKS_STOP, grade, cut the cache back to the body
       double grade = tasks_grade(&queries[i], output, length);

   A body is one document, in the spirit of RULER's (words in quotes are single tokens, see
   tasks_name):
       facts     "fact:" subject object "."    QA1   asks "fact:" subject    -> object "."
       chains    two facts, A B and B C        QA2   asks "hop:" A           -> B C "."
       needles   "code:" key value "."         NIAH  asks "code:" key        -> its four values "."
       filler    coded words of some families  FWE   asks "frequent:" family -> its three top words "."
       passages  "text:" 32 words "."          TEXT  gives "text:" and 8 words, then 56 to predict
   Facts, needles and passages lie at random places of the filler. Two keys with one value each
   are distractors for every key with four; keys, subjects and objects are entities. The words
   of a family have Zipf frequencies, k^-1.5; which word has which is drawn per body. The words
   of passages follow a fixed random grammar (16 successors a word, 2.4 nats); the text of a
   TEXT query is made of pieces of 16 words, each copied from a passage of the body: who finds
   the passage knows the next word.

   Training and evaluation never share a prompt: (1) they draw from disjoint streams whatever
   the seeds; (2) the pairs (subject, object) and (key, value) for which tasks_held_out is 1, an
   eighth of all, occur in evaluation alone and nothing else does there: an answer that training
   has taught for a subject or key is always wrong. */
#ifndef TASKS_H
#define TASKS_H

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------ tokens */

enum {
    TASKS_PAD, TASKS_BOS, TASKS_STOP, TASKS_FACT, TASKS_HOP, TASKS_KEY, TASKS_FREQUENT, TASKS_TEXT,
    TASKS_FAMILY,
    TASKS_FAMILIES = 4,   TASKS_FAMILY_WORDS = 32,
    TASKS_ENTITIES = 512, TASKS_VALUES = 256, TASKS_WORDS = 256,

    TASKS_ENTITY = 16,                                            /* the first token of each kind */
    TASKS_VALUE = TASKS_ENTITY + TASKS_ENTITIES,
    TASKS_CODED = TASKS_VALUE + TASKS_VALUES,
    TASKS_WORD  = TASKS_CODED + TASKS_FAMILIES * TASKS_FAMILY_WORDS,
    TASKS_VOCAB = TASKS_WORD + TASKS_WORDS
};

/* Writes the token's text, at most 15 bytes and a 0; no two tokens have the same. */
static inline void tasks_name(int32_t token, char name[16]) {
    static const char *const special[16] = {"<pad>", "<s>", ".", "fact:", "hop:", "code:", "frequent:",
                                            "text:", "fruit", "tool", "bird", "stone", "<12>", "<13>",
                                            "<14>", "<15>"};
    static const char *const family[TASKS_FAMILIES] = {"fr", "to", "bi", "st"};
    static const char begin[] = "bdfgklmnprstvwzh", vowel[] = "aeiou";
    const unsigned t = (unsigned)token;
    if (token < 0 || token >= TASKS_VOCAB) snprintf(name, 16, "<bad>");
    else if (token < TASKS_ENTITY) snprintf(name, 16, "%s", special[t]);
    else if (token < TASKS_VALUE) { /* 80 syllables, 512 = 7 * 80 - 48 pairs of them */
        const unsigned i = t - TASKS_ENTITY, a = i % 80, b = i / 80;
        snprintf(name, 16, "%c%c%c%c%c", begin[a / 5] - 'a' + 'A', vowel[a % 5], begin[(a + 3 * b) % 16],
                 vowel[b % 5], "nr"[b / 5]);
    } else if (token < TASKS_CODED) snprintf(name, 16, "%u", 1009 + (t - TASKS_VALUE) * 31);
    else if (token < TASKS_WORD) {
        const unsigned i = t - TASKS_CODED;
        snprintf(name, 16, "%s%c%c", family[i / 32], begin[i % 32 / 2], vowel[i % 2]);
    } else {
        const unsigned i = t - TASKS_WORD;
        snprintf(name, 16, "%c%c%c", begin[i / 16], vowel[i % 5], begin[i % 16]);
    }
}

/* ------------------------------------------------------------ types */

enum { TASKS_QA1, TASKS_QA2, TASKS_NIAH, TASKS_FWE, TASKS_PLAIN, TASKS_COUNT };
enum { TASKS_TRAINING, TASKS_EVALUATION };

enum {
    TASKS_PASSAGE = 32, TASKS_PIECE = 16, TASKS_PIECES = 4, TASKS_GIVEN = 8, /* words of text */
    TASKS_MAX_PROMPT = 1 + TASKS_GIVEN, TASKS_MAX_ANSWER = TASKS_PIECES * TASKS_PIECE - TASKS_GIVEN,
    TASKS_ROOM = 128, /* >= any prompt and answer */
    TASKS_MAX_FACTS = 64, TASKS_MAX_CHAINS = 32, TASKS_MAX_KEYS = 16, TASKS_MAX_PASSAGES = 64,
    TASKS_MAX_QUERIES =
        TASKS_MAX_FACTS + TASKS_MAX_CHAINS + TASKS_MAX_KEYS + TASKS_FAMILIES + TASKS_MAX_PASSAGES,
    TASKS_MIN_FAMILY = 72 /* words of a family from which its three most frequent are always clear */
};

static const char *const tasks_task_name[TASKS_COUNT] = {"QA1", "QA2", "NIAH", "FWE", "TEXT"};

typedef struct tasks_error { char text[200]; } tasks_error;

typedef struct tasks_config {
    int32_t length;                 /* tokens of the body, exactly */
    int32_t facts, chains, keys;    /* single facts; chains of two facts; keys with four values each */
    int32_t families;               /* of coded words: 1 .. 4, or 0: filler, but no FWE query */
    int32_t passages;               /* of text; one TEXT query for every four */
    int32_t evaluation;             /* TASKS_TRAINING or TASKS_EVALUATION */
} tasks_config;

typedef struct tasks_query {
    int32_t task;                          /* TASKS_QA1 ... */
    int32_t prompt_length, answer_length;
    int32_t prompt[TASKS_MAX_PROMPT];
    int32_t answer[TASKS_MAX_ANSWER];      /* without TASKS_STOP, which ends every answer but TEXT's */
} tasks_query;

static inline int tasks_fail(tasks_error *e, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    return -1;
}

static inline int32_t tasks_min(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t tasks_max(int32_t a, int32_t b) { return a > b ? a : b; }

/* What the tables use: difficulty grows with the context up to 8192, from there on only the
   haystack does. The body leaves TASKS_ROOM positions of the context for a query and its
   answer. Contexts from 512. */
static inline tasks_config tasks_default(int32_t context, int32_t evaluation) {
    tasks_config c;
    c.length     = context - TASKS_ROOM;
    c.facts      = tasks_min(32, tasks_max(8, context / 64));
    c.chains     = tasks_min(8, tasks_max(2, context / 256));
    c.keys       = tasks_min(6, tasks_max(1, context / 512));
    c.families   = tasks_min(TASKS_FAMILIES, tasks_max(1, context / 512));
    c.passages   = tasks_min(32, tasks_max(4, context / 1024 * 4));
    c.evaluation = evaluation;
    return c;
}

static inline int32_t tasks_query_count(const tasks_config *c) {
    return c->facts + c->chains + c->keys + c->families + c->passages / TASKS_PIECES;
}

/* Tokens of the body that are facts, needles and passages. */
static inline int32_t tasks_item_tokens(const tasks_config *c) {
    return 4 * (c->facts + 2 * c->chains + 6 * c->keys) + (TASKS_PASSAGE + 2) * c->passages;
}

static inline int tasks_check(const tasks_config *c, tasks_error *e) {
    const struct { const char *what; int32_t value, limit; } field[] = {
        {"facts", c->facts, TASKS_MAX_FACTS},   {"chains", c->chains, TASKS_MAX_CHAINS},
        {"keys", c->keys, TASKS_MAX_KEYS},      {"families", c->families, TASKS_FAMILIES},
        {"passages", c->passages, TASKS_MAX_PASSAGES}, {"evaluation", c->evaluation, 1},
    };
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++)
        if (field[i].value < 0 || field[i].value > field[i].limit)
            return tasks_fail(e, "%s must be 0 to %d, not %d", field[i].what, (int)field[i].limit,
                              (int)field[i].value);
    if (c->length > 1 << 24)
        return tasks_fail(e, "a body has at most %d tokens, not %d", 1 << 24, (int)c->length);
    const int32_t need = 1 + tasks_item_tokens(c) + TASKS_MIN_FAMILY * c->families;
    if (c->length < need)
        return tasks_fail(e, "a body with these contents needs at least %d tokens, not %d", (int)need,
                          (int)c->length);
    return 0;
}

/* ------------------------------------------------------------ random */

/* Splitmix64: integers only, the same on every machine. */
static inline uint64_t tasks_mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
static inline uint64_t tasks_random(uint64_t *state) { return tasks_mix(*state += 0x9E3779B97F4A7C15u); }
static inline int32_t tasks_below(uint64_t *state, int32_t n) {
    return (int32_t)((tasks_random(state) >> 32) * (uint64_t)n >> 32);
}

static inline void tasks_shuffle(uint64_t *state, int32_t *x, int32_t n) {
    for (int32_t i = n - 1; i > 0; i--) {
        const int32_t j = tasks_below(state, i + 1), swap = x[i];
        x[i] = x[j];
        x[j] = swap;
    }
}

/* x = first, first + 1, ... in random order. */
static inline void tasks_permutation(uint64_t *state, int32_t *x, int32_t n, int32_t first) {
    for (int32_t i = 0; i < n; i++) x[i] = first + i;
    tasks_shuffle(state, x, n);
}

static inline int tasks_held_out(int32_t subject, int32_t object) {
    return tasks_mix(((uint64_t)subject << 32 | (uint64_t)object) + 0x9E3779B97F4A7C15u) % 8 == 0;
}

/* Takes from the shuffled pool[*used .. n-1] the first token that may follow this subject; -1
   when there is none. */
static inline int32_t tasks_take(int32_t *pool, int32_t *used, int32_t n, int32_t subject,
                                 int32_t evaluation) {
    for (int32_t i = *used; i < n; i++)
        if (tasks_held_out(subject, pool[i]) == evaluation) {
            const int32_t token = pool[i];
            pool[i] = pool[*used];
            pool[(*used)++] = token;
            return token;
        }
    return -1;
}

/* ------------------------------------------------------------ generator */

enum { TASKS_MAX_ITEMS = TASKS_MAX_FACTS + 2 * TASKS_MAX_CHAINS + 6 * TASKS_MAX_KEYS + TASKS_MAX_PASSAGES };

typedef struct tasks_item {                /* a fact or needle (passage < 0), or a passage of text */
    int32_t marker, subject, object, passage, position;
} tasks_item;

typedef struct tasks_draft {               /* what a body is made from */
    tasks_item item[TASKS_MAX_ITEMS];
    int32_t    items;
    int32_t    passage[TASKS_MAX_PASSAGES][TASKS_PASSAGE];
    int32_t    word[TASKS_FAMILIES][TASKS_FAMILY_WORDS]; /* of each family, the most frequent first */
} tasks_draft;

static inline tasks_item *tasks_add(tasks_draft *d, int32_t marker, int32_t subject, int32_t object,
                                    int32_t passage) {
    tasks_item *item = &d->item[d->items++];
    item->marker   = marker;
    item->subject  = subject;
    item->object   = object;
    item->passage  = passage;
    item->position = 0;
    return item;
}

/* Items in this order: facts, both halves of each chain, four needles of each key, distractors,
   passages. */
static inline int tasks_draw(const tasks_config *c, uint64_t *state, tasks_draft *d, tasks_error *e) {
    int32_t entity[TASKS_ENTITIES], value[TASKS_VALUES], used = 0, values = 0, missing = 0;
    d->items = 0;
    tasks_permutation(state, entity, TASKS_ENTITIES, TASKS_ENTITY);
    tasks_permutation(state, value, TASKS_VALUES, TASKS_VALUE);
    for (int32_t i = 0; i < c->facts + c->chains; i++) {
        const int32_t a = entity[used++];
        const int32_t b = tasks_take(entity, &used, TASKS_ENTITIES, a, c->evaluation);
        tasks_add(d, TASKS_FACT, a, b, -1);
        missing |= b < 0;
        if (i < c->facts) continue;
        const int32_t last = tasks_take(entity, &used, TASKS_ENTITIES, b, c->evaluation);
        tasks_add(d, TASKS_FACT, b, last, -1);
        missing |= last < 0;
    }
    for (int32_t i = 0; i < 6 * c->keys; i++) {
        const int32_t k = entity[used + (i < 4 * c->keys ? i / 4 : i - 3 * c->keys)];
        const int32_t v = tasks_take(value, &values, TASKS_VALUES, k, c->evaluation);
        tasks_add(d, TASKS_KEY, k, v, -1);
        missing |= v < 0;
    }
    for (int32_t p = 0; p < c->passages; p++) {
        int32_t w = tasks_below(state, TASKS_WORDS);
        for (int32_t i = 0; i < TASKS_PASSAGE; i++) {
            /* The j-th successor with probability proportional to 1/(j + 1): 720720 times the
               first 16 of these. */
            static const int32_t weight[16] = {720720, 360360, 240240, 180180, 144144, 120120, 102960,
                                               90090,
                                               80080, 72072, 65520, 60060, 55440, 51480, 48048, 45045};
            int32_t at = tasks_below(state, 2436559), j = 0;
            d->passage[p][i] = TASKS_WORD + w;
            while (at >= weight[j]) at -= weight[j++];
            w = (int32_t)(tasks_mix((uint64_t)w * 16 + (uint64_t)j + 12345) % TASKS_WORDS);
        }
        tasks_add(d, TASKS_TEXT, 0, 0, p);
    }
    for (int32_t f = 0; f < TASKS_FAMILIES; f++)
        tasks_permutation(state, d->word[f], TASKS_FAMILY_WORDS, TASKS_CODED + f * TASKS_FAMILY_WORDS);
    return missing ? tasks_fail(e, "no permitted partner is left for a subject or key: use another seed")
                   : 0;
}

/* n words of family f, each as often as its frequency says: the counts of the first four ranks
   differ by one or more from n = TASKS_MIN_FAMILY on, so that the right answer is never a
   matter of chance. What rounding down leaves over goes to the rarest words, one each. */
static inline void tasks_fill(const tasks_draft *d, int32_t f, int32_t n, int32_t *out) {
    static const int32_t weight[TASKS_FAMILY_WORDS] = {                        /* 65536 k^-1.5 */
        65536, 23170, 12612, 8192, 5862, 4459, 3539, 2896, 2427, 2072, 1796, 1577, 1398, 1251, 1128, 1024,
        935, 858, 791, 733, 681, 635, 594, 557, 524, 494, 467, 442, 420, 399, 380, 362};
    int64_t total = 0;
    int32_t at = 0;
    for (int32_t k = 0; k < TASKS_FAMILY_WORDS; k++) total += weight[k];
    for (int32_t k = 0; k < TASKS_FAMILY_WORDS; k++)
        for (int64_t i = (int64_t)n * weight[k] / total; i > 0; i--) out[at++] = d->word[f][k];
    for (int32_t k = TASKS_FAMILY_WORDS - 1; at < n; k--) out[at++] = d->word[f][k];
}

/* The deck of items (as -1 - index) and filler is shuffled at the body's front, then dealt out
   from the back: what an item writes never reaches a card not dealt yet. */
static inline void tasks_lay_out(const tasks_config *c, uint64_t *state, tasks_draft *d, int32_t *body) {
    const int32_t filler = c->length - 1 - tasks_item_tokens(c), families = tasks_max(1, c->families);
    int32_t *deck = body + 1, cards = 0, at = c->length;
    for (; cards < d->items; cards++) deck[cards] = -1 - cards;
    for (int32_t f = 0; f < families; f++) {
        const int32_t n = filler / families + (f < filler % families);
        tasks_fill(d, f, n, deck + cards);
        cards += n;
    }
    tasks_shuffle(state, deck, cards);
    while (cards > 0) {
        const int32_t card = deck[--cards];
        if (card >= 0) { body[--at] = card; continue; }
        tasks_item *item = &d->item[-1 - card];
        body[--at] = TASKS_STOP;
        if (item->passage >= 0) {
            at -= TASKS_PASSAGE;
            memcpy(body + at, d->passage[item->passage], sizeof d->passage[0]);
        } else {
            body[--at] = item->object;
            body[--at] = item->subject;
        }
        body[--at] = item->marker;
        item->position = at;
    }
    body[0] = TASKS_BOS;
}

static inline tasks_query *tasks_ask(tasks_query *q, int32_t task, int32_t marker, int32_t subject) {
    memset(q, 0, sizeof *q);
    q->task = task;
    q->prompt[q->prompt_length++] = marker;
    if (task != TASKS_PLAIN) q->prompt[q->prompt_length++] = subject;
    return q;
}

/* The four values of a key, in the order in which the body has them. */
static inline void tasks_answer_needles(const tasks_item *needle, tasks_query *q) {
    q->answer_length = 4;
    for (int32_t i = 0; i < 4; i++) {
        int32_t rank = 0;
        for (int32_t j = 0; j < 4; j++) rank += needle[j].position < needle[i].position;
        q->answer[rank] = needle[i].object;
    }
}

/* Pieces of four passages, each from a random place. */
static inline void tasks_answer_text(const tasks_draft *d, int32_t first, uint64_t *state, tasks_query *q) {
    int32_t text[TASKS_PIECES * TASKS_PIECE];
    for (int32_t p = 0; p < TASKS_PIECES; p++)
        memcpy(text + p * TASKS_PIECE,
               &d->passage[first + p][tasks_below(state, TASKS_PASSAGE - TASKS_PIECE + 1)],
               TASKS_PIECE * sizeof *text);
    memcpy(q->prompt + 1, text, TASKS_GIVEN * sizeof *text);
    memcpy(q->answer, text + TASKS_GIVEN, TASKS_MAX_ANSWER * sizeof *text);
    q->prompt_length = TASKS_MAX_PROMPT;
    q->answer_length = TASKS_MAX_ANSWER;
}

/* Writes c->length tokens to body and tasks_query_count(c) queries, those of a task side by
   side, in the order of the TASKS_ numbers. A pure function of config and seed. Returns 0, or
   -1 and a text. */
static inline int tasks_make(const tasks_config *c, uint64_t seed, int32_t *body, tasks_query *queries,
                             tasks_error *e) {
    if (tasks_check(c, e)) return -1;
    tasks_draft d;
    uint64_t state = tasks_mix(tasks_mix(seed + 0x9E3779B97F4A7C15u) ^ (uint64_t)c->evaluation << 63);
    if (tasks_draw(c, &state, &d, e)) return -1;
    tasks_lay_out(c, &state, &d, body);

    const tasks_item *item = d.item;
    tasks_query *q = queries;
    for (int32_t i = 0; i < c->facts; i++, item++, q++) {
        tasks_ask(q, TASKS_QA1, TASKS_FACT, item->subject);
        q->answer[q->answer_length++] = item->object;
    }
    for (int32_t i = 0; i < c->chains; i++, item += 2, q++) {
        tasks_ask(q, TASKS_QA2, TASKS_HOP, item->subject);
        q->answer[q->answer_length++] = item[0].object;
        q->answer[q->answer_length++] = item[1].object;
    }
    for (int32_t i = 0; i < c->keys; i++, item += 4)
        tasks_answer_needles(item, tasks_ask(q++, TASKS_NIAH, TASKS_KEY, item->subject));
    for (int32_t f = 0; f < c->families; f++, q++) {
        tasks_ask(q, TASKS_FWE, TASKS_FREQUENT, TASKS_FAMILY + f);
        while (q->answer_length < 3) {
            q->answer[q->answer_length] = d.word[f][q->answer_length];
            q->answer_length++;
        }
    }
    for (int32_t p = 0; p + TASKS_PIECES <= c->passages; p += TASKS_PIECES)
        tasks_answer_text(&d, p, &state, tasks_ask(q++, TASKS_PLAIN, TASKS_TEXT, 0));
    return 0;
}

/* ------------------------------------------------------------ training */

enum { TASKS_BODY_TEXT = TASKS_COUNT + 1, TASKS_ONE_VALUE, TASKS_KINDS };

/* Tokens of a training sequence: the body, all its queries and one for each distractor key,
   with their answers. */
static inline int32_t tasks_training_length(const tasks_config *c) {
    return c->length + 4 * c->facts + 5 * c->chains + (7 + 2 * 4) * c->keys + 6 * c->families
           + (TASKS_MAX_PROMPT + TASKS_MAX_ANSWER) * (c->passages / TASKS_PIECES);
}

/* Appends a query for each key that occurs once in the body; returns their number. Recall of
   needles is learned from these: four values alone teach to name any values of the body,
   whatever the key, and there it stays. */
static inline int32_t tasks_ask_distractors(const int32_t *body, int32_t length, tasks_query *queries) {
    uint8_t seen[TASKS_ENTITIES] = {0};
    int32_t count = 0;
    for (int32_t i = 1; i < length; i++) if (body[i - 1] == TASKS_KEY) seen[body[i] - TASKS_ENTITY]++;
    for (int32_t i = 1; i + 1 < length; i++)
        if (body[i - 1] == TASKS_KEY && seen[body[i] - TASKS_ENTITY] == 1) {
            tasks_query *q = tasks_ask(&queries[count++], TASKS_NIAH, TASKS_KEY, body[i]);
            q->answer[q->answer_length++] = body[i + 1];
        }
    return count;
}

/* The body, then all queries with answers in random order. target[i] says what tokens[i] is to
   the loss: 0 nothing, 1 + task an answer's token (TASKS_STOP included), TASKS_ONE_VALUE the
   same for a distractor key, TASKS_BODY_TEXT a word of a passage after its first. */
static inline int tasks_make_training(const tasks_config *c, uint64_t seed, int32_t *tokens,
                                      uint8_t *target, tasks_error *e) {
    enum { MOST = TASKS_MAX_QUERIES + 2 * TASKS_MAX_KEYS };
    tasks_query queries[MOST];
    int32_t order[MOST], at = c->length;
    if (tasks_make(c, seed, tokens, queries, e)) return -1;
    const int32_t asked = tasks_query_count(c);
    const int32_t count = asked + tasks_ask_distractors(tokens, c->length, queries + asked);
    uint64_t state = tasks_mix(seed) + 1;
    memset(target, 0, (size_t)tasks_training_length(c));
    for (int32_t i = 1; i < c->length; i++)
        if (tokens[i] >= TASKS_WORD && tokens[i - 1] >= TASKS_WORD) target[i] = TASKS_BODY_TEXT;
    tasks_permutation(&state, order, count, 0);
    for (int32_t i = 0; i < count; i++) {
        const tasks_query *q = &queries[order[i]];
        memcpy(tokens + at, q->prompt, (size_t)q->prompt_length * sizeof *tokens);
        at += q->prompt_length;
        const int32_t stop = q->task != TASKS_PLAIN;
        memcpy(tokens + at, q->answer, (size_t)q->answer_length * sizeof *tokens);
        if (stop) tokens[at + q->answer_length] = TASKS_STOP;
        memset(target + at, order[i] < asked ? 1 + q->task : TASKS_ONE_VALUE,
               (size_t)(q->answer_length + stop));
        at += q->answer_length + stop;
    }
    return 0;
}

/* ------------------------------------------------------------ grader */

/* Tokens to generate at most; generation also ends at TASKS_STOP, except in TEXT. */
static inline int32_t tasks_limit(const tasks_query *q) {
    return q->task == TASKS_PLAIN ? q->answer_length : q->answer_length + 2;
}

static inline int tasks_contains(const int32_t *x, int32_t n, int32_t token) {
    for (int32_t i = 0; i < n; i++)
        if (x[i] == token) return 1;
    return 0;
}

/* 0 .. 1, as RULER and the paper grade:
   QA1, QA2  1 if the whole answer occurs in the output in one run of tokens, else 0;
   NIAH      of the first four different values in the output, how many are right, / 4;
   FWE       how many of the three words occur in the output, / 3;
   TEXT      how many tokens are right at their place, / 56 (output: the best token at each step
   of the given text). */
static inline double tasks_grade(const tasks_query *q, const int32_t *output, int32_t length) {
    const int32_t n = q->answer_length;
    int32_t right = 0, seen = 0;
    int32_t value[4];
    switch (q->task) {
    case TASKS_QA1: case TASKS_QA2:
        for (int32_t i = 0; i + n <= length && !right; i++)
            right = memcmp(output + i, q->answer, (size_t)n * sizeof *output) == 0;
        return (double)right;
    case TASKS_NIAH:
        for (int32_t i = 0; i < length && seen < 4; i++) {
            const int32_t t = output[i];
            if (t < TASKS_VALUE || t >= TASKS_VALUE + TASKS_VALUES || tasks_contains(value, seen, t))
                continue;
            value[seen++] = t;
            right += tasks_contains(q->answer, n, t);
        }
        break;
    case TASKS_FWE:
        for (int32_t i = 0; i < n; i++) right += tasks_contains(output, length, q->answer[i]);
        break;
    default:
        for (int32_t i = 0; i < n && i < length; i++) right += output[i] == q->answer[i];
    }
    return (double)right / (double)n;
}

/* ------------------------------------------------------------ interval */

typedef struct tasks_interval { double mean, low, high; } tasks_interval;

/* 97.5 % point of Student's t, to 1 % from 3 degrees of freedom on (Cornish-Fisher). */
static inline double tasks_student(int64_t degrees) {
    static const double small[3] = {12.706, 12.706, 4.303};
    if (degrees < 3) return small[degrees < 0 ? 0 : degrees];
    const double v = (double)degrees;
    return 1.95996 + 2.37227 / v + 2.82250 / (v * v) + 2.55585 / (v * v * v) + 1.58953 / (v * v * v * v);
}

/* 95 % interval of a mean grade. Queries about one body are not independent, so score[i] is the
   mean grade of body i of `bodies` (all with the same number of queries, `queries`). Wilson's
   interval with the number of independent queries that the spread between bodies tells of, at
   least one and at most `queries` a body; where all bodies are equal the spread tells nothing,
   and sqrt(queries) a body are taken. Grades between 0 and 1 spread less than Wilson assumes,
   so it errs to the wide side. */
static inline tasks_interval tasks_confidence(const double *score, int64_t bodies, int64_t queries) {
    tasks_interval r = {0.0, 0.0, 1.0};
    double mean = 0.0, square = 0.0;
    if (bodies < 1) return r;
    for (int64_t i = 0; i < bodies; i++) mean += score[i] / (double)bodies;
    for (int64_t i = 0; i < bodies; i++) square += (score[i] - mean) * (score[i] - mean);
    const double m = (double)bodies, most = m * (double)(queries < 1 ? 1 : queries);
    const double variance = bodies > 1 ? square / (m * (m - 1.0)) : 0.0, binomial = mean * (1.0 - mean);
    double n = variance > 1e-20 ? binomial / variance : m * sqrt(most / m);
    if (!(n > m)) n = m;
    if (n > most) n = most;
    const double z = tasks_student(bodies - 1), z2 = z * z;
    const double center = (mean + z2 / (2.0 * n)) / (1.0 + z2 / n);
    const double half =
        z / (1.0 + z2 / n) * sqrt((binomial > 0.0 ? binomial : 0.0) / n + z2 / (4.0 * n * n));
    r.mean = mean;
    r.low  = mean < center - half ? mean : center - half > 0.0 ? center - half : 0.0;
    r.high = mean > center + half ? mean : center + half < 1.0 ? center + half : 1.0;
    return r;
}

#endif /* TASKS_H */
