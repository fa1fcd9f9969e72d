/* The toy decoder on files that are not what they should be: each must end in exit code 1 and a
   message, never in a crash or a hang; and on a small valid checkpoint, which every method must
   decode. The decoder is $SANTA_DECODE, else build/decode; where it is not built, or programs
   cannot be started, the cases are skipped. The last cases call llama.h itself: formats,
   prefill, going back, options of single layers. */
#if defined(__unix__) || defined(__APPLE__)
#define _DEFAULT_SOURCE                                       /* mkdtemp, fork under -std=c99 */
#define HAVE_FORK 1
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#endif
#include "harness.h"
#include "../examples/llama.h"
#include "../examples/saap.h"
#include "../examples/prefill_options.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef HAVE_FORK

/* ------------------------------------------------------------ files */

enum { DIM = 32, HIDDEN = 24, LAYERS = 2, HEADS = 4, KV_HEADS = 2, VOCAB = 260, CONTEXT = 48, HEADER = 28,
       LONG_CONTEXT = 400, TIMEOUT = 120 };

static char directory[256], model_path[300], tokenizer_path[300], buckets_path[300], output_path[300];

typedef struct file_bytes { unsigned char *data; size_t size, capacity; } file_bytes;

static void put(file_bytes *f, const void *data, size_t n) {
    if (f->size + n > f->capacity) {
        f->capacity = 2 * f->capacity + n;
        f->data     = (unsigned char *)realloc(f->data, f->capacity);
        if (!f->data) exit(2);
    }
    memcpy(f->data + f->size, data, n);
    f->size += n;
}
static void set_u32(unsigned char *p, uint32_t x) { /* the files are little-endian on every machine */
    for (int i = 0; i < 4; i++) p[i] = (unsigned char)(x >> 8 * i);
}
static void put_u32(file_bytes *f, uint32_t x) {
    unsigned char b[4];
    set_u32(b, x);
    put(f, b, 4);
}
static void put_f32(file_bytes *f, float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    put_u32(f, u);
}

/* Header and weights of a llama2.c checkpoint; weights are scale * normal, norms are 1. */
static file_bytes make_model(int shared_classifier, float scale) {
    static const int32_t header[7] = {DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, CONTEXT};
    const int64_t head_dim = DIM / HEADS, kv_dim = head_dim * KV_HEADS;
    const int64_t sizes[13] = {
        VOCAB * DIM,                                                             /* embedding */
        LAYERS * DIM, LAYERS * DIM * DIM, LAYERS * DIM * kv_dim, LAYERS * DIM * kv_dim, LAYERS * DIM * DIM,
        LAYERS * DIM, LAYERS * DIM * HIDDEN, LAYERS * DIM * HIDDEN, LAYERS * DIM * HIDDEN,
        DIM, CONTEXT * head_dim, shared_classifier ? 0 : VOCAB * DIM /* norm, RoPE, classifier */
    };
    file_bytes f = {NULL, 0, 0};
    test_rng   r = test_rng_make(5);
    for (int i = 0; i < 7; i++)
        put_u32(&f, (uint32_t)(i == 5 && !shared_classifier ? -header[i] : header[i]));
    for (int t = 0; t < 13; t++) {
        const int norm = t == 1 || t == 6 || t == 10;
        for (int64_t i = 0; i < sizes[t]; i++) put_f32(&f, norm ? 1.0f : scale * (float)test_normal(&r));
    }
    return f;
}

/* The versioned format; type 0 f32, 1 f16, 2 bf16. The weights have few bits, so that every
   type holds them exactly. */
typedef struct version_spec { uint32_t type, shared; int32_t head_dim, context; float theta; } version_spec;

static file_bytes make_versioned(version_spec v) {
    const int64_t q_dim = v.head_dim * HEADS, kv_dim = v.head_dim * KV_HEADS;
    const int64_t sizes[12] = {
        VOCAB * DIM, LAYERS * DIM, LAYERS * DIM * q_dim, LAYERS * DIM * kv_dim, LAYERS * DIM * kv_dim,
        LAYERS * DIM * q_dim, LAYERS * DIM, LAYERS * DIM * HIDDEN, LAYERS * DIM * HIDDEN,
        LAYERS * DIM * HIDDEN, DIM,
        v.shared ? 0 : VOCAB * DIM
    };
    const int32_t header[8] = {DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, v.head_dim, VOCAB, v.context};
    file_bytes f = {NULL, 0, 0};
    test_rng   r = test_rng_make(6);
    put(&f, "SANTA-LM", 8);
    put_u32(&f, 1);
    put_u32(&f, 64);
    for (int i = 0; i < 8; i++) put_u32(&f, (uint32_t)header[i]);
    put_u32(&f, v.type);
    put_f32(&f, v.theta);
    put_f32(&f, 1e-5f);
    put_u32(&f, v.shared);
    for (int t = 0; t < 12; t++) {
        const int norm = t == 1 || t == 6 || t == 10;
        for (int64_t i = 0; i < sizes[t]; i++) {
            const float    x    = norm ? 1.0f : (float)(test_below(&r, 65) - 32) / 64.0f;
            const uint16_t half = v.type == 1 ? santa_f32_to_f16(x) : santa_f32_to_bf16(x);
            const unsigned char bytes[2] = {(unsigned char)(half & 255), (unsigned char)(half >> 8)};
            if (v.type == 0) put_f32(&f, x);
            else             put(&f, bytes, 2);
        }
    }
    return f;
}

/* <unk>, <s>, </s>, the 256 bytes, and one merged pair. */
static file_bytes make_tokenizer(void) {
    static const char *const special[3] = {"<unk>", "<s>", "</s>"};
    file_bytes f = {NULL, 0, 0};
    put_u32(&f, 6);
    for (int i = 0; i < VOCAB; i++) {
        char text[8];
        if (i < 3)                 snprintf(text, sizeof text, "%s", special[i]);
        else if (i < VOCAB - 1)    snprintf(text, sizeof text, "<0x%02X>", (unsigned)(i - 3) & 255u);
        else                       snprintf(text, sizeof text, "ab");
        put_f32(&f, i < VOCAB - 1 ? 0.0f : 1.0f);
        put_u32(&f, (uint32_t)strlen(text));
        put(&f, text, strlen(text));
    }
    return f;
}

static void write_file(const char *path, const unsigned char *data, size_t size) {
    FILE *f = fopen(path, "wb");
    const size_t written = f && size ? fwrite(data, 1, size, f) : 0;
    const int    closed  = f && fclose(f) == 0;
    CHECK_MSG(closed && written == size, "cannot write %s", path);
}

/* ------------------------------------------------------------ the program */

static const char *decoder(void) {
    const char *given = getenv("SANTA_DECODE");
    return given ? given : "build/decode";
}

