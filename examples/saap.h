/* saap.h - reads the .saap files of examples/saap/train.py: centroids of keys and a classifier
   of queries, per layer and KV head. The format is in examples/saap/README.md.

   C99 and C++11; include santa.h first.

       saap_file f;  santa_buckets l;  char message[256];
       if (saap_load("model.saap", &f, message, sizeof message) != 0) puts(message);
       // 0 where the file is of a model of this shape
       saap_check_model(&f, layers, kv_heads, group, head_dim, message, sizeof message);
       saap_get_layer(&f, 0, &l);                             // pointers into f: valid until saap_free
       saap_free(&f);

   What is loaded is whole, finite and of sizes that the library takes: a file cut short,
   longer, changed in any bit, of another version, with more buckets, hidden units or a larger
   head_dim than santa_buckets may have, or with a weight that is NaN or infinite is refused,
   each with its own message. */
#ifndef SAAP_H
#define SAAP_H

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef SAAP_ALLOC
#define SAAP_ALLOC(size) malloc(size) /* for a GPU, memory that it and the CPU reach */
#define SAAP_FREE(p)     free(p)
#endif

enum { SAAP_HEADER = 64, SAAP_HASHED = 48 /* bytes in front of the header's hash */, SAAP_ALIGN = 64 };

typedef struct saap_file {
    int64_t layers, kv_heads, group, head_dim, num_buckets, hidden; /* hidden 0: centroids alone */
    int64_t window;                         /* keys nearer to the query were not learned from */
    santa_dtype dtype;                      /* of centroids, w1, w2 */
    unsigned char *data;                    /* all layers, aligned to SAAP_ALIGN */
    size_t  bytes;
    void   *memory;                         /* the allocation that data lies in */
} saap_file;

static inline int saap_fail(char *message, size_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (size > 0) vsnprintf(message, size, format, args);
    va_end(args);
    return -1;
}

static inline uint32_t saap_u32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t saap_hash(uint64_t h, const unsigned char *p, size_t n) {              /* FNV-1a */
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(0x100000001B3);
    return h;
}

/* The arrays of a layer in their order; offset: in bytes, from the layer's start. */
typedef struct saap_array { uint64_t count, offset; int wide; /* f32 */ } saap_array;
enum { SAAP_CENTROIDS, SAAP_W1, SAAP_B1, SAAP_W2, SAAP_B2, SAAP_ARRAYS };

/* a * b * c; all ones where that is 2^62 or more. */
static inline uint64_t saap_count(int64_t a, int64_t b, int64_t c) {
    const uint64_t max = UINT64_C(1) << 62, x = (uint64_t)a, y = (uint64_t)b, z = (uint64_t)c;
    if (x == 0 || y == 0 || z == 0) return 0;
    return y > max / x || z > max / (x * y) ? UINT64_MAX : x * y * z;
}

/* Bytes of a layer, and where its arrays begin; 0 where sizes overflow. */
static inline uint64_t saap_plan(const saap_file *f, saap_array *array) {
    const int64_t h = f->kv_heads, c = f->num_buckets, n = f->hidden, d = f->head_dim;
    const uint64_t count[SAAP_ARRAYS] = { saap_count(h, c, d), saap_count(h, n, d), saap_count(h, n, 1),
                                          saap_count(h, c, n), n ? saap_count(h, c, 1) : 0 };
    uint64_t at = 0;
    for (int i = 0; i < SAAP_ARRAYS; i++) {
        const int wide = f->dtype == SANTA_F32 || i == SAAP_B1 || i == SAAP_B2;
        if (count[i] > UINT64_C(1) << 59) return 0;
        array[i].count = count[i];
        array[i].offset = at;
        array[i].wide = wide;
        at += (count[i] * (wide ? 4 : 2) + SAAP_ALIGN - 1) / SAAP_ALIGN * SAAP_ALIGN;
    }
    return at;
}

