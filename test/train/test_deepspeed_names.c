/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the modules of DeepSpeed's users as those of the model: by parameter_names.txt, of which
 * random ones are right or refused, or by none. */
#include "common/check.h"
#include "common/deepspeed_forms.h"
#include "common/scratch.h"

#include <deepspeed/checkpoint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const forms[] = {"pipe", NULL};

static char *folder; /* of the unpacked forms */

static int unpack(void **state)
{
    folder = forms_unpack(forms);
    return check_set_up(state);
}

static int remove_all(void **state)
{
    scratch_remove(folder);
    return check_tear_down(state);
}

static void write_names(const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/named/parameter_names.txt", folder);
    scratch_write(path, text, strlen(text));
}

static void maps_names_by_a_file(void **state)
{
    static const char lines[] = "# layers 1 and 2 are decoder layers 0 and 1\n\n"
                                "0.*  model.*\n"
                                "3.weight  model.norm.weight\n"
                                "4.*  *\n"
                                "{n}.*  model.layers.{n-1}.*\n";
    static const struct {
        const char *text, *error;
    } bad[] = {{"0.* model.*\n", "has no line for '1."},
               {"0.* model.* more\n", "is no line 'OWN NAME'"},
               {"0.*\n", "is no line 'OWN NAME'"},
               {"0.* model.{n}.*\n", "makes no name of '0.embed_tokens.weight'"},
               {"{n}.* model.layers.{n-1}.*\n", "makes no name of '0."},
               {"{n}.* model.{n+9223372036854775807}.*\n", "makes no name of '"},
               {"* same.name\n", "is there twice"}};
    char dir[256];
    (void)snprintf(dir, sizeof dir, "%s/named", folder);
    forms_copy(folder, "pipe", dir);
    write_names(lines);
    assert_true(forms_resume(folder, "pipe", 1, 0) == forms_resume(folder, "named", 1, 0));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        write_names(bad[i].text);
        forms_fail_to_open(*state, dir, DS_ERR_FORMAT, bad[i].error);
    }
}

/* ---- random parameter_names.txt ---- */

/* A file by which all names of "pipe" are those of the model again: its lines in another form each
 * time, some by numbers, some by letters and some by name, with comments and blanks. */
static void draw_names(uint64_t *seed, char *text, size_t room)
{
    static const char *const modules[] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
        "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
        "mlp.down_proj",    "input_layernorm",  "post_attention_layernorm"};
    static const char *const blanks[] = {" ", "\t", "   ", " \t "};
    size_t n = 0;
    const char *blank = blanks[forms_draw(seed, 4)];
#define LINE(...) n += (size_t)snprintf(text + n, room - n, __VA_ARGS__)
    if (forms_draw(seed, 2) == 0) {
        LINE("# own names\n\n");
    }
    LINE(forms_draw(seed, 2) == 0 ? "0.*%smodel.*\n" : "0.embed_tokens.*%smodel.embed_tokens.*\n",
         blank);
    LINE(forms_draw(seed, 2) == 0 ? "3.weight%smodel.norm.weight\n" : "3.*%smodel.norm.*\n", blank);
    LINE(forms_draw(seed, 2) == 0 ? "4.*%s*\n" : "%s4.lm_head.weight   lm_head.weight\n", blank);
    for (uint32_t layer = 1; layer <= 2; ++layer) {
        if (forms_draw(seed, 3) == 0) {
            LINE("%u.*%smodel.layers.%u.*%s\n", layer, blank, layer - 1, blank);
        }
    }
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; ++i) {
        const int letter = 'a' + (int)forms_draw(seed, 26);
        if (forms_draw(seed, 3) == 0) {
            LINE("{%c}.%s.*%smodel.layers.{%c-1}.%s.*\n", letter, modules[i], blank, letter,
                 modules[i]);
        }
    }
    LINE("{%c}.*%smodel.layers.{%c-1}.*\n", 'z', blank, 'z');
#undef LINE
    assert_true(n < room);
}