static char message[4096];                                    /* what the program printed last */

/* Exit code of the decoder with these arguments, NULL behind the last, or -signal. It gets
   TIMEOUT seconds. */
static int run_arguments(const char *const *arguments) {
    const char *const program = decoder();
    char *line[24];
    int count = 0;
    line[count++] = (char *)(uintptr_t)program;
    while (*arguments && count < 23) line[count++] = (char *)(uintptr_t)*arguments++;
    line[count] = NULL;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const int out = open(output_path, O_WRONLY | O_CREAT | O_TRUNC, 0600),
                  in = open("/dev/null", O_RDONLY);
        if (out < 0 || in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(126);
        alarm(TIMEOUT);
        execv(program, line);
        _exit(127);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return INT_MIN;
    FILE *f = fopen(output_path, "rb");
    const size_t n = f ? fread(message, 1, sizeof message - 1, f) : 0;
    message[n] = 0;
    if (f) fclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int run(const char *method, const char *model, const char *tokenizer) {
    const char *const arguments[] = {"--model", model, "--tokenizer", tokenizer, "--prompt", "abc",
                                     "--steps", "6", "--method", method, NULL};
    return run_arguments(arguments);
}

/* A refusal: exit code 1 and a message that names the file at fault. */
static void refused(const char *model, const char *tokenizer, const char *at_fault, const char *what) {
    const int code = run("dense", model, tokenizer);
    CHECK_MSG(code == 1, "%s: exit code %d instead of 1; it said: %.300s", what, code, message);
    CHECK_MSG(strstr(message, at_fault) != NULL, "%s: the message does not name the file: %.300s", what,
              message);
}

static file_bytes good_model, good_tokenizer;

static int set_up(void) {
    const char *tmp = getenv("TMPDIR");
    if (access(decoder(), X_OK) != 0) { test_skip("the decoder is not built"); return 0; }
    snprintf(directory, sizeof directory, "%s/santa-test-XXXXXX", tmp && strlen(tmp) < 200 ? tmp : "/tmp");
    if (!mkdtemp(directory)) { test_skip("no directory for temporary files"); return 0; }
    snprintf(model_path, sizeof model_path, "%s/model.bin", directory);
    snprintf(tokenizer_path, sizeof tokenizer_path, "%s/tokenizer.bin", directory);
    snprintf(buckets_path, sizeof buckets_path, "%s/router.saap", directory);
    snprintf(output_path, sizeof output_path, "%s/output", directory);
    good_model     = make_model(1, 0.3f);
    good_tokenizer = make_tokenizer();
    write_file(model_path, good_model.data, good_model.size);
    write_file(tokenizer_path, good_tokenizer.data, good_tokenizer.size);
    return 1;
}

static void tear_down(void) {
    remove(model_path);
    remove(tokenizer_path);
    remove(buckets_path);
    remove(output_path);
    rmdir(directory);
    free(good_model.data);
    free(good_tokenizer.data);
}

/* ------------------------------------------------------------ the cases */

static void valid(void) {
    static const char *const methods[] = {"dense", "iid", "strat", "sys", "prop", "flash", "top-k", "top-p",
                                          "vattention"};
    if (!set_up()) return;
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        const int code = run(methods[m], model_path, tokenizer_path);
        CHECK_MSG(code == 0, "%s: exit code %d; it said: %.300s", methods[m], code, message);
        CHECK_MSG(strstr(message, "abc") != NULL, "%s: the prompt is not in the text: %.300s", methods[m],
                  message);
    }
    const file_bytes own = make_model(0, 0.3f); /* a classifier of its own: negative vocabulary */
    write_file(model_path, own.data, own.size);
    const int code = run("dense", model_path, tokenizer_path);
    CHECK_MSG(code == 0, "own classifier: exit code %d; it said: %.300s", code, message);
    free(own.data);
    tear_down();
}

static void cut_model(void) {
    if (!set_up()) return;
    const size_t size = good_model.size;
    const size_t cuts[] = {0, 1, 4, HEADER - 1, HEADER, HEADER + 1, HEADER + VOCAB * DIM * 4, size / 2,
                           size / 2 + 1,
                           size - CONTEXT * 4, size - 4, size - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        char what[64];
        snprintf(what, sizeof what, "model cut to %lu bytes", (unsigned long)cuts[i]);
        write_file(model_path, good_model.data, cuts[i]);
        refused(model_path, tokenizer_path, "model.bin", what);
    }
    put_u32(&good_model, 0);
    write_file(model_path, good_model.data, good_model.size);
    refused(model_path, tokenizer_path, "model.bin", "model with 4 bytes too many");
    tear_down();
}

static void absurd_headers(void) {
    static const int32_t wild[] = {0, -1, 1, 3, 5, 7, 31, 33, 1 << 15, 1 << 24, INT32_MAX, INT32_MIN,
                                   INT32_MIN + 1};
    if (!set_up()) return;
    for (int field = 0; field < 7; field++)
        for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
            if (test_quick && (field + (int)i) % 4) continue;
            unsigned char *at = good_model.data + 4 * field, old[4];
            char what[64];
            memcpy(old, at, 4);
            set_u32(at, (uint32_t)wild[i]);
            snprintf(what, sizeof what, "header field %d = %d", field, (int)wild[i]);
            write_file(model_path, good_model.data, good_model.size);
            refused(model_path, tokenizer_path, "model.bin", what);
            memcpy(at, old, 4);
        }
    for (int all = 0; all < 2; all++) {
        for (int field = 0; field < 7; field++)
            set_u32(good_model.data + 4 * field, all ? INT32_MAX : 1 << 20);
        write_file(model_path, good_model.data, good_model.size);
        refused(model_path, tokenizer_path, "model.bin", "every header field huge");
    }
    tear_down();
}

/* Weights without a sensible value may make nonsense, but no crash. */
static void absurd_weights(void) {
    static const uint32_t wild[] = {0x7fc00000u, 0x7f800000u, 0xff800000u, 0x7f7fffffu, 0};
    static const char *const methods[] = {"dense", "sys", "top-p", "vattention"};
    if (!set_up()) return;
    for (size_t i = 0; i < sizeof wild / sizeof *wild; i++)
        for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
            for (size_t at = HEADER; at < good_model.size; at += 4) set_u32(good_model.data + at, wild[i]);
            write_file(model_path, good_model.data, good_model.size);
            const int code = run(methods[m], model_path, tokenizer_path);
            CHECK_MSG(code == 0 || code == 1, "weights %08x, %s: exit code %d; it said: %.300s",
                      (unsigned)wild[i], methods[m], code, message);
        }
    tear_down();
}

