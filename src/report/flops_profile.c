/* SPDX-License-Identifier: Apache-2.0 */
/* See flops_profile.h. A step counts for the module of the parameter that it reads, itself or
 * gathered (stage 3), else for that of its scope, since a fused node has the scope of its last
 * part. */
#include "report/flops_profile.h"

#include "base/buf.h"
#include "cost/op_class.h"
#include "report/plan_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 512, NUMBER_BYTES = 48, TEXT_CEILING = 1 << 26, WIDTH = 70 };

typedef struct module {
    char *path; /* "" is the model */
    uint32_t parent, depth;
    double params, macs, flops, seconds; /* of the forward pass; children included */
} module;

typedef struct profile {
    const dsi_flops_spec *spec;
    const dsi_plan *plan;
    const ds_cells *cells;
    const dsi_flops_run *run;
    module *modules;
    uint32_t n, capacity, deepest;
    dsi_buf text;
} profile;

/* ---- the tree -------------------------------------------------------------------------------- */

static uint32_t find(const profile *p, const char *path, size_t length)
{
    for (uint32_t i = 0; i < p->n; ++i) {
        if (strlen(p->modules[i].path) == length &&
            strncmp(p->modules[i].path, path, length) == 0) {
            return i;
        }
    }
    return DS_NONE;
}

/* The module of a path, made with those above it. DS_NONE without memory. */
static uint32_t module_at(profile *p, const char *path, size_t length)
{
    uint32_t at = find(p, path, length);
    uint32_t parent = DS_NONE;
    if (at != DS_NONE) {
        return at;
    }
    if (length > 0) {
        size_t up = length;
        while (up > 0 && path[up - 1] != '.') {
            --up;
        }
        parent = module_at(p, path, up > 0 ? up - 1 : 0);
        if (parent == DS_NONE) {
            return DS_NONE;
        }
    }
    if (p->n == p->capacity) {
        const uint32_t grown = p->capacity > 0 ? 2 * p->capacity : 64;
        module *modules = realloc(p->modules, grown * sizeof *modules);
        if (modules == NULL) {
            return DS_NONE;
        }
        p->modules = modules;
        p->capacity = grown;
    }
    module *m = &p->modules[p->n];
    *m = (module){.path = strndup(path, length),
                  .parent = parent,
                  .depth = parent == DS_NONE ? 0 : p->modules[parent].depth + 1};
    p->deepest = m->depth > p->deepest ? m->depth : p->deepest;
    return m->path != NULL ? p->n++ : DS_NONE;
}

/* "a.b.weight" belongs to a.b. */
static uint32_t owner_of(profile *p, const char *parameter)
{
    const char *dot = strrchr(parameter, '.');
    return module_at(p, parameter, dot != NULL ? (size_t)(dot - parameter) : 0);
}

/* The parameter that an operand of step `s` is, or was gathered from; NULL: none. */
static const ds_cell_info *parameter_of(const profile *p, uint32_t s, const dsi_ref *ref)
{
    const dsi_plan *plan = p->plan;
    if (ref->space == DSI_SPACE_CELL) {
        const ds_cell_info *cell = ds_cells_get(plan->cells, ref->cell);
        return cell->kind == DS_CELL_PARAM ? cell : NULL;
    }
    for (uint32_t k = s; k-- > 0;) {
        const dsi_step *step = &plan->steps[k];
        for (uint32_t i = 0; step->op->role == DS_ROLE_ALL_GATHER && i < step->n_out; ++i) {
            if (plan->refs[step->out_at + i].value == ref->value) {
                const dsi_ref *from = &plan->refs[step->in_at + i];
                return from->space == DSI_SPACE_CELL ? parameter_of(p, 0, from) : NULL;
            }
        }
    }
    return NULL;
}

static uint32_t module_of(profile *p, uint32_t s)
{
    const dsi_step *step = &p->plan->steps[s];
    for (uint32_t i = 0; i < step->n_in; ++i) {
        const ds_cell_info *cell = parameter_of(p, s, &p->plan->refs[step->in_at + i]);
        if (cell != NULL) {
            return owner_of(p, cell->name);
        }
    }
    return module_at(p, step->scope, strlen(step->scope));
}

