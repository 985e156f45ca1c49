/* SPDX-License-Identifier: Apache-2.0 */
/* Every row of a whole number: a value of the file is the value in force, to the last digit, or it
 * is refused by name. Random texts of every form (beyond 63 bits, with fraction, with exponent, in
 * quotes) against a model that reads the digits itself. DS_NUMBERS_CASES: texts a row (default 60).
 */
#include "common/check.h"
#include "config/config_eval.h"
#include "config/config_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state = 7;

static uint32_t draw(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % n;
}

/* A text and what it is: a whole number of at most 63 bits, or none. */
typedef struct sample {
    char text[64];
    bool whole;
    int64_t value;
} sample;

static sample of_int(int64_t value)
{
    sample s = {.whole = true, .value = value};
    (void)snprintf(s.text, sizeof s.text, "%" PRId64, value);
    return s;
}

/* digits × 10^exponent, in a form with an exponent; exact for the few digits that it has. */
static sample of_power(int64_t digits, int exponent)
{
    sample s = {.whole = true, .value = digits};
    for (int i = 0; i < exponent && s.whole; ++i) {
        s.whole = s.value < INT64_MAX / 10 && s.value > INT64_MIN / 10;
        s.value = s.whole ? s.value * 10 : 0;
    }
    for (int i = 0; i > exponent && s.whole; --i) {
        s.whole = s.value % 10 == 0;
        s.value /= 10;
    }
    (void)snprintf(s.text, sizeof s.text, "%" PRId64 "%s%d", digits, draw(2) == 0 ? "e" : "E",
                   exponent);
    return s;
}

static sample draw_sample(const dsi_option *row)
{
    static const char *const wrong[] = {"9223372036854775808",
                                        "-9223372036854775809",
                                        "1e30",
                                        "-1e30",
                                        "123456789012345678901",
                                        "0.5",
                                        "1.0000001",
                                        "1e-3",
                                        "-2.25",
                                        "9.3e18",
                                        "1e19",
                                        "1e300"};
    static const int64_t right[] = {
        0, 1, -1, 2, 1000, INT64_MAX, 2147483647, 2147483648, 1 << 20, INT64_C(9007199254740993)};
    const int64_t least = row->has_min ? (int64_t)row->min : -5;
    switch (draw(6)) {
    case 0: {
        sample s = {.whole = false};
        (void)snprintf(s.text, sizeof s.text, "%s", wrong[draw(sizeof wrong / sizeof *wrong)]);
        return s;
    }
    case 1:
        return of_int(right[draw(sizeof right / sizeof *right)]);
    case 2:
        return of_int(least - 2 + (int64_t)draw(5));
    case 3: {
        const int64_t digits = (int64_t)draw(2000); /* one draw a statement: the same everywhere */
        return of_power(digits, (int)draw(24) - 3);
    }
    case 4: {
        const uint64_t high = (uint64_t)draw(1u << 31) << 32;
        const uint64_t low = draw(1u << 31);
        return of_int((int64_t)((high | low) >> draw(40)));
    }
    default:
        return of_int((int64_t)draw(100000));
    }
}

static bool in_range(const dsi_option *row, int64_t value)
{
    const bool above = (row->flags & DSI_OPT_ABOVE_MIN) != 0;
    return !(row->has_min && (above ? value <= (int64_t)row->min : value < (int64_t)row->min)) &&
           !(row->has_max && (double)value > row->max);
}

typedef struct counts {
    dsi_arena *arena;
    uint64_t n_rows, n_taken, n_refused;
    int n_cases;
} counts;