static void broken_tokenizer(void) {
    if (!set_up()) return;
    const size_t size = good_tokenizer.size, last = size - 10; /* token "ab": 4 + 4 + 2 bytes */
    const size_t cuts[] = {0, 1, 3, 4, 5, 12, 13, size / 2, last, last + 4, last + 8, size - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        char what[64];
        snprintf(what, sizeof what, "tokenizer cut to %lu bytes", (unsigned long)cuts[i]);
        write_file(tokenizer_path, good_tokenizer.data, cuts[i]);
        refused(model_path, tokenizer_path, "tokenizer.bin", what);
    }
    static const uint32_t wild[] = {0x80000000u, 0xffffffffu, 0x7fffffffu, 0x00100000u, 3};
    const size_t fields[] = {0, 8, last + 4}; /* longest length, first length, last length */
    for (size_t f = 0; f < 3; f++)
        for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
            unsigned char *at = good_tokenizer.data + fields[f], old[4];
            char what[64];
            memcpy(old, at, 4);
            set_u32(at, wild[i]);
            snprintf(what, sizeof what, "tokenizer with %08x at byte %lu", (unsigned)wild[i],
                     (unsigned long)fields[f]);
            write_file(tokenizer_path, good_tokenizer.data, size);
            refused(model_path, tokenizer_path, "tokenizer.bin", what);
            memcpy(at, old, 4);
        }
    put_u32(&good_tokenizer, 0);
    write_file(tokenizer_path, good_tokenizer.data, good_tokenizer.size);
    refused(model_path, tokenizer_path, "tokenizer.bin", "tokenizer with 4 bytes too many");
    tear_down();
}

static const version_spec usual = {1, 1, 10, LONG_CONTEXT, 5e5f}; /* head_dim is not DIM / HEADS */

static void versioned_files(void) {
    if (!set_up()) return;
    file_bytes f = make_versioned(usual);
    write_file(model_path, f.data, f.size);
    const int code = run("sys", model_path, tokenizer_path);
    CHECK_MSG(code == 0 && strstr(message, "head_dim 10"), "exit code %d; it said: %.300s", code, message);
    const size_t cuts[] = {8, 9, 63, 64, 65, 64 + VOCAB * DIM * 2, f.size / 2, f.size - 2, f.size - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        char what[64];
        snprintf(what, sizeof what, "versioned model cut to %lu bytes", (unsigned long)cuts[i]);
        write_file(model_path, f.data, cuts[i]);
        refused(model_path, tokenizer_path, "model.bin", what);
    }
    /* offset, value: version, header, each size, type, theta (NaN, 0, inf), epsilon (0, NaN),
       flags */
    static const struct { size_t offset; uint32_t value; } wild[] = {
        {8, 0}, {8, 2}, {12, 28}, {12, 0}, {16, 0}, {16, 0x80000000u}, {16, 0x7fffffffu}, {20, 0}, {24, 0},
        {24, 0x7fffffffu},
        {28, 0}, {28, 3}, {28, 0x7ffffffeu}, {32, 0}, {32, 3}, {36, 0}, {36, 7}, {36, 0xfffffffeu},
        {36, 0x7ffffffeu}, {40, 2},
        {40, 0x7fffffffu}, {44, 0}, {44, 0xffffffffu}, {48, 3}, {48, 0}, {52, 0x7fc00000u}, {52, 0},
        {52, 0x7f800000u},
        {56, 0}, {56, 0x7fc00000u}, {60, 2}, {60, 0},
    };
    for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
        if (test_quick && i % 4) continue;
        unsigned char old[4];
        char what[64];
        memcpy(old, f.data + wild[i].offset, 4);
        set_u32(f.data + wild[i].offset, wild[i].value);
        snprintf(what, sizeof what, "%08x at byte %lu", (unsigned)wild[i].value,
                 (unsigned long)wild[i].offset);
        write_file(model_path, f.data, f.size);
        refused(model_path, tokenizer_path, "model.bin", what);
        memcpy(f.data + wild[i].offset, old, 4);
    }
    put_u32(&f, 0);
    write_file(model_path, f.data, f.size);
    refused(model_path, tokenizer_path, "model.bin", "versioned model with 4 bytes too many");
    free(f.data);
    tear_down();
}

/* Centroids for the model, f32; no classifier. */
static file_bytes make_buckets(int32_t head_dim, int32_t count) {
    const uint32_t header[8] = {1, LAYERS, KV_HEADS, HEADS / KV_HEADS, (uint32_t)head_dim,
                                (uint32_t)count, 0, 0};
    file_bytes f = {NULL, 0, 0};
    test_rng   r = test_rng_make(7);
    put(&f, "SAAP", 4);
    for (int i = 0; i < 8; i++) put_u32(&f, header[i]);
    while (f.size < SAAP_HEADER) put_u32(&f, 0);
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int32_t i = 0; i < KV_HEADS * count * head_dim; i++) put_f32(&f, (float)test_normal(&r));
        while (f.size % SAAP_ALIGN) put_u32(&f, 0);
    }
    const uint64_t hash = saap_hash(saap_hash(UINT64_C(0xCBF29CE484222325), f.data, SAAP_HASHED),
                                    f.data + SAAP_HEADER, f.size - SAAP_HEADER);
    set_u32(f.data + SAAP_HASHED, (uint32_t)hash);
    set_u32(f.data + SAAP_HASHED + 4, (uint32_t)(hash >> 32));
    return f;
}

/* The decoder's greedy text behind a long prompt is in message; more: up to three options and
   values. */
static int decode_long(const char *method, const char *more[6]) {
    char prompt[301];
    const char *arguments[19] = {"--model", model_path, "--tokenizer", tokenizer_path, "--prompt", prompt,
                                 "--steps", "20", "--temperature", "0", "--method", method};
    for (size_t i = 0; i + 1 < sizeof prompt; i++) prompt[i] = (char)('a' + (i * i / 3 + i) % 26);
    prompt[300] = 0;
    for (int i = 0; i < 6; i++) arguments[12 + i] = more[i];
    arguments[18] = NULL;
    return run_arguments(arguments);
}

/* What stands between the lines on the prompt and on speed. */
static const char *text_of(char *from) {
    char *text = strstr(from, "abd"), *end = strrchr(from, '[');
    if (!CHECK_MSG(text && end && end > text, "no text: %.300s", from)) return "";
    *end = 0;
    return text;
}

/* Drafts that an exact call checks: the greedy text is dense's whatever drafted it, and all is
   kept where the draft is exact, too. */
