/* SPDX-License-Identifier: Apache-2.0 */
/* What methods and filters of texts share. See jinja_method.c. */
#ifndef DSI_DATA_JINJA_STRINGS_H
#define DSI_DATA_JINJA_STRINGS_H

#include "data/jinja/jinja_run.h"
#include "data/jinja/jinja_unicode.h"

typedef enum dsi_ji_sides { DSI_JI_LEFT = 1, DSI_JI_RIGHT = 2, DSI_JI_BOTH = 3 } dsi_ji_sides;

/* strip(chars); chars MISSING or None: white space. */
dsi_jv dsi_ji_strip(dsi_ji *j, dsi_jv s, dsi_jv chars, dsi_ji_sides sides);
dsi_jv dsi_ji_replace(dsi_ji *j, dsi_jv s, dsi_jv old, dsi_jv new, int64_t count);
/* upper(), lower(). */
dsi_jv dsi_ji_recased(dsi_ji *j, dsi_jv s, dsi_ji_case how);
dsi_jv dsi_ji_capitalize(dsi_ji *j, dsi_jv s);
dsi_jv dsi_ji_join(dsi_ji *j, dsi_jv between, const dsi_jv *at, size_t n);
dsi_jv dsi_ji_center(dsi_ji *j, dsi_jv s, int64_t width, char fill);
/* The lines as a list. */
dsi_jv dsi_ji_splitlines(dsi_ji *j, dsi_jv s, bool keep);
/* islower(), isupper(). */
bool dsi_ji_is_cased(dsi_ji *j, dsi_jv s, dsi_ji_class how);

/* A method, in a table that ends with a row without a name; parameters as for dsi_ji_bind. */
typedef struct dsi_ji_method_row {
    const char *name, *parameters;
    dsi_jv (*run)(dsi_ji *j, dsi_jv self, const dsi_jv *args);
} dsi_ji_method_row;
const dsi_ji_method_row *dsi_ji_str_methods(void);

#endif
