/* See flops_profile.h. A step counts for the module of the parameter that it reads, else for that
 * of its scope, since a fused node has the scope of its last part. */
#include "train/flops_profile.h"

#include "base/buf.h"
#include "op/ops.h"

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

static uint32_t module_of(profile *p, const dsi_step *step)
{
    for (uint32_t i = 0; i < step->n_in; ++i) {
        const dsi_ref *ref = &p->plan->refs[step->in_at + i];
        if (ref->space == DSI_SPACE_CELL) {
            const ds_cell_info *cell = ds_cells_get(p->plan->cells, ref->cell);
            if (cell->kind == DS_CELL_PARAM) {
                return owner_of(p, cell->name);
            }
        }
    }
    return module_at(p, step->scope, strlen(step->scope));
}

static bool multiplies(const ds_op *op)
{
    return op == &dsi_op_linear || op == &dsi_op_attention || op == &dsi_op_linear_cross_entropy;
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
                p->modules[at].params += (double)ds_shape_count(cell->meta.shape);
            }
        }
    }
    for (uint32_t s = 0; s < p->plan->phase_begin[DS_PHASE_BACKWARD] && room; ++s) {
        const dsi_step *step = &p->plan->steps[s];
        uint32_t at = module_of(p, step);
        room = at != DS_NONE;
        for (; at != DS_NONE; at = p->modules[at].parent) {
            p->modules[at].flops += step->flops;
            p->modules[at].macs += multiplies(step->op) ? 0.5 * step->flops : 0.0;
            p->modules[at].seconds += p->run->seconds[s];
        }
    }
    return room ? DS_OK : ds_fail(p->plan->ctx, DS_ERR_NOMEM, "no memory for the profile");
}

/* ---- text ------------------------------------------------------------------------------------ */

/* 1234567 → "1.23 M"; giga: the letter of 1e9. */
static const char *number(double value, const char *giga, const char *unit, char *word)
{
    const struct {
        double least;
        const char *letter;
    } steps[] = {{1e12, "T"}, {1e9, giga}, {1e6, "M"}, {1e3, "K"}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; ++i) {
        if (value >= steps[i].least) {
            (void)snprintf(word, NUMBER_BYTES, "%.2f %s%s", value / steps[i].least, steps[i].letter,
                           unit);
            return word;
        }
    }
    (void)snprintf(word, NUMBER_BYTES, *unit != '\0' ? "%.2f %s" : "%.2f", value, unit);
    return word;
}

static const char *duration(double seconds, char *word)
{
    if (seconds >= 1.0) {
        (void)snprintf(word, NUMBER_BYTES, "%.2f s", seconds);
    } else if (seconds >= 1e-3) {
        (void)snprintf(word, NUMBER_BYTES, "%.2f ms", seconds * 1e3);
    } else {
        (void)snprintf(word, NUMBER_BYTES, "%.2f us", seconds * 1e6);
    }
    return word;
}

static void line(profile *p, const char *label, const char *value)
{
    dsi_buf_printf(&p->text, "%-*s%s\n", WIDTH, label, value);
}

static void count(profile *p, const char *label, uint64_t n)
{
    dsi_buf_printf(&p->text, "%-*s%llu\n", WIDTH, label, (unsigned long long)n);
}

static double rate(double flops, double seconds)
{
    return seconds > 0.0 ? flops / seconds : 0.0;
}

static void print_summary(profile *p)
{
    const dsi_flops_run *r = p->run;
    const module *model = &p->modules[0];
    char w[NUMBER_BYTES];
    double again = 0.0;
    for (uint32_t s = 0; s < p->plan->phase_begin[DS_PHASE_NORM]; ++s) {
        again += p->plan->steps[s].recomputed ? p->plan->steps[s].flops : 0.0;
    }
    const double backward = 2.0 * model->flops + again;
    const double iteration = (r->forward + r->backward) * (double)r->accumulation + r->step;
    const double all = (model->flops + backward) * (double)r->accumulation;
    const double samples = (double)(r->micro_batch * r->accumulation) * r->n_ranks;
    dsi_buf_printf(&p->text, "\nProfile Summary at step %llu:\n",
                   (unsigned long long)r->global_step);
    count(p, "world size:", r->n_ranks);
    count(p, "data parallel size:", r->n_ranks);
    line(p, "model parallel size:", "1");
    count(p, "batch size per GPU:", (uint64_t)r->micro_batch);
    line(p, "params per GPU:", number(model->params, "B", "", w));
    line(p, "params of model = params per GPU * mp_size:", number(model->params, "B", "", w));
    line(p, "fwd MACs per GPU:", number(model->macs, "G", "MACs", w));
    line(p, "fwd flops per GPU:", number(model->flops, "G", "", w));
    line(p, "fwd flops of model = fwd flops per GPU * mp_size:", number(model->flops, "G", "", w));
    line(p, "fwd latency:", duration(r->forward, w));
    line(p, "fwd FLOPS per GPU = fwd flops per GPU / fwd latency:",
         number(rate(model->flops, r->forward), "G", "FLOPS", w));
    line(p, "recomputed flops per GPU:", number(again, "G", "", w));
    line(p, "bwd latency:", duration(r->backward, w));
    line(p, "bwd FLOPS per GPU = (2 * fwd + recomputed) flops / bwd latency:",
         number(rate(backward, r->backward), "G", "FLOPS", w));
    line(p, "step latency:", duration(r->step, w));
    line(p, "iter latency:", duration(iteration, w));
    line(p, "FLOPS per GPU = flops of all micro-batches / iter latency:",
         number(rate(all, iteration), "G", "FLOPS", w));
    line(p, "samples/second:", number(rate(samples, iteration), "G", "", w));
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
    dsi_buf_printf(&p->text,
                   "\n----------------------------- Aggregated Profile per GPU "
                   "-----------------------------\nTop %lld modules at each depth:\n",
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
    dsi_buf_printf(&p->text,
                   "%*s(%s): %s = %.2f%% Params, %s = %.2f%% MACs, %s = %.2f%% latency, %s\n",
                   (int)(2 * m->depth), "",
                   at == 0       ? p->run->model
                   : dot != NULL ? dot + 1
                                 : m->path,
                   number(m->params, "B", "", params), 100.0 * rate(m->params, model->params),
                   number(m->macs, "G", "MACs", macs), 100.0 * rate(m->macs, model->macs),
                   duration(m->seconds, time), 100.0 * rate(m->seconds, model->seconds),
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
        dsi_buf_puts(&p.text, "\n------------------------------ Detailed Profile per GPU "
                              "------------------------------\n");
        print_tree(&p, 0);
    }
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