static void drafts(void) {
    static char dense[sizeof message];
    const char *none[6] = {NULL}, *few[6] = {"--draft", "4", "--samples", "4"},
               *all[6] = {"--draft", "3", "--samples", "400"}, *one[6] = {"--draft", "1", "--top-p", "1"},
               *wrong[6] = {"--draft", "4", "--prefill", "sample"}, *nothing[6] = {"--top-p", "0"};
    int kept = 0, drafted = 0;
    if (!set_up()) return;
    const file_bytes model = make_versioned(usual);
    write_file(model_path, model.data, model.size);
    CHECK(decode_long("dense", none) == 0);
    strcpy(dense, text_of(message));
    CHECK_MSG(decode_long("sys", few) == 0, "it said: %.300s", message);
    const char *said = strstr(message, "exact calls: ");
    CHECK(said && sscanf(said, "exact calls: %d of %d", &kept, &drafted) == 2);
    CHECK(drafted > kept && kept > 0);
    CHECK_MSG(!strcmp(text_of(message), dense), "not dense's text: %.300s", message);
    CHECK(decode_long("top-k", all) == 0 && strstr(message, "15 of 15 drafted ones kept, 100.0 %"));
    CHECK_MSG(!strcmp(text_of(message), dense), "not dense's text: %.300s", message);
    CHECK(decode_long("top-p", one) == 0 && strstr(message, "10 of 10 drafted"));
    CHECK(decode_long("sys", wrong) == 1 && strstr(message, "--draft needs"));
    CHECK(decode_long("dense", few) == 1);
    CHECK(decode_long("top-p", nothing) == 1);
    CHECK_MSG(strstr(message, "--top-p wants a value above 0 and up to 1"), "it said: %.300s", message);
    free(model.data);
    tear_down();
}

/* What is kept and what takes the place of the others is distributed by the exact logits. */
static void speculative_sampling(void) {
    enum { N = 5, TURNS = 40000 };
    static const float exact[N] = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f},
                       draft[N] = {1.5f, 0.0f, 0.0f, 1.0f, -2.0f};
    uint64_t random = 9;
    int count[N] = {0}, kept = 0;
    double sum = 0.0, sum_draft = 0.0, overlap = 0.0;
    for (int i = 0; i < N; i++) {
        sum += exp((double)exact[i] / 0.8);
        sum_draft += exp((double)draft[i] / 0.8);
    }
    for (int turn = 0; turn < TURNS; turn++) {
        int32_t token = llama_sample(draft, N, 0.8, &random);
        kept += llama_accept(exact, draft, N, 0.8, &random, &token);
        if (!CHECK(token >= 0 && token < N)) return;
        count[token]++;
    }
    for (int i = 0; i < N; i++) {
        const double p = exp((double)exact[i] / 0.8) / sum, q = exp((double)draft[i] / 0.8) / sum_draft;
        overlap += fmin(p, q);
        CHECK_NEAR(count[i], p * TURNS, 4.5 * sqrt(p * (1.0 - p) * TURNS), 0);
        CHECK_MSG(fabs(count[i] - q * TURNS) > 20.0 * sqrt(q * (1.0 - q) * TURNS),
                  "token %d: the draft's", i);
    }
    CHECK_NEAR(kept, overlap * TURNS, 4.5 * sqrt(overlap * (1.0 - overlap) * TURNS), 0);
}

/* Each call with its options behind the buckets: what the decoder says, or exit code 0 and this
   in it. */
static void buckets(void) {
    static const struct { const char *method, *more[6], *says; int code, exact; } calls[] = {
        {"saap", {"--buckets", buckets_path, "--samples", "400"}, " 100.0 % of ", 0, 1},
        {"saap", {"--buckets", buckets_path, "--samples", "0", "--probes", "7"}, " far keys", 0, 1},
        {"saap", {"--buckets", buckets_path, "--samples", "0", "--local", "500"}, " of 0 far keys", 0, 1},
        {"saap", {"--buckets", buckets_path, "--samples", "0", "--probes", "0"}, " 0.0 % of ", 0, 0},
        {"saap", {"--buckets", buckets_path, "--samples", "40", "--local", "0"}, " far keys", 0, 0},
        {"saap", {"--buckets", "/no/such.saap"}, "cannot open /no/such.saap", 1, 0},
        {"saap", {"--samples", "400"}, " 100.0 % of ", 0, 1},
        {"saap", {"--samples", "0", "--probes", "32", "--local", "64"}, " 100.0 % of ", 0, 1},
        {"saap", {"--samples", "0", "--probes", "0", "--local", "64"}, " 0.0 % of ", 0, 0},
        {"saap", {"--draft", "3", "--samples", "0", "--local", "0"}, "exact calls", 0, 1},
        {"sys", {"--buckets", buckets_path}, "needs --method saap", 1, 0},
        {"sys", {"--probes", "2"}, "needs --method saap", 1, 0},
        {"sys", {"--local", "2"}, "needs --method saap", 1, 0},
        {"sys", {"--samples", "0"}, "needs --method saap", 1, 0},
        {"saap", {"--buckets", buckets_path, "--scores", "copy"}, "a copy of K wants a head_dim", 1, 0},
        {"prop", {"--tile-size", "16"}, "--tile-size wants a multiple of 64", 1, 0},
    };
    static char dense[sizeof message];
    const char *none[6] = {NULL}, *file_only[6] = {"--buckets", buckets_path};
    if (!set_up()) return;
    file_bytes model = make_versioned(usual), file = make_buckets(usual.head_dim, 7),
               other = make_buckets(usual.head_dim + 2, 7);
    write_file(model_path, model.data, model.size);
    write_file(buckets_path, other.data, other.size);
    CHECK(decode_long("saap", file_only) == 1 && strstr(message, "buckets of another model"));
    file.data[file.size - 3] ^= 1;
    write_file(buckets_path, file.data, file.size);
    CHECK(decode_long("saap", file_only) == 1 && strstr(message, "router.saap: damaged"));
    file.data[file.size - 3] ^= 1;
    write_file(buckets_path, file.data, file.size - 1);
    CHECK(decode_long("saap", file_only) == 1 && strstr(message, "router.saap: the file is shorter"));
    write_file(buckets_path, file.data, file.size);
    CHECK(decode_long("dense", none) == 0);
    memcpy(dense, message, sizeof dense);
    const char *const want = text_of(dense);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        const char *more[6];
        memcpy(more, calls[i].more, sizeof more);
        const int code = decode_long(calls[i].method, more);
        CHECK_MSG(code == calls[i].code && strstr(message, calls[i].says),
                  "call %d: exit code %d, no '%s'; it said: %.900s", (int)i, code, calls[i].says, message);
        if (calls[i].exact)
            CHECK_MSG(strcmp(text_of(message), want) == 0, "call %d: %s\nis not\n%s", (int)i, message,
                      want);
    }
    free(model.data);
    free(file.data);
    free(other.data);
    tear_down();
}

