/* bench/accuracy/tasks.h: bodies are read back by a parser of their own, and what the queries
   say is compared with it. */
#include "harness.h"
#include "../examples/llama.h"
#include "../examples/saap.h"
#include "../bench/accuracy/tasks.h"
#include <stdlib.h>

enum { CANARY = 0x5ca1ab1e, MARGIN = 8 };

/* A body as a reader sees it. */
typedef struct reading {
    int32_t object[TASKS_VOCAB];                              /* of a subject; -1 = none */
    int32_t mentions[TASKS_VOCAB];                            /* as subject or key */
    int32_t value[TASKS_VOCAB][4];                            /* of a key, in order */
    int32_t count[TASKS_VOCAB];                               /* of filler words */
    int32_t passage[TASKS_MAX_PASSAGES], passages, facts, needles, broken;
} reading;

static reading read_body(const int32_t *body, int32_t n) {
    reading r;
    memset(&r, 0, sizeof r);
    for (int t = 0; t < TASKS_VOCAB; t++) r.object[t] = -1;
    r.broken = n < 1 || body[0] != TASKS_BOS;
    for (int32_t i = 1; i < n && !r.broken;) {
        const int32_t t = body[i], size = t == TASKS_FACT || t == TASKS_KEY ? 4
                                          : t == TASKS_TEXT                 ? TASKS_PASSAGE + 2
                                                                            : 1;
        r.broken = i + size > n || (size > 1 && body[i + size - 1] != TASKS_STOP);
        if (r.broken) break;
        if (t == TASKS_FACT) {
            r.broken = body[i + 1] < TASKS_ENTITY || body[i + 1] >= TASKS_VALUE ||
                       body[i + 2] < TASKS_ENTITY || body[i + 2] >= TASKS_VALUE;
            if (r.broken) break;
            r.object[body[i + 1]] = body[i + 2];
            r.mentions[body[i + 1]]++;
            r.facts++;
        } else if (t == TASKS_KEY) {
            r.broken = body[i + 1] < TASKS_ENTITY || body[i + 1] >= TASKS_VALUE || body[i + 2] < TASKS_VALUE
                       || body[i + 2] >= TASKS_CODED || r.mentions[body[i + 1]] == 4;
            if (r.broken) break;
            r.value[body[i + 1]][r.mentions[body[i + 1]]++] = body[i + 2];
            r.needles++;
        } else if (t == TASKS_TEXT) {
            for (int32_t j = i + 1; j <= i + TASKS_PASSAGE; j++)
                r.broken |= body[j] < TASKS_WORD || body[j] >= TASKS_VOCAB;
            if (r.passages == TASKS_MAX_PASSAGES) r.broken = 1;
            else r.passage[r.passages++] = i + 1;
        } else {
            r.broken = t < TASKS_CODED || t >= TASKS_WORD;
            if (!r.broken) r.count[t]++;
        }
        i += size;
    }
    return r;
}

typedef struct prompts { int32_t *body; tasks_query *query; int32_t count; } prompts;

static prompts make(const tasks_config *c, uint64_t seed) {
    prompts p;
    tasks_error e = {""};
    p.body  = (int32_t *)test_alloc(((size_t)c->length + MARGIN) * sizeof *p.body);
    p.count = tasks_query_count(c);
    p.query = (tasks_query *)test_alloc(((size_t)p.count + 1) * sizeof *p.query);
    for (int32_t i = 0; i < c->length + MARGIN; i++) p.body[i] = CANARY;
    memset(p.query, 0x5c, ((size_t)p.count + 1) * sizeof *p.query);
    const int32_t guard = p.query[p.count].task;
    CHECK_MSG(tasks_make(c, seed, p.body, p.query, &e) == 0, "length %d: %s", (int)c->length, e.text);
    for (int32_t i = 0; i < MARGIN; i++) CHECK_INT(p.body[c->length + i], CANARY);
    CHECK_INT(p.query[p.count].task, guard);
    return p;
}