static ds_status build(profile *p)
{
    bool room = module_at(p, "", 0) != DS_NONE;
    for (ds_cell c = 0; c < ds_cells_count(p->cells) && room; ++c) {
        const ds_cell_info *cell = ds_cells_get(p->cells, c);
        if (cell->kind == DS_CELL_PARAM) {
            uint32_t at = owner_of(p, cell->name);
            room = at != DS_NONE;
            for (; at != DS_NONE; at = p->modules[at].parent) {
                p->modules[at].params +=
                    (double)ds_shape_count(ds_cell_unpacked(cell, DS_DTYPE_F32).shape);
            }
        }
    }
    for (uint32_t s = 0; s < p->plan->phase_begin[DS_PHASE_BACKWARD] && room; ++s) {
        const dsi_step *step = &p->plan->steps[s];
        uint32_t at = module_of(p, s);
        room = at != DS_NONE;
        for (; at != DS_NONE; at = p->modules[at].parent) {
            p->modules[at].flops += step->cost.flops;
            p->modules[at].macs +=
                dsi_op_class_is_model(step->op->op_class) ? 0.5 * step->cost.flops : 0.0;
            p->modules[at].seconds += p->run->seconds[s];
        }
    }
    return room ? DS_OK : ds_fail(p->plan->ctx, DS_ERR_NOMEM, "no memory for the profile");
}

/* ---- text ------------------------------------------------------------------------------------ */

/* 1234567 → "1.23 M", 1500 → "1.5 K": as DeepSpeed's number_to_string. giga: the letter of 1e9. */
static const char *number(double value, const char *giga, const char *unit, char *word)
{
    const struct {
        double least;
        const char *letter;
    } steps[] = {{1e12, "T"}, {1e9, giga}, {1e6, "M"}, {1e3, "K"}, {1.0, ""}, {1e-3, "m"}};
    const char *letter = value > 0.0 ? "u" : "";
    double size = value > 0.0 ? 1e-6 : 1.0;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; ++i) {
        if (value >= steps[i].least) {
            letter = steps[i].letter;
            size = steps[i].least;
            break;
        }
    }
    (void)snprintf(word, NUMBER_BYTES, "%g%s%s%s", round(100.0 * value / size) / 100.0,
                   *letter != '\0' || *unit != '\0' ? " " : "", letter, unit);
    return word;
}

static const char *duration(double seconds, char *word)
{
    return number(seconds, "G", "s", word);
}

static double percent(double part, double whole)
{
    return whole > 0.0 ? round(10000.0 * part / whole) / 100.0 : 0.0;
}

static void line(profile *p, const char *label, const char *value)
{
    dsi_buf_printf(&p->text, "%-*s  %-8s\n", WIDTH, label, value);
}

static double rate(double flops, double seconds)
{
    return seconds > 0.0 ? flops / seconds : 0.0;
}

static void count(profile *p, const char *label, uint64_t n)
{
    char word[NUMBER_BYTES];
    (void)snprintf(word, sizeof word, "%llu", (unsigned long long)n);
    line(p, label, word);
}

/* A rate of `factor` times the operations of the forward pass. */
static void speed(profile *p, const char *what, double factor, const char *over, double seconds)
{
    char label[160];
    char word[NUMBER_BYTES];
    (void)snprintf(label, sizeof label, "%s = %.4g * fwd flops per GPU / %s: ", what, factor, over);
    line(p, label, number(rate(factor * p->modules[0].flops, seconds), "G", "FLOPS", word));
}

/* Operations of a rank in an optimizer step: of all steps that ran, and what counts for a model. */
static void print_operations(profile *p, double iteration)
{
    const dsi_plan *plan = p->plan;
    double model = 0.0;
    double again = 0.0;
    double all = 0.0;
    char w[NUMBER_BYTES];
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        const bool repeats = dsi_phase_is_micro(&p->plan->phases, step->phase);
        const double runs = repeats                    ? (double)p->run->accumulation
                            : p->run->seconds[s] > 0.0 ? 1.0
                                                       : 0.0;
        model += runs * dsi_step_model_flops(plan, step);
        again += runs * (step->recomputed ? step->cost.flops : 0.0);
        all += runs * step->cost.flops;
    }
    line(p,
         "model flops of an iter per GPU (products, attention, once): ", number(model, "G", "", w));
    line(p, "hardware flops of an iter per GPU (all that was computed): ", number(all, "G", "", w));
    line(p, "recomputed flops among them: ", number(again, "G", "", w));
    line(p, "model FLOPS per GPU: ", number(rate(model, iteration), "G", "FLOPS", w));
    line(p, "hardware FLOPS per GPU: ", number(rate(all, iteration), "G", "FLOPS", w));
}