/* What a text without draws says of the far keys that it read. */
static double far_share(const char *seed) {
    const char *more[6] = {"--samples", "0", "--local", "64", "--seed", seed}, *at;
    double share = -1.0;
    CHECK_MSG(decode_long("saap", more) == 0, "it said: %.300s", message);
    CHECK_MSG(strstr(message, "buckets  32 for each KV head") != NULL, "it said: %.300s", message);
    at = strstr(message, "K read, ");
    CHECK(at && sscanf(at, "K read, %lf", &share) == 1);
    return share;
}

/* Without a file buckets are the k-means of the prompt: the seed picks them; the prompt must be
   long enough. */
static void prompt_buckets(void) {
    static char first[sizeof message];
    char prompt[40];
    const char *arguments[] = {"--model", model_path, "--tokenizer", tokenizer_path, "--prompt", prompt,
                               "--steps", "3", "--method", "saap", NULL};
    int others = 0;
    if (!set_up()) return;
    const file_bytes model = make_versioned(usual);
    write_file(model_path, model.data, model.size);
    const double share = far_share("1");
    strcpy(first, text_of(message));
    CHECK_NEAR(far_share("1"), share, 0, 0);
    CHECK_MSG(strcmp(text_of(message), first) == 0, "the same seed gives another text: %.300s", message);
    static const char *const seeds[] = {"2", "3", "4", "5"};
    for (size_t i = 0; i < 4; i++) others += fabs(far_share(seeds[i]) - share) > 0.0;
    CHECK_MSG(others > 0, "four other seeds read the same share of far keys");
    memset(prompt, 'x', sizeof prompt);                       /* tokens, behind BOS and a space */
    prompt[32] = 0;
    CHECK_MSG(run_arguments(arguments) == 0, "34 tokens: %.300s", message);
    prompt[31] = 0;
    CHECK_MSG(run_arguments(arguments) == 1 && strstr(message, "a prompt of 34 tokens or more, not 33"),
              "33 tokens: %.300s", message);
    free(model.data);
    tear_down();
}

/* Sparse prefill of a prompt: what keeps all is dense's text; wrong options and files are
   named. */
static void sparse_prefill(void) {
    static const struct { const char *more[6], *says; int code, exact; } calls[] = {
        {{"--prefill", "sample", "--alpha", "1"}, "of the last one keys and values only", 0, 1},
        {{"--prefill", "sample", "--alpha", "0.3", "--dense-layers", "9"}, "sample", 0, 1},
        {{"--prefill", "sample", "--alpha", "0.05", "--dense-layers", "0"}, "blocks of keys kept", 0, 0},
        {{"--prefill", "sample", "--chunks", "3", "--block", "128"}, "the first after", 0, 0},
        {{"--prefill", "sample", "--prefill-options", buckets_path}, "kept, by layer: all;", 0, 1},
        {{"--prefill", "sample", "--prefill-options", "/no/such"}, "cannot open /no/such", 1, 0},
        {{"--prefill", "sample", "--prefill-options", model_path}, "not a whole file of prefill", 1, 0},
        {{"--prefill", "sample", "--prefill-options", buckets_path, "--alpha", "0.5"}, "without", 1, 0},
        {{"--prefill-options", buckets_path}, "needs --prefill sample", 1, 0},
        {{"--alpha", "0.5"}, "needs --prefill sample", 1, 0},
        {{"--chunks", "2"}, "needs --prefill sample", 1, 0},
        {{"--dense-layers", "2"}, "needs --prefill sample", 1, 0},
        {{"--prefill", "sample", "--block", "96"}, "--block has no choice 96, but 64, 128", 1, 0},
        {{"--prefill", "sample", "--block", "32"}, "--block has no choice 32, but 64, 128", 1, 0},
        {{"--prefill", "sample", "--alpha", "0"}, "--alpha wants a value above 0 and up to 1", 1, 0},
        {{"--prefill", "sys"}, "no choice sys", 1, 0},
    };
    static char dense[sizeof message];
    const char *none[6] = {NULL};
    prefill_options_file options;
    char why[200];
    if (!set_up()) return;
    file_bytes model = make_versioned(usual);
    write_file(model_path, model.data, model.size);
    memset(&options, 0, sizeof options);
    options.layers = LAYERS;
    options.ranges = 2;
    options.block = 64;
    options.upto[0] = 350;
    for (int i = 0; i < LAYERS; i++) {
        options.setting[0][i].chunks = i > 0; /* the last layer has no attention in a prefill */
        options.setting[0][i].alpha_columns = options.setting[0][i].alpha_slashes = 0.01;
    }
    CHECK(prefill_options_save(buckets_path, &options, why, sizeof why) == 0);
    CHECK(decode_long("dense", none) == 0);
    memcpy(dense, message, sizeof dense);
    const char *const want = text_of(dense);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        const char *more[6];
        memcpy(more, calls[i].more, sizeof more);
        const int code = decode_long("dense", more);
        CHECK_MSG(code == calls[i].code && strstr(message, calls[i].says),
                  "call %d: exit code %d, no '%s'; it said: %.900s", (int)i, code, calls[i].says, message);
        if (calls[i].exact)
            CHECK_MSG(strcmp(text_of(message), want) == 0, "call %d: %s\nis not\n%s", (int)i, message,
                      want);
    }
    options.layers = LAYERS + 1;
    CHECK(prefill_options_save(buckets_path, &options, why, sizeof why) == 0);
    const char *file[6] = {"--prefill", "sample", "--prefill-options", buckets_path};
    CHECK(decode_long("dense", file) == 1 && strstr(message, "the model has"));
    free(model.data);
    tear_down();
}

/* ------------------------------------------------------------ llama.h itself */

/* Loads the bytes as a model and makes a state of it; 0 and a failed check if that does not
   go. */
static int open_model(const file_bytes *f, llama_model *m, llama_state *s, int64_t capacity) {
    llama_error e = {""};
    snprintf(model_path, sizeof model_path, "%s/santa-test-%ld.bin",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (long)getpid());
    write_file(model_path, f->data, f->size);
    const int ok = llama_load(m, model_path, &e) == 0 && llama_state_init(s, m, capacity, &e) == 0;
    remove(model_path);
    return CHECK_MSG(ok, "%s", e.text);
}

static void close_model(llama_model *m, llama_state *s) {
    llama_state_free(s);
    llama_free(m);
}

static int32_t token_at(int64_t i) { return (int32_t)(3 + (i * i * 7 + i * 131) % (VOCAB - 3)); }

/* Logits behind token_at(0) .. token_at(n - 1), the first `prefilled` of them at once. */
static void logits_behind(llama_state *s, int64_t n, int64_t prefilled, float *logits) {
    llama_error e = {""};
    int32_t token[LONG_CONTEXT];
    for (int64_t i = 0; i < n; i++) token[i] = token_at(i);
    int status = llama_prefill(s, token, prefilled, 0, &e);
    for (int64_t i = prefilled; i < n && status == 0; i++)
        status = llama_forward(s, token[i], i, i == n - 1, &e);
    CHECK_MSG(status == 0, "%s", e.text);
    memcpy(logits, s->logits, VOCAB * sizeof *logits);
}

