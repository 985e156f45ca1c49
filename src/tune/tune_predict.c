/* SPDX-License-Identifier: Apache-2.0 */
/* The analytic search: makes the candidates and predicts each. See tune_impl.h.
 *
 * Stage, recomputation and micro-batch first; micro-batches rise until one does not fit or three in
 * a row are predicted no better. Then, from the best of these, the other settings of ZeRO. When
 * nothing fits, offload. Candidates whose plans cost the same are one.
 */
#include "tune/tune_impl.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BASES = 3, MOST_COMBINATIONS = 512, PLATEAU = 3, BATCH_SETTINGS = 4 /* of set_base */ };

static void no_line(void *user, ds_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

/* One line of a message that may have several. */
static void take_line(char *out, size_t size, const char *text)
{
    (void)snprintf(out, size, "%.*s", (int)strcspn(text, "\n"), text);
}

/* ---- names ---- */

/* "reduce_bucket_size" and 500000000 are rbs5.0e+08, as DeepSpeed writes them. */
static void name_setting(char *name, size_t size, const dsi_tune_setting *setting)
{
    const char *dot = strrchr(setting->path, '.');
    const char *key = dot != NULL ? dot + 1 : setting->path;
    const char *value = setting->value;
    const double number = strtod(value, NULL);
    size_t n = strlen(name);
    (void)snprintf(name + n, size - n, "_");
    if (strstr(setting->path, "offload_") != NULL) {
        const bool param = strstr(setting->path, "offload_param") != NULL;
        n = strlen(name);
        (void)snprintf(name + n, size - n, param ? "op" : "oo");
    }
    for (const char *at = key; *at != '\0';
         at = strchr(at, '_') != NULL ? strchr(at, '_') + 1 : "") {
        n = strlen(name);
        (void)snprintf(name + n, size - n, "%c", isalnum((unsigned char)*at) ? *at : 'x');
    }
    n = strlen(name);
    if (strcmp(value, "true") == 0 || strcmp(value, "false") == 0) {
        (void)snprintf(name + n, size - n, "%c", toupper((unsigned char)value[0]));
    } else if (number > 9000) {
        (void)snprintf(name + n, size - n, "%.1e", number);
    } else {
        for (const char *at = value; *at != '\0' && n + 1 < size; ++at) {
            if (isalnum((unsigned char)*at) || *at == '.' || *at == '-') {
                name[n++] = *at;
                name[n] = '\0';
            }
        }
    }
}

/* Settings from index `extra` on are named one by one. */
static void name_candidate(const dsi_tune *t, dsi_tune_candidate *c, uint32_t extra)
{
    (void)snprintf(c->name, sizeof c->name, "z%" PRId64 "_gas%" PRId64 "_tmbspg%" PRId64, c->stage,
                   c->accumulation, c->micro_batch);
    if (t->space.n_recompute > 1) {
        const size_t n = strlen(c->name);
        (void)snprintf(c->name + n, sizeof c->name - n, "_rc%s", c->recompute);
    }
    for (uint32_t i = extra; i < c->n_settings; ++i) {
        if (strcmp(c->settings[i].path, "activation_checkpointing.recompute") != 0) {
            name_setting(c->name, sizeof c->name, &c->settings[i]);
        }
    }
    const size_t length = strlen(c->name);
    for (uint32_t i = 0, again = 2; i < t->n_items; ++i) {
        if (&t->items[i] != c && strcmp(t->items[i].name, c->name) == 0) {
            (void)snprintf(c->name + (length < sizeof c->name - 8 ? length : sizeof c->name - 8), 8,
                           "_%u", again++);
            i = UINT32_MAX; /* from the start again */
        }
    }
}

/* ---- one candidate ---- */

static void find_twin(const dsi_tune *t, dsi_tune_candidate *c)
{
    for (uint32_t i = 0; i < t->n_items; ++i) {
        const dsi_tune_candidate *o = &t->items[i];
        const dsi_prediction *p = &c->prediction;
        if (o != c && o->predicted && o->state == DSI_TUNE_OPEN &&
            (o->stage == c->stage || t->n_data_ranks == 1) && o->shared == c->shared &&
            o->micro_batch == c->micro_batch && o->accumulation == c->accumulation &&
            o->prediction.need == p->need && o->prediction.hardware_flops == p->hardware_flops &&
            o->prediction.sent == p->sent &&
            fabs(o->prediction.seconds - p->seconds) <= 1e-6 * p->seconds) {
            c->state = DSI_TUNE_SKIPPED;
            (void)snprintf(c->why, sizeof c->why, "its plan costs the same as that of %.100s",
                           o->name);
            return;
        }
    }
}

static ds_status plan_it(dsi_tune *t, ds_ctx *silent, dsi_tune_candidate *c)
{
    dsi_buf text;
    ds_status status = dsi_tune_text(silent, &t->raw, c->settings, c->n_settings, &text);
    if (status >= 0) {
        status = t->planner->predict(t->planner_self, silent, dsi_buf_text(&text), &c->prediction);
        dsi_buf_free(&text);
    }
    if (status == DS_ERR_NOMEM) {
        return ds_fail(t->ctx, status, "%s", ds_ctx_error(silent));
    }
    c->predicted = status >= 0;
    if (status < 0) {
        c->state = DSI_TUNE_REFUSED;
        take_line(c->why, sizeof c->why, ds_ctx_error(silent));
    }
    return DS_OK;
}

static ds_status predict(dsi_tune *t, ds_ctx *silent, dsi_tune_candidate *c)
{
    const double mib = 1024.0 * 1024.0;
    if (t->planner != NULL) {
        DS_TRY(plan_it(t, silent, c));
    } else {
        c->predicted = dsi_tune_formula(t, c, &c->prediction);
    }
    const dsi_prediction *p = &c->prediction;
    if (c->predicted && p->limit > 0 && p->limited > p->limit) {
        c->state = DSI_TUNE_LARGE;
        (void)snprintf(c->why, sizeof c->why, "needs %.0f MiB of device_memory's %.0f MiB",
                       (double)p->limited / mib, (double)p->limit / mib);
    } else if (c->predicted && t->params->memory > 0 && c->prediction.need > t->params->memory) {
        c->state = DSI_TUNE_LARGE;
        (void)snprintf(c->why, sizeof c->why, "needs %.0f MiB of %.0f MiB", (double)p->need / mib,
                       (double)t->params->memory / mib);
    } else if (c->state == DSI_TUNE_OPEN && c->predicted && t->planner != NULL) {
        find_twin(t, c);
    }
    return DS_OK;
}

/* NULL past the ceiling. */
static dsi_tune_candidate *add(dsi_tune *t)
{
    return t->n_items < DSI_TUNE_CEILING ? &t->items[t->n_items++] : NULL;
}

/* What every candidate sets. */
static void set_base(const dsi_tune *t, dsi_tune_candidate *c, int64_t stage, int64_t batch,
                     const char *recompute)
{
    const dsi_tune_space *s = &t->space;
    *c = (dsi_tune_candidate){.stage = stage, .micro_batch = batch};
    c->accumulation = s->rows > 0 ? s->rows / batch : s->accumulation;
    dsi_tune_set_int(c, "zero_optimization.stage", stage);
    dsi_tune_set_int(c, "train_micro_batch_size_per_gpu", batch);
    dsi_tune_set_int(c, "gradient_accumulation_steps", c->accumulation);
    dsi_tune_set_int(c, "train_batch_size", dsi_tune_rows(t, c));
    if (recompute != NULL) {
        const size_t n = strlen(recompute);
        dsi_tune_set(c, "activation_checkpointing.recompute", recompute);
        (void)snprintf(c->recompute, sizeof c->recompute, "%.*s", n > 2 ? (int)n - 2 : 0,
                       recompute + 1);
    }
    for (uint32_t i = 0; i < s->n_axes; ++i) {
        if (s->axes[i].from_stage == 0 && s->axes[i].n > 0) { /* a list of the user's */
            dsi_tune_set(c, s->axes[i].path, s->axes[i].values[0]);
        }
    }
}

static void set_offload(const dsi_tune *t, dsi_tune_candidate *c, int level)
{
    if (level >= 1) {
        dsi_tune_set(c, "zero_optimization.offload_optimizer.device", t->space.offload);
    }
    if (level >= 2) {
        dsi_tune_set(c, "zero_optimization.offload_param.device", t->space.offload);
    }
}

/* ---- the search ---- */

/* Whether a larger micro-batch is expected to bring more than a little. */
static bool gains(const dsi_tune *t, const dsi_tune_candidate *c, const dsi_tune_candidate *best)
{
    const double most = dsi_tune_expected(t, best);
    return dsi_tune_expected(t, c) > most + 0.5 * DSI_TUNE_LITTLE * fabs(most);
}

/* Rising micro-batches of one stage and recomputation. */
static ds_status search_batches(dsi_tune *t, ds_ctx *silent, int64_t stage, const char *recompute,
                                int offload)
{
    const dsi_tune_candidate *best = NULL;
    uint32_t worse = 0;
    for (uint32_t i = 0; i < t->space.n_batches && worse < PLATEAU; ++i) {
        dsi_tune_candidate *c = dsi_tune_is_interrupted() ? NULL : add(t);
        if (c == NULL) {
            return DS_OK;
        }
        set_base(t, c, stage, t->space.batches[i], recompute);
        const uint32_t extra = c->n_settings;
        set_offload(t, c, offload);
        name_candidate(t, c, extra);
        DS_TRY(predict(t, silent, c));
        if (c->state == DSI_TUNE_LARGE || (c->state == DSI_TUNE_REFUSED && best == NULL)) {
            if (t->space.rows == 0 || c->state == DSI_TUNE_REFUSED) {
                return DS_OK; /* larger ones need more */
            }
        } else if (best == NULL || gains(t, c, best)) {
            best = c;
            worse = 0;
        } else {
            worse += c->prediction.seconds > 0.0 ? 1 : 0;
        }
    }
    return DS_OK;
}

static ds_status search_stages(dsi_tune *t, ds_ctx *silent, int offload)
{
    const uint32_t ways = t->space.n_recompute > 0 ? t->space.n_recompute : 1;
    for (uint32_t i = 0; i < t->space.n_stages * ways; ++i) {
        /* on one rank any stage is the same plan: the first that offload takes */
        const int64_t stage =
            t->space.one_stage && offload > 0 ? (offload == 1 ? 1 : 3) : t->space.stages[i / ways];
        const char *recompute = t->space.n_recompute > 0 ? t->space.recompute[i % ways] : NULL;
        if ((offload == 1 && stage == 0) || (offload == 2 && stage < 3)) {
            continue;
        }
        DS_TRY(search_batches(t, silent, stage, recompute, offload));
    }
    return DS_OK;
}

static bool any_open(const dsi_tune *t)
{
    for (uint32_t i = 0; i < t->n_items; ++i) {
        if (t->items[i].state == DSI_TUNE_OPEN) {
            return true;
        }
    }
    return false;
}

/* The best of the first search, each of another stage where there are several. */
static uint32_t find_bases(const dsi_tune *t, uint32_t *bases)
{
    uint32_t n = 0;
    for (; n < BASES; ++n) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < t->n_items; ++i) {
            bool taken = t->items[i].state != DSI_TUNE_OPEN;
            for (uint32_t k = 0; k < n; ++k) {
                taken = taken || bases[k] == i ||
                        (t->space.n_stages > 1 && t->items[bases[k]].stage == t->items[i].stage);
            }
            if (!taken &&
                (best == UINT32_MAX || dsi_tune_is_better(t, &t->items[i], &t->items[best]))) {
                best = i;
            }
        }
        if (best == UINT32_MAX) {
            break;
        }
        bases[n] = best;
    }
    return n;
}

