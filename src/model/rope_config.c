/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions from config.json, in the layouts of transformers 4 (rope_theta, rope_scaling)
 * and 5 (rope_parameters), resolved in the order of transformers 5 (modeling_rope_utils.py):
 *
 * 1. rope_scaling, when it is not falsy, replaces rope_parameters.
 * 2. rope_type is before type; a rope_theta or partial_rotary_factor inside is before one outside.
 * 3. original_max_position_embeddings at the top is before one inside, for llama3 and yarn; the
 *    default is max_position_embeddings. Other types have no use for it.
 * 4. Keys that a type does not know have no effect.
 * 5. Of families whose layers rotate a part of each head, a part of odd width has the frequencies
 * of that width and rotates one dim more.
 */
#include "model/fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_ATTENTION_FACTOR = 100 }; /* beyond, fp32 does not tell scores apart */

typedef struct rope_reader {
    ds_reader outer,
        inner; /* inner: rope_scaling or rope_parameters; outer when there is neither */
    const ds_rope_rules *rules;
    int64_t head_dim, max_positions;
    ds_rope_params *rope;
    ds_longrope *longrope;
    bool typed; /* inner is nested by the type of a layer */
} rope_reader;

static ds_status missing(const rope_reader *r, const char *type, const char *key)
{
    return ds_fail(r->outer.ctx, DS_ERR_FORMAT,
                   "config.json: \"%s\" is missing: rotary positions of type %s need it", key,
                   type);
}

/* A number above 0 that the type cannot do without. */
static ds_status positive(const rope_reader *r, const char *type, const char *key,
                          double *value_out)
{
    *value_out = 0.0;
    if (json_object_get(r->inner.json, key) == NULL) {
        return missing(r, type, key);
    }
    DS_TRY(ds_field_number(&r->inner, key, value_out));
    return *value_out > 0.0 ? DS_OK : ds_field_bad(&r->inner, key, "above 0");
}

/* Null or 0, as well as nothing, is the default. */
static ds_status optional(const rope_reader *r, const char *key, double *value_out)
{
    double value = 0.0;
    if (!json_is_null(json_object_get(r->inner.json, key))) {
        DS_TRY(ds_field_number(&r->inner, key, &value));
    }
    *value_out = value != 0.0 ? value : *value_out;
    return DS_OK;
}

static ds_status read_original(const rope_reader *r)
{
    static const char *const key = "original_max_position_embeddings";
    r->rope->original_max_positions = r->max_positions;
    DS_TRY(ds_field_int(&r->inner, key, 1, &r->rope->original_max_positions));
    return r->typed ? DS_OK : ds_field_int(&r->outer, key, 1, &r->rope->original_max_positions);
}

static ds_status read_linear(const rope_reader *r)
{
    return positive(r, "linear", "factor", &r->rope->factor);
}

/* Of all dims it is linear; of fewer, check_partial() refuses it. */
static ds_status read_proportional(const rope_reader *r)
{
    if (r->rope->head_dim != r->head_dim) {
        return ds_fail(
            r->outer.ctx, DS_ERR_UNSUPPORTED,
            "config.json: rotary scaling \"proportional\" of %lld of %lld dims of a head "
            "is not supported",
            (long long)r->rope->head_dim, (long long)r->head_dim);
    }
    return json_object_get(r->inner.json, "factor") != NULL ? read_linear(r) : DS_OK;
}

static ds_status read_dynamic(const rope_reader *r)
{
    r->rope->original_max_positions = r->max_positions;
    if (r->rope->head_dim < 4) {
        return ds_fail(r->outer.ctx, DS_ERR_UNSUPPORTED,
                       "config.json: rotary positions of type dynamic need a head_dim of at least "
                       "4, found %lld",
                       (long long)r->rope->head_dim);
    }
    return positive(r, "dynamic", "factor", &r->rope->factor);
}

static ds_status read_llama3(const rope_reader *r)
{
    DS_TRY(positive(r, "llama3", "factor", &r->rope->factor));
    DS_TRY(positive(r, "llama3", "low_freq_factor", &r->rope->low_freq_factor));
    DS_TRY(positive(r, "llama3", "high_freq_factor", &r->rope->high_freq_factor));
    return read_original(r);
}

