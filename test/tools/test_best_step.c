/* SPDX-License-Identifier: Apache-2.0 */
/* The best step and early stopping, on random series, beside Hugging Face's Trainer and its
 * EarlyStoppingCallback: test/golden/trainer/best_steps.txt, whose script is beside it. */
#include "common/check.h"
#include "tools/common/best_step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, LINE_BYTES = 4096 };

typedef struct series {
    best_rule rule;
    long stop, best; /* evaluations from 1; 0: none */
    double values[MOST];
    long counters[MOST];
    size_t n_values, n_counters;
} series;

/* The head, the values and the counters stand between colons. */
static void read_series(char *line, series *s)
{
    char *values = strchr(line, ':');
    assert_non_null(values);
    char *counters = strchr(values + 1, ':');
    assert_non_null(counters);
    *s = (series){0};
    char *at = line;
    s->rule.greater = strtol(at, &at, 10) != 0;
    s->rule.patience = strtol(at, &at, 10);
    s->rule.threshold = strtod(at, &at);
    s->stop = strtol(at, &at, 10);
    s->best = strtol(at, &at, 10);
    *counters = '\0';
    for (char *word = strtok(values + 1, " "); word != NULL; word = strtok(NULL, " ")) {
        assert_true(s->n_values < MOST);
        s->values[s->n_values++] = strtod(word, NULL);
    }
    for (at = counters + 1; at[strspn(at, " \n")] != '\0';) {
        assert_true(s->n_counters < MOST);
        s->counters[s->n_counters++] = strtol(at, &at, 10);
    }
}

static void check_series(const series *s)
{
    best_step best = {0};
    long stop = 0;
    for (size_t i = 0; i < s->n_values && stop == 0; ++i) {
        (void)best_step_feed(&best, &s->rule, s->values[i], i + 1);
        assert_true(i < s->n_counters);
        assert_int_equal(best.without, s->counters[i]);
        stop = best_step_stops(&best, &s->rule) ? (long)i + 1 : 0;
    }
    assert_int_equal(stop, s->stop);
    assert_int_equal(best.step, s->best);
    assert_true(s->best == 0 || best.value == s->values[s->best - 1]);
}

static void as_the_trainer(void **state)
{
    (void)state;
    char line[LINE_BYTES];
    int n = 0;
    int stopped = 0;
    FILE *golden = fopen(DS_SOURCE_DIR "/test/golden/trainer/best_steps.txt", "r");
    assert_non_null(golden);
    while (fgets(line, sizeof line, golden) != NULL) {
        series s;
        read_series(line, &s);
        check_series(&s);
        stopped += s.stop > 0;
        n += 1;
    }
    (void)fclose(golden);
    assert_int_equal(n, 600);
    assert_true(stopped > 100 && stopped < 500);
}

/* Without patience a run never stops; the best is known all the same. */
static void no_patience(void **state)
{
    (void)state;
    const best_rule rule = {0};
    best_step best = {0};
    assert_true(best_step_feed(&best, &rule, 2.0, 3));
    for (uint64_t step = 4; step < 100; ++step) {
        assert_false(best_step_feed(&best, &rule, 2.0, step));
        assert_false(best_step_stops(&best, &rule));
    }
    assert_int_equal(best.step, 3);
    assert_int_equal(best.newest, 99);
    assert_int_equal(best.without, 96);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_trainer),
                                       cmocka_unit_test(no_patience)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