static void release(prompts *p) {
    free(p->body);
    free(p->query);
}

static uint64_t hash(const int32_t *x, int32_t n, uint64_t h) {
    for (int32_t i = 0; i < n; i++) h = (h ^ (uint64_t)(uint32_t)x[i]) * 1099511628211u;
    return h;
}

static uint64_t hash_prompts(const tasks_config *c, uint64_t seed) {
    prompts  p = make(c, seed);
    uint64_t h = hash(p.body, c->length, 14695981039346656037u);
    for (int32_t i = 0; i < p.count; i++) {
        h = hash(p.query[i].prompt, p.query[i].prompt_length, h);
        h = hash(p.query[i].answer, p.query[i].answer_length, h);
    }
    release(&p);
    return h;
}

/* ------------------------------------------------------------ cases */

static void test_names(void) {
    static char name[TASKS_VOCAB][16];
    for (int32_t t = 0; t < TASKS_VOCAB; t++) {
        tasks_name(t, name[t]);
        CHECK(strlen(name[t]) > 0 && strlen(name[t]) < 16 && !strchr(name[t], ' '));
        for (int32_t u = 0; u < t; u++)
            CHECK_MSG(strcmp(name[t], name[u]) != 0, "%d and %d: %s", (int)t, (int)u, name[t]);
    }
    tasks_name(-1, name[0]);
    CHECK(strcmp(name[0], "<bad>") == 0);
    tasks_name(TASKS_VOCAB, name[0]);
    CHECK(strcmp(name[0], "<bad>") == 0);
}

/* The shipped model was trained on these very bits: another generator asks for another
   model. */
static void test_deterministic(void) {
    static const struct { int32_t context, evaluation; uint64_t seed, hash; } known[] = {
        {1024, TASKS_EVALUATION, 1000, 0x8ae5d69096d6883fu},
        {8192, TASKS_EVALUATION, 7, 0xd2bf6586a37fb777u},
        {2048, TASKS_TRAINING, 7, 0x1197a336328abb7bu},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const tasks_config c = tasks_default(known[i].context, known[i].evaluation);
        const uint64_t h = hash_prompts(&c, known[i].seed);
        CHECK_MSG(h == known[i].hash, "%d tokens: got 0x%llxu", (int)known[i].context,
                  (unsigned long long)h);
        CHECK(hash_prompts(&c, known[i].seed) == h);
        CHECK(hash_prompts(&c, known[i].seed + 1) != h);
    }
}