/* Whether the names are exactly those that the layers' order gives. */
static bool has_names_of(ds_ctx *ctx, const char *dir, const ds_checkpoint *want)
{
    ds_checkpoint *c = NULL;
    if (ds_checkpoint_open(ctx, dir, NULL, &c) < 0) {
        return false;
    }
    bool same = ds_checkpoint_count(c) == ds_checkpoint_count(want);
    for (size_t i = 0; same && i < ds_checkpoint_count(c); ++i) {
        same = strcmp(ds_checkpoint_at(c, i)->name, ds_checkpoint_at(want, i)->name) == 0 &&
               strcmp(ds_checkpoint_at(c, i)->kind, ds_checkpoint_at(want, i)->kind) == 0;
    }
    ds_checkpoint_close(&c);
    return same;
}

/* PARAMETER_NAMES: how many. */
static void takes_any_file_of_names_or_refuses_it(void **state)
{
    const char *wanted = getenv("PARAMETER_NAMES");
    const long times = wanted != NULL ? atol(wanted) : 200;
    char text[4096];
    char dir[256];
    char path[512];
    uint64_t seed = 7;
    ds_checkpoint *pipe = NULL;
    long n_refused = 0;
    (void)snprintf(path, sizeof path, "%s/pipe", folder);
    CHECK_OK(*state, ds_checkpoint_open(*state, path, NULL, &pipe));
    (void)snprintf(dir, sizeof dir, "%s/named", folder);
    forms_copy(folder, "pipe", dir);
    for (long i = 0; i < times; ++i) {
        draw_names(&seed, text, sizeof text);
        write_names(text);
        if (!has_names_of(*state, dir, pipe)) {
            fail_msg("these are not the names of the layers: %s\n%s", ds_ctx_error(*state), text);
        }
        /* two bytes are others: names stay, are others, or an error names the file and the line */
        const size_t n = strlen(text);
        for (int k = 0; k < 2; ++k) {
            text[forms_draw(&seed, (uint32_t)n)] = (char)(1 + forms_draw(&seed, 127));
        }
        write_names(text);
        ds_checkpoint *c = NULL;
        if (ds_checkpoint_open(*state, dir, NULL, &c) < 0) {
            ++n_refused;
            const char *said = ds_ctx_error(*state);
            const bool known = strstr(said, "parameter_names.txt") != NULL ||
                               strstr(said, "is there twice") != NULL;
            if (!known) {
                fail_msg("'%s' names no file of names, of\n%s", said, text);
            }
        } else {
            assert_int_equal(ds_checkpoint_count(c), ds_checkpoint_count(pipe));
            ds_checkpoint_close(&c);
        }
    }
    print_message("%ld files of names, and %ld with two other bytes, of which %ld were refused\n",
                  times, times, n_refused);
    assert_true(n_refused > times / 4);
    ds_checkpoint_close(&pipe);
}

/* A layer of the user's own leaves the names as they are, and no run goes on from them. */
static void keeps_names_that_no_rule_knows(void **state)
{
    char dir[256];
    char path[512];
    ds_checkpoint *c = NULL;
    (void)snprintf(dir, sizeof dir, "%s/named", folder);
    forms_copy(folder, "pipe", dir);
    static const char *const files[] = {"mp_rank_00_model_states.pt",
                                        "zero_pp_rank_0_mp_rank_00_optim_states.pt"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; ++i) {
        (void)snprintf(path, sizeof path, "%s/global_step3/%s", dir, files[i]);
        forms_replace(path, "1.self_attn.q_proj", "1.self_attn.x_proj", 18);
    }
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    assert_non_null(ds_checkpoint_find(c, "master", "0.embed_tokens.weight"));
    assert_non_null(ds_checkpoint_find(c, "exp_avg", "1.self_attn.x_proj.weight"));
    ds_checkpoint_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_names_by_a_file),
        cmocka_unit_test(takes_any_file_of_names_or_refuses_it),
        cmocka_unit_test(keeps_names_that_no_rule_knows),
    };
    return cmocka_run_group_tests(tests, unpack, remove_all);
}