static inline int saap_read_header(saap_file *f, const unsigned char *p, const char *path, char *message,
                                   size_t size) {
    static const santa_dtype type[3] = { SANTA_F32, SANTA_F16, SANTA_BF16 };
    static const char *const name[7] = { "layers",  "KV heads", "query heads per KV head", "head_dim",
                                         "buckets", "hidden",   "window" };
    int64_t *const field[7] = { &f->layers,      &f->kv_heads, &f->group, &f->head_dim,
                                &f->num_buckets, &f->hidden,   &f->window };
    static const int offset[7] = { 8, 12, 16, 20, 24, 28, 36 };
    /* santa.h's, see santa_buckets and ERR_BUCKETS_HEAD_DIM; of the others any */
    static const uint32_t most[7] = { INT32_MAX, INT32_MAX, INT32_MAX, 1024, 65536, 65536, INT32_MAX };
    if (memcmp(p, "SAAP", 4) != 0) return saap_fail(message, size, "%s: not a .saap file", path);
    if (saap_u32(p + 4) != 1)
        return saap_fail(message, size, "%s: version %u: only 1 is known", path, (unsigned)saap_u32(p + 4));
    if (saap_u32(p + 32) > 2)
        return saap_fail(message, size, "%s: type %u is none of f32, f16, bf16 (0, 1, 2)", path,
                         (unsigned)saap_u32(p + 32));
    f->dtype = type[saap_u32(p + 32)];
    for (int i = 0; i < 7; i++) {
        const uint32_t x = saap_u32(p + offset[i]);
        if (x > most[i] || (x == 0 && i < 5))
            return saap_fail(message, size, "%s: %u %s make no sense: %d to %u are allowed", path,
                             (unsigned)x, name[i], i < 5, (unsigned)most[i]);
        *field[i] = (int64_t)x;
    }
    for (int i = 40; i < SAAP_HEADER; i++)
        if (p[i] != 0 && (i < SAAP_HASHED || i >= SAAP_HASHED + 8))
            return saap_fail(message, size, "%s: the header's byte %d is not 0", path, i);
    return 0;
}

/* Turns count little-endian numbers into the machine's; 0 if one of them is NaN or infinite. */
static inline int saap_take(unsigned char *p, uint64_t count, int wide, santa_dtype dtype) {
    const uint32_t exponent = wide ? 0x7f800000u : dtype == SANTA_F16 ? 0x7c00u : 0x7f80u;
    int finite = 1;
    for (uint64_t i = 0; i < count; i++, p += wide ? 4 : 2) {
        if (wide) {
            const uint32_t x = saap_u32(p);
            finite &= (x & exponent) != exponent;
            memcpy(p, &x, 4);
        } else {
            const uint16_t x = (uint16_t)(p[0] | p[1] << 8);
            finite &= (x & exponent) != exponent;
            memcpy(p, &x, 2);
        }
    }
    return finite;
}

/* Is the file, from its position, exactly this long: 0 yes, -1 shorter, 1 longer. Steps of 1
   GB, as a long may have 32 bits. */
static inline int saap_compare_length(FILE *in, uint64_t bytes) {
    while (bytes > 0) {
        const uint64_t step = bytes < 1u << 30 ? bytes : 1u << 30;
        if (fseek(in, (long)step - 1, SEEK_CUR) != 0 || fgetc(in) == EOF) return -1;
        bytes -= step;
    }
    return fgetc(in) == EOF ? 0 : 1;
}

