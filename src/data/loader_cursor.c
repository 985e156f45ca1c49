/* SPDX-License-Identifier: Apache-2.0 */
/* The cursor of a loader as JSON. See include/deepspeed/data.h. */
#include "data/loader.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a cursor belongs to. */
enum { DIGEST_TEXT = 17 };

static void digest_text(const ds_loader *loader, char text[DIGEST_TEXT])
{
    uint64_t digest = 0;
    for (uint32_t i = 0; i < loader->n_lanes; ++i) {
        const uint64_t own = dsi_dataset_digest(loader->lanes[i].dataset);
        digest = digest * 31 + own; /* of one dataset: its own */
    }
    (void)snprintf(text, DIGEST_TEXT, "%016llx", (unsigned long long)digest);
}

/* Older cursors have none. */
static void content_text(const ds_loader *loader, char text[DIGEST_TEXT])
{
    (void)snprintf(text, DIGEST_TEXT, "%016llx", (unsigned long long)loader->content);
}

/* Of all datasets. */
static uint64_t n_tokens(const ds_loader *loader)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < loader->n_lanes; ++i) {
        n += loader->lanes[i].dataset->info.n_tokens;
    }
    return n;
}

static uint64_t n_documents(const ds_loader *loader)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < loader->n_lanes; ++i) {
        n += loader->lanes[i].dataset->n_docs;
    }
    return n;
}