static void check_text(counts *c, const dsi_section *section, const dsi_option *row,
                       const sample *s, bool quoted)
{
    const bool lax = (section->flags & DSI_SECTION_LAX) != 0;
    const bool list = row->type == DSI_OPT_INTS;
    char text[128];
    dsi_diags *diags = calloc(1, sizeof *diags);
    assert_non_null(diags);
    diags->name = "f";
    diags->arena = c->arena;
    dsi_eval eval = {.arena = c->arena, .diags = diags};
    (void)snprintf(text, sizeof text, "{\"v\": %s%s%s%s%s}", list ? "[" : "", quoted ? "\"" : "",
                   s->text, quoted ? "\"" : "", list ? "]" : "");
    const dsi_node *given = dsi_node_find(dsi_config_read(diags, text, strlen(text)), "v");
    assert_non_null(given);
    const dsi_node *node = dsi_option_check(&eval, row, given, lax, row->key);
    const bool right = s->whole && in_range(row, s->value) && (!quoted || (lax && !list));
    int64_t got = 0;
    if (node != NULL && list) {
        node = dsi_node_int(node->first, &got) ? node : NULL;
    } else if (node != NULL) {
        assert_true(dsi_node_int(node, &got));
    }
    if (right != (node != NULL) || (right && got != s->value) ||
        (!right && (diags->n_errors != 1 || strstr(diags->errors[0].text, row->key) == NULL))) {
        fail_msg("%s.%s: %s gives %s %" PRId64 ", %zu errors (%s)", section->path, row->key, text,
                 node != NULL ? "the value" : "no value", got, diags->n_errors,
                 diags->n_errors != 0 ? diags->errors[0].text : "");
    }
    c->n_taken += right;
    c->n_refused += !right;
    free(diags);
}

static void check_section(void *arg, const dsi_section *section)
{
    counts *c = arg;
    for (uint32_t i = 0; i < section->n_rows; ++i) {
        const dsi_option *row = &section->rows[i];
        if (row->type != DSI_OPT_INT && row->type != DSI_OPT_INTS) {
            continue;
        }
        ++c->n_rows;
        for (int k = 0; k < c->n_cases; ++k) {
            const sample s = draw_sample(row);
            check_text(c, section, row, &s, draw(4) == 0);
        }
    }
}

static void whole_numbers_are_exact_or_refused(void **state)
{
    (void)state;
    const char *cases = getenv("DS_NUMBERS_CASES");
    counts c = {.n_cases = cases != NULL ? atoi(cases) : 60};
    assert_int_equal(dsi_arena_create((size_t)1 << 32, &c.arena), DS_OK);
    dsi_config_visit(check_section, &c);
    dsi_arena_destroy(&c.arena);
    print_message("%" PRIu64 " rows: %" PRIu64 " values taken, %" PRIu64 " refused\n", c.n_rows,
                  c.n_taken, c.n_refused);
    assert_true(c.n_rows > 100 && c.n_taken > c.n_rows && c.n_refused > c.n_rows);
}

/* OneCycle moves betas, where an optimizer has any: SGD's momentum stays, as DeepSpeed has it. */
static void one_cycle_moves_betas_only(void **state)
{
    static const struct {
        const char *optimizer;
        bool moves;
    } cases[] = {
        {"AdamW", true}, {"Lion", true}, {"Lamb", true}, {"SGD", false}, {"Adagrad", false}};
    (void)state;
    ds_ctx_params params = ds_ctx_params_default();
    ds_ctx *ctx = NULL;
    params.n_threads = 1;
    params.level = DS_LOG_ERROR;
    assert_true(ds_ctx_create(&params, &ctx) >= 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char text[256];
        ds_config *config = NULL;
        (void)snprintf(text, sizeof text,
                       "{train_batch_size: 1, optimizer: {type: '%s', params: {%s}}, scheduler: "
                       "{type: 'OneCycle', params: {cycle_min_lr: 0.1, cycle_max_lr: 0.2}}}",
                       cases[i].optimizer,
                       strcmp(cases[i].optimizer, "SGD") == 0 ? "momentum: 0.5" : "");
        CHECK_OK(ctx, ds_config_load_text(ctx, "f", text, strlen(text), NULL, &config));
        CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
        const ds_config_values *v = dsi_config_values(config);
        assert_int_equal(ds_schedule_at(&v->scheduler, 0.1, 3).has_momentum, cases[i].moves);
        bool said = false;
        for (size_t k = 0; k < ds_config_n_notices(config); ++k) {
            said = said || strstr(ds_config_notice(config, k), "cycle_momentum") != NULL;
        }
        assert_int_equal(said, !cases[i].moves);
        ds_config_destroy(&config);
    }
    ds_ctx_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_numbers_are_exact_or_refused),
        cmocka_unit_test(one_cycle_moves_betas_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
