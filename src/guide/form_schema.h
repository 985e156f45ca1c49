/* SPDX-License-Identifier: Apache-2.0 */
/* A JSON schema to a grammar of the JSON that it describes, or of a part of that: what is made is
 * always valid, and a keyword that could not be obeyed is an error that names it.
 *
 * Parts that are never made: additional properties where the schema lists properties and does not
 * allow others in so many words; properties in another order than listed; more white space than 20
 * characters; numbers of more than 18 digits.
 */
#ifndef DSI_GUIDE_FORM_SCHEMA_H
#define DSI_GUIDE_FORM_SCHEMA_H

#include "guide/grammar.h"

#include <jansson.h>

/* Where in the schema: for messages. */
typedef struct dsi_place {
    const struct dsi_place *parent;
    const char *key;
} dsi_place;

typedef struct dsi_form_schema_memo {
    const json_t *node;
    uint32_t rule;
} dsi_form_schema_memo;

typedef struct dsi_form_schema {
    dsi_grammar *g;
    json_t *top;
    dsi_form_schema_memo *memo; /* rules of parts of the schema */
    uint32_t n_memo;
    json_t *made;                                     /* an array: parts that merging made */
    uint32_t space, character, string, number, value; /* rules; see has */
    bool has[5];
    int depth;
} dsi_form_schema;

/* A failure of a keyword (NULL: of the whole part). Returns 0. */
uint32_t dsi_form_schema_fail(dsi_form_schema *s, const dsi_place *place, const char *keyword,
                              const char *message);
/* The rule of a part. */
uint32_t dsi_form_schema_rule(dsi_form_schema *s, json_t *node, const dsi_place *place);
/* Follows $ref. NULL: failed. */
json_t *dsi_form_schema_refer(dsi_form_schema *s, json_t *node, const dsi_place *place);
/* A number of elements, or `otherwise` where the keyword is missing. */
int64_t dsi_form_schema_count(dsi_form_schema *s, json_t *node, const char *keyword,
                              int64_t otherwise, const dsi_place *place);
/* A value as text. */
uint32_t dsi_form_schema_literal(dsi_form_schema *s, uint32_t at, json_t *value);
/* White space: a call of a rule that all share. */
uint32_t dsi_form_schema_space(dsi_form_schema *s, uint32_t at);

/* ---- by type: the text of a value; return the state behind ---- */
uint32_t dsi_form_schema_object(dsi_form_schema *s, uint32_t at, json_t *node,
                                const dsi_place *place);
uint32_t dsi_form_schema_array(dsi_form_schema *s, uint32_t at, json_t *node,
                               const dsi_place *place);
uint32_t dsi_form_schema_string(dsi_form_schema *s, uint32_t at, json_t *node,
                                const dsi_place *place);
uint32_t dsi_form_schema_number(dsi_form_schema *s, uint32_t at, json_t *node, bool whole,
                                const dsi_place *place);

/* ---- form_merge.c ---- */
/* allOf with what stands beside it as one schema, borrowed. NULL: failed. */
json_t *dsi_form_schema_merge(dsi_form_schema *s, json_t *node, const dsi_place *place);
/* Whether no value is of both. */
bool dsi_form_schema_disjoint(dsi_form_schema *s, json_t *a, json_t *b, const dsi_place *place);

#endif