/* Contents are as the configuration says, and every answer is there, once, and the only one. */
static void check_prompts(const tasks_config *c, uint64_t seed) {
    prompts p = make(c, seed);
    const reading r = read_body(p.body, c->length);
    int32_t asked[TASKS_COUNT] = {0}, last = 0;
    CHECK(!r.broken);
    CHECK_INT(r.facts, c->facts + 2 * c->chains);
    CHECK_INT(r.needles, 6 * c->keys);
    CHECK_INT(r.passages, c->passages);
    for (int32_t t = TASKS_ENTITY; t < TASKS_VALUE; t++)
        CHECK(r.mentions[t] <= 1 || (r.mentions[t] == 4 && r.object[t] < 0));
    for (int32_t i = 0; i < p.count; i++) {
        const tasks_query *q = &p.query[i];
        CHECK(q->task >= last && q->task < TASKS_COUNT);
        if (q->task < last || q->task >= TASKS_COUNT) break;
        last = q->task;
        asked[q->task]++;
        CHECK(q->prompt_length + tasks_limit(q) <= TASKS_ROOM && q->answer_length > 0);
        const int32_t subject = q->prompt[1];
        if (q->task == TASKS_QA1) {
            CHECK(q->prompt[0] == TASKS_FACT && q->answer_length == 1 && r.object[subject] == q->answer[0]);
        } else if (q->task == TASKS_QA2) {
            CHECK(q->prompt[0] == TASKS_HOP && q->answer_length == 2 && r.object[subject] == q->answer[0]);
            CHECK(r.object[q->answer[0]] == q->answer[1]);
        } else if (q->task == TASKS_NIAH) {
            CHECK(q->prompt[0] == TASKS_KEY && q->answer_length == 4 && r.mentions[subject] == 4);
            for (int j = 0; j < 4; j++) {
                CHECK_INT(q->answer[j], r.value[subject][j]);
                for (int k = 0; k < j; k++) CHECK(q->answer[j] != q->answer[k]);
            }
        } else if (q->task == TASKS_FWE) {
            const int32_t first = TASKS_CODED + (subject - TASKS_FAMILY) * TASKS_FAMILY_WORDS;
            CHECK(q->prompt[0] == TASKS_FREQUENT && q->answer_length == 3);
            CHECK(r.count[q->answer[0]] > r.count[q->answer[1]] &&
                  r.count[q->answer[1]] > r.count[q->answer[2]]);
            for (int32_t t = first; t < first + TASKS_FAMILY_WORDS; t++)
                CHECK(r.count[t] < r.count[q->answer[2]] || tasks_contains(q->answer, 3, t));
        } else {
            int32_t text[TASKS_PIECES * TASKS_PIECE];
            CHECK(q->prompt[0] == TASKS_TEXT &&
                  q->prompt_length + q->answer_length == 1 + TASKS_PIECES * TASKS_PIECE);
            memcpy(text, q->prompt + 1, TASKS_GIVEN * sizeof *text);
            memcpy(text + TASKS_GIVEN, q->answer, TASKS_MAX_ANSWER * sizeof *text);
            for (int piece = 0; piece < TASKS_PIECES; piece++) {
                int found = 0;
                for (int32_t s = 0; s < r.passages; s++)
                    for (int32_t j = 0; j + TASKS_PIECE <= TASKS_PASSAGE; j++)
                        found += !memcmp(p.body + r.passage[s] + j, text + piece * TASKS_PIECE,
                                         TASKS_PIECE * sizeof *text);
                CHECK(found >= 1);
            }
        }
    }
    CHECK(asked[TASKS_QA1] == c->facts && asked[TASKS_QA2] == c->chains && asked[TASKS_NIAH] == c->keys);
    CHECK(asked[TASKS_FWE] == c->families && asked[TASKS_PLAIN] == c->passages / TASKS_PIECES);
    release(&p);
}

static void test_answers(void) {
    for (int32_t context = 512; context <= (test_quick ? 2048 : 32768); context *= 2)
        for (int evaluation = 0; evaluation <= 1; evaluation++)
            for (uint64_t seed = 0; seed < 4; seed++) {
                const tasks_config c = tasks_default(context, evaluation);
                CHECK_INT(c.length + TASKS_ROOM, context);
                check_prompts(&c, seed);
            }
}

/* Reads every pair (subject, object) and (key, value) of some bodies into a set. */
static void collect_pairs(uint8_t *set, int evaluation, uint64_t first, int seeds) {
    const tasks_config c = tasks_default(2048, evaluation);
    for (int s = 0; s < seeds; s++) {
        prompts p = make(&c, first + (uint64_t)s);
        for (int32_t i = 1; i + 2 < c.length; i++)
            if (p.body[i] == TASKS_FACT || p.body[i] == TASKS_KEY)
                set[p.body[i + 1] * TASKS_VOCAB + p.body[i + 2]] = 1;
        release(&p);
    }
}

static int common_pairs(const uint8_t *a, const uint8_t *b) {
    int n = 0;
    for (int32_t i = 0; i < TASKS_VOCAB * TASKS_VOCAB; i++) n += a[i] && b[i];
    return n;
}

