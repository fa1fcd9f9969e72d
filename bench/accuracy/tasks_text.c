/* The tasks of tasks.h as text, for other engines: the tokens' words, one a line, or a body
   with one of its questions.
   Build: cc -O2 bench/accuracy/tasks_text.c -lm */
#include <ctype.h>
#include <stdlib.h>
#include "tasks.h"

static void print_word(FILE *f, int32_t token, char behind) {
    char name[16];
    tasks_name(token, name);
    fprintf(f, "%s%c", name, behind);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "words")) {
        for (int32_t t = 0; t < TASKS_VOCAB; t++) print_word(stdout, t, '\n');
        return 0;
    }
    if (argc != 4) {
        const int help = argc == 2 && !strcmp(argv[1], "--help");
        fprintf(help ? stdout : stderr,
                "tasks_text words             the vocabulary\n"
                "tasks_text CONTEXT SEED I    a body for so many positions and its question I; to\n"
                "                             stderr the answer\n");
        return !help;
    }
    unsigned long long number[3];
    for (int n = 0; n < 3; n++) {
        char *end;
        number[n] = strtoull(argv[1 + n], &end, 10);
        if (!isdigit((unsigned char)*argv[1 + n]) || *end || (n != 1 && number[n] > INT32_MAX)) {
            fprintf(stderr, "%s is not a number for CONTEXT, SEED or I: --help\n", argv[1 + n]);
            return 1;
        }
    }
    const tasks_config c = tasks_default((int32_t)number[0], TASKS_EVALUATION);
    const int32_t count = tasks_query_count(&c), i = (int32_t)number[2];
    tasks_error e;
    int32_t *body = (int32_t *)malloc((size_t)(c.length > 0 ? c.length : 1) * sizeof *body);
    tasks_query *q = (tasks_query *)malloc((size_t)(count > 0 ? count : 1) * sizeof *q);
    if (!body || !q || i >= count || tasks_make(&c, number[1], body, q, &e)) {
        fprintf(stderr, "no such body or question\n");
        return 1;
    }
    for (int32_t j = 0; j < c.length; j++) print_word(stdout, body[j], ' ');
    for (int32_t j = 0; j < q[i].prompt_length; j++) print_word(stdout, q[i].prompt[j], ' ');
    for (int32_t j = 0; j < q[i].answer_length; j++) print_word(stderr, q[i].answer[j], ' ');
    fprintf(stderr, "\n");
    free(body);
    free(q);
    return 0;
}