static inline int saap_read(saap_file *f, FILE *in, const char *path, char *message, size_t size) {
    static const char *const name[SAAP_ARRAYS] = { "centroids", "w1", "b1", "w2", "b2" };
    unsigned char header[SAAP_HEADER];
    saap_array array[SAAP_ARRAYS];
    const size_t got = fread(header, 1, sizeof header, in);
    if (ferror(in)) return saap_fail(message, size, "cannot read %s: %s", path, strerror(errno));
    if (got < sizeof header)
        return saap_fail(message, size, "%s: cut short in its header of %d bytes", path, (int)SAAP_HEADER);
    if (saap_read_header(f, header, path, message, size) != 0) return -1;
    const uint64_t layer = saap_plan(f, array);
    if (layer == 0 || layer > (uint64_t)(SIZE_MAX / 2) / (uint64_t)f->layers)
        return saap_fail(message, size, "%s: sizes in the header overflow the address range", path);
    const uint64_t bytes = layer * (uint64_t)f->layers;
    /* Length first: a header that lies must not make us ask for memory that no weight will
       fill. */
    const int longer = saap_compare_length(in, bytes);
    if (longer)
        return saap_fail(message, size, "%s: the file is %s than the %llu bytes its header asks for", path,
                         longer < 0 ? "shorter" : "longer", (unsigned long long)bytes + SAAP_HEADER);
    f->bytes = (size_t)bytes;
    f->memory = SAAP_ALLOC(f->bytes + SAAP_ALIGN);
    if (!f->memory)
        return saap_fail(message, size, "%s: no memory for %llu bytes", path, (unsigned long long)bytes);
    f->data = (unsigned char *)f->memory + (SAAP_ALIGN - (uintptr_t)f->memory % SAAP_ALIGN);
    if (fseek(in, SAAP_HEADER, SEEK_SET) != 0 || fread(f->data, 1, f->bytes, in) != f->bytes)
        return saap_fail(message, size, "%s: cannot read the weights: %s", path, strerror(errno));
    const uint64_t hash = saap_hash(saap_hash(UINT64_C(0xCBF29CE484222325), header, SAAP_HASHED), f->data,
                                    f->bytes);
    const unsigned char *const said = header + SAAP_HASHED;
    if (hash != ((uint64_t)saap_u32(said) | (uint64_t)saap_u32(said + 4) << 32))
        return saap_fail(message, size, "%s: damaged: its hash is another one", path);
    for (int64_t i = 0; i < f->layers; i++)
        for (int k = 0; k < SAAP_ARRAYS; k++)
            if (!saap_take(f->data + (size_t)((uint64_t)i * layer + array[k].offset), array[k].count,
                           array[k].wide, f->dtype))
                return saap_fail(message, size, "%s: layer %d: %s holds a NaN or an infinity", path, (int)i,
                                 name[k]);
    return 0;
}

static inline void saap_free(saap_file *f) {
    SAAP_FREE(f->memory);
    memset(f, 0, sizeof *f);
}

/* 0; or -1, a message of at most size bytes, and nothing to free. */
static inline int saap_load(const char *path, saap_file *f, char *message, size_t size) {
    memset(f, 0, sizeof *f);
    FILE *in = fopen(path, "rb");
    if (!in) return saap_fail(message, size, "cannot open %s: %s", path, strerror(errno));
    const int status = saap_read(f, in, path, message, size);
    fclose(in);
    if (status != 0) saap_free(f);
    return status;
}

/* 0, or -1 and a message if the file is of a model of another shape. */
static inline int saap_check_model(const saap_file *f, int64_t layers, int64_t kv_heads, int64_t group,
                                   int64_t head_dim, char *message, size_t size) {
    if (f->layers == layers && f->kv_heads == kv_heads && f->group == group && f->head_dim == head_dim)
        return 0;
    return saap_fail(message, size,
                     "buckets of another model: layers %d, KV heads %d, group %d, head_dim %d, "
                     "not %d, %d, %d, %d",
                     (int)f->layers, (int)f->kv_heads, (int)f->group, (int)f->head_dim, (int)layers,
                     (int)kv_heads, (int)group, (int)head_dim);
}

/* The router of layer 0 .. layers - 1 of a loaded file, as santa.h wants it; each array is
   aligned to SAAP_ALIGN. */
static inline void saap_get_layer(const saap_file *f, int64_t layer, santa_buckets *out) {
    saap_array array[SAAP_ARRAYS];
    const uint64_t bytes = saap_plan(f, array);
    const unsigned char *at = f->data + (size_t)((uint64_t)layer * bytes);
    memset(out, 0, sizeof *out);
    out->num_buckets = f->num_buckets;
    out->hidden = f->hidden;
    out->dtype = f->dtype;
    out->centroids = at;
    if (f->hidden == 0) return;
    out->w1 = at + (size_t)array[SAAP_W1].offset;
    out->b1 = (const float *)(const void *)(at + (size_t)array[SAAP_B1].offset);
    out->w2 = at + (size_t)array[SAAP_W2].offset;
    out->b2 = (const float *)(const void *)(at + (size_t)array[SAAP_B2].offset);
}

#endif /* SAAP_H */