static void test_no_overlap(void) {
    const int seeds = test_quick ? 40 : 400;
    uint8_t *set[3];
    for (int i = 0; i < 3; i++) {
        set[i] = (uint8_t *)test_alloc(TASKS_VOCAB * TASKS_VOCAB);
        memset(set[i], 0, TASKS_VOCAB * TASKS_VOCAB);
    }
    collect_pairs(set[0], TASKS_TRAINING, 0, seeds);
    collect_pairs(set[1], TASKS_EVALUATION, 0, seeds);
    collect_pairs(set[2], TASKS_TRAINING, (uint64_t)seeds, seeds);
    CHECK_INT(common_pairs(set[0], set[1]), 0);
    CHECK(common_pairs(set[0], set[2]) > seeds / 4); /* pairs do come back where nothing keeps them apart */
    for (int i = 0; i < 3; i++) free(set[i]);

    double held_out = 0.0;
    for (int32_t a = TASKS_ENTITY; a < TASKS_VALUE; a++) {
        int32_t mine = 0;
        for (int32_t b = TASKS_ENTITY; b < TASKS_VALUE; b++) mine += tasks_held_out(a, b);
        CHECK(mine > 24 && mine < 112);                       /* 64 +- 7.5: each subject has both kinds */
        held_out += mine;
    }
    CHECK_NEAR(held_out / (512.0 * 512.0), 0.125, 0.004, 0.0);
    /* the same seed means other prompts */
    tasks_config c = tasks_default(1024, TASKS_TRAINING);
    const uint64_t h = hash_prompts(&c, 5);
    c.evaluation = TASKS_EVALUATION;
    CHECK(hash_prompts(&c, 5) != h);
}

static void expect_error(tasks_config c, const char *what) {
    int32_t     body[600];
    tasks_query query[TASKS_MAX_QUERIES];
    tasks_error e = {""};
    body[0] = CANARY;
    if (!CHECK_MSG(tasks_make(&c, 1, body, query, &e) == -1, "%s: accepted", what)) return;
    CHECK_MSG(strstr(e.text, what) != NULL, "\"%s\" does not say %s", e.text, what);
    CHECK_INT(body[0], CANARY);
}

static void test_errors(void) {
    const tasks_config good = tasks_default(512, TASKS_TRAINING);
    tasks_config c = good;
    for (int32_t context = -1024; context < 416; context += 16)
        expect_error(tasks_default(context, 0), "at least");
    c.length = 1 + tasks_item_tokens(&c) + TASKS_MIN_FAMILY - 1; expect_error(c, "at least 281");
    c = good; c.length = 1 << 25;                                expect_error(c, "at most");
    c = good; c.facts = -1;                                      expect_error(c, "facts");
    c = good; c.facts = TASKS_MAX_FACTS + 1;                     expect_error(c, "facts");
    c = good; c.chains = TASKS_MAX_CHAINS + 1;                   expect_error(c, "chains");
    c = good; c.keys = TASKS_MAX_KEYS + 1;                       expect_error(c, "keys");
    c = good; c.families = TASKS_FAMILIES + 1;                   expect_error(c, "families");
    c = good; c.passages = TASKS_MAX_PASSAGES + 1;               expect_error(c, "passages");
    c = good; c.evaluation = 2;                                  expect_error(c, "evaluation");
}

/* Any valid configuration, the shortest body included, in buffers of exactly the size asked
   for. */
