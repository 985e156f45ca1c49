/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a value is what a JSON schema describes: a validator that shares nothing with src/guide;
 * and random schemas for both. */
#ifndef DS_TEST_SCHEMA_VALID_H
#define DS_TEST_SCHEMA_VALID_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* *why_out: the keyword that does not hold. */
bool schema_valid(json_t *top, json_t *schema, json_t *value, const char **why_out);
/* A random schema of what src/guide supports, a new reference. */
json_t *schema_random(uint64_t seed);
/* A random number below n. */
uint32_t schema_below(uint64_t *seed, uint32_t n);

#endif
