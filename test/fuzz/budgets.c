/* Broken state files of layer_budgets.h: the search says what is wrong, or goes on to budgets
   that add up. Two bytes choose the search and whether its own first line is put before the
   rest of the file. */
#include "fuzz.h"
#include "../../examples/layer_budgets.h"

static double budgets_reward(void *user, const int64_t *budget, int32_t layers, int64_t episode) {
    double sum = 0.0;
    (void)user;
    for (int32_t i = 0; i < layers; i++) sum -= 1.0 / (double)budget[i];
    return sum + 0.01 * (double)(episode % 3);
}

static layer_budgets_options budgets_options(int which) {
    layer_budgets_options o = layer_budgets_default(1 + which % 7, 64 + which);
    o.iterations = 4;
    o.pairs = 1 + which % 2;
    return o;
}

static int budgets_one(const uint8_t *data, size_t size) {
    static char file[FUZZ_MAX_INPUT + 400];
    int64_t budget[LAYER_BUDGETS_MAX_LAYERS], sum = 0;
    layer_budgets_error e = {""};
    if (size < 2) return 1;
    layer_budgets_options o = budgets_options(data[0]);
    size_t bytes = 0;
    if (data[1] & 1) {
        layer_budgets_describe(&o, file, 300);
        bytes = strlen(file);
        file[bytes++] = '\n';
    }
    memcpy(file + bytes, data + 2, size - 2);
    o.state_path = fuzz_file(file, bytes + size - 2);
    const int status = layer_budgets_search(&o, budgets_reward, NULL, budget, &e);
    remove(o.state_path);
    if (status != 0) return CHECK(status == -1 && e.text[0] != 0 && memchr(e.text, 0, sizeof e.text));
    int ok = 1;
    for (int32_t i = 0; i < o.layers; i++) {
        ok &= CHECK_MSG(budget[i] >= o.minimum && budget[i] <= o.total, "budget %lld",
                        (long long)budget[i]);
        sum += budget[i];
    }
    return ok & CHECK_INT(sum, o.total);
}

/* State files of searches of every length, after each of their steps, with their first line or
   without, some with the largest of numbers. */
static size_t budgets_seed(int number, uint8_t *data, size_t capacity) {
    const int which = number % 7, with_line = number / 7 % 2;
    fuzz_bytes b = {data, 0, capacity};
    char       line[300];
    if (number >= 42) return 0;
    const layer_budgets_options o = budgets_options(which);
    const uint8_t head[2] = {(uint8_t)which, (uint8_t)!with_line};
    fuzz_put(&b, head, 2);
    if (with_line) {
        layer_budgets_describe(&o, line, sizeof line);
        fuzz_put(&b, line, strlen(line));
        fuzz_put(&b, "\n", 1);
    }
    snprintf(line, sizeof line, "iteration %d square %g reward %g\n", number / 14, 0.25 * number,
             -0.5 * number);
    fuzz_put(&b, line, strlen(line));
    for (int32_t i = 0; i < o.layers; i++) {
        const double large = number % 4 ? 0.0 : i % 2 ? -1e308 : 1e308;
        snprintf(line, sizeof line, "%.17g %.17g\n", 0.1 * i + large, 0.3 * i - large);
        fuzz_put(&b, line, strlen(line));
    }
    fuzz_put(&b, "end\n", 4);
    return b.size;
}

FUZZ_TARGET(budgets, budgets_one, budgets_seed);