/* Combination number `k` of the axes; false: it is the base itself. */
static bool combine(const dsi_tune *t, dsi_tune_candidate *c, uint32_t k)
{
    bool changed = false;
    int64_t shared = 1;
    for (uint32_t i = 0; i < t->space.n_axes; ++i) {
        const dsi_tune_axis *axis = &t->space.axes[i];
        if (axis->from_stage <= c->stage && axis->n > 0) {
            if (k % axis->n > 0) {
                dsi_tune_set(c, axis->path, axis->values[k % axis->n]);
                changed = true;
                shared *= axis->shares ? strtoll(axis->values[k % axis->n], NULL, 10) /
                                             strtoll(axis->values[0], NULL, 10)
                                       : 1;
            }
            k /= axis->n;
        }
    }
    if (shared > 1) { /* the same batch of all ranks */
        c->shared = shared;
        c->accumulation *= shared;
        dsi_tune_set_int(c, "gradient_accumulation_steps", c->accumulation);
    }
    return changed;
}

static uint32_t combinations(const dsi_tune *t, int64_t stage)
{
    uint32_t n = 1;
    for (uint32_t i = 0; i < t->space.n_axes && n < MOST_COMBINATIONS; ++i) {
        const dsi_tune_axis *axis = &t->space.axes[i];
        n *= axis->from_stage <= stage && axis->n > 0 ? axis->n : 1;
    }
    return n < MOST_COMBINATIONS ? n : MOST_COMBINATIONS;
}