/* The lanes of a mixture: weight and place. One lane needs none. */
static json_t *lanes_json(const ds_loader *loader)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < loader->n_lanes; ++i) {
        const dsi_lane *lane = &loader->lanes[i];
        json_t *one = json_pack("{s:f, s:I, s:I}", "weight", lane->weight, "epoch",
                                (json_int_t)lane->epoch, "next", (json_int_t)lane->next);
        if (json_array_append_new(list, one) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *masking_json(const ds_loader *loader)
{
    const ds_masking *m = &loader->masking;
    return json_pack("[f, f, f]", m->chance, m->mask, m->word);
}

static json_t *cursor_json(const ds_loader *loader)
{
    char digest[DIGEST_TEXT];
    char content[DIGEST_TEXT];
    digest_text(loader, digest);
    content_text(loader, content);
    json_t *json = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:s}", "epoch", (json_int_t)loader->epoch, "next",
        (json_int_t)loader->next, "seed", (json_int_t)loader->params.seed, "seq_length",
        (json_int_t)loader->params.seq_length, "n_tokens", (json_int_t)n_tokens(loader),
        "n_documents", (json_int_t)n_documents(loader), "shuffle", (int)loader->params.shuffle,
        "digest", digest, "content", content);
    if (json != NULL && loader->params.masking != NULL &&
        json_object_set_new(json, "masking", masking_json(loader)) != 0) {
        json_decref(json);
        return NULL;
    }
    if (json != NULL && loader->params.alone != 0 &&
        json_object_set_new(json, "alone", json_true()) != 0) {
        json_decref(json);
        return NULL;
    }
    if (json != NULL && loader->n_lanes > 1 &&
        json_object_set_new(json, "sources", lanes_json(loader)) != 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

ds_status ds_loader_save(const ds_loader *loader, char **json_out)
{
    json_t *json = cursor_json(loader);
    char *text = json == NULL ? NULL : json_dumps(json, JSON_COMPACT);
    json_decref(json);
    if (text == NULL) {
        return ds_fail(loader->ctx, DS_ERR_NOMEM, "no memory for the data cursor");
    }
    *json_out = text;
    return DS_OK;
}

static ds_status same(const ds_loader *loader, const json_t *json, const char *key, uint64_t own)
{
    const json_t *value = json_object_get(json, key);
    if (!json_is_integer(value)) {
        return ds_fail(loader->ctx, DS_ERR_FORMAT, "the saved data cursor lacks the number \"%s\"",
                       key);
    }
    if ((uint64_t)json_integer_value(value) != own) {
        return ds_fail(loader->ctx, DS_ERR_ARG,
                       "the saved data cursor is of other data or settings: %s was %lld, now it is "
                       "%llu",
                       key, (long long)json_integer_value(value), (unsigned long long)own);
    }
    return DS_OK;
}

static ds_status same_content(const ds_loader *loader, const json_t *json)
{
    char own[DIGEST_TEXT];
    const char *saved = json_string_value(json_object_get(json, "digest"));
    const json_t *shuffle = json_object_get(json, "shuffle");
    digest_text(loader, own);
    if (saved == NULL || !json_is_boolean(shuffle)) {
        return ds_fail(loader->ctx, DS_ERR_FORMAT,
                       "the saved data cursor lacks its \"digest\" or \"shuffle\"");
    }
    if (json_is_true(shuffle) != loader->params.shuffle || strcmp(saved, own) != 0) {
        return ds_fail(loader->ctx, DS_ERR_ARG,
                       "the saved data cursor is of other data or settings: %s",
                       strcmp(saved, own) != 0 ? "as many tokens and documents, but others"
                                               : "shuffle differs");
    }
    const char *content = json_string_value(json_object_get(json, "content"));
    content_text(loader, own);
    if (content != NULL && strcmp(content, own) != 0) {
        return ds_fail(loader->ctx, DS_ERR_ARG,
                       "the saved data cursor is of other data: as many tokens and documents, but "
                       "some token, or whether it counts in the loss, is another");
    }
    return DS_OK;
}

static ds_status same_masking(const ds_loader *loader, const json_t *json)
{
    const json_t *saved = json_object_get(json, "masking");
    json_t *own = loader->params.masking != NULL ? masking_json(loader) : NULL;
    const bool same = (saved == NULL) == (own == NULL) && (own == NULL || json_equal(saved, own));
    json_decref(own);
    return same ? DS_OK
                : ds_fail(loader->ctx, DS_ERR_ARG,
                          "the saved data cursor is of other data or settings: how many tokens are "
                          "masked differs");
}

static ds_status same_packing(const ds_loader *loader, const json_t *json)
{
    return json_is_true(json_object_get(json, "alone")) == (loader->params.alone != 0)
               ? DS_OK
               : ds_fail(loader->ctx, DS_ERR_ARG,
                         "the saved data cursor is of other data or settings: whether samples are "
                         "packed (--packing) differs");
}

/* A number from 0 to limit. */
static ds_status position(const ds_loader *loader, const json_t *json, const char *key,
                          json_int_t limit, uint64_t *value_out)
{
    const json_t *value = json_object_get(json, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > limit) {
        return ds_fail(loader->ctx, DS_ERR_FORMAT,
                       "the saved data cursor lacks its position, a number \"%s\" from 0 to %lld",
                       key, (long long)limit);
    }
    *value_out = (uint64_t)json_integer_value(value);
    return DS_OK;
}

/* The places of a mixture's lanes, into the second half of the loader's lanes. */
static ds_status read_lanes(const ds_loader *loader, const json_t *json)
{
    const json_t *list = json_object_get(json, "sources");
    const size_t n = json_is_array(list) ? json_array_size(list) : 1;
    if (n != loader->n_lanes) {
        return ds_fail(loader->ctx, DS_ERR_ARG,
                       "the saved data cursor is of other data or settings: it had %zu weighted "
                       "sources, now there are %u",
                       n, loader->n_lanes);
    }
    for (uint32_t i = 0; loader->n_lanes > 1 && i < loader->n_lanes; ++i) {
        const json_t *one = json_array_get(list, i);
        const double weight = json_number_value(json_object_get(one, "weight"));
        dsi_lane *lane = &loader->lanes[loader->n_lanes + i];
        if (weight != loader->lanes[i].weight) {
            return ds_fail(loader->ctx, DS_ERR_ARG,
                           "the saved data cursor is of other data or settings: the weight of "
                           "source %u was %g, now it is %g",
                           i + 1, weight, loader->lanes[i].weight);
        }
        DS_TRY(position(loader, one, "epoch", UINT32_MAX, &lane->epoch));
        DS_TRY(position(loader, one, "next", INT64_MAX, &lane->next));
    }
    return DS_OK;
}

static ds_status restore(ds_loader *loader, const json_t *json)
{
    uint64_t epoch = 0;
    uint64_t next = 0;
    DS_TRY(same(loader, json, "seed", loader->params.seed));
    DS_TRY(same(loader, json, "seq_length", (uint64_t)loader->params.seq_length));
    DS_TRY(read_lanes(loader, json));
    DS_TRY(same(loader, json, "n_tokens", n_tokens(loader)));
    DS_TRY(same(loader, json, "n_documents", n_documents(loader)));
    DS_TRY(same_content(loader, json));
    DS_TRY(same_masking(loader, json));
    DS_TRY(same_packing(loader, json));
    DS_TRY(position(loader, json, "epoch", UINT32_MAX, &epoch)); /* the order knows 32 bits of it */
    DS_TRY(position(loader, json, "next", INT64_MAX, &next));
    dsi_loader_rewind_to(loader, epoch, next);
    for (uint32_t i = 0; loader->n_lanes > 1 && i < loader->n_lanes; ++i) {
        loader->lanes[i].epoch = loader->lanes[loader->n_lanes + i].epoch;
        loader->lanes[i].next = loader->lanes[loader->n_lanes + i].next;
    }
    return DS_OK;
}

ds_status ds_loader_restore(ds_loader *loader, const char *text)
{
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);
    if (json == NULL) {
        return ds_fail(loader->ctx, DS_ERR_FORMAT, "the saved data cursor is no JSON: %s",
                       error.text);
    }
    const ds_status status = restore(loader, json);
    json_decref(json);
    return status;
}
