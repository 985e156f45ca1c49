/* SPDX-License-Identifier: Apache-2.0 */
/* The batch triple: train_batch_size = micro batch × accumulation steps × ranks that have samples
 * of their own, which are the world but for tensor parallelism.
 *
 * Any that is missing follows from the others as DeepSpeed derives it: T alone or M alone means
 * one accumulation step; G alone, or nothing, is an error. Nothing is rounded.
 */
#include "config/config_eval.h"

#include <inttypes.h>

#define T_KEY "train_batch_size"
#define M_KEY "train_micro_batch_size_per_gpu"
#define G_KEY "gradient_accumulation_steps"

typedef struct triple {
    dsi_item *item[3]; /* T, M, G */
    int64_t value[3];  /* 0: absent */
    bool open;         /* one of them is an "auto" without value: nothing can be said */
} triple;

static triple read_triple(dsi_eval *eval)
{
    static const char *const keys[3] = {T_KEY, M_KEY, G_KEY};
    triple t = {.open = false};
    for (int i = 0; i < 3; ++i) {
        t.item[i] = dsi_item_find(eval, keys[i]);
        t.open = t.open || t.item[i]->open;
        if (t.item[i]->node == NULL || !dsi_node_int(t.item[i]->node, &t.value[i])) {
            t.value[i] = 0;
            /* a value that the walk refused */
            const dsi_node *given = t.item[i]->given;
            t.open = t.open || (given != NULL && given->kind != DSI_NODE_NULL &&
                                t.item[i]->origin == DS_ORIGIN_DEFAULT);
        }
    }
    return t;
}

static const dsi_item *place_of(const triple *t)
{
    for (int i = 0; i < 3; ++i) {
        if (dsi_item_given(t->item[i])) {
            return t->item[i];
        }
    }
    return NULL;
}

/* Which of the three are flags' and not the file's. */
static const char *flags_in(const dsi_eval *eval)
{
    const bool m = eval->trainer->micro_batch.known;
    const bool g = eval->trainer->gradient_accumulation_steps.known;
    return m && g ? " (--micro_batch and --gradient_accumulation_steps are given)"
           : m    ? " (--micro_batch is given)"
           : g    ? " (--gradient_accumulation_steps is given)"
                  : "";
}

/* value / by without rest, or an error. */
static bool divide(dsi_eval *eval, const dsi_item *item, int64_t value, int64_t by,
                   const char *by_text, int64_t *out)
{
    if (by <= 0 || value % by != 0) {
        dsi_item_error(eval, item,
                       "expected a multiple of %s = %" PRId64 ", found %" PRId64
                       "; change one of them%s",
                       by_text, by, value, flags_in(eval));
        return false;
    }
    *out = value / by;
    return true;
}

static void derive(dsi_eval *eval, dsi_item *item, int64_t value, const char *how)
{
    const ds_config_origin_kind origin =
        item->origin == DS_ORIGIN_AUTO ? DS_ORIGIN_AUTO : DS_ORIGIN_RULE;
    dsi_item_set(eval, item, dsi_node_make_int(eval->arena, value), origin, how);
}

static bool multiply(dsi_eval *eval, const triple *t, int64_t *product_out)
{
    const int64_t limit = INT64_C(1) << 40;
    int64_t product = eval->values->data_ranks;
    for (int i = 1; i < 3; ++i) {
        if (t->value[i] > limit / product) {
            dsi_item_error(eval, t->item[i],
                           "expected a batch of at most 2^40 samples, found %" PRId64
                           " here; make it smaller",
                           t->value[i]);
            return false;
        }
        product *= t->value[i];
    }
    *product_out = product;
    return true;
}