static void test_fuzz(void) {
    test_rng r = test_rng_make(77);
    for (int i = 0; i < (test_quick ? 30 : 300); i++) {
        tasks_config c;
        tasks_error  e = {""};
        c.facts      = (int32_t)test_below(&r, TASKS_MAX_FACTS + 1);
        c.chains     = (int32_t)test_below(&r, TASKS_MAX_CHAINS + 1);
        c.keys       = (int32_t)test_below(&r, TASKS_MAX_KEYS + 1);
        c.families   = (int32_t)test_below(&r, TASKS_FAMILIES + 1);
        c.passages   = (int32_t)test_below(&r, TASKS_MAX_PASSAGES + 1);
        c.evaluation = (int32_t)test_below(&r, 2);
        c.length = 1 + tasks_item_tokens(&c) + TASKS_MIN_FAMILY * c.families +
                   (int32_t)(i % 3 ? test_below(&r, 900) : 0);
        const uint64_t seed = test_next(&r);
        check_prompts(&c, seed);

        const int32_t n = tasks_training_length(&c);
        int32_t *tokens = (int32_t *)test_alloc((size_t)n * sizeof *tokens);
        uint8_t *target = (uint8_t *)test_alloc((size_t)n);
        memset(tokens, 0xff, (size_t)n * sizeof *tokens);
        CHECK_MSG(tasks_make_training(&c, seed, tokens, target, &e) == 0, "%s", e.text);
        int32_t kind[TASKS_KINDS] = {0};
        for (int32_t t = 0; t < n; t++) {
            CHECK(tokens[t] > TASKS_PAD && tokens[t] < TASKS_VOCAB && target[t] < TASKS_KINDS);
            if (target[t] < TASKS_KINDS) kind[target[t]]++;
        }
        CHECK_INT(kind[1 + TASKS_QA1], 2 * c.facts);
        CHECK_INT(kind[1 + TASKS_QA2], 3 * c.chains);
        CHECK_INT(kind[1 + TASKS_NIAH], 5 * c.keys);
        CHECK_INT(kind[1 + TASKS_FWE], 4 * c.families);
        CHECK_INT(kind[1 + TASKS_PLAIN], TASKS_MAX_ANSWER * (c.passages / TASKS_PIECES));
        CHECK_INT(kind[TASKS_BODY_TEXT], (TASKS_PASSAGE - 1) * c.passages);
        CHECK_INT(kind[TASKS_ONE_VALUE], 2 * 2 * c.keys);
        free(tokens);
        free(target);
    }
}

static tasks_query graded(int32_t task, int32_t n, const int32_t *answer) {
    tasks_query q;
    memset(&q, 0, sizeof q);
    q.task = task;
    q.answer_length = n;
    memcpy(q.answer, answer, (size_t)n * sizeof *answer);
    return q;
}

#define GRADE(q, want, ...) do { \
    const int32_t out[] = {__VA_ARGS__}; \
    CHECK_NEAR(tasks_grade(q, out, (int32_t)(sizeof out / sizeof out[0])), want, 1e-12, 0.0); } while (0)

static void test_grader(void) {
    enum { E = TASKS_ENTITY, V = TASKS_VALUE, C = TASKS_CODED, W = TASKS_WORD };
    const int32_t one[] = {E + 5}, two[] = {E + 5, E + 6}, four[] = {V + 1, V + 2, V + 3, V + 4},
    three[] = {C, C + 1, C + 2};
    int32_t text[TASKS_MAX_ANSWER];
    for (int i = 0; i < TASKS_MAX_ANSWER; i++) text[i] = W + i;
    const tasks_query qa1 = graded(TASKS_QA1, 1, one), qa2 = graded(TASKS_QA2, 2, two),
                      niah = graded(TASKS_NIAH, 4, four), fwe = graded(TASKS_FWE, 3, three),
                      plain = graded(TASKS_PLAIN, TASKS_MAX_ANSWER, text);
    GRADE(&qa1, 1.0, E + 5);
    GRADE(&qa1, 1.0, E + 7, E + 5, TASKS_STOP);
    GRADE(&qa1, 0.0, E + 6, TASKS_STOP);
    GRADE(&qa2, 1.0, E + 5, E + 6);
    GRADE(&qa2, 1.0, E + 5, E + 5, E + 6);
    GRADE(&qa2, 0.0, E + 6, E + 5);                           /* the wrong way round */
    GRADE(&qa2, 0.0, E + 5, E + 7, E + 6);                    /* not in one run      */
    GRADE(&qa2, 0.0, E + 5);
    GRADE(&niah, 1.0, V + 4, V + 3, V + 2, V + 1);            /* any order           */
    GRADE(&niah, 0.75, V + 1, V + 2, V + 3, V + 9, V + 4);    /* the first four      */
    GRADE(&niah, 1.0, V + 1, V + 1, V + 2, V + 2, V + 3, V + 4);
    GRADE(&niah, 0.25, V + 1, V + 1, V + 1, V + 1);           /* repeats count once  */
    GRADE(&niah, 0.5, E, V + 1, C, W, TASKS_STOP, V + 4);     /* only values count   */
    GRADE(&fwe, 1.0, C + 2, C, C + 1);
    GRADE(&fwe, 2.0 / 3.0, C + 2, C + 9, C + 2, C + 1);
    GRADE(&fwe, 0.0, C + 3, C + 4, C + 5);
    GRADE(&plain, 2.0 / 56.0, W, W + 1, W + 3);
    CHECK_NEAR(tasks_grade(&plain, text, TASKS_MAX_ANSWER), 1.0, 0.0, 0.0);
    for (int i = 0; i < 5; i++) {
        const tasks_query *q[] = {&qa1, &qa2, &niah, &fwe, &plain};
        CHECK_NEAR(tasks_grade(q[i], text, 0), 0.0, 0.0, 0.0);
    }
}

