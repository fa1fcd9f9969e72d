/* Which layer should get how many draws, at a fixed total: layer_budgets.h on a synthetic
   reward whose best split is known.
   Build: cc -O2 examples/layer_budgets.c -lm */
#include "data.h"
#include "layer_budgets.h"
#include <stdlib.h>

enum { LAYERS = 6, TOTAL = 96, QUESTIONS = 16 };

/* Layer i errs like weight[i] / budget[i]: the best budgets are proportional to the roots of
   the weights. */
static const double weight[LAYERS] = { 9.0, 1.0, 0.25, 4.0, 0.25, 1.0 };

static double right_answers(const int64_t *budget) {
    double error = 0.0;
    for (int i = 0; i < LAYERS; i++) error += weight[i] / (double)budget[i];
    return exp(-error);
}

/* The share of right answers to a few questions, each right by chance: as noisy as a real
   evaluation. The questions come from the episode number, so that two sets of budgets are
   compared on the same ones. */
static double reward(void *user, const int64_t *budget, int32_t layers, int64_t episode) {
    uint64_t random = (uint64_t)episode * QUESTIONS;
    int right = 0;
    (void)user;
    (void)layers;
    for (int i = 0; i < QUESTIONS; i++) {
        uint64_t z = ++random * 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        right += (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0 < right_answers(budget);
    }
    return (double)right / QUESTIONS;
}

static void print(const char *name, const int64_t *budget) {
    printf("%-9s", name);
    for (int i = 0; i < LAYERS; i++) printf(" %4d", (int)budget[i]);
    printf("   %5.1f %% right\n", 100.0 * right_answers(budget));
}

int main(int argc, char **argv) {
    data_arguments(argc, argv,
                   "Which layer should get how many draws at a fixed total, found from rewards.");
    layer_budgets_options o = layer_budgets_default(LAYERS, TOTAL);
    layer_budgets_error error;
    int64_t uniform[LAYERS], best[LAYERS], found[LAYERS];
    double roots = 0.0;
    for (int i = 0; i < LAYERS; i++) roots += sqrt(weight[i]);
    for (int i = 0; i < LAYERS; i++) {
        uniform[i] = TOTAL / LAYERS;
        best[i] = (int64_t)floor(TOTAL * sqrt(weight[i]) / roots + 0.5);
    }
    o.iterations = 100;
    if (layer_budgets_search(&o, reward, NULL, found, &error) != 0) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    printf("%d draws for %d layers, %d episodes of %d questions\n", (int)TOTAL, (int)LAYERS,
           (int)(2 * o.pairs * o.iterations), (int)QUESTIONS);
    print("uniform", uniform);
    print("found", found);
    print("best", best);
    return right_answers(found) > right_answers(uniform) ? 0 : 1;
}
