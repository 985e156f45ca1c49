/* SPDX-License-Identifier: Apache-2.0 */
/* A module's own names as those of the model. See ckpt_deepspeed.h. Three rules:
 *
 * 1. parameter_names.txt beside the files or in the save folder: lines "OWN NAME"; # begins a
 *    comment. In OWN {x} is a number (x a letter) and a * at its end the rest; NAME has {x}, {x+1},
 *    {x-1} and *. The first line that is OWN counts, and a parameter without one is an error.
 * 2. Without it, a PipelineModule ("3.self_attn.q_proj.weight", "tied_modules.KEY.weight") by the
 *    order of its layers: those whose modules all end with the names inside of a decoder layer of
 *    transformers (deepspeed_order.c) are the decoder layers, counted from 0; what is before them
 *    goes by the module's name, or is the embedding where it is one tensor; a tied module is the
 *    embedding; behind them vectors are the last norm and a matrix is the head. Where something is
 *    left over the names stay: inspect and export have them, a resume refuses them.
 * 3. Without it, AutoEP's modules by expert_parallel.preset_model of the configuration, where it is
 *    one of the lines below; else they stay.
 */
#include "ckpt/ckpt_deepspeed.h"
#include "ckpt/deepspeed_order.h"
#include "io/file.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 512, MOST_LAYERS = 1 << 20, LETTERS = 26, TIED = -1 };

static ds_status no_memory(const dsi_deepspeed *d)
{
    return ds_fail(d->ctx, DS_ERR_NOMEM, "no memory to read %s", d->folder);
}

/* ---- 1: by a file ---- */

typedef struct captures {
    long numbers[LETTERS];
    bool known[LETTERS];
    const char *rest;
} captures;

/* {x}, {x+N} or {x-N} at the text, N below MOST_LAYERS; its end, or NULL. */
static const char *placeholder(const char *at, int *letter_out, long *add_out)
{
    char *end = NULL;
    if (at[0] != '{' || at[1] < 'a' || at[1] > 'z') {
        return NULL;
    }
    *letter_out = at[1] - 'a';
    *add_out = at[2] == '+' || at[2] == '-' ? strtol(at + 2, &end, 10) : 0;
    const char *close = end != NULL ? end : at + 2;
    const bool near = *add_out > -MOST_LAYERS && *add_out < MOST_LAYERS; /* sums cannot overflow */
    return near && *close == '}' ? close + 1 : NULL;
}

static bool matches(const char *own, const char *name, captures *c)
{
    *c = (captures){.rest = NULL};
    while (*own != '\0') {
        int letter = 0;
        long add = 0;
        const char *next = placeholder(own, &letter, &add);
        if (next != NULL && *name >= '0' && *name <= '9') {
            char *end = NULL;
            const long number = strtol(name, &end, 10);
            if (number >= MOST_LAYERS || (c->known[letter] && c->numbers[letter] != number)) {
                return false;
            }
            c->numbers[letter] = number;
            c->known[letter] = true;
            name = end;
            own = next;
        } else if (own[0] == '*' && own[1] == '\0') {
            c->rest = name;
            return true;
        } else if (*own++ != *name++) {
            return false;
        }
    }
    return *name == '\0';
}

/* False: too long, or of what OWN has not. */
static bool fill(const char *form, const captures *c, char out[NAME_BYTES])
{
    size_t n = 0;
    while (*form != '\0') {
        int letter = 0;
        long add = 0;
        int more = 1;
        const char *next = placeholder(form, &letter, &add);
        if (next != NULL) {
            const long number = c->numbers[letter] + add;
            if (!c->known[letter] || number < 0) {
                return false;
            }
            more = snprintf(out + n, NAME_BYTES - n, "%ld", number);
            form = next;
        } else if (*form == '{' || (*form == '*' && c->rest == NULL)) {
            return false;
        } else if (*form == '*') {
            more = snprintf(out + n, NAME_BYTES - n, "%s", c->rest);
            ++form;
        } else {
            out[n] = *form++;
        }
        n += more > 0 ? (size_t)more : 0;
        if (n >= NAME_BYTES) {
            return false;
        }
    }
    out[n] = '\0';
    return n > 0;
}