/* Bodies have probabilities of their own, scattered around p (a mixture of two: spread 0 is
   none); score: mean of the queries of a body. Returns how often the interval holds p. */
static double coverage(double p, double spread, int bodies, int queries, int independent, test_rng *r) {
    const int trials = test_quick ? 300 : 4000;
    double score[64 * 8];
    int held = 0;
    for (int t = 0; t < trials; t++) {
        for (int b = 0; b < bodies; b++) {
            const double mine = p + (test_uniform(r) < 0.5 ? -spread : spread);
            score[b] = 0.0;
            for (int q = 0; q < queries; q++) score[b] += (test_uniform(r) < mine) / (double)queries;
        }
        if (independent)                                      /* as if each query were a body of its own */
            for (int i = bodies * queries - 1; i >= 0; i--) {
                const int b = i / queries, q = i % queries;
                score[i] = q < (int)(score[b] * queries + 0.5) ? 1.0 : 0.0;
            }
        const tasks_interval i =
            tasks_confidence(score, independent ? bodies * queries : bodies, independent ? 1 : queries);
        held += i.low <= p && p <= i.high;
    }
    return (double)held / trials;
}

static void test_interval(void) {
    test_rng r = test_rng_make(99);
    static const struct { double p, spread; int bodies; } cell[] = {
        {0.5, 0.0, 40}, {0.5, 0.3, 40}, {0.9, 0.0, 40}, {0.9, 0.1, 40}, {0.97, 0.03, 40}, {0.5, 0.4, 12},
        {0.95, 0.05, 12},
        {0.5, 0.3, 4}, {0.99, 0.0, 64},
    };
    for (size_t i = 0; i < sizeof cell / sizeof cell[0]; i++) {
        const double held = coverage(cell[i].p, cell[i].spread, cell[i].bodies, 8, 0, &r);
        CHECK_MSG(held > 0.93, "p %.2f +- %.2f, %d bodies: held %.3f", cell[i].p, cell[i].spread,
                  cell[i].bodies, held);
    }
    /* ignoring that queries share a body must be caught */
    const double naive = coverage(0.5, 0.4, 40, 8, 1, &r);
    CHECK_MSG(naive < 0.9, "held %.3f", naive);

    double ones[50], zeros[50];
    for (int i = 0; i < 50; i++) { ones[i] = 1.0; zeros[i] = 0.0; }
    const tasks_interval high = tasks_confidence(ones, 50, 8), low = tasks_confidence(zeros, 50, 8),
                         none = tasks_confidence(ones, 0, 8), single = tasks_confidence(ones, 1, 8);
    CHECK(high.mean > 1.0 - 1e-12 && high.high > 1.0 - 1e-12 && high.low > 0.96 && high.low < 0.98);
    CHECK_NEAR(low.high, 1.0 - high.low, 1e-9, 0.0);
    CHECK(none.low == 0.0 && none.high == 1.0);
    CHECK(single.low < 0.1 && single.high > 1.0 - 1e-12);     /* one body says next to nothing */
    CHECK_NEAR(tasks_student(1), 12.706, 0.001, 0.0);
    CHECK_NEAR(tasks_student(2), 4.303, 0.001, 0.0);
    CHECK_NEAR(tasks_student(3), 3.182, 0.0, 0.01);
    CHECK_NEAR(tasks_student(10), 2.228, 0.0, 0.001);
    CHECK_NEAR(tasks_student(1000000), 1.96, 0.0, 0.001);
}