static void check_same(const char *what, const float *got, const float *want, double tolerance) {
    double wide[VOCAB], most = 0.0;
    for (int i = 0; i < VOCAB; i++) {
        wide[i] = (double)want[i];
        if (fabs(wide[i]) > most) most = fabs(wide[i]);
    }
    check_array_near(what, got, wide, VOCAB, tolerance * most, 0.0);
}

static void formats(void) {
    float first[VOCAB], logits[VOCAB], turned[VOCAB];
    for (uint32_t i = 0; i < 5; i++) {
        version_spec v = usual;
        llama_model  m;
        llama_state  s;
        v.type = i % 3;
        if (i == 3) v.shared = 0;
        if (i == 4) v.theta = 1e4f;
        file_bytes f = make_versioned(v);
        if (open_model(&f, &m, &s, 64)) {
            CHECK_INT(m.head_dim, 10);
            CHECK_INT(m.q_dim, 40);
            CHECK_NEAR(m.rope_theta, v.theta, 0, 0);
            CHECK(!v.shared || m.classifier == m.embedding);
            logits_behind(&s, 60, 0, i == 0 ? first : i == 4 ? turned : logits);
            if (i == 1 || i == 2) check_same("f16 and bf16 against f32", logits, first, 0.0);
            if (i == 3) CHECK(memcmp(logits, first, sizeof first) != 0);
            if (i == 4) CHECK(memcmp(turned, first, sizeof first) != 0);
        }
        close_model(&m, &s);
        free(f.data);
    }
    /* The same numbers behind a llama2.c header, with its unused RoPE tables, are the same
       model. */
    version_spec v = {0, 1, DIM / HEADS, CONTEXT, 1e4f};
    file_bytes new_format = make_versioned(v), old_format = {NULL, 0, 0};
    static const int32_t header[7] = {DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, CONTEXT};
    for (int i = 0; i < 7; i++) put_u32(&old_format, (uint32_t)header[i]);
    put(&old_format, new_format.data + 64, new_format.size - 64);
    for (int i = 0; i < CONTEXT * DIM / HEADS; i++) put_f32(&old_format, 1.0f);
    const file_bytes *const both[2] = {&new_format, &old_format};
    for (int i = 0; i < 2; i++) {
        llama_model m;
        llama_state s;
        if (open_model(both[i], &m, &s, CONTEXT)) logits_behind(&s, CONTEXT, 0, i == 0 ? first : logits);
        close_model(&m, &s);
    }
    check_same("llama2.c's format against ours", logits, first, 0.0);
    free(new_format.data);
    free(old_format.data);
}

/* The same numbers in llama2.c's version 1: another header, norms first, no RoPE tables. Its
   quantised version 2 is named. */
static void version_1(void) {
    static const int32_t header[7] = {DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, CONTEXT};
    const int norm_numbers = LAYERS * DIM, last_norm = DIM;
    for (int shared = 0; shared < 2; shared++) {
        float first[VOCAB], logits[VOCAB];
        llama_model m;
        llama_state s;
        llama_error e = {""};
        file_bytes  old = make_model(shared, 0.3f), f = {NULL, 0, 0};
        test_rng    r = test_rng_make(8);
        const int64_t kv = DIM / HEADS * KV_HEADS, attention = LAYERS * DIM * (2 * DIM + 2 * kv),
                      classifier = shared ? 0 : VOCAB * DIM;
        /* in order: embedding, norms, attention, norms, FFN, norm, RoPE, classifier; norms
           unequal */
        unsigned char *const embedding = old.data + HEADER, *const att_norm = embedding + 4 * VOCAB * DIM,
            *const wq = att_norm + 4 * norm_numbers, *const ffn_norm = wq + 4 * attention,
            *const w1 = ffn_norm + 4 * norm_numbers, *const norm = w1 + 4 * 3 * LAYERS * DIM * HIDDEN,
            *const last = old.data + old.size - 4 * classifier;
        unsigned char *const norms[3] = {att_norm, ffn_norm, norm};
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < (i < 2 ? norm_numbers : last_norm); j++) {
                const float x = 1.0f + 0.1f * (float)test_normal(&r);
                uint32_t    u;
                memcpy(&u, &x, 4);
                set_u32(norms[i] + 4 * j, u);
            }
        put(&f, "24ka", 4);
        put_u32(&f, 1);
        for (int i = 0; i < 7; i++) put_u32(&f, (uint32_t)header[i]);
        put(&f, shared ? "\1" : "\0", 1);
        while (f.size < 256) put(&f, "", 1);
        put(&f, att_norm, (size_t)(4 * norm_numbers));
        put(&f, ffn_norm, (size_t)(4 * norm_numbers));
        put(&f, norm, 4 * DIM);
        put(&f, embedding, 4 * VOCAB * DIM);
        put(&f, wq, (size_t)(4 * attention));
        put(&f, w1, 4 * 3 * LAYERS * DIM * HIDDEN);
        put(&f, last, (size_t)(4 * classifier));
        if (open_model(&old, &m, &s, CONTEXT)) logits_behind(&s, CONTEXT, 0, first);
        close_model(&m, &s);
        if (open_model(&f, &m, &s, CONTEXT)) {
            CHECK_INT(m.vocab_size, VOCAB);
            CHECK((m.classifier == m.embedding) == shared);
            logits_behind(&s, CONTEXT, 0, logits);
        }
        close_model(&m, &s);
        check_same("llama2.c's version 1 against its version 0", logits, first, 0.0);

        if (set_up()) {
            const size_t cuts[] = {4, 36, 37, 255, 256, f.size - 1};
            write_file(model_path, f.data, f.size);
            CHECK(llama_load(&m, model_path, &e) == 0);
            llama_free(&m);
            for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
                write_file(model_path, f.data, cuts[i]);
                CHECK(llama_load(&m, model_path, &e) != 0 && strstr(e.text, "model.bin"));
            }
            f.data[36] = 2;
            write_file(model_path, f.data, f.size);
            CHECK(llama_load(&m, model_path, &e) != 0 && strstr(e.text, "damaged"));
            f.data[36] = (unsigned char)shared;
            for (uint32_t version = 2; version < 4; version++) {
                set_u32(f.data + 4, version);
                write_file(model_path, f.data, f.size);
                CHECK(llama_load(&m, model_path, &e) != 0);
                CHECK_MSG(strstr(e.text, version == 2 ? "quantised" : "version 3") != NULL, "%s", e.text);
            }
            tear_down();
        }
        free(old.data);
        free(f.data);
    }
}