/* The new name by the first line for it; text: lines that each end with a 0. */
static ds_status by_lines(const dsi_deepspeed *d, const char *path, const char *text, size_t n,
                          const char *name, char out[NAME_BYTES])
{
    for (size_t at = 0; at < n; at += strlen(text + at) + 1) {
        char own[NAME_BYTES];
        char form[NAME_BYTES];
        char more[2];
        captures c;
        const int words = sscanf(text + at, "%511s %511s %1s", own, form, more);
        if (words < 1 || own[0] == '#') {
            continue;
        }
        if (words != 2) {
            return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: '%.80s' is no line 'OWN NAME'", path,
                           text + at);
        }
        if (matches(own, name, &c)) {
            return fill(form, &c, out)
                       ? DS_OK
                       : ds_fail(d->ctx, DS_ERR_FORMAT,
                                 "%s: '%.80s' makes no name of '%.160s': its numbers and * have to "
                                 "be in the first word",
                                 path, text + at, name);
        }
    }
    return ds_fail(d->ctx, DS_ERR_FORMAT, "%s has no line for '%.160s'", path, name);
}

/* text: n bytes of lines that each end with a 0. */
static ds_status rename_by_lines(dsi_deepspeed *d, const char *path, const char *text, size_t n)
{
    for (size_t i = 0; i < d->m->n_tensors; ++i) {
        char name[NAME_BYTES];
        ds_checkpoint_tensor *t = &d->m->tensors[i];
        DS_TRY(by_lines(d, path, text, n, t->name, name));
        t->name = dsi_arena_strdup(d->m->arena, name);
        if (t->name == NULL) {
            return no_memory(d);
        }
    }
    return DS_OK;
}

static ds_status rename_by_file(dsi_deepspeed *d, const char *path)
{
    dsi_map map = {0};
    DS_TRY(dsi_map_open(d->ctx, path, 0, &map));
    char *text = malloc(map.size + 1);
    ds_status status = text != NULL ? DS_OK : no_memory(d);
    if (text != NULL) {
        memcpy(text, map.data, map.size);
        text[map.size] = '\0';
        for (size_t i = 0; i < map.size; ++i) {
            text[i] = (char)(text[i] == '\n' ? '\0' : text[i]);
        }
        status = rename_by_lines(d, path, text, map.size);
    }
    free(text);
    dsi_map_close(&map);
    return status;
}

/* ---- 3: AutoEP's modules ---- */

static const struct {
    const char *preset, *lines;
    size_t n;
} presets[] = {
#define LAYER       "model.layers.{n}."
#define LINES(text) text, sizeof text
    {"mixtral", LINES(LAYER "mlp.router.gate.weight " LAYER "block_sparse_moe.gate.weight\0" LAYER
                            "mlp.experts.{e}.* " LAYER "block_sparse_moe.experts.{e}.*.weight\0"
                            "* *")},
    {"qwen3_moe", LINES(LAYER "mlp.router.gate.weight " LAYER "mlp.gate.weight\0" LAYER
                              "mlp.experts.{e}.w1 " LAYER "mlp.experts.{e}.gate_proj.weight\0" LAYER
                              "mlp.experts.{e}.w2 " LAYER "mlp.experts.{e}.down_proj.weight\0" LAYER
                              "mlp.experts.{e}.w3 " LAYER "mlp.experts.{e}.up_proj.weight\0" LAYER
                              "mlp.shared_experts.* " LAYER "mlp.shared_expert.*\0" LAYER
                              "mlp.shared_experts_gate.* " LAYER "mlp.shared_expert_gate.*\0"
                              "* *")},
#undef LINES
#undef LAYER
};

static ds_status rename_by_preset(dsi_deepspeed *d)
{
    const dsi_pickle *config = dsi_pickle_get(d->models[0].root, "ds_config");
    const char *preset =
        dsi_pickle_text(dsi_pickle_get(dsi_pickle_get(config, "expert_parallel"), "preset_model"));
    for (size_t i = 0; preset != NULL && i < sizeof presets / sizeof presets[0]; ++i) {
        if (strcmp(preset, presets[i].preset) == 0) {
            return rename_by_lines(d, preset, presets[i].lines, presets[i].n);
        }
    }
    return DS_OK;
}

/* ---- 2: by the order of layers ---- */

/* A parameter's own name: its layer (or TIED), its module there, and "weight" or "bias". */
typedef struct own_name {
    long layer;
    const char *module;
    size_t n; /* bytes of the module, 0: the layer itself */
    const char *leaf;
} own_name;