/* PyTorch's logits behind the first query of a short body (train.py logits), and every answer
   about that body. */
static void test_model(void) {
    static const float want[] = {0.369036f, 1.991838f, -1.506454f, 1.810991f, 0.820998f, -1.087233f,
                                 -2.635136f};
    enum { EVERY = 167, CONTEXT = 512 };
    if (test_quick) SKIP("a model of 3.8 million weights takes minutes under valgrind and qemu");
    const tasks_config c = tasks_default(CONTEXT, TASKS_EVALUATION);
    prompts     p = make(&c, 1000);
    llama_model m;
    llama_state s;
    llama_error e = {""};
    memset(&s, 0, sizeof s);
    if (CHECK_MSG(llama_load(&m, "bench/accuracy/longctx.bin", &e) == 0, "%s", e.text)) {
        CHECK_INT(m.vocab_size, TASKS_VOCAB);
        CHECK(llama_state_init(&s, &m, CONTEXT, &e) == 0 &&
              llama_prefill(&s, p.body, c.length, 0, &e) == 0);
        for (int32_t i = 0; i < p.count; i++) {
            const tasks_query *q = &p.query[i];
            int32_t output[TASKS_MAX_ANSWER], n = 0, at = c.length;
            for (int32_t t = 0; t < q->prompt_length; t++)
                CHECK(llama_forward(&s, q->prompt[t], at++, 1, &e) == 0);
            if (i == 0)
                for (int k = 0; k < (int)(sizeof want / sizeof want[0]); k++)
                    CHECK_NEAR(s.logits[k * EVERY], want[k], 1e-3, 1e-3);
            while (n < tasks_limit(q)) {
                output[n] = llama_argmax(s.logits, m.vocab_size);
                const int32_t next = q->task == TASKS_PLAIN ? q->answer[n] : output[n];
                if (next == TASKS_STOP) break;
                n++;
                if (n < tasks_limit(q)) CHECK(llama_forward(&s, next, at++, 1, &e) == 0);
            }
            const double grade = tasks_grade(q, output, n);
            CHECK_MSG(grade >= (q->task == TASKS_PLAIN ? 0.8 : 1.0), "%s: grade %.2f",
                      tasks_task_name[q->task], grade);
        }
    }
    llama_state_free(&s);
    llama_free(&m);
    release(&p);
}

/* Sums over the layers of a query's last token. */
typedef struct routed { const llama_state *s; double mass, visited, far; } routed;

static void add_routed(void *user, const santa_attention *a, int32_t layer) {
    routed *r = (routed *)user;
    const santa_stats *one = &r->s->call->stats;
    (void)a;
    (void)layer;
    r->mass += one->covered_mass;
    r->visited += (double)one->visited_rows;
    r->far += (double)one->far_rows;
}

/* The shipped router on a text that it was not learned from: as many keys hold more of the
   softmax than those that the inner product with the centroids picks, and far more than keys at
   random. */