static ds_status read_truncate(const rope_reader *r)
{
    /* transformers looks for it beside the types of layers, not below one */
    const json_t *from =
        r->typed ? json_object_get(r->outer.json, "rope_parameters") : r->inner.json;
    const json_t *value = json_object_get(from, "truncate");
    r->rope->truncate = value == NULL || json_is_true(value);
    return value == NULL || json_is_boolean(value) || json_is_null(value)
               ? DS_OK
               : ds_field_bad(&r->inner, "truncate", "true, false or null (no truncation)");
}

static double mscale_of(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* As it is written, or from the factor; scores grow with its square. */
static ds_status read_attention_factor(const rope_reader *r)
{
    const json_t *value = json_object_get(r->inner.json, "attention_factor");
    const bool computed = value == NULL || json_is_null(value);
    ds_rope_params *rope = r->rope;
    DS_TRY(optional(r, "mscale", &rope->mscale));
    DS_TRY(optional(r, "mscale_all_dim", &rope->mscale_all_dim));
    rope->attention_factor = mscale_of(rope->factor, 1.0);
    if (rope->mscale != 0.0 && rope->mscale_all_dim != 0.0) {
        rope->attention_factor =
            mscale_of(rope->factor, rope->mscale) / mscale_of(rope->factor, rope->mscale_all_dim);
    }
    if (!computed) {
        DS_TRY(ds_field_number(&r->inner, "attention_factor", &rope->attention_factor));
    }
    if (rope->attention_factor >= 0.0 && rope->attention_factor <= MOST_ATTENTION_FACTOR) {
        return DS_OK;
    }
    char expected[64];
    (void)snprintf(expected, sizeof expected, "such that the attention factor is 0 to %d",
                   MOST_ATTENTION_FACTOR);
    return ds_field_bad(&r->inner, computed ? "mscale" : "attention_factor", expected);
}

static ds_status read_yarn(const rope_reader *r)
{
    ds_rope_params *rope = r->rope;
    DS_TRY(read_original(r));
    if (json_is_null(json_object_get(r->inner.json, "factor"))) {
        rope->factor = (double)r->max_positions / (double)rope->original_max_positions;
    } else {
        DS_TRY(positive(r, "yarn", "factor", &rope->factor));
    }
    rope->beta_fast = 32.0;
    rope->beta_slow = 1.0;
    DS_TRY(optional(r, "beta_fast", &rope->beta_fast));
    DS_TRY(optional(r, "beta_slow", &rope->beta_slow));
    DS_TRY(read_attention_factor(r));
    DS_TRY(read_truncate(r));
    if (rope->beta_fast < 0.0 || rope->beta_slow < 0.0) {
        return ds_field_bad(&r->inner, rope->beta_fast < 0.0 ? "beta_fast" : "beta_slow",
                            "above 0");
    }
    if (rope->theta == 1.0) {
        return ds_fail(r->outer.ctx, DS_ERR_FORMAT,
                       "config.json: \"rope_theta\" is 1, with which yarn has no frequencies");
    }
    return DS_OK;
}

/* rope_type, or type; left where there is neither. */
static ds_status read_type_name(const rope_reader *r, const char **name_out)
{
    const bool newer = json_object_get(r->inner.json, "rope_type") != NULL;
    return r->inner.json != r->outer.json
               ? ds_field_text(&r->inner, newer ? "rope_type" : "type", name_out)
               : DS_OK;
}

static ds_status read_type(const rope_reader *r)
{
    static const struct {
        const char *name;
        ds_rope_scaling kind;
        ds_status (*read)(const rope_reader *r);
    } kinds[] = {{"default", DS_ROPE_NONE, NULL},
                 {"linear", DS_ROPE_LINEAR, read_linear},
                 {"proportional", DS_ROPE_LINEAR, read_proportional},
                 {"dynamic", DS_ROPE_DYNAMIC, read_dynamic},
                 {"yarn", DS_ROPE_YARN, read_yarn},
                 {"llama3", DS_ROPE_LLAMA3, read_llama3}};
    const char *name = "default";
    DS_TRY(read_type_name(r, &name));
    if (r->rules->plain &&
        (strcmp(name, "longrope") == 0 || strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0)) {
        if (strcmp(name, "su") == 0 &&
            json_object_get(r->inner.json, "original_max_position_embeddings") == NULL) {
            return missing(r, name, "original_max_position_embeddings");
        }
        return ds_longrope_read(&r->outer, &r->inner, r->max_positions, r->rope, r->longrope);
    }
    if (r->rules->plain && strcmp(name, "default") != 0) {
        return ds_fail(r->outer.ctx, DS_ERR_UNSUPPORTED,
                       "config.json: rotary scaling \"%s\" is not supported for this family; "
                       "supported are default and longrope",
                       name);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
        if (strcmp(name, kinds[i].name) == 0) {
            r->rope->scaling = kinds[i].kind;
            return kinds[i].read != NULL ? kinds[i].read(r) : DS_OK;
        }
    }
    return ds_fail(r->outer.ctx, DS_ERR_UNSUPPORTED,
                   "config.json: rotary scaling \"%s\" is not supported; supported are default, "
                   "linear, proportional, dynamic, yarn, llama3",
                   name);
}

/* Outside, a key may have another name. */
static bool is_inside(const rope_reader *r, const char *key)
{
    return r->inner.json != r->outer.json && json_object_get(r->inner.json, key) != NULL;
}

static ds_status read_theta(const rope_reader *r)
{
    const bool inside = is_inside(r, "rope_theta");
    const ds_reader *from = inside ? &r->inner : &r->outer;
    const char *key = inside || r->rules->theta_key == NULL ? "rope_theta" : r->rules->theta_key;
    DS_TRY(ds_field_number(from, key, &r->rope->theta));
    return r->rope->theta > 0.0 ? DS_OK : ds_field_bad(from, key, "above 0");
}

/* The default type ignores it; the others would rotate fewer dims than the model's layers take. */
static ds_status check_partial(const rope_reader *r)
{
    static const char *const key = "partial_rotary_factor";
    const bool inside = json_object_get(r->inner.json, key) != NULL;
    const ds_reader *from = inside ? &r->inner : &r->outer;
    const json_t *value = json_object_get(from->json, key);
    const bool absent = value == NULL || (json_is_null(value) && !inside);
    if (r->rope->scaling == DS_ROPE_NONE || absent) {
        return DS_OK;
    }
    return json_is_number(value) && json_number_value(value) == 1.0
               ? DS_OK
               : ds_field_bad(from, key, "1 with rotary scaling");
}

/* How much of a head is rotated. */
static ds_status read_partial(const rope_reader *r)
{
    const bool inside = is_inside(r, "partial_rotary_factor");
    const ds_reader *from = inside ? &r->inner : &r->outer;
    const char *key =
        inside || r->rules->partial_key == NULL ? "partial_rotary_factor" : r->rules->partial_key;
    double share = r->rules->partial;
    if (!inside && r->rules->null_is_all && json_is_null(json_object_get(from->json, key))) {
        share = 1.0;
    } else {
        DS_TRY(ds_field_number(from, key, &share));
    }
    if (!(share > 0.0 && share <= 1.0)) {
        return ds_field_bad(from, key, "above 0 and at most 1");
    }
    const int64_t width = (int64_t)((double)r->rope->head_dim * share);
    if (width < 1) {
        return ds_fail(r->outer.ctx, DS_ERR_UNSUPPORTED,
                       "config.json: \"%s\" %g of a head of %lld dims rotates none of them; "
                       "supported is at least 1",
                       key, share, (long long)r->rope->head_dim);
    }
    r->rope->head_dim = width;
    return DS_OK;
}

/* A range of frequencies (yarn) and divisors (longrope) go in pairs of dims. */
static ds_status check_odd(const rope_reader *r)
{
    const bool even = r->rope->head_dim % 2 == 0;
    const bool by_pairs =
        r->rope->scaling == DS_ROPE_YARN || (r->longrope != NULL && r->longrope->max_positions > 0);
    return even || !by_pairs
               ? DS_OK
               : ds_fail(r->outer.ctx, DS_ERR_UNSUPPORTED,
                         "config.json: rotary scaling of %lld dims of a head; supported is an even "
                         "number with yarn and longrope",
                         (long long)r->rope->head_dim);
}

/* What inner holds, read. */
static ds_status read_inner(rope_reader *r)
{
    DS_TRY(read_theta(r));
    if (r->rules->partial > 0.0) {
        DS_TRY(read_partial(r));
        DS_TRY(read_type(r));
        return check_odd(r);
    }
    DS_TRY(read_type(r));
    return check_partial(r);
}

/* The older layout's rope_scaling, over what is nested for full_attention. */
static ds_status add_scaling(const ds_reader *outer, json_t *full)
{
    json_t *scaling = json_object_get(outer->json, "rope_scaling");
    if (scaling == NULL || json_is_null(scaling)) {
        return DS_OK;
    }
    if (!json_is_object(scaling) || full == NULL) {
        return ds_field_bad(outer, "rope_scaling",
                            "an object, beside parameters of full_attention, or null");
    }
    return json_object_update(full, scaling) == 0 ? DS_OK
                                                  : ds_fail(outer->ctx, DS_ERR_NOMEM, "no memory");
}

/* A copy of the parameters of a type of layer; of one that has none an empty object. */
static ds_status copy_nested(const ds_reader *outer, const char *type, json_t **copy_out)
{
    const json_t *all = json_object_get(outer->json, "rope_parameters");
    if (all != NULL && !json_is_null(all) && !json_is_object(all)) {
        return ds_field_bad(outer, "rope_parameters", "an object or null");
    }
    const json_t *own = json_object_get(all, type);
    if (own != NULL && !json_is_null(own) && !json_is_object(own)) {
        return ds_field_bad(outer, "rope_parameters", "objects by the types of layers");
    }
    *copy_out = json_is_object(own) ? json_deep_copy(own) : json_object();
    return *copy_out != NULL ? DS_OK : ds_fail(outer->ctx, DS_ERR_NOMEM, "no memory");
}

static ds_status read_typed(const ds_reader *reader, const ds_rope_rules *rules, const char *type,
                            int64_t head_dim, int64_t max_positions, ds_rope_params *rope)
{
    rope_reader r = {.outer = *reader,
                     .rules = rules,
                     .head_dim = head_dim,
                     .max_positions = max_positions,
                     .rope = rope,
                     .typed = true};
    const json_t *all = json_object_get(reader->json, "rope_parameters");
    json_t *own = NULL;
    *rope = (ds_rope_params){.head_dim = head_dim, .theta = rules->theta, .factor = 1.0};
    DS_TRY(copy_nested(reader, type, &own));
    ds_status status = DS_OK;
    if (strcmp(type, "full_attention") == 0) {
        if (all == NULL || json_is_null(all)) { /* then only rope_type says another type */
            (void)json_object_set_new(own, "rope_type", json_string("default"));
        }
        status = add_scaling(
            reader,
            json_is_object(all) && !json_is_object(json_object_get(all, type)) ? NULL : own);
    }
    if (status >= 0) {
        r.inner = *reader;
        r.inner.json = own;
        status = read_inner(&r);
    }
    json_decref(own);
    return status;
}

ds_status ds_rope_read_typed(const ds_reader *reader, const ds_rope_rules *rules, int64_t head_dim,
                             int64_t max_positions, ds_rope_params *full, ds_rope_params *sliding)
{
    const ds_rope_rules local = {.theta = 10000.0,
                                 .theta_key = rules->local_theta_key != NULL
                                                  ? rules->local_theta_key
                                                  : "rope_local_base_freq"};
    DS_TRY(read_typed(reader, rules, "full_attention", head_dim, max_positions, full));
    return read_typed(reader, &local, "sliding_attention", head_dim, max_positions, sliding);
}

/* rope_scaling or rope_parameters, checked to be flat. */
static ds_status find_inner(rope_reader *r)
{
    static const char *const labels[] = {"full_attention", "sliding_attention"};
    json_t *parameters = json_object_get(r->outer.json, "rope_parameters");
    json_t *scaling = json_object_get(r->outer.json, "rope_scaling");
    if (parameters != NULL && !json_is_null(parameters) && !json_is_object(parameters)) {
        return ds_field_bad(&r->outer, "rope_parameters", "an object or null");
    }
    if (!ds_field_is_falsy(scaling) && !json_is_object(scaling)) {
        return ds_field_bad(&r->outer, "rope_scaling", "an object or null");
    }
    const char *key = ds_field_is_falsy(scaling) ? "rope_parameters" : "rope_scaling";
    r->inner = r->outer;
    if (!ds_field_is_falsy(json_object_get(r->outer.json, key))) {
        r->inner.json = json_object_get(r->outer.json, key);
    }
    for (size_t i = 0; r->inner.json != r->outer.json && i < 2; ++i) {
        if (json_object_get(r->inner.json, labels[i]) != NULL) {
            return ds_fail(r->outer.ctx, DS_ERR_UNSUPPORTED,
                           "config.json: \"%s\" has \"%s\": parameters for each type of layer are "
                           "not supported",
                           key, labels[i]);
        }
    }
    return DS_OK;
}

ds_status ds_rope_read(const ds_reader *reader, const ds_rope_rules *rules, int64_t head_dim,
                       int64_t max_positions, ds_rope_params *rope, ds_longrope *longrope)
{
    rope_reader r = {.outer = *reader,
                     .rules = rules,
                     .head_dim = head_dim,
                     .max_positions = max_positions,
                     .rope = rope,
                     .longrope = longrope};
    *rope = (ds_rope_params){.head_dim = head_dim, .theta = rules->theta, .factor = 1.0};
    DS_TRY(find_inner(&r));
    const json_t *parameters = json_object_get(reader->json, "rope_parameters");
    json_t *absent = NULL;
    if (rules->absent != NULL && r.inner.json == r.outer.json &&
        (parameters == NULL || json_is_null(parameters))) {
        absent = json_loads(rules->absent, 0, NULL);
        r.inner.json = absent;
        if (absent == NULL) {
            return ds_fail(reader->ctx, DS_ERR_NOMEM, "no memory");
        }
    }
    const ds_status status = read_inner(&r);
    json_decref(absent);
    return status;
}

ds_status ds_rope_score_factor(const ds_reader *reader, double *factor_out)
{
    rope_reader r = {.outer = *reader};
    const char *type = "default";
    double all_dims = 0.0;
    double factor = 0.0;
    *factor_out = 1.0;
    DS_TRY(find_inner(&r));
    if (r.inner.json == r.outer.json) {
        return DS_OK;
    }
    DS_TRY(read_type_name(&r, &type));
    if (strcmp(type, "default") == 0) {
        return DS_OK;
    }
    DS_TRY(optional(&r, "mscale_all_dim", &all_dims));
    if (all_dims != 0.0) {
        DS_TRY(positive(&r, "mscale_all_dim", "factor", &factor));
        *factor_out = pow(mscale_of(factor, all_dims), 2.0);
    }
    return DS_OK;
}

void ds_rope_print(const ds_rope_params *r, FILE *out)
{
    static const char *const types[] = {"default", "linear", "dynamic", "yarn", "llama3"};
    (void)fprintf(out, "rope_type: %s\nrope_theta: %.17g\nrotated dims of a head: %lld\n",
                  types[r->scaling], r->theta, (long long)r->head_dim);
    if (r->scaling == DS_ROPE_NONE) {
        return;
    }
    (void)fprintf(out,
                  "rope factor: %.17g\nlow_freq_factor: %.17g\nhigh_freq_factor: %.17g\n"
                  "original_max_position_embeddings: %lld\nbeta_fast: %.17g\nbeta_slow: %.17g\n"
                  "attention_factor: %.17g\nmscale: %.17g\nmscale_all_dim: %.17g\ntruncate: %s\n",
                  r->factor, r->low_freq_factor, r->high_freq_factor,
                  (long long)r->original_max_positions, r->beta_fast, r->beta_slow,
                  r->attention_factor, r->mscale, r->mscale_all_dim,
                  r->truncate ? "true" : "false");
}