/* Tasks from the last to the first: nothing may hang on the order. */
static void backwards(void *user, int64_t count, santa_task task, void *context) {
    ++*(int *)user;
    while (count-- > 0) task(context, count);
}

static void prefill_matches_forward(void) {
    static const int64_t lengths[] = {1, 2, 15, 16, 17, 127, 128, 129, 300, LONG_CONTEXT};
    llama_model m;
    llama_state s;
    llama_error e = {""};
    float want[VOCAB], got[VOCAB];
    int   calls = 0;
    const int32_t token = 5;
    file_bytes f = make_versioned(usual);
    if (open_model(&f, &m, &s, LONG_CONTEXT)) {
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            const int64_t n = lengths[i];
            logits_behind(&s, n, 0, want);
            logits_behind(&s, n, n - 1, got);
            check_same("prefill against one token at a time", got, want, 1e-5);
            s.threads = 3;
            s.parallel_for = backwards;
            s.parallel_user = &calls;
            memcpy(want, got, sizeof want);
            logits_behind(&s, n, n - 1, got);
            check_same("three parts against one", got, want, 0.0);
            s.threads = 1;
        }
        CHECK(calls > 0);
        logits_behind(&s, 200, 150, want); /* going back: nothing of the longer text is left */
        logits_behind(&s, LONG_CONTEXT, 300, got);
        CHECK(llama_forward(&s, token_at(199), 199, 1, &e) == 0);
        check_same("back at an earlier position", s.logits, want, 1e-5);
        CHECK(llama_prefill(&s, &token, 1, LONG_CONTEXT, &e) != 0 && strstr(e.text, "outside"));
        CHECK(llama_prefill(&s, &token, 1, -1, &e) != 0 && strstr(e.text, "outside"));
        const int32_t unknown = VOCAB;
        CHECK(llama_prefill(&s, &unknown, 1, 0, &e) != 0 && strstr(e.text, "vocabulary"));
    }
    close_model(&m, &s);
    if (open_model(&f, &m, &s, 1)) logits_behind(&s, 1, 0, got);
    close_model(&m, &s);
    free(f.data);
}

static int taps[LAYERS];
static void count_tap(void *user, const santa_attention *a, int32_t layer) {
    CHECK(user == taps);
    CHECK_INT(*a->seq_lens, 300);
    taps[layer]++;
}

static void layer_options(void) {
    llama_model m;
    llama_state s;
    llama_error e = {""};
    float dense[VOCAB], got[VOCAB];
    santa_options exact = llama_dense(), one = exact, bad = exact;
    one.method = SANTA_TOP_K;
    one.num_samples = 1;
    bad.num_samples = -1;
    file_bytes f = make_versioned(usual);
    if (open_model(&f, &m, &s, LONG_CONTEXT)) {
        logits_behind(&s, 300, 299, dense);
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            CHECK(llama_state_options(&s, &exact, &e) == 0);
            CHECK(llama_layer_options(&s, layer, &one, &e) == 0);
            logits_behind(&s, 300, 299, got);
            CHECK(memcmp(got, dense, sizeof got) != 0);
            CHECK_INT(s.stats.keys, 300 * KV_HEADS * LAYERS);
            CHECK(s.stats.v_rows_read > 300 * KV_HEADS * (LAYERS - 1));
            CHECK(s.stats.v_rows_read <= 300 * KV_HEADS * (LAYERS - 1) + HEADS);
        }
        CHECK(llama_layer_options(&s, LAYERS, &one, &e) != 0 && strstr(e.text, "layer"));
        CHECK(llama_layer_options(&s, -1, &one, &e) != 0 && strstr(e.text, "layer"));
        CHECK(llama_layer_options(&s, 0, &bad, &e) != 0 && strstr(e.text, "num_samples"));
        CHECK(llama_state_options(&s, &exact, &e) == 0);
        s.tap = count_tap;
        s.tap_user = taps;
        logits_behind(&s, 300, 299, got);
        check_same("dense again", got, dense, 0.0);
        for (int32_t layer = 0; layer < LAYERS; layer++) CHECK_INT(taps[layer], 1);
    }
    close_model(&m, &s);
    free(f.data);
}

/* The cache behind a prefill is that of one token at a time, whatever the chunks; sparse
   prefill with all of the mass is dense, with little of it is not, but in the first layer,
   which has nothing below. */
static void prefill_chunks(void) {
    static const int64_t chunks[] = {1, 31, 32, 100, 256, 1 << 20};
    llama_model m;
    llama_state s;
    llama_error e = {""};
    float want[VOCAB], got[VOCAB];
    santa_options o = llama_dense(), sys = o, bad = o;
    file_bytes f = make_versioned(usual);
    if (open_model(&f, &m, &s, LONG_CONTEXT)) {
        const int64_t layer_size = s.capacity * m.kv_dim;
        logits_behind(&s, 300, 0, want);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            CHECK(llama_state_chunk(&s, chunks[i], &e) == 0);
            CHECK_INT(s.chunk, chunks[i] < LONG_CONTEXT ? chunks[i] : (int64_t)LONG_CONTEXT);
            logits_behind(&s, 300, 299, got);
            check_same("a prefill by chunks", got, want, 1e-5);
        }
        o.method = SANTA_SAMPLE_ATTENTION;
        o.sample_attention.alpha_columns = o.sample_attention.alpha_slashes = 1.0;
        for (int32_t layer = 0; layer < LAYERS; layer++)
            CHECK(llama_prefill_options(&s, layer, &o, &e) == 0);
        logits_behind(&s, 300, 299, got);
        check_same("sparse prefill with all of the mass", got, want, 1e-5);
        CHECK_NEAR(s.audit[0].kept_share, 1.0, 0, 0);
        float *const before = (float *)malloc((size_t)(LAYERS * layer_size) * sizeof *before);
        memcpy(before, s.k_cache, (size_t)(LAYERS * layer_size) * sizeof *before);
        o.sample_attention.alpha_columns = o.sample_attention.alpha_slashes = 0.01;
        o.sample_attention.dense_above = SANTA_NONE;
        for (int32_t layer = 0; layer < LAYERS; layer++)
            CHECK(llama_prefill_options(&s, layer, &o, &e) == 0);
        logits_behind(&s, 300, 299, got);
        CHECK(s.audit[0].kept_share < 1.0);
        CHECK_INT(s.audit[(LAYERS - 1) * HEADS].columns, 0);      /* never asked */
        CHECK(memcmp(before, s.k_cache, (size_t)(299 * m.kv_dim) * sizeof *before) == 0);
        CHECK(memcmp(before + layer_size, s.k_cache + layer_size, (size_t)(299 * m.kv_dim) * sizeof *before)
              != 0);
        free(before);
        sys.method = SANTA_SYS;
        bad.method = SANTA_SAMPLE_ATTENTION;
        bad.sample_attention.num_chunks = -1;
        CHECK(llama_prefill_options(&s, 0, &sys, &e) != 0 && strstr(e.text, "not sys"));
        CHECK(llama_prefill_options(&s, 0, &bad, &e) != 0 && strstr(e.text, "num_chunks"));
        CHECK(llama_prefill_options(&s, LAYERS, &o, &e) != 0 && strstr(e.text, "layer"));
        CHECK(llama_state_chunk(&s, 0, &e) != 0 && strstr(e.text, "chunk"));
    }
    close_model(&m, &s);
    free(f.data);
}