static void test_shipped_router(void) {
    enum { CONTEXT = 1280, QUERIES = 6, LAYERS = 4, MOST = 12 };
    if (test_quick) SKIP("a model of 3.8 million weights takes minutes under valgrind and qemu");
    const tasks_config c = tasks_default(CONTEXT, TASKS_EVALUATION);
    prompts     p = make(&c, 1001);
    llama_model m;
    llama_state s;
    llama_error e = {""};
    saap_file   f;
    santa_buckets router[LAYERS];
    routed sum[1 + MOST];                                     /* classifier, l 4; q . centroid, l 1 .. */
    memset(&s, 0, sizeof s);
    memset(&f, 0, sizeof f);
    memset(sum, 0, sizeof sum);
    int ok = CHECK_MSG(llama_load(&m, "bench/accuracy/longctx.bin", &e) == 0, "%s", e.text)
          && CHECK_MSG(saap_load("bench/accuracy/longctx-c64.saap", &f, e.text, sizeof e.text) == 0, "%s",
                       e.text)
          && CHECK(saap_check_model(&f, LAYERS, 2, 4, 64, e.text, sizeof e.text) == 0);
    for (int i = 0; i < LAYERS && ok; i++) saap_get_layer(&f, i, &router[i]);
    ok = ok && CHECK(llama_state_init(&s, &m, CONTEXT, &e) == 0 && llama_state_route(&s, router, &e) == 0
                     && llama_prefill(&s, p.body, c.length, 0, &e) == 0);
    s.tap = add_routed;
    for (int32_t i = 0; i < QUERIES && ok; i++) {
        const tasks_query *q = &p.query[i * (p.count / QUERIES)];
        const int32_t at = c.length + q->prompt_length - 1;
        for (int k = 0; k <= MOST && ok; k++) {
            santa_options o = llama_dense();
            o.method = SANTA_SAAP;
            o.num_samples = SANTA_NONE;
            o.saap.num_probes = k == 0 ? 4 : k;
            o.saap.local_tokens = 64;
            o.saap.measure_mass = 1;
            for (int layer = 0; layer < LAYERS; layer++) s.buckets[layer].hidden = k == 0 ? f.hidden : 0;
            sum[k].s = &s;
            s.tap_user = &sum[k];
            s.tap = NULL;                                     /* the question but its last token */
            ok = CHECK(llama_prefill(&s, q->prompt, q->prompt_length - 1, c.length, &e) == 0
                       && llama_state_options(&s, &o, &e) == 0);
            s.tap = add_routed;
            ok = ok && CHECK(llama_forward(&s, q->prompt[q->prompt_length - 1], at, 0, &e) == 0);
        }
    }
    int more = 1;                                             /* the least l that reads as many keys */
    while (more < MOST && sum[more].visited < sum[0].visited) more++;
    if (ok) {
        const double all = (double)QUERIES * LAYERS, share = sum[0].visited / sum[0].far;
        CHECK(sum[more].visited >= sum[0].visited && share > 0.02 && share < 0.2);
        CHECK_MSG(sum[0].mass > sum[more].mass + 0.02 * all,
                  "mass %.3f in %.2f %% of the far keys; inner product: %.3f in %.2f %%", sum[0].mass / all,
                  100.0 * share, sum[more].mass / all, 100.0 * sum[more].visited / sum[more].far);
        CHECK_MSG(sum[0].mass > 0.7 * all, "mass %.3f", sum[0].mass / all);
    }
    llama_state_free(&s);
    llama_free(&m);
    saap_free(&f);
    release(&p);
}

const test_case suite_tasks[] = {
    {"token names are all different", test_names},
    {"prompts are the same bits everywhere", test_deterministic},
    {"answers are in the body, once, and alone", test_answers},
    {"training and evaluation share no pair", test_no_overlap},
    {"bodies too short and contents out of range are errors", test_errors},
    {"any configuration keeps to its buffers", test_fuzz},
    {"grader", test_grader},
    {"interval covers, for clustered queries too", test_interval},
    {"the model computes what PyTorch did, and answers", test_model},
    {"its router covers more than inner products", test_shipped_router},
    {0, 0}
};