/* T is known, and M or G is missing. */
static bool split_total(dsi_eval *eval, triple *t)
{
    const int64_t ranks = eval->values->data_ranks;
    const char *text = dsi_config_data_text(eval);
    int64_t per_rank;
    if (!divide(eval, t->item[0], t->value[0], ranks, dsi_eval_text(eval, "the %s", text),
                &per_rank)) {
        return false;
    }
    if (t->value[1] != 0) {
        if (!divide(eval, t->item[0], t->value[0], t->value[1] * ranks,
                    dsi_eval_text(eval, "train_micro_batch_size_per_gpu × %s", text),
                    &t->value[2])) {
            return false;
        }
        derive(eval, t->item[2], t->value[2],
               dsi_eval_text(eval, T_KEY " / micro batch / %s", text));
        return true;
    }
    if (t->value[2] == 0) {
        t->value[2] = 1;
        derive(eval, t->item[2], 1, "1 unless given");
    }
    if (!divide(eval, t->item[0], t->value[0], t->value[2] * ranks,
                dsi_eval_text(eval, "gradient_accumulation_steps × %s", text), &t->value[1])) {
        return false;
    }
    derive(eval, t->item[1], t->value[1], dsi_eval_text(eval, T_KEY " / " G_KEY " / %s", text));
    return true;
}

static void resolve(dsi_eval *eval, triple *t)
{
    if (t->value[0] == 0 && t->value[1] == 0) {
        dsi_item_error(
            eval, place_of(t),
            "expected train_batch_size or train_micro_batch_size_per_gpu, found neither; "
            "give one of them, or --micro_batch");
        return;
    }
    if (t->value[0] != 0 && (t->value[1] == 0 || t->value[2] == 0)) {
        (void)split_total(eval, t);
        return;
    }
    if (t->value[2] == 0) {
        t->value[2] = 1;
        derive(eval, t->item[2], 1, "1 unless given");
    }
    int64_t product;
    if (!multiply(eval, t, &product)) {
        return;
    }
    if (t->value[0] == 0) {
        derive(eval, t->item[0], product,
               dsi_eval_text(eval, "micro batch × accumulation × %s", dsi_config_data_text(eval)));
    } else if (t->value[0] != product) {
        dsi_item_error(eval, t->item[0],
                       "expected train_micro_batch_size_per_gpu × gradient_accumulation_steps × "
                       "%s = %" PRId64 " × %" PRId64 " × %" PRIu32 " = %" PRId64 ", found %" PRId64
                       "; remove one of the three%s",
                       dsi_config_data_text(eval), t->value[1], t->value[2],
                       eval->values->data_ranks, product, t->value[0], flags_in(eval));
    }
}

/* What can be said before the ranks are known. */
static void check_early(dsi_eval *eval, const triple *t)
{
    const bool can_multiply =
        t->value[1] != 0 && t->value[2] != 0 && t->value[1] < INT64_MAX / t->value[2];
    int64_t world;
    if (t->value[0] != 0 && can_multiply) {
        (void)divide(eval, t->item[0], t->value[0], t->value[1] * t->value[2],
                     "train_micro_batch_size_per_gpu × gradient_accumulation_steps", &world);
    } else if (t->value[0] == 0 && t->value[1] == 0) {
        dsi_item_notice(eval, place_of(t),
                        "neither train_batch_size nor train_micro_batch_size_per_gpu is given; "
                        "the flag --micro_batch must be");
    }
}

static int64_t known(const dsi_item *item)
{
    int64_t value = 0;
    (void)(item->node != NULL && dsi_node_int(item->node, &value));
    return value;
}

void dsi_config_batch(dsi_eval *eval)
{
    if (dsi_config_elastic(eval)) {
        return;
    }
    triple t = read_triple(eval);
    if (t.open) {
        return;
    }
    if (eval->values->data_ranks == 0) {
        check_early(eval, &t);
    } else {
        resolve(eval, &t);
        eval->values->batch = (ds_config_batch){.train_batch_size = known(t.item[0]),
                                                .train_micro_batch_size_per_gpu = known(t.item[1]),
                                                .gradient_accumulation_steps = known(t.item[2])};
    }
}