static void print_summary(profile *p)
{
    const dsi_flops_run *r = p->run;
    const module *model = &p->modules[0];
    char w[NUMBER_BYTES];
    double again = 0.0;
    for (uint32_t s = 0; s < p->plan->phase_begin[DS_PHASE_STEP]; ++s) {
        again += p->plan->steps[s].recomputed ? p->plan->steps[s].cost.flops : 0.0;
    }
    const double backward = 2.0 + rate(again, model->flops);
    const double n = (double)r->accumulation;
    const double iteration = (r->forward + r->backward) * n + r->step;
    const double samples = (double)(r->micro_batch * r->accumulation) * r->n_data_ranks;
    dsi_buf_printf(&p->text, "Profile Summary at step %llu:\n", (unsigned long long)r->global_step);
    dsi_buf_puts(&p->text, "Notations:\n"
                           "data parallel size (dp_size), model parallel size(mp_size),\n"
                           "parameters (params), multiply-accumulate operations (MACs),\n"
                           "floating-point operations (flops), those of a second (FLOPS),\n"
                           "fwd and bwd latency: of one micro-batch, step: the weights' update,\n"
                           "iter latency: fwd and bwd of all micro-batches, and step\n\n");
    count(p, "world size: ", r->n_ranks);
    count(p, "data parallel size: ", r->n_data_ranks);
    const double n_same = (double)(r->n_ranks / r->n_data_ranks); /* ranks of the same samples */
    (void)snprintf(w, sizeof w, "%g", n_same);
    line(p, "model parallel size: ", w);
    count(p, "batch size per GPU: ", (uint64_t)r->micro_batch);
    line(p, "params per GPU: ", number(r->rank_params, "B", "", w));
    line(p, "params of model: ", number(model->params, "B", "", w));
    line(p, "fwd MACs per GPU: ", number(model->macs, "G", "MACs", w));
    line(p, "fwd flops per GPU: ", number(model->flops, "G", "", w));
    line(p, "fwd flops of model = fwd flops per GPU * mp_size: ",
         number(model->flops * n_same, "G", "", w));
    line(p, "fwd latency: ", duration(r->forward, w));
    line(p, "fwd FLOPS per GPU = fwd flops per GPU / fwd latency: ",
         number(rate(model->flops, r->forward), "G", "FLOPS", w));
    line(p, "bwd latency: ", duration(r->backward, w));
    speed(p, "bwd FLOPS per GPU", backward, "bwd latency", r->backward);
    speed(p, "fwd+bwd FLOPS per GPU", backward + 1.0, "(fwd+bwd latency)",
          r->forward + r->backward);
    line(p, "step latency: ", duration(r->step, w));
    line(p, "iter latency: ", duration(iteration, w));
    speed(p, "FLOPS per GPU", (backward + 1.0) * n, "iter latency", iteration);
    (void)snprintf(w, sizeof w, "%g", round(100.0 * rate(samples, iteration)) / 100.0);
    line(p, "samples/second: ", w);
    print_operations(p, iteration);
}

/* The last part of a path; layers ("h.3") are named after what holds them. */
static void kind_of(const char *path, const char *model, char *word)
{
    const char *dot = strrchr(path, '.');
    const char *last = dot != NULL ? dot + 1 : path;
    if (*path == '\0') {
        (void)snprintf(word, PATH_BYTES, "%s", model);
        return;
    }
    if (strspn(last, "0123456789") == strlen(last) && dot != NULL) {
        const char *end = dot;
        while (dot > path && dot[-1] != '.') {
            --dot;
        }
        (void)snprintf(word, PATH_BYTES, "%.*s.*", (int)(end - dot), dot);
        return;
    }
    (void)snprintf(word, PATH_BYTES, "%s", last);
}

typedef struct sum {
    char kind[PATH_BYTES];
    double value;
} sum;

static int by_value(const void *a, const void *b)
{
    const sum *x = a;
    const sum *y = b;
    return x->value != y->value ? (x->value > y->value ? -1 : 1) : strcmp(x->kind, y->kind);
}

/* Sums over the modules of one kind at a depth, largest first. */
static void print_top(profile *p, uint32_t depth, const char *label, size_t field, sum *sums)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; ++i) {
        char kind[PATH_BYTES];
        double value;
        uint32_t at = 0;
        if (p->modules[i].depth != depth) {
            continue;
        }
        memcpy(&value, (const char *)&p->modules[i] + field, sizeof value);
        kind_of(p->modules[i].path, p->run->model, kind);
        while (at < n && strcmp(sums[at].kind, kind) != 0) {
            ++at;
        }
        if (at == n) {
            memcpy(sums[n].kind, kind, sizeof kind);
            sums[n++].value = 0.0;
        }
        sums[at].value += value;
    }
    qsort(sums, n, sizeof *sums, by_value);
    dsi_buf_printf(&p->text, "    %-12s- {", label);
    for (uint32_t i = 0; i < n && (int64_t)i < p->spec->top_modules; ++i) {
        char w[NUMBER_BYTES];
        const char *text = field == offsetof(module, seconds) ? duration(sums[i].value, w)
                           : field == offsetof(module, macs) ? number(sums[i].value, "G", "MACs", w)
                                                             : number(sums[i].value, "B", "", w);
        dsi_buf_printf(&p->text, "%s'%s': '%s'", i > 0 ? ", " : "", sums[i].kind, text);
    }
    dsi_buf_puts(&p->text, "}\n");
}

