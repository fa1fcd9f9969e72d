/* Broken model files: llama_load says what is wrong, or the model decodes. The first byte says
   how the rest becomes a file: bit 0: its length is made what its header asks for, if that is
   little; the other bits choose how to attend. */
#include "loaders.h"

enum { MODEL_MOST = 1 << 18 };

/* What the header of a checkpoint asks for in bytes, or 0 where that is too much, by arithmetic
   that cannot overflow. */
static double model_bytes(const uint8_t *file, size_t size) {
    double x[8] = {0.0}, numbers; /* dim, hidden, layers, heads, KV heads, head_dim, vocabulary, context */
    const int versioned = size >= 64 && memcmp(file, "SANTA-LM", 8) == 0;
    const int one = !versioned && size >= 37 && memcmp(file, "24ka", 4) == 0; /* llama2.c's version 1 */
    if (size < 28) return 0.0;
    for (int i = 0; i < (versioned ? 8 : 7); i++) {
        const int to = versioned || i < 5 ? i : i + 1;
        x[to] = (double)llama_i32(file + (versioned ? 16 : one ? 8 : 0) + 4 * i);
    }
    const int shared = versioned ? (int)(llama_u32(file + 60) & 1u) : one ? file[36] : x[6] > 0.0;
    if (!one) x[6] = fabs(x[6]);
    if (!versioned) x[5] = x[3] > 0.0 ? floor(x[0] / x[3]) : 0.0;
    for (int i = 0; i < 8; i++) if (!(x[i] > 0.0)) return 0.0;
    numbers = x[6] * x[0] * (shared ? 1.0 : 2.0) + x[0] + (versioned || one ? 0.0 : x[7] * x[5]) +
              x[2] * (2.0 * x[0] + 2.0 * x[3] * x[5] * x[0] + 2.0 * x[4] * x[5] * x[0] + 3.0 * x[1] * x[0]);
    return numbers * (versioned && llama_u32(file + 48) > 0 ? 2.0 : 4.0) +
           (versioned ? 64.0 : one ? 256.0 : 28.0);
}

/* A few tokens through the model by a method, with what weights there are: NaN and infinity,
   too. */
static int model_decode(const llama_model *m, int how) {
    llama_state   s;
    llama_error   e = {""};
    santa_options o = llama_dense();
    const int64_t capacity = llama_min(m->seq_len, 40);
    const int32_t prompt[5] = {1, 2, 0, m->vocab_size - 1, 1};
    const int64_t count = llama_min(capacity, 5);
    uint64_t      random = 7;
    int           ok = 1;
    o.method = (santa_method)(how % SANTA_METHOD_COUNT);
    if (santa_method_traits(o.method) & SANTA_ROUTES) o.method = SANTA_DENSE; /* a model has no router */
    o.num_samples = 4;
    santa_clear_unused_options(&o);
    if (llama_state_init(&s, m, capacity, &e) != 0 || llama_state_options(&s, &o, &e) != 0) {
        llama_state_free(&s);
        return CHECK_MSG(0, "no state: %s", e.text);
    }
    ok &= CHECK_MSG(llama_prefill(&s, prompt, count, 0, &e) == 0, "%s", e.text);
    for (int64_t at = count; ok && at < llama_min(capacity, 9); at++) {
        ok &= CHECK_MSG(llama_forward(&s, m->vocab_size - 1, at, 1, &e) == 0, "%s", e.text);
        const int32_t token = llama_sample(s.logits, m->vocab_size, how & 1 ? 0.8 : 0.0, &random);
        int finite = 1;
        for (int32_t i = 0; i < m->vocab_size; i++) finite &= fuzz_is_finite(s.logits[i]);
        ok &= CHECK_MSG(finite ? token >= 0 && token < m->vocab_size : token == -1, "token %d of %d",
                        (int)token, (int)m->vocab_size);
    }
    ok &= CHECK(llama_forward(&s, 0, capacity, 1, &e) != 0 && fuzz_is_message(e.text));
    ok &= CHECK(llama_forward(&s, m->vocab_size, 0, 1, &e) != 0 && fuzz_is_message(e.text));
    llama_state_free(&s);
    return ok;
}

static int model_one(const uint8_t *data, size_t size) {
    static uint8_t file[MODEL_MOST];
    llama_model m;
    llama_error e = {""};
    if (size < 1) return 1;
    const int how = data[0];
    size_t bytes = size - 1 < sizeof file ? size - 1 : sizeof file;
    memcpy(file, data + 1, bytes);
    const double wanted = model_bytes(file, bytes);
    if ((how & 1) && wanted > 0.0 && wanted <= (double)MODEL_MOST) {
        for (size_t i = bytes; i < (size_t)wanted; i++)
            file[i] = (uint8_t)(i % 4 == 3 ? 0x3c ^ (i / 4 * 0x80) : i * 37);
        bytes = (size_t)wanted;
    }
    fuzz_largest = 0;
    const char *path = fuzz_file(file, bytes);
    const int   status = llama_load(&m, path, &e);
    remove(path);
    int ok = CHECK_MSG(fuzz_largest <= 2 * bytes, "%lu bytes asked for a file of %lu",
                       (unsigned long)fuzz_largest, (unsigned long)bytes);
    if (status != 0) return ok & CHECK(status == -1 && fuzz_is_message(e.text) && m.data == NULL);
    ok &= CHECK_MSG((double)bytes == wanted, "a file of %lu bytes, its header asks for %.0f",
                    (unsigned long)bytes, wanted);
    if (ok) ok &= model_decode(&m, how / 2);
    llama_free(&m);
    return ok;
}

/* Whole little models of every format, by every method: their headers are seeds enough, bit 0
   of the first byte does the rest. */
static size_t model_seed(int number, uint8_t *data, size_t capacity) {
    static const int32_t plain[7] = {8, 12, 2, 4, 2, 9, 12};
    const int   format = number % 6, how = number / 6;
    fuzz_bytes  b = {data, 0, capacity};
    if (number >= 6 * SANTA_METHOD_COUNT) return 0;
    const uint8_t first = (uint8_t)(2 * how + 1);
    fuzz_put(&b, &first, 1);
    if (format < 2) {                                         /* llama2.c, the classifier shared or not */
        for (int i = 0; i < 7; i++) fuzz_put_u32(&b, (uint32_t)(i == 5 && format ? -plain[i] : plain[i]));
    } else if (format == 5) {                                 /* its version 1 */
        static const uint8_t zeros[256] = {0};
        const uint8_t shared = (uint8_t)(how % 2);
        fuzz_put(&b, "24ka", 4);
        fuzz_put_u32(&b, 1);
        for (int i = 0; i < 7; i++) fuzz_put_u32(&b, (uint32_t)plain[i]);
        fuzz_put(&b, &shared, 1);
        fuzz_put(&b, zeros, 256 - 37);
    } else {
        const int32_t header[8] = {8, 12, 2, 4, 2, 6, 9, 60};
        fuzz_put(&b, "SANTA-LM", 8);
        fuzz_put_u32(&b, 1);
        fuzz_put_u32(&b, 64);
        for (int i = 0; i < 8; i++) fuzz_put_u32(&b, (uint32_t)header[i]);
        fuzz_put_u32(&b, (uint32_t)format - 2);
        fuzz_put_f32(&b, 10000.0f);
        fuzz_put_f32(&b, 1e-5f);
        fuzz_put_u32(&b, (uint32_t)how % 2);
    }
    for (int i = 0; i < 40; i++) fuzz_put_f32(&b, (float)(i % 7) - 3.0f);
    return b.size;
}

FUZZ_TARGET(model, model_one, model_seed);