/* What llama_rows saw of each position, and how often. */
typedef struct seen_rows { int calls[LAYERS][LONG_CONTEXT]; double k[LAYERS][LONG_CONTEXT]; } seen_rows;

/* Rows behind RoPE are those before it, each pair turned by its angle. */
static double off_by(const float *plain, const float *turned, int32_t heads, int64_t head_dim,
                     double theta, int64_t position) {
    double worst = 0.0;
    for (int64_t i = 0; i < heads * head_dim; i += 2) {
        const double angle =
            (double)position * pow(theta, -(double)(i % head_dim) / (double)head_dim);
        const double a = (double)plain[i], b = (double)plain[i + 1], c = cos(angle), d = sin(angle);
        const double off = fabs(a * c - b * d - (double)turned[i])
                           + fabs(a * d + b * c - (double)turned[i + 1]);
        if (!(off <= worst * (1.0 + fabs(a) + fabs(b)))) worst = off / (1.0 + fabs(a) + fabs(b));
    }
    return worst;
}

static void see_rows(void *user, const llama_state *s, int32_t layer, int64_t position, int64_t n) {
    seen_rows *seen = (seen_rows *)user;
    const llama_model *m = s->model;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = position + i;
        const float *k = s->k_cache + (layer * s->capacity + at) * m->kv_dim;
        const double theta = (double)m->rope_theta;
        CHECK(off_by(s->q_plain + i * m->q_dim, s->q + i * m->q_dim, m->n_heads, m->head_dim, theta, at)
              < 1e-5);
        CHECK(off_by(s->k_plain + i * m->kv_dim, k, m->n_kv_heads, m->head_dim, theta, at) < 1e-5);
        seen->k[layer][at] = (double)s->k_plain[i * m->kv_dim + 3];
        seen->calls[layer][at]++;
    }
}

static void rows_before_rope(void) {
    static seen_rows chunked, single;
    llama_model m;
    llama_state s;
    float dense[VOCAB], got[VOCAB];
    file_bytes f = make_versioned(usual);
    memset(&chunked, 0, sizeof chunked);
    memset(&single, 0, sizeof single);
    if (open_model(&f, &m, &s, LONG_CONTEXT)) {
        logits_behind(&s, 150, 149, dense);
        s.rows = see_rows;
        s.rows_user = &chunked;
        logits_behind(&s, 150, 149, got);
        check_same("with a look at rows", got, dense, 0.0);
        s.rows_user = &single;
        logits_behind(&s, 150, 0, got);
        for (int layer = 0; layer < LAYERS; layer++)
            for (int i = 0; i < LONG_CONTEXT; i++) {
                CHECK_INT(chunked.calls[layer][i], i < 150);
                CHECK_INT(single.calls[layer][i], i < 150);
                CHECK_NEAR(chunked.k[layer][i], single.k[layer][i], 1e-4, 1e-4);
            }
    }
    close_model(&m, &s);
    free(f.data);
}

/* Tokens of bytes that are longer as text than in the prompt: the demo, which shows where the
   prompt ends, must not look behind it. */
static void long_bytes(void) {
    static char text[4001];
    char prompt[25];
    if (!set_up()) return;
    file_bytes f = {NULL, 0, 0};
    put_u32(&f, sizeof text - 1);
    memset(text, 'A', sizeof text - 1);
    memset(prompt, 1, sizeof prompt - 1);                     /* token 4 each */
    prompt[sizeof prompt - 1] = 0;
    for (int i = 0; i < VOCAB; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)(i - 3) & 255u);
        const char *const token = i == 4 ? text : name;
        put_f32(&f, 0.0f);
        put_u32(&f, (uint32_t)strlen(token));
        put(&f, token, strlen(token));
    }
    write_file(tokenizer_path, f.data, f.size);
    const char *const arguments[] = {"--demo", "--model", model_path, "--tokenizer", tokenizer_path,
                                     "--prompt", prompt, "--prompt-tokens", "16", "--steps", "2",
                                     "--compare-tokens", "2", NULL};
    CHECK_MSG(run_arguments(arguments) == 0, "it said: %.300s", message);
    const char *end = strstr(message, "it ends:");
    CHECK(end && strchr(end, 1) && strspn(strchr(end, 1), "\1") == sizeof prompt - 1);
    free(f.data);
    tear_down();
}

static void missing_files(void) {
    char nowhere[320];
    if (!set_up()) return;
    snprintf(nowhere, sizeof nowhere, "%s/nowhere.bin", directory);
    refused(nowhere, tokenizer_path, "nowhere.bin", "no model");
    refused(model_path, nowhere, "nowhere.bin", "no tokenizer");
    refused(directory, tokenizer_path, directory, "a directory as the model");
    refused(model_path, directory, directory, "a directory as the tokenizer");
    const int code = run("no-such-method", model_path, tokenizer_path);
    CHECK_MSG(code == 1 && strstr(message, "no-such-method"),
              "unknown method: exit code %d; it said: %.300s", code, message);
    tear_down();
}

const test_case suite_model[] = {
    {"a small valid checkpoint, every method", valid},
    {"model cut short", cut_model},
    {"absurd headers", absurd_headers},
    {"absurd weights", absurd_weights},
    {"broken tokenizer", broken_tokenizer},
    {"bytes that are long as text", long_bytes},
    {"missing files", missing_files},
    {"keys in buckets: options and files", buckets},
    {"keys in buckets of the prompt's k-means", prompt_buckets},
    {"drafts that an exact call checks", drafts},
    {"speculative sampling", speculative_sampling},
    {"versioned files, whole and broken", versioned_files},
    {"formats of one model agree", formats},
    {"llama2.c, versions 1 and 2", version_1},
    {"prefill and going back", prefill_matches_forward},
    {"options of single layers, tap", layer_options},
    {"prefill by chunks, exact and sparse", prefill_chunks},
    {"sparse prefill: options and files", sparse_prefill},
    {"rows before and behind RoPE", rows_before_rope},
    {0, 0}
};

#else
static void no_fork(void) { SKIP("needs fork"); }

const test_case suite_model[] = {
    {"the examples' model, every case", no_fork},
    {0, 0}
};
#endif