static ds_status search_axes(dsi_tune *t, ds_ctx *silent)
{
    uint32_t bases[BASES];
    const uint32_t n_bases = t->space.n_axes > 0 ? find_bases(t, bases) : 0;
    for (uint32_t b = 0; b < n_bases; ++b) {
        const dsi_tune_candidate base = t->items[bases[b]];
        const uint32_t n = combinations(t, base.stage);
        for (uint32_t k = 1; k < n && !dsi_tune_is_interrupted(); ++k) {
            dsi_tune_candidate made = base;
            if (!combine(t, &made, k)) {
                continue;
            }
            dsi_tune_candidate *c = add(t);
            if (c == NULL) {
                return DS_OK;
            }
            made.state = DSI_TUNE_OPEN;
            made.chosen = true;
            *c = made;
            name_candidate(t, c, BATCH_SETTINGS);
            DS_TRY(predict(t, silent, c));
        }
    }
    return DS_OK;
}

/* ---- what the file says nothing of: ranks that share ----------------------------------------- */

/* The best that fits, or where none does what needs least; of those with stages alone. NULL: none.
 */
static const dsi_tune_candidate *share_base(const dsi_tune *t, bool stages, bool layers)
{
    const bool open = any_open(t);
    const dsi_tune_candidate *best = NULL;
    for (uint32_t i = 0; i < t->n_items; ++i) {
        const dsi_tune_candidate *c = &t->items[i];
        const bool counts =
            open ? c->state == DSI_TUNE_OPEN : c->predicted && c->state == DSI_TUNE_LARGE;
        if (counts && (!stages || c->stages > 1) && (!layers || c->layers > 1) &&
            (best == NULL || (open ? dsi_tune_is_better(t, c, best)
                                   : c->prediction.need < best->prediction.need))) {
            best = c;
        }
    }
    return best;
}