static bool split(const char *name, own_name *own_out)
{
    static const char tied[] = "tied_modules.";
    char *end = NULL;
    const char *rest = NULL;
    own_out->layer = TIED;
    if (strncmp(name, tied, sizeof tied - 1) == 0) {
        rest = strchr(name + sizeof tied - 1, '.');
    } else if (*name >= '0' && *name <= '9') {
        own_out->layer = strtol(name, &end, 10);
        rest = end;
    }
    if (rest == NULL || *rest != '.' || own_out->layer >= MOST_LAYERS) {
        return false;
    }
    own_out->module = rest + 1;
    own_out->leaf = strrchr(name, '.') + 1;
    own_out->n = own_out->leaf > rest + 1 ? (size_t)(own_out->leaf - 1 - (rest + 1)) : 0;
    return strcmp(own_out->leaf, "weight") == 0 || strcmp(own_out->leaf, "bias") == 0;
}

/* The word of the list with which the module ends, after a dot or from its beginning; its length in
 * n_out. last: the word's last part alone counts. NULL: there is none. */
static const char *word_of(const char *list, const own_name *own, bool last, size_t *n_out)
{
    while (*list != '\0') {
        const size_t n = strcspn(list, " ");
        const char *part = list;
        for (size_t i = 0; last && i < n; ++i) {
            part = list[i] == '.' ? list + i + 1 : part;
        }
        const size_t length = n - (size_t)(part - list);
        if (own->n >= length && memcmp(own->module + own->n - length, part, length) == 0 &&
            (own->n == length || own->module[own->n - length - 1] == '.')) {
            *n_out = n;
            return list;
        }
        list += n + strspn(list + n, " ");
    }
    return NULL;
}

/* A word of a list by its place. */
static const char *word_at(const char *list, size_t place, size_t *n_out)
{
    for (; place > 0 && *list != '\0'; --place) {
        const size_t n = strcspn(list, " ");
        list += n + strspn(list + n, " ");
    }
    *n_out = strcspn(list, " ");
    return list;
}

/* What the layers of the list are: for each whether it is a decoder layer. */
typedef struct layer_list {
    const dsi_module_order *order;
    bool *is_decoder; /* [n] */
    long n, first, last;
    size_t n_before; /* tensors of one kind in front of the decoder layers */
} layer_list;

/* False: the list is not of this order. */
static bool find_layers(const dsi_deepspeed *d, layer_list *l)
{
    size_t n = 0;
    l->first = l->n;
    l->last = -1;
    l->n_before = 0;
    for (long i = 0; i < l->n; ++i) {
        l->is_decoder[i] = false;
    }
    for (size_t i = 0; i < d->m->n_tensors; ++i) {
        own_name own;
        if (split(d->m->tensors[i].name, &own) && own.layer >= 0 &&
            word_of(l->order->inside, &own, false, &n) != NULL) {
            l->is_decoder[own.layer] = true;
            l->first = own.layer < l->first ? own.layer : l->first;
            l->last = own.layer > l->last ? own.layer : l->last;
        }
    }
    for (size_t i = 0; i < d->m->n_tensors; ++i) {
        own_name own;
        if (!split(d->m->tensors[i].name, &own)) {
            return false;
        }
        const bool inside = own.layer >= l->first && own.layer <= l->last;
        if (inside && word_of(l->order->inside, &own, false, &n) == NULL) {
            return false;
        }
        l->n_before +=
            own.layer >= 0 && own.layer < l->first && strcmp(d->m->tensors[i].kind, "master") == 0;
    }
    return l->last >= 0;
}

