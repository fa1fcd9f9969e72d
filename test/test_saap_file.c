/* examples/saap.h: a file written here comes back as it was; one that is cut short, longer,
   changed in any byte, of another version or shape, too large for any memory, or with a weight
   that is no number is refused with a message, never with a crash. */
#if defined(__unix__) || defined(__APPLE__)
#define _DEFAULT_SOURCE                                       /* getpid under -std=c99 */
#include <unistd.h>
#define PROCESS ((long)getpid())
#else
#define PROCESS 0L
#endif
#include "harness.h"
#include "../examples/saap.h"
#include <stdio.h>
#include <stdlib.h>

/* ------------------------------------------------------------ files */

enum { LAYERS = 2, KV_HEADS = 2, GROUP = 4, HEAD_DIM = 6, BUCKETS = 5, HIDDEN = 3, WINDOW = 512,
       CAPACITY = 4096 };
enum { AT_VERSION = 4, AT_LAYERS = 8, AT_KV_HEADS = 12, AT_GROUP = 16, AT_HEAD_DIM = 20, AT_BUCKETS = 24,
       AT_HIDDEN = 28, AT_TYPE = 32, AT_WINDOW = 36, AT_RESERVED = 40, AT_HASH = 48, AT_ZEROS = 56 };

typedef struct file_bytes { unsigned char data[CAPACITY]; size_t size; } file_bytes;

static void put_u32(unsigned char *p, uint32_t x) { /* little-endian on every machine */
    for (int i = 0; i < 4; i++) p[i] = (unsigned char)(x >> 8 * i);
}

/* Number i of array k of a layer: few bits, so that every type holds it exactly. */
static float number_of(int layer, int k, int i) {
    return (float)((layer * 131 + k * 17 + i * 7) % 64 - 32) / 16.0f;
}

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static void put_array(file_bytes *f, int layer, int k, int count, uint32_t type) {
    for (int i = 0; i < count; i++) {
        const float x = number_of(layer, k, i);
        const int   wide = type == 0 || k == 2 || k == 4;
        put_u32(f->data + f->size,
                wide ? bits_of(x) : type == 1 ? santa_f32_to_f16(x) : santa_f32_to_bf16(x));
        f->size += wide ? 4 : 2;
    }
    while (f->size % 64) f->data[f->size++] = 0;
}