static ds_status add_shared(dsi_tune *t, ds_ctx *silent, const dsi_tune_candidate *made)
{
    dsi_tune_candidate *c = dsi_tune_is_interrupted() ? NULL : add(t);
    if (c == NULL) {
        return DS_OK;
    }
    *c = *made;
    c->state = DSI_TUNE_OPEN;
    c->predicted = false;
    c->why[0] = '\0';
    name_candidate(t, c, BATCH_SETTINGS);
    DS_TRY(predict(t, silent, c));
    if (c->state == DSI_TUNE_REFUSED) { /* nobody asked for it */
        t->n_items -= 1;
    }
    return DS_OK;
}

/* Beside the base so many ranks share its layers, sequences and the model, with the batch of all
 * ranks as it is. */
static ds_status try_share(dsi_tune *t, ds_ctx *silent, const dsi_tune_candidate *base, uint32_t tp,
                           uint32_t sp, uint32_t pp)
{
    const int64_t all = (int64_t)tp * sp * pp;
    dsi_tune_candidate made = *base;
    made.shared = (base->shared > 0 ? base->shared : 1) * all;
    made.accumulation = base->accumulation * all;
    made.layers = tp;
    made.stages = pp;
    dsi_tune_set_int(&made, "gradient_accumulation_steps", made.accumulation);
    if (tp > 1) {
        dsi_tune_set_int(&made, "tensor_parallel.autotp_size", tp);
    }
    if (sp > 1) {
        dsi_tune_set_int(&made, "sequence_parallel_size", sp);
    }
    if (pp > 1) {
        dsi_tune_set_int(&made, "pipeline.stages", pp);
    }
    return add_shared(t, silent, &made);
}