static bool name_of(const layer_list *l, const ds_checkpoint_tensor *t, char out[NAME_BYTES])
{
    const char *word = NULL;
    size_t n = 0;
    own_name own;
    int length = -1;
    if (!split(t->name, &own)) {
        return false;
    }
    if (own.layer >= l->first && own.layer <= l->last) {
        long index = 0;
        for (long i = l->first; i < own.layer; ++i) {
            index += l->is_decoder[i];
        }
        word = word_of(l->order->inside, &own, false, &n);
        length = snprintf(out, NAME_BYTES, "%s%ld.%.*s.%s", l->order->layers, index, (int)n, word,
                          own.leaf);
        return length > 0 && length < NAME_BYTES;
    }
    if (own.layer == TIED) {
        word = t->meta.shape.n_dims == 2 ? word_at(l->order->before, 0, &n) : NULL;
    } else if (own.layer < l->first) {
        word = word_of(l->order->before, &own, true, &n);
        word = word == NULL && l->n_before == 1 ? word_at(l->order->before, 0, &n) : word;
    } else {
        word = word_at(l->order->after, t->meta.shape.n_dims == 2, &n);
    }
    length = word != NULL ? snprintf(out, NAME_BYTES, "%.*s.%s", (int)n, word, own.leaf) : -1;
    return length > 0 && length < NAME_BYTES;
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Whether two parameters would have one name. */
static ds_status find_twice(const dsi_deepspeed *d, char *const *names, bool *twice_out)
{
    char **sorted = dsi_arena_array(d->m->arena, d->m->n_tensors + 1, sizeof *sorted);
    size_t n = 0;
    if (sorted == NULL) {
        return no_memory(d);
    }
    for (size_t i = 0; i < d->m->n_tensors; ++i) {
        if (strcmp(d->m->tensors[i].kind, "master") == 0) {
            sorted[n++] = names[i];
        }
    }
    qsort(sorted, n, sizeof *sorted, compare_text);
    *twice_out = false;
    for (size_t i = 1; i < n; ++i) {
        *twice_out = *twice_out || strcmp(sorted[i - 1], sorted[i]) == 0;
    }
    return DS_OK;
}

/* Whether the order names every parameter, each another; then they have these names. */
static ds_status try_order(dsi_deepspeed *d, layer_list *l, bool *done_out)
{
    char **names = dsi_arena_array(d->m->arena, d->m->n_tensors + 1, sizeof *names);
    *done_out = false;
    if (names == NULL) {
        return no_memory(d);
    }
    if (!find_layers(d, l)) {
        return DS_OK;
    }
    for (size_t i = 0; i < d->m->n_tensors; ++i) {
        char name[NAME_BYTES];
        if (!name_of(l, &d->m->tensors[i], name)) {
            return DS_OK;
        }
        names[i] = dsi_arena_strdup(d->m->arena, name);
        if (names[i] == NULL) {
            return no_memory(d);
        }
    }
    bool twice = false;
    DS_TRY(find_twice(d, names, &twice));
    for (size_t i = 0; i < d->m->n_tensors && !twice; ++i) {
        d->m->tensors[i].name = names[i];
    }
    *done_out = !twice;
    return DS_OK;
}

static ds_status rename_by_order(dsi_deepspeed *d)
{
    layer_list l = {0};
    size_t n_orders = 0;
    bool done = false;
    const dsi_module_order *orders = dsi_module_orders(&n_orders);
    for (size_t i = 0; i < d->m->n_tensors; ++i) {
        own_name own;
        if (!split(d->m->tensors[i].name, &own)) {
            return DS_OK; /* no pipeline's */
        }
        l.n = own.layer >= l.n ? own.layer + 1 : l.n;
    }
    l.is_decoder = dsi_arena_array(d->m->arena, (size_t)l.n + 1, sizeof *l.is_decoder);
    if (l.is_decoder == NULL) {
        return no_memory(d);
    }
    for (size_t k = 0; k < n_orders && !done; ++k) {
        l.order = &orders[k];
        DS_TRY(try_order(d, &l, &done));
    }
    return DS_OK;
}

ds_status dsi_deepspeed_names_file(ds_ctx *ctx, const char *folder, char **path_out)
{
    static const char *const places[] = {"parameter_names.txt", "../parameter_names.txt"};
    *path_out = NULL;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; ++i) {
        char *path = dsi_path_join(folder, places[i]);
        if (path == NULL) {
            return ds_fail(ctx, DS_ERR_NOMEM, "no memory to read %s", folder);
        }
        if (access(path, F_OK) == 0) {
            *path_out = path;
            return DS_OK;
        }
        free(path);
    }
    return DS_OK;
}

ds_status dsi_deepspeed_names(dsi_deepspeed *d)
{
    char *path = NULL;
    DS_TRY(dsi_deepspeed_names_file(d->ctx, d->folder, &path));
    const ds_status status = path != NULL                 ? rename_by_file(d, path)
                             : d->universal && d->experts ? rename_by_preset(d)
                                                          : rename_by_order(d);
    free(path);
    return status;
}
