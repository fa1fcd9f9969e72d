/* The toy decoder on files that are not what they should be: each must end in exit code 1 and a message, never in a
   crash or a hang; and on a small valid checkpoint, which every method must decode. The decoder is $SANTA_DECODE, else
   build/decode; where it is not built, or programs cannot be started, the cases are skipped. */
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
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef HAVE_FORK

/* ------------------------------------------------------------------------------------------------ files */

enum { DIM = 32, HIDDEN = 24, LAYERS = 2, HEADS = 4, KV_HEADS = 2, VOCAB = 260, CONTEXT = 48, HEADER = 28,
       TIMEOUT = 120 };

static char directory[256], model_path[300], tokenizer_path[300], output_path[300];

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
static void set_u32(unsigned char *p, uint32_t x) {           /* the files are little-endian on every machine */
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
        VOCAB * DIM,                                                             /* embedding                */
        LAYERS * DIM, LAYERS * DIM * DIM, LAYERS * DIM * kv_dim, LAYERS * DIM * kv_dim, LAYERS * DIM * DIM,
        LAYERS * DIM, LAYERS * DIM * HIDDEN, LAYERS * DIM * HIDDEN, LAYERS * DIM * HIDDEN,
        DIM, CONTEXT * head_dim, shared_classifier ? 0 : VOCAB * DIM             /* norm, RoPE, classifier   */
    };
    file_bytes f = {NULL, 0, 0};
    test_rng   r = test_rng_make(5);
    for (int i = 0; i < 7; i++) put_u32(&f, (uint32_t)(i == 5 && !shared_classifier ? -header[i] : header[i]));
    for (int t = 0; t < 13; t++) {
        const int norm = t == 1 || t == 6 || t == 10;
        for (int64_t i = 0; i < sizes[t]; i++) put_f32(&f, norm ? 1.0f : scale * (float)test_normal(&r));
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

/* ------------------------------------------------------------------------------------------------ the program */

static const char *decoder(void) {
    const char *given = getenv("SANTA_DECODE");
    return given ? given : "build/decode";
}

static char message[4096];                                    /* what the program printed last */

/* Exit code of the decoder, or -signal. It gets TIMEOUT seconds. */
static int run(const char *method, const char *model, const char *tokenizer) {
    const char *const program = decoder();
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const int out = open(output_path, O_WRONLY | O_CREAT | O_TRUNC, 0600), in = open("/dev/null", O_RDONLY);
        if (out < 0 || in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(126);
        alarm(TIMEOUT);
        execl(program, program, "--model", model, "--tokenizer", tokenizer, "--prompt", "abc", "--steps", "6",
              "--method", method, (char *)NULL);
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

/* A refusal: exit code 1 and a message that names the file at fault. */
static void refused(const char *model, const char *tokenizer, const char *at_fault, const char *what) {
    const int code = run("dense", model, tokenizer);
    CHECK_MSG(code == 1, "%s: exit code %d instead of 1; it said: %.300s", what, code, message);
    CHECK_MSG(strstr(message, at_fault) != NULL, "%s: the message does not name the file: %.300s", what, message);
}

static file_bytes good_model, good_tokenizer;

static int set_up(void) {
    const char *tmp = getenv("TMPDIR");
    if (access(decoder(), X_OK) != 0) { test_skip("the decoder is not built"); return 0; }
    snprintf(directory, sizeof directory, "%s/santa-test-XXXXXX", tmp && strlen(tmp) < 200 ? tmp : "/tmp");
    if (!mkdtemp(directory)) { test_skip("no directory for temporary files"); return 0; }
    snprintf(model_path, sizeof model_path, "%s/model.bin", directory);
    snprintf(tokenizer_path, sizeof tokenizer_path, "%s/tokenizer.bin", directory);
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
    remove(output_path);
    rmdir(directory);
    free(good_model.data);
    free(good_tokenizer.data);
}

/* ------------------------------------------------------------------------------------------------ the cases */

static void valid(void) {
    static const char *const methods[] = {"dense", "iid", "strat", "sys", "prop", "flash", "topk", "topp",
                                          "vattention"};
    if (!set_up()) return;
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        const int code = run(methods[m], model_path, tokenizer_path);
        CHECK_MSG(code == 0, "%s: exit code %d; it said: %.300s", methods[m], code, message);
        CHECK_MSG(strstr(message, "abc") != NULL, "%s: the prompt is not in the text: %.300s", methods[m], message);
    }
    const file_bytes own = make_model(0, 0.3f);               /* a classifier of its own: negative vocabulary */
    write_file(model_path, own.data, own.size);
    const int code = run("dense", model_path, tokenizer_path);
    CHECK_MSG(code == 0, "own classifier: exit code %d; it said: %.300s", code, message);
    free(own.data);
    tear_down();
}

static void cut_model(void) {
    if (!set_up()) return;
    const size_t size = good_model.size;
    const size_t cuts[] = {0, 1, 4, HEADER - 1, HEADER, HEADER + 1, HEADER + VOCAB * DIM * 4, size / 2, size / 2 + 1,
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
    static const int32_t wild[] = {0, -1, 1, 3, 5, 7, 31, 33, 1 << 15, 1 << 24, INT32_MAX, INT32_MIN, INT32_MIN + 1};
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
        for (int field = 0; field < 7; field++) set_u32(good_model.data + 4 * field, all ? INT32_MAX : 1 << 20);
        write_file(model_path, good_model.data, good_model.size);
        refused(model_path, tokenizer_path, "model.bin", "every header field huge");
    }
    tear_down();
}

/* Weights without a sensible value may make nonsense, but no crash. */
static void absurd_weights(void) {
    static const uint32_t wild[] = {0x7fc00000u, 0x7f800000u, 0xff800000u, 0x7f7fffffu, 0};
    static const char *const methods[] = {"dense", "sys", "topp", "vattention"};
    if (!set_up()) return;
    for (size_t i = 0; i < sizeof wild / sizeof *wild; i++)
        for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
            for (size_t at = HEADER; at < good_model.size; at += 4) set_u32(good_model.data + at, wild[i]);
            write_file(model_path, good_model.data, good_model.size);
            const int code = run(methods[m], model_path, tokenizer_path);
            CHECK_MSG(code == 0 || code == 1, "weights %08x, %s: exit code %d; it said: %.300s", (unsigned)wild[i],
                      methods[m], code, message);
        }
    tear_down();
}

static void broken_tokenizer(void) {
    if (!set_up()) return;
    const size_t size = good_tokenizer.size, last = size - 10;                   /* token "ab": 4 + 4 + 2 bytes */
    const size_t cuts[] = {0, 1, 3, 4, 5, 12, 13, size / 2, last, last + 4, last + 8, size - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        char what[64];
        snprintf(what, sizeof what, "tokenizer cut to %lu bytes", (unsigned long)cuts[i]);
        write_file(tokenizer_path, good_tokenizer.data, cuts[i]);
        refused(model_path, tokenizer_path, "tokenizer.bin", what);
    }
    static const uint32_t wild[] = {0x80000000u, 0xffffffffu, 0x7fffffffu, 0x00100000u, 3};
    const size_t fields[] = {0, 8, last + 4};                 /* longest length, first length, last length */
    for (size_t f = 0; f < 3; f++)
        for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
            unsigned char *at = good_tokenizer.data + fields[f], old[4];
            char what[64];
            memcpy(old, at, 4);
            set_u32(at, wild[i]);
            snprintf(what, sizeof what, "tokenizer with %08x at byte %lu", (unsigned)wild[i], (unsigned long)fields[f]);
            write_file(tokenizer_path, good_tokenizer.data, size);
            refused(model_path, tokenizer_path, "tokenizer.bin", what);
            memcpy(at, old, 4);
        }
    put_u32(&good_tokenizer, 0);
    write_file(tokenizer_path, good_tokenizer.data, good_tokenizer.size);
    refused(model_path, tokenizer_path, "tokenizer.bin", "tokenizer with 4 bytes too many");
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
    CHECK_MSG(code == 1 && strstr(message, "no-such-method"), "unknown method: exit code %d; it said: %.300s", code,
              message);
    tear_down();
}

#else
static void no_fork(void) { SKIP("needs fork"); }
#define valid            no_fork
#define cut_model        no_fork
#define absurd_headers   no_fork
#define absurd_weights   no_fork
#define broken_tokenizer no_fork
#define missing_files    no_fork
#endif

const test_case suite_model[] = {
    {"a small valid checkpoint, every method", valid},
    {"model cut short", cut_model},
    {"absurd headers", absurd_headers},
    {"absurd weights", absurd_weights},
    {"broken tokenizer", broken_tokenizer},
    {"missing files", missing_files},
    {0, 0}
};