static uint32_t shown_depth(const profile *p)
{
    const int64_t asked = p->spec->module_depth;
    return asked >= 0 && asked < (int64_t)p->deepest ? (uint32_t)asked : p->deepest;
}

static ds_status print_aggregated(profile *p)
{
    sum *sums = calloc((size_t)p->n + 1, sizeof *sums);
    if (sums == NULL) {
        return ds_fail(p->plan->ctx, DS_ERR_NOMEM, "no memory for the profile");
    }
    dsi_buf_printf(
        &p->text,
        "\n----------------------------- Aggregated Profile per GPU "
        "-----------------------------\nTop %lld modules in terms of params, MACs or fwd "
        "latency at different model depths:\n",
        (long long)p->spec->top_modules);
    for (uint32_t depth = 0; depth <= shown_depth(p); ++depth) {
        dsi_buf_printf(&p->text, "depth %u:\n", depth);
        print_top(p, depth, "params", offsetof(module, params), sums);
        print_top(p, depth, "MACs", offsetof(module, macs), sums);
        print_top(p, depth, "fwd latency", offsetof(module, seconds), sums);
    }
    free(sums);
    return DS_OK;
}

static void print_tree(profile *p, uint32_t at)
{
    const module *m = &p->modules[at];
    const module *model = &p->modules[0];
    const char *dot = strrchr(m->path, '.');
    char params[NUMBER_BYTES];
    char macs[NUMBER_BYTES];
    char time[NUMBER_BYTES];
    char flops[NUMBER_BYTES];
    dsi_buf_printf(&p->text, "%*s(%s): %s = %g%% Params, %s = %g%% MACs, %s = %g%% latency, %s\n",
                   (int)(2 * m->depth), "",
                   at == 0       ? p->run->model
                   : dot != NULL ? dot + 1
                                 : m->path,
                   number(m->params, "B", "", params), percent(m->params, model->params),
                   number(m->macs, "G", "MACs", macs), percent(m->macs, model->macs),
                   duration(m->seconds, time), percent(m->seconds, model->seconds),
                   number(rate(m->flops, m->seconds), "G", "FLOPS", flops));
    for (uint32_t i = 0; i < p->n && m->depth < shown_depth(p); ++i) {
        if (p->modules[i].parent == at) {
            print_tree(p, i);
        }
    }
}

ds_status dsi_flops_print(const dsi_flops_spec *spec, const dsi_plan *plan, const ds_cells *cells,
                          const dsi_flops_run *run, char **text_out)
{
    profile p = {.spec = spec, .plan = plan, .cells = cells, .run = run};
    p.text = dsi_buf_make(TEXT_CEILING);
    ds_status status = build(&p);
    if (status >= 0) {
        dsi_buf_puts(&p.text, "\n-------------------------- DeepSpeed Flops Profiler "
                              "--------------------------\n");
        print_summary(&p);
        status = print_aggregated(&p);
    }
    if (status >= 0 && spec->detailed) {
        dsi_buf_puts(&p.text,
                     "\n------------------------------ Detailed Profile per GPU "
                     "------------------------------\n"
                     "Each module profile is listed after its name in the following order: "
                     "\nparams, percentage of total params, MACs, percentage of total MACs, fwd "
                     "latency, percentage of total fwd latency, fwd FLOPS\n"
                     "\nNote: what a fused operator does counts for the module of the parameter "
                     "that it reads; what belongs to no submodule makes up the difference between "
                     "a parent and the sum of its submodules.\n\n");
        print_tree(&p, 0);
    }
    dsi_buf_puts(
        &p.text,
        "------------------------------------------------------------------------------\n");
    for (uint32_t i = 0; i < p.n; ++i) {
        free(p.modules[i].path);
    }
    free(p.modules);
    if (status >= 0 && p.text.failed) {
        status = ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory for the profile");
    }
    if (status < 0) {
        dsi_buf_free(&p.text);
        return status;
    }
    *text_out = p.text.data;
    return DS_OK;
}