static uint64_t fnv1a(uint64_t h, const unsigned char *p, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

/* The hash that fits what the file holds now. */
static void seal(file_bytes *f) {
    const uint64_t h = fnv1a(fnv1a(14695981039346656037u, f->data, AT_HASH), f->data + 64, f->size - 64);
    put_u32(f->data + AT_HASH, (uint32_t)h);
    put_u32(f->data + AT_HASH + 4, (uint32_t)(h >> 32));
}

static const int counts[5] = {KV_HEADS * BUCKETS * HEAD_DIM, KV_HEADS * HIDDEN * HEAD_DIM,
                              KV_HEADS * HIDDEN, KV_HEADS * BUCKETS * HIDDEN, KV_HEADS * BUCKETS};

static file_bytes make_file(uint32_t type, int hidden) {
    const uint32_t field[9] = {1, LAYERS, KV_HEADS, GROUP, HEAD_DIM, BUCKETS,
                               (uint32_t)(hidden ? HIDDEN : 0), type, WINDOW};
    file_bytes f;
    memset(&f, 0, sizeof f);
    memcpy(f.data, "SAAP", 4);
    for (int i = 0; i < 9; i++) put_u32(f.data + 4 + 4 * i, field[i]);
    f.size = 64;
    for (int layer = 0; layer < LAYERS; layer++)
        for (int k = 0; k < (hidden ? 5 : 1); k++) put_array(&f, layer, k, counts[k], type);
    seal(&f);
    return f;
}

/* ------------------------------------------------------------ loading */

static char message[256];

/* What saap_load says of the bytes; the loaded file must be freed. */
static int load(const unsigned char *data, size_t size, saap_file *file) {
    static char path[400];
    const char *tmp = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/santa-test-%ld.saap", tmp && strlen(tmp) < 300 ? tmp : "/tmp", PROCESS);
    FILE *out = fopen(path, "wb");
    const size_t written = out && size ? fwrite(data, 1, size, out) : 0;
    const int closed = out && fclose(out) == 0;
    message[0] = 0;
    memset(file, 0xa5, sizeof *file);
    const int status = saap_load(path, file, message, sizeof message);
    remove(path);
    CHECK_MSG(closed && written == size, "cannot write %s", path);
    return status;
}

/* A message with this in it, and nothing left to free. */
static int refused(const unsigned char *data, size_t size, const char *says, const char *what) {
    saap_file file;
    const int status = load(data, size, &file);
    const int ok = CHECK_MSG(status == -1 && strstr(message, says) != NULL,
                             "%s: status %d, \"%s\", not \"%s\"", what, status, message, says)
                   & CHECK_MSG(file.memory == NULL && file.data == NULL, "%s: memory is left", what);
    if (status == 0) saap_free(&file);
    return ok;
}

static int refused_file(const file_bytes *f, const char *says, const char *what) {
    return refused(f->data, f->size, says, what);
}

/* ------------------------------------------------------------ the cases */

static float number_at(const void *array, santa_dtype dtype, int i) {
    if (dtype == SANTA_F32) return ((const float *)array)[i];
    const uint16_t half = ((const uint16_t *)array)[i];
    return dtype == SANTA_F16 ? santa_f16_to_f32(half) : santa_bf16_to_f32(half);
}

static void good_files(void) {
    static const santa_dtype types[3] = {SANTA_F32, SANTA_F16, SANTA_BF16};
    for (uint32_t type = 0; type < 3; type++)
        for (int hidden = 0; hidden < 2; hidden++) {
            const file_bytes bytes = make_file(type, hidden);
            saap_file f;
            if (!CHECK_MSG(load(bytes.data, bytes.size, &f) == 0, "%s", message)) continue;
            CHECK_INT(f.layers, LAYERS);
            CHECK_INT(f.kv_heads, KV_HEADS);
            CHECK_INT(f.group, GROUP);
            CHECK_INT(f.head_dim, HEAD_DIM);
            CHECK_INT(f.window, WINDOW);
            CHECK_INT(f.bytes, bytes.size - 64);
            for (int layer = 0; layer < LAYERS; layer++) {
                santa_buckets l;
                saap_get_layer(&f, layer, &l);
                CHECK_INT(l.num_buckets, BUCKETS);
                CHECK_INT(l.hidden, hidden ? HIDDEN : 0);
                CHECK(l.dtype == types[type]);
                const void *const array[5] = {l.centroids, l.w1, l.b1, l.w2, l.b2};
                for (int k = 0; k < 5; k++) {
                    if (k > 0 && !hidden) { CHECK(array[k] == NULL); continue; }
                    const santa_dtype t = k == 2 || k == 4 ? SANTA_F32 : l.dtype;
                    CHECK_INT((uintptr_t)array[k] % 64, 0);
                    int wrong = 0;
                    for (int i = 0; i < counts[k]; i++)
                        wrong += bits_of(number_at(array[k], t, i)) != bits_of(number_of(layer, k, i));
                    CHECK_INT(wrong, 0);
                }
            }
            saap_free(&f);
            CHECK(f.memory == NULL);
            saap_free(&f);                                    /* twice is no harm */
        }
}

static void every_cut(void) {
    const file_bytes f = make_file(1, 1);
    for (size_t n = 0; n < f.size; n++) {
        char what[64];
        snprintf(what, sizeof what, "cut to %lu bytes", (unsigned long)n);
        if (!refused(f.data, n, n < 64 ? "cut short" : "shorter", what)) return;
    }
    unsigned char longer[CAPACITY + 64];
    memcpy(longer, f.data, f.size);
    memset(longer + f.size, 0, 64);
    refused(longer, f.size + 1, "longer", "one byte more");
    refused(longer, f.size + 64, "longer", "64 bytes more");
}

static void every_byte(void) {
    static const unsigned char change[] = {0x01, 0x80, 0xff, 0x10};
    file_bytes f = make_file(1, 1);
    for (int c = 0; c < (test_quick ? 1 : 4); c++)
        for (size_t i = 0; i < f.size; i++) {
            char what[64];
            snprintf(what, sizeof what, "byte %lu changed by %02x", (unsigned long)i, (unsigned)change[c]);
            f.data[i] ^= change[c];
            const int ok = refused_file(&f, i >= 64 ? "its hash" : ".saap", what);
            f.data[i] ^= change[c];
            if (!ok) return;
        }
}

/* With a hash that fits: each check has its own say. */
static void headers(void) {
    static const struct { int offset; uint32_t value; const char *says; } wrong[] = {
        {0, 0x46474747u, "not a .saap"}, {AT_VERSION, 0, "version 0"}, {AT_VERSION, 2, "version 2"},
        {AT_TYPE, 3, "type 3"}, {AT_TYPE, 0xffffffffu, "type"}, {AT_TYPE, 0, "shorter"},
        {AT_LAYERS, 0, "layers make no sense"}, {AT_KV_HEADS, 0, "KV heads make no sense"},
        {AT_GROUP, 0, "query heads"}, {AT_HEAD_DIM, 0, "head_dim make no sense"},
        {AT_BUCKETS, 0, "buckets make no sense"}, {AT_BUCKETS, 0x80000000u, "buckets make no sense"},
        {AT_HIDDEN, 0xffffffffu, "hidden make no sense"}, {AT_WINDOW, 0x80000001u, "window make no sense"},
        {AT_LAYERS, 1, "longer"}, {AT_LAYERS, 3, "shorter"}, {AT_LAYERS, 0x7fffffffu, ""},
        {AT_KV_HEADS, 0x7fffffffu, ""}, {AT_HIDDEN, 0, "longer"},
        /* the largest that the library takes, and one more */
        {AT_BUCKETS, 65536, "shorter"}, {AT_BUCKETS, 65537, "65537 buckets make no sense: 1 to 65536"},
        {AT_HIDDEN, 65536, "shorter"}, {AT_HIDDEN, 65537, "65537 hidden make no sense: 0 to 65536"},
        {AT_HEAD_DIM, 1024, "shorter"}, {AT_HEAD_DIM, 1025, "1025 head_dim make no sense: 1 to 1024"},
        {AT_RESERVED, 1, "byte 40 is not 0"}, {AT_RESERVED + 4, 256, "byte 45 is not 0"},
        {AT_ZEROS, 1u << 24, "byte 59 is not 0"}, {AT_ZEROS + 4, 1, "byte 60 is not 0"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        file_bytes f = make_file(1, 1);
        char what[64];
        snprintf(what, sizeof what, "%08x at byte %d", (unsigned)wrong[i].value, wrong[i].offset);
        put_u32(f.data + wrong[i].offset, wrong[i].value);
        seal(&f);
        refused_file(&f, wrong[i].says, what);
    }
    /* Products past the address range, also where a factor brings them back to a small
       number. */
    static const uint32_t large[][4] = {
        {0x7fffffffu, 0x7fffffffu, 65536, 65536}, {1, 1u << 31 >> 1, 65536, 65536},
        {1u << 30, 1u << 30, 16, 1}, {1u << 22, 1u << 21, 1u << 16, 1u << 5}, {1, 0x7fffffffu, 65536, 3},
    };
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        file_bytes f = make_file(1, 1);
        put_u32(f.data + AT_LAYERS, large[i][0]);
        put_u32(f.data + AT_KV_HEADS, large[i][1]);
        put_u32(f.data + AT_BUCKETS, large[i][2]);
        put_u32(f.data + AT_HIDDEN, large[i][3]);
        seal(&f);
        refused_file(&f, i < 4 ? "overflow" : sizeof(size_t) > 4 ? "shorter" : "", "huge sizes");
    }
    file_bytes f = make_file(1, 1);
    f.data[AT_HASH] ^= 1;
    refused_file(&f, "its hash", "another hash");
}

static void no_numbers(void) {
    static const uint32_t wide[] = {0x7fc00000u, 0x7f800000u, 0xff800000u, 0xffffffffu};
    static const uint16_t f16[] = {0x7e00u, 0x7c00u, 0xfc00u, 0xffffu};
    static const uint16_t bf16[] = {0x7fc0u, 0x7f80u, 0xff80u, 0xffffu};
    static const char *const name[5] = {"centroids", "w1", "b1", "w2", "b2"};
    for (uint32_t type = 0; type < 3; type++)
        for (int v = 0; v < 4; v++) {
            size_t at = 64;
            for (int layer = 0; layer < LAYERS; layer++)
                for (int k = 0; k < 5; k++) {
                    const int is_wide = type == 0 || k == 2 || k == 4, size = is_wide ? 4 : 2;
                    const int i = v % 2 ? counts[k] - 1 : 0;
                    char says[64];
                    file_bytes f = make_file(type, 1);
                    snprintf(says, sizeof says, "layer %d: %s holds", layer, name[k]);
                    unsigned char *p = f.data + at + (size_t)(i * size), bytes[4];
                    put_u32(bytes, is_wide ? wide[v] : type == 1 ? f16[v] : bf16[v]);
                    memcpy(p, bytes, (size_t)size);
                    seal(&f);
                    refused_file(&f, says, "no number");
                    at += (size_t)((counts[k] * size + 63) / 64 * 64);
                }
        }
    file_bytes f = make_file(1, 1);                           /* the largest finite one is none of these */
    f.data[64] = 0xff;
    f.data[65] = 0x7b;
    seal(&f);
    saap_file file;
    CHECK_MSG(load(f.data, f.size, &file) == 0, "%s", message);
    saap_free(&file);
}

static void other_models(void) {
    const file_bytes bytes = make_file(1, 1);
    saap_file f;
    if (!CHECK_MSG(load(bytes.data, bytes.size, &f) == 0, "%s", message)) return;
    CHECK(saap_check_model(&f, LAYERS, KV_HEADS, GROUP, HEAD_DIM, message, sizeof message) == 0);
    for (int i = 0; i < 4; i++) {
        char says[64];
        snprintf(says, sizeof says, "not %d, %d, %d, %d", LAYERS + (i == 0), KV_HEADS + (i == 1),
                 GROUP + (i == 2), HEAD_DIM + (i == 3));
        CHECK(saap_check_model(&f, LAYERS + (i == 0), KV_HEADS + (i == 1), GROUP + (i == 2),
                               HEAD_DIM + (i == 3), message, sizeof message) == -1);
        CHECK_MSG(strstr(message, says) != NULL, "\"%s\", not \"%s\"", message, says);
    }
    saap_free(&f);
}

static void no_file(void) {
    saap_file f;
    char small[5];
    CHECK(saap_load("/no/such/directory/x.saap", &f, message, sizeof message) == -1);
    CHECK_MSG(strstr(message, "cannot open") != NULL, "%s", message);
    CHECK(saap_load("/no/such/directory/x.saap", &f, small, sizeof small) == -1);
    CHECK(strcmp(small, "cann") == 0);
    CHECK(saap_load("/no/such/directory/x.saap", &f, NULL, 0) == -1);
    CHECK(saap_load("/", &f, message, sizeof message) == -1);
    CHECK(message[0] != 0);
}

/* The files that come with the model, as train.py wrote them. */
static void shipped_files(void) {
    static const struct { const char *path; int buckets; } shipped[] = {
        {"bench/accuracy/longctx-c64.saap", 64}, {"bench/accuracy/longctx-c256.saap", 256},
    };
    for (size_t i = 0; i < sizeof shipped / sizeof *shipped; i++) {
        saap_file f;
        FILE *in = fopen(shipped[i].path, "rb");
        if (!in) SKIP("not in the source directory");
        fclose(in);
        const int status = saap_load(shipped[i].path, &f, message, sizeof message);
        if (!CHECK_MSG(status == 0, "%s", message)) continue;
        CHECK_MSG(saap_check_model(&f, 4, 2, 4, 64, message, sizeof message) == 0, "%s", message);
        CHECK_INT(f.num_buckets, shipped[i].buckets);
        for (int layer = 0; layer < 4; layer++) {
            santa_buckets l;
            double worst = 0.0;
            saap_get_layer(&f, layer, &l);
            for (int c = 0; c < 2 * shipped[i].buckets; c++) {
                double square = 0.0;
                for (int k = 0; k < 64; k++) {
                    const double x = (double)number_at(l.centroids, l.dtype, c * 64 + k);
                    square += x * x;
                }
                if (!(fabs(square - 1.0) <= worst)) worst = fabs(square - 1.0);
            }
            CHECK_MSG(worst < 1e-3, "layer %d: centroids are not of length 1, off by %g", layer, worst);
        }
        saap_free(&f);
    }
}

const test_case suite_saap_file[] = {
    {"good files, every type, with and without classifier", good_files},
    {"cut at every byte, and longer", every_cut},
    {"every byte changed", every_byte},
    {"headers that make no sense", headers},
    {"NaN and infinity", no_numbers},
    {"shapes of other models", other_models},
    {"no file", no_file},
    {"the shipped files", shipped_files},
    {0, 0}
};