/* Powers of two that divide the ranks; layers and sequences within a node. Then, of the best with
 * stages, the planner's choice of their order, and of the best with shared layers, domino. */
static ds_status search_shares(dsi_tune *t, ds_ctx *silent)
{
    enum { MOST = 8, STAGES = 16 };
    const dsi_tune_space *s = &t->space;
    const dsi_tune_candidate *found = share_base(t, false, false);
    const uint32_t local = t->n_local > 0 ? t->n_local : t->n_data_ranks;
    if (found == NULL || (any_open(t) && found->prediction.seconds <= 0.0)) {
        return DS_OK; /* without times what fits is as good as what shares */
    }
    const dsi_tune_candidate base = *found;
    for (uint32_t pp = 1; pp <= (s->silent_pp ? STAGES : 1); pp *= 2) {
        for (uint32_t tp = 1; tp <= (s->silent_tp ? MOST : 1); tp *= 2) {
            for (uint32_t sp = 1; sp <= (s->silent_sp ? MOST / tp : 1); sp *= 2) {
                if (tp * sp * pp > 1 && t->n_data_ranks % (tp * sp * pp) == 0 &&
                    local % (tp * sp) == 0) {
                    DS_TRY(try_share(t, silent, &base, tp, sp, pp));
                }
            }
        }
    }
    const dsi_tune_candidate *stages = s->silent_pp ? share_base(t, true, false) : NULL;
    if (stages != NULL) {
        dsi_tune_candidate made = *stages;
        dsi_tune_set(&made, "pipeline.schedule", "\"auto\"");
        DS_TRY(add_shared(t, silent, &made));
    }
    const dsi_tune_candidate *layers = s->silent_domino ? share_base(t, false, true) : NULL;
    if (layers != NULL && layers->micro_batch > 1) {
        dsi_tune_candidate made = *layers;
        dsi_tune_set(&made, "tensor_parallel.domino", "true");
        DS_TRY(add_shared(t, silent, &made));
    }
    return DS_OK;
}

static ds_status search(dsi_tune *t, ds_ctx *silent)
{
    DS_TRY(search_stages(t, silent, 0));
    DS_TRY(search_shares(t, silent));
    for (int offload = 1; offload <= 2 && t->space.offload != NULL && !any_open(t); ++offload) {
        if (offload == 1 || t->space.offload_params) {
            DS_TRY(search_stages(t, silent, offload));
        }
    }
    return search_axes(t, silent);
}

ds_status dsi_tune_predict(dsi_tune *t)
{
    ds_ctx_params params = ds_ctx_params_default();
    ds_ctx *silent = NULL;
    params.n_threads = 1;
    params.log = no_line;
    DS_TRY(ds_ctx_create(&params, &silent));
    const ds_status status = search(t, silent);
    ds_ctx_destroy(&silent);
    return status;
}
